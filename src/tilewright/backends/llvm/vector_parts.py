"""Vectors that instructions take in parts: cut into equal ones, and put together again."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.backends.llvm.context import FunctionContext


def parts_of(c: FunctionContext, vector: str, element: str, lanes: int, width: int) -> list[str]:
    """A vector in parts of so many lanes; itself if it is one."""
    if lanes == width:
        return [vector]
    return [_cut(c, vector, element, lanes, start, width) for start in range(0, lanes, width)]


def side_by_side(c: FunctionContext, parts: Sequence[str], element: str, width: int, lanes: int) -> str:
    """The first so many lanes of parts of one width: neighbours in pairs, and the pairs again."""
    rest = list(parts)
    while len(rest) > 1:
        # The last one by itself goes with itself, and is cut off.
        paired = rest if len(rest) % 2 == 0 else [*rest, rest[-1]]
        rest = [joined(c, *pair, element, width) for pair in zip(paired[::2], paired[1::2], strict=True)]
        width *= 2
    return rest[0] if width == lanes else _cut(c, rest[0], element, width, 0, lanes)


def joined(c: FunctionContext, first: str, second: str, element: str, width: int) -> str:
    """Two vectors of one width, one after the other."""
    order = ", ".join(f"i32 {lane}" for lane in range(2 * width))
    kind = f"<{width} x {element}>"
    return c.op(f"shufflevector {kind} {first}, {kind} {second}, <{2 * width} x i32> <{order}>")


def _cut(c: FunctionContext, vector: str, element: str, lanes: int, start: int, width: int) -> str:
    order = ", ".join(f"i32 {lane}" for lane in range(start, start + width))
    kind = f"<{lanes} x {element}>"
    return c.op(f"shufflevector {kind} {vector}, {kind} poison, <{width} x i32> <{order}>")
