"""The script dialect: loop programs as Python text, printed and parsed back the same (`docs/script.md`)."""

from __future__ import annotations

from tilewright.ir.codec import Codec, register_codec
from tilewright.ir.function import ExternFunc, IRModule
from tilewright.tir.buffer import Buffer, BufferRegion
from tilewright.tir.function import PrimFunc
from tilewright.tir.script.decorator import ScriptDecorator, script
from tilewright.tir.script.parser import parse_script
from tilewright.tir.script.printer import to_script
from tilewright.tir.script.source import ScriptError
from tilewright.tir.stmt import Stmt

__all__ = ["ScriptDecorator", "ScriptError", "parse_script", "script", "to_script"]


def _handles(value: object) -> bool:
    if isinstance(value, IRModule):
        known = all(isinstance(item, (PrimFunc, ExternFunc)) for item in value.functions.values())
        return known and bool(value.functions) and not value.types
    return isinstance(value, (PrimFunc, Stmt, Buffer, BufferRegion))


register_codec(Codec("tir", ".py", _handles, to_script, parse_script))
