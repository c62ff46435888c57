"""Single operators as TFLite models: what `bench.frontend_tflite` compares with LiteRT, and tests with its answers.

A case is a model of one operator (or a few) and inputs. Values are arrays: inputs of the model, or constants (`fixed`),
quantised ones with scale and zero point (`levels`). Answers of LiteRT's reference kernels are kept beside the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench.tflite_writer import Graph, Tensor, write

Array = np.ndarray


@dataclass
class Value:
    """An input of an operator."""

    data: Array
    fixed: bool = False
    quantization: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = ""


@dataclass
class Case:
    """A model, its inputs, and how far results may be from LiteRT's (0: equal to the bit)."""

    name: str
    model: bytes
    inputs: list[Array]
    tolerance: float = 1e-5
    optimized: bool = False
    """Compare with the default kernels: there is no reference kernel, or it is off by one."""


CASES: dict[str, Callable[[], Case]] = {}


def fixed(value: Any, dtype: Any = None, **quantization: Any) -> Value:
    """A constant."""
    return Value(np.asarray(value, dtype), True, quantization)


def levels(value: Any, scale: Any, zero: Any = 0, constant: bool = False, axis: int = 0, dtype: str = "") -> Value:
    """Quantised integers."""
    return Value(np.asarray(value), constant, {"scale": scale, "zero": zero, "axis": axis}, dtype)


def numbers(*shape: int, seed: int = 0, low: float = -2, high: float = 2) -> Array:
    """Floats that are the same each time."""
    return np.random.default_rng([seed, *shape]).uniform(low, high, shape).astype(np.float32)


def integers(*shape: int, low: int = -128, high: int = 128, dtype: Any = np.int8, seed: int = 0) -> Array:
    """Whole numbers that are the same each time."""
    return np.random.default_rng([seed, *shape]).integers(low, high, shape).astype(dtype)


Out = tuple[str, Any, Any] | str
"""The type of a result, perhaps with scale and zero point."""


def single(
    name: str,
    values: Sequence[Any],
    out: Sequence[Out] | Out = "float32",
    options: Mapping[str, Any] | None = None,
    tolerance: float = 1e-5,
    shapes: Sequence[Sequence[int]] | None = None,
    optimized: bool = False,
    **rest: Any,
) -> Case:
    """A model of one operator."""
    graph, places, inputs = Graph(), [], []
    for at, item in enumerate(values):
        if item is None:
            places.append(-1)
            continue
        value = item if isinstance(item, Value) else Value(np.asarray(item))
        if value.fixed:
            places.append(graph.constant(value.data, dtype=value.dtype or None, **value.quantization))
        else:
            kind = value.dtype or value.data.dtype.name
            kind = "string" if kind == "object" else kind
            places.append(graph.input(f"x{at}", value.data.shape, kind, **value.quantization))
            inputs.append(value.data)
    outs = [out] if isinstance(out, (str, tuple)) else list(out)
    tensors = []
    for at, kind in enumerate(outs):
        shape = shapes[at] if shapes else ()
        if isinstance(kind, str):
            tensors.append(Tensor(f"y{at}", shape, kind))
        else:
            tensors.append(Tensor(f"y{at}", shape, kind[0], scale=kind[1], zero=kind[2]))
    graph.add(name, places, tensors, options, **rest)
    graph.output(*range(len(graph.tensors) - len(tensors), len(graph.tensors)))
    return Case(name, write([graph]), inputs, tolerance, optimized)


def case(name: str) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    """Register a case."""

    def register(build: Callable[[], Case]) -> Callable[[], Case]:
        assert name not in CASES, name
        CASES[name] = build
        return build

    return register


def add(name: str, operator: str, values: Sequence[Any], *args: Any, **kwargs: Any) -> None:
    """Register a case of one operator."""
    assert name not in CASES, name
    CASES[name] = lambda: single(operator, values, *args, **kwargs)
