"""Extents (arithmetic over the symbols of a model, as text) -> LLVM IR on 64-bit integers."""

from __future__ import annotations

import ast

from tilewright.runtime.core.artifact import Extent
from tilewright.runtime.core.shapes import parse_extent
from tilewright.support.errors import CompilerBug

_PLAIN = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul"}
_COMPARE = {ast.Lt: "slt", ast.LtE: "sle", ast.Eq: "eq", ast.NotEq: "ne"}
_INTRINSICS = {"min": "llvm.smin.i64", "max": "llvm.smax.i64"}

DECLARATIONS = {f"@{name}": f"declare i64 @{name}(i64, i64)" for name in _INTRINSICS.values()}
"""What the instructions may call, by the text that shows that they do."""


class ExtentEmitter:
    """Writes the instructions of extents into `lines`; `symbols` are the operands that stand for symbols.

    The same subexpression is computed once, so all instructions must go where the first use is reached by every
    path: at the start of a function.
    """

    def __init__(self, lines: list[str], symbols: dict[str, str]) -> None:
        self.lines = lines
        self.symbols = symbols
        self._known: dict[str, str] = {}
        self._count = 0

    def value(self, extent: Extent) -> str:
        """The operand that holds an extent."""
        return str(extent) if isinstance(extent, int) else self._emit(parse_extent(extent))

    def instruction(self, text: str) -> str:
        """Write an instruction, or find it if it was written before; gives its result."""
        register = self._known.get(text)
        if register is None:
            register = self._known[text] = f"%e{self._count}"
            self._count += 1
            self.lines.append(f"  {register} = {text}")
        return register

    def aligned(self, size: str, alignment: int) -> str:
        """A size rounded up to a power of two; negative sizes count as none."""
        some = self.instruction(f"call i64 @llvm.smax.i64(i64 {size}, i64 0)")
        raised = self.instruction(f"add i64 {some}, {alignment - 1}")
        return self.instruction(f"and i64 {raised}, {-alignment}")

    def _emit(self, node: ast.expr) -> str:
        match node:
            case ast.Constant(value=int(number)):
                return str(number)
            case ast.Name(id=name) if name in self.symbols:
                return self.symbols[name]
            case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _PLAIN:
                a, b = self._emit(left), self._emit(right)
                return self.instruction(f"{_PLAIN[type(operation)]} i64 {a}, {b}")
            case ast.BinOp(left=left, op=ast.FloorDiv(), right=right):
                return self._divide(self._emit(left), self._emit(right))[0]
            case ast.BinOp(left=left, op=ast.Mod(), right=right):
                return self._divide(self._emit(left), self._emit(right))[1]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self.instruction(f"sub i64 0, {self._emit(operand)}")
            case ast.Call(func=ast.Name(id=name), args=[left, right]) if name in _INTRINSICS:
                a, b = self._emit(left), self._emit(right)
                return self.instruction(f"call i64 @{_INTRINSICS[name]}(i64 {a}, i64 {b})")
            case ast.IfExp(test=test, body=body, orelse=other):
                chosen = self.instruction(f"icmp ne i64 {self._emit(test)}, 0")
                a, b = self._emit(body), self._emit(other)
                return self.instruction(f"select i1 {chosen}, i64 {a}, i64 {b}")
            case ast.Compare(left=left, ops=[comparison], comparators=[right]) if type(comparison) in _COMPARE:
                a, b = self._emit(left), self._emit(right)
                bit = self.instruction(f"icmp {_COMPARE[type(comparison)]} i64 {a}, {b}")
                return self.instruction(f"zext i1 {bit} to i64")
        raise CompilerBug(f"the extent {ast.unparse(node)!r} is not arithmetic over symbols")

    def _divide(self, a: str, b: str) -> tuple[str, str]:
        """Quotient and remainder of floor division; 0 where the divisor is 0 (a processor would trap)."""
        zero = self.instruction(f"icmp eq i64 {b}, 0")
        divisor = self.instruction(f"select i1 {zero}, i64 1, i64 {b}")
        dividend = self.instruction(f"select i1 {zero}, i64 0, i64 {a}")
        quotient = self.instruction(f"sdiv i64 {dividend}, {divisor}")
        remainder = self.instruction(f"srem i64 {dividend}, {divisor}")
        signs = self.instruction(f"xor i64 {remainder}, {divisor}")
        differ = self.instruction(f"icmp slt i64 {signs}, 0")
        rest = self.instruction(f"icmp ne i64 {remainder}, 0")
        below = self.instruction(f"and i1 {differ}, {rest}")
        step = self.instruction(f"zext i1 {below} to i64")
        shift = self.instruction(f"select i1 {below}, i64 {divisor}, i64 0")
        return self.instruction(f"sub i64 {quotient}, {step}"), self.instruction(f"add i64 {remainder}, {shift}")
