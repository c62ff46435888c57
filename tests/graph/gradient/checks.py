"""Gradients against central differences: what the tests of rules, programs and the fuzzer share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.graph.gradient import jvp, vjp
from tilewright.graph.interpreter import Value, evaluate
from tilewright.graph.ir.expr import Function
from tilewright.ir.function import IRModule

STEP = 1e-6


def floats(value: Value) -> list[np.ndarray]:
    """The float tensors of a result."""
    parts = value if isinstance(value, tuple) else (value,)
    return [part for part in parts if isinstance(part, np.ndarray | np.generic) and part.dtype.kind == "f"]


def differences(
    program: Function | IRModule, values: Sequence[np.ndarray], cotangents: Sequence[np.ndarray], place: int
) -> np.ndarray:
    """The gradient of sum(output * cotangent) with respect to one input, by central differences."""
    result = np.zeros_like(values[place])
    for index in np.ndindex(values[place].shape):
        sides = []
        for sign in (1, -1):
            moved = [value.copy() for value in values]
            moved[place][index] += sign * STEP
            outputs = floats(evaluate(program, *moved))
            sides.append(sum(float((o * c).sum()) for o, c in zip(outputs, cotangents, strict=True)))
        result[index] = (sides[0] - sides[1]) / (2 * STEP)
    return result


def cotangents_for(program: Function | IRModule, values: Sequence[np.ndarray], seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(np.shape(o)) for o in floats(evaluate(program, *values))]


def check_reverse(
    program: Function | IRModule, values: Sequence[np.ndarray], seed: int = 0, tolerance: float = 1e-5
) -> IRModule:
    """Compare the program that `vjp` gives with central differences; gives it."""
    moving = [place for place, value in enumerate(values) if value.dtype.kind == "f"]
    given = cotangents_for(program, values, seed)
    backward = vjp(program, moving)
    results = evaluate(backward, *values, *given)
    assert isinstance(results, tuple)
    gradients = results[len(results) - len(moving) :]
    for place, gradient in zip(moving, gradients, strict=True):
        expected = differences(program, values, given, place)
        np.testing.assert_allclose(gradient, expected, rtol=tolerance, atol=tolerance)
    return backward


def check_forward(program: Function | IRModule, values: Sequence[np.ndarray], seed: int = 0) -> None:
    """Tangents and cotangents have one inner product: <c, J t> = <J' c, t>."""
    moving = [place for place, value in enumerate(values) if value.dtype.kind == "f"]
    given = cotangents_for(program, values, seed)
    rng = np.random.default_rng(seed + 1)
    tangents = [np.asarray(rng.standard_normal(values[place].shape)) for place in moving]
    results = evaluate(vjp(program, moving), *values, *given)
    assert isinstance(results, tuple)
    gradients = results[len(results) - len(moving) :]
    moved = evaluate(jvp(program, moving), *values, *tangents)
    assert isinstance(moved, tuple)
    outputs = moved[len(moved) - len(given) :]
    across = sum(float((c * o).sum()) for c, o in zip(given, outputs, strict=True))
    back = sum(float((g * t).sum()) for g, t in zip(gradients, tangents, strict=True))
    np.testing.assert_allclose(across, back, rtol=1e-9, atol=1e-9)
