"""Models for Android as its build tools take them: `jniLibs/<abi>/lib<name>.so`, and headers for code in C and C++.

Libraries of several architectures go into one folder, one after the other.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tilewright.backends.llvm.deploy import export_library
from tilewright.backends.llvm.object_format import architecture
from tilewright.runtime.core.artifact import Artifact
from tilewright.runtime.core.header import c_name, header_path
from tilewright.runtime.core.module import ExportOptions
from tilewright.support.errors import UnsupportedError
from tilewright.support.files import cannot_write

_INTERFACES: Final = {"aarch64": "arm64-v8a", "x86_64": "x86_64", "riscv64": "riscv64"}
"""What Android calls the binary interfaces of architectures."""


def write_folder(artifacts: Sequence[Artifact], folder: Path, options: ExportOptions) -> None:
    """Write the library of one architecture, and its header, into a folder that may have others."""
    arch = architecture(artifacts[0].triple)
    if arch not in _INTERFACES:
        raise UnsupportedError(
            f"exporting a library for Android on '{arch}' is not supported",
            hint=f"supported: {', '.join(sorted(_INTERFACES))}",
        )
    name = c_name(options.name or folder.resolve().name)
    library = folder / "jniLibs" / _INTERFACES[arch] / f"lib{name}.so"
    header = folder / "include" / _INTERFACES[arch] / f"{name}.h"
    try:
        for place in (library, header):
            place.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(library, error) from None
    export_library(artifacts, library, ExportOptions(name, options.sign))
    os.replace(header_path(library), header)


def details(folder: Path, options: ExportOptions) -> list[str]:
    """What was written."""
    name = c_name(options.name or folder.resolve().name)
    libraries = sorted(folder.glob(f"jniLibs/*/lib{name}.so"))
    return [f"library {path}" for path in libraries] + [f"C functions {name}_*, headers in {folder / 'include'}"]
