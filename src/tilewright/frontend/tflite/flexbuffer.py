"""A reader of the flexbuffers that hold options of custom operators: maps of numbers and texts, each step checked."""

from __future__ import annotations

import struct
from typing import Any

from tilewright.support.errors import UserError

_INT, _UINT, _FLOAT, _KEY, _TEXT = 1, 2, 3, 4, 5
_INDIRECT_INT, _INDIRECT_UINT, _INDIRECT_FLOAT, _MAP, _BOOL = 6, 7, 8, 9, 26
_FORMATS = {
    _INT: {1: "b", 2: "h", 4: "i", 8: "q"},
    _UINT: {1: "B", 2: "H", 4: "I", 8: "Q"},
    _FLOAT: {2: "e", 4: "f", 8: "d"},
}
_MOST = 256
"""The most entries of a map of options."""


def read_map(data: bytes) -> dict[str, Any]:
    """The map of options; entries that are neither numbers nor texts are left out."""
    if len(data) < 3:
        raise _damaged()
    width, kind = data[-1], data[-2]
    if width not in (1, 2, 4, 8) or kind >> 2 != _MAP:
        raise _damaged()
    return _map(data, _target(data, len(data) - 2 - width, width), 1 << (kind & 3))


def _damaged() -> UserError:
    return UserError("the options of the custom operator are damaged", hint="convert or download the model again")


def _number(data: bytes, place: int, kind: int, width: int) -> Any:
    form = _FORMATS[kind].get(width)
    if form is None or not 0 <= place <= len(data) - width:
        raise _damaged()
    return struct.unpack_from("<" + form, data, place)[0]


def _target(data: bytes, place: int, width: int) -> int:
    return place - int(_number(data, place, _UINT, width))


def _key(data: bytes, place: int) -> str:
    end = data.find(b"\0", max(place, 0))
    if place < 0 or end < 0:
        raise _damaged()
    return data[place:end].decode(errors="replace")


def _map(data: bytes, place: int, width: int) -> dict[str, Any]:
    count = int(_number(data, place - width, _UINT, width))
    if count > _MOST:
        raise _damaged()
    keys = _target(data, place - 3 * width, width)
    key_width = int(_number(data, place - 2 * width, _UINT, width))
    result: dict[str, Any] = {}
    for at in range(count):
        name = _key(data, _target(data, keys + at * key_width, key_width))
        packed = int(_number(data, place + count * width + at, _UINT, 1))
        value = _value(data, place + at * width, packed >> 2, width, 1 << (packed & 3))
        if value is not None:
            result[name] = value
    return result


def _value(data: bytes, place: int, kind: int, width: int, inner: int) -> Any:
    if kind in _FORMATS:
        return _number(data, place, kind, width)
    if kind == _BOOL:
        return bool(_number(data, place, _UINT, width))
    if kind in (_INDIRECT_INT, _INDIRECT_UINT, _INDIRECT_FLOAT):
        return _number(data, _target(data, place, width), kind - _INDIRECT_INT + _INT, inner)
    if kind == _KEY:
        return _key(data, _target(data, place, width))
    if kind == _TEXT:
        start = _target(data, place, width)
        size = int(_number(data, start - inner, _UINT, inner))
        if start < 0 or start + size > len(data):
            raise _damaged()
        return data[start : start + size].decode(errors="replace")
    return None
