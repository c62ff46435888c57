"""The table of converters: which function turns which ONNX operator, in which opsets, into graph operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tilewright.frontend.onnx.context import NodeContext
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UserError
from tilewright.support.extensions import note_registration

Converter = Callable[[NodeContext], GraphExpr | Sequence[GraphExpr | None]]
"""Gives the outputs in order; one value stands for a single output, None for an output that was not asked for."""
C = TypeVar("C", bound=Converter)


class UseDefinition(Exception):
    """Raised by a converter that leaves a node to the definition that ONNX itself gives its operator."""


OLDEST_OPSET = 1
"""The oldest opset; forms from before opset 7 go through `legacy.py`."""
NEWEST_OPSET = 28
"""The newest opset of the standard operators that the converters were written for."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A converter for the opsets `since` .. `until`, both included."""

    since: int
    until: int
    convert: Converter


_TABLE: dict[tuple[str, str], list[Entry]] = {}


def converter(*op_types: str, since: int = 1, until: int = 1 << 30, domain: str = "") -> Callable[[C], C]:
    """Register a converter for operators of a domain, from an opset on and up to another.

    Others may register converters for domains of their own. One that is defined again (a cell of a notebook that runs
    twice) takes the place of its former self.
    """

    def register(convert: C) -> C:
        for op_type in op_types:
            entries = [entry for entry in _TABLE.get((domain, op_type), ()) if not _is_same(entry.convert, convert)]
            if any(entry.since <= until and since <= entry.until for entry in entries):
                raise UserError(
                    f"there is a converter for {op_type} of the domain {domain or 'ai.onnx'} in these opsets already",
                    hint="choose other opsets with since= and until=, or a domain of your own with domain=",
                )
            _TABLE[domain, op_type] = [*entries, Entry(since, until, convert)]
        note_registration(convert)
        return convert

    return register


def _is_same(old: Converter, new: Converter) -> bool:
    """Whether a converter was defined at the place of another one."""
    return _place(old) == _place(new) and _place(new) is not None


def _place(convert: Converter) -> tuple[str, str] | None:
    module, name = getattr(convert, "__module__", None), getattr(convert, "__qualname__", "<lambda>")
    return None if module is None or "<lambda>" in name else (module, name)


def find_converter(domain: str, op_type: str, opset: int) -> Converter | None:
    """The converter of an operator in an opset, if there is one."""
    for entry in _TABLE.get((domain, op_type), ()):
        if entry.since <= opset <= entry.until:
            return entry.convert
    return None


def converted_operators() -> dict[tuple[str, str], list[tuple[int, int]]]:
    """What there are converters for: (domain, operator) -> ranges of opsets."""
    return {key: [(entry.since, entry.until) for entry in entries] for key, entries in _TABLE.items()}
