"""Types of 8 bits and fewer in kernels: every language rounds, saturates and wraps to the bits of ml_dtypes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.codegen.on_device import cuda_text, require_nvrtc
from tests.requirements import need
from tilewright import te
from tilewright.backends.cuda.compiler import compile_cuda
from tilewright.ir.build import cast
from tilewright.ir.dtype import FLOAT32, INT32, DataType
from tilewright.ir.small_floats import FORMATS, code_of, codes_of, values_of
from tilewright.target import Target

INTEGERS = ("int4", "uint4", "int2", "uint2", "int1", "uint1")
TARGETS = ("llvm", "c", "opencl", "vulkan", "webgpu", "cuda")
CHUNK = 32768
"""Elements of a launch: devices need not have more blocks."""


def numbers() -> np.ndarray:
    """Every half, bounds of all types, ties with their neighbours, and NaN of both signs."""
    with np.errstate(all="ignore"):
        parts = [np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)]
        for name in FORMATS:
            exact = np.unique(values_of(name)[np.isfinite(values_of(name))].astype(np.float64))
            ties = ((exact[1:] + exact[:-1]) / 2).astype(np.float32)
            neighbours = [np.nextafter(ties, np.float32(end)) for end in (3e38, -3e38)]
            parts += [exact.astype(np.float32), ties, *neighbours]
    edges = [464, 464.00003, -464, 61440, 61439.99, -61440, 448, 480, 57344, 0.0, -0.0, 1e-45, -1e-45, 3.4e38]
    parts.append(np.array([*edges, np.inf, -np.inf, np.nan, -np.nan], np.float32))
    parts.append(np.frombuffer(np.random.default_rng(0).bytes(8000), np.float32))
    flat = np.concatenate(parts)
    return np.concatenate([flat, np.zeros(-len(flat) % CHUNK, np.float32)])


def expected_codes(x: np.ndarray, name: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        return x.astype(getattr(ml_dtypes, name)).view(np.uint8)


def same_values(found: np.ndarray, expected: np.ndarray) -> None:
    """The same bits; any NaN is one."""
    is_number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(found), ~is_number)
    np.testing.assert_array_equal(found[is_number].view(np.uint32), expected[is_number].view(np.uint32))


def converted(source: te.Tensor, kind: DataType) -> te.Tensor:
    return te.compute(source.shape, lambda i: cast(source[i], kind), f"{source.name}_{kind}")


def square_and_sum(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    return te.compute(a.shape, lambda i: cast(a[i] * a[i] + b[i], INT32), f"{a.name}_sum")


@pytest.mark.parametrize("name", FORMATS)
def test_the_interpreter(name: str) -> None:
    x = numbers()
    codes = codes_of(x, name)
    np.testing.assert_array_equal(codes, expected_codes(x, name))
    every = np.arange(1 << FORMATS[name].bits, dtype=np.uint8)
    same_values(values_of(name), every.view(getattr(ml_dtypes, name)).astype(np.float32))
    assert [code_of(float(value), name) for value in x[-9000:]] == codes[-9000:].tolist()


@pytest.mark.parametrize("target", TARGETS)
def test_floats_in_kernels(target: str) -> None:
    if target != "llvm":
        need("c-compiler" if target == "c" else target)
    x = numbers()
    a = te.placeholder((CHUNK,), "float32", "a")
    stages = []
    for name in FORMATS:
        codes = converted(a, DataType.of(name))
        stages += [codes, converted(codes, FLOAT32)]
    function = tw.build(te.create_schedule([stage.op for stage in stages]), [a, *stages], target=target)
    for start in range(0, len(x), CHUNK):
        part = x[start : start + CHUNK].copy()
        results = [
            np.zeros(CHUNK, kind)
            for name in FORMATS
            for kind in (np.dtype(getattr(ml_dtypes, name)), np.dtype(np.float32))
        ]
        function(part, *results)
        for place, name in enumerate(FORMATS):
            expected = expected_codes(part, name)
            np.testing.assert_array_equal(results[2 * place].view(np.uint8), expected)
            same_values(results[2 * place + 1], expected.view(getattr(ml_dtypes, name)).astype(np.float32))


def test_cuda_text_compiles() -> None:
    """By instructions where there are some, by integer arithmetic elsewhere and for all other types."""
    require_nvrtc()
    a = te.placeholder((64,), "float32", "a")
    stages = [converted(converted(a, DataType.of(name)), FLOAT32) for name in (*FORMATS, *INTEGERS)]
    func = te.create_prim_func([a, *stages], "small")
    for arch, has_instructions in (("sm_80", False), ("sm_90", True)):
        text = cuda_text([func], Target(f"cuda -arch={arch}"))
        assert ("cvt.rn.satfinite.e4m3x2" in text and "cvt.rn.f16x2.e5m2x2" in text) == has_instructions
        compile_cuda(text, arch)


@pytest.mark.parametrize("target", TARGETS)
def test_integers_in_kernels(target: str) -> None:
    if target != "llvm":
        need("c-compiler" if target == "c" else target)
    size = 600
    a, f = te.placeholder((size,), "int32", "a"), te.placeholder((size,), "float32", "f")
    stages = []
    for name in INTEGERS:
        low, saturated = converted(a, DataType.of(name)), converted(f, DataType.of(name))
        stages += [low, saturated, square_and_sum(low, saturated)]
    function = tw.build(te.create_schedule([stage.op for stage in stages]), [a, f, *stages], target=target)
    x = np.arange(-300, 300, dtype=np.int32)
    y = np.linspace(-20, 20, size, dtype=np.float32)
    y[:3] = np.nan, np.inf, -np.inf
    kinds = [np.dtype(getattr(ml_dtypes, name)) for name in INTEGERS]
    results = [np.zeros(size, kind) for dtype in kinds for kind in (dtype, dtype, np.dtype(np.int32))]
    function(x, y, *results)
    for place, kind in enumerate(kinds):
        limits = ml_dtypes.iinfo(kind)
        wrapped, clipped, sums = results[3 * place : 3 * place + 3]
        np.testing.assert_array_equal(wrapped, x.astype(kind))
        whole = np.trunc(np.nan_to_num(np.clip(y, float(limits.min), float(limits.max)))).astype(np.int32)
        np.testing.assert_array_equal(clipped, whole.astype(kind))
        np.testing.assert_array_equal(sums, (x * x + whole).astype(kind).astype(np.int32))
