"""Reader of StableHLO text: modules, functions and operations in their pretty and in their generic form."""

from __future__ import annotations

import re
from typing import Any

from tilewright.frontend.stablehlo.pretty import Reader, read_pretty
from tilewright.frontend.stablehlo.program import (
    Block,
    FunctionDefinition,
    Operation,
    Program,
    Spec,
    Value,
    notes_of,
)
from tilewright.support.errors import UserError

_NAMED_LOCATION = re.compile(r"^#(loc[A-Za-z0-9_]*) = (?=loc\()", re.MULTILINE)
_ALIAS = re.compile(r"^#([A-Za-z_][A-Za-z0-9_]*) = (?!loc\()", re.MULTILINE)
_TYPE_ALIAS = re.compile(r"^!([A-Za-z_][A-Za-z0-9_]*) = ", re.MULTILINE)
_RESOURCE = re.compile(r"([A-Za-z0-9_$.\-]+)\s*:\s*\"0x([0-9A-Fa-f]*)\"")
_MOST_NESTED = 100
"""Regions inside each other: more are not read."""


def read_text(text: str) -> Program:
    """The program that a text holds."""
    try:
        return TextReader(text).program()
    except RecursionError:
        raise UserError("the StableHLO text is nested too deeply") from None


class TextReader(Reader):
    """The text of one module."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.scopes: list[dict[str, list[Value]]] = [{}]
        """The values that have names, of each region that is being read."""
        self.functions: dict[str, FunctionDefinition] = {}

    def program(self) -> Program:
        """The whole module."""
        self._definitions()
        name = "main"
        while True:
            self._skip_definitions()
            if self.at >= len(self.text) or self.sees("{-#"):
                break
            name = self._top_level() or name
        if not self.functions:
            raise UserError("the StableHLO text has no functions")
        return Program(name, self.functions)

    def _definitions(self) -> None:
        """What the text names for itself: locations, attributes, types, resources."""
        for match in _NAMED_LOCATION.finditer(self.text):
            self.locations[match[1]] = (match.end(), match.start())
        footer = self.text.rfind("{-#")
        if footer >= 0:
            # Resources begin with four bytes that say how they are aligned.
            for match in _RESOURCE.finditer(self.text, footer):
                self.resources[match[1]] = bytes.fromhex(match[2])[4:]
        for match in _TYPE_ALIAS.finditer(self.text):
            self.at = match.end()
            self.type_aliases[match[1]] = self.type()
        for match in _ALIAS.finditer(self.text):
            self.at = match.end()
            self.aliases[match[1]] = self.attribute()
        self.at = 0

    def _skip_definitions(self) -> None:
        self.skip()
        while self.at < len(self.text) and self.text[self.at] in "#!":
            end = self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end
            self.skip()

    def _top_level(self) -> str | None:
        """A module (whose name comes back) or a function."""
        if self.sees('"builtin.module"'):
            return self._generic_module()
        if self.accept_word("builtin.module") or self.accept_word("module"):
            name = self.symbol()
            if self.accept_word("attributes"):
                self.mapping()
            self._functions_in_braces()
            self.skip_location()
            return None if name is None else str(name)
        self._function()
        return None

    def _generic_module(self) -> str | None:
        self.string()
        self.expect("(")
        self.expect(")")
        properties: dict[str, Any] = {}
        if self.accept("<{"):
            self.at -= 1
            properties = self.mapping()
            self.expect(">")
        self.expect("(")
        self._functions_in_braces()
        self.expect(")")
        if self.sees("{"):
            properties.update(self.mapping())
        self.expect(":")
        self.type()
        self.skip_location()
        found = properties.get("sym_name")
        return found if isinstance(found, str) else None

    def _functions_in_braces(self) -> None:
        self.expect("{")
        while not self.accept("}"):
            if self.at >= len(self.text):
                self.fail("the module has no end")
            if self.accept("^"):
                self.word()
                self.expect(":")
            self._function()

    def _function(self) -> None:
        if self.sees('"'):
            self._generic_function()
            return
        if not (self.accept_word("func.func") or self.accept_word("func")):
            self.fail("a function is missing")
        visibility = ""
        while not self.sees("@"):
            visibility = self.word() or self.fail("the name of a function is missing")
        name = str(self.symbol())
        arguments, notes = self._parameters()
        results: list[dict[str, Any]] = []
        if self.accept("->"):
            results = self._result_notes()
        if self.accept_word("attributes"):
            self.mapping()
        body = self.region(arguments)
        self.skip_location()
        self._add(FunctionDefinition(name, body, notes, results, visibility != "private"))

    def _add(self, function: FunctionDefinition) -> None:
        if function.name in self.functions:
            self.fail(f"there are two functions @{function.name}")
        self.functions[function.name] = function

    def _parameters(self) -> tuple[list[Value], list[dict[str, Any]]]:
        self.expect("(")
        values: list[Value] = []
        notes: list[dict[str, Any]] = []
        while not self.accept(")"):
            name = self.value_name() or self.fail("the name of an argument is missing")
            self.expect(":")
            kind = self.type()
            notes.append(self.mapping() if self.sees("{") else {})
            values.append(Value(kind, name[0], self.skip_location()))
            self.accept(",")
        return values, notes

    def _result_notes(self) -> list[dict[str, Any]]:
        if not self.accept("("):
            self.type()
            return [{}]
        found: list[dict[str, Any]] = []
        while not self.accept(")"):
            self.type()
            found.append(self.mapping() if self.sees("{") else {})
            self.accept(",")
        return found

    def _generic_function(self) -> None:
        operation = self.operation()
        if operation.name != "func.func" or len(operation.regions) != 1:
            self.fail(f"a function is missing, not {operation.name}")
        attributes = operation.attributes
        body = operation.regions[0]
        self._add(
            FunctionDefinition(
                str(attributes.get("sym_name", "main")),
                body,
                notes_of(attributes.get("arg_attrs"), len(body.arguments)),
                notes_of(attributes.get("res_attrs"), len(body.results)),
                attributes.get("sym_visibility") != "private",
            )
        )

    # Regions and operations

    def region(self, arguments: list[Value] | None = None) -> Block:
        """Operations in braces; the arguments are those given, or of a label at their front."""
        if len(self.scopes) > _MOST_NESTED:
            self.fail("too many regions inside each other")
        self.expect("{")
        self.scopes.append({})
        if arguments is None:
            arguments = []
            if self.accept("^"):
                self.word()
                if self.sees("("):
                    arguments = self._parameters()[0]
                self.expect(":")
        for argument in arguments:
            self.scopes[-1][argument.name] = [argument]
        operations: list[Operation] = []
        while not self.accept("}"):
            if self.sees("^"):
                self.fail("several blocks in a region are not supported")
            operations.append(self.operation())
        self.scopes.pop()
        return Block(arguments, operations)

    def value(self) -> Value:
        """A value that has been defined."""
        start = self.at
        named = self.value_name()
        if named is None:
            self.fail("a value is missing")
        for scope in reversed(self.scopes):
            if named[0] in scope:
                if named[1] >= len(scope[named[0]]):
                    break
                return scope[named[0]][named[1]]
        self.at = start
        self.fail(f"%{named[0]} is not defined")

    def operation(self) -> Operation:
        """One operation with its results."""
        self.skip()
        if self.at >= len(self.text):
            self.fail("an operation is missing")
        names = self._result_names()
        count = sum(number for _, number in names)
        read = self._generic if self.sees('"') else lambda: read_pretty(self, count)
        made, specs = read()
        if len(specs) != count and count:
            self.fail(f"{made.name} gives {len(specs)} results, not {count}")
        made.location = self.skip_location()
        made.results = [Value(spec) for spec in specs]
        rest = iter(made.results)
        for name, number in names:
            values = [next(rest) for _ in range(number)]
            for value in values:
                value.name = name
            self.scopes[-1][name] = values
        return made

    def _result_names(self) -> list[tuple[str, int]]:
        names: list[tuple[str, int]] = []
        while self.sees("%"):
            named = self.value_name()
            if named is None:
                self.fail("the name of a result is missing")
            count = 1
            if self.accept(":"):
                count = self.number()
            if not 0 < count < 1 << 16:
                self.fail(f"an operation gives {count} results")
            names.append((named[0], count))
            if not self.accept(","):
                self.expect("=")
        return names

    def _generic(self) -> tuple[Operation, list[Spec]]:
        """`"name"(operands) <{properties}> ({regions}) {attributes} : (types) -> types`."""
        name = self.string()
        if name is None:
            self.fail("a text has no end")
        operands: list[Value] = []
        self.expect("(")
        while not self.accept(")"):
            operands.append(self.value())
            self.accept(",")
        attributes: dict[str, Any] = {}
        if self.accept("<{"):
            self.at -= 1
            attributes.update(self.mapping())
            self.expect(">")
        regions: list[Block] = []
        if self.accept("("):
            while not self.accept(")"):
                regions.append(self.region())
                self.accept(",")
        if self.sees("{"):
            attributes.update(self.mapping())
        self.expect(":")
        self.types()
        self.expect("->")
        return Operation(name, operands, attributes, [], regions), self.types()
