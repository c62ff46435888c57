"""Loading an exported library: `load(path)` gives back what was exported, ready to run."""

from __future__ import annotations

import copyreg
import ctypes
import json
import os
import threading
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.runtime.core.artifact import Artifact, DeviceInfo, artifact_from_metadata
from tilewright.runtime.core.elf import check_identity, exported_names, read_layout
from tilewright.runtime.core.entry import constants_address
from tilewright.runtime.core.executor import Executable
from tilewright.runtime.core.header import TABLE_SUFFIX, c_name, header_path, write_header
from tilewright.runtime.core.image import LibraryImage
from tilewright.runtime.core.keys import PublicKey, Trusted, trusted_keys
from tilewright.runtime.core.library import SharedLibrary, bind
from tilewright.runtime.core.module import Exporter, ExportOptions, Module
from tilewright.runtime.core.seal import Seal, check_end, read_seal, seal
from tilewright.runtime.device.devices import choosing, split_index
from tilewright.support.errors import UserError
from tilewright.support.files import replacing
from tilewright.support.text import kind_of

_OLD_METADATA = "tilewright_metadata"
"""Where libraries of formats before 4 describe themselves."""

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


_loaded: dict[int, list[tuple[LibraryImage, SharedLibrary]]] = {}
"""The libraries of this process, by their size."""
_loading = threading.Lock()


