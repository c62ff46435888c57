"""Core ML's files: a model, or a package: a folder whose manifest names the model, with weights beside it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tilewright.frontend.coreml.blobs import Weights
from tilewright.frontend.coreml.schema import SCHEMA
from tilewright.support.errors import UserError

MANIFEST = "Manifest.json"


def read_files(source: str | os.PathLike[str] | bytes) -> tuple[Any, Weights, str]:
    """The model, the weights beside it, and its name in messages."""
    if isinstance(source, bytes):
        return SCHEMA.read("Model", source, "the bytes"), Weights(None), "the bytes"
    path = Path(os.fspath(source))
    where = str(path)
    model = _model_of(path) if path.is_dir() else path
    try:
        content = model.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {model}: {error.strerror or error}", where=where) from error
    return SCHEMA.read("Model", content, where), Weights(model.parent), where


def _model_of(folder: Path) -> Path:
    """The model file that the manifest of a package names."""
    hint = "a package is a folder with Manifest.json and Data/com.apple.CoreML/model.mlmodel"
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        entry = manifest["itemInfoEntries"][manifest["rootModelIdentifier"]]
        inside = Path(str(entry["path"]))
    except OSError as error:
        raise UserError(f"{folder} is no Core ML package: it has no {MANIFEST}", hint=hint) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{folder / MANIFEST} is damaged: {error!r}", hint=hint) from error
    if inside.is_absolute() or ".." in inside.parts:
        raise UserError(f"{folder / MANIFEST} names a file outside of the package: {inside}")
    return folder / "Data" / inside
