"""`tilewright doctor`: what this machine can do, and what to install for the rest."""

from __future__ import annotations

import argparse
import os
import platform
from importlib import metadata
from pathlib import Path

from tilewright.codegen.llvm.link import find_linker
from tilewright.codegen.llvm.toolchain import host_triple, llvm_version
from tilewright.support import settings
from tilewright.support.errors import TilewrightError, UserError
from tilewright.support.text import human_bytes, table
from tilewright.support.version import VERSION
from tilewright.target import Target

_EXTRAS = {
    "onnx": ("onnx", "import ONNX models"),
    "onnxruntime": ("bench", "check and time against onnxruntime"),
    "torch": ("torch", "exchange tensors with PyTorch"),
    "matplotlib": ("bench", "draw benchmark figures"),
}


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "doctor",
        help="what this machine can do, and what to install",
        description="Show the targets of this machine, the tools and packages found, and what to install for more.",
    )
    parser.add_argument("--settings", action="store_true", help="list all settings (environment variables)")
    parser.set_defaults(command=_doctor)


def _doctor(options: argparse.Namespace) -> int:
    if options.settings:
        rows = [[setting.name, setting.default_text, setting.doc] for setting in settings.all_settings()]
        print(table(["setting", "default", "what it does"], rows))
        return 0
    for sentence in settings.unknown_variables():
        print(f"[!!] {sentence}")
    problems = 0
    target = Target("native")
    print(f"tilewright {VERSION}, Python {platform.python_version()}, LLVM {llvm_version()}")
    print(f"[ok] target native: {target.describe()}")
    print(f"     {target}")
    caches = [human_bytes(size) for size in (target.l1_bytes, target.l2_bytes, target.l3_bytes)]
    print(f"     caches L1 {caches[0]}, L2 {caches[1]}, L3 {caches[2]}")
    problems += _check_linker()
    problems += _check_cache()
    for package, (extra, purpose) in _EXTRAS.items():
        try:
            print(f"[ok] {package} {metadata.version(package)}: {purpose}")
        except metadata.PackageNotFoundError:
            print(f"[--] {package} is not installed: needed to {purpose}; pip install 'tilewright[{extra}]'")
    for kind in ("cuda", "opencl", "webgpu", "metal", "rocm"):
        print(f"[--] target {kind}: no back end in this version")
    return 1 if problems else 0


def _check_linker() -> int:
    try:
        linker = find_linker(host_triple())
    except UserError as error:
        print(f"[!!] {error.message}: export_library will not work; {error.hint}")
        return 1
    print(f"[ok] linker for export_library: {linker}")
    return 0


def _check_cache() -> int:
    try:
        folder = Path(settings.CACHE_DIR.get())
    except TilewrightError as error:
        print(f"[!!] {error}")
        return 1
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not os.access(existing, os.W_OK):
        print(f"[!!] the cache folder {folder} is not writable: kernels are compiled anew; set TILEWRIGHT_CACHE_DIR")
        return 1
    print(f"[ok] object cache: {folder}")
    return 0
