"""The table of CPU templates: each is chosen where it fits, conditions only look, failures leave nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import onnx
import pytest

from bench.micro_models import tiny
from tests.fuzz.template_families import FAMILIES, draw
from tests.topi import test_schedule_convolution as convolution
from tests.topi import test_schedule_depthwise as separable
from tests.topi import test_schedule_expanded as expanded
from tests.topi import test_schedule_split_k as split_k
from tests.topi import test_winograd as winograd
from tests.topi.test_schedule_cpu import kernel, var
from tilewright.cli.main import main
from tilewright.compiler import Compilation
from tilewright.frontend import from_onnx
from tilewright.graph.ir.expr import Var
from tilewright.graph.ir.op import call
from tilewright.graph.ops.window_dots import windows_together
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.types import tensor_type
from tilewright.lower.schedules import schedule_kernel, use_schedule
from tilewright.support import settings
from tilewright.target import Target
from tilewright.tir.function import CONSTANTS, PrimFunc
from tilewright.tir.schedule.errors import ScheduleError
from tilewright.tir.schedule.schedule import Schedule
from tilewright.tir.script import parse_script
from tilewright.topi.schedule.choices import Choices
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.cpu import reduction, strategy
from tilewright.topi.schedule.cpu.strategy import INLINED_KERNELS, WHOLE_KERNELS, schedule_cpu
from tilewright.topi.schedule.inline import inline_stages
from tilewright.topi.schedule.template import PassedOver, Template, apply_first

AVX512 = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512").replace(cores=1)
AMX = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=emeraldrapids").replace(cores=4)
NEON = Target("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1").replace(cores=1)
CORTEX_M4 = Target("cortex-m4")
LOOKUPS = {"blocks", "get_block", "get_loops", "get_output_blocks", "get_consumers", "get_producers"}
"""Calls that only look at a program."""
SMALL_CACHES = AVX512.replace(l1_bytes=16 << 10, l2_bytes=64 << 10)


def _of_family(family: str, seed: int, symbol: str = "", precision: str = "float32") -> Callable[[], PrimFunc]:
    """The first kernel of a small model whose symbol contains some text."""

    def made() -> PrimFunc:
        kernels = Compilation(from_onnx(draw(family, seed)[0]), AMX, 4, precision=precision).kernels
        return next(item.func for item in kernels if symbol in item.symbol)

    return made


def _matrix_vector() -> PrimFunc:
    x, w = var("x", 32, 64), var("w", 64, 1)
    return kernel([x, w], call("matmul", x, w))


def _depthwise() -> PrimFunc:
    x, w = var("x", 1, 8, 8, 32), var("w", 3, 3, 1, 32)
    layout = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    return kernel([x, w], call("nn.conv2d", x, w, groups=32, padding=(1, 1, 1, 1), **layout), on_cpu=True)


def _open_windows() -> PrimFunc:
    x, w = Var("x", tensor_type((1, *map(Symbol, "hw"), 16), "float32")), var("w", 3, 3, 16, 64)
    layout = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    return kernel([x, w], call("nn.conv2d", x, w, strides=(2, 2), padding=(1, 1, 1, 1), **layout), on_cpu=True)


def _weight_gradient() -> PrimFunc:
    x, g = var("x", 2, 8, 8, 16), var("g", 2, 8, 8, 32)
    layout = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    return kernel([x, g], call("nn.conv2d_weight_gradient", x, g, kernel=(3, 3), padding=(1, 1, 1, 1), **layout))


def _packed(rows: int) -> PrimFunc:
    a, scale = var("a", rows, 64), var("scale", 2, 32)
    words, zero = var("words", 8, 32, dtype="uint32"), var("zero", 1, 1, dtype="uint8")
    func = kernel([a, words, scale, zero], call("packed.matmul", a, words, scale, zero, bits=4, group=32), True)
    return func.replace(attributes={CONSTANTS: (1, 2, 3)})


def _packed_digits() -> PrimFunc:
    digits, step, scale = var("digits", 1, 3, 64, dtype="int8"), var("step", 1, 2), var("scale", 2, 32)
    data, zero = var("data", 8, 32, 4, dtype="uint8"), var("zero", 1, 1, dtype="uint8")
    operands = [digits, step, data, scale, var("sums", 1, 3, 2), zero]
    func = kernel(operands, call("packed.digit_matmul", *operands, bits=4, group=32))
    return func.replace(attributes={CONSTANTS: (2, 3, 5)})


def _bitserial() -> PrimFunc:
    x, w = Var("x", tensor_type((5, 2, 8), "uint8")), Var("w", tensor_type((1, 8, 32), "uint8"))
    return kernel([x, w], call("nn.bitserial_dense", x, w)).replace(attributes={CONSTANTS: (1,)})


def _computed_columns() -> PrimFunc:
    rows, columns = (Var(name, tensor_type(shape, "int8")) for name, shape in (("x", (2, 8, 16)), ("w", (2, 16, 16))))
    return kernel([rows, columns], call("qnn.matmul", rows, columns), True)


def _panel_product() -> PrimFunc:
    rows, columns = var("a", 256, 256), var("b", 256, 256)
    return kernel([rows, columns], call("matmul", rows, columns, transpose_a=True), True)


def _window_dots() -> PrimFunc:
    several, groups = windows_together(3, 1)
    shapes = {"x": (1, 5, 7, 32), "w": (several, 3, groups, 32, 4), "zero": ()}
    params = [var(name, *shape, dtype="int8") for name, shape in shapes.items()]
    return kernel(params, call("qnn.window_dots", *params, strides=(1, 1), padding=(1, 2, 1, 2), width=3), True)


def _run_dots() -> PrimFunc:
    kernels = Compilation(tiny().proto.SerializeToString(), CORTEX_M4).kernels
    return next(item.func for item in kernels if "qnn_conv2d" in item.symbol)


def _integer_lstm() -> PrimFunc:
    shapes = {"x": (3, 1, 4, 40), "w": (4, 40, 48), "scale": (4, 40), "h": (1, 40), "c": (1, 40)}
    params = [var(name, *shape, dtype="int8" if name == "w" else "float32") for name, shape in shapes.items()]
    gates = (("sigmoid", 0.0, 0.0), ("tanh", 0.0, 0.0), ("tanh", 0.0, 0.0))
    func = kernel(params, call("qnn.lstm", *params, activations=gates), True)
    return func.replace(attributes={CONSTANTS: (1, 2)})


KERNELS: Mapping[str, tuple[Callable[[], PrimFunc], Target]] = {
    "winograd": (lambda: winograd.Case((1, 8, 8, 16), 32).func, AVX512),
    "winograd-open": (lambda: winograd.Case((1, 8, 8, 16), 16, pixels=(winograd.H, winograd.W)).func, AVX512),
    "winograd-plain-weights": (lambda: winograd.Case((1, 7, 7, 16), 16, plain=True).func, AVX512),
    "integer-recurrence": (_integer_lstm, NEON),
    "computed-columns": (_computed_columns, NEON),
    "window-dots": (_window_dots, NEON),
    "recurrence": (_of_family("recurrence", 1, "rnn"), AVX512),
    "attention": (_of_family("projected_attention", 1, "nn_attention"), AVX512),
    "weight-gradient": (_weight_gradient, AVX512),
    "half-product": (_of_family("projected_attention", 2, "half_matmul", "float16"), AMX),
    "packed-product-of-few-rows": (lambda: _packed(1), AVX512),
    "packed-product-of-digits": (_packed_digits, AMX),
    "packed-product-of-many-rows": (lambda: _packed(32), AVX512),
    "bitserial": (_bitserial, AVX512),
    "open-windows": (_open_windows, AVX512),
    "depthwise-separable": (lambda: separable.Case((1, 8, 8, 16), 32).func, AVX512),
    "expanded-depthwise": (lambda: expanded.Case((1, 8, 8, 16), 32).func, AVX512),
    "amx-product": (_of_family("quantized_convolution", 0, "qnn_conv2d"), AMX),
    "run-dots": (_run_dots, CORTEX_M4),
    "dot-product": (_of_family("integer_product", 0, "qnn_matmul"), AMX),
    "matrix-vector-product": (_matrix_vector, AVX512),
    "panel-product": (_panel_product, NEON),
    "split-k-product": (lambda: split_k.product(64, 1024, 48), AVX512.replace(**split_k.SMALL)),
    "depthwise-planar": (_of_family("depthwise", 0, "conv2d"), AVX512),
    "depthwise": (_depthwise, AVX512),
    "streaming-taps": (lambda: convolution.Case((1, 7, 9, 24), 64).func, AVX512.replace(**convolution.SMALL)),
    "contraction": (_of_family("convolution_1d", 1, "conv2d"), AVX512),
    "reduction": (_of_family("reduction", 2), AVX512),
    "elementwise": (_of_family("elementwise", 0), AVX512),
}
"""A kernel and a target for each template."""


def test_every_template_has_a_name_and_a_kernel_of_its_own() -> None:
    names = [template.name for template in (*WHOLE_KERNELS, *INLINED_KERNELS)]
    assert sorted(names) == sorted(KERNELS)
    assert all(template.meaning for template in (*WHOLE_KERNELS, *INLINED_KERNELS))


@pytest.mark.parametrize("name", KERNELS)
def test_the_first_template_that_fits_is_chosen_and_says_what_it_passed_over(name: str) -> None:
    make, target = KERNELS[name]
    (choice,) = schedule_cpu(make(), target).templates
    assert choice.name == name
    order = [template.name for template in (*WHOLE_KERNELS, *INLINED_KERNELS)]
    assert [item.name for item in choice.passed_over] == order[: order.index(name)]
    assert all(item.reason and not item.failed for item in choice.passed_over)


def _look(func: PrimFunc, target: Target) -> None:
    """Ask every template of both tables whether it fits, and compare the schedule before and after."""
    context = ScheduleContext(Schedule(func), target)
    for templates in (WHOLE_KERNELS, INLINED_KERNELS):
        before = context.sch.func
        steps = len(context.sch.trace)
        for template in templates:
            template.matches(context)
            assert context.sch.func is before, template.name
            assert {item.kind for item in context.sch.trace.instructions[steps:]} <= LOOKUPS, template.name
            assert not context.packing and not context.choices.asked, template.name
        inline_stages(context)


@pytest.mark.parametrize("target", [SMALL_CACHES, AMX], ids=["small caches", "amx"])
def test_conditions_never_change_the_schedule(target: Target) -> None:
    for family in FAMILIES:
        for item in Compilation(from_onnx(draw(family, 0)[0]), target, target.cores).kernels:
            _look(item.func, target)
    for make, _ in KERNELS.values():
        _look(make(), target)


def test_a_template_that_fails_leaves_nothing_behind() -> None:
    def fails(context: ScheduleContext) -> None:
        (handle,) = context.sch.get_output_blocks()
        context.choose("vector", (1, 2), 1)
        context.sch.parallel(context.sch.get_loops(handle)[0])
        context.packing[0] = None  # type: ignore[assignment]
        raise ScheduleError("one step too far\nand its program")

    x = var("x", 32, 64)
    table = (
        Template("another", "never fits", lambda context: "it never does", fails),
        Template("failing", "fits, and is not legal", lambda context: None, fails),
        reduction.REDUCTION,
    )
    context = ScheduleContext(Schedule(kernel([x], call("sum", x, axes=(1,)))), AVX512)
    with settings.STRICT_TEMPLATES.override(True), pytest.raises(ScheduleError, match="one step too far"):
        apply_first(table, context)
    context = ScheduleContext(Schedule(kernel([x], call("sum", x, axes=(1,)))), AVX512)
    with settings.STRICT_TEMPLATES.override(False):
        choice = apply_first(table, context, [PassedOver("earlier", "of another table")])
        assert apply_first(table[:1], context).name == ""
    assert choice.name == "reduction" and choice.failures == ("failing: one step too far",)
    assert [item.name for item in choice.passed_over] == ["earlier", "another", "failing"]
    assert not context.packing and "vector" not in context.choices.asked
    alone = ScheduleContext(Schedule(kernel([x], call("sum", x, axes=(1,)))), AVX512)
    apply_first(table[2:], alone)
    assert str(context.sch.func) == str(alone.sch.func)
    assert choice.describe().splitlines() == [
        "reduction",
        "  not earlier: of another table",
        "  not another: it never does",
        "  not failing: failed: one step too far",
    ]


def test_where_another_template_stands_in_it_is_said_and_no_answer_of_a_tuner_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(context: ScheduleContext) -> None:
        raise ScheduleError("not legal")

    table = (Template("failing", "fits, and is not legal", lambda context: None, fails), *INLINED_KERNELS)
    monkeypatch.setattr(strategy, "INLINED_KERNELS", table)
    func = _matrix_vector()
    with settings.STRICT_TEMPLATES.override(False):
        used = use_schedule(func, AVX512, {}, lambda scheduled: scheduled)
        with pytest.raises(ScheduleError, match="failing: not legal"):
            schedule_kernel(func, AVX512, Choices())
        tuned = use_schedule(func, AVX512, {"partial": 16}, lambda scheduled: scheduled)
    assert [choice.name for choice in used.templates] == ["matrix-vector-product"]
    assert used.failure == "the template failing: not legal; it has the template's schedule"
    assert tuned.failure.startswith("the tuned schedule failed: failing: not legal")


def test_models_and_the_command_line_show_templates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(draw("softmax", 0)[0], path)
    compilation = Compilation(path, threads=1)
    (chosen,) = compilation.templates_of(compilation.kernels[0])
    assert main(["inspect", str(path), "--stage", "templates", "--threads", "1"]) == 0
    listed = capsys.readouterr().out
    assert f"{compilation.kernels[0].symbol}\n  {chosen.name}\n    not winograd: no winograd block\n" in listed
    assert main(["inspect", str(path), "--stage", "tir", "--threads", "1"]) == 0
    text = capsys.readouterr().out
    assert f"# {compilation.kernels[0].symbol}\n#   {chosen.name}\n#     not winograd" in text
    assert parse_script(text) is not None
