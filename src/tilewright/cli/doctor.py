"""`tilewright doctor`: what this machine can do, and what to install for the rest."""

from __future__ import annotations

import argparse
import ctypes
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata

from tilewright.backends.llvm.cache import ObjectCache
from tilewright.backends.llvm.jit import JitLibrary
from tilewright.backends.llvm.link import find_linker
from tilewright.backends.llvm.toolchain import compile_ir, host_triple, llvm_version
from tilewright.runtime.core.library import bind
from tilewright.runtime.device.devices import device_kinds, find_device
from tilewright.support import settings
from tilewright.support.errors import CompilerBug, UserError
from tilewright.support.ownership import why_exposed
from tilewright.support.text import human_bytes, plural, table
from tilewright.support.version import VERSION
from tilewright.target import Target
from tilewright.target.machine.parameters import parameters_origin

DESCRIPTION = """\
Show the targets of this machine, the tools and packages found, and what to install for more.

  [ok]  works        [--]  not there, and only needed for what the line says        [!!]  broken: mend this

The exit code is 1 when a line starts with [!!]: compiling and running models does not work, or a setting has a value
that cannot be read. Whatever else is missing (a linker, a cache that can be written, packages, devices) is a note.
"""

_EXTRAS = {
    "onnx": ("onnx", "import ONNX models"),
    "onnxruntime": ("bench", "check and time against onnxruntime"),
    "torch": ("torch", "exchange tensors with PyTorch"),
    "matplotlib": ("bench", "draw benchmark figures"),
    "amaranth": ("accel", "generate the accelerator's hardware"),
}
_PROGRAM = """
define i32 @twice_and_one(i32 %x) {
  %twice = mul i32 %x, 2
  %sum = add i32 %twice, 1
  ret i32 %sum
}
"""
_LINUX_TRIPLES = ("x86_64-linux-gnu", "aarch64-linux-gnu", "riscv64-linux-gnu")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--settings", action="store_true", help="list all settings (environment variables) instead")
    parser.add_argument("--clear-cache", action="store_true", help="delete all cached objects and models instead")


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    if options.settings:
        rows = [[setting.name, setting.default_text, setting.doc] for setting in settings.all_settings()]
        print(table(["setting", "default", "what it does"], rows))
        return 0
    if options.clear_cache:
        removed, size = ObjectCache(settings.CACHE_DIR.get() / "objects", 0).clear()
        print(f"{plural(removed, 'file')} deleted from {settings.CACHE_DIR.get()} ({human_bytes(size)})")
        return 0
    print(f"tilewright {VERSION}, Python {platform.python_version()}, {llvm_version()}")
    problems = _check_settings()
    _show_target()
    problems += _check_compiler()
    _show_linkers()
    _show_cache()
    for package, (extra, purpose) in _EXTRAS.items():
        try:
            print(f"[ok] {package} {metadata.version(package)}: {purpose}")
        except metadata.PackageNotFoundError:
            print(f"[--] {package} is not installed: needed to {purpose}; pip install 'tilewright[{extra}]'")
    for kind in device_kinds():
        _show_device(kind)
    return 1 if problems else 0


def _show_device(kind: str) -> None:
    """The device of a kind; what its drivers complain about is of interest only where there is none."""
    said: list[str] = []
    try:
        with _collected_errors(said):
            name = find_device(kind).name
    except UserError as error:
        print(f"[--] target {kind}: {error.message}; {error.hint}")
        for line in dict.fromkeys(said):
            print(f"     a driver says: {line}")
    else:
        print(f"[ok] target {kind}: {name}")


@contextmanager
def _collected_errors(lines: list[str]) -> Iterator[None]:
    """Lines that native code writes to the standard error output of this process, instead of there."""
    sys.stderr.flush()
    before = os.dup(2)
    with tempfile.TemporaryFile() as stream:
        os.dup2(stream.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(before, 2)
            os.close(before)
            stream.seek(0)
            lines += stream.read().decode(errors="replace").splitlines()


def _show_target() -> None:
    target = Target("native")
    caches = [human_bytes(size) for size in (target.l1_bytes, target.l2_bytes, target.l3_bytes)]
    print(f"[ok] target native: {target.describe()}")
    print(f"     triple {target.triple}; caches: L1 {caches[0]}, L2 {caches[1]}, L3 {caches[2]}")
    print(f"     machine parameters: {parameters_origin(target)} (`tilewright calibrate` measures them)")


def _check_settings() -> int:
    """Variables that nothing reads (a note), and values that cannot be read."""
    for sentence in settings.unknown_variables():
        print(f"[--] {sentence}")
    problems = 0
    for setting in settings.all_settings():
        try:
            setting.get()
        except UserError as error:
            print(f"[!!] {error.message}")
            problems += 1
    return problems


def _check_compiler() -> int:
    """Compile a few instructions and run them: what everything else needs. The rest of the compiler is not loaded."""
    try:
        library = JitLibrary([compile_ir(_PROGRAM, triple=host_triple())])
        result = bind(library, "twice_and_one", ctypes.c_int32, ctypes.c_int32)(20)
    except (UserError, CompilerBug) as error:
        print(f"[!!] compile and run: {error.args[0]}")
        return 1
    if result != 41:
        print("[!!] compile and run: a small program gives wrong results on this machine")
        return 1
    print("[ok] compile and run: a small program gives the right result")
    return 0


def _show_linkers() -> None:
    """Linkers for this machine and for others: needed to export libraries."""
    here = host_triple()
    others = [triple for triple in _LINUX_TRIPLES if triple.split("-")[0] != here.split("-")[0]]
    for triple in (here, *others):
        try:
            linker = find_linker(triple)
        except UserError as error:
            print(f"[--] export for {triple}: {error.message}; {error.hint}")
        else:
            print(f"[ok] export for {triple}: linker {' '.join(linker.command)}")


def _show_cache() -> None:
    try:
        folder = settings.CACHE_DIR.get()
        enabled = settings.CACHE.get()
    except UserError:
        # Said above, with the other settings.
        return
    if not enabled:
        print("[ok] object cache: turned off by TILEWRIGHT_CACHE")
        return
    exposed = why_exposed(folder / "objects")
    if exposed is not None:
        print(
            f"[--] object cache: {folder / 'objects'} {exposed}; whoever can change it runs code as you, so it is not "
            f"used: set TILEWRIGHT_CACHE_DIR to a folder of your own"
        )
        return
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    try:
        # Asked by writing: permissions alone do not show a read-only or full disk.
        with tempfile.TemporaryFile(dir=existing) as stream:
            stream.write(b"\0" * 4096)
    except OSError as error:
        print(
            f"[--] object cache: {folder} cannot be written ({os.strerror(error.errno or 0)}), "
            f"so kernels are compiled anew each time; set TILEWRIGHT_CACHE_DIR to another folder"
        )
        return
    limit = settings.CACHE_LIMIT.get()
    sizes = ObjectCache(folder / "objects", limit).sizes()
    print(
        f"[ok] object cache: {folder} ({plural(len(sizes), 'file')}, {human_bytes(sum(sizes))} of at most "
        f"{human_bytes(limit)}; --clear-cache empties it)"
    )
