"""A linker as a command: how it is started, what its failures mean to a user, and what linking for a format is."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tilewright.backends.llvm.objects import defined_symbols, undefined_symbols
from tilewright.support import settings
from tilewright.support.errors import CompilerBug, UserError

_LLD_VERSIONS = range(23, 13, -1)
_LIBM_STEMS = """acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp10 exp2 expm1
    fabs fdim floor fma fmax fmaximum_num fmin fminimum_num fmod frexp hypot ldexp lgamma llrint llround log log10
    log1p log2 lrint lround modf nearbyint nextafter pow remainder rint round roundeven sin sincos sinh sqrt tan tanh
    tgamma trunc""".split()
MATHEMATICS: Final = frozenset(name + suffix for name in _LIBM_STEMS for suffix in ("", "f"))
"""What compiled code may call of libm."""


@dataclass(frozen=True, slots=True)
class Linker:
    """A command that takes a linker's options; a compiler driver takes those of ld behind `-Wl,`."""

    command: tuple[str, ...]
    is_driver: bool = False

    def arguments(self, options: Sequence[str], files: Sequence[str]) -> list[str]:
        """The whole command line."""
        if self.is_driver:
            return [*self.command, "-shared", "-nostdlib", *(f"-Wl,{option}" for option in options), *files]
        return [*self.command, *options, *files]


def run_linker(linker: Linker, options: Sequence[str], files: Sequence[str], written: Path, target: Path) -> None:
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


@dataclass(frozen=True, slots=True)
class LinkJob:
    """What is linked to what."""

    triple: str
    objects: Sequence[Path]
    data_objects: Mapping[str, Path]
    """Objects of data, each under the one symbol that it defines: they may be too large to be read."""
    exports: Sequence[str] | None
    """What can be seen from outside; None: everything."""
    output: Path
    """The name that the library is to have."""
    written: Path
    """The file that is written."""
    work_folder: Path
    """Where stand-ins and other files on the way go."""
    starts_threads: bool = False
    """Whether the library has code that runs when it is loaded."""

    def needed_symbols(self) -> set[str]:
        """What the objects use and none of them defines."""
        images = [path.read_bytes() for path in self.objects]
        defined = set().union(self.data_objects, *map(defined_symbols, images))
        return set().union(*map(undefined_symbols, images)) - defined

    def files(self) -> list[str]:
        """All objects, as arguments of a command."""
        return [str(path) for path in (*self.objects, *self.data_objects.values())]


@dataclass(frozen=True, slots=True)
class Linking:
    """How libraries of one object format are linked."""

    check: Callable[[str], object]
    """A UserError for a triple that nothing could be linked for."""
    candidates: Callable[[str], Iterable[Linker]]
    """The linkers on this machine that serve a triple, the preferred one first."""
    link: Callable[[Linker, LinkJob], None]
    looked_for: str
    """The names of its linkers, for people."""
    has_extra: bool = True
    """Whether the extra `link` brings one."""
    is_sealed: bool = True
    """Whether our checksum and signature may stand behind what is linked."""


def lld_commands(name: str) -> Iterator[str]:
    """The paths of LLVM's linker. Debian's packages of one version (lld-19) have only the name with the version."""
    for command in (name, *(f"{name}-{version}" for version in _LLD_VERSIONS)):
        found = shutil.which(command)
        if found:
            yield found


def by_library(needed: Iterable[str], libraries: Mapping[str, frozenset[str]]) -> dict[str, list[str]]:
    """The symbols that each of a system's libraries is to give."""
    groups: dict[str, list[str]] = {}
    for name in sorted(needed):
        library = next((library for library, names in libraries.items() if name in names), None)
        if library is None:
            raise CompilerBug(f"the compiled code uses the symbol '{name}', which no library provides")
        groups.setdefault(library, []).append(name)
    return groups
