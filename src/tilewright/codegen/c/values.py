"""Values of one kernel in C: declarations, types of texts, laziness, and the memory of other threads and blocks."""

from __future__ import annotations

from typing import ClassVar

from tilewright.codegen.braces import BracedValues
from tilewright.codegen.c.dialect import Dialect
from tilewright.codegen.c.helpers import Helpers
from tilewright.codegen.operators import reads_memory
from tilewright.ir import expr as e
from tilewright.ir.build import const, floordiv, floormod
from tilewright.ir.expr import PrimExpr, Var
from tilewright.ir.visit import pre_order
from tilewright.support.errors import UnsupportedError
from tilewright.tir.buffer import Buffer, BufferLoad


class CValues(BracedValues):
    """Values of one kernel, emitted into lines of C."""

    addresses_in_32_bits: ClassVar[bool] = False

    def __init__(self, dialect: Dialect, helpers: Helpers) -> None:
        super().__init__()
        self.language = dialect.name
        self.dialect = dialect
        self.helpers = helpers
        self.own_places: dict[Buffer, PrimExpr] = {}
        """The index of the thread's own element in buffers of a warp, which are registers."""
        self.cluster: tuple[Var, int] | None = None
        """The number of this block in its cluster, and how many blocks that has."""
        self.loops: list[Var] = []
        """The variable of a loop that stays rolled (`ROLLED`), and of those inside it that are unrolled."""
        self.guards: list[PrimExpr] = []
        """The conditions around the statement at hand."""

    def part_of_cluster(self, buffer: Buffer, index: PrimExpr, own: bool = False) -> tuple[PrimExpr, PrimExpr]:
        """The block of the cluster that holds an element, and its place there; `own`: it must be this block."""
        assert self.cluster is not None and isinstance(buffer.shape[0], e.IntImm)
        rank, count = self.cluster
        size = const(buffer.shape[0].value // count)
        with self.analyzer.assume(*self.guards):
            block = self.analyzer.simplify(floordiv(index, size))
            place = self.analyzer.simplify(floormod(index, size))
        if own and block is not rank:
            raise UnsupportedError("a block stores to the shared memory of another one")
        return block, place

    def load_first(self, value: PrimExpr) -> None:
        """Read what a value surely reads of global memory before any of it is computed.

        Functions have branches inside, across which compilers move no loads: these would wait one for another.
        """
        if not any(isinstance(item, e.Call) and item.dtype.is_float for item in pre_order(value)):
            return
        found: dict[PrimExpr, None] = {}
        seen: set[PrimExpr] = set()
        stack = [value]
        while stack:
            item = stack.pop()
            if item in seen:
                continue
            seen.add(item)
            if isinstance(item, BufferLoad):
                if item.buffer.scope == "global":
                    found.setdefault(item)
            elif not isinstance(item, (e.Select, e.And, e.Or)):
                stack += [child for child in item.children() if isinstance(child, PrimExpr)]
        for load in found if len(found) > 1 else ():
            self.know(load, self.share(load, self.emit(load)))

    def constant(self, kind: str, name: str, text: str) -> str:
        """The declaration of a constant."""
        return f"const {kind} {name} = {text};"

    def variable(self, kind: str, name: str) -> str:
        """The declaration of a variable that is given its value later."""
        return f"{kind} {name};"

    def needs_branch(self, expr: PrimExpr) -> bool:
        """Whether an expression would put a constant that reads memory in front of the statement."""
        if not reads_memory(expr):
            return False
        return any(
            isinstance(item, PrimExpr)
            and self._uses.get(item, 0) > 1
            and not isinstance(item, (Var, e.IntImm, e.FloatImm))
            and any(isinstance(inner, (BufferLoad, e.Select)) for inner in pre_order(item))
            for item in pre_order(expr)
        )

    def type_of(self, expr: PrimExpr) -> str:
        """The C type of an expression's text."""
        return self.dialect.types["int32"] if self.is_narrow(expr) else self.dialect.register_type(expr.dtype)

    def widen(self, text: str) -> str:
        """An index of 32 bits in 64."""
        return f"({self.dialect.types['int64']}){text}"

    def select(self, kind: str, condition: str, a: str, b: str) -> str:
        """One of two values; only one of them is computed."""
        return f"({condition} ? {a} : {b})"
