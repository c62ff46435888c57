"""MXNet's two files: a symbol as JSON, in its old and new layouts, and named arrays one after the other."""

from __future__ import annotations

import io
import json
import math
import struct
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.graph.ir.op import Array
from tilewright.support.errors import UnsupportedError, UserError

_LIST_MAGIC = 0x112
_V1, _V2, _V3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA
_TYPES = ("<f4", "<f8", "<f2", "|u1", "<i4", "|i1", "<i8", "|b1", "<i2", "<u2", "<u4", "<u8")
_MOST_DIMENSIONS = 32
_MOST_DEPTH = 32


@dataclass(frozen=True)
class SymbolNode:
    """A node of a symbol: a variable where `op` is `null`."""

    op: str
    name: str
    attributes: Mapping[str, str]
    inputs: Sequence[tuple[int, int]]
    """Numbers of nodes, and which of their results."""
    subgraphs: Sequence[Symbol] = ()


@dataclass(frozen=True)
class Symbol:
    """Nodes in an order in which they can be computed, and which of their results are asked for."""

    nodes: Sequence[SymbolNode]
    arguments: Sequence[int]
    heads: Sequence[tuple[int, int]]
    version: int = 0
    names: Sequence[str] = field(default_factory=list)


def read_symbol(text: str, where: str) -> Symbol:
    """The symbol of a JSON text."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"the text is no JSON: {error}", where=where, hint="is the file cut short?") from error
    return _symbol(document, where, 0)


def _symbol(document: Any, where: str, depth: int) -> Symbol:
    if not isinstance(document, dict) or not isinstance(document.get("nodes"), list) or depth > _MOST_DEPTH:
        raise UserError("the JSON text is no symbol of MXNet: it has no nodes", where=where)
    nodes: list[SymbolNode] = []
    for number, item in enumerate(document["nodes"]):
        nodes.append(_node(item, number, where, depth))
    for node in nodes:
        if any(not 0 <= at < len(nodes) for at, _ in node.inputs):
            raise UserError(f"the node '{node.name}' reads a node that is not there", where=where)
    heads = _pairs(document.get("heads", [[len(nodes) - 1, 0]]), "heads", where)
    if any(not 0 <= at < len(nodes) for at, _ in heads):
        raise UserError("the symbol gives a node that is not there", where=where)
    arguments = document.get("arg_nodes", [at for at, node in enumerate(nodes) if node.op == "null"])
    if not _are_whole(arguments) or any(not 0 <= at < len(nodes) for at in arguments):
        raise UserError("arg_nodes are no numbers of nodes", where=where)
    version = document.get("attrs", {})
    version = version.get("mxnet_version", [0, 0]) if isinstance(version, dict) else [0, 0]
    number = version[1] if isinstance(version, list) and len(version) > 1 and isinstance(version[1], int) else 0
    return Symbol(nodes, arguments, heads, number)


def _are_whole(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, int) for value in values)


def _pairs(values: Any, what: str, where: str) -> list[tuple[int, int]]:
    """Pairs of numbers; old files say the first one alone, new ones a version behind them."""
    found: list[tuple[int, int]] = []
    for value in values if isinstance(values, list) else [None]:
        item = [value] if isinstance(value, int) else value
        if not _are_whole(item) or not item:
            raise UserError(f"{what} are no pairs of numbers", where=where)
        found.append((item[0], item[1] if len(item) > 1 else 0))
    return found


def _node(item: Any, number: int, where: str, depth: int) -> SymbolNode:
    if not isinstance(item, dict) or not isinstance(item.get("op"), str):
        raise UserError(f"node {number} is no operator", where=where)
    attributes: dict[str, str] = {}
    # What was one dictionary of options was two once: those of the operator and those of users.
    for key in ("attr", "attrs", "param"):
        part = item.get(key, {})
        if isinstance(part, dict):
            attributes |= {name: str(value) for name, value in part.items()}
    name = str(item.get("name", f"{item['op']}{number}"))
    subgraphs = item.get("subgraphs", [])
    inner = [_symbol(part, f"{where}, in '{name}'", depth + 1) for part in subgraphs if isinstance(subgraphs, list)]
    return SymbolNode(item["op"], name, attributes, _pairs(item.get("inputs", []), "inputs", where), inner)


class _Reader:
    """Reads numbers from bytes; never more than there are."""

    def __init__(self, content: bytes, where: str) -> None:
        self.content, self.where, self.at = content, where, 0

    def bytes(self, count: int) -> bytes:
        if count < 0 or count > len(self.content) - self.at:
            raise UserError(
                f"the file ends early: {count} bytes are wanted at byte {self.at}, "
                f"{len(self.content) - self.at} are left",
                where=self.where,
                hint="download or export the model again",
            )
        self.at += count
        return self.content[self.at - count : self.at]

    def number(self, form: str) -> int:
        return int(struct.unpack(f"<{form}", self.bytes(struct.calcsize(form)))[0])

    def numbers(self, form: str, count: int) -> list[int]:
        return list(struct.unpack(f"<{count}{form}", self.bytes(count * struct.calcsize(form))))


def read_arrays(content: bytes, where: str) -> dict[str, Array]:
    """The arrays of a .params file by their names: `arg:` and `aux:` are taken off."""
    if content.startswith(b"PK\x03\x04"):
        return _from_archive(content, where)
    reader = _Reader(content, where)
    if reader.number("Q") != _LIST_MAGIC:
        raise UserError("this is no file of MXNet arrays: its first bytes are others", where=where)
    reader.number("Q")
    count = reader.number("Q")
    if count > len(content):
        raise UserError(f"a file of {len(content)} bytes cannot hold {count} arrays", where=where)
    arrays = [_array(reader) for _ in range(count)]
    names = [reader.bytes(reader.number("Q")).decode("utf-8", "replace") for _ in range(reader.number("Q"))]
    if len(names) != len(arrays):
        raise UserError(f"the file has {len(arrays)} arrays and {len(names)} names", where=where)
    return {plain_name(name): array for name, array in zip(names, arrays, strict=True) if array is not None}


def plain_name(name: str) -> str:
    """A name without `arg:` or `aux:`."""
    return name.split(":", 1)[1] if name.startswith(("arg:", "aux:")) else name


def _from_archive(content: bytes, where: str) -> dict[str, Array]:
    """Arrays as MXNet 2 writes them: an archive of numpy."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            return {plain_name(name): np.asarray(file[name]) for name in file.files}
    except (zipfile.BadZipFile, ValueError, OSError, KeyError, EOFError, NotImplementedError) as error:
        raise UserError(f"the archive of arrays is damaged: {error}", where=where) from error


