"""Operators whose indices are data, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.frontend.onnx.helpers import check, data, import_one
from tilewright.graph.interpreter import evaluate
from tilewright.support.errors import UnsupportedError, UserError


def ints(*values):
    return np.array(values, np.int64)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather(axis):
    check("Gather", data(5, 6, 7), data(2, 3, dtype="int64", low=-5, high=4), axis=axis)
    check("Gather", data(5, 6, 7), np.array(2, np.int64), axis=axis)
    check("Gather", data(5, 6, 7), np.array([1], np.int32), constants=[1], axis=axis)


def test_gather_elements():
    check("GatherElements", data(4, 5), data(4, 3, dtype="int64", low=-5, high=4), axis=1)
    check("GatherElements", data(4, 5), data(6, 5, dtype="int32", low=-4, high=3))
    check("GatherElements", data(4, 5), data(2, 3, dtype="int64", low=0, high=3), axis=0)
    with pytest.raises(UserError, match="reach beyond data"):
        import_one("GatherElements", data(4, 5), data(4, 6, dtype="int64", low=0), axis=0)
    with pytest.raises(UserError, match="do not fit data"):
        import_one("GatherElements", data(4, 5), data(4, dtype="int64", low=0), axis=0)


def test_gather_nd():
    check("GatherND", data(4, 5, 6), data(3, 2, dtype="int64", low=-4, high=3))
    check("GatherND", data(4, 5, 6), data(3, 3, dtype="int64", low=-4, high=3))
    check("GatherND", data(4, 5, 6), data(4, 2, 1, dtype="int64", low=-4, high=3), batch_dims=1)
    with pytest.raises(UserError, match="do not fit data"):
        import_one("GatherND", data(4, 5), data(3, 3, dtype="int64", low=0))


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatter_elements(reduction):
    options = {} if reduction == "none" else {"reduction": reduction}
    indices = np.array([[0, 2, -1], [1, 0, 2]], np.int64)
    check("ScatterElements", data(2, 5), indices, data(2, 3), constants=[1], axis=1, **options)


def test_scatter_elements_in_one_place_several_times():
    check("ScatterElements", data(4), ints(1, 1, 2, 1), data(4), constants=[1], reduction="add")


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatter_nd(reduction):
    options = {} if reduction == "none" else {"reduction": reduction}
    check("ScatterND", data(4, 5), np.array([[1], [-1]], np.int64), data(2, 5), constants=[1], **options)
    check("ScatterND", data(4, 5), np.array([[1, 2], [3, 0]], np.int64), data(2), constants=[1], **options)


def test_scatter_refuses():
    with pytest.raises(UserError, match="out of range"):
        import_one("ScatterElements", data(4), ints(7), data(1), constants=[1])
    with pytest.raises(UserError, match="out of range"):
        import_one("ScatterND", data(4), np.array([[9]], np.int64), data(1), constants=[1])
    with pytest.raises(UserError, match="do not fit data"):
        import_one("ScatterND", data(4), np.array([[1]], np.int64), data(3), constants=[1])
    with pytest.raises(UserError, match="unknown reduction 'mean'"):
        import_one("ScatterND", data(4), np.array([[1]], np.int64), data(1), constants=[1], reduction="mean")


def test_scatter_of_many_updates_in_one_place():
    places = np.zeros((80, 1), np.int64)
    check("ScatterND", data(4), places, data(80), constants=[1], reduction="add")


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_one_hot(axis):
    depth, values = np.array(5, np.int64), np.array([2.0, 7.0], np.float32)
    check("OneHot", ints(0, 3, -1, 9), depth, values, constants=[1], axis=axis)
    with pytest.raises(UserError, match="OneHot of depth 0"):
        import_one("OneHot", ints(0), np.array(0, np.int64), values, constants=[1])


def test_compress():
    condition = np.array([True, False, True])
    check("Compress", data(3, 4), condition, constants=[1], axis=0)
    check("Compress", data(3, 4), condition, constants=[1])
    with pytest.raises(UserError, match="longer than the data"):
        import_one("Compress", data(2, 4), condition, constants=[1], axis=0)


def test_non_zero_and_compress():
    x = np.array([[1, 0], [0, 2]], np.int64)
    for constants in ([0], []):
        check("NonZero", x, constants=constants)
    for constants in ([1], []):
        check("Compress", data(3, 4), np.array([True, False, True]), constants=constants, axis=0)
        check("Compress", data(3, 4), np.array([True, False, True]), constants=constants)


@pytest.mark.parametrize(("batch_axis", "time_axis"), [(0, 1), (1, 0)])
def test_reverse_sequence(batch_axis, time_axis):
    x = data(3, 4, 2)
    lengths = ints(*([4, 2, 1] if batch_axis == 0 else [3, 2, 1, 3]))
    for constants in ([1], []):
        check("ReverseSequence", x, lengths, constants=constants, batch_axis=batch_axis, time_axis=time_axis)
    with pytest.raises(UserError, match="does not fit data"):
        import_one("ReverseSequence", x, ints(1), constants=[1])
    with pytest.raises(UserError, match="do not fit sequences"):
        import_one("ReverseSequence", x, ints(9, 9, 9, 9), constants=[1])


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatter_with_computed_indices(reduction):
    indices = np.array([[1, 0, -1], [0, 2, 1]], np.int64)
    check("ScatterElements", data(3, 4), indices, data(2, 3), axis=0, reduction=reduction)
    places = np.array([[0, 1], [2, -1], [1, 0]], np.int64)
    check("ScatterND", data(3, 4, 2), places, data(3, 2), reduction=reduction)


def test_scatter_with_computed_indices_refuses():
    with pytest.raises(UserError, match="do not fit data"):
        import_one("ScatterElements", data(3, 4), np.zeros((2, 3), np.int64), data(2, 2))
    with pytest.raises(UserError, match="reach beyond data"):
        import_one("ScatterElements", data(3, 4), np.zeros((2, 5), np.int64), data(2, 5))
    with pytest.raises(UserError, match="do not fit data"):
        import_one("ScatterND", data(3, 4), np.zeros((2, 3), np.int64), data(2))
    with pytest.raises(UserError, match="unknown reduction"):
        import_one("ScatterND", data(3, 4), np.zeros((2, 1), np.int64), data(2, 4), reduction="mean")
    with pytest.raises(UnsupportedError, match="with computed indices on data"):
        import_one("ScatterElements", data(70000), np.zeros(70000, np.int64), data(70000))


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_tensor_scatter(mode):
    starts = np.array([1, 4 if mode == "circular" else 2], np.int64)
    cache, update = data(2, 3, 5, 4), data(2, 3, 3, 4)
    module = import_one("TensorScatter", cache, update, starts, opset=24, mode=mode)
    wanted = cache.copy()
    for row, start in enumerate(starts):
        for step in range(3):
            wanted[row, :, (start + step) % 5] = update[row, :, step]
    np.testing.assert_array_equal(evaluate(module, cache, update, starts), wanted)


def test_tensor_scatter_refuses():
    with pytest.raises(UserError, match="does not fit a cache"):
        import_one("TensorScatter", data(2, 3, 5, 4), data(2, 3, 6, 4), opset=24)
    with pytest.raises(UserError, match="unknown mode 'magic'"):
        import_one("TensorScatter", data(2, 3, 5, 4), data(2, 3, 2, 4), opset=24, mode="magic")
