"""Words of the script dialect, and unique printable names for variables and buffers."""

from __future__ import annotations

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
    return f"_{name}" if name[0].isdigit() else name


class NameTable:
    """A distinct name for each variable and buffer of a function, kept once given."""

    def __init__(self) -> None:
        self._names: dict[Var | Buffer, str] = {}
        self._taken: set[str] = set(RESERVED)

    def of(self, item: Var | Buffer) -> str:
        """The name of a variable or buffer."""
        name = self._names.get(item)
        if name is None:
            name = self._names[item] = self.fresh(identifier(item.name))
        return name

    def known(self, item: Var | Buffer) -> bool:
        """Whether a variable or buffer has a name already."""
        return item in self._names

    def fresh(self, hint: str) -> str:
        """A name that is not yet taken."""
        name, number = hint, 0
        while name in self._taken:
            number += 1
            name = f"{hint}_{number}"
        self._taken.add(name)
        return name
