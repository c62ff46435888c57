"""Linking ELF objects: shared libraries of Linux, with glibc, with musl or of Android.

No libc of the target is needed. What the objects take from libc and libm is resolved against stand-ins: tiny
libraries, made on the spot, that define those names and carry the real libraries' names. The result then depends on
`libc.so.6` (and `libm.so.6` where it calls it) and on nothing else, and a symbol that neither has is found here and not
when the library is loaded.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from typing import Final

from tilewright.backends.llvm import toolchain
from tilewright.backends.llvm.linker import (
    MATHEMATICS,
    Linker,
    Linking,
    LinkJob,
    by_library,
    lld_commands,
    run_linker,
)
from tilewright.backends.llvm.object_format import architecture
from tilewright.support.errors import UnsupportedError

_EMULATIONS = {
    "x86_64": "elf_x86_64",
    "aarch64": "aarch64linux",
    "riscv64": "elf64lriscv",
    "arm": "armelf_linux_eabi",
}
_TOOL_PREFIXES = {"arm": "arm-linux-gnueabihf"}
"""What commands of cross compilers begin with, where that is not the architecture and `-linux-gnu`."""

_LIBC = frozenset(
    """abort aligned_alloc bcmp calloc free getauxval getenv madvise malloc memchr memcmp memcpy memmove memset
    mmap munmap posix_memalign printf pthread_create pthread_detach pthread_sigmask puts realloc
    sched_getaffinity sched_getcpu sched_setaffinity sigfillset strcmp strlen strtol syscall""".split()
)
# What 32-bit Arm calls instead of some of these, by its own binary interface.
_ARM_LIBC = frozenset(f"__aeabi_mem{what}{size}" for what in ("cpy", "move", "set", "clr") for size in ("", "4", "8"))
_ANDROID_PAGE = 16384
"""The largest page of memory that Android's systems have: segments begin at a multiple of it."""


def emulation(triple: str) -> str:
    """The linkers' name of the triple's ELF format."""
    name = architecture(triple)
    if name not in _EMULATIONS or "none" in triple.split("-"):
        raise UnsupportedError(
            f"exporting a shared library for {triple} is not supported",
            hint=f"supported: Linux on {', '.join(sorted(_EMULATIONS))}; Windows and macOS on x86_64 and aarch64",
        )
    return _EMULATIONS[name]


@cache
def _gnu_emulations(command: str) -> frozenset[str]:
    """What `ld -V` says it can link."""
    done = subprocess.run([command, "-V"], capture_output=True, text=True, check=False)
    return frozenset(done.stdout.split())


def _candidates(triple: str) -> Iterable[Linker]:
    needed = emulation(triple)
    for lld in lld_commands("ld.lld"):
        yield Linker((lld,))
    name = architecture(triple)
    prefixes = (_TOOL_PREFIXES.get(name, f"{name}-linux-gnu"), f"{name}-unknown-linux-gnu")
    for command in ("ld", *(f"{prefix}-ld" for prefix in prefixes)):
        linker = shutil.which(command)
        if linker and needed in _gnu_emulations(linker):
            yield Linker((linker,))
    driver = shutil.which("cc")
    if driver and architecture(toolchain.host_triple()) == name:
        yield Linker((driver,), is_driver=True)
    if importlib.util.find_spec("ziglang") is not None:
        yield Linker((sys.executable, "-m", "ziglang", "ld.lld"))


def system_libraries(triple: str) -> dict[str, frozenset[str]]:
    """The libraries of the target's system under the names by which they are loaded, and what code may take of each."""
    libc = _LIBC | (_ARM_LIBC if architecture(triple) == "arm" else frozenset())
    if "android" in triple:
        return {"libc.so": libc, "libm.so": MATHEMATICS}
    if "musl" in triple:
        return {f"libc.musl-{_musl_architecture(triple)}.so.1": libc | MATHEMATICS}
    return {"libc.so.6": libc, "libm.so.6": MATHEMATICS}


def _musl_architecture(triple: str) -> str:
    name = architecture(triple)
    return "armhf" if name == "arm" else name


def _stand_in(linker: Linker, job: LinkJob, soname: str, names: Iterable[str]) -> str:
    """A library that defines `names` and says it is `soname`."""
    text = "\n".join(f"define void @{name}() {{ ret void }}" for name in sorted(names))
    image = job.work_folder / f"{soname}.o"
    features = toolchain.plain_features(job.triple)
    image.write_bytes(toolchain.compile_ir(text, triple=job.triple, features=features, opt_level=0))
    library = job.work_folder / soname
    options = ["-m", emulation(job.triple), "-soname", soname, "-o", str(library)]
    run_linker(linker, _flat(linker, options), [str(image)], library, library)
    return str(library)


def _flat(linker: Linker, options: list[str]) -> list[str]:
    """Options of ld for a shared library. For a driver those with a value are joined: `-Wl,-m,elf_x86_64`."""
    if not linker.is_driver:
        return ["-shared", *options]
    joined: list[str] = []
    for option in options:
        if joined and not option.startswith("-"):
            joined[-1] += f",{option}"
        else:
            joined.append(option)
    return joined


def _link(linker: Linker, job: LinkJob) -> None:
    needed = job.needed_symbols() - {"_GLOBAL_OFFSET_TABLE_"}
    libraries = [
        _stand_in(linker, job, soname, names)
        for soname, names in sorted(by_library(needed, system_libraries(job.triple)).items())
    ]
    options = ["-m", emulation(job.triple), "-o", str(job.written), "-soname", job.output.name]
    # Internal calls stay inside the library; every symbol is found now; the pool's threads outlive dlclose.
    options += ["-Bsymbolic", "-z", "defs", "-z", "nodelete", "-z", "noexecstack", "-z", "relro", "--as-needed"]
    if "android" in job.triple:
        options += ["-z", f"max-page-size={_ANDROID_PAGE}"]
    if job.exports is not None:
        script = job.work_folder / "exports.map"
        names = "".join(f'    "{name}";\n' for name in job.exports)
        script.write_text(f"{{\n  global:\n{names}  local:\n    *;\n}};\n")
        # The names of what is hidden would only be carried along: the runtime has a table of its own.
        options += [f"--version-script={script}", "--strip-all"]
    run_linker(linker, _flat(linker, options), [*job.files(), *libraries], job.written, job.output)


ELF_LINKING: Final = Linking(emulation, _candidates, _link, "ld.lld, ld, cc")
