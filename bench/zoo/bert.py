"""BERT encoders at 128 tokens: the base model and a small one of 6 layers and 384, as exporters decompose them.

The dynamic form leaves batch and length open and computes its shapes from those of its inputs, as exporters write it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx

from bench.zoo.builder import GraphBuilder
from bench.zoo.layers import gelu

TOKENS = 128
VOCABULARY = 30_522
POSITIONS = 512
# What exporters add to the scores of masked tokens: the lowest float32.
MASKED = float(np.finfo(np.float32).min)


@dataclass(frozen=True, slots=True)
class BertShape:
    """The numbers that make a BERT; `has_layer_norm_op` chooses the operator over its decomposition."""

    layers: int
    width: int
    heads: int
    inner: int
    has_layer_norm_op: bool
    vocabulary: int = VOCABULARY


def bert_base(seed: int) -> onnx.ModelProto:
    """BERT-base with `LayerNormalization` nodes, as exports from opset 17 on have."""
    return _encoder("bert_base", seed, BertShape(12, 768, 12, 3072, has_layer_norm_op=True))


def bert_small(seed: int) -> onnx.ModelProto:
    """A BERT of MiniLM's size, with layer normalisation decomposed as older exports have."""
    return _encoder("bert_small", seed, BertShape(6, 384, 12, 1536, has_layer_norm_op=False))


def bert_base_dynamic(seed: int) -> onnx.ModelProto:
    """BERT-base of any batch and length: the inputs have the dimensions `batch` and `sequence`."""
    return dynamic_bert("bert_base_dynamic", seed, BertShape(12, 768, 12, 3072, has_layer_norm_op=True))


def dynamic_bert(name: str, seed: int, shape: BertShape) -> onnx.ModelProto:
    """A BERT of any batch and length."""
    return _encoder(name, seed, shape, ("batch", "sequence"))


def _encoder(
    name: str, seed: int, shape: BertShape, sizes: tuple[int | str, int | str] = (1, TOKENS)
) -> onnx.ModelProto:
    graph = GraphBuilder(name, seed)
    tokens = graph.input("input_ids", sizes, "int64")
    attention = graph.input("attention_mask", sizes, "int64")
    segments = graph.input("token_type_ids", sizes, "int64")
    mask = _additive_mask(graph, attention)
    value = _embeddings(graph, tokens, segments, shape, sizes)
    for layer in range(shape.layers):
        value = _layer(graph, value, mask, f"encoder/layer.{layer}", shape, sizes)
    graph.output(value, "last_hidden_state", (*sizes, shape.width))
    first = graph.node("Gather", [value, graph.constant(np.array(0))], "pooler", axis=1)
    pooled = graph.node("Tanh", [graph.linear(first, "pooler/dense", (shape.width, shape.width))], "pooler/activation")
    graph.output(pooled, "pooler_output", (sizes[0], shape.width))
    return graph.finish()


def _size_of(graph: GraphBuilder, value: str, axis: int, path: str) -> str:
    """A dimension of a value as exporters compute it: a list of one number."""
    found = graph.node("Gather", [graph.node("Shape", [value], path), graph.constant(np.array(axis))], path, axis=0)
    return graph.node("Unsqueeze", [found, graph.constant(np.array([0]))], path)


def _target(graph: GraphBuilder, value: str, rest: list[int], sizes: tuple[int | str, int | str], path: str) -> str:
    """The shape (batch, length, ...) to reshape to: constant, or computed from the shape of a value."""
    if all(isinstance(size, int) for size in sizes):
        return graph.constant(np.array([*sizes, *rest]))
    parts = [_size_of(graph, value, axis, f"{path}/size_{axis}") for axis in range(2)]
    parts.append(graph.constant(np.array(rest)))
    return graph.node("Concat", parts, path, axis=0)


def _additive_mask(graph: GraphBuilder, attention: str) -> str:
    """0 where a token counts and the lowest float where it does not, shaped to be added to the scores."""
    mask = graph.node("Unsqueeze", [attention, graph.constant(np.array([1, 2]))], "mask")
    mask = graph.node("Cast", [mask], "mask", to=onnx.TensorProto.FLOAT)
    mask = graph.node("Sub", [graph.constant(1.0), mask], "mask")
    return graph.node("Mul", [mask, graph.constant(MASKED)], "mask")


