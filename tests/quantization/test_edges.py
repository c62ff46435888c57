"""Quantisation of what is odd: data with nothing in it, metrics that fail, searches that are stopped, open batches."""

from __future__ import annotations

import builtins
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import tilewright as tw
from tests.integration.small_models import FLOAT, model
from tests.quantization.networks import IMAGE, images, perceptron, residual_network
from tilewright.ir.dtype import DataType
from tilewright.quantization import quantizer
from tilewright.quantization.data import Input, feeds
from tilewright.quantization.parameters import of_range, of_weight
from tilewright.quantization.sensitivity import signal_to_noise
from tilewright.support.errors import MissingDependencyError, UserError

MODEL = residual_network().SerializeToString()
DENSE = perceptron().SerializeToString()
ROWS = np.random.default_rng(0).standard_normal((20, 64)).astype(np.float32)


# Data


@pytest.mark.parametrize("value", [0.0, 3.0, -2.0])
def test_constant_data_gives_finite_results(value: float) -> None:
    """A range of one number, or of nothing but zero, has a scale; other inputs saturate."""
    quantized = tw.quantize(MODEL, np.full((2, *IMAGE[1:]), value, np.float32), threads=1)
    exe = tw.compile(quantized.module, threads=1)
    for x in (np.full(IMAGE, value, np.float32), images(1) * 100):
        assert np.isfinite(np.asarray(exe(x))).all()
    assert quantized.report.decibels > 20 or value == 0.0


def test_weights_and_ranges_of_zero_have_a_scale() -> None:
    assert of_range(0.0, 0.0, DataType.of("uint8")).scale == 1.0
    channels = of_weight(np.asarray([[0.0, 0.0], [1.0, -2.0]], np.float32), (1,), 4)
    assert (channels.scale > 0).all()
    np.testing.assert_array_equal(channels.rounded(np.zeros((2, 2), np.float32)), 0.0)


def test_values_that_are_no_numbers_in_the_results() -> None:
    """Infinite results are no signal; a number that becomes none is all noise."""
    exact = [[np.asarray([1.0, -np.inf, np.nan])]]
    assert signal_to_noise(exact, [[np.asarray([1.0, 0.0, 0.0])]]) == float("inf")
    assert signal_to_noise(exact, [[np.asarray([np.nan, 0.0, 0.0])]]) == float("-inf")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (np.zeros((0, 64), np.float32), "no calibration data"),
        (iter(()), "no calibration data"),
        (np.zeros((2, 63), np.float32), r"'x' has shape \(2, 63\), the model takes \(\?, 64\)"),
        ([np.zeros((2, 64)), np.zeros((2, 64, 1))], r"run 1 of the data"),
        (np.zeros((2, 64), np.complex64), "complex64, the model takes float32"),
        (np.asarray([["a"] * 64]), "the model takes float32"),
        ({"x": np.zeros((4, 64)), "y": np.zeros(4)}, None),
        (np.zeros((2, 64), np.int8), None),
        (np.zeros((2, 64), np.float64), None),
    ],
)
def test_data_is_checked(data: object, message: str | None) -> None:
    """Numbers of other types are taken where nothing is lost by kind; names that the model has not are left alone."""
    if message is None:
        assert feeds(data, [Input("x", (None, 64))])[0][0].dtype == np.float32  # type: ignore[arg-type]
        return
    with pytest.raises(UserError, match=message):
        tw.quantize(DENSE, data, threads=1)  # type: ignore[arg-type]


def test_one_array_is_for_one_input() -> None:
    with pytest.raises(UserError, match="2 inputs"):
        feeds(np.zeros((2, 3)), [Input("a", (None, 3)), Input("b", (None, 3))])


def test_an_open_batch_takes_all_rows_and_a_fixed_one_whole_batches() -> None:
    assert [len(run[0]) for run in feeds(ROWS, [Input("x", (None, 64))])] == [16, 4]
    assert [len(run[0]) for run in feeds(ROWS, [Input("x", (8, 64))])] == [8, 8]


