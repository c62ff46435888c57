"""Linking objects into a shared library: finding a linker that serves the target, and asking it for a clean result.

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
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tilewright.backends.llvm import toolchain
from tilewright.backends.llvm.elf import architecture, defined_symbols, undefined_symbols
from tilewright.runtime.core.keys import SigningKey
from tilewright.runtime.core.seal import seal
from tilewright.support import settings, trace
from tilewright.support.errors import CompilerBug, MissingDependencyError, UnsupportedError, UserError
from tilewright.support.files import cannot_write, replacing

_EMULATIONS = {"x86_64": "elf_x86_64", "aarch64": "aarch64linux", "riscv64": "elf64lriscv"}
_LLD_VERSIONS = range(23, 13, -1)

_LIBC = frozenset(
    """abort aligned_alloc bcmp calloc free getenv madvise malloc memchr memcmp memcpy memmove memset mmap munmap
    posix_memalign printf pthread_create pthread_detach pthread_sigmask puts realloc sched_getaffinity sigfillset strlen
    strtol syscall""".split()
)
_LIBM_STEMS = """acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp10 exp2 expm1
    fabs fdim floor fma fmax fmaximum_num fmin fminimum_num fmod frexp hypot ldexp lgamma llrint llround log log10
    log1p log2 lrint lround modf nearbyint nextafter pow remainder rint round roundeven sin sincos sinh sqrt tan tanh
    tgamma trunc""".split()
_LIBM = frozenset(name + suffix for name in _LIBM_STEMS for suffix in ("", "f"))


@dataclass(frozen=True, slots=True)
class Linker:
    """A command that takes ld's options; a compiler driver takes them behind `-Wl,`."""

    command: tuple[str, ...]
    is_driver: bool = False

    def arguments(self, options: Sequence[str], files: Sequence[str]) -> list[str]:
        """The whole command line."""
        if self.is_driver:
            return [*self.command, "-shared", "-nostdlib", *(f"-Wl,{option}" for option in options), *files]
        return [*self.command, "-shared", *options, *files]


def emulation(triple: str) -> str:
    """The linkers' name of the triple's ELF format."""
    name = architecture(triple)
    if name not in _EMULATIONS or any(system in triple for system in ("windows", "darwin", "macos", "mingw")):
        raise UnsupportedError(
            f"exporting a shared library for {triple} is not supported",
            hint=f"supported: Linux on {', '.join(sorted(_EMULATIONS))}",
        )
    return _EMULATIONS[name]


@cache
def _gnu_emulations(command: str) -> frozenset[str]:
    """What `ld -V` says it can link."""
    done = subprocess.run([command, "-V"], capture_output=True, text=True, check=False)
    return frozenset(done.stdout.split())


def _candidates(triple: str) -> Iterable[Linker]:
    needed = emulation(triple)
    # Debian's packages of one version, such as lld-19, have only the name with the version.
    for command in ("ld.lld", *(f"ld.lld-{version}" for version in _LLD_VERSIONS)):
        lld = shutil.which(command)
        if lld:
            yield Linker((lld,))
    name = architecture(triple)
    for command in ("ld", f"{name}-linux-gnu-ld", f"{name}-unknown-linux-gnu-ld"):
        linker = shutil.which(command)
        if linker and needed in _gnu_emulations(linker):
            yield Linker((linker,))
    driver = shutil.which("cc")
    if driver and architecture(toolchain.host_triple()) == name:
        yield Linker((driver,), is_driver=True)
    if importlib.util.find_spec("ziglang") is not None:
        yield Linker((sys.executable, "-m", "ziglang", "ld.lld"))


def find_linker(triple: str) -> Linker:
    """The linker for `triple`: the one the settings name, else the first that serves it."""
    emulation(triple)
    chosen = settings.LINKER.get()
    if chosen is not None:
        command = shutil.which(chosen)
        if command is None:
            raise UserError(
                f"the linker '{chosen}' is not there", where=f"setting {settings.LINKER.name}", hint=settings.LINKER.doc
            )
        return Linker((command,), is_driver=Path(command).name in ("cc", "gcc", "clang", "c++", "g++"))
    for linker in _candidates(triple):
        return linker
    error = MissingDependencyError.for_extra("ziglang", "link", f"exporting a library for {triple}")
    raise MissingDependencyError(
        f"no linker for {triple} is installed (looked for ld.lld, ld, cc and the package 'ziglang')",
        hint=f"{error.hint}, or install binutils or lld",
    )


