"""Stages of a compilation as files: written to be looked at, and read where a changed file takes a stage's place.

    <folder>/<pipeline>.<program>/<number>_<stage><suffix>      cpu.tw_nn_dense_41f0/05_lower_threads.py
                                                                code.tw_nn_dense_41f0/00_source.ll

`TILEWRIGHT_TRACE=dump` writes all of them to `TILEWRIGHT_DUMP_DIR`. A file of the same name under
`TILEWRIGHT_OVERRIDE_DIR` takes the place of its stage: of the program after a pass (`ir/passes.py`), or of a text that
a code generator made. A file that matches no stage of its program is an error; a folder that matches no program is
named at the end of the process, which alone knows all programs that it compiled (`watch_overrides`).
"""

from __future__ import annotations

import atexit
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tilewright.support import settings
from tilewright.support.errors import CompilerBug, UserError
from tilewright.support.files import cannot_write

_met: Final[set[Path]] = set()
"""Folders for stage files of the programs that were compiled in this process."""
_watched: Final[set[Path]] = set()


def watch_overrides() -> None:
    """Have folders of `TILEWRIGHT_OVERRIDE_DIR` that match no program of this process named when it ends."""
    root = settings.OVERRIDE_DIR.get()
    if root is not None and root not in _watched:
        _watched.add(root)
        atexit.register(_name_unused, root)


def _name_unused(root: Path) -> None:
    unused = unused_overrides(root)
    known = sorted(path.name for path in _met if path.parent == root)
    if unused and known:
        print(
            f"tilewright: {root} ({settings.OVERRIDE_DIR.name}): no program is called {', '.join(unused)}; "
            f"compiled were {', '.join(known)}",
            file=sys.stderr,
        )


def unused_overrides(root: Path) -> list[str]:
    """Folders with stage files for programs that were not compiled in this process."""
    folders = sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    return [path.name for path in folders if path not in _met and any(path.glob("[0-9][0-9]_*"))]


class StageFileError(UserError):
    """A file that cannot take the place of a stage. Whoever tries several ways must not go on with another one."""


@dataclass(frozen=True, slots=True)
class StageText:
    """A stage that is a text, and the file that it was read from where one took the place of what the compiler made."""

    text: str
    place: Path | None = None

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """What fails in the body is the fault of the file, if there is one: errors name it."""
        try:
            yield
        except (CompilerBug, UserError) as error:
            if self.place is None:
                raise
            if isinstance(error, CompilerBug):
                raise StageFileError(str(error.args[0]), where=str(self.place)) from error
            where = error.where if error.where and str(self.place) in error.where else str(self.place)
            raise StageFileError(error.message, where=where, hint=error.hint) from error


class StageFiles:
    """The files of one program, whose stages are numbered in the order given."""

    def __init__(self, pipeline: str, program: str, stages: Sequence[str]) -> None:
        self.stages = stages
        self._folder = re.sub(r"[^A-Za-z0-9_.-]", "_", f"{pipeline}.{program}")
        self._dump = settings.DUMP_DIR.get() if "dump" in settings.TRACE.get() else None
        self._override = settings.OVERRIDE_DIR.get()
        if self._override is not None:
            self._require_stages(self._override)

    def _require_stages(self, root: Path) -> None:
        """Refuse files that would take the place of no stage: a wrong name must not pass unnoticed."""
        if not root.is_dir():
            raise StageFileError(
                f"there is no folder {root}",
                where=f"setting {settings.OVERRIDE_DIR.name}",
                hint="it holds stage files, named as TILEWRIGHT_TRACE=dump names them",
            )
        folder = root / self._folder
        _met.add(folder)
        known = [self._name(number) for number in range(len(self.stages))]
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.name.partition(".")[0] not in known:
                raise StageFileError(
                    f"the file {path.name} takes the place of no stage of {self._folder}",
                    where=str(path),
                    hint=f"its stages: {', '.join(known)}",
                )

    def _name(self, number: int) -> str:
        return f"{number:02d}_{self.stages[number]}"

    def dump(self, number: int, suffix: str, text: Callable[[], str]) -> None:
        """Write a stage, if dumping is asked for."""
        if self._dump is not None:
            path = self._dump / self._folder / f"{self._name(number)}{suffix}"
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text(), encoding="utf-8")
            except OSError as error:
                raise cannot_write(path, error) from None

    def override(self, number: int, suffix: str) -> StageText | None:
        """The text that takes the place of a stage, if there is one."""
        path = None if self._override is None else self._override / self._folder / f"{self._name(number)}{suffix}"
        if path is None or not path.is_file():
            return None
        try:
            return StageText(path.read_text(encoding="utf-8"), path)
        except (OSError, UnicodeDecodeError) as error:
            raise StageFileError(f"cannot read the stage {self.stages[number]}: {error}", where=str(path)) from None

    def show(self, number: int, suffix: str, make: Callable[[], str]) -> None:
        """Write a stage that can only be looked at, if dumping is asked for; a file that says otherwise is refused."""
        if self._dump is None and self._override is None:
            return
        text = make()
        stage = self.text(number, suffix, lambda: text)
        if stage.text != text:
            raise StageFileError(
                f"the stage {self.stages[number]} has no text that can be read back",
                where=str(stage.place),
                hint="change a file of an earlier stage, and delete this one",
            )

    def text(self, number: int, suffix: str, make: Callable[[], str]) -> StageText:
        """A stage that is a text: that of its file, or what is made here; dumped if that is asked for."""
        stage = self.override(number, suffix) or StageText(make())
        self.dump(number, suffix, lambda: stage.text)
        return stage
