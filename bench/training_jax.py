"""The models of `bench.training` in plain JAX, compiled by `jax.jit` with parameters donated; for its process of jax.

Images are NHWC with kernels HWIO, the layout that XLA's convolutions on CPUs take as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Apply = Callable[[Any, Any], Any]
Case = tuple[list[Any], Apply, Any, Any]
"""Parameters, what gives scores (rows, classes) of a batch, the batch, and what is right for it."""


class Weights:
    """Parameters in the order in which a network asks for them."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)
        self.values: list[Any] = []

    def __call__(self, *shape: int) -> int:
        """A new parameter; gives its number."""
        fan = int(np.prod(shape[:-1])) or 1
        value = self._rng.normal(size=shape) / np.sqrt(fan) if len(shape) > 1 else np.ones(shape)
        self.values.append(jnp.asarray(value, jnp.float32))
        return len(self.values) - 1


def _conv(p: Any, x: Any, weight: int, step: int = 1, groups: int = 1) -> Any:
    size = p[weight].shape[0]
    return lax.conv_general_dilated(
        x, p[weight], (step, step), [(size // 2, size // 2)] * 2,
        dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups,
    )  # fmt: skip


def _norm(p: Any, x: Any, scale: int) -> Any:
    mean = x.mean((0, 1, 2))
    variance = ((x - mean) ** 2).mean((0, 1, 2))
    return (x - mean) * lax.rsqrt(variance + 1e-5) * p[scale] + p[scale + 1]


def _conv_norm(w: Weights, inputs: int, outputs: int, size: int, step: int, groups: int = 1) -> Apply:
    weight = w(size, size, inputs // groups, outputs)
    scale = w(outputs)
    w(outputs)
    return lambda p, x: _norm(p, _conv(p, x, weight, step, groups), scale)


def _chain(layers: Sequence[Apply]) -> Apply:
    def apply(p: Any, x: Any) -> Any:
        for layer in layers:
            x = layer(p, x)
        return x

    return apply


def _dense(w: Weights, inputs: int, outputs: int) -> Apply:
    weight, bias = w(inputs, outputs), w(outputs)
    return lambda p, x: x @ p[weight] + p[bias]


def _pool(size: int, step: int, padding: int) -> Apply:
    window, steps, pads = (
        (1, size, size, 1),
        (1, step, step, 1),
        [(0, 0), (padding, padding), (padding, padding), (0, 0)],
    )
    return lambda p, x: lax.reduce_window(x, -jnp.inf, lax.max, window, steps, pads)


def _relu(p: Any, x: Any) -> Any:
    return jax.nn.relu(x)


def _relu6(p: Any, x: Any) -> Any:
    return jax.nn.relu6(x)


def _images(model: Callable[[Weights], Apply], channels: int, full: int, reduced: int) -> Callable[[bool], Case]:
    def case(small: bool) -> Case:
        size, batch = (reduced, 2) if small else (full, 8)
        rng, w = np.random.default_rng(1), Weights()
        apply = model(w)
        x = jnp.asarray(rng.normal(size=(batch, size, size, channels)), jnp.float32)
        return w.values, apply, x, jnp.asarray(rng.integers(0, 10, batch))

    return case


def small_cnn(w: Weights) -> Apply:
    """Two convolutions and two linear layers."""
    kernels = [(w(3, 3, 1, 32), w(32)), (w(3, 3, 32, 64), w(64))]
    layers: list[Apply] = []
    for weight, bias in kernels:
        layers += [lambda p, x, k=weight, b=bias: jax.nn.relu(_conv(p, x, k) + p[b]), _pool(2, 2, 0)]
    layers += [lambda p, x: x.reshape(x.shape[0], -1), _dense(w, 64 * 7 * 7, 128), _relu, _dense(w, 128, 10)]
    return _chain(layers)


def resnet18(w: Weights) -> Apply:
    """ResNet-18."""

    def block(inputs: int, outputs: int, step: int) -> Apply:
        first, second = _conv_norm(w, inputs, outputs, 3, step), _conv_norm(w, outputs, outputs, 3, 1)
        shorter = _conv_norm(w, inputs, outputs, 1, step) if step != 1 or inputs != outputs else lambda p, x: x
        return lambda p, x: jax.nn.relu(second(p, jax.nn.relu(first(p, x))) + shorter(p, x))

    layers = [_conv_norm(w, 3, 64, 7, 2), _relu, _pool(3, 2, 1)]
    channels = 64
    for outputs, step in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [block(channels, outputs, step), block(outputs, outputs, 1)]
        channels = outputs
    return _chain([*layers, lambda p, x: x.mean((1, 2)), _dense(w, 512, 10)])


def mobilenet_v2(w: Weights) -> Apply:
    """MobileNet-v2."""

    def block(inputs: int, outputs: int, step: int, wider: int) -> Apply:
        inner = inputs * wider
        layers = [_conv_norm(w, inputs, inner, 1, 1), _relu6] if wider != 1 else []
        layers += [_conv_norm(w, inner, inner, 3, step, inner), _relu6, _conv_norm(w, inner, outputs, 1, 1)]
        apply = _chain(layers)
        return (lambda p, x: x + apply(p, x)) if step == 1 and inputs == outputs else apply

    layers = [_conv_norm(w, 3, 32, 3, 2), _relu6]
    channels = 32
    plan = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for wider, outputs, count, step in plan:
        for place in range(count):
            layers.append(block(channels, outputs, step if place == 0 else 1, wider))
            channels = outputs
    layers += [_conv_norm(w, channels, 1280, 1, 1), _relu6, lambda p, x: x.mean((1, 2)), _dense(w, 1280, 10)]
    return _chain(layers)


def _tokens(model: Callable[[Weights, bool, int, int], Apply], tokens: int, places: int) -> Callable[[bool], Case]:
    def case(small: bool) -> Case:
        batch, length, count = (2, 4, 50) if small else (8, places, tokens)
        rng, w = np.random.default_rng(1), Weights()
        apply = model(w, small, count, length)
        drawn = rng.integers(0, count, (2, batch, length))
        return w.values, apply, jnp.asarray(drawn[0]), jnp.asarray(drawn[1].flatten())

    return case


def lstm(w: Weights, small: bool, tokens: int, places: int) -> Apply:
    """A language model of two layers of LSTM."""
    width = 16 if small else 256
    table = w(tokens, width)
    cells = [(w(width, 4 * width), w(width, 4 * width), w(4 * width)) for _ in range(2)]
    last = _dense(w, width, tokens)

    def layer(p: Any, x: Any, cell: tuple[int, int, int]) -> Any:
        ahead = x @ p[cell[0]] + p[cell[2]]

        def step(carry: Any, row: Any) -> Any:
            hidden, state = carry
            i, f, g, o = jnp.split(row + hidden @ p[cell[1]], 4, -1)
            state = jax.nn.sigmoid(f) * state + jax.nn.sigmoid(i) * jnp.tanh(g)
            hidden = jax.nn.sigmoid(o) * jnp.tanh(state)
            return (hidden, state), hidden

        zeros = jnp.zeros((x.shape[1], width), jnp.float32)
        return lax.scan(step, (zeros, zeros), ahead)[1]

    def apply(p: Any, x: Any) -> Any:
        value = p[table][x].transpose(1, 0, 2)
        for cell in cells:
            value = layer(p, value, cell)
        return last(p, value.transpose(1, 0, 2)).reshape(-1, tokens)

    return apply


def bert(w: Weights, small: bool, tokens: int, places: int) -> Apply:
    """BERT-small with scores of all tokens."""
    width, count, heads = (32, 1, 2) if small else (512, 4, 8)
    table, place = w(tokens, width), w(places, width)

    def layer_norm() -> Apply:
        scale, bias = w(width), w(width)

        def apply(p: Any, x: Any) -> Any:
            mean = x.mean(-1, keepdims=True)
            variance = ((x - mean) ** 2).mean(-1, keepdims=True)
            return (x - mean) * lax.rsqrt(variance + 1e-5) * p[scale] + p[bias]

        return apply

    def layer() -> Apply:
        joint, out = _dense(w, width, 3 * width), _dense(w, width, width)
        wide, narrow = _dense(w, width, 4 * width), _dense(w, 4 * width, width)
        norms = [layer_norm(), layer_norm()]

        def apply(p: Any, x: Any) -> Any:
            batch, length, _ = x.shape
            q, k, v = (part.reshape(batch, length, heads, -1) for part in jnp.split(joint(p, x), 3, -1))
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(width // heads).astype(np.float32)
            found = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v)
            x = norms[0](p, x + out(p, found.reshape(batch, length, width)))
            return norms[1](p, x + narrow(p, jax.nn.gelu(wide(p, x), approximate=False)))

        return apply

    layers = [layer() for _ in range(count)]
    last = _dense(w, width, tokens)

    def apply(p: Any, x: Any) -> Any:
        return last(p, _chain(layers)(p, p[table][x] + p[place])).reshape(-1, tokens)

    return apply


CASES: dict[str, Callable[[bool], Case]] = {
    "small cnn": _images(small_cnn, 1, 28, 28),
    "resnet18": _images(resnet18, 3, 224, 32),
    "mobilenet-v2": _images(mobilenet_v2, 3, 224, 32),
    "bert-small": _tokens(bert, 30522, 128),
    "lstm": _tokens(lstm, 10000, 32),
}
"""As those of `bench.torch_training_models`."""


def stepper(name: str, small: bool) -> Callable[[], float]:
    """A function that takes a step of SGD with momentum, and gives the loss."""
    values, apply, x, labels = CASES[name](small)
    state = (values, [jnp.zeros_like(value) for value in values])

    def loss_of(params: Any, batch: Any, right: Any) -> Any:
        logs = jax.nn.log_softmax(apply(params, batch))
        return -jnp.take_along_axis(logs, right[:, None], 1).mean()

    def update(params: Any, moments: Any, batch: Any, right: Any) -> Any:
        loss, slopes = jax.value_and_grad(loss_of)(params, batch, right)
        moments = [0.9 * moment + slope for moment, slope in zip(moments, slopes, strict=True)]
        return loss, [value - 0.01 * moment for value, moment in zip(params, moments, strict=True)], moments

    run = jax.jit(update, donate_argnums=(0, 1))

    def step() -> float:
        nonlocal state
        loss, *after = run(*state, x, labels)
        state = (after[0], after[1])
        return float(loss)

    return step
