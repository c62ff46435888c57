"""Mean and variance in one read, and the two sums of the gradient of a batch normalisation."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.requirements import need
from tests.topi.differential import check, operator_program, results_of
from tilewright.graph.ir.expr import Function, Var
from tilewright.graph.ir.op import call
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type
from tilewright.target import Target
from tilewright.tir.interpreter import interpret
from tilewright.topi.schedule.gpu.strategy import schedule_gpu

LAST = (0, 1, 2)
H200 = "cuda -arch=sm_90a -num-cores=132 -shared-bytes=232448"


def data(shape: tuple[int, ...], dtype: str, mean: float = 3.0) -> np.ndarray:
    return (np.random.default_rng(0).standard_normal(shape) + mean).astype(dtype)


def program(name: str, *inputs: tuple[tuple[int, ...], str], **attributes: object) -> IRModule:
    params = tuple(Var(f"x{n}", tensor_type(shape, dtype)) for n, (shape, dtype) in enumerate(inputs))
    return IRModule([Function("main", params, call(name, *params, **attributes))])


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((2, 5, 7, 3), LAST), ((4, 6), (1,)), ((4, 6), (0,)), ((3, 4, 5), (0, 1, 2)), ((2, 3, 4), (1,)), ((3, 2), ())],
)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_against_the_reference(shape: tuple[int, ...], axes: tuple[int, ...], dtype: str) -> None:
    tolerance = 1e-12 if dtype == "float64" else 1e-5
    check("moments", data(shape, dtype), axes=axes, tolerance=tolerance)
    check("moments", data(shape, dtype), axes=axes, keepdims=True, tolerance=tolerance)


@pytest.mark.parametrize("shape", [(2, 5, 7, 3), (40, 30, 3), (4, 3), (3,)])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_sums_against_the_reference(shape: tuple[int, ...], dtype: str) -> None:
    channels = (shape[-1],)
    given = (data(shape, dtype), data(channels, "float32"), data(shape, dtype, 0.0))
    check("nn.batch_norm_sums", *given, axis=len(shape) - 1, tolerance=2e-4)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("target", ["llvm", "opencl"])
def test_small_deviations_of_large_numbers(dtype: str, target: str) -> None:
    """Numbers about 10,000 that deviate by 1: squares of them would have no digit of it left in float32."""
    if target == "opencl":
        need("opencl")
    shape = (4, 14, 14, 64)
    x = data(shape, dtype, 1e4)
    mean, variance = tw.compile(program("moments", (shape, dtype), axes=LAST), target)(x)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(mean, wide.mean(LAST), rtol=1e-7)
    np.testing.assert_allclose(variance, wide.var(LAST), rtol=1e-4)


def test_the_element_that_distances_are_taken_from_may_lie_apart() -> None:
    x = data((4, 8, 8, 16), "float32")
    x[2, 4, 4] = 1e4
    wide = x.astype(np.float64)
    mean, variance = tw.compile(program("moments", (x.shape, "float32"), axes=LAST))(x)
    assert np.all(np.abs(mean - wide.mean(LAST)) < 1e-4 * wide.std(LAST))
    np.testing.assert_allclose(variance, wide.var(LAST), rtol=1e-3)
    same = np.full((4, 8, 8, 16), 0.1, np.float32)
    check("moments", same, axes=LAST, tolerance=1e-7)


def test_what_is_not_finite_shows() -> None:
    x = data((4, 8, 8, 16), "float32")
    x[0, 0, 0, 3], x[1, 1, 1, 5] = np.nan, np.inf
    mean, variance = tw.compile(program("moments", (x.shape, "float32"), axes=LAST))(x)
    for found in (mean, variance):
        assert np.flatnonzero(~np.isfinite(found)).tolist() == [3, 5]


def test_empty_dimensions_have_no_mean() -> None:
    with pytest.raises(tw.UserError, match="dimension 1 is empty: it has no mean"):
        tw.compile(program("moments", ((2, 0), "float32"), axes=(1,)))


def test_the_mean_is_of_the_type_of_sums() -> None:
    inputs = ((2, 3), "float16"), ((3,), "float16"), ((2, 3), "float16")
    with pytest.raises(tw.UserError, match="the mean of float16 data must be float32, not float16"):
        tw.compile(program("nn.batch_norm_sums", *inputs))


SHAPES = [
    (4, 14, 14, 64),
    (2, 9, 9, 24),
    (3, 11, 5, 7),
    (1, 7, 7, 256),
    (1, 40, 40, 18),
    (1, 3, 11, 512),
    (1, 40, 40, 17),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("cores", [4, 132])
def test_schedules_of_devices(shape: tuple[int, ...], cores: int) -> None:
    """Columns that vectors divide, and others; one kernel, or partial sums first."""
    given = [data(shape, "float16"), data(shape[-1:], "float32"), data(shape, "float16", 0.0)]
    func = operator_program("nn.batch_norm_sums", given, axis=3)
    scheduled = schedule_gpu(func, Target(f"cuda -arch=sm_90a -num-cores={cores}"))
    results = [results_of(func, given) for _ in range(2)]
    interpret(func, *given, *results[0])
    interpret(scheduled.func, *given, *results[1])
    for plain, mine in zip(*results, strict=True):
        np.testing.assert_allclose(mine, plain, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("shape", "kernels"), [((32, 56, 56, 64), 2), ((32, 56, 56, 256), 2), ((32, 14, 14, 1024), 1), ((32, 7, 7, 512), 1)]
)
@pytest.mark.parametrize("name", ["moments", "nn.batch_norm_sums", "sum"])
def test_channels_are_read_in_vectors(name: str, shape: tuple[int, ...], kernels: int) -> None:
    """16 bytes of channels a thread; a second kernel only where blocks share rows."""
    inputs = [(shape, "float16")]
    if name == "nn.batch_norm_sums":
        inputs += [(shape[-1:], "float32"), (shape, "float16")]
    attributes = {"axis": 3} if name == "nn.batch_norm_sums" else {"axes": LAST}
    compilation = tw.Compilation(program(name, *inputs, **attributes), H200)
    (kernel,) = compilation.kernels
    assert [item.name for item in compilation.templates_of(kernel)] == ["column_sums"]
    text = compilation.source(kernel)
    assert text.count("__global__") == kernels
    assert "*(const uint4*)(p0_" in text
