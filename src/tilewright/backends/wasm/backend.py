"""WebAssembly through LLVM: a back end."""

from __future__ import annotations

from typing import Final

from tilewright.backends.host import HostBackend
from tilewright.backends.llvm.emit import emit_module
from tilewright.backends.wasm.target import KIND

BACKEND: Final = HostBackend(kind=KIND, language="LLVM IR", suffix=".ll", emit=emit_module)
