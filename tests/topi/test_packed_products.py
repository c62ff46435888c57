"""Products with packed codes: numpy, the schedules of every kind of processor, and what lowering makes of them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.compiled import HOST
from tests.topi.scheduling import schedule_cpu
from tests.topi.test_schedule_cpu import kernel
from tilewright.backends.host import host_source
from tilewright.graph.ir.expr import Var
from tilewright.graph.ir.op import call, get_operator
from tilewright.graph.ir.rewrite import make
from tilewright.graph.ops.packed import (
    BYTES,
    HALVES,
    DigitMatmulAttributes,
    DigitsAttributes,
    PackedAttributes,
    is_upper,
    pack_codes,
    pair_codes,
    unpack_codes,
)
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.types import tensor_type
from tilewright.ir.visit import find_all
from tilewright.support.errors import UserError
from tilewright.target import Target
from tilewright.tir.annotations import PREFETCH_NEAR
from tilewright.tir.function import CONSTANTS, PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.pipeline import cpu_pipeline
from tilewright.tir.stmt import For
from tilewright.topi.schedule.packing import packing_of

TARGETS = {
    "avx2": "llvm -mtriple=x86_64-linux-gnu -mcpu=haswell",
    "avx512": "llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512",
    "vnni": "llvm -mtriple=x86_64-linux-gnu -mcpu=icelake-server",
    "avxvnni": "llvm -mtriple=x86_64-linux-gnu -mcpu=alderlake",
    "neon": "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a72",
    "dotprod": "llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1",
}
COLUMNS = 32


def target_of(name: str) -> Target:
    return Target(TARGETS[name]).replace(cores=1)


def check(func: PrimFunc, arrays: list[np.ndarray], constants: tuple[int, ...], target: Target, template: str) -> None:
    """The scheduled and the lowered program give what the operator's reference gives, up to the order of sums."""
    expected = [array.copy() for array in arrays]
    interpret(func, *expected)
    made = schedule_cpu(func.replace(attributes={CONSTANTS: constants}), target)
    assert template in str(host_source([made], target)) or template == ""
    given = [array.copy() for array in arrays]
    for number, index_map in packing_of(made).items():
        given[number] = np.ascontiguousarray(index_map.rearrange(given[number]))
    lowered = made
    for _, step in cpu_pipeline(target):
        lowered = step(lowered)
    for stage in (made, lowered):
        actual = [array.copy() for array in given]
        interpret(stage, *actual)
        np.testing.assert_allclose(actual[-1], expected[-1], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("parts", [BYTES, HALVES])
def test_codes_come_back_as_they_were(bits: int, axis: int, parts: int) -> None:
    codes = np.random.default_rng(0).integers(0, 1 << bits, (64, 96)).astype(np.uint8)
    words = pack_codes(codes, bits, axis, parts)
    assert words.nbytes * 8 == codes.size * bits
    np.testing.assert_array_equal(unpack_codes(words, bits, axis, parts), codes)


def test_neighbouring_codes_lie_in_the_parts_of_a_word() -> None:
    codes = np.arange(8, dtype=np.uint8)[:, None]
    assert [f"{word:08x}" for word in pack_codes(codes, 4, 0, BYTES)[:, 0]] == ["73625140"]
    assert [f"{word:08x}" for word in pack_codes(codes, 4, 0, HALVES)[:, 0]] == ["75316420"]


def packed(bits: int, group: int, is_affine: bool, depth: int = 64) -> tuple[list[np.ndarray], PackedAttributes]:
    random = np.random.default_rng(bits)
    codes = random.integers(0, 1 << bits, (depth, COLUMNS)).astype(np.uint8)
    scale = random.uniform(0.1, 0.5, (depth // group, COLUMNS)).astype(np.float32)
    zero = np.full((1, 1), 1 << (bits - 1), np.uint8)
    if is_affine:
        zero = random.integers(0, 1 << bits, scale.shape).astype(np.uint8)
    return [pack_codes(codes, bits, 0), scale, zero], PackedAttributes(bits=bits, group=group)


@pytest.mark.parametrize("target", ["avx2", "avx512", "neon"])
@pytest.mark.parametrize(
    ("rows", "bits", "group", "is_affine"), [(1, 4, 32, True), (3, 8, 64, False), (6, 4, 16, True)]
)
def test_schedules_of_products(target: str, rows: int, bits: int, group: int, is_affine: bool) -> None:
    weights, attributes = packed(bits, group, is_affine)
    a = np.random.default_rng(9).normal(size=(rows, 64)).astype(np.float32)
    operands = [Var("a", tensor_type(a.shape, "float32"))]
    operands += [Var(f"w{n}", tensor_type(item.shape, str(item.dtype))) for n, item in enumerate(weights)]
    func = kernel(operands, call("packed.matmul", *operands, bits=bits, group=group), on_cpu=True)
    result = np.zeros((rows, COLUMNS), np.float32)
    check(func, [a, *weights, result], (1, 2, 3), target_of(target), "")
    reference = get_operator("packed.matmul").reference([a, *weights], attributes)
    interpret(func, a, *weights, result)
    np.testing.assert_allclose(result, reference, rtol=1e-4, atol=1e-4)


def digit_operands(
    rows: int, attributes: DigitMatmulAttributes, digit_count: int, kind: type
) -> tuple[list[np.ndarray], tuple[int, ...]]:
    """Operands of a product of digits, and which of them are constants."""
    random = np.random.default_rng(attributes.bits)
    x = random.normal(size=(rows, 64)).astype(np.float32)
    digits, step, sums = get_operator("packed.digits").reference([x], DigitsAttributes(group=32, digits=digit_count))
    halves = 2 if attributes.paired else 1
    shape = (64 * attributes.bits * halves // 32, COLUMNS // halves, 4)
    data = random.integers(0, 256, shape).astype(np.uint8).view(kind)
    scale = random.uniform(0.1, 0.5, (2, COLUMNS)).astype(np.float32)
    zero = random.integers(0, min(127, (1 << attributes.bits) - 1), (2, COLUMNS)).astype(kind)
    if attributes.signed and not attributes.paired:
        return [digits, step, data, scale], (2, 3)
    if attributes.signed:
        return [digits, step, data, scale, sums], (2, 3)
    return [digits, step, data, scale, sums, zero], (2, 3, 5)


def check_digit_product(
    rows: int, attributes: DigitMatmulAttributes, digit_count: int, target: str, kind: type, instruction: str
) -> None:
    """A product of digits: the schedule, and the operator's reference."""
    arrays, constants = digit_operands(rows, attributes, digit_count, kind)
    names = [Var(f"p{n}", tensor_type(item.shape, str(item.dtype))) for n, item in enumerate(arrays)]
    notes = {"bits": attributes.bits, "group": 32, "signed": attributes.signed, "paired": attributes.paired}
    func = kernel(names, call("packed.digit_matmul", *names, **notes))
    result = np.zeros((rows, COLUMNS), np.float32)
    check(func, [*arrays, result], constants, target_of(target), instruction)
    interpret(func, *arrays, result)
    reference = get_operator("packed.digit_matmul").reference(arrays, attributes)
    np.testing.assert_allclose(result, reference, rtol=1e-5, atol=1e-4)


# Codes of x86's dot products are unsigned.
@pytest.mark.grid
@pytest.mark.parametrize(
    ("target", "instruction", "is_signed"),
    [
        ("vnni", "vpdpbusd", False),
        ("avxvnni", "vpdpbusd", False),
        ("dotprod", "sdot", False),
        ("dotprod", "sdot", True),
    ],
)
@pytest.mark.parametrize(("rows", "bits", "digit_count"), [(1, 4, 3), (2, 8, 3), (3, 4, 1), (1, 2, 2)])
def test_schedules_of_digit_products(
    target: str, instruction: str, is_signed: bool, rows: int, bits: int, digit_count: int
) -> None:
    kind = np.int8 if target == "dotprod" else np.uint8
    attributes = DigitMatmulAttributes(bits=bits, group=32, signed=is_signed)
    check_digit_product(rows, attributes, digit_count, target, kind, instruction)


@pytest.mark.parametrize(("target", "is_fetched"), [("vnni", True), ("avxvnni", True), ("dotprod", False)])
def test_codes_and_scales_are_fetched_ahead(target: str, is_fetched: bool) -> None:
    """Codes 8 KiB ahead and scales 2 KiB, where prefetchers end at a page; into the first cache level."""
    kind = np.uint8 if is_fetched else np.int8
    arrays, constants = digit_operands(1, DigitMatmulAttributes(bits=8, group=32), 1, kind)
    names = [Var(f"p{n}", tensor_type(item.shape, str(item.dtype))) for n, item in enumerate(arrays)]
    func = kernel(names, call("packed.digit_matmul", *names, bits=8, group=32))
    made = schedule_cpu(func.replace(attributes={CONSTANTS: constants}), target_of(target))
    notes = [loop.annotations[PREFETCH_NEAR.name] for loop in find_all(made.body, For) if PREFETCH_NEAR.is_on(loop)]
    panel = 32 * COLUMNS
    expected = {"p2": [panel, 8192 // panel * panel], "p3": [COLUMNS, 2048 // 4]}
    assert notes == ([expected] if is_fetched else [])


@pytest.mark.parametrize("is_signed", [False, True])
@pytest.mark.parametrize(("rows", "digit_count"), [(1, 3), (3, 3), (1, 1), (2, 2)])
def test_schedules_of_pairs_of_columns(is_signed: bool, rows: int, digit_count: int) -> None:
    attributes = DigitMatmulAttributes(bits=4, group=32, signed=is_signed, paired=4)
    check_digit_product(rows, attributes, digit_count, "dotprod", np.int8, "sdot")


def test_pairs_hold_the_codes_of_two_columns() -> None:
    """Bytes of pairs stand for the codes: the lower as they are, the upper 16 times what they are above 8."""
    codes = np.random.default_rng(0).integers(0, 16, (64, COLUMNS)).astype(np.uint8)
    data, upper = pair_codes(codes, 4), is_upper(COLUMNS, 4)
    assert data.nbytes * 2 == codes.size
    digits = np.eye(64, dtype=np.int8)[:, None]
    ones = np.ones((64, 1), np.float32), np.ones((1, COLUMNS), np.float32)
    attributes = DigitMatmulAttributes(bits=4, group=64, signed=True, paired=4)
    args = [digits, ones[0], data, ones[1], np.ones((64, 1, 1), np.float32)]
    made = get_operator("packed.digit_matmul").reference(args, attributes)
    np.testing.assert_array_equal(made, (codes.astype(np.float32) - 8) * np.where(upper, 16, 1))


def test_sums_at_the_ends_of_their_range_are_exact() -> None:
    """The largest products of bytes of the longest group: sums that begin at a float's bits stay whole numbers."""
    depth, attributes = 256, DigitMatmulAttributes(bits=8, group=256, signed=True)
    for digit, code in [(-128, -128), (-128, 127), (127, 127), (127, -128)]:
        arrays = [
            np.full((1, 1, depth), digit, np.int8),
            np.ones((1, 1), np.float32),
            np.full((depth // 4, COLUMNS, 4), code, np.int8),
            np.ones((1, COLUMNS), np.float32),
        ]
        names = [Var(f"p{n}", tensor_type(item.shape, str(item.dtype))) for n, item in enumerate(arrays)]
        func = kernel(names, call("packed.digit_matmul", *names, bits=8, group=256, signed=True))
        result = np.zeros((1, COLUMNS), np.float32)
        interpret(func, *arrays, result)
        np.testing.assert_array_equal(result, np.float32(digit * code * depth))
        np.testing.assert_array_equal(get_operator("packed.digit_matmul").reference(arrays, attributes), result)


@pytest.mark.parametrize("digit_count", [1, 2, 3])
def test_digits_are_exact_to_their_step(digit_count: int) -> None:
    """Every element is a whole number of steps to within half a step; a group that is not finite says so."""
    random = np.random.default_rng(0)
    x = (random.normal(size=(3, 128)) * 10.0 ** random.integers(-30, 30, (3, 128))).astype(np.float32)
    x[0, :32], x[1, 5], x[2, 40], x[2, 70] = 0.0, np.inf, np.nan, 1e-44
    func_x = Var("x", tensor_type(x.shape, "float32"))
    func = kernel([func_x], call("packed.digits", func_x, group=32, factor=0.5, digits=digit_count))
    attributes = DigitsAttributes(group=32, factor=0.5, digits=digit_count)
    reference = get_operator("packed.digits").reference([x], attributes)
    made = [np.zeros(item.shape, item.dtype) for item in reference]
    interpret(func, x, *made)
    for mine, other in zip(made, reference, strict=True):
        np.testing.assert_array_equal(mine, other)
    digits, step, sums = made
    np.testing.assert_array_equal(sums, digits.reshape(3, digit_count, 4, 32).sum(axis=-1, dtype=np.int32))
    whole = sum(digits[:, n].astype(np.int64) << (8 * n) for n in range(digit_count)).reshape(3, 4, 32)
    error = np.abs(whole * (2.0 * step[..., None].astype(np.float64)) - x.reshape(3, 4, 32))
    finite = np.isfinite(step)
    assert (~finite).sum() == 2
    # The quotient that finds a number of few bytes is rounded too.
    assert (error.max(axis=-1) <= step * (1.0 if digit_count == 3 else 1.01))[finite].all()


@pytest.mark.parametrize(
    ("attributes", "count", "message"),
    [
        ({"bits": 8, "paired": 4}, 6, "pairs are codes of 4 bits"),
        ({"bits": 4, "paired": 3}, 6, "are not pairs of"),
        ({"bits": 4, "paired": 4, "signed": True}, 4, "signed pairs the sums"),
        ({"bits": 4}, 4, "need the sums of the rows and a zero point"),
    ],
)
def test_what_products_of_digits_refuse(attributes: dict[str, int], count: int, message: str) -> None:
    given = DigitMatmulAttributes(bits=4, group=32, paired=4)
    arrays, _ = digit_operands(1, given, 3, np.int8)
    operands = [Var(f"p{n}", tensor_type(item.shape, str(item.dtype))) for n, item in enumerate(arrays)]
    with pytest.raises(UserError, match=message):
        make("packed.digit_matmul", *operands[:count], group=32, **attributes)


def test_numbers_of_four_bytes_are_refused() -> None:
    with pytest.raises(UserError, match="1 to 3 bytes, not 4"):
        make("packed.digits", Var("x", tensor_type((1, 64), "float32")), digits=4)


@pytest.mark.parametrize(("target", "cores"), [("avx512", 1), ("neon", 2)])
def test_parts_of_sums(target: str, cores: int) -> None:
    """Where rows do not stay in the second cache level, sums are added up part by part."""
    weights, _ = packed(4, 32, True, depth=512)
    a = np.random.default_rng(9).normal(size=(12, 512)).astype(np.float32)
    operands = [Var("a", tensor_type(a.shape, "float32"))]
    operands += [Var(f"w{n}", tensor_type(item.shape, str(item.dtype))) for n, item in enumerate(weights)]
    func = kernel(operands, call("nn.relu", call("packed.matmul", *operands, bits=4, group=32)), on_cpu=True)
    small = target_of(target).replace(l2_bytes=1 << 14, l1_bytes=1 << 12, cores=cores)
    check(func, [a, *weights, np.zeros((12, COLUMNS), np.float32)], (1, 2, 3), small, "")


def test_open_rows() -> None:
    weights, attributes = packed(4, 32, True)
    rows = Symbol("rows")
    a = Var("a", tensor_type((rows, 64), "float32"))
    operands = [a, *(Var(f"w{n}", tensor_type(item.shape, str(item.dtype))) for n, item in enumerate(weights))]
    func = kernel(operands, call("packed.matmul", *operands, bits=4, group=32), on_cpu=True)
    made = schedule_cpu(func.replace(attributes={CONSTANTS: (1, 2, 3)}), HOST)
    given = [*weights]
    for number, index_map in packing_of(made).items():
        given[number - 1] = np.ascontiguousarray(index_map.rearrange(given[number - 1]))
    for count in (1, 5, 13):
        x = np.random.default_rng(count).normal(size=(count, 64)).astype(np.float32)
        result = np.zeros((count, COLUMNS), np.float32)
        interpret(made, x, *given, result)
        reference = get_operator("packed.matmul").reference([x, *weights], attributes)
        np.testing.assert_allclose(result, reference, rtol=1e-4, atol=1e-4)
