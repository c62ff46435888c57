"""Transformers besides BERT: ViT-S/16, a GPT-2 that reads a prompt or decodes a token, a stack of Llama's blocks."""

from __future__ import annotations

import math

import numpy as np
import onnx

from bench.zoo.builder import GraphBuilder
from bench.zoo.layers import attend, causal_bias, gelu, gelu_tanh, layer_norm, silu

GPT_LAYERS, GPT_WIDTH, GPT_HEADS, GPT_VOCABULARY = 6, 512, 8, 8000
PROMPT = 64
"""Tokens of a prompt, and of the cache of keys and values when the next token is decoded."""
LLAMA_LAYERS, LLAMA_WIDTH, LLAMA_HEADS, LLAMA_GROUPS, LLAMA_INNER = 6, 512, 8, 2, 1376


def vit_s(seed: int) -> onnx.ModelProto:
    """ViT-S/16 at 224x224."""
    return vit("vit_s", seed, layers=12, width=384, heads=6)


def vit_b(seed: int) -> onnx.ModelProto:
    """ViT-B/16 at 224x224."""
    return vit("vit_b", seed, layers=12, width=768, heads=12)


def vit(name: str, seed: int, layers: int, width: int, heads: int, size: int = 224) -> onnx.ModelProto:
    """A vision transformer on patches of 16 x 16 with a class token."""
    graph = GraphBuilder(name, seed)
    patches, head = (size // 16) ** 2, width // heads
    value = graph.input("input", (1, 3, size, size))
    value = graph.conv(value, "patch_embed/proj", (3, width), 16, stride=16, bias=True, gain=1.0)
    value = graph.reshape(value, "patch_embed", (1, width, patches))
    value = graph.node("Transpose", [value], "patch_embed", perm=[0, 2, 1])
    token = graph.weight("cls_token", graph.normal((1, 1, width), 1.0))
    value = graph.node("Concat", [token, value], "cls", axis=1)
    places = graph.weight("pos_embed", graph.normal((1, patches + 1, width), 0.5))
    value = graph.node("Add", [value, places], "pos")
    for layer in range(layers):
        path = f"blocks.{layer}"
        joint = layer_norm(graph, value, f"{path}/norm1", width)
        joint = graph.dense(joint, f"{path}/attn/qkv", (width, 3 * width))
        joint = graph.reshape(joint, f"{path}/attn", (1, patches + 1, 3, heads, head))
        joint = graph.node("Transpose", [joint], f"{path}/attn", perm=[2, 0, 3, 1, 4])
        parts = [
            graph.node("Gather", [joint, graph.constant(np.array(part))], f"{path}/attn/part{part}", axis=0)
            for part in range(3)
        ]
        context = attend(graph, (parts[0], parts[1], parts[2]), head, f"{path}/attn")
        context = graph.node("Transpose", [context], f"{path}/attn/out", perm=[0, 2, 1, 3])
        context = graph.reshape(context, f"{path}/attn/out", (1, patches + 1, width))
        branch = graph.dense(context, f"{path}/attn/proj", (width, width))
        value = graph.node("Add", [value, branch], f"{path}/add1")
        branch = layer_norm(graph, value, f"{path}/norm2", width)
        branch = gelu(graph, graph.dense(branch, f"{path}/mlp/fc1", (width, 4 * width)), f"{path}/mlp/act")
        branch = graph.dense(branch, f"{path}/mlp/fc2", (4 * width, width))
        value = graph.node("Add", [value, branch], f"{path}/add2")
    value = layer_norm(graph, value, "norm", width)
    value = graph.node("Gather", [value, graph.constant(np.array(0))], "pool", axis=1)
    graph.output(graph.linear(value, "head", (width, 1000)), "output", (1, 1000))
    return graph.finish()


def gpt_prompt(seed: int) -> onnx.ModelProto:
    """GPT-2's blocks on a prompt: logits of each token, and the keys and values to go on from."""
    return gpt("gpt_prompt", seed, tokens=PROMPT, past=0)


def gpt_step(seed: int) -> onnx.ModelProto:
    """The same model decoding one token after a prompt, whose keys and values are given."""
    return gpt("gpt_step", seed, tokens=1, past=PROMPT)


def gpt(
    name: str, seed: int, tokens: int, past: int, layers: int = GPT_LAYERS, vocabulary: int = GPT_VOCABULARY
) -> onnx.ModelProto:
    """GPT-2's blocks on `tokens` new tokens after `past` old ones."""
    graph = GraphBuilder(name, seed)
    width, heads = GPT_WIDTH, GPT_HEADS
    head = width // heads
    ids = graph.input("input_ids", (1, tokens), "int64")
    places = graph.input("position_ids", (1, tokens), "int64")
    words = graph.weight("wte.weight", graph.normal((vocabulary, width), 1.0))
    value = graph.node("Gather", [words, ids], "wte", axis=0)
    table = graph.weight("wpe.weight", graph.normal((1024, width), 0.5))
    value = graph.node("Add", [value, graph.node("Gather", [table, places], "wpe", axis=0)], "embedding")
    bias = graph.constant(causal_bias(tokens)) if tokens > 1 else None
    present: list[tuple[str, str]] = []
    for layer in range(layers):
        path = f"h.{layer}"
        joint = layer_norm(graph, value, f"{path}/ln_1", width)
        joint = _gemm(graph, joint, f"{path}/attn/c_attn", tokens, (width, 3 * width))
        parts = []
        for part, kind in zip(graph.split(joint, f"{path}/attn", [width] * 3, axis=2), "qkv", strict=True):
            split = graph.reshape(part, f"{path}/attn/{kind}", (1, tokens, heads, head))
            split = graph.node("Transpose", [split], f"{path}/attn/{kind}", perm=[0, 2, 1, 3])
            if past and kind != "q":
                old = graph.input(f"past_{kind}_{layer}", (1, heads, past, head))
                split = graph.node("Concat", [old, split], f"{path}/attn/{kind}/past", axis=2)
            parts.append(split)
        present.append((parts[1], parts[2]))
        context = attend(graph, (parts[0], parts[1], parts[2]), head, f"{path}/attn", bias)
        context = graph.node("Transpose", [context], f"{path}/attn/out", perm=[0, 2, 1, 3])
        context = graph.reshape(context, f"{path}/attn/out", (1, tokens, width))
        branch = _gemm(graph, context, f"{path}/attn/c_proj", tokens, (width, width))
        value = graph.node("Add", [branch, value], f"{path}/add_1")
        branch = layer_norm(graph, value, f"{path}/ln_2", width)
        branch = _gemm(graph, branch, f"{path}/mlp/c_fc", tokens, (width, 4 * width))
        branch = gelu_tanh(graph, branch, f"{path}/mlp/act")
        branch = _gemm(graph, branch, f"{path}/mlp/c_proj", tokens, (4 * width, width))
        value = graph.node("Add", [value, branch], f"{path}/add_2")
    value = layer_norm(graph, value, "ln_f", width)
    head_weight = graph.weight("lm_head.weight", graph.normal((width, vocabulary), 1 / math.sqrt(width)))
    graph.output(graph.node("MatMul", [value, head_weight], "lm_head"), "logits", (1, tokens, vocabulary))
    for layer, (key, content) in enumerate(present):
        graph.output(key, f"present_k_{layer}", (1, heads, past + tokens, head))
        graph.output(content, f"present_v_{layer}", (1, heads, past + tokens, head))
    return graph.finish()


def _gemm(graph: GraphBuilder, value: str, path: str, tokens: int, features: tuple[int, int]) -> str:
    """GPT-2's `Conv1D`: the tokens as rows of a `Gemm`."""
    weight = graph.weight(f"{path}.weight", graph.normal(features, 1 / math.sqrt(features[0])))
    bias = graph.weight(f"{path}.bias", graph.normal((features[1],), 0.1))
    rows = graph.reshape(value, f"{path}/rows", (-1, features[0]))
    product = graph.node("Gemm", [rows, weight, bias], path, alpha=1.0, beta=1.0)
    return graph.reshape(product, f"{path}/tokens", (1, tokens, features[1]))


def llama_prompt(seed: int) -> onnx.ModelProto:
    """Llama's blocks on a prompt: RMS normalisation, rotary positions, grouped-query attention, SwiGLU."""
    return llama("llama_prompt", seed, tokens=PROMPT, past=0)


def llama_step(seed: int) -> onnx.ModelProto:
    """The same blocks decoding one token after a prompt, whose keys and values are given."""
    return llama("llama_step", seed, tokens=1, past=PROMPT)


def llama(name: str, seed: int, tokens: int, past: int, layers: int = LLAMA_LAYERS) -> onnx.ModelProto:
    """Llama's blocks on `tokens` new tokens after `past` old ones."""
    graph = GraphBuilder(name, seed)
    width, heads, groups, inner = LLAMA_WIDTH, LLAMA_HEADS, LLAMA_GROUPS, LLAMA_INNER
    head = width // heads
    value = graph.input("embeddings", (1, tokens, width))
    places = graph.input("position_ids", (1, tokens), "int64")
    cosine, sine = _rotary_tables(graph, places, head)
    bias = graph.constant(causal_bias(tokens)) if tokens > 1 else None
    present: list[tuple[str, str]] = []
    for layer in range(layers):
        path = f"layers.{layer}"
        normed = _rms_norm(graph, value, f"{path}/input_layernorm", width)

        def split(kind: str, count: int, path: str = path, normed: str = normed) -> str:
            projected = _bare(graph, normed, f"{path}/self_attn/{kind}_proj", (width, count * head))
            projected = graph.reshape(projected, f"{path}/self_attn/{kind}", (1, tokens, count, head))
            return graph.node("Transpose", [projected], f"{path}/self_attn/{kind}", perm=[0, 2, 1, 3])

        query = _rotate(graph, split("q", heads), cosine, sine, f"{path}/self_attn/q/rotary", head)
        key = _rotate(graph, split("k", groups), cosine, sine, f"{path}/self_attn/k/rotary", head)
        content = split("v", groups)
        if past:
            old = graph.input(f"past_k_{layer}", (1, groups, past, head))
            key = graph.node("Concat", [old, key], f"{path}/self_attn/k/past", axis=2)
            old = graph.input(f"past_v_{layer}", (1, groups, past, head))
            content = graph.node("Concat", [old, content], f"{path}/self_attn/v/past", axis=2)
        present.append((key, content))
        key = _repeat(graph, key, f"{path}/self_attn/k/repeat", heads, groups, past + tokens, head)
        content = _repeat(graph, content, f"{path}/self_attn/v/repeat", heads, groups, past + tokens, head)
        context = attend(graph, (query, key, content), head, f"{path}/self_attn", bias)
        context = graph.node("Transpose", [context], f"{path}/self_attn/out", perm=[0, 2, 1, 3])
        context = graph.reshape(context, f"{path}/self_attn/out", (1, tokens, width))
        branch = _bare(graph, context, f"{path}/self_attn/o_proj", (width, width))
        value = graph.node("Add", [value, branch], f"{path}/add_1")
        normed = _rms_norm(graph, value, f"{path}/post_attention_layernorm", width)
        gate = silu(graph, _bare(graph, normed, f"{path}/mlp/gate_proj", (width, inner)), f"{path}/mlp/act_fn")
        branch = graph.node("Mul", [gate, _bare(graph, normed, f"{path}/mlp/up_proj", (width, inner))], f"{path}/mlp")
        branch = _bare(graph, branch, f"{path}/mlp/down_proj", (inner, width))
        value = graph.node("Add", [value, branch], f"{path}/add_2")
    graph.output(_rms_norm(graph, value, "norm", width), "hidden", (1, tokens, width))
    for layer, (key, content) in enumerate(present):
        graph.output(key, f"present_k_{layer}", (1, groups, past + tokens, head))
        graph.output(content, f"present_v_{layer}", (1, groups, past + tokens, head))
    return graph.finish()


def _bare(graph: GraphBuilder, value: str, path: str, features: tuple[int, int]) -> str:
    """A fully connected layer without a bias."""
    weight = graph.weight(f"{path}.weight", graph.normal(features, 1 / math.sqrt(features[0])))
    return graph.node("MatMul", [value, weight], path)


def _rms_norm(graph: GraphBuilder, value: str, path: str, width: int) -> str:
    square = graph.node("Pow", [value, graph.constant(2.0)], path)
    mean = graph.node("ReduceMean", [square], path, axes=[-1], keepdims=1)
    root = graph.node("Sqrt", [graph.node("Add", [mean, graph.constant(1e-5)], path)], path)
    inverse = graph.node("Div", [graph.constant(1.0), root], path)
    scale = graph.weight(f"{path}.weight", graph.uniform((width,), 0.8, 1.2))
    return graph.node("Mul", [scale, graph.node("Mul", [value, inverse], path)], path)


def _rotary_tables(graph: GraphBuilder, places: str, head: int) -> tuple[str, str]:
    """Cosines and sines of each position, computed from the positions as exporters write it."""
    frequencies = (10000.0 ** (-np.arange(0, head, 2) / head)).astype(np.float32)
    place = graph.node("Cast", [places], "rotary", to=onnx.TensorProto.FLOAT)
    place = graph.node("Unsqueeze", [place, graph.constant([1])], "rotary/row")
    column = graph.constant(frequencies[np.newaxis, :, np.newaxis])
    angles = graph.node("MatMul", [column, place], "rotary")
    angles = graph.node("Transpose", [angles], "rotary", perm=[0, 2, 1])
    angles = graph.node("Concat", [angles, angles], "rotary", axis=-1)
    angles = graph.node("Unsqueeze", [angles, graph.constant([1])], "rotary/heads")
    return graph.node("Cos", [angles], "rotary"), graph.node("Sin", [angles], "rotary")


def _rotate(graph: GraphBuilder, value: str, cosine: str, sine: str, path: str, head: int) -> str:
    def part(start: int, stop: int) -> str:
        bounds = [graph.constant([number]) for number in (start, stop, 3)]
        return graph.node("Slice", [value, *bounds], path)

    turned = graph.node("Concat", [graph.node("Neg", [part(head // 2, head)], path), part(0, head // 2)], path, axis=-1)
    straight = graph.node("Mul", [value, cosine], path)
    return graph.node("Add", [straight, graph.node("Mul", [turned, sine], path)], path)


def _repeat(graph: GraphBuilder, value: str, path: str, heads: int, groups: int, tokens: int, head: int) -> str:
    """Each group's keys or values for all of its heads."""
    value = graph.node("Unsqueeze", [value, graph.constant([2])], path)
    value = graph.node("Expand", [value, graph.constant([1, groups, heads // groups, tokens, head])], path)
    return graph.reshape(value, path, (1, heads, tokens, head))
