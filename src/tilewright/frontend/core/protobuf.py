"""Files of protobuf messages, read by schemas that importers write down in a compact notation.

    SCHEMA = Schema('''
    enum Method MAX=0 AVE=1

    message Layer
      1 name string
      2 bottom string*
      3 method Method = MAX
      4 options map string Value
    ''')
    layer = SCHEMA.read("Layer", content, "net.caffemodel")
    layer.name, list(layer.bottom), layer.HasField("method")

A line of a message is the number of a field, its name and its type; `*` says that it is repeated, `=` gives its
default. Fields that a schema leaves out are skipped. The classes are those of the package `protobuf`, which parses and
checks.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any

from tilewright.support.errors import CompilerBug, MissingDependencyError, UserError

_SCALARS = (
    "double float int64 uint64 int32 fixed64 fixed32 bool string - - bytes uint32 - sfixed32 sfixed64 sint32 sint64"
).split()
"""The types in the order of their numbers in descriptors, from 1."""
_MESSAGE, _ENUM = 11, 14
_OPTIONAL, _REPEATED = 1, 3
_EDITION_2023 = 1000
_PACKAGE = "tilewright"
_FIELD = re.compile(r"(\d+) (\w+) (?:map (\w+) )?([\w.]+)(\*?)(?: = (\S+))?")


class Schema:
    """Messages and enumerations of one format. Each schema has a pool of names of its own."""

    def __init__(self, text: str) -> None:
        self._text = text

    def message(self, name: str) -> Any:
        """The class of a message."""
        return self._classes[f"{_PACKAGE}.{name}"]

    def read(self, name: str, content: bytes, where: str) -> Any:
        """The message that some bytes are; an error says that the file, called `where`, is damaged."""
        from google.protobuf.message import DecodeError

        message = self.message(name)()
        try:
            message.ParseFromString(content)
        except DecodeError as error:
            raise UserError(
                f"this is no message of the kind {name}, or it is damaged: {error}",
                where=where,
                hint="download or export the model again",
            ) from error
        return message

    def read_text(self, name: str, text: str, where: str) -> Any:
        """The message that a text in protobuf's text format is. Fields that the schema does not have are skipped."""
        from google.protobuf import text_format

        message = self.message(name)()
        try:
            text_format.Parse(text, message, allow_unknown_field=True)
        except (text_format.ParseError, RecursionError) as error:
            raise UserError(
                f"the text is no {name}: {error}",
                where=where,
                hint="the error names the line and the column of the text",
            ) from error
        return message

    @cached_property
    def _classes(self) -> dict[str, Any]:
        try:
            from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
        except ImportError as error:
            raise MissingDependencyError.for_extra("protobuf", "protobuf", "reading a protobuf message") from error
        file = descriptor_pb2.FileDescriptorProto(name="schema.proto", package=_PACKAGE, syntax="editions")
        file.edition = _EDITION_2023
        _describe(self._text, file)
        pool = descriptor_pool.DescriptorPool()
        pool.Add(file)
        return dict(message_factory.GetMessageClassesForFiles(["schema.proto"], pool))


def _describe(text: str, file: Any) -> None:
    """Add the messages and enumerations of a text to the descriptor of a file."""
    message: Any = None
    lines = [line.partition("#")[0].rstrip() for line in text.splitlines()]
    enums = {line.split()[1] for line in lines if line.startswith("enum ")}
    for line in filter(None, lines):
        if line.startswith("message "):
            message = file.message_type.add(name=line.split()[1])
        elif line.startswith("enum "):
            _, name, *values = line.split()
            # The labels of an enumeration are names where it stands: a message around it keeps them apart.
            enum = file.message_type.add(name=_scope(name)).enum_type.add(name=name)
            numbers = {int(number): label for label, _, number in (value.partition("=") for value in values)}
            for number, label in sorted(({0: "unset"} | numbers).items()):
                enum.value.add(name=label, number=number)
        else:
            parsed = _FIELD.fullmatch(line.strip())
            if parsed is None or message is None:
                raise CompilerBug(f"a schema has the line {line!r}")
            _add_field(message, parsed, enums)


def _add_field(message: Any, parsed: re.Match[str], enums: set[str]) -> None:
    number, name, key, kind, star, default = parsed.groups()
    field = message.field.add(name=name, number=int(number), label=_REPEATED if star or key else _OPTIONAL)
    if key:
        entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        _set_type(entry.field.add(name="key", number=1, label=_OPTIONAL), key, enums)
        _set_type(entry.field.add(name="value", number=2, label=_OPTIONAL), kind, enums)
        field.type, field.type_name = _MESSAGE, f".{_PACKAGE}.{message.name}.{entry.name}"
        return
    _set_type(field, kind, enums)
    if default is not None:
        field.default_value = default


def _set_type(field: Any, kind: str, enums: set[str]) -> None:
    if kind in _SCALARS:
        field.type = _SCALARS.index(kind) + 1
    elif kind in enums:
        field.type, field.type_name = _ENUM, f".{_PACKAGE}.{_scope(kind)}.{kind}"
    else:
        field.type, field.type_name = _MESSAGE, f".{_PACKAGE}.{kind}"


def _scope(enum: str) -> str:
    return f"{enum}_"
