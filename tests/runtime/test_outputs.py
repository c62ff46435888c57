"""Arrays that the user gives for results: written in place, through a copy where that is not possible, or refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tests.integration import small_models
from tests.runtime import mini
from tilewright.backends.llvm import deploy
from tilewright.runtime import Executable, array
from tilewright.support.errors import UserError

SHAPE = (mini.ROWS, mini.COLUMNS)


@pytest.fixture(scope="module")
def exe() -> Executable:
    return deploy.executable(mini.model_artifact())


def _empty() -> list[np.ndarray]:
    return [np.full(SHAPE, np.nan, np.float32) for _ in range(2)]


def _check(outputs: list[np.ndarray], x: np.ndarray) -> None:
    for got, want in zip(outputs, mini.expected(x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_they_are_written_and_come_back(exe: Executable) -> None:
    x = mini.sample_input(1)
    out = _empty()
    back = exe.run({"data/x": x}, out=out)
    assert all(a is b for a, b in zip(back, out, strict=True))
    _check(out, x)
    out = _empty()
    back = exe(x, out=tuple(out))
    assert isinstance(back, tuple)
    assert back[0] is out[0]
    _check(out, x)


def test_arrays_of_every_kind(exe: Executable) -> None:
    x = mini.sample_input(2)
    wide = np.full((mini.ROWS, 2 * mini.COLUMNS), np.nan, np.float32)
    raw = np.zeros(SHAPE[0] * SHAPE[1] * 4 + 1, np.uint8)
    unaligned = raw[1:].view(np.float32).reshape(SHAPE)
    exe(x, out=[wide[:, ::2], unaligned])
    _check([wide[:, ::2], unaligned], x)
    assert np.isnan(wide[:, 1::2]).all()
    swapped = np.zeros(SHAPE, np.dtype(np.float32).newbyteorder())
    exe(x, out=[swapped, swapped.copy()])
    np.testing.assert_allclose(swapped, mini.expected(x)[0], rtol=1e-5, atol=1e-6)
    turned, ours = np.zeros(SHAPE[::-1], np.float32), array(np.zeros(SHAPE, np.float32))
    exe(x, out=[turned.T, ours])
    _check([turned.T, ours.numpy()], x)


def test_memory_that_overlaps_gives_what_separate_memory_gives(exe: Executable) -> None:
    """Compiled code takes for granted that its buffers are distinct."""
    x = mini.sample_input(3)
    both = np.full((2 * SHAPE[0] * SHAPE[1],), 7, np.float32)
    given = both[: x.size].reshape(x.shape)
    given[...] = x
    first, second = both[:64].reshape(SHAPE), both[64:].reshape(SHAPE)
    exe(given, out=[first, second])
    _check([first, second], x)
    shared = np.zeros(SHAPE, np.float32)
    exe(x, out=[shared, shared])
    np.testing.assert_allclose(shared, mini.expected(x)[1], rtol=1e-5, atol=1e-6)


def test_refused(exe: Executable) -> None:
    x = mini.sample_input()
    fixed = np.zeros(SHAPE, np.float32)
    fixed.flags.writeable = False
    good = np.zeros(SHAPE, np.float32)
    for bad, message in [
        (np.zeros((16, 5), np.float32), r"for the output 'logits' has the shape \[16, 5\], this call gives \[16, 4\]"),
        (np.zeros(SHAPE), "for the output 'logits' has the data type float64, the model gives float32"),
        (fixed, "for the output 'logits' is read-only"),
        (good.tolist(), "'out' has|must be an array, not"),
        (7, "must be an array, not"),
    ]:
        with pytest.raises(UserError, match=message):
            exe(x, out=[bad, good])
    with pytest.raises(UserError, match=r"'out' has 1 array, the model has 2 outputs \(logits, doubled\)"):
        exe.run({"data/x": x}, out=good)
    assert not good.any(), "nothing is written where something is refused"


def test_symbolic_sizes_and_one_output() -> None:
    node = small_models.helper.make_node("Relu", ["x"], ["y"])
    shape = (small_models.FLOAT, ["n", 3])
    exe = tw.compile(small_models.model([node], {"x": shape}, {"y": shape}).SerializeToString(), threads=1)
    x = np.array([[-1, 2, -3]] * 4, np.float32)
    out = np.empty((4, 3), np.float32)
    assert exe(x, out=out) is out
    np.testing.assert_array_equal(out, np.maximum(x, 0))
    exe(x, out=x)
    np.testing.assert_array_equal(x, out)
    with pytest.raises(UserError, match=r"has the shape \[4, 3\], this call gives \[2, 3\]"):
        exe(x[:2], out=out)
    with pytest.raises(UserError, match="'out' has 2 arrays, the model has 1 output"):
        exe(x, out=[out, out])


def test_a_model_whose_input_is_named_out() -> None:
    node = small_models.helper.make_node("Neg", ["out"], ["y"])
    shape = (small_models.FLOAT, [3])
    exe = tw.compile(small_models.model([node], {"out": shape}, {"y": shape}).SerializeToString(), threads=1)
    x, y = np.arange(3, dtype=np.float32), np.empty(3, np.float32)
    np.testing.assert_array_equal(exe(out=x), -x)
    exe.run({"out": x}, out=y)
    np.testing.assert_array_equal(y, -x)


def test_programs_of_the_virtual_machine(tmp_path: Path) -> None:
    node = small_models.helper.make_node("NonZero", ["x"], ["y"])
    inputs, outputs = {"x": (small_models.FLOAT, [4])}, {"y": (small_models.onnx.TensorProto.INT64, [1, "k"])}
    exe = tw.compile(small_models.model([node], inputs, outputs).SerializeToString(), threads=1)
    x = np.array([1, 0, 2, 0], np.float32)
    out = np.empty((1, 2), np.int64)
    assert exe(x, out=out) is out
    np.testing.assert_array_equal(out, [[0, 2]])
    with pytest.raises(UserError, match=r"has the shape \[1, 2\], this call gives \[1, 1\]"):
        exe(np.array([1, 0, 0, 0], np.float32), out=out)
