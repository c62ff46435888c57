"""Lowered functions to the text of one LLVM module.

A function `f` becomes two symbols (docs/abi.md): `i32 @f(ptr, ..., i64, ...)` with the parameters in order, and
`i32 @f__packed(ptr slots)` with one 8-byte slot a parameter.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.backends.llvm.context import ModuleContext
from tilewright.backends.llvm.emit_expr import DISPATCH
from tilewright.backends.llvm.emit_stmt import FunctionEmitter
from tilewright.backends.llvm.types import memory_type
from tilewright.codegen.symbols import check_symbols
from tilewright.ir.dtype import DataType
from tilewright.support import trace
from tilewright.target.target import Target
from tilewright.tir.analysis.in_place import in_place_pairs
from tilewright.tir.buffer import Buffer
from tilewright.tir.function import PrimFunc


def emit_module(funcs: Sequence[PrimFunc], target: Target, *, entry_ir: str = "") -> str:
    """The LLVM IR of lowered functions; `entry_ir` is further text for the module (see `entry.emit_entry`)."""
    module = ModuleContext(target, DISPATCH)
    check_symbols(func.name for func in funcs)
    for func in funcs:
        with trace.span(f"emit:{func.name}"):
            _emit_function(module, func)
    defined = {_symbol(text) for text in [*module.functions, *entry_ir.split("\n")] if text.startswith("define ")}
    entry_lines = [line for line in entry_ir.split("\n") if not _is_declared(line, defined)]
    declared = {_symbol(line) for line in entry_lines if line.startswith("declare ")} | defined
    parts = [
        "; Tilewright",
        *(text for name, text in module.declarations.items() if name not in declared),
        *module.functions,
        *entry_lines,
        *module.metadata,
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _symbol(text: str) -> str:
    """The function that a definition or declaration is about."""
    return text.split("@", 1)[1].split("(", 1)[0]


def _is_declared(line: str, defined: set[str]) -> bool:
    """Whether a line declares what the module defines itself (LLVM takes one or the other)."""
    return line.startswith("declare ") and _symbol(line) in defined


def _emit_function(module: ModuleContext, func: PrimFunc) -> None:
    for pair in in_place_pairs(func):
        module.overlapping.update(param for number in pair if isinstance(param := func.params[number], Buffer))
    emitter = FunctionEmitter(module, func.name, func.params)
    body = func.body
    emitter.emit("", lambda inner: inner.stmt(body), body)
    module.functions.append(_packed(func))


def _packed(func: PrimFunc) -> str:
    """The wrapper that takes one 8-byte slot a parameter."""
    lines = [f"define i32 @{func.name}__packed(ptr noundef %slots) nounwind {{"]
    arguments: list[str] = []
    for number, param in enumerate(func.params):
        lines.append(f"  %p{number} = getelementptr inbounds i64, ptr %slots, i64 {number}")
        dtype = DataType.of("handle") if isinstance(param, Buffer) else param.dtype
        kind = memory_type(dtype)
        if kind == "ptr":
            lines.append(f"  %a{number} = load ptr, ptr %p{number}, align 8")
        else:
            lines += _narrow(number, dtype, kind)
        arguments.append(f"{kind} %a{number}")
    lines.append(f"  %code = call i32 @{func.name}({', '.join(arguments)})")
    lines += ["  ret i32 %code", "}"]
    return "\n".join(lines)


def _narrow(number: int, dtype: DataType, kind: str) -> list[str]:
    """The low bits of a slot as a parameter's type, the same on machines of either byte order."""
    bits = 8 * dtype.itemsize
    lines = [f"  %s{number} = load i64, ptr %p{number}, align 8"]
    source = f"%s{number}"
    if bits < 64:
        lines.append(f"  %t{number} = trunc i64 {source} to i{bits}")
        source = f"%t{number}"
    lines.append(f"  %a{number} = bitcast i{bits} {source} to {kind}")
    return lines
