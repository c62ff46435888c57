"""Statements that every program in C has: loops, assignments, and parameters that are numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.codegen.braces import BracedStatements
from tilewright.codegen.c.expressions import Expressions
from tilewright.ir.expr import Call, PrimExpr, Var, const_value
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.stmt import For


class CStatements(BracedStatements[Expressions]):
    """Statements of one function."""

    forever = "for (;;)"

    def scalar_parameter(self, param: Var) -> str:
        """A parameter that is a number; it comes as it lies in memory: half precision as bits, bool as a byte."""
        c, dialect, name = self.values, self.values.dialect, self.values.name(param)
        c.decide(param, narrow=False)
        kind, passed = dialect.register_type(param.dtype), dialect.memory_type(param.dtype)
        if kind == passed:
            return f"const {kind} {name}"
        c.line(f"const {kind} {name} = {c.from_memory(f'{name}bits', param.dtype)};")
        return f"const {passed} {name}bits"

    def arguments(self, args: Sequence[PrimExpr]) -> list[str]:
        """Arguments of a call that is a statement: numbers, and addresses of elements."""
        c = self.values
        places = [arg.args[1] if isinstance(arg, Call) and arg.name == "access_ptr" else arg for arg in args]
        c.start(*(place.indices[0] if isinstance(place, BufferLoad) else place for place in places))
        return [
            f"{c.name(place.buffer)} + {c.value(place.indices[0])}" if isinstance(place, BufferLoad) else c.value(place)
            for place in places
        ]

    def before_loop(self, loop: For) -> None:
        """What stands in front of a loop."""

    def after_loop(self, loop: For) -> None:
        """What stands behind a loop."""

    def loop(self, loop: For, body: Callable[[], None]) -> None:
        """A `for`."""
        c = self.values
        kind = c.dialect.types["int32" if c.is_narrow(loop.var) else "int64"]
        low = c.value(loop.min)
        first, extent = const_value(loop.min), const_value(loop.extent)
        if first is None or extent is None:
            limit = c.declare(kind, f"{low} + {c.value(loop.extent)}")
        else:
            limit = str(first + extent)
        name = c.name(loop.var)
        self.before_loop(loop)
        c.line(f"for ({kind} {name} = {low}; {name} < {limit}; ++{name}) {{")
        self.inside(body)
        c.line("}")
        self.after_loop(loop)

    def hold(self, value: PrimExpr, text: str) -> str:
        """A constant."""
        return self.values.declare(self.values.dialect.register_type(value.dtype), text)

    def assign(self, buffer: Buffer, index: PrimExpr, text: str) -> None:
        """An assignment."""
        c = self.values
        c.line(f"{c.name(buffer)}[{c.value(index)}] = {c.to_memory(text, buffer.dtype)};")
