"""Caffe's two files: the net as a text, and its weights with (mostly) the same net in a binary message."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.frontend.caffe.legacy import upgraded
from tilewright.frontend.caffe.schema import NET, WEIGHTS
from tilewright.frontend.companions import caffe_pair
from tilewright.graph.ir.op import Array
from tilewright.support.errors import UserError

_LARGEST_BLOB = 1 << 40


@dataclass(frozen=True)
class CaffeModel:
    """A net (`NetParameter` with layers of version 2), the blobs of its layers by name, and how messages call it."""

    net: Any
    blobs: dict[str, list[Array]]
    source: str


def read_model(source: str | os.PathLike[str] | bytes, weights: str | os.PathLike[str] | None) -> CaffeModel:
    """The model of a file, with the other file beside it."""
    if isinstance(source, bytes):
        return _from_bytes(source, "the bytes", None if weights is None else Path(os.fspath(weights)))
    path = Path(os.fspath(source))
    text, numbers = caffe_pair(path)
    if weights is not None:
        numbers = Path(os.fspath(weights))
    content = _read(path if text is None else text)
    return _from_bytes(content, str(path if text is None else text), numbers)


def _from_bytes(content: bytes, source: str, numbers: Path | None) -> CaffeModel:
    if is_text(content):
        net = upgraded(NET.read_text("NetParameter", content.decode("utf-8", "replace"), source), source)
        blobs: dict[str, list[Array]] = {}
        if numbers is not None:
            blobs = _named_blobs(WEIGHTS.read("NetParameter", _read(numbers), str(numbers)), str(numbers))
        for layer in net.layer:
            if layer.blobs:
                blobs[layer.name] = [array_of(blob, f"{source}: layer '{layer.name}'") for blob in layer.blobs]
        return CaffeModel(net, blobs, source)
    net = NET.read("NetParameter", content, source)
    return CaffeModel(upgraded(net, source), _named_blobs(net, source), source)


def is_text(content: bytes) -> bool:
    """Whether a file is a net in protobuf's text format: messages in bytes have characters that texts have not."""
    head = content[:4096]
    return not any(byte < 32 and byte not in b"\t\n\r\f\v" for byte in head) and bool(head)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(
            f"cannot read {path}: {error.strerror or error}",
            hint="a Caffe model is a .prototxt and a .caffemodel of the same name beside it, or a .caffemodel alone",
        ) from error


def _named_blobs(net: Any, source: str) -> dict[str, list[Array]]:
    """The blobs of each layer that has some, of every version of layers."""
    found: dict[str, list[Array]] = {}
    for layer in (*net.layer, *net.layers):
        name, blobs = layer.name, layer.blobs
        if "layer" in layer.DESCRIPTOR.fields_by_name and layer.HasField("layer"):
            name, blobs = layer.layer.name, blobs or layer.layer.blobs
        if blobs:
            found[name] = [array_of(blob, f"{source}: layer '{name}'") for blob in blobs]
    return found


def _numbers(blob: Any, where: str) -> Array:
    if blob.raw_data:
        kinds = {0: "<f8", 1: "<f4", 2: "<f2"}
        kind = kinds.get(blob.raw_data_type)
        if kind is None or len(blob.raw_data) % np.dtype(kind).itemsize:
            raise UserError(f"raw weights of type {blob.raw_data_type} and {len(blob.raw_data)} bytes", where=where)
        return np.frombuffer(blob.raw_data, kind)
    values = blob.double_data if blob.double_data else blob.data
    return np.fromiter(values, np.float32, len(values))


def array_of(blob: Any, where: str) -> Array:
    """The numbers of a blob in its shape: old blobs have four dimensions by name."""
    values = _numbers(blob, where)
    shape: Sequence[int]
    if blob.HasField("shape"):
        shape = list(blob.shape.dim)
    elif any(blob.HasField(name) for name in ("num", "channels", "height", "width")):
        shape = [blob.num, blob.channels, blob.height, blob.width]
    else:
        shape = [len(values)]
    count = 1
    for size in shape:
        count *= int(size)
    if any(size < 0 for size in shape) or count != len(values) or count > _LARGEST_BLOB:
        raise UserError(f"weights of shape {tuple(shape)} have {len(values)} numbers", where=where)
    return values.astype(np.float32).reshape(shape)
