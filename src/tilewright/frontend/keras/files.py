"""Files of Keras: the configuration, the weights and the assets of a model, whatever they lie in.

A `.keras` archive is a ZIP of `config.json`, `model.weights.h5` and `assets/`; the same files may lie in a folder. A
`.h5` file has the configuration in an attribute, and the weights of each layer in a group of its own. HDF5 is read by
the package h5py; links out of a file are not followed, and a dataset is read only if the file has room for it.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.graph.ir.op import Array
from tilewright.support.errors import MissingDependencyError, UserError

if TYPE_CHECKING:
    import h5py

CONFIG, WEIGHTS, ASSETS = "config.json", "model.weights.h5", "assets/"
_MOST_TEXT = 1 << 28
"""The most bytes of a configuration."""
_MOST_EXPANSION = 100
"""How much larger a part of an archive may be than what is stored of it, once it is larger than a mebibyte."""
_MAGIC = b"\x89HDF\r\n\x1a\n"
_HINT = "save the model again: model.save('model.keras')"
_UNREADABLE = (OSError, LookupError, RuntimeError, ValueError, TypeError, AttributeError, ArithmeticError, MemoryError)
"""What h5py raises in a damaged file: errors of its library have no class of their own."""


@dataclass
class KerasFile:
    """What a file of Keras holds."""

    source: str
    config: dict[str, Any]
    """The model: `class_name` and `config`."""
    weights: H5File | None
    """Weights by paths of layers, as `.keras` archives have them."""
    legacy: H5File | None = None
    """The file of a model in the older form, whose weights are in the group `model_weights`."""
    assets: Mapping[str, bytes] = field(default_factory=dict)
    """Files that layers keep (vocabularies), by paths."""
    version: int = 3
    """The first number of the version of Keras that wrote it."""


class H5File:
    """An HDF5 file, of which nothing is trusted."""

    def __init__(self, content: bytes, source: str) -> None:
        self.source = source
        self.size = len(content)
        try:
            import h5py
        except ImportError as error:
            raise MissingDependencyError.for_extra("h5py", "keras", "importing a model of Keras") from error
        with self._reading():
            self.root = h5py.File(io.BytesIO(content), "r")

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """What h5py cannot read is damaged."""
        try:
            yield
        except _UNREADABLE as error:
            raise UserError(f"{self.source} is no HDF5 file, or it is damaged: {error}", hint=_HINT) from error

    def attribute(self, group: str, name: str) -> Any:
        """An attribute of a group; None if it has none."""
        with self._reading():
            return self.root[group].attrs.get(name)

    def texts(self, group: str, name: str) -> list[str] | None:
        """An attribute that is a list of texts; long ones are in parts, numbered from 0."""
        value = self.attribute(group, name)
        parts = [value] if value is not None else []
        while value is None and (part := self.attribute(group, f"{name}{len(parts)}")) is not None:
            parts.append(part)
        if not parts:
            return None
        return [_text(item) for part in parts for item in np.asarray(part).reshape(-1)]

    def has(self, path: str) -> bool:
        """Whether there is something at a path that lies in this file."""
        return self._linked(path) is not None

    def _linked(self, path: str) -> Any:
        """What hard links lead to; None if there is nothing."""
        import h5py

        place: Any = self.root
        with self._reading():
            for name in filter(None, path.split("/")):
                if not isinstance(place, h5py.Group) or name not in place:
                    return None
                if not isinstance(place.get(name, getlink=True), h5py.HardLink):
                    raise UserError(f"'{path}' in {self.source} is a link to another place, which is not followed")
                place = place[name]
        return place

    def array(self, path: str) -> Array | None:
        """The numbers at a path; None if there are none."""
        import h5py

        found = self._linked(path)
        if not isinstance(found, h5py.Dataset):
            return None
        with self._reading():
            return self._read(found, path)

    def _read(self, found: h5py.Dataset, path: str) -> Array:
        if found.shape is None or found.is_virtual or found.external:
            raise UserError(f"'{path}' in {self.source} has no numbers of its own")
        if found.size * max(found.dtype.itemsize, 1) > self.size * (_MOST_EXPANSION if found.compression else 1):
            raise UserError(f"'{path}' in {self.source} is said to be {found.shape}, more than the file holds")
        kind = found.attrs.get("dtype")
        array: Array = np.asarray(found[()])
        if kind is not None and _text(kind) == "bfloat16":
            high = array.view(np.uint16).astype(np.uint32) << np.uint32(16)
            return high.view(np.float32).reshape(found.shape)
        if array.dtype.kind not in "biuf":
            raise UserError(f"'{path}' in {self.source} has elements of type {array.dtype}, which are no numbers")
        return array.astype(array.dtype.newbyteorder("="))


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def read_keras(source: str | os.PathLike[str] | bytes) -> KerasFile:
    """The parts of a model of Keras: an archive, a folder or an HDF5 file."""
    if isinstance(source, bytes):
        return _of_content(source, "the model")
    path = Path(os.fspath(source))
    try:
        if path.is_dir():
            return _of_folder(path)
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}", hint="check the path of the model") from error
    return _of_content(content, str(path))


def _of_content(content: bytes, source: str) -> KerasFile:
    if content.startswith(_MAGIC):
        return _of_h5(content, source)
    if content[:2] == b"PK" or zipfile.is_zipfile(io.BytesIO(content)):
        return _of_archive(content, source)
    raise UserError(f"{source} is no model of Keras: neither a ZIP archive nor an HDF5 file", hint=_HINT)


def _of_folder(path: Path) -> KerasFile:
    weights = path / WEIGHTS
    assets = path / "assets"
    return KerasFile(
        str(path),
        _configuration((path / CONFIG).read_bytes(), str(path / CONFIG)),
        H5File(weights.read_bytes(), str(weights)) if weights.exists() else None,
        assets={str(item.relative_to(assets)): item.read_bytes() for item in assets.rglob("*") if item.is_file()},
    )


def _of_archive(content: bytes, source: str) -> KerasFile:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = archive.namelist()
            if CONFIG not in names:
                raise UserError(f"{source} is an archive without {CONFIG}: no model of Keras", hint=_HINT)
            if "model.weights.npz" in names:
                raise UserError(f"{source} has its weights in an npz file", hint=_HINT)
            config = _configuration(_part(archive, CONFIG, source), f"{CONFIG} in {source}")
            weights = _part(archive, WEIGHTS, source) if WEIGHTS in names else None
            assets = {
                name.removeprefix(ASSETS): _part(archive, name, source)
                for name in names
                if name.startswith(ASSETS) and not name.endswith("/")
            }
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise UserError(f"{source} is a damaged archive: {error}", hint=_HINT) from error
    file = None if weights is None else H5File(weights, f"{WEIGHTS} in {source}")
    return KerasFile(source, config, file, assets=assets)


def _part(archive: zipfile.ZipFile, name: str, source: str) -> bytes:
    """One file of an archive, unless it claims to be far larger than what is stored of it."""
    info = archive.getinfo(name)
    if info.file_size > 1 << 20 and info.file_size > _MOST_EXPANSION * max(info.compress_size, 1):
        raise UserError(f"'{name}' in {source} is said to be {info.file_size} bytes, more than the archive can hold")
    return archive.read(info)


def _of_h5(content: bytes, source: str) -> KerasFile:
    file = H5File(content, source)
    text = file.attribute("/", "model_config")
    if text is None:
        raise UserError(
            f"{source} has weights and no model: it has no attribute 'model_config'",
            hint="save the whole model (model.save), not its weights (model.save_weights)",
        )
    config = _configuration(_text(text).encode("utf-8", "replace"), f"model_config of {source}")
    version = _text(file.attribute("/", "keras_version") or "1").partition(".")[0]
    return KerasFile(source, config, None, legacy=file, version=int(version) if version.isdecimal() else 1)


def _configuration(content: bytes, where: str) -> dict[str, Any]:
    if len(content) > _MOST_TEXT:
        raise UserError(f"a configuration of {len(content)} bytes is too large", where=where)
    try:
        config = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UserError(f"the configuration is no JSON text: {error}", where=where, hint=_HINT) from error
    if not isinstance(config, dict) or not isinstance(config.get("class_name"), str):
        raise UserError("the configuration describes no model: it has no class_name", where=where, hint=_HINT)
    return config
