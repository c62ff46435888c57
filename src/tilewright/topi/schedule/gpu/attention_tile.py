"""The sizes of an attention, and of what a block of threads has of it at a time."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.expr import PrimExpr


@dataclass(frozen=True, slots=True)
class AttentionSizes:
    """The sizes of an attention."""

    batch: int
    heads: int
    queries: int
    keys: int
    depth: int
    """Elements of a query and of a key."""
    width: int
    """Elements of a value."""
    mask_bytes: int = 0
    """Bytes of an element of the mask, if there is one."""
    masks_rows: bool = False
    """Whether queries have masks of their own."""

    def tile_bytes(self, queries: int, keys: int) -> int:
        """Bytes of the mask of a tile."""
        return self.mask_bytes * keys * (queries if self.masks_rows else 1)


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """What a block of threads has at a time; elements of queries and values padded to what products take."""

    queries: int
    keys: int
    depth: int
    width: int
    parts: int
    """Threads that share a row."""
    run: int
    """Neighbouring keys that one of them has."""
    width_run: int
    """Neighbouring results that one of them has."""
    holds_queries: bool
    """Whether queries stay in registers, and need no shared memory."""
    first_steps: int = 0
    """Elements of queries and keys whose product begins the sums; if 0, the sums begin as zeros."""
    slices: int = 1
    """Groups of threads that each have a part of the keys."""
    pairs: int = 0
    """If not 0: of so many keys the even ones come first in the second product, which has steps in that order."""

    def key(self, place: PrimExpr) -> PrimExpr:
        """The key at a place in the order of the second product."""
        if self.pairs == 0:
            return place
        half = self.pairs // 2
        return place // self.pairs * self.pairs + place % half * 2 + place % self.pairs // half

    @property
    def span(self) -> int:
        """Keys after which the first part comes again."""
        return self.parts * self.run


def whole(size: int, step: int) -> int:
    """A size, padded to a multiple of a step."""
    return -(-size // step) * step