def _run(linker: Linker, options: Sequence[str], files: Sequence[str], written: Path, target: Path) -> None:
    """Link into the file `written`; errors speak of `target`, which the user knows."""
    command = linker.arguments(options, files)
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise UserError(f"the linker {linker.command[0]} cannot be started: {error.strerror}") from None
    if done.returncode == 0:
        if not written.exists():
            raise UserError(f"the linker {linker.command[0]} wrote nothing: is it one?", hint=settings.LINKER.doc)
        return
    text = (done.stderr + done.stdout).strip()
    for reason in ("No space left on device", "File too large", "Permission denied", "Disk quota exceeded"):
        if reason in text:
            raise UserError(f"cannot write {target.name}: {reason}", where=str(target))
    if done.returncode < 0:
        raise UserError(
            f"the linker {linker.command[0]} was killed by signal {-done.returncode}",
            where=str(target),
            hint="is the disk full, or a limit on memory or file size too small?",
        )
    if settings.LINKER.get() is not None:
        # A linker of the user's own choice: what it cannot do is for the user to know, in its own words.
        raise UserError(
            f"the linker {linker.command[0]} failed with code {done.returncode}: {text or 'it said nothing'}",
            where=str(target),
            hint=f"another linker, or none, in {settings.LINKER.name}",
        )
    raise CompilerBug(f"the linker failed with code {done.returncode}: {text}\n  command: {' '.join(command)}")


def _standard_libraries(triple: str) -> tuple[str, str]:
    """The names under which libc and libm are loaded on the target."""
    if "musl" in triple:
        name = f"libc.musl-{architecture(triple)}.so.1"
        return name, name
    return "libc.so.6", "libm.so.6"


def _stand_in(linker: Linker, folder: Path, soname: str, names: Iterable[str], triple: str) -> str:
    """A library that defines `names` and says it is `soname`."""
    text = "\n".join(f"define void @{name}() {{ ret void }}" for name in sorted(names))
    features = "+m,+a,+f,+d,+c" if architecture(triple) == "riscv64" else ""
    image = folder / f"{soname}.o"
    image.write_bytes(toolchain.compile_ir(text, triple=triple, features=features, opt_level=0))
    library = folder / soname
    options = ["-m", emulation(triple), "-soname", soname, "-o", str(library)]
    _run(linker, _flat(linker, options), [str(image)], library, library)
    return str(library)


def _flat(linker: Linker, options: list[str]) -> list[str]:
    """For a driver, options with a value are joined, as `-Wl,-m,elf_x86_64` wants them."""
    if not linker.is_driver:
        return options
    joined: list[str] = []
    for option in options:
        if joined and not option.startswith("-"):
            joined[-1] += f",{option}"
        else:
            joined.append(option)
    return joined


def _dependencies(
    linker: Linker, folder: Path, objects: Sequence[Path], provided: Iterable[str], triple: str
) -> list[str]:
    images = [path.read_bytes() for path in objects]
    needed = set().union(*map(undefined_symbols, images)) - set().union(*map(defined_symbols, images))
    needed -= {"_GLOBAL_OFFSET_TABLE_", *provided}
    libc, libm = _standard_libraries(triple)
    groups: dict[str, set[str]] = {}
    for name in needed:
        if name in _LIBC:
            groups.setdefault(libc, set()).add(name)
        elif name in _LIBM:
            groups.setdefault(libm, set()).add(name)
        else:
            raise CompilerBug(f"the compiled code uses the symbol '{name}', which no library provides")
    return [_stand_in(linker, folder, soname, names, triple) for soname, names in sorted(groups.items())]


def link_shared(
    objects: Sequence[Path],
    output: Path,
    *,
    triple: str,
    data_objects: Mapping[str, Path],
    work_folder: Path,
    exports: Sequence[str] | None = None,
    sign: SigningKey | None = None,
) -> None:
    """Link `objects` and `data_objects` (each with the one symbol it defines) into `output`, all or nothing.

    Of their symbols only `exports` can be seen from outside (None: all). The library is sealed, and signed where a key
    is given. `work_folder` takes the stand-in libraries; it must exist and may be deleted afterwards.
    """
    linker = find_linker(triple)
    with trace.span("link"), replacing(output) as temporary:
        libraries = _dependencies(linker, work_folder, objects, data_objects, triple)
        options = ["-m", emulation(triple), "-o", str(temporary), "-soname", output.name]
        # Internal calls stay inside the library; every symbol is found now; the pool's threads outlive dlclose.
        options += ["-Bsymbolic", "-z", "defs", "-z", "nodelete", "-z", "noexecstack", "-z", "relro", "--as-needed"]
        if exports is not None:
            script = work_folder / "exports.map"
            names = "".join(f'    "{name}";\n' for name in exports)
            script.write_text(f"{{\n  global:\n{names}  local:\n    *;\n}};\n")
            options.append(f"--version-script={script}")
        files = [str(path) for path in (*objects, *data_objects.values())]
        _run(linker, _flat(linker, options), [*files, *libraries], temporary, output)
        seal(temporary, sign)


def work_folder_beside(output: Path) -> tempfile.TemporaryDirectory[str]:
    """A temporary folder on the disk that will hold `output`: constants may be too large for elsewhere."""
    if not output.parent.is_dir():
        raise UserError(f"cannot write {output.name}: the folder does not exist", where=str(output))
    try:
        return tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}-")
    except OSError as error:
        raise cannot_write(output, error) from None
