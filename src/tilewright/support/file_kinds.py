"""What a file looks like that is not what was expected: the kind by its first bytes, and what to do with it."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path
from typing import Final, NamedTuple

_ONNX: Final = "export the model to ONNX first"
_TORCH: Final = "load it with PyTorch, then tw.frontend.from_torch(module, (example_input,))"
_WEIGHTS: Final = "tw.frontend.read_weights(path) gives its tensors; import the model itself"
_ARRAY: Final = "that is data for a model: tilewright run MODEL --input NAME=FILE"
_HEAD: Final = 4096
_CONTROLS: Final = bytes(set(range(32)) - set(b"\t\n\r\f\v\b\x1b"))
"""Characters that texts do not have."""


class FileKind(NamedTuple):
    """A kind of file as a message names it, and what its owner may do."""

    name: str
    hint: str


_MAGIC: Final[tuple[tuple[int, bytes, FileKind], ...]] = (
    (0, b"\x89PNG", FileKind("a PNG image", "pass the model; images are inputs of a run")),
    (0, b"\xff\xd8\xff", FileKind("a JPEG image", "pass the model; images are inputs of a run")),
    (0, b"GIF8", FileKind("a GIF image", "pass the model; images are inputs of a run")),
    (0, b"\x7fELF", FileKind("a compiled library or program", "tw.load(path) loads what export_library wrote")),
    (0, b"\x93NUMPY", FileKind("a numpy array", _ARRAY)),
    (4, b"TFL3", FileKind("a TensorFlow Lite model", "tw.load_model(path) reads it")),
    (0, b"\x89HDF\r\n", FileKind("an HDF5 file", "a model of Keras is read if it was saved whole (model.save)")),
    (0, b"GGUF", FileKind("a GGUF file of weights", _WEIGHTS)),
    (0, b"\x1f\x8b", FileKind("a gzip archive", "unpack it first")),
    (0, b"BZh", FileKind("a bzip2 archive", "unpack it first")),
    (0, b"7z\xbc\xaf", FileKind("a 7z archive", "unpack it first")),
    (257, b"ustar", FileKind("a tar archive", "unpack it first")),
    (0, b"%PDF", FileKind("a PDF document", "pass the model's file")),
    (0, b"version https://git-lfs", FileKind("a Git LFS pointer, not the file itself", "run git lfs pull")),
    (0, b"\x80\x02", FileKind("a Python pickle, such as an old PyTorch checkpoint", _TORCH)),
    (0, b"\x80\x04", FileKind("a Python pickle", _TORCH)),
)
_SUFFIXES: Final = {
    ".pt": FileKind("a PyTorch file", _TORCH),
    ".pth": FileKind("a PyTorch file", _TORCH),
    ".pt2": FileKind("an exported PyTorch program", "tw.load_model(path) reads it"),
    ".safetensors": FileKind("a file of weights without a graph", _WEIGHTS),
    ".pb": FileKind("a TensorFlow graph", f"{_ONNX} (tf2onnx converts it)"),
    ".mlmodel": FileKind("a Core ML model", _ONNX),
    ".json": FileKind("a JSON text", _ONNX),
}


def looks_like(data: bytes, path: Path | None = None, names: Iterable[str] | None = None) -> FileKind | None:
    """The kind of a file by its contents, then by its name; None if that tells nothing.

    `data` are all its bytes, or the first ones and `names` those in the archive that it may be.
    """
    head = data[:_HEAD]
    for offset, magic, kind in _MAGIC:
        if head[offset : offset + len(magic)] == magic:
            return kind
    if head.startswith(b"PK\x03\x04"):
        return _archive(_names_in(data) if names is None else names, path)
    if head.lstrip()[:1] == b"<" and b"html" in head[:512].lower():
        return FileKind("a web page, not the file behind it", "download the file itself")
    if path is not None and path.suffix.lower() in _SUFFIXES:
        return _SUFFIXES[path.suffix.lower()]
    if begin_of_text(head):
        return FileKind("a text", "pass the model's file")
    return None


def _names_in(archive: bytes) -> list[str]:
    try:
        return zipfile.ZipFile(BytesIO(archive)).namelist()
    except (zipfile.BadZipFile, ValueError, OSError):
        return []


def _archive(paths: Iterable[str], path: Path | None) -> FileKind:
    """What kind of model a ZIP archive holds."""
    names = [name.rpartition("/")[2] for name in paths]
    if path is not None and path.suffix.lower() == ".pt2":
        return _SUFFIXES[".pt2"]
    if "data.pkl" in names or (path is not None and path.suffix.lower() in (".pt", ".pth")):
        return FileKind("a PyTorch checkpoint", _TORCH)
    if names and all(name.endswith(".npy") for name in names):
        return FileKind("an archive of numpy arrays", _ARRAY)
    return FileKind("a ZIP archive", "unpack it first")


def begin_of_text(head: bytes) -> str:
    """The first bytes of a file as text; empty if it is none."""
    if head.translate(None, _CONTROLS) != head:
        return ""
    try:
        return head.decode("utf-8")
    except UnicodeDecodeError as error:
        # A character may be cut in two at the end.
        return head[: error.start].decode("utf-8") if error.start >= len(head) - 3 else ""
