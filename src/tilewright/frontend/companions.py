"""Models of several files: which other file belongs to the one that is named."""

from __future__ import annotations

from pathlib import Path


def beside(path: Path, suffix: str) -> Path | None:
    """The file of another kind that belongs to one: of the same name, or the only one of its kind in the folder."""
    same = path.with_suffix(suffix)
    if same.exists():
        return same
    if not path.parent.is_dir():
        return None
    others = list(path.parent.glob(f"*{suffix}"))
    kin = [item for item in path.parent.glob(f"*{path.suffix}") if item != path]
    return others[0] if len(others) == 1 and not kin else None


def caffe_pair(path: Path) -> tuple[Path | None, Path | None]:
    """The text and the weights of a Caffe model, of which one is named."""
    if path.suffix.lower() == ".caffemodel":
        return beside(path, ".prototxt"), path
    return path, beside(path, ".caffemodel")