def _embeddings(
    graph: GraphBuilder, tokens: str, segments: str, shape: BertShape, sizes: tuple[int | str, int | str]
) -> str:
    path = "embeddings"
    words = graph.weight(f"{path}.word_embeddings.weight", graph.normal((shape.vocabulary, shape.width), 1.0))
    kinds = graph.weight(f"{path}.token_type_embeddings.weight", graph.normal((2, shape.width), 0.5))
    places = graph.weight(f"{path}.position_embeddings.weight", graph.normal((POSITIONS, shape.width), 0.5))
    if isinstance(sizes[1], int):
        positions = graph.constant(np.arange(sizes[1])[np.newaxis])
    else:
        every = graph.constant(np.arange(POSITIONS)[np.newaxis])
        length = _size_of(graph, tokens, 1, f"{path}/length")
        bounds = [graph.constant(np.array([0])), length, graph.constant(np.array([1]))]
        positions = graph.node("Slice", [every, *bounds], f"{path}/positions")
    value = graph.node("Gather", [words, tokens], f"{path}/word_embeddings", axis=0)
    kind = graph.node("Gather", [kinds, segments], f"{path}/token_type_embeddings", axis=0)
    place = graph.node("Gather", [places, positions], f"{path}/position_embeddings", axis=0)
    value = graph.node("Add", [value, kind], path)
    value = graph.node("Add", [value, place], f"{path}/positions")
    return _layer_norm(graph, value, f"{path}/LayerNorm", shape)


def _layer(
    graph: GraphBuilder, value: str, mask: str, path: str, shape: BertShape, sizes: tuple[int | str, int | str]
) -> str:
    context = _self_attention(graph, value, mask, f"{path}/attention/self", shape, sizes)
    projected = graph.dense(context, f"{path}/attention/output/dense", (shape.width, shape.width))
    value = graph.node("Add", [projected, value], f"{path}/attention/output")
    value = _layer_norm(graph, value, f"{path}/attention/output/LayerNorm", shape)
    inner = graph.dense(value, f"{path}/intermediate/dense", (shape.width, shape.inner))
    inner = gelu(graph, inner, f"{path}/intermediate/activation")
    # GELU keeps about 0.43 of the variance of its input: scale that back.
    outer = graph.dense(inner, f"{path}/output/dense", (shape.inner, shape.width), std=1.5 / math.sqrt(shape.inner))
    value = graph.node("Add", [outer, value], f"{path}/output")
    return _layer_norm(graph, value, f"{path}/output/LayerNorm", shape)


def _self_attention(
    graph: GraphBuilder, value: str, mask: str, path: str, shape: BertShape, sizes: tuple[int | str, int | str]
) -> str:
    head = shape.width // shape.heads
    split = _target(graph, value, [shape.heads, head], sizes, f"{path}/heads")

    def heads(part: str, order: list[int]) -> str:
        projected = graph.dense(value, f"{path}/{part}", (shape.width, shape.width))
        projected = graph.node("Reshape", [projected, split], f"{path}/{part}")
        return graph.node("Transpose", [projected], f"{path}/{part}", perm=order)

    query, key, content = heads("query", [0, 2, 1, 3]), heads("key", [0, 2, 3, 1]), heads("value", [0, 2, 1, 3])
    scores = graph.node("MatMul", [query, key], f"{path}/scores")
    scores = graph.node("Div", [scores, graph.constant(math.sqrt(head))], f"{path}/scores")
    scores = graph.node("Add", [scores, mask], f"{path}/scores")
    weights = graph.node("Softmax", [scores], path, axis=-1)
    context = graph.node("MatMul", [weights, content], f"{path}/context")
    context = graph.node("Transpose", [context], f"{path}/context", perm=[0, 2, 1, 3])
    joined = _target(graph, context, [shape.width], sizes, f"{path}/joined")
    return graph.node("Reshape", [context, joined], f"{path}/context")


def _layer_norm(graph: GraphBuilder, value: str, path: str, shape: BertShape) -> str:
    scale = graph.weight(f"{path}.weight", graph.uniform((shape.width,), 0.8, 1.2))
    bias = graph.weight(f"{path}.bias", graph.normal((shape.width,), 0.1))
    if shape.has_layer_norm_op:
        return graph.node("LayerNormalization", [value, scale, bias], path, axis=-1, epsilon=1e-12)
    mean = graph.node("ReduceMean", [value], path, axes=[-1], keepdims=1)
    centred = graph.node("Sub", [value, mean], path)
    square = graph.node("Pow", [centred, graph.constant(2.0)], path)
    variance = graph.node("ReduceMean", [square], f"{path}/variance", axes=[-1], keepdims=1)
    variance = graph.node("Add", [variance, graph.constant(1e-12)], f"{path}/variance")
    deviation = graph.node("Sqrt", [variance], f"{path}/variance")
    value = graph.node("Div", [centred, deviation], path)
    value = graph.node("Mul", [value, scale], path)
    return graph.node("Add", [value, bias], path)
