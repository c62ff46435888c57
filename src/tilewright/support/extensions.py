"""What others have added to the compiler: registries say so here, and caches of whole models ask."""

from __future__ import annotations

_foreign: list[object] = []


def note_registration(item: object) -> None:
    """Called by a registry for each function it is given."""
    if getattr(item, "__module__", "").split(".")[0] != "tilewright":
        _foreign.append(item)


def is_extended() -> bool:
    """Whether anything that is not Tilewright's own was registered in this process."""
    return bool(_foreign)
