"""A format of model files: what it is recognised by, and the importer that reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias

from tilewright.frontend.sample import Sample
from tilewright.ir.function import IRModule
from tilewright.support.errors import MissingDependencyError

Shapes: TypeAlias = "Mapping[str, Sequence[int | str | None]]"
Importer: TypeAlias = "Callable[..., IRModule]"
"""Takes a path or the bytes of a file, and `shapes`: sizes of inputs by name, or None."""


@dataclass(frozen=True)
class Format:
    """A format of files: recognised by `recognise`, where that says nothing by its suffixes; read by its importer."""

    key: str
    """A short name, for `from_file(path, format=key)`."""
    title: str
    """Its name in messages and tables."""
    content: str
    """What it is recognised by, in words."""
    recognise: Callable[[Sample], bool]
    importer: Importer | tuple[str, str]
    """The importer, or its module and name: loaded when a file needs it."""
    suffixes: tuple[str, ...] = ()
    """Ends of names that say this format where no format knows the content."""
    packages: tuple[str, ...] = ()
    """Packages that the importer needs."""
    extra: str = ""
    """The extra of Tilewright that installs them."""
    companions: Callable[[Path], Sequence[Path]] = lambda path: ()
    """The files that belong to the model beside the one that is named."""

    def missing(self) -> list[str]:
        """The packages that the importer needs and that are not installed."""
        return [name for name in self.packages if not _is_installed(name)]

    def load(self) -> Importer:
        """The importer; an error says what it lacks."""
        for package in self.missing():
            raise MissingDependencyError.for_extra(package, self.extra, f"importing a model in the format {self.title}")
        if not isinstance(self.importer, tuple):
            return self.importer
        module, name = self.importer
        found: Importer = getattr(import_module(module), name)
        return found


def _is_installed(package: str) -> bool:
    """Whether a package, or a part of one (`google.protobuf`), can be imported."""
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False
