"""Which template schedules which kernel on GPUs, and what is said of those that were passed over."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import tilewright.topi.library  # noqa: F401  (registers the computations)
from tilewright.support import settings
from tilewright.target import Target
from tilewright.target.machine.parameters import user_table_path
from tilewright.target.machine.tables import Fit, Processors, Table, write_table
from tilewright.te.language import placeholder
from tilewright.te.program import create_prim_func
from tilewright.tir.function import CONSTANTS, PrimFunc
from tilewright.tir.schedule import Schedule, ScheduleError
from tilewright.topi.registry import apply_operator
from tilewright.topi.schedule.choices import Choices
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.gpu.products import PRODUCTS, ProductContext, tileable_output
from tilewright.topi.schedule.gpu.rows import KernelContext
from tilewright.topi.schedule.gpu.stage import StageContext
from tilewright.topi.schedule.gpu.strategy import KERNELS, STAGES, schedule_gpu
from tilewright.topi.schedule.template import Template, apply_first, apply_first_legal

HOPPER = Target("cuda -arch=sm_90a -num-cores=132 -shared-bytes=232448")
OPENCL = Target("opencl -num-cores=16")
SOFTWARE = Target("webgpu -mattr=+software")
Shape = tuple[int, ...]


def program(
    operator: str, shapes: Sequence[Shape], dtype: str = "float32", constants: Sequence[int] = (), **attributes: object
) -> PrimFunc:
    inputs = [placeholder(shape, dtype, f"in{n}") for n, shape in enumerate(shapes)]
    func = create_prim_func([*inputs, *apply_operator(operator, inputs, **attributes)], "kernel")
    return func.replace(attributes={CONSTANTS: list(constants)}) if constants else func


KERNELS_OF = [
    ("attention_tensor_core", HOPPER, "nn.attention", [(1, 64, 2, 32)] * 3, "float16", {"scale": 0.5}),
    ("attention_threads", HOPPER, "nn.attention", [(1, 50, 2, 32)] * 3, "float32", {"scale": 0.5}),
    ("attention_whole_rows", OPENCL, "nn.attention", [(1, 32, 2, 32)] * 3, "float32", {"scale": 0.5}),
    ("rows", HOPPER, "nn.softmax", [(64, 300)], "float32", {"axis": 1}),
    ("warp_group_product", HOPPER, "matmul", [(2048, 1024), (1024, 2048)], "float16", {}),
    ("tensor_core_product", HOPPER, "matmul", [(64, 64), (64, 64)], "float16", {}),
    ("private_tile_product", SOFTWARE, "matmul", [(64, 64), (64, 64)], "float32", {}),
    ("register_tile_product", HOPPER, "matmul", [(64, 64), (64, 64)], "float32", {}),
    ("row_reduction", HOPPER, "sum", [(200, 20000)], "float32", {"axes": [1]}),
    ("split_reduction", HOPPER, "sum", [(1, 1 << 20)], "float32", {"axes": [1]}),
    ("column_sums", HOPPER, "sum", [(100, 640)], "float32", {"axes": [0]}),
    ("transpose", HOPPER, "transpose", [(64, 96)], "float32", {"axes": [1, 0]}),
    ("elementwise", HOPPER, "exp", [(64, 96)], "float32", {}),
]


@pytest.mark.parametrize(("name", "target", "operator", "shapes", "dtype", "attributes"), KERNELS_OF)
def test_templates_of_kernels(
    name: str, target: Target, operator: str, shapes: list[Shape], dtype: str, attributes: dict[str, object]
) -> None:
    """Each family has its template, and each one before it says why it does not fit."""
    (choice,) = schedule_gpu(program(operator, shapes, dtype, **attributes), target).templates
    assert choice.name == name and not choice.failures
    table = [item.name for item in (PRODUCTS if "product" in name else STAGES)]
    products = ["products"] if operator == "sum" else []
    tables = [*(item.name for item in KERNELS), *products, *table]
    assert [item.name for item in choice.passed_over] == tables[: tables.index(name)]
    assert all(item.reason and "\n" not in item.reason for item in choice.passed_over)


def test_reasons() -> None:
    """Reasons name what is missing."""
    (choice,) = schedule_gpu(program("matmul", [(64, 64), (64, 64)]), HOPPER).templates
    reasons = {item.name: item.reason for item in choice.passed_over}
    assert choice.stage == "matmul"
    assert reasons["attention_threads"] == "the kernel is no attention"
    assert reasons["rows"] == "the kernel has a product"
    assert reasons["tensor_core_product"] == "tf32 is not allowed"
    (choice,) = schedule_gpu(program("matmul", [(3, 64), (64, 64)]), HOPPER).templates
    reasons = {item.name: item.reason for item in choice.passed_over}
    assert reasons["products"] == "rows, columns or steps are too few for tiles"


@pytest.mark.parametrize(
    ("group", "changed", "operator", "shapes", "attributes", "names"),
    [
        ("product", {"least_side": 65}, "matmul", [(64, 64)] * 2, {}, ("register_tile_product", "row_reduction")),
        (
            "reduction",
            {"many_steps": 1 << 21},
            "sum",
            [(1, 1 << 20)],
            {"axes": [1]},
            ("split_reduction", "row_reduction"),
        ),
        ("rows", {"long": 100}, "nn.softmax", [(8, 300)], {"axis": 1}, ("rows", "row_reduction")),
        (
            "attention",
            {"row_scores": 1},
            "nn.attention",
            [(1, 64, 2, 32)] * 3,
            {"scale": 0.5},
            ("attention_whole_rows", "attention_threads"),
        ),
    ],
)
def test_machine_parameters_decide(
    group: str,
    changed: dict[str, int],
    operator: str,
    shapes: list[Shape],
    attributes: dict[str, object],
    names: tuple[str, str],
    tmp_path: Path,
) -> None:
    """The user's table of a GPU moves the thresholds of templates."""
    before, after = names
    func = program(operator, shapes, **attributes)
    assert schedule_gpu(func, HOPPER).templates[0].name == before
    fit = Fit("python -m bench.gpu_memory", "a test", "2026-11-16")
    table = Table("mine", "measured", Processors("gpu", HOPPER.arch), {group: changed}, {group: fit})
    write_table(table, user_table_path(HOPPER, tmp_path))
    with settings.MACHINES.override(tmp_path):
        names_now = [choice.name for choice in schedule_gpu(func, HOPPER).templates]
    assert before not in names_now and after in names_now


