"""Reader of portable StableHLO bytecode: MLIR's bytecode with operations, types and attributes of the VHLO dialect.

VHLO is StableHLO with a version on every operation (`vhlo.add_v1`): what is read is brought back to StableHLO's names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tilewright.frontend.stablehlo.bytes_reader import BytesReader
from tilewright.frontend.stablehlo.program import (
    Block,
    FunctionDefinition,
    Location,
    Operation,
    OtherSpec,
    Program,
    Spec,
    Value,
    notes_of,
)
from tilewright.frontend.stablehlo.vhlo import Entries, as_stablehlo
from tilewright.frontend.stablehlo.vhlo_attributes import ATTRIBUTES
from tilewright.support.errors import UnsupportedError, UserError

MAGIC = b"ML\xefR"
_NEWEST = 6
"""The newest version of the format that is read."""
_STRINGS, _DIALECTS, _ENTRIES, _OFFSETS, _IR, _VERSIONS, _PROPERTIES = 0, 1, 2, 3, 4, 7, 8
_HAS_ATTRIBUTES, _HAS_RESULTS, _HAS_OPERANDS, _HAS_SUCCESSORS, _HAS_REGIONS, _HAS_ORDERS, _HAS_PROPERTIES = (
    1 << bit for bit in range(7)
)
_UNKNOWN = OtherSpec("unknown")
_MOST_NESTED = 100
_MOST_VALUES = 1 << 24


def read_bytecode(data: bytes) -> Program:
    """The program that bytecode holds."""
    try:
        return _ModuleReader(data).program()
    except RecursionError:
        raise UserError("the MLIR bytecode is nested too deeply") from None


@dataclass(slots=True)
class _Header:
    """What the operations refer to by number."""

    version: int = 0
    strings: list[str] = field(default_factory=list)
    operations: list[str] = field(default_factory=list)
    properties: list[BytesReader] = field(default_factory=list)


class _ModuleReader:
    """One module."""

    def __init__(self, data: bytes) -> None:
        reader = BytesReader(data)
        if reader.take(4) != MAGIC:
            reader.fail("the first bytes are wrong")
        self.header = _Header(version=reader.number())
        if self.header.version > _NEWEST:
            raise UnsupportedError(
                f"MLIR bytecode of version {self.header.version} is not supported",
                hint=f"serialise it for an older version: at most {_NEWEST} is read",
            )
        reader.text()  # who wrote it
        self.sections: dict[int, BytesReader] = {}
        while not reader.is_done:
            kind, content = reader.section()
            self.sections[kind] = content
        self.header.strings = _strings(self._section(_STRINGS))
        dialects = self._dialects(self._section(_DIALECTS))
        self.entries = Entries(self._section(_ENTRIES), self._section(_OFFSETS), dialects, self.header.strings)
        if _PROPERTIES in self.sections:
            content = self.sections[_PROPERTIES]
            self.header.properties = [content.part(content.number()) for _ in range(content.count())]
        self.values: list[list[Value]] = [[]]
        """The values of each function (or other part that sees nothing outside), by number."""
        self.firsts: list[int] = []
        """The number of the next value of each region that is being read."""

    def _section(self, kind: int) -> BytesReader:
        if kind not in self.sections:
            raise UserError(f"the MLIR bytecode has no section {kind}")
        return self.sections[kind]

    def _string(self, number: int) -> str:
        if number >= len(self.header.strings):
            raise UserError(f"the MLIR bytecode has no text {number}")
        return self.header.strings[number]

    def _dialects(self, content: BytesReader) -> list[str]:
        """The names of dialects; fills the names of operations."""
        names: list[str] = []
        for _ in range(content.count()):
            word = content.number()
            names.append(self._string(word >> 1 if self.header.version >= 1 else word))
            if self.header.version >= 1 and word & 1:
                content.section()
        if self.header.version >= 4:
            content.number()  # how many names of operations there are
        while not content.is_done:
            dialect = content.number()
            if dialect >= len(names):
                content.fail(f"there is no dialect {dialect}")
            for _ in range(content.count()):
                word = content.number()
                name = self._string(word >> 1 if self.header.version >= 5 else word)
                self.header.operations.append(f"{names[dialect]}.{name}")
        return names

    # Operations

    def program(self) -> Program:
        """The module as a program."""
        functions: dict[str, FunctionDefinition] = {}
        content = self._section(_IR)
        self.firsts.append(0)
        top = self._block(content, 0)
        modules = [item for item in top.operations if item.name == "builtin.module"]
        if len(modules) != 1 or len(modules[0].regions) != 1:
            raise UserError("the MLIR bytecode holds no module")
        for operation in modules[0].regions[0].operations:
            if operation.name != "func.func" or len(operation.regions) != 1:
                raise UserError(f"the module holds {operation.name}, not a function")
            function = _function(operation)
            functions[function.name] = function
        if not functions:
            raise UserError("the MLIR bytecode has no functions")
        return Program(str(modules[0].attributes.get("sym_name", "main")), functions)

    def _region(self, content: BytesReader, depth: int) -> Block:
        count = content.number()
        if count == 0:
            return Block([], [])
        if count > 1:
            raise UnsupportedError("several blocks in a region are not supported")
        size = content.number()
        scope = self.values[-1]
        if size + len(scope) > _MOST_VALUES:
            content.fail(f"a region of {size} values")
        start = len(scope)
        scope.extend(Value(_UNKNOWN) for _ in range(size))
        self.firsts.append(start)
        block = self._block(content, depth)
        self.firsts.pop()
        del scope[start:]
        return block

    def _define(self, content: BytesReader, spec: Spec, location: Location | None = None) -> Value:
        """The next value of the region that is being read."""
        scope, number = self.values[-1], self.firsts[-1]
        if number >= len(scope):
            content.fail("there are more values than were said")
        self.firsts[-1] += 1
        value = scope[number]
        value.spec, value.location = spec, location
        return value

    def _block(self, content: BytesReader, depth: int) -> Block:
        if depth > _MOST_NESTED:
            content.fail("too many regions inside each other")
        word = content.number()
        arguments: list[Value] = []
        if word & 1:
            for _ in range(content.count()):
                kind = content.number()
                location: Location | None = None
                if self.header.version >= 4:
                    if kind & 1:
                        location = self.entries.location(content.number())
                    kind >>= 1
                else:
                    location = self.entries.location(content.number())
                arguments.append(self._define(content, self.entries.type(kind), location))
            if self.header.version >= 3 and content.byte():
                self._skip_orders(content, len(arguments))
        operations = [self._operation(content, depth) for _ in range(word >> 1)]
        return Block(arguments, operations)

    def _skip_orders(self, content: BytesReader, count: int) -> None:
        """The order of uses, which nothing here depends on."""
        listed = content.count() if count > 1 else 1
        for _ in range(listed):
            if count > 1:
                content.number()
            word = content.number()
            for _ in range(word >> 1):
                content.number()

    def _operation(self, content: BytesReader, depth: int) -> Operation:
        number = content.number()
        if number >= len(self.header.operations):
            content.fail(f"there is no operation {number}")
        name = self.header.operations[number]
        mask = content.byte()
        location = self.entries.location(content.number())
        attributes: dict[str, Any] = {}
        if mask & _HAS_ATTRIBUTES:
            attributes.update(self.entries.mapping(content.number()))
        if mask & _HAS_PROPERTIES:
            attributes.update(self._properties(content.number(), name))
        results: list[Value] = []
        if mask & _HAS_RESULTS:
            results = [
                self._define(content, self.entries.type(content.number()), location) for _ in range(content.count())
            ]
        operands: list[Value] = []
        if mask & _HAS_OPERANDS:
            operands = [self._value(content) for _ in range(content.count())]
        if mask & _HAS_SUCCESSORS:
            raise UnsupportedError("branches between blocks are not supported")
        if mask & _HAS_ORDERS:
            self._skip_orders(content, len(results))
        regions = self._regions(content, depth) if mask & _HAS_REGIONS else []
        plain, given = as_stablehlo(name, attributes)
        for value in results:
            value.location = None
        return Operation(plain, operands, given, results, regions, location)

    def _value(self, content: BytesReader) -> Value:
        number = content.number()
        if number >= len(self.values[-1]):
            content.fail(f"there is no value {number}")
        return self.values[-1][number]

    def _properties(self, number: int, name: str) -> dict[str, Any]:
        """What an operation keeps apart from other attributes, by its number: one after the other, in a known order."""
        if number >= len(self.header.properties):
            raise UserError(f"the MLIR bytecode has no properties {number}")
        stored = self.header.properties[number]
        content = BytesReader(stored.data, stored.at, stored.end)
        if name == "builtin.module":
            word = content.number()  # an attribute that may be missing
            return {"sym_name": self.entries.attribute(word >> 1)} if word & 1 else {}
        dialect, _, plain = name.partition(".")
        if dialect != "vhlo":
            return {}
        return {key: self.entries.attribute(content.number()) for key in ATTRIBUTES.get(plain, "").split()}

    def _regions(self, content: BytesReader, depth: int) -> list[Block]:
        word = content.number()
        if word & 1:
            inner = content
            if self.header.version >= 2:
                kind, inner = content.section()
                if kind != _IR:
                    content.fail(f"a section {kind} in the place of a region")
            self.values.append([])
            found = [self._region(inner, depth + 1) for _ in range(word >> 1)]
            self.values.pop()
            return found
        return [self._region(content, depth + 1) for _ in range(word >> 1)]


def _strings(content: BytesReader) -> list[str]:
    """Texts: their lengths, the last first, then the texts, each with a zero behind it."""
    count = content.count()
    lengths = [content.number() for _ in range(count)]
    found = []
    for length in reversed(lengths):
        if length < 1:
            content.fail("a text of no length")
        found.append(content.take(length)[:-1].decode("utf-8", "replace"))
    return found


def _function(operation: Operation) -> FunctionDefinition:
    attributes, body = operation.attributes, operation.regions[0]
    return FunctionDefinition(
        str(attributes.get("sym_name", "main")),
        body,
        notes_of(attributes.get("arg_attrs"), len(body.arguments)),
        notes_of(attributes.get("res_attrs"), len(body.results)),
        attributes.get("sym_visibility") != "private",
    )
