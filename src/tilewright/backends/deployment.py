"""`Deployment`: what compiled models are written as for a kind of target: a shared library, or what it says itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.backends import slices
from tilewright.runtime.core.artifact import Artifact
from tilewright.runtime.core.module import ExportOptions
from tilewright.target.target import Target

_USUAL = "llvm"
"""The back end whose deployment serves those that have none of their own."""


@dataclass(frozen=True)
class Deployment:
    """How a compiled model is written to disk."""

    suffix: str
    """What is added to the name of a model for what is written; empty for a folder."""
    write: Callable[[Sequence[Artifact], Path, ExportOptions], None]
    """Writes the artifacts of one model: that for the target itself, then those of its `levels`."""
    check_tools: Callable[[Target], None]
    """Raises an error if what writing needs is not installed: asked before the work."""
    levels: Callable[[Target], tuple[Target, ...]] = lambda target: ()
    """Further targets that what is written has code for; which is taken is decided where it runs."""
    runs_without_device: bool = False
    """Whether a model for a device has code for its host too, which runs it where there is no such device."""
    details: Callable[[Path, ExportOptions], list[str]] = lambda path, options: []
    """Lines about what was written, for people."""

    special: Callable[[Target], Deployment | None] = lambda target: None
    """What models are written as for some targets of the kind, where that is another thing."""

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder of files."""
        return not self.suffix


def deployment_of(target: Target) -> Deployment:
    """How models for a CPU are written."""
    name = target.kind if target.kind in slices.names("deployment") else _USUAL
    usual = slices.load(name, "deployment", Deployment)
    return usual.special(target) or usual
