"""Host functions that shape by data, against numpy, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.runtime.host import host_function
from tilewright.support.errors import UserError

X = np.arange(12, dtype=np.float32)


def run(name, *values, **attributes):
    """The results of a host function on lists as tensors."""
    return host_function(name)([np.asarray(value) for value in values], attributes)


def test_reshape():
    assert run("shape.reshape", X, [3, -1], copy_zeros=True)[0].shape == (3, 4)
    assert run("shape.reshape", X.reshape(2, 6), [0, 3, 2], copy_zeros=True)[0].shape == (2, 3, 2)
    assert run("shape.reshape", X[:0], [0, 5], copy_zeros=False)[0].shape == (0, 5)
    for shape in ([5, -1], [-1, -1], [-2, 6], [13], [0, 0, 12]):
        with pytest.raises(UserError, match=r"reshape|is not a shape|copies a dimension"):
            run("shape.reshape", X, shape, copy_zeros=True)
    with pytest.raises(UserError, match="must be a list of whole numbers"):
        run("shape.reshape", X, [3.0, 4.0], copy_zeros=True)


def test_broadcast_and_tile():
    assert run("shape.broadcast", X.reshape(12, 1), [2, 1, 3])[0].shape == (2, 12, 3)
    assert run("shape.tile", X.reshape(3, 4), [2, 1])[0].shape == (6, 4)
    with pytest.raises(UserError, match="cannot broadcast"):
        run("shape.broadcast", X, [5])
    with pytest.raises(UserError, match="do not fit 1 dimensions"):
        run("shape.tile", X, [1, 2])
    with pytest.raises(UserError, match="is not a shape"):
        run("shape.broadcast", X, [1 << 45, 12])


@pytest.mark.parametrize(
    ("begin", "end", "step"), [(1, 7, 2), (-3, 99, 1), (-1, -99, -1), (8, 2, -3), (5, 5, 1), (9, 3, 1)]
)
def test_slices_are_those_of_python(begin, end, step):
    (found,) = run("shape.slice", X, [begin], [end], [step], axes=(0,))
    assert found.tolist() == X[begin:end:step].tolist()


def test_slices_refuse():
    with pytest.raises(UserError, match="do not fit axes"):
        run("shape.slice", X, [0], [1], [0], axes=(0,))


def test_pad():
    assert run("shape.pad", X, [1, 2], 5.0, axes=(0,), mode="constant")[0].tolist() == [5, *X, 5, 5]
    assert run("shape.pad", X, [-1, 1], 0.0, axes=(0,), mode="constant")[0].tolist() == [*X[1:], 0]
    assert run("shape.pad", X[:3], [2, 1], 0.0, axes=(0,), mode="reflect")[0].tolist() == [2, 1, 0, 1, 2, 1]
    assert run("shape.pad", X[:4], [-1, 2], 0.0, axes=(0,), mode="wrap")[0].tolist() == [1, 2, 3, 1, 2]
    with pytest.raises(UserError, match="pads cut 3 and 2 off dimension 0, which is 4"):
        run("shape.pad", X[:4], [-3, -2], 0.0, axes=(0,), mode="edge")
    with pytest.raises(UserError, match="do not fit axes"):
        run("shape.pad", X, [1], 0.0, axes=(0,), mode="constant")


def test_ranges():
    assert run("shape.range", 1, 10, 4)[0].tolist() == [1, 5, 9]
    assert run("shape.range", 3, 1, 1)[0].tolist() == []
    assert run("shape.range", np.float32(0), np.float32(1), np.float32(0.25))[0].tolist() == [0, 0.25, 0.5, 0.75]
    for bounds in ((0, 5, 0), (0.0, np.inf, 1.0)):
        with pytest.raises(UserError, match="range"):
            run("shape.range", *bounds)


def test_split_and_stack():
    assert [part.shape for part in run("shape.split", X, [4, 0, 8], axis=0)] == [(4,), (0,), (8,)]
    with pytest.raises(UserError, match="do not make up"):
        run("shape.split", X, [4, 4], axis=0)
    stack = host_function("sequence.stack")
    shape = np.array([2], np.int64)
    items = [np.ones(2, np.float32), np.zeros(2, np.float32)]
    assert stack([items, shape], {"axis": 1, "dtype": "float32"})[0].tolist() == [[1, 0], [1, 0]]
    assert stack([[], shape], {"axis": 0, "dtype": "int64"})[0].shape == (0, 2)
    with pytest.raises(UserError, match="cannot be stacked"):
        stack([[np.ones(2), np.ones(3)], shape], {"axis": 0, "dtype": "float32"})


def test_match_is_the_value():
    assert run("shape.match", X)[0] is X
