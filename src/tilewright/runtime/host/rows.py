"""Sequences whose items lie one after the other in memory: what native loops collect."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Rows:
    """A sequence of the rows of tensors; its items become arrays of their own when somebody asks for them."""

    __slots__ = ("parts",)

    def __init__(self, parts: tuple[Array, ...]) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    @staticmethod
    def joined(before: list[Any] | Rows, rows: Array) -> list[Any] | Rows:
        """A sequence and the rows of a tensor behind it."""
        if isinstance(before, list) and before:
            return before + Rows((rows,)).items()
        return Rows((*(before.parts if isinstance(before, Rows) else ()), rows))

    def items(self) -> list[Any]:
        """The items, as views."""
        return [part[number, ...] for part in self.parts for number in range(len(part))]

    def stacked(self, axis: int) -> Array:
        """All items along a new axis."""
        whole = self.parts[0] if len(self.parts) == 1 else np.concatenate(self.parts)
        return np.moveaxis(whole, 0, axis)
