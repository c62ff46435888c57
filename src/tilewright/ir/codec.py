"""Texts of the IR: printers and parsers of each level, registered from above so that this floor need not know them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Codec:
    """How one level of the IR is printed and parsed.

    `handles` says whether a value (a function, a module, a node) is of this level; `parse(text, source)` reads what
    `print` wrote, `source` being the name of the file for messages. `parse_beside(text, source, value)` reads a text
    that takes the place of a value and may refer to parts of it that the text leaves out (large constants).
    """

    name: str
    suffix: str
    handles: Callable[[object], bool]
    print: Callable[[object], str]
    parse: Callable[[str, str], object]
    parse_beside: Callable[[str, str, object], object] | None = None


_codecs: dict[str, Codec] = {}


def register_codec(codec: Codec) -> None:
    """Make a level's texts known (a later one of the same name takes its place)."""
    _codecs[codec.name] = codec


def codec_for(value: object) -> Codec | None:
    """The codec that handles a value, if any."""
    for codec in _codecs.values():
        if codec.handles(value):
            return codec
    return None


def to_text(value: object) -> str:
    """The printed form of any IR value: script where a codec handles it, else the plain representation of nodes."""
    codec = codec_for(value)
    return codec.print(value) if codec is not None else str(value)
