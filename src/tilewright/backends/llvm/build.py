"""Functions to an object file: lower, emit LLVM IR, compile through the object cache."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.backends.llvm.cache import compile_cached
from tilewright.backends.llvm.emit import emit_module
from tilewright.support import trace
from tilewright.target.target import Target
from tilewright.tir.function import PrimFunc
from tilewright.tir.pipeline import lower

OPT_LEVEL = 2
"""LLVM's optimiser level: it promotes register tiles out of memory and hoists addresses."""


def functions_to_ir(funcs: Sequence[PrimFunc], target: Target, *, entry_ir: str = "") -> str:
    """The LLVM IR of scheduled functions, lowered for a target."""
    with trace.span("lower"):
        lowered = [lower(func, target) for func in funcs]
    with trace.span("emit"):
        return emit_module(lowered, target, entry_ir=entry_ir)


def compile_functions(funcs: Sequence[PrimFunc], target: Target, *, entry_ir: str = "") -> bytes:
    """The object of scheduled functions (and of further IR text that may call them), from the cache if it is there."""
    return _compile(functions_to_ir(funcs, target, entry_ir=entry_ir), target)


def compile_lowered(func: PrimFunc, target: Target) -> bytes:
    """The object of a function that is lowered already."""
    with trace.span("emit"):
        text = emit_module([func], target)
    return _compile(text, target)


def _compile(text: str, target: Target) -> bytes:
    with trace.span("compile"):
        return compile_cached(text, triple=target.triple, cpu=target.cpu, features=target.features, opt_level=OPT_LEVEL)
