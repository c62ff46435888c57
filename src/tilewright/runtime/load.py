"""Loading an exported library: `load(path)` gives back what was exported, ready to run."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import shutil
import struct
from functools import cache
from pathlib import Path

import numpy as np

from tilewright.runtime.artifact import Artifact, DeviceInfo, artifact_from_metadata
from tilewright.runtime.entry import constants_address
from tilewright.runtime.executor import Executable
from tilewright.runtime.header import header_path, write_header
from tilewright.runtime.library import SharedLibrary, bind
from tilewright.runtime.module import Exporter, Module
from tilewright.runtime.seal import breaks_seal
from tilewright.support.errors import UserError
from tilewright.support.files import replacing

_MACHINES = {62: "x86-64", 183: "aarch64", 243: "riscv64"}
_HOST_MACHINES = {"x86_64": 62, "amd64": 62, "aarch64": 183, "arm64": 183, "riscv64": 243}

# Features of /proc/cpuinfo that LLVM spells otherwise.
_CPUINFO_NAMES = {
    "bmi": "bmi1",
    "lzcnt": "abm",
    "sse3": "pni",
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
    "avx512vnni": "avx512_vnni",
    "avx512bf16": "avx512_bf16",
    "avx512fp16": "avx512_fp16",
    "avx512vbmi2": "avx512_vbmi2",
    "avx512bitalg": "avx512_bitalg",
    "avx512vpopcntdq": "avx512_vpopcntdq",
    "avxvnni": "avx_vnni",
    "amx-tile": "amx_tile",
    "amx-int8": "amx_int8",
    "amx-bf16": "amx_bf16",
    "neon": "asimd",
    "fp-armv8": "fp",
    "dotprod": "asimddp",
    "fullfp16": "asimdhp",
    "lse": "atomics",
    "rdm": "asimdrdm",
}
# The features whose absence would kill the process, and which /proc/cpuinfo reports under a known name.
_CHECKED = {
    *_CPUINFO_NAMES,
    *("avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd", "avx512ifma"),
    *("avx512vbmi", "sve", "sve2", "i8mm", "bf16", "bmi2", "popcnt"),
}


def load(path: str | os.PathLike[str]) -> Executable | Module:
    """Open a library written by `export_library`: an `Executable` for a model, a `Module` for functions."""
    file = Path(path)
    _check_file(file)
    library = SharedLibrary(file)
    if library.find("tilewright_metadata") is None:
        raise UserError(
            "the library was not exported by Tilewright (it has no symbol 'tilewright_metadata')", where=str(path)
        )
    text = bind(library, "tilewright_metadata", ctypes.c_char_p)()
    try:
        data = json.loads(text)
    except (TypeError, ValueError):
        data = None
    if not isinstance(data, dict):
        raise UserError("the metadata of the library is damaged: it is not JSON", where=str(path))
    artifact = artifact_from_metadata(data, where=str(path))
    _check_features(artifact.requires, str(path))
    if artifact.model is not None:
        if artifact.device is not None:
            _read_device_code(artifact, artifact.device, library, int(data["constant_bytes"]))
        return Executable(artifact, library, _copier(file))
    return Module(artifact, library, _copier(file))


def _read_device_code(artifact: Artifact, device: DeviceInfo, library: SharedLibrary, constant_bytes: int) -> None:
    """Take the constants and the code for a device from a library, where they lie one behind the other."""
    assert artifact.model is not None
    address = constants_address(artifact, library)
    total = constant_bytes + sum(device.code_bytes)
    memory = np.ctypeslib.as_array((ctypes.c_uint8 * total).from_address(address))
    artifact.constants = memory[:constant_bytes]
    start = constant_bytes
    for size in device.code_bytes:
        artifact.device_code.append(memory[start : start + size].tobytes())
        start += size


def _check_file(file: Path) -> None:
    """Look at the file before the system's loader does: its messages say little, and some files crash it."""
    try:
        with open(file, "rb") as stream:
            start = stream.read(64)
            size = os.fstat(stream.fileno()).st_size
    except OSError as error:
        raise _unreadable(file, error) from None
    if len(start) < 64 or start[:6] != b"\x7fELF\x02\x01":
        raise UserError(
            "the file is not a shared library (it has no 64-bit ELF header)",
            where=str(file),
            hint="load takes what export_library wrote",
        )
    kind, machine = struct.unpack_from("<HH", start, 16)
    sections_at = struct.unpack_from("<Q", start, 40)[0]
    entry_size, count = struct.unpack_from("<HH", start, 58)
    if kind != 3:
        raise UserError("the file is an ELF file but not a shared library", where=str(file))
    if sections_at + entry_size * count > size:
        raise UserError("the library is truncated", where=str(file), hint="export or copy it again")
    host = _HOST_MACHINES.get(platform.machine().lower())
    if host is not None and machine != host:
        raise UserError(
            f"the library is for {_MACHINES.get(machine, f'ELF machine {machine}')}, "
            f"this machine is {platform.machine()}",
            where=str(file),
            hint="export it with a target for this machine",
        )
    if _has_changed(file):
        raise UserError(
            "the library is damaged: its content does not fit its checksum",
            where=str(file),
            hint="export or copy it again",
        )


def _has_changed(file: Path) -> bool:
    try:
        return breaks_seal(file)
    except OSError as error:
        raise _unreadable(file, error) from None


def _unreadable(file: Path, error: OSError) -> UserError:
    return UserError(f"cannot read the library: {error.strerror}", where=str(file))


@cache
def _host_flags() -> frozenset[str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    words: set[str] = set()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip().lower() in ("flags", "features"):
            words.update(value.split())
    return frozenset(words)


def _check_features(requires: tuple[str, ...], where: str) -> None:
    flags = _host_flags()
    if not flags:
        return
    missing = [name for name in requires if name in _CHECKED and _CPUINFO_NAMES.get(name, name) not in flags]
    if missing:
        raise UserError(
            f"the library needs processor features that this machine lacks: {', '.join(missing)}",
            where=where,
            hint="export it with a target for this machine",
        )


def _copier(source: Path) -> Exporter:
    """Exporting a loaded library is copying its file."""

    def copy(artifact: Artifact, path: Path) -> None:
        header_path(path)
        with replacing(path) as temporary:
            shutil.copy(source, temporary)
        write_header(artifact, path)

    return copy