def _shape(reader: _Reader, form: str, count: int) -> tuple[int, ...]:
    if not 0 <= count <= _MOST_DIMENSIONS:
        raise UserError(f"an array of {count} dimensions", where=reader.where)
    shape = tuple(reader.numbers(form, count))
    if any(size < 0 for size in shape):
        raise UserError(f"an array of shape {shape}", where=reader.where)
    return shape


def _array(reader: _Reader) -> Array | None:
    """One array of any version; None if it has no value."""
    magic = reader.number("I")
    if magic in (_V2, _V3):
        if reader.number("i") > 0:
            raise UnsupportedError("a sparse array", where=reader.where, hint="save it dense: array.tostype('default')")
        count = reader.number("i")
        if count < 0 or (count == 0 and magic == _V2):
            return None
        shape = _shape(reader, "q", count)
    elif magic == _V1:
        shape = _shape(reader, "q", reader.number("I"))
    else:
        shape = _shape(reader, "I", magic)  # the oldest form begins with the number of dimensions
    if not shape and magic != _V3:
        return None
    reader.numbers("i", 2)  # the device it lay on
    kind = reader.number("i")
    if not 0 <= kind < len(_TYPES):
        raise UnsupportedError(f"an array of the type number {kind}", where=reader.where)
    dtype = np.dtype(_TYPES[kind])
    data = reader.bytes(math.prod(shape) * dtype.itemsize)
    return np.frombuffer(data, dtype).reshape(shape)
