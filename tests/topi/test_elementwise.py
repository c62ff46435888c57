"""Elementwise operators: every one, on random values, on special values and on every type it takes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.topi.differential import check, random_array, specials
from tilewright.ir.dtype import DataType

FLOATS = ("float16", "float32", "float64")
FLOAT_UNARY = (
    "negative abs sign exp log sqrt rsqrt reciprocal sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf "
    "sigmoid floor ceil round trunc log1p expm1 nn.relu nn.softplus isnan isinf nn.leaky_relu nn.elu nn.selu "
    "nn.hard_sigmoid nn.gelu"
).split()
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", FLOAT_UNARY)
def test_unary_of_floats(name: str, dtype: str) -> None:
    rng = np.random.default_rng(1)
    check(name, random_array(rng, (3, 7), dtype), tolerance=8e-3 if dtype == "float16" else None)
    check(name, specials(dtype), tolerance=8e-3 if dtype == "float16" else None)


@pytest.mark.parametrize("name", ["log", "sqrt", "rsqrt", "acosh"])
def test_unary_of_positive_floats(name: str) -> None:
    check(name, random_array(np.random.default_rng(2), (20,), "float32", 1, 50))


@pytest.mark.parametrize("name", ["asin", "acos", "atanh"])
def test_unary_within_one(name: str) -> None:
    check(name, random_array(np.random.default_rng(3), (20,), "float32", -0.99, 0.99))


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", ["negative", "abs", "sign", "nn.relu", "bitwise_not"])
def test_unary_of_integers(name: str, dtype: str) -> None:
    info = np.iinfo(dtype)
    check(name, np.array([info.min, info.min + 1, 0, 1, 2, 100, info.max - 1, info.max], dtype))


def test_logical_not() -> None:
    check("logical_not", np.array([True, False]))


def test_zero_dimensions_and_empty_arrays() -> None:
    check("exp", np.array(1.5, np.float32))
    check("exp", np.zeros((3, 0, 2), np.float32))
    check("add", np.array(1.5, np.float32), np.array(2.5, np.float32))
    check("add", np.zeros((3, 0), np.float32), np.zeros((3, 1), np.float32))


@pytest.mark.parametrize("approximate", [False, True])
def test_gelu_forms(approximate: bool) -> None:
    check("nn.gelu", random_array(np.random.default_rng(4), (5, 6)), approximate=approximate)
    check("nn.gelu", specials("float32"), approximate=approximate)


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("nn.leaky_relu", {"alpha": 0.3}),
        ("nn.elu", {"alpha": 0.7}),
        ("nn.selu", {"alpha": 1.1, "gamma": 1.3}),
        ("nn.hard_sigmoid", {"alpha": 0.3, "beta": 0.4}),
    ],
)
def test_parametric_activations(name: str, attributes: dict[str, object]) -> None:
    check(name, random_array(np.random.default_rng(5), (5, 6)), **attributes)


@pytest.mark.parametrize(
    "bounds",
    [{}, {"minimum": -1.0}, {"maximum": 2.0}, {"minimum": -1.5, "maximum": 2.5}, {"minimum": 3.0, "maximum": 1.0}],
)
def test_clip(bounds: dict[str, object]) -> None:
    rng = np.random.default_rng(6)
    for dtype in (*FLOATS, "int8", "int32", "uint8", "int64"):
        check("clip", random_array(rng, (11,), dtype, -10, 10), **bounds)
    check("clip", specials("float32"), **bounds)


def test_clip_bounds_beyond_an_integer_type() -> None:
    x = np.array([-128, -3, 0, 90, 127], np.int8)
    check("clip", x, minimum=-1000.0, maximum=1000.0)
    check("clip", x, minimum=float("-inf"), maximum=float("inf"))
    check("clip", x, minimum=1000.0)
    check("clip", x, maximum=-1000.0)


@pytest.mark.parametrize("target", [*INTEGERS, *FLOATS, "bool"])
def test_cast(target: str) -> None:
    rng = np.random.default_rng(7)
    dtype = DataType.of(target)
    low = 0 if target.startswith("uint") else -100
    for source in (*INTEGERS, *FLOATS):
        check(
            "cast", random_array(rng, (9,), source, max(low, 0) if source.startswith("uint") else low, 100), dtype=dtype
        )
    check("cast", np.array([True, False]), dtype=dtype)


def test_cast_of_integers_wraps() -> None:
    values = np.array([-1, 255, 256, 300, -129, 1 << 31, -(1 << 40)], np.int64)
    for target in INTEGERS:
        check("cast", values, dtype=DataType.of(target))


def test_cast_to_bool_of_specials() -> None:
    check("cast", specials("float32"), dtype=DataType.of("bool"))


ARITHMETIC = "add subtract multiply minimum maximum".split()
COMPARE = "equal not_equal less less_equal greater greater_equal".split()


def _shapes() -> st.SearchStrategy[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Pairs of shapes that broadcast, with sizes 0 and 1 and differing ranks."""

    def pair(dims: list[int], mask: list[int], drop: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        a = tuple(1 if m == 1 else d for d, m in zip(dims, mask, strict=False))
        b = tuple(1 if m == 2 else d for d, m in zip(dims, mask, strict=False))
        return a, b[min(drop, len(b)) :]

    return st.builds(
        pair,
        st.lists(st.sampled_from([0, 1, 2, 3, 5]), max_size=3),
        st.lists(st.integers(0, 2), min_size=3, max_size=3),
        st.integers(0, 3),
    )


@given(
    _shapes(),
    st.sampled_from([*ARITHMETIC, *COMPARE]),
    st.sampled_from([*INTEGERS, *FLOATS]),
    st.booleans(),
    st.integers(0, 1000),
)
@settings(max_examples=100)
def test_binary_broadcasts(
    shapes: tuple[tuple[int, ...], tuple[int, ...]], name: str, dtype: str, swap: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    a, b = (random_array(rng, shape, dtype, -100, 100) for shape in shapes)
    check(name, *((b, a) if swap else (a, b)))


@pytest.mark.parametrize("name", [*ARITHMETIC, *COMPARE, "divide", "power"])
def test_binary_of_special_floats(name: str) -> None:
    values = specials("float32")
    check(name, values[:, None], values[None, :])


@pytest.mark.parametrize("name", ["floor_divide", "floor_mod", "fmod"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_float_divisions(name: str, dtype: str) -> None:
    a = np.array([7.0, -7.0, 7.5, -7.5, 0.0, 6.0, -6.0, 1e3], dtype)
    b = np.array([2.0, -2.0, 3.0, 0.5, -0.75], dtype)
    check(name, a[:, None], b[None, :])


@pytest.mark.parametrize("name", ["floor_divide", "floor_mod", "fmod"])
def test_float_divisions_of_specials(name: str) -> None:
    values = specials("float32")
    check(name, values[:, None], values[None, :])


@pytest.mark.parametrize("name", ["divide", "floor_divide", "floor_mod", "fmod"])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_divisions(name: str, dtype: str) -> None:
    info = np.iinfo(dtype)
    a = np.array([info.min + 1, 0, 1, 7, 8, 9, info.max], dtype)
    b = np.array([1, 2, 3, 7, info.max], dtype)
    if dtype.startswith("int"):
        b = np.array([1, 2, 3, -3, -1, -7, info.max, info.min], dtype)
    check(name, a[:, None], b[None, :])


def test_float_division_and_power() -> None:
    rng = np.random.default_rng(8)
    for dtype in FLOATS:
        a, b = random_array(rng, (4, 5), dtype, 0.1, 5), random_array(rng, (4, 5), dtype, -3, 3)
        check("power", a, b, tolerance=8e-3 if dtype == "float16" else None)
        check("divide", b, a)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64"])
def test_integer_powers(dtype: str) -> None:
    a = np.array([0, 1, 2, 3, 5, 7], dtype)
    check("power", a[:, None], np.array([0, 1, 2, 3, 9, 40], dtype)[None, :])
    if dtype.startswith("int"):
        base = np.array([-3, -2, -1, 1, 2, 3], dtype)
        check("power", base[:, None], np.array([-3, -2, -1, 0, 1, 2, 5, 23], dtype)[None, :])


def test_integer_power_is_exact_beyond_double_precision() -> None:
    check("power", np.array([3], np.int64), np.array([39], np.int64))


@pytest.mark.parametrize("name", ["logical_and", "logical_or", "logical_xor"])
def test_logic(name: str) -> None:
    check(name, np.array([[True], [False]]), np.array([True, False]))


@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or", "bitwise_xor"])
def test_bits(name: str) -> None:
    rng = np.random.default_rng(9)
    check(name, np.array([[True], [False]]), np.array([True, False]))
    for dtype in INTEGERS:
        check(name, random_array(rng, (3, 4), dtype, -100, 100), random_array(rng, (4,), dtype, -100, 100))


@pytest.mark.parametrize("name", ["left_shift", "right_shift"])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_shifts(name: str, dtype: str) -> None:
    info = np.iinfo(dtype)
    a = np.array([info.min, info.max, 0, 1, 5, 100], dtype)
    check(name, a[:, None], np.arange(0, info.bits, dtype=dtype)[None, :])


def test_equality_of_bools() -> None:
    for name in ("equal", "not_equal"):
        check(name, np.array([[True], [False]]), np.array([True, False]))


def test_where() -> None:
    rng = np.random.default_rng(10)
    for dtype in ("float32", "int8", "bool", "int64"):
        check(
            "where",
            random_array(rng, (4, 1, 3), "bool"),
            random_array(rng, (2, 3), dtype),
            random_array(rng, (4, 2, 1), dtype),
        )
    check("where", np.array(True), np.zeros((0, 2), np.float32), np.ones((1,), np.float32))


def test_prelu() -> None:
    rng = np.random.default_rng(11)
    for dtype in FLOATS:
        check("nn.prelu", random_array(rng, (2, 3, 4), dtype), random_array(rng, (3, 1), dtype))
    check("nn.prelu", specials("float32"), np.array([0.25], np.float32))


@pytest.mark.parametrize("dtype", FLOATS)
def test_batch_norm(dtype: str) -> None:
    rng = np.random.default_rng(12)
    for axis, shape in ((1, (2, 5, 3)), (3, (1, 2, 2, 5)), (0, (5,))):
        vectors = [random_array(rng, (5,), dtype) for _ in range(3)]
        variance = random_array(rng, (5,), dtype, 0.1, 3)
        check(
            "nn.batch_norm",
            random_array(rng, shape, dtype),
            *vectors,
            variance,
            axis=axis,
            epsilon=1e-3,
            tolerance=8e-3 if dtype == "float16" else 4e-6,
        )


def test_reinterpret():
    check("reinterpret", specials("float32"), dtype=DataType.of("int32"))
    check("reinterpret", np.arange(-4, 4, dtype=np.int64), dtype=DataType.of("float64"))
