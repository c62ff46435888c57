"""Gradients of random tensor expressions: stages of shifted, strided, repeated and summed reads."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.te.running import run
from tilewright import te
from tilewright.te.tensor import Tensor

SIZE = 6
FUNCTIONS: tuple[Any, ...] = (
    te.sin,
    te.tanh,
    te.sigmoid,
    lambda x: x * x,
    lambda x: te.select(x > 0.3, x, te.const(-0.5, "float64") * x),
    lambda x: x / (x * x + 1),
)


class _Programs:
    """Draws stages of one length, each of elements of those before it."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.inputs = [te.placeholder((SIZE,), "float64", name) for name in ("X", "Y")]
        self.stages: list[Tensor] = list(self.inputs)

    def _whole(self, low: int, high: int) -> int:
        return int(self.draw(st.integers(low, high)))

    def _read(self, i: Any) -> Any:
        """An element of a stage, inside of it; what lies outside is zero."""
        source = self.stages[self._whole(0, len(self.stages) - 1)]
        kind = self._whole(0, 5)
        shift = self._whole(-2, 2)
        if kind == 0:
            return te.select(te.all_of([i + shift >= 0, i + shift < SIZE]), source[i + shift], te.const(0.0, "float64"))
        if kind == 1:
            return source[i // self._whole(1, 3)]
        if kind == 2:
            return source[i % self._whole(1, 4)]
        if kind == 3:
            return source[SIZE - 1 - i]
        if kind == 4:
            return source[(i // 3) + (i % 3) * 2]
        return source[i]

    def stage(self) -> Tensor:
        """One more."""
        function = FUNCTIONS[self._whole(0, len(FUNCTIONS) - 1)]
        name = f"S{len(self.stages)}"
        if self._whole(0, 2) == 0:
            taps, step = self._whole(1, 3), self._whole(1, 2)
            source = self.stages[self._whole(0, len(self.stages) - 1)]
            k = te.reduce_axis((0, taps), "k")
            place = lambda i: i * step + k - 1  # noqa: E731
            result = te.compute(
                (SIZE,),
                lambda i: te.sum(function(source[place(i)]), axis=k, where=te.all_of([place(i) >= 0, place(i) < SIZE])),
                name,
            )
        else:
            result = te.compute((SIZE,), lambda i: function(self._read(i) * self._read(i) + self._read(i)), name)
        self.stages.append(result)
        return result


def _check(draw: Any, stages: int) -> None:
    programs = _Programs(draw)
    for _ in range(stages):
        output = programs.stage()
    random = np.random.default_rng(draw(st.integers(0, 1000)))
    values = [random.uniform(-1, 1, SIZE) for _ in programs.inputs]
    weights, ways = random.uniform(-1, 1, SIZE), [random.uniform(-1, 1, SIZE) for _ in programs.inputs]
    head = te.placeholder((SIZE,), "float64", "head")
    got = run([*programs.inputs, head, *te.gradient(output, programs.inputs, head)], *values, weights)
    # Along one random direction: as telling as along each, at the cost of two runs.
    sides = []
    for step in (1e-6, -1e-6):
        moved = [value + step * way for value, way in zip(values, ways, strict=True)]
        (result,) = run([*programs.inputs, output], *moved)
        sides.append(float(np.sum(result * weights)))
    slope = sum(float(np.sum(item * way)) for item, way in zip(got, ways, strict=True))
    np.testing.assert_allclose(slope, (sides[0] - sides[1]) / 2e-6, rtol=1e-4, atol=1e-5)


@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(1, 4))
def test_random_programs(source, stages):
    _check(source.draw, stages)