def test_vector_products() -> None:
    """Constant weights times a vector are shared by the threads of a warp."""
    func = program("matmul", [(1, 256), (256, 512)], constants=[1])
    (choice,) = schedule_gpu(func, HOPPER).templates
    assert choice.name == "vector_product"


@pytest.mark.parametrize(("name", "target", "operator", "shapes", "dtype", "attributes"), KERNELS_OF)
def test_matching_changes_nothing(
    name: str, target: Target, operator: str, shapes: list[Shape], dtype: str, attributes: dict[str, object]
) -> None:
    """Templates look without changing the program or asking questions."""
    func, choices = program(operator, shapes, dtype, **attributes), Choices()
    sch = Schedule(func)
    kernel = KernelContext(sch, target, choices=choices)
    fitting = [item.name for item in KERNELS if item.matches(kernel) is None]
    for handle in sch.blocks():
        stage = StageContext.of(kernel, handle)
        fitting += [item.name for item in STAGES if item.matches(stage) is None]
        output = tileable_output(kernel, handle)
        if not isinstance(output, str):
            product = ProductContext(sch, target, choices=choices, anchor=handle, output=output)
            fitting += [item.name for item in PRODUCTS if item.matches(product) is None]
    assert sch.func is func and not choices.asked
    assert name in fitting or name == "warp_group_product"


# ---------------------------------------------------------------- how tables are used


def _split(context: ScheduleContext) -> None:
    sch = context.sch
    sch.split(sch.get_loops(sch.blocks()[0])[0], [None, 8])


def _split_and_fail(context: ScheduleContext) -> None:
    _split(context)
    raise ScheduleError("not here", func=context.sch.func)


def _context() -> ScheduleContext:
    return ScheduleContext(Schedule(program("exp", [(64,)])), HOPPER)


def test_the_first_legal_step_is_taken() -> None:
    """What fails leaves nothing behind; without any legal step the last error is raised."""
    context = _context()
    before = context.sch.func
    apply_first_legal([_split_and_fail, lambda trial: None], context)
    assert context.sch.func is before
    apply_first_legal([_split_and_fail, _split], context)
    assert len(context.sch.get_loops(context.sch.blocks()[0])) == 2
    with pytest.raises(ScheduleError, match="not here"):
        apply_first_legal([_split_and_fail], context)
    with pytest.raises(ScheduleError, match="there is nothing to try"):
        apply_first_legal([], context)


def test_a_template_that_fails_is_reported() -> None:
    """A stage's template that fails gives way to the next one, and the kernel says so."""
    failing = Template("failing", "", lambda context: None, _split_and_fail)
    working = Template("working", "", lambda context: None, _split)
    with settings.STRICT_TEMPLATES.override(False):
        choice = apply_first([failing, working], context := _context())
    assert choice.name == "working" and choice.failures == ("failing: not here",)
    assert len(context.sch.get_loops(context.sch.blocks()[0])) == 2


def test_rows_that_do_not_prove_to_be_apart() -> None:
    """Rows of two axes whose elements threads do not divide are reduced as any other reduction."""
    (choice,) = schedule_gpu(program("sum", [(33, 17)], axes=[0, 1]), OPENCL).templates
    (reason,) = [item.reason for item in choice.passed_over if item.name == "rows"]
    assert reason.startswith("rows do not prove to be apart") and choice.name.endswith("reduction")