def test_an_iterator_that_fails_is_not_hidden() -> None:
    def rows():
        yield ROWS[:2]
        raise RuntimeError("the disk is gone")

    with pytest.raises(RuntimeError, match="the disk is gone"):
        tw.quantize(DENSE, rows(), threads=1)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    for name, content in (("a.npz", b"PK\x03\x04 cut"), ("b.npy", b"\x93NUMPY\x01"), ("c.npz", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=r"damaged|cannot read"):
            tw.quantize(DENSE, tmp_path / name, threads=1)
    with pytest.raises(UserError, match="cannot read"):
        tw.quantize(DENSE, tmp_path / "absent.npz", threads=1)


def test_images_name_their_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.png").write_bytes(b"no image")
    original = builtins.__import__

    def without_pillow(name, *rest):
        if name.startswith("PIL"):
            raise ImportError(name)
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_pillow)
    with pytest.raises(MissingDependencyError, match=r"tilewright\[images\]"):
        feeds(tmp_path, [Input("image", IMAGE)])


# Models


def test_a_model_without_layers_is_refused() -> None:
    relu = model([helper.make_node("Relu", ["x"], ["y"])], {"x": (FLOAT, (1, 4))}, {"y": (FLOAT, (1, 4))})
    with pytest.raises(UserError, match="no layer to quantise"):
        tw.quantize(relu, np.zeros((1, 4), np.float32), threads=1)


def test_a_batch_that_is_open_stays_open() -> None:
    exe = tw.compile(tw.quantize(DENSE, ROWS, threads=1).module, threads=1)
    whole = np.asarray(exe(ROWS))
    np.testing.assert_array_equal(np.concatenate([np.asarray(exe(ROWS[:7])), np.asarray(exe(ROWS[7:]))]), whole)


def test_groups_are_rounded_by_learning_too() -> None:
    """Learned rounding makes up for errors across groups of inputs; groups that do not divide a layer are whole."""
    mixed = ROWS @ np.random.default_rng(3).standard_normal((64, 64)).astype(np.float32) ** 3

    def decibels(rounding: str, group: int = 16) -> float:
        return tw.quantize(
            DENSE, mixed, threads=1, scheme="weights", weight_bits=3, group=group, rounding=rounding
        ).report.decibels

    assert decibels("learned") > decibels("nearest") + 2
    assert decibels("nearest", 48) < decibels("nearest", 16)


def test_few_bits_saturate_where_that_is_better() -> None:
    values = np.random.default_rng(0).standard_normal((4, 500)).astype(np.float32)
    values[:, 0] = 8.0
    best = of_weight(values, (1,), 3)
    whole = (np.abs(values).max(axis=1, keepdims=True) / 3).astype(np.float32)
    rounded = np.clip(np.rint(values / whole), -4, 3) * whole
    assert ((best.rounded(values) - values) ** 2).sum() < 0.5 * ((rounded - values) ** 2).sum()


def test_mean_errors_are_taken_off() -> None:
    """Inputs that are all positive shift results when weights are rounded; by default the shift is taken off."""
    data = np.abs(images(8)) + 1
    with_shift = tw.quantize(MODEL, data, threads=1, correct_bias=False, weight_bits=5)
    without = tw.quantize(MODEL, data, threads=1, weight_bits=5)
    assert without.report.decibels > with_shift.report.decibels + 3


# Metrics and the search


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (lambda runs: float("nan"), "the metric gave nan"),
        (lambda runs: float("inf"), "the metric gave inf"),
        (lambda runs: None, "the metric gave"),
        (lambda runs: "good", "the metric gave"),
    ],
)
def test_metrics_that_give_no_number(metric, message: str) -> None:
    with pytest.raises(UserError, match=message):
        tw.quantize(DENSE, ROWS, threads=1, metric=metric, max_drop=0.1)


