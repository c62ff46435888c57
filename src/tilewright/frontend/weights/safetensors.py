"""safetensors files: the length of a JSON header, the header with each tensor's type, shape and place, the data."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from tilewright.frontend.sample import Sample
from tilewright.frontend.weights.gguf import mapped
from tilewright.frontend.weights.weight import Weight
from tilewright.ir.dtype import DataType
from tilewright.support.errors import UnsupportedError, UserError

_TYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}
_LARGEST_HEADER = 100_000_000
"""As the format itself limits it."""


def read_safetensors(sample: Sample) -> dict[str, Weight]:
    """The tensors of a safetensors file by name."""
    source = sample.source
    data = np.frombuffer(source, np.uint8) if isinstance(source, bytes) else mapped(sample.path)  # type: ignore[arg-type]
    size = int.from_bytes(data[:8].tobytes(), "little")
    if len(data) < 8 or not 0 < size <= min(_LARGEST_HEADER, len(data) - 8):
        raise _damaged(sample, f"a header of {size} bytes in a file of {len(data)}")
    try:
        header = json.loads(data[8 : 8 + size].tobytes())
    except (ValueError, RecursionError) as error:
        raise _damaged(sample, f"its header is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise _damaged(sample, "its header is no JSON object")
    content = data[8 + size :]
    return {
        str(name): _weight(sample, str(name), entry, content)
        for name, entry in header.items()
        if name != "__metadata__"
    }


def _weight(sample: Sample, name: str, entry: Any, content: Any) -> Weight:
    try:
        kind, shape = str(entry["dtype"]), tuple(entry["shape"])
        start, end = entry["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(sample, f"the entry of the tensor '{name}' lacks something: {error!r}") from error
    numbers = (start, end, *shape)
    if not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in numbers):
        raise _damaged(sample, f"the entry of the tensor '{name}' has no whole numbers")
    if kind not in _TYPES:
        raise UnsupportedError(f"the tensor '{name}' of {sample} has the type {kind}, which is not supported")
    dtype = DataType.of(_TYPES[kind])
    storage = dtype.numpy()
    if end > len(content) or end - start != math.prod(shape) * storage.itemsize:
        raise _damaged(sample, f"the tensor '{name}' of shape {shape} does not fit its {end - start} bytes")
    part = content[start:end]
    # Types want places that are multiples of their size.
    stored = (part if part.ctypes.data % storage.itemsize == 0 else part.copy()).view(storage)
    return Weight(name, shape, kind, stored, dtype)


def _damaged(sample: Sample, why: str) -> UserError:
    return UserError(f"{sample} is no safetensors file, or it is damaged: {why}", hint="download it again")
