"""Padding: every mode with amounts of both signs, on axes of every length, against onnxruntime."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tests.frontend.onnx.helpers import data, import_one, make_model, open_model, run_onnxruntime, run_tilewright
from tilewright.support.errors import UserError

MODES = ("constant", "reflect", "edge", "wrap")
AMOUNTS = (-3, -2, -1, 0, 1, 2, 5)


def pad_model(values, amounts, mode):
    node = helper.make_node("Pad", ["x", "amounts"], ["y"], mode=mode)
    return make_model([node], {"x": values}, ["y"], {"amounts": np.array(amounts, np.int64)})


@pytest.mark.parametrize("mode", MODES)
def test_amounts_of_both_signs(mode):
    """What is cut off goes first; onnxruntime refuses to mirror more than there is, and to leave nothing."""
    compared = 0
    for length, before, after in itertools.product((1, 2, 4), AMOUNTS, AMOUNTS):
        values, left = data(2, length), length + min(before, 0) + min(after, 0)
        if left < 0 or (left == 0 and mode != "constant"):
            continue
        if mode == "reflect" and (max(before, after) > left - 1 or left < 2):
            continue
        model = pad_model(values, [0, before, 0, after], mode)
        (mine,), (other,) = run_tilewright(model, {"x": values}), run_onnxruntime(model, {"x": values})
        np.testing.assert_array_equal(mine, other, err_msg=f"{length} {before} {after}")
        compared += 1
    assert compared > 20


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
def test_long_padding_is_that_of_numpy(mode):
    for length, before, after in itertools.product((1, 2, 5), (0, 3, 11), (0, 4, 9)):
        values = data(length, 2)
        wanted = np.pad(values, ((before, after), (0, 0)), mode=mode)
        np.testing.assert_array_equal(
            run_tilewright(pad_model(values, [before, 0, after, 0], mode), {"x": values})[0], wanted
        )


@pytest.mark.parametrize("mode", MODES)
def test_empty_axes(mode):
    beside = data(0, 3)
    (mine,) = run_tilewright(pad_model(beside, [0, 1, 0, 1], mode), {"x": beside})
    assert mine.shape == (0, 5)
    (whole,) = run_tilewright(pad_model(data(4), [-2, -2], mode), {"x": data(4)})
    assert whole.shape == (0,)
    model = pad_model(beside, [2, 0, 1, 0], mode)
    if mode == "constant":
        assert run_tilewright(model, {"x": beside})[0].tolist() == np.zeros((3, 3)).tolist()
        return
    with pytest.raises(UserError, match="cannot pad dimension 0 of size 0 by 2 and 1"):
        run_tilewright(model, {"x": beside})


BEYOND = [(1, -2, 1), (1, 2, -3), (2, -3, 1), (4, -5, 7), (4, 7, -5)]
"""Lengths and amounts that cut off more than there is, and put more there."""


@pytest.mark.parametrize(("length", "before", "after"), BEYOND)
@pytest.mark.parametrize("sizes", ["known", "open", "data"])
def test_what_is_cut_off_beyond_the_data_is_cut_off_the_padding(length, before, after, sizes):
    values, amounts = data(length), np.array([before, after], np.int64)
    (expected,) = run_onnxruntime(pad_model(values, amounts, "constant"), {"x": values})
    if sizes == "known":
        (mine,) = run_tilewright(pad_model(values, amounts, "constant"), {"x": values})
    else:
        node = helper.make_node("Pad", ["x", "amounts"], ["y"])
        kinds = {"x": (TensorProto.FLOAT, ["n"]), "amounts": (TensorProto.INT64, [2])}
        fixed = {"amounts": amounts} if sizes == "open" else {}
        model = open_model([node], {name: kinds[name] for name in kinds if name not in fixed}, ["y"], fixed)
        given = {"x": values, "amounts": amounts}
        (mine,) = tw.compile(model, threads=1).run({name: given[name] for name in given if name not in fixed})
    np.testing.assert_array_equal(mine, expected)


@pytest.mark.parametrize(
    ("mode", "amounts"),
    [*itertools.product(MODES, [(-3, -2), (0, -5)]), *((mode, (-5, 7)) for mode in MODES if mode != "constant")],
)
def test_more_than_there_is_cannot_be_cut_off(mode, amounts):
    with pytest.raises(UserError, match=r"pads cut \d and \d off dimension 0, which is 4"):
        import_one("Pad", data(4), np.array(amounts, np.int64), constants=[1], mode=mode)


@pytest.mark.parametrize("mode", MODES)
def test_amounts_that_are_data(mode):
    node = helper.make_node("Pad", ["x", "amounts"], ["y"], mode=mode)
    executable = tw.compile(
        open_model([node], {"x": (TensorProto.FLOAT, ["n"]), "amounts": (TensorProto.INT64, [2])}, ["y"]), threads=1
    )
    values = np.arange(5, dtype=np.float32)
    for amounts in ((1, 2), (-1, 2), (2, -1), (-1, -2)):
        model = pad_model(values, amounts, mode)
        (mine,) = executable.run({"x": values, "amounts": np.array(amounts, np.int64)})
        np.testing.assert_array_equal(mine, run_onnxruntime(model, {"x": values})[0])
    with pytest.raises(UserError, match="pads cut 4 and 2 off dimension 0, which is 5"):
        executable.run({"x": values, "amounts": np.array((-4, -2), np.int64)})
