"""Attention on GPUs with keys in tiles: programs of one meaning for all masks and sizes, text that compiles."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

import tilewright.topi.library  # noqa: F401  (registers the computations)
from tests.codegen.cuda_on_fibers import on_cuda
from tests.codegen.on_device import require_nvrtc
from tests.topi.differential import run_reference
from tests.topi.scheduling import schedule_gpu
from tilewright.backends.cuda.compiler import compile_cuda
from tilewright.backends.device import device_kernels, device_source
from tilewright.graph.interpreter import to_bfloat16, to_float32
from tilewright.graph.ops.attention import ANY_DIAGONAL
from tilewright.ir.expr import Mul, const_value
from tilewright.ir.visit import find_all, transform
from tilewright.support import settings
from tilewright.target import Target
from tilewright.te.language import placeholder
from tilewright.te.program import create_prim_func
from tilewright.tir.agreement import disagreement
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.rewrite.statements import all_statements
from tilewright.tir.schedule import Schedule, ScheduleError, Trace, replay
from tilewright.tir.stmt import Block, For, LoopKind
from tilewright.topi.registry import apply_operator
from tilewright.topi.schedule.choices import Choices
from tilewright.topi.schedule.gpu.attention.by_warp_groups import WarpGroupsTile, turns_of
from tilewright.topi.schedule.gpu.attention.online_softmax import ONLINE_SOFTMAX, TOLERANCES, use_online_softmax
from tilewright.topi.schedule.gpu.attention.sizes import AttentionSizes, AttentionTile
from tilewright.topi.schedule.gpu.attention.small import small_attention
from tilewright.topi.schedule.gpu.attention.templates import TEMPLATES
from tilewright.topi.schedule.gpu.rows import KernelContext

HOPPER = Target("cuda -arch=sm_90 -num-cores=132 -shared-bytes=232448")
TF32 = HOPPER.replace(features="+tf32")
WARPS = {"attention_tile": (16, 2, 32, 2, 1)}
SLICES = {"attention_tile": (16, 1, 16, 2, 2)}
PARTS = {"attention_tile": (16, 1, 16, 2, 2, 2)}
THREADS = {"attention_threads": (2, 2, 32, 2)}
Shape = tuple[int, ...]


def program(shapes: list[Shape], dtype: str, mask: str = "", **attributes: Any) -> PrimFunc:
    """An attention; the last shape is the mask's, if it has one."""
    kinds = [dtype] * 3 + ([mask] if mask else [])
    inputs = [placeholder(*item, f"in{n}") for n, item in enumerate(zip(shapes, kinds, strict=True))]
    return create_prim_func([*inputs, *apply_operator("nn.attention", inputs, **attributes)], "attention")


