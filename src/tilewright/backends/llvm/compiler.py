"""LLVM, as the compiler of a back end."""

from __future__ import annotations

from typing import Final

from tilewright.backends.compiler import Assembly, Compiler
from tilewright.backends.llvm.assembler import assemble
from tilewright.backends.llvm.cache import compile_cached
from tilewright.backends.llvm.toolchain import emit_assembly, llvm_version
from tilewright.target.target import Target

OPT_LEVEL: Final = 2
"""LLVM's optimiser level: it promotes register tiles out of memory and hoists addresses."""


def llvm_compiler(opt_level: int) -> Compiler:
    """LLVM with an optimiser level: object files, from the cache if they are there, and assembly."""

    def compile_text(text: str, target: Target) -> bytes:
        return compile_cached(text, triple=target.triple, cpu=target.cpu, features=target.features, opt_level=opt_level)

    def emit(text: str, target: Target) -> str:
        return emit_assembly(text, triple=target.triple, cpu=target.cpu, features=target.features, opt_level=opt_level)

    return Compiler(compile_text, llvm_version, Assembly(emit, assemble))


COMPILER: Final = llvm_compiler(OPT_LEVEL)