def load(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview,
    *,
    require: str | None = None,
    trust: Trusted | None = None,
    device: str | None = None,
) -> Executable | Module:
    """Open a library written by `export_library`: an `Executable` for a model, a `Module` for functions.

    `source` is a path, or the bytes of a library. What is in the file now is loaded, whatever the process has loaded
    from that path before; later changes of the file change nothing. `require="sealed"` refuses a library without a
    checksum, `require="signed"` one that none of the `trust`ed public keys (files, or `runtime.PublicKey`) has signed.
    A library is native code: load those whose origin you trust. `device="cuda:1"` runs a model for GPUs on another than
    the first.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        where, image = "the bytes given", LibraryImage.of(source)
    elif isinstance(source, (str, os.PathLike)):
        where = os.fspath(source)
        image = LibraryImage.of(Path(source))
    else:
        raise UserError(f"load takes the path or the bytes of a library, not {kind_of(source)}")
    try:
        table = _check(image, require, trust, where)
    except BaseException:
        image.close()
        raise
    library, kept = _opened(image, table, where)
    name = None if table is None else table.removesuffix(TABLE_SUFFIX)
    data = _metadata(library, _OLD_METADATA if name is None else f"{name}_metadata", where)
    artifact = artifact_from_metadata(data, where=where)
    _check_features(artifact.requires, where)
    _check_level(library, data, where)
    exporter = _copier(kept, name)
    if artifact.model is None:
        return Module(artifact, library, exporter)
    if artifact.device is not None:
        _read_device_code(artifact, artifact.device, library, int(data["constant_bytes"]))
    with choosing(*_device_of(artifact, device, where)):
        return Executable(artifact, library, exporter)


def _device_of(artifact: Artifact, device: str | None, where: str) -> tuple[str, int]:
    """The kind and number of the device that a model is to run on."""
    kind, index = ("", 0) if device is None else split_index(device)
    if device is not None and (artifact.device is None or kind.strip() != artifact.device.kind):
        expected = "this CPU" if artifact.device is None else artifact.device.kind
        raise UserError(f"the model is for {expected}, not for the device '{device}'", where=where)
    return kind.strip(), index


def _check(image: LibraryImage, require: str | None, trust: Trusted | None, where: str) -> str | None:
    """Look at the bytes before the system's loader does; gives the name of the library's table of symbols, if any."""
    if require not in (None, "sealed", "signed"):
        raise UserError(f"a library cannot be required to be {require!r}", hint="require='sealed' or 'signed'")
    if require == "signed" and trust is None:
        raise UserError("a signature is required, but not whose", hint="trust='release.pub', the file of a public key")
    keys = [] if trust is None else trusted_keys(trust)
    with image.content() as content:
        check_identity(content, where)
        library_seal = read_seal(content, where)
        layout = read_layout(content, where)
        check_end(library_seal, layout.end, where)
        if require is not None and not library_seal.is_sealed:
            raise UserError("the library is not sealed", where=where, hint="export it again")
        if trust is not None:
            _check_signature(library_seal, content, keys, where)
        tables = [name for name in exported_names(content, layout) if name.endswith(TABLE_SUFFIX)]
    return tables[0] if tables else None


def _check_signature(library_seal: Seal, content: memoryview, keys: list[PublicKey], where: str) -> None:
    if library_seal.key is None:
        raise UserError("the library is not signed", where=where, hint="export it with sign=, or compile with --sign")
    if library_seal.key not in keys:
        trusted = ", ".join(key.fingerprint() for key in keys)
        raise UserError(
            f"the library is signed by the key {library_seal.key.fingerprint()}, which is not trusted",
            where=where,
            hint=f"trusted: {trusted}",
        )
    if not library_seal.is_signed_by(content, keys):
        raise UserError("the signature of the library is forged: it does not fit the content", where=where)


def _opened(image: LibraryImage, table: str | None, where: str) -> tuple[SharedLibrary, LibraryImage]:
    """The loaded library of these bytes, which are loaded once; and the image that it runs from."""
    with _loading:
        for known, library in _loaded.get(image.size, []):
            if known.equals(image):
                image.close()
                return library, known
        try:
            library = SharedLibrary(image.path(), where, table)
        except UserError:
            image.close()
            raise
        image.loaded()
        _loaded.setdefault(image.size, []).append((image, library))
        return library, image


def _metadata(library: SharedLibrary, symbol: str, where: str) -> dict[str, Any]:
    """What a library says of itself."""
    if library.find(symbol) is None:
        raise UserError("the library was not exported by Tilewright (it has no description of itself)", where=where)
    text = bind(library, symbol, ctypes.c_char_p)()
    try:
        data = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise UserError("the metadata of the library is damaged: it is not JSON", where=where)
    return data


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


def cpuinfo_flags(requires: tuple[str, ...]) -> list[str]:
    """Processor features that can be looked up, as /proc/cpuinfo spells them."""
    return [_CPUINFO_NAMES.get(name, name) for name in requires if name in _CHECKED]


def _check_features(requires: tuple[str, ...], where: str) -> None:
    flags = _host_flags()
    if not flags:
        return
    missing = [name for name in requires for flag in cpuinfo_flags((name,)) if flag not in flags]
    if missing:
        raise UserError(
            f"the library needs processor features that this machine lacks: {', '.join(missing)}",
            where=where,
            hint="export it with a target for this machine",
        )


def _check_level(library: SharedLibrary, data: dict[str, Any], where: str) -> None:
    """Refuse a library with code for several processors of which none is to run here."""
    levels = data.get("levels")
    if levels and library.find("tw_level") and bind(library, "tw_level", ctypes.c_int32)() >= len(levels):
        raise UserError(
            f"the library has code for {', '.join(map(str, levels))}: this machine can run none of them, or not the "
            "one that TILEWRIGHT_CPU names",
            where=where,
            hint="unset TILEWRIGHT_CPU, or export the library with a target for this machine",
        )


def _copier(image: LibraryImage, name: str | None) -> Exporter:
    """Exporting a loaded library is copying its bytes: its symbols keep their names."""

    def copy(artifact: Artifact, path: Path, options: ExportOptions) -> None:
        header_path(path)
        old_name = "tilewright" if artifact.model is None else artifact.model.name
        if options.name is not None and c_name(options.name) != (name or old_name):
            raise UserError(
                f"a loaded library keeps its name, '{name or old_name}': it cannot be exported as '{options.name}'",
                where=str(path),
                hint="compile the model again and export that",
            )
        with replacing(path) as temporary:
            if options.sign is None:
                image.copy_to(temporary)
            else:
                with image.content() as content:
                    end = read_layout(content, str(path)).end
                image.copy_to(temporary, end)
                seal(temporary, options.sign)
        write_header(artifact, path, name or old_name)

    return copy


def _pickled(program: Executable | Module) -> tuple[Any, ...]:
    """A pickle of a program holds the bytes of its library, and no other thing that runs."""
    return load, (program.to_bytes(),)


copyreg.pickle(Executable, _pickled)
copyreg.pickle(Module, _pickled)
