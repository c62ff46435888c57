"""Linking COFF objects: DLLs of Windows, with an import library for programs that are linked with them.

Nothing of Windows is needed: what the objects call of its libraries is in import libraries that the linker makes from
lists of names. The DLL needs `ucrtbase.dll`, `kernel32.dll` and their like, which every Windows since 10 has.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tilewright.backends.llvm.coff import machine_of
from tilewright.backends.llvm.linker import (
    MATHEMATICS,
    Linker,
    Linking,
    LinkJob,
    by_library,
    lld_commands,
    run_linker,
)
from tilewright.runtime.core.header import INTERFACE_SUFFIX, TABLE_SUFFIX

_UCRT = frozenset(
    "_aligned_free _aligned_malloc abort getenv memchr memcmp memcpy memmove memset strcmp strlen strtol".split()
)
_LIBRARIES: Final[dict[str, frozenset[str]]] = {
    "ucrtbase.dll": _UCRT | MATHEMATICS,
    "kernel32.dll": frozenset(
        "CloseHandle CreateThread GetModuleHandleExA GetProcessAffinityMask IsProcessorFeaturePresent".split()
    ),
    "api-ms-win-core-synch-l1-2-0.dll": frozenset({"WaitOnAddress", "WakeByAddressAll", "WakeByAddressSingle"}),
    # What touches the pages of a large stack frame one after another.
    "ntdll.dll": frozenset({"__chkstk"}),
}
_MACHINES = {0x8664: "x64", 0xAA64: "arm64"}
START: Final = "tilewright_dll_start"
"""The function that Windows calls when it loads a library."""


@functools.cache
def _makes_import_libraries(lld: str) -> bool:
    """Whether a linker reads lists of names: that of LLVM 14, which Debian 12 has, does not."""
    with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:
        definition = Path(folder, "probe.def")
        definition.write_text("LIBRARY probe.dll\nEXPORTS\n  probe\n")
        command = [lld, "/lib", "/nologo", "/machine:x64", f"/def:{definition}", f"/out:{folder}/probe.lib"]
        return subprocess.run(command, capture_output=True, check=False, stdin=subprocess.DEVNULL).returncode == 0


def _candidates(triple: str) -> Iterable[Linker]:
    for lld in lld_commands("lld-link"):
        if _makes_import_libraries(lld):
            yield Linker((lld,))
    if importlib.util.find_spec("ziglang") is not None:
        yield Linker((sys.executable, "-m", "ziglang", "lld-link"))


def _import_library(linker: Linker, job: LinkJob, dll: str, names: Iterable[str]) -> str:
    definition = job.work_folder / f"{dll}.def"
    library = job.work_folder / f"{dll}.lib"
    definition.write_text(f"LIBRARY {dll}\nEXPORTS\n" + "".join(f"  {name}\n" for name in names))
    options = ["/lib", "/nologo", f"/machine:{_MACHINES[machine_of(job.triple)]}"]
    run_linker(linker, [*options, f"/def:{definition}", f"/out:{library}"], [], library, library)
    return str(library)


def _link(linker: Linker, job: LinkJob) -> None:
    groups = by_library(job.needed_symbols(), _LIBRARIES)
    libraries = [_import_library(linker, job, dll, names) for dll, names in sorted(groups.items())]
    # Under its own name, which goes into the import library; then to where it is to be.
    made = job.work_folder / job.output.name
    imports = job.work_folder / job.output.with_suffix(".lib").name
    options = ["/dll", "/nologo", f"/machine:{_MACHINES[machine_of(job.triple)]}", f"/out:{made}"]
    options += [f"/implib:{imports}", "/Brepro", "/opt:ref", "/nodefaultlib", "/largeaddressaware", "/nxcompat"]
    options.append(f"/entry:{START}" if job.starts_threads else "/noentry")
    for name in job.exports or ():
        is_data = name.endswith((TABLE_SUFFIX, INTERFACE_SUFFIX))
        options.append(f"/export:{name}{',DATA' if is_data else ''}")
    run_linker(linker, options, [*job.files(), *libraries], made, job.output)
    os.replace(made, job.written)
    if imports.exists():
        os.replace(imports, job.output.with_suffix(".lib"))


COFF_LINKING: Final = Linking(machine_of, _candidates, _link, "an lld-link that makes import libraries")
