"""Models whose kernels are on a device and on the host beside it: where each runs, and that results are the same."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import tilewright as tw
from tests.integration import small_models
from tests.requirements import need
from tilewright.support.errors import UserError


@pytest.fixture(scope="module")
def model() -> bytes:
    return bytes(small_models.classifier().SerializeToString())


@pytest.mark.parametrize("target", ["opencl", "accel"])
def test_a_placed_model_gives_the_same(model: bytes, target: str) -> None:
    if target == "opencl":
        need("opencl")
    x = small_models.image()
    expected = np.asarray(tw.compile(model)(x))
    placement = tw.place(model, [x], target)
    placed = placement.compile()
    np.testing.assert_allclose(np.asarray(placed(x)), expected, rtol=1e-4, atol=1e-5)
    assert placement.seconds() <= placement.seconds(frozenset()) + 1e-7
    assert placement.seconds() <= placement.seconds(frozenset(item.symbol for item in placement.kernels)) + 1e-7
    text = str(placement)
    assert "so placed" in text and all(item.symbol in text for item in placement.kernels)
    assert len(placement.values) >= len(placement.kernels), "the input, and what each kernel computes"
    shown = placed.placement()
    for item in placement.kernels:
        [line] = [line for line in shown.splitlines() if item.symbol in line]
        assert line.startswith("host" if item.on_host else target)


def test_any_kernels_may_be_on_the_host(model: bytes) -> None:
    need("opencl")
    x = small_models.image()
    expected = np.asarray(tw.compile(model)(x))
    everything = tw.compile(model, "opencl")
    assert everything.artifact.device is not None
    symbols = [kernel.symbol for kernel in everything.artifact.device.kernels]
    for count in (1, 2):
        for chosen in combinations(symbols, count):
            executable = tw.compile(model, "opencl", on_host=chosen)
            for _ in range(2):
                np.testing.assert_allclose(np.asarray(executable(x)), expected, rtol=1e-4, atol=1e-5)
            assert executable.artifact.device is not None
            places = {kernel.symbol: bool(kernel.on_host) for kernel in executable.artifact.device.kernels}
            assert places == {symbol: symbol in chosen for symbol in symbols}
            rows = executable.profile(x, repeat=1).rows
            assert all(row.seconds > 0 for row in rows), "what the host computes is timed too"


def test_wrong_placements_are_errors(model: bytes) -> None:
    need("opencl")
    x = small_models.image()
    with pytest.raises(UserError, match="no kernel 'mystery' for this target") as caught:
        tw.compile(model, "opencl", on_host=["mystery"])
    assert "tw.place" in str(caught.value.hint)
    with pytest.raises(UserError, match="the target has none"):
        tw.compile(model, on_host=["mystery"])
    with pytest.raises(UserError, match="symbols of kernels in a list"):
        tw.compile(model, "opencl", on_host="mystery")
    with pytest.raises(UserError, match="placed on a device and the CPU beside it"):
        tw.place(model, [x], "native")
    with pytest.raises(UserError, match="there is nothing to place"):
        tw.compile(model).placement()
    open_rows = small_models.one_node("Relu", {"x": (TensorProto.FLOAT, ("rows", 3))})
    assert isinstance(open_rows, onnx.ModelProto)
    with pytest.raises(UserError, match="placed for fixed sizes"):
        tw.place(bytes(open_rows.SerializeToString()), [np.zeros((2, 3), np.float32)], "opencl")