def arrays(func: PrimFunc, seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    made: list[np.ndarray] = []
    for buffer in func.buffers:
        values = random.standard_normal(buffer.static_shape or ()).astype(np.float32)
        if buffer.dtype.is_bool:
            made.append(values > 0)
        else:
            is_brain = buffer.dtype.name == "bfloat16"
            made.append(to_bfloat16(values) if is_brain else values.astype(buffer.dtype.numpy()))
    return made


def wide(array: np.ndarray, func: PrimFunc) -> np.ndarray:
    return to_float32(array) if func.buffers[-1].dtype.name == "bfloat16" else array.astype(np.float32)


def check(func: PrimFunc, given: dict[str, Any], values: list[np.ndarray], tolerance: float) -> PrimFunc:
    """The scheduled program computes what the plain one does."""
    choices = Choices(given)
    scheduled = schedule_gpu(func, HOPPER if given is THREADS else TF32, choices)
    assert choices.answers == given
    wanted, got = ([array.copy() for array in values] for _ in range(2))
    interpret(func, *wanted)
    interpret(scheduled, *got)
    np.testing.assert_allclose(wide(got[-1], func), wide(wanted[-1], func), rtol=tolerance, atol=tolerance)
    return scheduled


KINDS = [("float16", WARPS, 2e-3), ("bfloat16", WARPS, 2e-2), ("float32", THREADS, 2e-6), ("float32", WARPS, 2e-6)]
KINDS.append(("float16", SLICES, 2e-3))
KINDS.append(("float16", PARTS, 2e-3))
KINDS.append(("float32", PARTS, 2e-6))


@pytest.mark.parametrize(("dtype", "given", "tolerance"), KINDS)
def test_sizes_that_divide_nothing(dtype: str, given: dict[str, Any], tolerance: float) -> None:
    func = program([(1, 17, 2, 20), (1, 37, 2, 20), (1, 37, 2, 12)], dtype, scale=0.3)
    check(func, given, arrays(func), tolerance)


@pytest.mark.parametrize(("dtype", "given", "tolerance"), [KINDS[0], KINDS[2], KINDS[4], KINDS[5]])
@pytest.mark.parametrize("blind_is_zero", [False, True])
def test_masks(dtype: str, given: dict[str, Any], tolerance: float, blind_is_zero: bool) -> None:
    """Masks are added or hide; queries that see no key, or none of a tile, are as in the plain program."""
    shapes: list[Shape] = [(2, 9, 1, 16), (2, 40, 1, 16), (2, 40, 1, 16)]
    for mask, shape in (("bool", (9, 40)), (dtype, (2, 1, 1, 40))):
        func = program([*shapes, shape], dtype, mask, scale=-0.5, blind_is_zero=blind_is_zero)
        values = arrays(func)
        if mask == "bool":
            values[3][0] = False
            values[3][1, :33] = False
            values[3][2, 5:] = False
        else:
            values[3][0, 0, 0, :34] = -np.inf
            values[3][1] = -np.inf
        check(func, given, values, tolerance)


@pytest.mark.parametrize(
    ("dtype", "given", "tolerance", "heads", "mask"),
    [
        (*KINDS[0], 8, "keys"),
        (*KINDS[0], 12, "heads"),
        (*KINDS[2], 8, ""),
        (*KINDS[4], 6, "keys"),
        (*KINDS[5], 8, "keys"),
    ],
)
def test_groups_of_queries(dtype: str, given: dict[str, Any], tolerance: float, heads: int, mask: str) -> None:
    """Queries of heads that share keys are rows of one tile; caches have heads before places."""
    shapes: list[Shape] = [(1, 3, heads, 20), (1, 2, 40, 20), (1, 40, 2, 12)]
    masks: dict[str, Shape] = {"keys": (1, 1, 1, 40), "heads": (heads, 3, 40)}
    kind = "bool" if mask == "keys" else dtype if mask else ""
    func = program([*shapes, *([masks[mask]] if mask else [])], dtype, kind, scale=0.3, keys_by_head=True)
    values = arrays(func)
    if mask == "keys":
        values[3][..., 0] = True
    scheduled = check(func, given, values, tolerance)
    assert len(device_kernels(scheduled, HOPPER if given is THREADS else TF32).kernels) == (2 if given is PARTS else 1)


def decoding(keys: int, batch: int = 1, width: int = 64) -> PrimFunc:
    """One place, 32 heads of queries, a cache of 8 heads with a length that a mask has."""
    return program(
        [(batch, 1, 32, width), *[(batch, 8, keys, width)] * 2, (1, keys)],
        "float16",
        "bool",
        scale=0.125,
        blind_is_zero=True,
        keys_by_head=True,
        values_by_head=True,
    )


def test_blocks_share_the_keys_of_a_step_of_decoding() -> None:
    """Parts of the keys for all multiprocessors, and a kernel that merges them."""
    split = device_kernels(schedule_gpu(decoding(1024), HOPPER, Choices({})), HOPPER)
    grids = [[int(str(extent)) for extent in map(const_value, kernel.grid)] for kernel in split.kernels]
    # Keys are shared by the heads of a group, and by no others: 8 heads of 16 parts; 2048 results, 64 a block.
    assert grids == [[128, 1, 1], [32, 1, 1]]
    assert [buffer.name for buffer in split.workspaces] == ["part_max", "part_sum", "part_values"]
    text = device_source(split.kernels, HOPPER)
    assert "tw_mma_f16(" in text
    require_nvrtc()
    assert compile_cuda(text, "sm_90")


@pytest.mark.parametrize(("keys", "batch", "parts"), [(128, 1, 1), (1024, 32, 1), (16384, 1, 16), (16384, 4, 4)])
def test_parts_are_as_many_as_multiprocessors_have_room_for(keys: int, batch: int, parts: int) -> None:
    """Few keys, or many sequences, need no second kernel."""
    choices = Choices({})
    schedule_gpu(decoding(keys, batch, 128), HOPPER, choices)
    (answer,) = choices.answers.values()
    assert isinstance(answer, tuple) and answer[5:] == ((parts,) if parts > 1 else ())


@pytest.mark.parametrize(
    ("dtype", "sizes", "given", "instructions"),
    [
        ("float16", (1, 140, 2, 64), {}, ("tw_mma_f16", "tw_row_max_4", "tw_pair_f16", "tw_copy_async_16")),
        ("bfloat16", (1, 33, 2, 80), {"attention_tile": (32, 4, 32, 2, 1)}, ("tw_mma_bf16", "tw_pair_bf16")),
        ("float32", (1, 50, 2, 80), {}, ("tw_row_max_8", "tw_row_sum_8", "tw_exp2")),
    ],
)
def test_one_kernel_without_memory_of_scores(
    dtype: str, sizes: Shape, given: dict[str, Any], instructions: tuple[str, ...]
) -> None:
    """One kernel, which NVRTC compiles."""
    func = program([sizes] * 3, dtype, scale=0.125)
    split = device_kernels(schedule_gpu(func, HOPPER, Choices(given)), HOPPER)
    assert len(split.kernels) == 1 and not split.workspaces
    text = device_source(split.kernels, HOPPER)
    for name in instructions:
        assert f"{name}(" in text
    require_nvrtc()
    assert compile_cuda(text, "sm_90")


def test_scores_of_many_keys_are_not_kept() -> None:
    """Shared memory does not grow with the keys."""
    kernels = []
    for keys in (512, 8192):
        func = program([(1, 32, 2, 16), (1, keys, 2, 16), (1, keys, 2, 16)], "float16")
        kernels.append(device_kernels(schedule_gpu(func, HOPPER, Choices(WARPS)), HOPPER).kernels[0])
    sizes = [
        sum(int(str(buffer.static_shape[0])) for buffer in kernel.shared if buffer.static_shape) for kernel in kernels
    ]
    assert sizes[0] == sizes[1] > 0


def test_tf32_has_to_be_allowed() -> None:
    """Products in tf32 are for those who allow them."""
    func = program([(1, 40, 2, 32), (1, 40, 2, 32), (1, 40, 2, 32)], "float32", scale=0.125)
    given = {"attention_tile": (16, 1, 32, 2, 1), "attention_threads": (2, 1, 32, 2)}
    asked = [Choices(given) for _ in range(2)]
    scheduled = [schedule_gpu(func, target, choices) for target, choices in zip((HOPPER, TF32), asked, strict=True)]
    assert [list(choices.answers) for choices in asked] == [["attention_threads"], ["attention_tile"]]
    text = device_source(device_kernels(scheduled[1], TF32).kernels, TF32)
    assert "tw_mma_tf32(" in text
    require_nvrtc()
    assert compile_cuda(text, "sm_90")


def test_warp_groups() -> None:
    """Products of warp groups read swizzled tiles, after a fence; what is computed is the same."""
    target = HOPPER.replace(arch="sm_90a")
    func = program([(1, 20, 1, 64), (1, 64, 1, 64), (1, 64, 1, 64)], "float16", scale=0.125)
    scheduled = schedule_gpu(func, target, Choices({"attention_tile": (1, 32, 2)}))
    text = device_source(device_kernels(scheduled, target).kernels, target)
    for name in ("tw_wgmma_f16_held_turned_fresh_n32_k64", "tw_wgmma_f16_held_panels_n64_k32", "tw_fence_async"):
        assert f"{name}(" in text
    wanted, got = (arrays(func) for _ in range(2))
    interpret(func, *wanted)
    interpret(scheduled, *got)
    np.testing.assert_allclose(got[-1].astype(np.float32), wanted[-1].astype(np.float32), rtol=2e-3, atol=2e-3)
    require_nvrtc()
    assert compile_cuda(text, "sm_90a")


def test_registers_of_queries_and_exponentials_are_of_different_number() -> None:
    """Or the product with values goes on, which names them: ptxas of CUDA 13.0 gave both the same registers."""
    choices = Choices()
    schedule_gpu(program([(8, 512, 16, 128)] * 3, "float16", scale=0.1), HOPPER.replace(arch="sm_90a"), choices)
    options = {tuple(option) for option in choices.asked["attention_tile"].options}
    assert (2, 128, 2, 1, 1) in options and (1, 64, 2) in options
    assert not {(1, 128, 2), (2, 128, 2), (2, 128, 2, 1)} & options


@pytest.mark.parametrize(("dtype", "given"), [("float16", WARPS), ("float32", THREADS)])
def test_queries_may_be_keys_and_values(dtype: str, given: dict[str, Any]) -> None:
    """One parameter may be all three operands."""
    data = placeholder((1, 33, 1, 16), dtype, "data")
    func = create_prim_func([data, *apply_operator("nn.attention", [data] * 3, scale=0.5)], "attention")
    check(func, given, arrays(func), 2e-3)


def sample(dtype: str, sizes: list[Shape] | None = None, mask: str = "") -> PrimFunc:
    return program(sizes or [(1, 17, 2, 20), (1, 37, 2, 20), (1, 37, 2, 12)], dtype, mask, scale=0.3)


@pytest.mark.parametrize(
    ("dtype", "given", "name"), [("float16", WARPS, "tensor_core"), ("float32", THREADS, "threads")]
)
def test_the_replacement_is_in_the_trace(dtype: str, given: dict[str, Any], name: str) -> None:
    """Online softmax takes the place of the plain stages by one call, within a tolerance; the trace replays."""
    func = sample(dtype)
    context = KernelContext(Schedule(func), HOPPER, choices=Choices(given))
    (template,) = [item for item in TEMPLATES if item.name == f"attention_{name}"]
    assert template.matches(context) is None
    template.apply(context)
    calls = [line for line in context.sch.trace.lines() if "replace_by_equivalent" in line]
    assert len(calls) == 1 and "equivalent='online_softmax'" in calls[0]
    assert f"tolerance={TOLERANCES[dtype]}" in calls[0]
    assert replay(Trace.from_json(context.sch.trace.to_json()), func).show() == context.sch.show()


TILES = [
    AttentionTile(64, 32, 32, 16, 4, 2, 2, True, 16),
    AttentionTile(16, 16, 32, 16, 4, 2, 2, True, 32, 2, 8),
    AttentionTile(32, 32, 20, 32, 8, 1, 4, False),
    AttentionTile(16, 16, 32, 16, 4, 2, 2, True, 32, 2, 8, 2),
    AttentionTile(64, 32, 32, 16, 4, 2, 2, True, 16, parts=2),
]


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("mask", ["", "bool"])
def test_online_softmax_is_verified(tile: AttentionTile, mask: str) -> None:
    """Small programs of the same structure are interpreted: the right one passes, one without rescaling does not."""
    sizes: list[Shape] = [(3, 70, 2, 20), (3, 70, 2, 20), (3, 70, 2, 12)]
    func = sample("float32", [*sizes, (70, 70)] if mask else sizes, mask)
    with settings.VERIFY.override(True):
        use_online_softmax(Schedule(func), tile)
    small, parameters = small_attention(func, asdict(tile))
    right = ONLINE_SOFTMAX.build(small, parameters)
    assert disagreement(small, right, TOLERANCES["float32"]) is None
    wrong = transform(right, lambda item: item.a if isinstance(item, Mul) and "shrink" in str(item.b) else None)
    assert wrong is not right and disagreement(small, wrong, 1e-3) is not None


def test_small_attentions_have_the_same_structure() -> None:
    """What is padded stays padded, and several tiles are two; one buffer may be all operands."""
    tile = TILES[0]
    for shape, padded in (((2, 256, 3, 32), False), ((2, 250, 3, 30), True)):
        data = placeholder(shape, "float32", "data")
        func = create_prim_func([data, *apply_operator("nn.attention", [data] * 3, scale=0.5)], "attention")
        small, parameters = small_attention(func, asdict(tile))
        batch, rows, heads, depth = small.buffers[0].static_shape or ()
        assert (batch, heads) == (2, 2)
        assert (rows % parameters["keys"] != 0) == (rows % parameters["queries"] != 0) == padded
        assert tile.keys > parameters["keys"] and parameters["keys"] < rows <= 2 * parameters["keys"]
        assert (depth < parameters["depth"]) == padded


def test_only_attentions_become_online_softmax() -> None:
    """Other programs, and symbolic sizes, are refused."""
    a = placeholder((4, 4), "float32", "a")
    sch = Schedule(create_prim_func([a, *apply_operator("exp", [a])], "exp"))
    with pytest.raises(ScheduleError, match="online_softmax: only attentions of known sizes have this form"):
        sch.replace_by_equivalent(*sch.blocks(), equivalent=ONLINE_SOFTMAX, tolerance=1e-6)


@pytest.mark.parametrize(
    ("dtype", "given", "tolerance", "packed", "first", "last"),
    [
        (*KINDS[0], 1, -ANY_DIAGONAL, 0),
        (*KINDS[0], 1, -60, -45),
        (*KINDS[2], 1, 12, ANY_DIAGONAL),
        (*KINDS[4], 4, -19, 3),
        (*KINDS[5], 2, -ANY_DIAGONAL, 0),
    ],
)
def test_diagonals(dtype: str, given: dict[str, Any], tolerance: float, packed: int, first: int, last: int) -> None:
    """Tiles of keys that no query sees are skipped; what is left is as in the plain program, NaN included."""
    shapes: list[Shape] = [(1, 50, packed, 16), (1, 1, 70, 16), (1, 70, 1, 16)]
    func = program(shapes, dtype, scale=0.3, keys_by_head=True, first=first, last=last)
    check(func, given, arrays(func), tolerance)


@pytest.mark.parametrize(("last", "backwards"), [(0, True), (ANY_DIAGONAL, False)])
def test_tiles_with_the_most_keys_come_first(last: int, backwards: bool) -> None:
    """Where queries see keys up to a diagonal, the first block of a head has its last queries."""
    func = program([(1, 70, 3, 16)] * 3, "float16", scale=0.3, first=-ANY_DIAGONAL, last=last)
    scheduled = check(func, WARPS, arrays(func), KINDS[0][2])
    (kernel,) = device_kernels(scheduled, HOPPER).kernels
    assert ("- (block_x_ % 3" in device_source([kernel], HOPPER)) == backwards


GROUPS: list[tuple[tuple[int, ...], list[Shape], dict[str, Any]]] = [
    ((2, 32, 2, 1), [(1, 140, 1, 64), *[(1, 256, 1, 64)] * 2], {}),
    ((3, 32, 3, 1), [(1, 180, 2, 64), *[(1, 101, 2, 64)] * 2], {"first": -ANY_DIAGONAL, "last": 0}),
    ((2, 64, 2, 1), [(1, 70, 1, 128), *[(1, 170, 1, 128)] * 2], {"first": -90, "last": 10}),
    ((2, 32, 2, 1), [(1, 33, 8, 64), *[(1, 101, 2, 64)] * 2], {"first": -ANY_DIAGONAL, "last": 10}),
    ((2, 96, 2, 1), [(1, 70, 1, 64), *[(1, 201, 1, 64)] * 2, (70, 201)], {"mask": "bool"}),
    ((2, 32, 2, 1), [(1, 70, 1, 64), *[(1, 200, 1, 64)] * 2, (70, 200)], {"mask": "float16"}),
    # Heads that fill a part of their panels.
    ((2, 64, 2, 1), [(1, 140, 2, 80), (1, 256, 2, 80), (1, 256, 2, 96)], {}),
    ((2, 32, 2, 1), [(1, 70, 1, 40), (1, 101, 1, 40), (1, 101, 1, 72)], {"first": -ANY_DIAGONAL, "last": 0}),
    # Tiles begin with the first that is seen.
    ((2, 96, 2, 1), [(1, 70, 1, 64), *[(1, 300, 1, 64)] * 2], {"first": 192, "last": ANY_DIAGONAL}),
]


@pytest.mark.parametrize("behind", [(), (1,)])
@pytest.mark.parametrize(("tile", "shapes", "attributes"), GROUPS)
def test_a_warp_group_that_copies_for_others(
    tile: tuple[int, ...], shapes: list[Shape], attributes: dict[str, Any], behind: tuple[int, ...]
) -> None:
    """Kernels run on fibers: whoever waits for an arrival that never comes fails, and what is not there is NaN."""
    target, tile, attributes = HOPPER.replace(arch="sm_90a"), (*tile, *behind), {"scale": 0.125, **attributes}
    func = program(shapes, "float16", **attributes)
    choices = Choices({"attention_tile": tile})
    scheduled = schedule_gpu(func, target, choices)
    assert choices.answers["attention_tile"] == tile
    values = arrays(func)
    on_cuda([scheduled], target)["attention"](*values)
    attributes.pop("mask", None)
    # Sums in float16, as the reference of float16 would have them, say nothing.
    inputs = [value if value.dtype == bool else value.astype(np.float32) for value in values[:-1]]
    (wanted,) = run_reference("nn.attention", inputs, **attributes)
    np.testing.assert_allclose(values[-1].astype(np.float32), wanted.astype(np.float32), rtol=2e-3, atol=2e-3)
    text = device_source(device_kernels(scheduled, target).kernels, target)
    assert "tw_mbarrier_wait(" in text and "tw_registers_more_" in text
    assert ("tw_wgmma_held_wait_1_" in text) == bool(behind)
    require_nvrtc()
    assert compile_cuda(text, "sm_90a")


TURNS: list[tuple[tuple[int, ...], list[Shape], dict[str, Any], int, int]] = [
    # Steps that end with the last copies of the buffers, and that do not; blocks of several heads and sequences.
    ((2, 32, 2, 1, 1), [(2, 70, 4, 64)] * 3, {}, 4, 2),
    ((2, 32, 2, 1, 1), [(2, 100, 4, 64), *[(2, 64, 4, 64)] * 2], {}, 2, 4),
    ((2, 32, 2, 1, 1), [(1, 250, 3, 64), *[(1, 90, 3, 64)] * 2], {}, 2, 3),
    # Blocks with the first tile of one head and the last of the next.
    ((2, 32, 2, 1, 1), [(1, 140, 2, 64)] * 3, {"last": 0}, 2, 2),
    ((3, 32, 3, 1), [(2, 200, 1, 64)] * 3, {"last": 0}, 2, 2),
    ((2, 32, 2, 1, 1), [(2, 100, 2, 64), *[(2, 140, 1, 64)] * 2], {"first": -50, "last": 10}, 2, 2),
]


@pytest.mark.parametrize(("tile", "shapes", "attributes", "cores", "turns"), TURNS)
def test_blocks_that_take_turns(
    tile: tuple[int, ...], shapes: list[Shape], attributes: dict[str, Any], cores: int, turns: int
) -> None:
    """A block computes tiles of several heads, one after the other: barriers go on from one to the next."""
    target = HOPPER.replace(arch="sm_90a", cores=cores)
    diagonals = {"first": -ANY_DIAGONAL} | attributes if attributes else {}
    func = program(shapes, "float16", scale=0.125, **diagonals)
    scheduled = schedule_gpu(func, target, Choices({"attention_tile": tile}))
    values = arrays(func)
    values[-1].fill(np.nan)
    on_cuda([scheduled], target)["attention"](*values)
    inputs = [value.astype(np.float32) for value in values[:-1]]
    (wanted,) = run_reference("nn.attention", inputs, scale=0.125, **diagonals)
    np.testing.assert_allclose(values[-1].astype(np.float32), wanted.astype(np.float32), rtol=2e-3, atol=2e-3)
    text = device_source(device_kernels(scheduled, target).kernels, target)
    assert re.findall(r"_turn_ < (\d+);", text) == [str(turns)]


def test_turns_are_the_same_for_all_blocks() -> None:
    """Where tiles cannot be divided so, each block has one; tiles that see many keys and few come in pairs."""

    def turns(batch: int, queries: int, heads: int, **diagonals: int) -> tuple[int, int]:
        func = program([(batch, queries, heads, 64)] * 3, "float16", **diagonals)
        sizes = AttentionSizes.of({block.name: block for block in find_all(func.root, Block)})
        assert sizes is not None
        return turns_of(sizes, WarpGroupsTile(2, 128, 2, 1, 1), 132)

    causal = {"first": -ANY_DIAGONAL, "last": 0}
    assert turns(16, 1024, 16) == turns(16, 1024, 16, **causal) == (1, 16)
    assert turns(4, 4096, 16) == turns(1, 16384, 16) == (1, 16)
    assert turns(4, 1000, 12) == (1, 3)
    assert turns(4, 1000, 12, **causal) == (1, 1)
    assert turns(1, 1024, 16) == (1, 1)
    assert turns(6, 1024, 15) == (2, 3)
    assert turns(1, 1024, 17) == (1, 1)


@pytest.mark.parametrize(
    ("shape", "diagonals"),
    [((4, 1000, 12, 96), {}), ((8, 1000, 6, 64), {}), ((4, 1024, 32, 64), {"first": -ANY_DIAGONAL, "last": 0})],
)
def test_blocks_that_take_turns_at_some_heads_of_several(shape: Shape, diagonals: dict[str, int]) -> None:
    """Iterations are seen to be independent: a schedule that fails would leave the attention to other templates."""
    choices = Choices({"attention_tile": (2, 128, 2, 1, 1)})
    func = program([shape] * 3, "float16", **diagonals)
    scheduled = schedule_gpu(func, HOPPER.replace(arch="sm_90a"), choices)
    assert choices.answers == {"attention_tile": (2, 128, 2, 1, 1)}
    assert any(isinstance(item, For) and item.kind is LoopKind.PARALLEL for item in all_statements(scheduled.root))
