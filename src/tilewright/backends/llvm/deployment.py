"""Models for CPUs, and for devices beside them: a shared library and its C header."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from tilewright.backends.deployment import Deployment
from tilewright.backends.llvm import android
from tilewright.backends.llvm.deploy import export_library
from tilewright.backends.llvm.link import find_linker
from tilewright.backends.llvm.object_format import is_macos, is_windows
from tilewright.runtime.core.artifact import Artifact
from tilewright.runtime.core.header import library_name
from tilewright.runtime.core.module import ExportOptions
from tilewright.target.target import Target


def _write(artifacts: Sequence[Artifact], path: Path, options: ExportOptions) -> None:
    export_library(artifacts, path, options)


def _check_tools(target: Target) -> None:
    find_linker(target.triple)


def _details(path: Path, options: ExportOptions) -> list[str]:
    signed = ", signed" if options.sign is not None else ""
    return [f"header {path.with_suffix('.h')}", f"C functions {library_name(path, options.name)}_*{signed}"]


def _dll_details(path: Path, options: ExportOptions) -> list[str]:
    return [f"import library {path.with_suffix('.lib')}", *_details(path, options)]


def _special(target: Target) -> Deployment | None:
    if is_windows(target.triple):
        return replace(_LIBRARY, suffix=".dll", details=_dll_details)
    if is_macos(target.triple):
        return replace(_LIBRARY, suffix=".dylib")
    return _ANDROID if "android" in target.triple else None


_LIBRARY: Final = Deployment(".so", _write, _check_tools, details=_details)
_ANDROID: Final = Deployment("", android.write_folder, _check_tools, details=android.details)
DEPLOYMENT: Final = replace(_LIBRARY, special=_special)
