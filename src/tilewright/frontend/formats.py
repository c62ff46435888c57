"""The one door for model files: the format of a file by its content, and the import of any.

    module = from_file("resnet18.onnx")            # whatever its name is: the content decides
    register_format(Format("mine", ...))           # another importer, for all commands too

No importer is loaded before a file needs it: a model from the cache of compiled models is ready without.
"""

from __future__ import annotations

import os
from pathlib import Path

from tilewright.frontend.builtin_formats import FORMATS
from tilewright.frontend.format import Format, Shapes
from tilewright.frontend.sample import Sample, Source
from tilewright.ir.function import IRModule
from tilewright.support.errors import UserError
from tilewright.support.extensions import note_registration
from tilewright.support.file_kinds import looks_like
from tilewright.support.text import plural, shorten

_ENTRIES_SHOWN = 100
_OWN: dict[str, Format] = {}


def register_format(own: Format) -> Format:
    """Add a format of your own: it is tried before those of Tilewright. One that is registered again is replaced."""
    if any(item.key == own.key for item in FORMATS):
        raise UserError(f"there is a format '{own.key}' already", hint="choose another key")
    _OWN[own.key] = own
    note_registration(own.recognise)
    return own


def known_formats() -> tuple[Format, ...]:
    """All formats, in the order in which they are tried."""
    return (*_OWN.values(), *FORMATS)


def identify(source: Source, format: str | None = None) -> Format:
    """The format of a file, a folder, or the bytes of a file: by its content, or where that says nothing its name."""
    if format is not None:
        return _by_key(format)
    sample = Sample(source)
    for item in known_formats():
        if item.recognise(sample):
            return item
    for item in known_formats():
        if sample.suffix and sample.suffix in item.suffixes and not sample.is_folder:
            return item
    raise _unknown(sample)


def _by_key(key: str) -> Format:
    for item in known_formats():
        if item.key == key:
            return item
    raise UserError(
        f"there is no format '{key}'", hint=f"the formats are {', '.join(item.key for item in known_formats())}"
    )


def _unknown(sample: Sample) -> UserError:
    """The error for what no importer reads: what it looks like, and what is known."""
    known = f"Tilewright reads {', '.join(item.title for item in known_formats())} (`tilewright formats`)"
    if sample.is_folder:
        entries = shorten(", ".join(sorted(sample.entries)) or "nothing", _ENTRIES_SHOWN)
        return UserError(f"{sample} is a folder without a model that Tilewright knows: it holds {entries}", hint=known)
    if not sample.head:
        return UserError(f"{sample}: the file is empty", hint="download or export it again")
    kind = looks_like(sample.head, sample.path, sample.archive)
    if kind is not None:
        return UserError(f"{sample} is no model: it looks like {kind.name}", hint=f"{kind.hint}; {known}")
    begins = sample.head[:8].hex(" ")
    return UserError(
        f"{sample} is no model that Tilewright knows, or it is damaged: it begins with the "
        f"{plural(min(8, len(sample.head)), 'byte')} {begins}",
        hint=known,
    )


def from_file(model: object, shapes: Shapes | None = None, *, format: str | None = None) -> IRModule:
    """Import a model from a file or folder of any format, or from the bytes of a file.

    The format is that of the content, whatever the name says, or `format`, the key of one. `shapes` fixes or names open
    dimensions of inputs: `{"input": (1, 3, 224, 224)}`. Objects of frameworks are for the importers themselves, but for
    an `onnx.ModelProto`.
    """
    if isinstance(model, (bytearray, memoryview)):
        model = bytes(model)
    if isinstance(model, (str, os.PathLike, bytes)):
        return identify(model, format).load()(model, shapes=shapes)
    return _by_key(format or "onnx").load()(model, shapes=shapes)


load_model = from_file
"""The name that it has in the package itself: `tw.load_model(path)`."""


def model_files(path: Path, chosen: Format) -> list[Path] | None:
    """The files that a model is made of; None where they cannot be told (of a folder its format may say it)."""
    if path.is_dir():
        return [item for item in chosen.companions(path) if item.is_file()] or None
    return [path, *chosen.companions(path)]
