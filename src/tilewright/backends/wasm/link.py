"""Linking objects into a WebAssembly module that imports its memory and what its code calls."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tilewright.support import settings, trace
from tilewright.support.errors import CompilerBug, MissingDependencyError, UserError

_LLD_VERSIONS = range(23, 13, -1)
_STACK_BYTES = 1 << 20
_MOST_BYTES = 1 << 32
STACK_POINTER: Final = "__stack_pointer"


def find_wasm_linker() -> tuple[str, ...]:
    """The command of wasm-ld: LLVM's own, or that of the package `ziglang`."""
    chosen = settings.LINKER.get()
    for command in [chosen] if chosen else ["wasm-ld", *(f"wasm-ld-{version}" for version in _LLD_VERSIONS)]:
        path = shutil.which(command)
        if path and "wasm-ld" in Path(path).name:
            return (path,)
    if chosen:
        raise UserError(
            f"the linker '{chosen}' is not wasm-ld", where=f"setting {settings.LINKER.name}", hint=settings.LINKER.doc
        )
    if importlib.util.find_spec("ziglang") is not None:
        return (sys.executable, "-m", "ziglang", "wasm-ld")
    error = MissingDependencyError.for_extra("ziglang", "link", "exporting WebAssembly")
    raise MissingDependencyError(
        "no linker for WebAssembly is installed (looked for wasm-ld and the package 'ziglang')",
        hint=f"{error.hint}, or install lld",
    )


def link_module(objects: Sequence[bytes], exports: Sequence[str], folder: Path) -> bytes:
    """The module of some objects, with these functions for JavaScript; `folder` takes files on the way."""
    files = [folder / f"{number}.o" for number in range(len(objects))]
    for file, image in zip(files, objects, strict=True):
        file.write_bytes(image)
    written = folder / "module.wasm"
    options = ["--no-entry", "--import-memory", f"--max-memory={_MOST_BYTES}", "--export-table", "--allow-undefined"]
    # A stack that runs over meets address 0, and traps, before it meets data.
    options += ["--stack-first", "-z", f"stack-size={_STACK_BYTES}", "--gc-sections", "--strip-all", "-O2"]
    options += [f"--export={name}" for name in (*exports, STACK_POINTER)]
    command = [*find_wasm_linker(), *options, "-o", str(written), *map(str, files)]
    with trace.span("link"):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompilerBug(f"wasm-ld failed with code {done.returncode}: {done.stderr.strip()}")
    return written.read_bytes()
