"""Values of the virtual machine, and how values of users become such: checked against the program's types.

A value is a tensor (a numpy array of its storage), a tuple, a sequence (a list), an optional (None when empty),
`DataValue` for algebraic data, `Closure` for functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from tilewright.runtime.core.convert import Array, direct, is_direct, to_storage
from tilewright.runtime.core.dtypes import C_TYPES, is_sub_byte, storage_dtype
from tilewright.runtime.core.shapes import bind_shape
from tilewright.runtime.host.rows import Rows
from tilewright.runtime.vm.types import DataDefinition, Kind, ValueType
from tilewright.support.errors import UserError
from tilewright.support.text import kind_of

_STORAGE = {name: storage_dtype(name) for name in C_TYPES if not is_sub_byte(name)}

Value: TypeAlias = "Array | tuple[Value, ...] | list[Value] | Rows | DataValue | Closure | None"


class DataValue:
    """A value of an algebraic data type: the name of its constructor, and its fields.

    DataValue("Cons", (head, DataValue("Nil")))
    """

    __slots__ = ("constructor", "fields")

    def __init__(self, constructor: str, fields: Sequence[Any] = ()) -> None:
        self.constructor = constructor
        self.fields = tuple(fields)

    def __repr__(self) -> str:
        # Nested data is not entered: lists may be thousands long.
        fields = (f"{f.constructor}(...)" if isinstance(f, DataValue) else repr(f) for f in self.fields)
        return f"{self.constructor}({', '.join(fields)})"


class Closure:
    """A function value: the number of a function, what it captured, and captured symbols."""

    __slots__ = ("captured", "function", "symbols")

    def __init__(self, function: int, captured: tuple[Value, ...], symbols: tuple[int, ...]) -> None:
        self.function = function
        self.captured = captured
        self.symbols = symbols


def admit_tensor(value: object, expected: ValueType, symbols: dict[str, int], where: str) -> Array:
    """A tensor that a user passes, checked and as compiled code reads it; symbols take their values."""
    # Quick for what most calls pass; everything else is looked at more closely.
    is_plain = type(value) is np.ndarray and value.shape == expected.shape and is_direct(value)
    if is_plain and isinstance(value, np.ndarray) and value.dtype == _STORAGE.get(expected.name):
        return value
    if expected.name == "string":
        array = np.asarray(value, object)
        if not all(isinstance(item, str) for item in array.reshape(-1)):
            raise UserError(f"{where} must hold texts")
    else:
        array, name = to_storage(value, expected.name, where)
        if name != expected.name:
            raise UserError(
                f"{where} has the data type {name}, expected {expected.name}",
                hint=f"convert it, for example with .astype('{expected.name}')",
            )
        array = direct(array)
    if expected.kind is not Kind.ANY_SHAPE:
        bind_shape(expected.shape, array.shape, symbols, where)
    return array


class Admission:
    """Turns what users pass into values. Data may be nested as deep as memory allows."""

    def __init__(self, definitions: Sequence[DataDefinition]) -> None:
        self.definitions: Mapping[str, Mapping[str, tuple[ValueType, ...]]] = {
            item.name: dict(item.constructors) for item in definitions
        }

    def admit(self, value: object, expected: ValueType, symbols: dict[str, int], where: str) -> Value:
        """A value that must be of a type; `where` names it in messages."""
        if expected.kind is Kind.TENSOR:
            return admit_tensor(value, expected, symbols, where)
        done: list[Value] = []
        # What is left to do: a value to take in, or a number of finished parts to put together.
        stack: list[tuple[Any, ...]] = [(value, expected, (), where)]
        while stack:
            task = stack.pop()
            if len(task) == 2:
                name, count = task
                parts = done[len(done) - count :]
                del done[len(done) - count :]
                done.append(_put_together(name, parts))
                continue
            item, kind, arguments, place = task
            while kind.kind is Kind.VARIABLE and kind.number < len(arguments):
                kind, arguments = arguments[kind.number]
            if kind.kind in (Kind.TENSOR, Kind.ANY_SHAPE):
                done.append(admit_tensor(item, kind, symbols, place))
            elif kind.kind is Kind.OPTIONAL and item is None:
                done.append(None)
            elif kind.kind is Kind.OPTIONAL:
                stack.append((item, kind.items[0], arguments, place))
            else:
                self._enter(item, kind, arguments, place, stack)
        return done[0]

    def _enter(
        self, item: Any, kind: ValueType, arguments: tuple[Any, ...], place: str, stack: list[tuple[Any, ...]]
    ) -> None:
        name: str
        types: tuple[ValueType, ...]
        parts: Sequence[Any]
        if kind.kind is Kind.TUPLE:
            if not isinstance(item, (tuple, list)) or len(item) != len(kind.items):
                raise UserError(f"{place} must be a tuple of {len(kind.items)} values")
            name, types, parts = "tuple", kind.items, item
        elif kind.kind is Kind.SEQUENCE:
            if not isinstance(item, (tuple, list)):
                raise UserError(f"{place} must be a list of values, not {kind_of(item)}")
            name, types, parts = "list", kind.items * len(item), item
        elif kind.kind is Kind.DATA:
            name, types, parts = self._data(item, kind, place)
            arguments = tuple((argument, arguments) for argument in kind.items)
        else:
            raise UserError(f"{place} cannot be passed to a compiled model: it is a function")
        stack.append((name, len(types)))
        pairs = list(enumerate(zip(parts, types, strict=True)))
        inner = place if kind.kind is Kind.DATA else f"{place}[{{}}]"
        for number, (part, expected) in reversed(pairs):
            stack.append((part, expected, arguments, inner.format(number)))

    def _data(self, item: Any, kind: ValueType, place: str) -> tuple[str, tuple[ValueType, ...], Sequence[Any]]:
        constructor = getattr(item, "constructor", None)
        name = constructor if isinstance(constructor, str) else getattr(constructor, "name", None)
        known = self.definitions.get(kind.name, {})
        if not isinstance(name, str) or name not in known:
            shown = f"'{name}'" if isinstance(name, str) else f"a {type(item).__name__}"
            raise UserError(
                f"{place} must be a value of the type {kind.name}, not {shown}",
                hint=f"runtime.DataValue(constructor, fields) with {', '.join(known) or 'its constructors'}",
            )
        if len(item.fields) != len(known[name]):
            raise UserError(f"{place}: {name} has {len(known[name])} fields, not {len(item.fields)}")
        return name, known[name], item.fields


def _put_together(name: str, parts: list[Value]) -> Value:
    if name == "tuple":
        return tuple(parts)
    return parts if name == "list" else DataValue(name, parts)


def contiguous(value: Any) -> Value:
    """What a host function gave, as compiled code reads it: contiguous arrays, also inside tuples and sequences."""
    if isinstance(value, np.ndarray):
        return value if value.dtype.kind == "O" else direct(value)
    if isinstance(value, tuple):
        return tuple(contiguous(item) for item in value)
    if isinstance(value, list):
        return [contiguous(item) for item in value]
    return np.asarray(value) if isinstance(value, np.generic) else value
