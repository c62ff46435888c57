"""Small models under the names that the pages of the documentation use, so that what they show runs in seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from bench.zoo.builder import GraphBuilder

_IMAGE = (1, 3, 32, 32)
_WORDS, _WIDTH = 100, 32


def save_image_model(path: str | Path, name: str = "input") -> np.ndarray:
    """Write a classifier of images with two convolutions and a residual; the answer is an image for its input."""
    graph = GraphBuilder("resnet18", seed=0)
    first = graph.conv(graph.input(name, _IMAGE), "conv1", (3, 16), 3, stride=2, padding=1)
    first = graph.node("Relu", [first], "relu1")
    value = graph.node("Add", [first, graph.conv(first, "conv2", (16, 16), 3, padding=1)], "add")
    value = graph.node("Flatten", [graph.node("GlobalAveragePool", [value], "pool")], "flatten")
    graph.output(graph.linear(value, "fc", (16, 10)), "logits", (1, 10))
    onnx.save(graph.finish(), path)
    return graph.random.random(_IMAGE, np.float32)


def save_text_model(path: str | Path) -> None:
    """Write a model of `input_ids`, in any number and batch."""
    graph = GraphBuilder("bert", seed=0)
    words = graph.input("input_ids", ("batch", "sequence"), "int64")
    table = graph.weight("embedding", graph.normal((_WORDS, _WIDTH), 1.0))
    value = graph.dense(graph.node("Gather", [table, words], "embed"), "dense", (_WIDTH, _WIDTH))
    scores = graph.node("Softmax", [value], "softmax", axis=-1)
    graph.output(scores, "scores", ("batch", "sequence", _WIDTH))
    onnx.save(graph.finish(), path)
