"""Core ML's packages and blobs of weights written in Python: coremltools has libraries for it, not for every machine.

`use_writer()` puts it in the place of these libraries, so that coremltools writes programs on any machine.
"""

from __future__ import annotations

import json
import shutil
import struct
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

TYPES = {"float16": 1, "float32": 2, "uint8": 3, "int8": 4, "int16": 6, "uint16": 7, "int32": 14, "uint32": 15}
PACKED = {"int4": (8, 4), "uint1": (9, 1), "uint2": (10, 2), "uint4": (11, 4), "uint3": (12, 3), "uint6": (13, 6)}


class BlobWriter:
    """A file of blobs."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.count = 0
        self.path.write_bytes(self._header())

    def _header(self) -> bytes:
        return struct.pack("<II", self.count, 2) + bytes(56)

    def _write(self, kind: int, content: bytes, padding: int = 0) -> int:
        data = bytearray(self.path.read_bytes())
        data += bytes(-len(data) % 64)
        place = len(data)
        data += struct.pack("<IIQQQ", 0xDEADBEEF, kind, len(content), place + 64, padding) + bytes(32)
        data += content
        self.count += 1
        data[:64] = self._header()
        self.path.write_bytes(bytes(data))
        return place

    def write(self, values: npt.NDArray[Any]) -> int:
        """A blob of numbers."""
        array = np.ascontiguousarray(values)
        return self._write(TYPES[array.dtype.name], array.tobytes())

    def write_packed(self, values: npt.NDArray[Any], name: str) -> int:
        """A blob of integers of few bits."""
        kind, bits = PACKED[name]
        codes = np.asarray(values).astype(np.int64).ravel() & ((1 << bits) - 1)
        flags = (codes[:, None] >> np.arange(bits)) & 1
        content = np.packbits(flags.astype(np.uint8).ravel(), bitorder="little").tobytes()
        return self._write(kind, content, len(content) * 8 - codes.size * bits)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("write_") and name.endswith("_data"):
            kind = name.removeprefix("write_").removesuffix("_data")
            if kind in PACKED:
                return lambda values: self.write_packed(np.asarray(values), kind)
            dtype = {"fp16": np.float16, "float": np.float32}.get(kind) or np.dtype(kind)
            if kind == "fp16":
                return lambda values: self.write(np.asarray(values).view(np.float16))
            return lambda values: self.write(np.asarray(values, dtype))
        raise AttributeError(name)


class BlobReader:
    """Blobs of a file, by the place of their headers."""

    def __init__(self, path: str) -> None:
        self.content = Path(path).read_bytes()

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("read_") or not name.endswith("_data"):
            raise AttributeError(name)
        kind = name.removeprefix("read_").removesuffix("_data")
        dtype = np.dtype({"fp16": np.uint16, "float": np.float32}.get(kind) or kind)

        def read(offset: int) -> npt.NDArray[Any]:
            _, _, size, start = struct.unpack_from("<IIQQ", self.content, offset)
            return np.frombuffer(self.content, dtype, size // dtype.itemsize, start)

        return read


class ModelPackage:
    """A folder with a model and what belongs to it, by a manifest."""

    def __init__(self, path: str) -> None:
        self.folder = Path(path)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.manifest = self.folder / "Manifest.json"
        if not self.manifest.exists():
            self._save({"fileFormatVersion": "1.0.0", "itemInfoEntries": {}, "rootModelIdentifier": ""})

    @staticmethod
    def isValid(path: str) -> bool:
        """Whether a folder is a package."""
        return (Path(path) / "Manifest.json").exists()

    def _read(self) -> dict[str, Any]:
        result: dict[str, Any] = json.loads(self.manifest.read_text())
        return result

    def _save(self, content: dict[str, Any]) -> None:
        self.manifest.write_text(json.dumps(content, indent=4))

    def addItem(self, path: str, name: str, author: str, description: str) -> str:
        """Copy a file or folder into the package."""
        target = self.folder / "Data" / author / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if Path(path).is_dir():
            shutil.copytree(path, target, dirs_exist_ok=True)
        else:
            shutil.copy(path, target)
        content, key = self._read(), f"{author}/{name}"
        content["itemInfoEntries"][key] = {"author": author, "description": description, "name": name, "path": key}
        self._save(content)
        return key

    def setRootModel(self, path: str, name: str, author: str, description: str) -> str:
        """Copy the model into the package."""
        key = self.addItem(path, name, author, description)
        self._save({**self._read(), "rootModelIdentifier": key})
        return key

    def findItemByNameAuthor(self, name: str, author: str) -> Any:
        """An item of the package, or None."""
        entry = self._read()["itemInfoEntries"].get(f"{author}/{name}")
        return None if entry is None else _Item(self.folder / "Data" / entry["path"])

    def getRootModel(self) -> Any:
        """The model of the package."""
        content = self._read()
        return _Item(self.folder / "Data" / content["itemInfoEntries"][content["rootModelIdentifier"]]["path"])


class _Item:
    def __init__(self, place: Path) -> None:
        self.place = place

    def path(self) -> str:
        """Where the item is."""
        return str(self.place)


def use_writer() -> None:
    """Let coremltools write packages with these classes; to be called before it is imported."""
    storage = types.ModuleType("coremltools.libmilstoragepython")
    storage._BlobStorageWriter = BlobWriter  # type: ignore[attr-defined]
    storage._BlobStorageReader = BlobReader  # type: ignore[attr-defined]
    packages = types.ModuleType("coremltools.libmodelpackage")
    packages.ModelPackage = ModelPackage  # type: ignore[attr-defined]
    sys.modules[storage.__name__], sys.modules[packages.__name__] = storage, packages
