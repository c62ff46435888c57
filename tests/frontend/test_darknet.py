"""Darknet models against plain loops over their layers, written after the definition of each layer in Darknet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.frontend.formats import identify
from tilewright.graph.interpreter import evaluate
from tilewright.support.errors import UnsupportedError, UserError

TINY = (Path(__file__).resolve().parents[1] / "fixtures" / "darknet" / "tiny.cfg").read_text()


def write(folder: Path, text: str, numbers: Any, name: str = "net", header: bytes | None = None) -> Path:
    (folder / f"{name}.cfg").write_text(text)
    head = header if header is not None else np.array([0, 2, 0], "<i4").tobytes() + bytes(8)
    (folder / f"{name}.weights").write_bytes(head + np.asarray(numbers, "<f4").tobytes())
    return folder / f"{name}.cfg"


def random_numbers(count: int) -> Any:
    return np.abs(np.random.default_rng(0).standard_normal(count)).astype(np.float32) * 0.5


def convolved(x: Any, w: Any, stride: int, pad: int, groups: int = 1) -> Any:
    n, _, h, width = x.shape
    padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    size, filters = w.shape[2], w.shape[0]
    rows, columns = (h + 2 * pad - size) // stride + 1, (width + 2 * pad - size) // stride + 1
    out = np.zeros((n, filters, rows, columns))
    for f in range(filters):
        g = f // (filters // groups)
        part = padded[:, g * w.shape[1] : (g + 1) * w.shape[1]]
        for i in range(rows):
            for j in range(columns):
                window = part[:, :, i * stride : i * stride + size, j * stride : j * stride + size]
                out[:, f, i, j] = (window * w[f]).sum(axis=(1, 2, 3))
    return out


def pooled(x: Any, size: int, stride: int) -> Any:
    """Darknet pads with size - 1 in all, half of it before."""
    n, c, h, w = x.shape
    rows, columns, offset = (h - 1) // stride + 1, (w - 1) // stride + 1, (size - 1) // 2
    out = np.full((n, c, rows, columns), -np.inf)
    for i in range(rows):
        for j in range(columns):
            for m in range(size):
                for k in range(size):
                    at = i * stride + m - offset, j * stride + k - offset
                    if 0 <= at[0] < h and 0 <= at[1] < w:
                        out[:, :, i, j] = np.maximum(out[:, :, i, j], x[:, :, at[0], at[1]])
    return out


def reorganized(x: Any, stride: int) -> Any:
    """Index by index, as Darknet's loops have it."""
    n, c, h, w = x.shape
    outer = c // (stride * stride)
    flat, out = x.reshape(n, -1), np.zeros((n, c * h * w))
    for k in range(c):
        for j in range(h):
            for i in range(w):
                place = i + w * (j + h * k)
                w2, h2 = i * stride + (k // outer) % stride, j * stride + (k // outer) // stride
                out[:, place] = flat[:, w2 + w * stride * (h2 + h * stride * (k % outer))]
    return out.reshape(n, c * stride * stride, h // stride, w // stride)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def tiny_outputs(x: Any, numbers: Any) -> list[Any]:
    at = 0

    def take(*shape: int) -> Any:
        nonlocal at
        at += int(np.prod(shape))
        return numbers[at - int(np.prod(shape)) : at].reshape(shape).astype(np.float64)

    def column(values: Any) -> Any:
        return values[None, :, None, None]

    bias, scale, mean, variance = (take(8) for _ in range(4))
    first = convolved(x, take(8, 3, 3, 3), 1, 1)
    first = (first - column(mean)) / (column(np.sqrt(variance)) + 1e-6) * column(scale) + column(bias)
    first = np.where(first > 0, first, 0.1 * first)
    small = pooled(first, 2, 2)
    bias = take(8)
    third = convolved(small, take(8, 4, 1, 1), 1, 0, 2) + column(bias)
    third = third * np.tanh(np.log1p(np.exp(third)))
    added = third + small
    window = pooled(added, 2, 1)
    bias = take(14)
    scores = convolved(window, take(14, 8, 1, 1), 1, 0) + column(bias)
    boxes = scores.reshape(len(x), 2, 7, *scores.shape[2:]).copy()
    boxes[:, :, :2], boxes[:, :, 4:] = sigmoid(boxes[:, :, :2]), sigmoid(boxes[:, :, 4:])
    yolo = boxes.reshape(scores.shape)
    large = added.repeat(2, axis=2).repeat(2, axis=3)
    joined = np.concatenate([large, first], axis=1)[:, 8:]
    moved = reorganized(joined, 2)
    bias = take(7)
    last = convolved(moved, take(7, 32, 3, 3), 2, 1) + column(bias)
    last[:, :2], last[:, 4] = sigmoid(last[:, :2]), sigmoid(last[:, 4])
    powers = np.exp(last[:, 5:])
    last[:, 5:] = powers / powers.sum(axis=1, keepdims=True)
    assert at == len(numbers)
    return [yolo, last]


COUNT = 4 * 8 + 8 * 27 + 8 + 32 + 14 + 14 * 8 + 7 + 7 * 32 * 9


def test_a_detector(tmp_path: Path) -> None:
    numbers = random_numbers(COUNT)
    path = write(tmp_path, TINY, numbers)
    assert identify(path).key == identify(path.with_suffix(".weights")).key == "darknet"
    x = np.random.default_rng(1).standard_normal((2, 3, 8, 12)).astype(np.float32)
    expected = tiny_outputs(x, numbers)
    module = tw.load_model(path)
    assert module.attributes["output_names"] == ("6:yolo", "13:region")
    for found in (evaluate(module, x), tw.compile(path.with_suffix(".weights"), threads=1)(x)):
        assert isinstance(found, tuple)
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


CLASSIFIER = """\
[network]
width=4
height=4
channels=2

[conv]
filters=3
size=3
pad=1
activation={activation}

[dropout]

[avgpool]

[connected]
output=5
batch_normalize=1
activation=linear

[softmax]
"""

FUNCTIONS = {
    "linear": lambda x: x,
    "logistic": sigmoid,
    "relu": lambda x: np.maximum(x, 0),
    "leaky": lambda x: np.where(x > 0, x, 0.1 * x),
    "relie": lambda x: np.where(x > 0, x, 0.01 * x),
    "tanh": np.tanh,
    "elu": lambda x: np.where(x >= 0, x, np.exp(x) - 1),
    "selu": lambda x: np.where(x >= 0, 1.0507 * x, 1.0507 * 1.6732 * (np.exp(x) - 1)),
    "relu6": lambda x: np.clip(x, 0, 6),
    "hardtan": lambda x: np.clip(x, -1, 1),
    "ramp": lambda x: np.maximum(x, 0) + 0.1 * x,
    "loggy": lambda x: 2 * sigmoid(x) - 1,
    "swish": lambda x: x * sigmoid(x),
    "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
}


@pytest.mark.parametrize("activation", FUNCTIONS)
def test_a_classifier(activation: str, tmp_path: Path) -> None:
    numbers = np.random.default_rng(2).standard_normal(3 + 54 + 5 + 15 + 15).astype(np.float32)
    numbers[-5:] = np.abs(numbers[-5:])
    header = np.array([0, 1, 0, 7], "<i4").tobytes()  # an old one: images that were seen in 4 bytes
    path = write(tmp_path, CLASSIFIER.format(activation=activation), numbers, header=header)
    x = np.random.default_rng(3).standard_normal((2, 2, 4, 4)).astype(np.float32)
    values = FUNCTIONS[activation](
        convolved(x, numbers[3:57].reshape(3, 2, 3, 3), 1, 1) + numbers[:3][None, :, None, None]
    )
    bias, weights, rest = numbers[57:62], numbers[62:77].reshape(5, 3), numbers[77:].reshape(3, 5)
    scores = (values.mean(axis=(2, 3)) @ weights.T - rest[1]) / (np.sqrt(rest[2]) + 1e-6) * rest[0] + bias
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    found = evaluate(tw.load_model(path), x)
    np.testing.assert_allclose(found, powers / powers.sum(axis=1, keepdims=True), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("filters=8\nsize=3", "filters=8x\nsize=3", "filters=8x is no whole number"),
        ("filters=8\nsize=3", "filters=-8\nsize=3", "filters=-8 makes no sense"),
        ("activation=mish", "activation=mine", "the activation function 'mine'"),
        ("[upsample]", "[lstm]", r"layers of the kind \[lstm\]"),
        ("from=-2", "from=-9", "there is no layer -9"),
        ("from=-2", "from=-3", "which differ"),
        ("groups=2", "groups=3", "3 groups do not divide"),
        ("classes=2\nnum=4", "classes=3\nnum=4", "14 channels are not 2 boxes of 8"),
        ("[net]", "net", "is no option"),
        ("stride=2\npadding=1", "stride=2\npadding=1\nsize=2", "ends before|more than the layers take"),
        ("filters=7", "filters=6", "6 channels are not 1 boxes|more than"),
        ("[reorg]\nstride=2", "[reorg]\nstride=5", "cannot be taken apart"),
    ],
)
def test_what_makes_no_sense_is_named(old: str, new: str, said: str, tmp_path: Path) -> None:
    assert old in TINY
    path = write(tmp_path, TINY.replace(old, new, 1), random_numbers(COUNT))
    with pytest.raises(UserError, match=said) as found:
        tw.load_model(path, format="darknet")
    assert ".cfg" in str(found.value) or ".weights" in str(found.value)


def test_files_that_do_not_belong_together(tmp_path: Path) -> None:
    path = write(tmp_path, TINY, random_numbers(COUNT - 1))
    with pytest.raises(UserError, match="ends before the weights of a layer") as found:
        tw.load_model(path)
    assert "[convolutional], line" in str(found.value.where)
    with pytest.raises(UserError, match="1 numbers more than the layers take"):
        tw.load_model(write(tmp_path, TINY, random_numbers(COUNT + 1)))
    path.with_suffix(".weights").unlink()
    with pytest.raises(UserError, match="cannot read") as found:
        tw.load_model(path)
    assert "two files" in str(found.value.hint)
    with pytest.raises(UserError, match="two files"):
        tw.load_model(TINY.encode())
    with pytest.raises(UnsupportedError, match="reverse"):
        tw.load_model(write(tmp_path, TINY.replace("[reorg]", "[reorg]\nreverse=1"), random_numbers(COUNT)))