def test_a_metric_of_quantised_results_that_is_none() -> None:
    """The float32 results have a metric, the quantised ones do not: that is no reason to keep every layer."""
    calls = []

    def metric(runs):
        calls.append(len(runs))
        return 1.0 if len(calls) == 1 else float("nan")

    with pytest.raises(UserError, match="the metric gave nan"):
        tw.quantize(DENSE, ROWS, threads=1, metric=metric, max_drop=0.1)


def _spread(runs: list[list[np.ndarray]]) -> float:
    """A metric that every rounding makes a little worse."""
    exact = np.concatenate([np.maximum(run @ _W1, 0) @ _W2 for run in np.split(ROWS, [16])])
    return -float(np.abs(np.concatenate([outputs[0] for outputs in runs]) - exact).mean())


_W1, _W2 = (onnx.numpy_helper.to_array(item) for item in perceptron().graph.initializer)


def test_a_search_goes_on_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "search.json"
    limit, saves = 1e-6, []

    class Stopped(Exception):
        """What stops the search in its middle."""

    def stop_after(count: int) -> None:
        original = quantizer.SearchRecord.save

        def save(self: quantizer.SearchRecord) -> None:
            original(self)
            saves.append(len(self.layers))
            if len(saves) == count:
                raise Stopped

        monkeypatch.setattr(quantizer.SearchRecord, "save", save)

    stop_after(1)
    with pytest.raises(Stopped):
        tw.quantize(DENSE, ROWS, threads=1, metric=_spread, max_drop=limit, resume=path)
    assert len(json.loads(path.read_text())["layers"]) == 1
    monkeypatch.undo()
    measured = []
    monkeypatch.setattr(
        "tilewright.quantization.sensitivity.signal_to_noise",
        lambda *parts: measured.append(1) or signal_to_noise(*parts),
    )
    resumed = tw.quantize(DENSE, ROWS, threads=1, metric=_spread, max_drop=limit, resume=path)
    assert len(measured) == 1
    fresh = tw.quantize(DENSE, ROWS, threads=1, metric=_spread, max_drop=limit)
    assert resumed.report == fresh.report
    assert all(layer.metric is not None for layer in fresh.report.layers)
    # Another limit takes up everything that was measured.
    measured.clear()
    other = tw.quantize(DENSE, ROWS, threads=1, metric=_spread, max_drop=10.0, resume=path)
    assert (len(measured), other.report.kept) == (0, [])


def test_a_record_of_another_search_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "search.json"
    tw.quantize(DENSE, ROWS, threads=1, max_drop=1e-3, resume=path)
    with pytest.raises(UserError, match="another model, other data"):
        tw.quantize(DENSE, ROWS + 1, threads=1, max_drop=1e-3, resume=path)
    with pytest.raises(UserError, match="another model, other data"):
        tw.quantize(perceptron(seed=1).SerializeToString(), ROWS, threads=1, max_drop=1e-3, resume=path)
    path.write_text("[]")
    with pytest.raises(UserError, match="no record of a search"):
        tw.quantize(DENSE, ROWS, threads=1, max_drop=1e-3, resume=path)


@pytest.mark.parametrize("scheme", ["static", "dynamic", "weights"])
def test_sensitivity_is_measured_for_every_scheme(scheme: str, tmp_path: Path) -> None:
    """Layers alone are each closer than all of them together; the page has a bar for each and a plot of the search."""
    report = tw.quantize(DENSE, ROWS, threads=1, scheme=scheme, max_drop=0.0).report
    assert all(layer.decibels is not None and 15 < layer.decibels < 100 for layer in report.layers)
    report.write(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert page.count("class='bar'") == 2
    assert page.count("<circle") == len(report.trials) > 0
    alone = tw.quantize(DENSE, ROWS, threads=1, scheme=scheme, sensitivity=True).report
    assert [layer.decibels for layer in alone.layers] == [layer.decibels for layer in report.layers]
    assert alone.kept == []
    assert alone.decibels <= min(layer.decibels or 0.0 for layer in alone.layers) + 1
