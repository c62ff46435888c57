"""`@tw.script`: a function of the running program, parsed from its source."""

from __future__ import annotations

import ast
import sys
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from typing import overload

from tilewright.ir.function import BaseFunction, IRModule
from tilewright.tir.function import PrimFunc
from tilewright.tir.script.parser import FunctionParser, parse_script
from tilewright.tir.script.printer import to_script
from tilewright.tir.script.source import Source

Live = Callable[..., object]


class Surroundings(Mapping[str, object]):
    """The names that a live function sees: variables of enclosing functions, then globals of its file.

    `local` holds the variables at the place of its definition: annotations that Python does not evaluate use them.
    """

    def __init__(self, function: Live, local: Mapping[str, object]) -> None:
        code = getattr(function, "__code__", None)
        cells = getattr(function, "__closure__", None) or ()
        self._closure: dict[str, object] = {}
        for name, cell in zip(code.co_freevars if code else (), cells, strict=False):
            try:
                self._closure[name] = cell.cell_contents
            except ValueError:
                continue  # not assigned yet: the script cannot mean it
        self._chain = ChainMap(self._closure, dict(local), getattr(function, "__globals__", {}))

    def __getitem__(self, name: str) -> object:
        return self._chain[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._chain)

    def __len__(self) -> int:
        return len(self._chain)


def definition(source: Source) -> ast.FunctionDef:
    """The function definition in the source of a live function."""
    for node in source.parse().body:
        if isinstance(node, ast.FunctionDef):
            return node
    raise source.error(ast.Pass(lineno=1, col_offset=0), "no function definition is found here", "use def, not lambda")


class ScriptDecorator:
    """What `tw.script` is: a decorator, and the names `script.function` and `script.module` of printed texts."""

    def __call__(self, function: Live) -> PrimFunc:
        """Parse a live function."""
        return self._parse(function, sys._getframe(1).f_locals)

    @staticmethod
    def _parse(function: Live, local: Mapping[str, object]) -> PrimFunc:
        source = Source.of_live(function)
        return FunctionParser(source, Surroundings(function, local)).function(definition(source))

    @overload
    def function(self, function: Live) -> PrimFunc: ...

    @overload
    def function(
        self, function: None = None, *, name: str = "", key: str = "", root_block: bool = True
    ) -> Callable[[Live], PrimFunc]: ...

    def function(
        self, function: Live | None = None, *, name: str = "", key: str = "", root_block: bool = True
    ) -> PrimFunc | Callable[[Live], PrimFunc]:
        """`@script.function` or `@script.function(name=..., root_block=...)`; the options are read from the source."""
        return self._parse(function, sys._getframe(1).f_locals) if function is not None else self

    def module(self, cls: type) -> IRModule:
        """`@script.module` on a class whose members are functions."""
        functions = [item for item in vars(cls).values() if isinstance(item, BaseFunction)]
        attributes = vars(cls).get("attributes")
        return IRModule(functions, attributes=attributes if isinstance(attributes, dict) else None)

    def parse(self, text: str, source: str = "<script>") -> PrimFunc | IRModule:
        """The function or module of a text."""
        return parse_script(text, source)

    def print(self, value: object) -> str:
        """The text of a function or module."""
        return to_script(value)


script = ScriptDecorator()
