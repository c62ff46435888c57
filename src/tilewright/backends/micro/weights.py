"""The constants of a model as `const` arrays of C, which linkers put into flash."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence

import numpy as np

from tilewright.runtime.core.artifact import Artifact, ConstantInfo, ModelInfo
from tilewright.runtime.core.dtypes import C_TYPES, is_sub_byte, storage_dtype
from tilewright.runtime.core.packing import packed_size
from tilewright.support.errors import CompilerBug

_COLUMNS = 118
_FLOATS = ("float32", "float64")


def weight_bytes(model: ModelInfo) -> int:
    """The bytes of all constants."""
    return sum(map(_nbytes, model.constants))


def _nbytes(info: ConstantInfo) -> int:
    if is_sub_byte(info.dtype):
        return packed_size(info.shape, info.dtype)
    return math.prod(info.shape) * storage_dtype(info.dtype).itemsize


def weight_place(constants: Sequence[ConstantInfo], offset: int) -> tuple[str, int]:
    """The array that has the byte at an offset of a model's constants, and how far inside it is."""
    number = bisect_right([info.offset for info in constants], offset) - 1
    if number < 0 or offset - constants[number].offset >= max(_nbytes(constants[number]), 1):
        raise CompilerBug(f"no constant lies at the offset {offset}")
    return constants[number].name, offset - constants[number].offset


def weight_arrays(artifact: Artifact) -> str:
    """Definitions of all constants."""
    assert artifact.model is not None
    arrays = []
    for info in artifact.model.constants:
        data = np.asarray(artifact.constants[info.offset : info.offset + _nbytes(info)])
        # Floats of 16 bits and fewer are their bits.
        kind = C_TYPES["uint8" if is_sub_byte(info.dtype) else info.dtype]
        values = _floats(data, info.dtype) if info.dtype in _FLOATS else _integers(data, kind)
        shape = "x".join(map(str, info.shape)) or "scalar"
        arrays.append(f"/* {info.dtype} {shape} */\n{_array(kind, info.name, values or ['0'])}")
    return "\n".join(arrays)


def _array(kind: str, name: str, values: Sequence[str]) -> str:
    return f"static const _Alignas(4) {kind} {name}[{len(values)}] = {{\n{_lines(values)}\n}};\n"


def _integers(data: np.ndarray, kind: str) -> list[str]:
    numbers = data.view(np.dtype(kind.removesuffix("_t"))).tolist()
    return [_integer(number, kind) for number in numbers]


def _integer(number: int, kind: str) -> str:
    if kind == "int64_t":
        return f"{number}LL" if number != -(2**63) else f"{number + 1}LL - 1"
    if kind == "int32_t":
        return str(number) if number != -(2**31) else f"{number + 1} - 1"
    return f"{number}ULL" if kind == "uint64_t" else str(number)


def _floats(data: np.ndarray, dtype: str) -> list[str]:
    return [_float(number, "f" if dtype == "float32" else "") for number in data.view(np.dtype(dtype)).tolist()]


def _float(number: float, suffix: str) -> str:
    if math.isfinite(number):
        return f"{number.hex()}{suffix}"
    sign = "-" if math.copysign(1.0, number) < 0 else ""
    return f"{sign}{'NAN' if math.isnan(number) else 'INFINITY'}"


def _lines(words: Iterable[str]) -> str:
    """Words with commas between, on lines that are not too long."""
    lines, length = [["  "]], 2
    for word in words:
        if length + len(word) + 1 > _COLUMNS:
            lines.append(["  "])
            length = 2
        lines[-1].append(f"{word},")
        length += len(word) + 1
    return "\n".join("".join(line) for line in lines)
