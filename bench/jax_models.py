"""Models in plain JAX: a residual network, a transformer that scans over its layers, a recurrent network, a decoder.

    python -m bench.jax_models                    # right, and as quick as jax.jit on one thread?
    python -m bench.jax_models --only lstm --runs 50

Each is compiled by Tilewright and by `jax.jit`, compared, and timed by turns in one process on one thread. Needs jax.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

# Before jax is loaded: one thread, as for Tilewright.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import tilewright as tw
from bench import harness
from bench.stablehlo_cases import compare
from tilewright.frontend import from_jax
from tilewright.support.text import table

Model = tuple[Callable[..., Any], tuple[Any, ...]]


def _weights(seed: int, *shape: int) -> Any:
    fan = int(np.prod(shape[:-1])) or 1
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape) / np.sqrt(fan), jnp.float32)


def mlp() -> Model:
    """Three layers on a batch of 32."""
    sizes = (256, 512, 512, 10)
    layers = [_weights(at, *pair) for at, pair in enumerate(itertools.pairwise(sizes))]

    def apply(x: Any) -> Any:
        for weight in layers[:-1]:
            x = jax.nn.relu(x @ weight + 0.1)
        return jax.nn.softmax(x @ layers[-1])

    return apply, (_weights(9, 32, 256),)


def resnet() -> Model:
    """A residual network of four blocks on one image of 64 x 64, NHWC."""
    widths = (32, 32, 64, 128, 128)
    stem = _weights(0, 3, 3, 3, widths[0])
    blocks = [
        (_weights(10 * at, 3, 3, a, b), _weights(10 * at + 1, 3, 3, b, b), _weights(10 * at + 2, 1, 1, a, b))
        for at, (a, b) in enumerate(itertools.pairwise(widths))
    ]
    head = _weights(77, widths[-1], 10)

    def conv(x: Any, weight: Any, stride: int = 1) -> Any:
        layout = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, weight, (stride, stride), "SAME", dimension_numbers=layout)

    def norm(x: Any) -> Any:
        mean = jnp.full((x.shape[-1],), 0.1)
        return (x - mean) * lax.rsqrt(jnp.full((x.shape[-1],), 1.5) + 1e-5) * 1.1 + 0.05

    def apply(x: Any) -> Any:
        x = jax.nn.relu(norm(conv(x, stem)))
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        for at, (first, second, short) in enumerate(blocks):
            stride = 2 if at else 1
            inner = jax.nn.relu(norm(conv(x, first, stride)))
            x = jax.nn.relu(norm(conv(inner, second)) + conv(x, short, stride))
        return jnp.mean(x, (1, 2)) @ head

    return apply, (_weights(1, 1, 64, 64, 3) * 5,)


def _attend(x: Any, query: Any, key: Any, value: Any, out: Any, heads: int) -> Any:
    length, width = x.shape

    def split(weight: Any) -> Any:
        return (x @ weight).reshape(length, heads, width // heads)

    scores = jnp.einsum("qhd,khd->hqk", split(query), split(key)) / np.sqrt(width // heads)
    mask = jnp.tril(jnp.ones((length, length), bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1)
    return jnp.einsum("hqk,khd->qhd", weights, split(value)).reshape(length, width) @ out


def _normalized(x: Any) -> Any:
    mean = jnp.mean(x, -1, keepdims=True)
    return (x - mean) * lax.rsqrt(jnp.var(x, -1, keepdims=True) + 1e-5)


def transformer() -> Model:
    """Six layers of width 256 over 64 places, by `lax.scan` over stacked weights."""
    count, width = 6, 256
    names = ("query", "key", "value", "out")
    layers = {
        name: jnp.stack([_weights(31 * at + n, width, width) for at in range(count)]) for n, name in enumerate(names)
    }
    layers["up"] = jnp.stack([_weights(31 * at + 7, width, 4 * width) for at in range(count)])
    layers["down"] = jnp.stack([_weights(31 * at + 8, 4 * width, width) for at in range(count)])

    def apply(x: Any) -> Any:
        def layer(x: Any, w: Any) -> tuple[Any, None]:
            x = x + _attend(_normalized(x), w["query"], w["key"], w["value"], w["out"], 4)
            return x + jax.nn.gelu(_normalized(x) @ w["up"]) @ w["down"], None

        return lax.scan(layer, x, layers)[0]

    return apply, (_weights(5, 64, width) * 8,)


def lstm() -> Model:
    """An LSTM of 128 units over 200 steps of a batch of 4, by `lax.scan`."""
    size = 128
    inner, outer, bias = _weights(1, size, 4 * size), _weights(2, size, 4 * size), _weights(3, 4 * size)

    def apply(x: Any) -> Any:
        def step(state: Any, row: Any) -> tuple[Any, Any]:
            hidden, cell = state
            gates = row @ outer + hidden @ inner + bias
            update, forget, new, out = jnp.split(gates, 4, axis=-1)
            cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(update) * jnp.tanh(new)
            hidden = jax.nn.sigmoid(out) * jnp.tanh(cell)
            return (hidden, cell), hidden

        start = jnp.zeros((x.shape[1], size)), jnp.zeros((x.shape[1], size))
        return lax.scan(step, start, x)[1]

    return apply, (_weights(4, 200, 4, size) * 10,)


def decode() -> Model:
    """One step of a decoder of two layers with a cache of 128 places, written by `dynamic_update_slice`."""
    width, heads, places = 256, 4, 128
    layers = [tuple(_weights(50 * at + n, width, width) for n in range(4)) for at in range(2)]
    table_of = _weights(99, width, 1000)

    def apply(x: Any, keys: Any, values: Any, place: Any) -> Any:
        for at, (query, key, value, out) in enumerate(layers):
            fresh = [(x @ weight).reshape(1, 1, heads, width // heads) for weight in (key, value)]
            keys = lax.dynamic_update_slice(keys, fresh[0], (at, place, 0, 0))
            values = lax.dynamic_update_slice(values, fresh[1], (at, place, 0, 0))
            scores = jnp.einsum("hd,khd->hk", (x @ query).reshape(heads, -1), keys[at]) / np.sqrt(width // heads)
            scores = jnp.where(jnp.arange(places) <= place, scores, -1e9)
            x = x + jnp.einsum("hk,khd->hd", jax.nn.softmax(scores), values[at]).reshape(1, width) @ out
        return x @ table_of, keys, values

    cache = _weights(7, 2, places, heads, width // heads)
    return apply, (_weights(5, 1, width) * 8, cache, cache * 0.5, jnp.asarray(17, jnp.int32))


MODELS: dict[str, Callable[[], Model]] = {
    "mlp": mlp,
    "resnet": resnet,
    "transformer": transformer,
    "lstm": lstm,
    "decode": decode,
}


def measure(name: str, runs: int) -> dict[str, Any]:
    """A model's times by turns, in milliseconds, and how many times as quick as `jax.jit` it is."""
    function, args = MODELS[name]()
    theirs = jax.jit(function)
    expected = [np.asarray(item) for item in jax.tree.leaves(theirs(*args))]
    started = time.perf_counter()
    executable = tw.compile(from_jax(function, *args), threads=1)
    compiled = time.perf_counter() - started
    arrays = [np.asarray(item) for item in args]
    found = executable(*arrays)
    for wanted, item in zip(expected, found if isinstance(found, tuple) else (found,), strict=True):
        compare(wanted, np.asarray(item))
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(runs):
        for kept, run in zip(times, (lambda: executable(*arrays), lambda: _wait(theirs(*args))), strict=True):
            begun = time.perf_counter()
            run()
            kept.append(1000 * (time.perf_counter() - begun))
    ours, other = (statistics.median(kept) for kept in times)
    return {"tilewright_ms": ours, "jax_ms": other, "times_as_quick": other / ours, "compile_s": compiled}


def _wait(results: Any) -> None:
    jax.block_until_ready(results)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.jax_models", description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="*", choices=list(MODELS), default=list(MODELS), help="some of the models")
    parser.add_argument("--runs", type=int, default=50, help="runs of each")
    options = parser.parse_args(arguments)
    found = {}
    for name in options.only:
        found[name] = measure(name, options.runs)
        harness.say(f"{name}: {found[name]}")
    rows = [[name, *(f"{value:.2f}" for value in figures.values())] for name, figures in found.items()]
    print(table(["model", "tilewright ms", "jax ms", "times as quick", "compile s"], rows))
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
