"""Models for CPUs, and for devices beside them: a shared library and its C header."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tilewright.backends.deployment import Deployment
from tilewright.backends.llvm.deploy import export_library
from tilewright.backends.llvm.link import find_linker
from tilewright.runtime.core.artifact import Artifact
from tilewright.runtime.core.header import library_name
from tilewright.runtime.core.module import ExportOptions
from tilewright.target.target import Target


def _write(artifacts: Sequence[Artifact], path: Path, options: ExportOptions) -> None:
    [artifact] = artifacts
    export_library(artifact, path, options)


def _check_tools(target: Target) -> None:
    find_linker(target.triple)


def _details(path: Path, options: ExportOptions) -> list[str]:
    signed = ", signed" if options.sign is not None else ""
    return [f"header {path.with_suffix('.h')}", f"C functions {library_name(path, options.name)}_*{signed}"]


DEPLOYMENT: Final = Deployment(".so", _write, _check_tools, details=_details)
