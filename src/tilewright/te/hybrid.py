"""Hybrid script: a Python function with loops and buffer accesses, read as a schedulable loop program.

    @tw.hybrid
    def add_one(a, b):
        n = var("n")
        A = bind_buffer(a, shape=[n])
        B = bind_buffer(b, shape=[n])
        for i in iter_range(n, iter_type="data_par"):
            A[i] = B[i] + 1

It is the script dialect (`docs/script.md`) with three words more: `var` makes a symbolic dimension, `bind_buffer` says
what a parameter is, and `iter_range` says what a loop promises. Each statement under loops becomes a block, with one
iterator a loop, so that the result can be scheduled.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tilewright.ir.expr import Var
from tilewright.ir.visit import pre_order
from tilewright.tir.buffer import Buffer
from tilewright.tir.enclose import Encloser
from tilewright.tir.function import PrimFunc
from tilewright.tir.script.decorator import Live, Surroundings, definition
from tilewright.tir.script.parser import FunctionParser
from tilewright.tir.script.source import Source
from tilewright.tir.stmt import Block, For, IterKind, LoopKind, Stmt

_ITER_TYPES: Final[dict[str, tuple[IterKind, LoopKind]]] = {
    "data_par": (IterKind.SPATIAL, LoopKind.SERIAL),
    "spatial": (IterKind.SPATIAL, LoopKind.SERIAL),
    "reduce": (IterKind.REDUCE, LoopKind.SERIAL),
    "serial": (IterKind.OPAQUE, LoopKind.SERIAL),
    "opaque": (IterKind.OPAQUE, LoopKind.SERIAL),
    "parallel": (IterKind.SPATIAL, LoopKind.PARALLEL),
    "vectorized": (IterKind.SPATIAL, LoopKind.VECTORIZED),
    "unroll": (IterKind.SPATIAL, LoopKind.UNROLLED),
}
"""What an `iter_type` promises about the iterations, and how the loop runs."""


def hybrid(function: Live) -> PrimFunc:
    """Decorator: the loop program that a Python function describes (it is read, never run)."""
    source = Source.of_live(function)
    return HybridParser(source, Surroundings(function, sys._getframe(1).f_locals)).function(definition(source))


def parse_hybrid(text: str, source: str = "<script>", constants: Mapping[str, object] | None = None) -> PrimFunc:
    """The same from a text."""
    origin = Source(text, source)
    return HybridParser(origin, constants or {}).function(definition(origin))


@dataclass(frozen=True, slots=True)
class _Unbound:
    """A parameter before `bind_buffer` says what it is."""

    name: str


class HybridParser(FunctionParser):
    """The script parser with the words of hybrid script."""

    def __init__(self, source: Source, constants: Mapping[str, object]) -> None:
        super().__init__(source, constants)
        self._buffers: dict[str, Buffer] = {}
        self._placeholders: dict[Var, ast.arg] = {}
        self._kinds: dict[Var, IterKind] = {}

    def untyped_param(self, argument: ast.arg) -> Buffer | Var:
        """A parameter that `bind_buffer` will describe."""
        self.scope.bind(argument.arg, _Unbound(argument.arg))
        placeholder = Var(argument.arg)
        self._placeholders[placeholder] = argument
        return placeholder

    def assigned_words(self) -> frozenset[str]:
        """`A = bind_buffer(...)` is a statement of its own."""
        return frozenset(["bind_buffer"])

    def assign_call(self, node: ast.AST, name: str, call: ast.Call) -> None:
        """`A = bind_buffer(a, shape=[...])`."""
        if self.callee(call) != "bind_buffer":
            super().assign_call(node, name, call)
            return
        keywords = ("shape", "dtype", "scope", "strides", "offset", "alignment")
        self.arguments(call, 1, 1, keywords)
        param = self.value(call.args[0])
        if not isinstance(param, _Unbound):
            raise self.source.error(call.args[0], "bind_buffer needs a parameter that has no type yet")
        if param.name in self._buffers:
            raise self.source.error(call, f"parameter {param.name} is bound to a buffer twice")
        shape = self.keyword(call, "shape")
        if shape is None:
            raise self.source.error(call, "bind_buffer needs the keyword shape, e.g. shape=[n]")
        rest = [keyword for keyword in call.keywords if keyword.arg != "shape"]
        declaration = ast.copy_location(ast.Call(func=call.func, args=[shape], keywords=rest), call)
        buffer = self.new_buffer(declaration, name)
        self._buffers[param.name] = buffer
        self.scope.bind(name, buffer)

    def loop(self, target: ast.Name, call: ast.Call, word: str) -> tuple[Var, Callable[[Stmt], Stmt]]:
        """`iter_range(n, iter_type=...)`, besides the loops of the script dialect."""
        if word != "iter_range":
            var, make = super().loop(target, call, word)
            self._kinds[var] = IterKind.SPATIAL if word in ("parallel", "vectorized") else IterKind.OPAQUE
            return var, make
        self.arguments(call, 1, 2, ("iter_type", "annotations"))
        type_node = self.keyword(call, "iter_type")
        iter_type = self.text(type_node) if type_node is not None else "data_par"
        if iter_type not in _ITER_TYPES:
            raise self.source.error(call, f"there is no iter_type {iter_type!r}", f"one of {', '.join(_ITER_TYPES)}")
        kind, loop_kind = _ITER_TYPES[iter_type]
        rest = [keyword for keyword in call.keywords if keyword.arg != "iter_type"]
        plain = ast.copy_location(ast.Call(func=call.func, args=call.args, keywords=rest), call)
        var, make = super().loop(target, plain, "serial")
        self._kinds[var] = kind

        def finished(body: Stmt) -> Stmt:
            loop = make(body)
            assert isinstance(loop, For)
            return loop.replace(kind=loop_kind)

        return var, finished

    def finish(
        self, node: ast.FunctionDef, params: tuple[Buffer | Var, ...], body: Stmt
    ) -> tuple[tuple[Buffer | Var, ...], Stmt]:
        """Put the bound buffers in place of parameters, and blocks around the statements."""
        complete: list[Buffer | Var] = []
        for param in params:
            argument = self._placeholders.get(param) if isinstance(param, Var) else None
            if argument is None:
                complete.append(param)
            elif argument.arg in self._buffers:
                complete.append(self._buffers[argument.arg])
            else:
                raise self.source.error(
                    argument,
                    f"nothing says what parameter {argument.arg} is",
                    f"bind it, X = bind_buffer({argument.arg}, shape=[...]), or give it a type, {argument.arg}: int64",
                )
        names = {item.name for item in pre_order(body) if isinstance(item, Block)}
        return tuple(complete), Encloser({"root", *names}, complete, self._kinds).inside(body)
