"""LLVM, as the compiler of a back end."""

from __future__ import annotations

from typing import Final

from tilewright.backends.compiler import Compiler
from tilewright.backends.llvm.cache import compile_cached
from tilewright.backends.llvm.toolchain import llvm_version
from tilewright.target.target import Target

OPT_LEVEL: Final = 2
"""LLVM's optimiser level: it promotes register tiles out of memory and hoists addresses."""


def compile_llvm(text: str, target: Target) -> bytes:
    """The object file of LLVM IR, from the cache if it is there."""
    return compile_cached(text, triple=target.triple, cpu=target.cpu, features=target.features, opt_level=OPT_LEVEL)


COMPILER: Final = Compiler(compile_llvm, llvm_version)
