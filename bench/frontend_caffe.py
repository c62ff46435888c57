"""The suite of Caffe in `bench.frontends`: each layer, and a network, against OpenCV's reader of Caffe nets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from bench.caffe_cases import LAYERS, NETWORK, random_inputs, written
from bench.frontend_case import Case
from tilewright.cli import own_runtimes


def expected(content: bytes, text: str, inputs: Mapping[str, Any]) -> list[Any]:
    """What OpenCV gives for the outputs of a net, by name."""
    import cv2

    net = own_runtimes.opened_caffe(cv2, text.encode(), content)
    for name, value in inputs.items():
        net.setInput(value, name)
    names = sorted(net.getUnconnectedOutLayersNames())
    return [np.asarray(value) for value in net.forward(names)]


def cases() -> Iterator[Case]:
    """Every layer that OpenCV knows."""
    for name, text in (*LAYERS.items(), ("network", NETWORK)):
        yield Case(name, partial(_make, text), tolerance=1e-4)


def _make(text: str) -> tuple[bytes, Mapping[str, Any], Sequence[Any]]:
    content, plain = written(text)
    values = random_inputs(text)
    return content, values, expected(content, plain, values)
