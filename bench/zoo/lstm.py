"""The LSTM language model: two layers of 650, a vocabulary of 10,000, run for one step or for 35."""

from __future__ import annotations

import math

import numpy as np
import onnx

from bench.zoo.builder import GraphBuilder

HIDDEN = 650
LAYERS = 2
VOCABULARY = 10_000


def lstm_lm_1(seed: int) -> onnx.ModelProto:
    """One step of the language model: the case of text generation."""
    return _language_model("lstm_lm_1", seed, steps=1)


def lstm_lm_35(seed: int) -> onnx.ModelProto:
    """Thirty-five steps of the language model: the case of scoring a text."""
    return _language_model("lstm_lm_35", seed, steps=35)


def _language_model(name: str, seed: int, steps: int) -> onnx.ModelProto:
    graph = GraphBuilder(name, seed)
    tokens = graph.input("tokens", (steps, 1), "int64")
    hidden = graph.input("h0", (LAYERS, 1, HIDDEN))
    cell = graph.input("c0", (LAYERS, 1, HIDDEN))
    embedding = graph.weight("encoder.weight", graph.normal((VOCABULARY, HIDDEN), 1.0))
    value = graph.node("Gather", [embedding, tokens], "encoder", axis=0)
    last_hidden, last_cell = [], []
    for layer in range(LAYERS):
        path = f"rnn/layer{layer}"
        value, state, memory = _layer(
            graph, value, path, _slice(graph, hidden, f"{path}/h0", layer), _slice(graph, cell, f"{path}/c0", layer)
        )
        last_hidden.append(state)
        last_cell.append(memory)
    logits = graph.dense(value, "decoder", (HIDDEN, VOCABULARY), std=3 / math.sqrt(HIDDEN))
    graph.output(logits, "logits", (steps, 1, VOCABULARY))
    graph.output(graph.node("Concat", last_hidden, "rnn/h", axis=0), "hn", (LAYERS, 1, HIDDEN))
    graph.output(graph.node("Concat", last_cell, "rnn/c", axis=0), "cn", (LAYERS, 1, HIDDEN))
    return graph.finish()


def _slice(graph: GraphBuilder, value: str, path: str, layer: int) -> str:
    bounds = [graph.constant(np.array([number])) for number in (layer, layer + 1, 0)]
    return graph.node("Slice", [value, *bounds], path)


def _layer(graph: GraphBuilder, value: str, path: str, hidden: str, cell: str) -> tuple[str, str, str]:
    # Twice the usual range: with a random start the usual one leaves the gates nearly constant.
    bound = 2 / math.sqrt(HIDDEN)
    weights = [
        graph.weight(f"{path}.weight_ih", graph.uniform((1, 4 * HIDDEN, HIDDEN), -bound, bound)),
        graph.weight(f"{path}.weight_hh", graph.uniform((1, 4 * HIDDEN, HIDDEN), -bound, bound)),
        graph.weight(f"{path}.bias", graph.uniform((1, 8 * HIDDEN), -bound, bound)),
    ]
    first = graph.node("LSTM", [value, *weights, "", hidden, cell], path, outputs=3, hidden_size=HIDDEN)
    stem = first.removesuffix("0")
    value = graph.node("Squeeze", [first, graph.constant(np.array([1]))], f"{path}/squeeze")
    return value, f"{stem}1", f"{stem}2"
