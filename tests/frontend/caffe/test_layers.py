"""Caffe's layers against results of OpenCV, and against plain computations where OpenCV has no such layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from bench.caffe_cases import LAYERS, NETWORK, blobs, inputs, layer, random_inputs, written
from tilewright.frontend.caffe.schema import NET
from tilewright.graph.interpreter import evaluate

FOLDER = Path(__file__).resolve().parents[2] / "fixtures" / "caffe"
EXPECTED = np.load(FOLDER / "expected.npz", allow_pickle=False)


def run(text: str, seed: int = 0, values: dict[str, Any] | None = None) -> list[Any]:
    """What a net gives for its inputs, by name."""
    module = tw.frontend.from_caffe(written(text, seed)[0])
    given = random_inputs(text) if values is None else values
    results = evaluate(module, *(given[param.name] for param in module["main"].params))
    return list(results) if isinstance(results, tuple) else [results]


def weights(text: str, seed: int = 0) -> dict[str, list[Any]]:
    """The random weights of a net's layers."""
    net = NET.read("NetParameter", written(text, seed)[0], "net")
    return {
        item.name: [np.array(blob.data, np.float64).reshape(list(blob.shape.dim)) for blob in item.blobs]
        for item in net.layer
    }


@pytest.mark.parametrize("name", LAYERS)
def test_layers_give_what_another_reader_gives(name: str) -> None:
    for at, found in enumerate(run(LAYERS[name])):
        np.testing.assert_allclose(found, EXPECTED[f"{name} {at}"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["network.prototxt", "network.caffemodel"])
def test_a_network_in_two_files(name: str) -> None:
    image = random_inputs(NETWORK)["data"]
    found = tw.compile(FOLDER / name, threads=1)(image)
    np.testing.assert_allclose(found, EXPECTED["network 0"], rtol=1e-4, atol=1e-5)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def one(kind: str, options: str = "", shape: tuple[int, ...] = (2, 4, 5, 3)) -> tuple[Any, Any]:
    """The input and the result of a net of one layer."""
    text = inputs(data=shape) + layer(kind, options)
    return random_inputs(text)["data"], run(text)[0]


def test_elementwise_layers() -> None:
    x, found = one("Threshold", "threshold_param { threshold: 0.3 }")
    np.testing.assert_array_equal(found, x > 0.3)
    x, found = one("Log", "log_param { base: 2 scale: 0.1 shift: 3 }")
    np.testing.assert_allclose(found, np.log2(3 + 0.1 * x), rtol=1e-5)
    x, found = one("Bias", blobs((4,)))
    bias = weights(inputs(data=(2, 4, 5, 3)) + layer("Bias", blobs((4,))))["layer"][0]
    np.testing.assert_allclose(found, x + bias.reshape(4, 1, 1), rtol=1e-5)
    x, found = one("MVN", "mvn_param { across_channels: true normalize_variance: false }")
    np.testing.assert_allclose(found, x - x.mean(axis=(1, 2, 3), keepdims=True), atol=1e-5)
    x, found = one("Pooling", "pooling_param { pool: STOCHASTIC kernel_size: 2 stride: 2 round_mode: FLOOR }")
    part = x[:, :, :2, :2]
    np.testing.assert_allclose(found[:, :, 0, 0], (part**2).sum((2, 3)) / part.sum((2, 3)), rtol=1e-3)


@pytest.mark.parametrize(("name", "compute"), [("SUM", np.sum), ("MEAN", np.mean)])
def test_reductions(name: str, compute: Any) -> None:
    x, found = one("Reduction", f"reduction_param {{ operation: {name} axis: 1 coeff: 2 }}")
    np.testing.assert_allclose(found, 2 * compute(x, axis=(1, 2, 3)), rtol=1e-4, atol=1e-5)


def test_reductions_of_magnitudes_and_squares() -> None:
    x, found = one("Reduction", "reduction_param { operation: ASUM }")
    np.testing.assert_allclose(found, np.abs(x).sum(), rtol=1e-5)
    x, found = one("Reduction", "reduction_param { operation: SUMSQ axis: -1 }")
    np.testing.assert_allclose(found, (x**2).sum(-1), rtol=1e-5)


def test_the_last_of_equal_maxima_comes_first() -> None:
    text = inputs(data=(1, 4)) + layer("ArgMax", "argmax_param { top_k: 3 out_max_val: true }")
    found = run(text, values={"data": np.float32([[1, 5, 2, 5]])})[0]
    np.testing.assert_array_equal(found, [[[3, 1, 2], [5, 5, 2]]])
    x, found = one("ArgMax", "argmax_param { axis: 1 }")
    np.testing.assert_array_equal(found, x.argmax(1)[:, None])


def test_layers_that_move_data() -> None:
    x, found = one("Tile", "tile_param { axis: 2 tiles: 3 }")
    np.testing.assert_array_equal(found, np.tile(x, (1, 1, 3, 1)))
    x, found = one("Upsample", "upsample_param { scale: 2 }")
    np.testing.assert_array_equal(found, x.repeat(2, 2).repeat(2, 3))
    x, found = one("Reshape", "reshape_param { shape { dim: 2 dim: -1 } axis: 1 num_axes: 2 }")
    np.testing.assert_array_equal(found, x.reshape(2, 2, 10, 3))
    x, found = one("Flatten", "flatten_param { axis: 1 end_axis: 2 }")
    np.testing.assert_array_equal(found, x.reshape(2, 20, 3))


def test_interpolation_keeps_corners() -> None:
    x, found = one("Interp", "interp_param { height: 9 width: 5 }", (1, 1, 5, 3))
    assert found.shape == (1, 1, 9, 5)
    np.testing.assert_allclose(found[..., ::2, ::2], x, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[..., 1, 0], (x[..., 0, 0] + x[..., 1, 0]) / 2, rtol=1e-5)
    assert one("Interp", "interp_param { zoom_factor: 2 }", (1, 1, 5, 3))[1].shape == (1, 1, 9, 5)


def test_embedding_checks_its_indices() -> None:
    text = inputs(data=(3,)) + layer("Embed", "embed_param { num_output: 2 input_dim: 4 } " + blobs((4, 2), (2,)))
    table, bias = weights(text)["layer"]
    found = run(text, values={"data": np.float32([3, 0, 1])})[0]
    np.testing.assert_allclose(found, table[[3, 0, 1]] + bias, rtol=1e-5)
    exe = tw.compile(written(text)[0], threads=1)
    with pytest.raises(tw.UserError, match="index 4"):
        exe(np.float32([3, 4, 1]))


def pooled_regions(x: Any, regions: Any, bins: int, scale: float) -> Any:
    """Loops after the definition of the layer."""
    out = np.zeros((len(regions), x.shape[1], bins, bins))
    for row, (image, left, top, right, bottom) in enumerate(regions):
        x0, y0, x1, y1 = (int(np.floor(value * scale + 0.5)) for value in (left, top, right, bottom))
        height, width = max(y1 - y0 + 1, 1) / bins, max(x1 - x0 + 1, 1) / bins
        for i in range(bins):
            for j in range(bins):
                rows = np.clip([np.floor(i * height) + y0, np.ceil((i + 1) * height) + y0], 0, x.shape[2]).astype(int)
                columns = np.clip([np.floor(j * width) + x0, np.ceil((j + 1) * width) + x0], 0, x.shape[3]).astype(int)
                part = x[int(image), :, rows[0] : rows[1], columns[0] : columns[1]]
                out[row, :, i, j] = part.max(axis=(1, 2)) if part.size else 0
    return out


def test_regions_are_pooled() -> None:
    text = inputs(data=(2, 3, 12, 10), rois=(3, 5)) + layer(
        "ROIPooling", "roi_pooling_param { pooled_h: 3 pooled_w: 3 spatial_scale: 0.5 }", "data rois"
    )
    regions = np.float32([[0, 2, 4, 13, 20], [1, 0, 0, 5, 5], [1, 15, 18, 30, 40]])
    values = {**random_inputs(text), "rois": regions}
    np.testing.assert_allclose(run(text, values=values)[0], pooled_regions(values["data"], regions, 3, 0.5), rtol=1e-5)


@pytest.mark.parametrize("exposed", [False, True])
def test_lstm_forgets_where_a_sequence_begins(exposed: bool) -> None:
    steps, batch, features, size = 4, 2, 3, 5
    shapes = {"x": (steps, batch, features), "cont": (steps, batch)}
    if exposed:
        shapes |= {"h0": (1, batch, size), "c0": (1, batch, size)}
    text = inputs(**shapes) + layer(
        "LSTM",
        f"recurrent_param {{ num_output: {size} expose_hidden: {str(exposed).lower()} }} "
        + blobs((4 * size, features), (4 * size,), (4 * size, size)),
        " ".join(shapes),
        "a b c" if exposed else "a",
    )
    values = {**random_inputs(text), "cont": np.float32([[0, 1], [1, 1], [0, 1], [1, 0]])}
    w, bias, recurrent = weights(text)["layer"]
    h, c = (values[name][0].astype(np.float64) if exposed else np.zeros((batch, size)) for name in ("h0", "c0"))
    outputs = []
    for x, mark in zip(values["x"], values["cont"][..., None], strict=True):
        i, f, o, g = np.split(x @ w.T + bias + (mark * h) @ recurrent.T, 4, axis=1)
        c = mark * sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        outputs.append(h)
    expected = [np.stack(outputs), h[None], c[None]] if exposed else [np.stack(outputs)]
    for found, wanted in zip(run(text, values=values), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_rnn_with_what_never_changes() -> None:
    steps, batch, features, size = 3, 2, 3, 4
    text = inputs(x=(steps, batch, features), cont=(steps, batch), fixed=(batch, 2)) + layer(
        "RNN",
        f"recurrent_param {{ num_output: {size} }} "
        + blobs((size, features), (size,), (size, 2), (size, size), (size, size), (size,)),
        "x cont fixed",
    )
    values = {**random_inputs(text), "cont": np.float32([[0, 0], [1, 0], [1, 1]])}
    w, bias, static, recurrent, leaving, last = weights(text)["layer"]
    h = np.zeros((batch, size))
    outputs = []
    for x, mark in zip(values["x"], values["cont"][..., None], strict=True):
        h = np.tanh(x @ w.T + bias + values["fixed"] @ static.T + (mark * h) @ recurrent.T)
        outputs.append(np.tanh(h @ leaving.T + last))
    np.testing.assert_allclose(run(text, values=values)[0], np.stack(outputs), rtol=1e-4, atol=1e-5)


def test_a_detector_that_finds_nothing_says_so() -> None:
    text = LAYERS["detection"].replace("confidence_threshold: 0.3", "confidence_threshold: 2")
    np.testing.assert_array_equal(run(text)[0], np.float32([[[[0, -1, -1, -1, -1, -1, -1]]]]))


def test_boxes_of_each_class() -> None:
    """With boxes of their own, and two images, classes are as two detectors of one class."""
    random = np.random.default_rng(3)
    priors = np.zeros((1, 2, 24), np.float32)
    corners = random.uniform(0, 0.5, (6, 2))
    priors[0, 0] = np.concatenate([corners, corners + 0.4], axis=1).ravel()
    options = "code_type: CORNER variance_encoded_in_target: true nms_param { nms_threshold: 0.3 }"

    def detected(loc: Any, conf: Any, classes: int, more: str) -> Any:
        text = inputs(loc=loc.shape, conf=conf.shape, priors=priors.shape) + layer(
            "DetectionOutput",
            f"detection_output_param {{ num_classes: {classes} {options} {more} }}",
            "loc conf priors",
        )
        return run(text, values={"loc": loc, "conf": conf, "priors": priors})[0][0, 0]

    loc = random.normal(0, 0.05, (2, 6, 2, 4)).astype(np.float32)
    conf = random.uniform(0, 1, (2, 6, 2)).astype(np.float32)
    both = detected(loc.reshape(2, 48), conf.reshape(2, 12), 2, "share_location: false background_label_id: -1")
    rows = []
    for image in range(2):
        for label in range(2):
            own = loc[image : image + 1, :, label].reshape(1, 24), conf[image : image + 1, :, label]
            part = detected(*own, 1, "background_label_id: -1")
            rows += [[image, label, *row[2:]] for row in part]
    np.testing.assert_allclose(both, rows, rtol=1e-5)
