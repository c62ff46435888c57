"""Words of the script dialect, and unique printable names for variables and buffers."""

from __future__ import annotations

import json
import keyword
from typing import Final

from tilewright.ir import intrinsics
from tilewright.ir.dtype import _SCALARS
from tilewright.ir.expr import Var
from tilewright.tir.buffer import Buffer
from tilewright.tir.stmt import LoopKind

DTYPE_NAMES: Final = frozenset(_SCALARS)
"""Names of scalar data types: calling one makes a constant or a conversion."""

LOOP_WORDS: Final[dict[str, LoopKind]] = {
    "range": LoopKind.SERIAL,
    "serial": LoopKind.SERIAL,
    "parallel": LoopKind.PARALLEL,
    "vectorized": LoopKind.VECTORIZED,
    "unroll": LoopKind.UNROLLED,
    "vthread": LoopKind.VTHREAD,
    "thread_binding": LoopKind.THREAD,
}
"""The word of each kind of loop."""

STATEMENT_WORDS: Final = frozenset(
    "grid block init spatial reduce opaque where reads writes annotations attributes symbolic alloc_buffer allocate "
    "free_buffer let alias sequence evaluate iter_range bind_buffer var extern_function script Buffer Module expr "
    "dtype".split()
)
EXPRESSION_WORDS: Final = frozenset("min max truncdiv truncmod ramp broadcast cast call select len".split())

RESERVED: Final = frozenset(
    {"fabs", "power", *keyword.kwlist, *DTYPE_NAMES, *LOOP_WORDS, *STATEMENT_WORDS, *EXPRESSION_WORDS}
    | intrinsics.table.keys()
)
"""Names that variables and buffers are not printed with."""


def identifier(text: str, fallback: str = "v") -> str:
    """A text as a Python identifier: other characters become underscores."""
    name = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in text) or fallback
    return f"_{name}" if name[0].isdigit() or keyword.iskeyword(name) else name


def quoted(text: str) -> str:
    """A text as a Python string literal in double quotes."""
    return json.dumps(text, ensure_ascii=False)


class NameTable:
    """A name for each variable and buffer, distinct from all others in scope at the same time."""

    def __init__(self) -> None:
        self._names: dict[Var | Buffer, str] = {}
        self._taken: set[str] = set(RESERVED)
        self._frames: list[tuple[list[str], list[Var | Buffer]]] = [([], [])]

    def push(self) -> None:
        """Enter a scope: names given from now on are free again after it."""
        self._frames.append(([], []))

    def pop(self) -> None:
        """Leave a scope."""
        names, items = self._frames.pop()
        self._taken.difference_update(names)
        for item in items:
            del self._names[item]

    def of(self, item: Var | Buffer) -> str:
        """The name of a variable or buffer."""
        name = self._names.get(item)
        if name is None:
            name = self._names[item] = self.fresh(identifier(item.name))
            self._frames[-1][1].append(item)
        return name

    def fresh(self, hint: str) -> str:
        """A name that is not taken in this scope or around it."""
        name, number = hint, 0
        while name in self._taken:
            number += 1
            name = f"{hint}_{number}"
        self._taken.add(name)
        self._frames[-1][0].append(name)
        return name
