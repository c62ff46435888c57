"""LLVM, as the compiler of WebAssembly: object files in its own format."""

from __future__ import annotations

from typing import Final

from tilewright.backends.llvm.compiler import OPT_LEVEL, llvm_compiler

COMPILER: Final = llvm_compiler(OPT_LEVEL)
