"""Linking objects into a shared library: finding a linker that serves the target, and asking it for a clean result."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tilewright.backends.llvm.coff import COFF
from tilewright.backends.llvm.elf import ELF
from tilewright.backends.llvm.link_coff import COFF_LINKING
from tilewright.backends.llvm.link_elf import ELF_LINKING
from tilewright.backends.llvm.link_macho import MACH_O_LINKING
from tilewright.backends.llvm.linker import Linker, Linking, LinkJob
from tilewright.backends.llvm.macho import MACH_O
from tilewright.backends.llvm.object_format import ObjectFormat
from tilewright.backends.llvm.objects import object_format
from tilewright.runtime.core.keys import SigningKey
from tilewright.runtime.core.seal import seal
from tilewright.support import settings, trace
from tilewright.support.errors import MissingDependencyError, UserError
from tilewright.support.files import cannot_write, replacing

_LINKING: Final[dict[ObjectFormat, Linking]] = {ELF: ELF_LINKING, COFF: COFF_LINKING, MACH_O: MACH_O_LINKING}
_DRIVERS: Final = ("cc", "gcc", "clang", "c++", "g++")


def find_linker(triple: str) -> Linker:
    """The linker for `triple`: the one the settings name, else the first that serves it."""
    linking = _LINKING[object_format(triple)]
    linking.check(triple)
    chosen = settings.LINKER.get()
    if chosen is not None:
        command = shutil.which(chosen)
        if command is None:
            raise UserError(
                f"the linker '{chosen}' is not there", where=f"setting {settings.LINKER.name}", hint=settings.LINKER.doc
            )
        return Linker((command,), is_driver=Path(command).name in _DRIVERS)
    for linker in linking.candidates(triple):
        return linker
    error = MissingDependencyError.for_extra("ziglang", "link", f"exporting a library for {triple}")
    extra = " and the package 'ziglang'" if linking.has_extra else ""
    raise MissingDependencyError(
        f"no linker for {triple} is installed (looked for {linking.looked_for}{extra})",
        hint=f"{error.hint}, or install binutils or lld" if linking.has_extra else "install lld, which has it",
    )


def link_shared(
    objects: Sequence[Path],
    output: Path,
    *,
    triple: str,
    data_objects: Mapping[str, Path],
    work_folder: Path,
    exports: Sequence[str] | None = None,
    sign: SigningKey | None = None,
    starts_threads: bool = False,
) -> None:
    """Link `objects` and `data_objects` (each with the one symbol it defines) into `output`, all or nothing.

    Of their symbols only `exports` can be seen from outside (None: all). The library is sealed, and signed where a key
    is given. `work_folder` takes the stand-in libraries; it must exist and may be deleted afterwards.
    """
    linker = find_linker(triple)
    linking = _LINKING[object_format(triple)]
    if sign is not None and not linking.is_sealed:
        raise UserError(
            f"a library for {triple} has the signature of its system, and no other",
            where=str(output),
            hint="leave the key out, and sign it with codesign",
        )
    with trace.span("link"), replacing(output) as temporary:
        job = LinkJob(triple, objects, data_objects, exports, output, temporary, work_folder, starts_threads)
        linking.link(linker, job)
        if linking.is_sealed:
            seal(temporary, sign)


def work_folder_beside(output: Path) -> tempfile.TemporaryDirectory[str]:
    """A temporary folder on the disk that will hold `output`: constants may be too large for elsewhere."""
    if not output.parent.is_dir():
        raise UserError(f"cannot write {output.name}: the folder does not exist", where=str(output))
    try:
        return tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}-")
    except OSError as error:
        raise cannot_write(output, error) from None
