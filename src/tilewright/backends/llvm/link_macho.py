"""Linking Mach-O objects: dylibs of macOS, with the signature that its loader asks for.

Nothing of macOS is needed: what the objects call of the system is in a text that names the system's library and what
it has.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable
from typing import Final

from tilewright.backends.llvm.linker import (
    MATHEMATICS,
    Linker,
    Linking,
    LinkJob,
    by_library,
    lld_commands,
    run_linker,
)
from tilewright.backends.llvm.macho import OLDEST_MACOS, machine_of
from tilewright.backends.llvm.object_format import architecture

_SYSTEM = frozenset(
    """__bzero __sincos_stret __sincosf_stret __exp10 __exp10f __ulock_wait __ulock_wake abort aligned_alloc bcmp bzero
    calloc free getenv malloc memchr memcmp memcpy memmove memset memset_pattern4 memset_pattern8 memset_pattern16
    pthread_create pthread_detach pthread_sigmask sigfillset strcmp strlen strtol sysconf sysctlbyname""".split()
)
_LIBRARY = "/usr/lib/libSystem.B.dylib"
_ARCHITECTURES = {"x86_64": "x86_64", "aarch64": "arm64"}

_TEXT_STUB = """--- !tapi-tbd
tbd-version:     4
targets:         [ {arch}-macos ]
install-name:    '{library}'
exports:
  - targets:         [ {arch}-macos ]
    symbols:         [ {symbols} ]
...
"""


def _candidates(triple: str) -> Iterable[Linker]:
    for lld in lld_commands("ld64.lld"):
        yield Linker((lld,))
    own = shutil.which("ld") if sys.platform == "darwin" else None
    if own:
        yield Linker((own,))


def _link(linker: Linker, job: LinkJob) -> None:
    arch = _ARCHITECTURES[architecture(job.triple)]
    groups = by_library(job.needed_symbols(), {_LIBRARY: _SYSTEM | MATHEMATICS})
    names = ["dyld_stub_binder", *(f"_{name}" for name in groups.get(_LIBRARY, []))]
    stub = job.work_folder / "libSystem.tbd"
    stub.write_text(_TEXT_STUB.format(arch=arch, library=_LIBRARY, symbols=", ".join(names)))
    options = ["-arch", arch, "-platform_version", "macos", OLDEST_MACOS, OLDEST_MACOS, "-dylib"]
    options += ["-install_name", f"@rpath/{job.output.name}", "-o", str(job.written), "-dead_strip", "-x"]
    # Systems on Arm run no code without a signature; one that names nobody will do.
    options.append("-adhoc_codesign")
    if job.exports is not None:
        listed = job.work_folder / "exports.txt"
        listed.write_text("".join(f"_{name}\n" for name in job.exports))
        options += ["-exported_symbols_list", str(listed)]
    run_linker(linker, options, [*job.files(), str(stub)], job.written, job.output)


MACH_O_LINKING: Final = Linking(machine_of, _candidates, _link, "ld64.lld", has_extra=False, is_sealed=False)
