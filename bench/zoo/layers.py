"""Layers that several families of models share, decomposed as exporters decompose them."""

from __future__ import annotations

import math

import numpy as np

from bench.zoo.builder import GraphBuilder


def silu(graph: GraphBuilder, value: str, path: str) -> str:
    """`x * sigmoid(x)`."""
    return graph.node("Mul", [value, graph.node("Sigmoid", [value], path)], path)


def gelu(graph: GraphBuilder, value: str, path: str) -> str:
    """GELU by the error function."""
    error = graph.node("Div", [value, graph.constant(math.sqrt(2.0))], path)
    error = graph.node("Erf", [error], path)
    error = graph.node("Add", [error, graph.constant(1.0)], path)
    product = graph.node("Mul", [value, error], path)
    return graph.node("Mul", [product, graph.constant(0.5)], f"{path}/half")


def gelu_tanh(graph: GraphBuilder, value: str, path: str) -> str:
    """GELU by the hyperbolic tangent, as GPT-2 has it."""
    cube = graph.node("Mul", [graph.node("Pow", [value, graph.constant(3.0)], path), graph.constant(0.044715)], path)
    inner = graph.node("Mul", [graph.node("Add", [value, cube], path), graph.constant(math.sqrt(2 / math.pi))], path)
    outer = graph.node("Add", [graph.node("Tanh", [inner], path), graph.constant(1.0)], path)
    return graph.node("Mul", [graph.node("Mul", [value, graph.constant(0.5)], path), outer], path)


def layer_norm(graph: GraphBuilder, value: str, path: str, width: int) -> str:
    """Layer normalisation of the last axis."""
    scale = graph.weight(f"{path}.weight", graph.uniform((width,), 0.8, 1.2))
    bias = graph.weight(f"{path}.bias", graph.normal((width,), 0.1))
    return graph.node("LayerNormalization", [value, scale, bias], path, axis=-1, epsilon=1e-5)


def attend(graph: GraphBuilder, parts: tuple[str, str, str], head: int, path: str, bias: str | None = None) -> str:
    """Scaled attention of queries, keys and values in heads; `bias` is added to the scores."""
    query, key, content = parts
    key = graph.node("Transpose", [key], f"{path}/key", perm=[0, 1, 3, 2])
    scores = graph.node("MatMul", [query, key], f"{path}/scores")
    scores = graph.node("Mul", [scores, graph.constant(1 / math.sqrt(head))], f"{path}/scores")
    if bias is not None:
        scores = graph.node("Add", [scores, bias], f"{path}/scores")
    weights = graph.node("Softmax", [scores], path, axis=-1)
    return graph.node("MatMul", [weights, content], f"{path}/context")


def causal_bias(tokens: int) -> np.ndarray:
    """What is added to the scores of tokens: the lowest float32 for those still to come."""
    later = np.triu(np.ones((tokens, tokens), bool), k=1)
    return np.where(later, np.finfo(np.float32).min, np.float32(0))[np.newaxis, np.newaxis].astype(np.float32)
