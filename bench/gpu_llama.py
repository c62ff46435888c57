"""A Llama-like stack for `bench.gpu`: 16 layers of width 2048, 32 heads of queries that share 8 of keys and values.

    python3 -m bench.gpu --models llama_prefill,llama_decode --precisions fp16 --batch 1

`llama_prefill` takes 512 hidden states and fills the first places of the caches; `llama_decode` takes one, writes it
to place 1,023 and attends to 1,024. Caches are buffers of a torch module, written by `index_copy_`: state of our
executable, the memory of torch's CUDA graph. Projections are joined as inference engines have them (one for queries,
keys and values, one for both halves of SwiGLU). Torch runs with heads shared by its operator and, as another peer,
with keys and values repeated, which opens more of its kernels to it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import tilewright as tw
from tilewright.frontend.torch import from_torch

TITLES = {"llama_prefill": "Llama stack, prefill of 512", "llama_decode": "Llama stack, decode of 1,024"}


@dataclass(frozen=True)
class Config:
    """The sizes of a stack."""

    layers: int = 16
    width: int = 2048
    heads: int = 32
    shared: int = 8
    """Heads of keys and values."""
    inner: int = 8192
    capacity: int = 1024
    """Places of the caches."""
    prompt: int = 512

    @property
    def size(self) -> int:
        """Elements of a head."""
        return self.width // self.heads


class Layer(nn.Module):
    """Attention over a cache and SwiGLU, each with a residual and an RMS normalisation."""

    def __init__(self, config: Config, is_prefill: bool, repeats: bool) -> None:
        super().__init__()
        self.config, self.is_prefill, self.repeats = config, is_prefill, repeats
        width, size = config.width, config.size
        self.before_attention, self.before_inner = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.projection = nn.Linear(width, (config.heads + 2 * config.shared) * size, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.gate_up = nn.Linear(width, 2 * config.inner, bias=False)
        self.down = nn.Linear(config.inner, width, bias=False)
        shape = (1, config.shared, config.capacity, size)
        self.register_buffer("keys", torch.zeros(shape))
        self.register_buffer("values", torch.zeros(shape))

    def forward(self, x: Any, places: Any, rotation: tuple[Any, Any], seen: Any) -> Any:
        """The hidden states after the layer."""
        config, count = self.config, x.shape[1]
        parts = self.projection(self.before_attention(x)).view(1, count, -1, config.size)
        heads = parts.split((config.heads, config.shared, config.shared), dim=2)
        query, key, value = (part.transpose(1, 2) for part in heads)
        query, key = _rotated(query, *rotation), _rotated(key, *rotation)
        self.keys.index_copy_(2, places, key)
        self.values.index_copy_(2, places, value)
        if not self.is_prefill:
            key, value = self.keys, self.values
        if self.repeats:
            often = config.heads // config.shared
            key, value = (item.repeat_interleave(often, dim=1) for item in (key, value))
        mixed = F.scaled_dot_product_attention(
            query, key, value, attn_mask=seen, is_causal=self.is_prefill, enable_gqa=not self.repeats
        )
        x = x + self.output(mixed.transpose(1, 2).reshape(1, count, -1))
        gate, up = self.gate_up(self.before_inner(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


def _rotated(x: Any, cosine: Any, sine: Any) -> Any:
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine


class Stack(nn.Module):
    """Layers and the last normalisation: hidden states and their places in, hidden states out."""

    def __init__(self, config: Config, is_prefill: bool, repeats: bool = False) -> None:
        super().__init__()
        self.config, self.is_prefill = config, is_prefill
        self.layers = nn.ModuleList(Layer(config, is_prefill, repeats) for _ in range(config.layers))
        self.last = nn.RMSNorm(config.width, eps=1e-5)
        halves = torch.arange(0, config.size, 2) / config.size
        angles = torch.outer(torch.arange(config.capacity).float(), 10_000.0**-halves).repeat(1, 2)
        self.register_buffer("cosine", angles.cos())
        self.register_buffer("sine", angles.sin())

    def forward(self, x: Any, places: Any) -> Any:
        """The hidden states after all layers."""
        rotation = self.cosine.index_select(0, places), self.sine.index_select(0, places)
        steps = torch.arange(self.config.capacity, device=places.device)
        seen = None if self.is_prefill else steps <= places[:, None]
        for layer in self.layers:
            x = layer(x, places, rotation, seen)
        return self.last(x)


def stack(name: str, config: Config, seed: int = 0, repeats: bool = False) -> Stack:
    """A stack with seeded weights, and caches that are filled where its decode step reads them."""
    torch.manual_seed(seed)
    made = Stack(config, name == "llama_prefill", repeats).eval()
    for parameter in made.parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    if name == "llama_decode":
        for layer in made.layers:
            for cache in (layer.keys, layer.values):
                cache[:, :, : config.capacity - 1] = torch.randn_like(cache[:, :, : config.capacity - 1])
    return made


def inputs(name: str, config: Config, seed: int = 0) -> tuple[Any, Any]:
    """Seeded hidden states, and their places."""
    made = torch.Generator().manual_seed(seed)
    if name == "llama_prefill":
        return torch.randn(1, config.prompt, config.width, generator=made), torch.arange(config.prompt)
    return torch.randn(1, 1, config.width, generator=made), torch.tensor([config.capacity - 1])


def compiled(module: Stack, given: Sequence[Any], target: str, precision: str, **options: Any) -> tw.Executable:
    """Ours: caches are state, with the values that they have in the module.

    Places are not checked, which torch's graphs do not do either.
    """
    imported = from_torch(module, tuple(given), state=True)
    return tw.compile(imported, target=target, precision=precision, unchecked=True, **options)


def reference(module: Stack, given: Sequence[Any], device: str) -> list[np.ndarray]:
    """The outputs in float64."""
    wide = copy.deepcopy(module).double().to(device)
    with torch.inference_mode():
        return [wide(given[0].double().to(device), given[1].to(device)).cpu().numpy()]


def variants(name: str, config: Config, convert: Callable[[Any], Any]) -> dict[str, tuple[Stack, list[Any]]]:
    """Torch's forms by what they are called: module and inputs, converted."""
    made: dict[str, tuple[Stack, list[Any]]] = {}
    for label, repeats in (("", False), ("repeated", True)):
        states, places = inputs(name, config)
        made[label] = convert(stack(name, config, repeats=repeats)), [convert(states), places]
    return made
