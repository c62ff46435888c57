"""Small models in plain JAX with their gradients, as forms of the StableHLO benchmark: what training exports.

Parameters are arguments, as Flax and Equinox have them, so that gradients flow into all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Form = tuple[Callable[..., Any], tuple[Any, ...]]
Parameters = dict[str, Any]
_LAYOUT = ("NHWC", "HWIO", "NHWC")


def _random(seed: int, *shape: int) -> Any:
    fan = int(np.prod(shape[:-1])) or 1
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape) / np.sqrt(fan), jnp.float32)


def _entropy(logits: Any, labels: Any) -> Any:
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1))


def _normalized(x: Any, scale: Any, shift: Any, axes: tuple[int, ...]) -> Any:
    mean, variance = jnp.mean(x, axes, keepdims=True), jnp.var(x, axes, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * scale + shift


def mlp(p: Parameters, x: Any) -> Any:
    """Two layers, layer normalisation, dropout."""
    h = jax.nn.gelu(x @ p["first"] + p["bias"])
    h = _normalized(h, p["scale"], p["shift"], (-1,))
    keep = jax.random.bernoulli(jax.random.key(7), 0.8, h.shape)
    return jnp.where(keep, h / 0.8, 0) @ p["last"]


def convolutional(p: Parameters, x: Any) -> Any:
    """Convolutions, batch normalisation of the batch itself, a residual connection, both kinds of pooling."""

    def conv(x: Any, weight: Any, **options: Any) -> Any:
        return lax.conv_general_dilated(x, weight, (1, 1), "SAME", dimension_numbers=_LAYOUT, **options)

    h = jax.nn.relu(_normalized(conv(x, p["stem"]), p["scale"], p["shift"], (0, 1, 2)))
    h = lax.reduce_window(h, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    h = h + conv(jax.nn.silu(conv(h, p["depthwise"], feature_group_count=8)), p["point"])
    h = lax.reduce_window(h, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4
    return jnp.mean(h, (1, 2)) @ p["last"]


def transformer(p: Parameters, tokens: Any) -> Any:
    """Embeddings, two layers of causal attention by `lax.scan` over stacked weights, recomputed going back."""
    x = p["table"][tokens] + p["places"]

    @jax.checkpoint  # type: ignore[untyped-decorator]
    def layer(x: Any, w: Parameters) -> tuple[Any, None]:
        batch, length, width = x.shape
        h = _normalized(x, w["scale"], 0.0, (-1,))
        q, k, v = (part.reshape(batch, length, 2, width // 2) for part in jnp.split(h @ w["mix"], 3, -1))
        x = x + jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape) @ w["out"]
        return x + jax.nn.gelu(x @ w["up"]) @ w["down"], None

    x = lax.scan(layer, x, p["layers"])[0]
    return (x @ p["table"].T)[:, -1]


def recurrent(p: Parameters, x: Any) -> Any:
    """A GRU by `lax.scan` over more steps than loops are spelled out for."""

    def step(h: Any, row: Any) -> tuple[Any, None]:
        reset, update = jnp.split(jax.nn.sigmoid(row @ p["gates_in"] + h @ p["gates"]), 2, -1)
        new = jnp.tanh(row @ p["new_in"] + (reset * h) @ p["new"])
        return (1 - update) * h + update * new, None

    return lax.scan(step, jnp.zeros((x.shape[1], 6)), x)[0] @ p["last"]


def _layers() -> Parameters:
    shapes = {"mix": (8, 24), "out": (8, 8), "up": (8, 16), "down": (16, 8)}
    found = {name: _random(at, 2, *shape) for at, (name, shape) in enumerate(shapes.items())}
    return {**found, "scale": jnp.ones((2, 8))}


def _examples() -> dict[str, tuple[Callable[..., Any], Parameters, Any]]:
    affine = {"scale": jnp.ones(8) * 1.1, "shift": _random(3, 8)}
    dense = {"first": _random(1, 6, 8), "bias": _random(2, 8), "last": _random(4, 8, 5)}
    kernels = {"stem": _random(1, 3, 3, 3, 8), "depthwise": _random(2, 3, 3, 1, 8), "point": _random(5, 1, 1, 8, 8)}
    gates = {"gates_in": _random(1, 4, 12), "gates": _random(2, 6, 12), "new_in": _random(3, 4, 6)}
    tokens = jnp.asarray(np.random.default_rng(6).integers(0, 11, (3, 5)), jnp.int32)
    words = {"table": _random(7, 11, 8), "places": _random(8, 5, 8), "layers": _layers()}
    return {
        "mlp": (mlp, {**dense, **affine}, _random(9, 3, 6) * 3),
        "convolutional": (convolutional, {**kernels, **affine, "last": _random(4, 8, 5)}, _random(9, 3, 8, 8, 3) * 9),
        "transformer": (transformer, words, tokens),
        "recurrent": (
            recurrent,
            {**gates, "new": _random(4, 6, 6), "last": _random(5, 6, 5)},
            _random(9, 70, 3, 4) * 9,
        ),
    }


def forms() -> dict[str, Form]:
    """Each model, its loss with gradients, and a step of training by these, each scaled by its own size."""
    labels = jnp.asarray([1, 4, 0], jnp.int32)
    made: dict[str, Form] = {}
    for name, (model, parameters, x) in _examples().items():

        def loss(p: Parameters, x: Any, model: Callable[..., Any] = model) -> Any:
            return _entropy(model(p, x), labels)

        def step(p: Parameters, x: Any, loss: Callable[..., Any] = loss) -> Any:
            slope = jax.grad(loss)(p, x)
            return jax.tree.map(lambda w, g: w - 0.1 * g / (jnp.sqrt(g * g * 0.001) + 1e-3), p, slope)

        made[f"model {name}"] = (model, (parameters, x))
        made[f"model {name} gradients"] = (jax.value_and_grad(loss), (parameters, x))
        made[f"model {name} step"] = (step, (parameters, x))
    return made
