"""A compiled kernel as bytes for the cache: a version, a JSON table of plain values, and the code.

    offset 0   8 bytes   b"TWKERN02"
    offset 8   8 bytes   length of the table, little-endian
    then the table and the object code

Only data is read back, and every value of the table is checked: an entry of the cache cannot make the compiler run
anything but the kernel that it holds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tilewright.runtime.core.artifact import DeviceKernelInfo, device_kernel_from_metadata
from tilewright.tir.analysis.in_place import Pair
from tilewright.tir.index_map import IndexMap

_MAGIC = b"TWKERN02"
_START = len(_MAGIC) + 8
_MOST_AXES = 64
_PARTS = ("whole", "outer", "inner", "+inner")


class DamagedKernelError(ValueError):
    """Bytes that are no kernel of this format."""


@dataclass(frozen=True, slots=True)
class KernelTable:
    """What is kept of a kernel beside its code; the fields are those of `CompiledKernel`."""

    packing: dict[int, IndexMap]
    in_place: tuple[Pair, ...]
    scratch: tuple[int, ...]
    device: DeviceKernelInfo | None
    refused: str
    failed_template: str
    bound: tuple[float, float, str]


def encode_kernel(table: KernelTable, code: bytes) -> bytes:
    """A kernel as bytes."""
    plain = {
        "packing": [[number, len(found.inputs), found.encode()] for number, found in table.packing.items()],
        "in_place": table.in_place,
        "scratch": table.scratch,
        "device": None if table.device is None else asdict(table.device),
        "refused": table.refused,
        "failed_template": table.failed_template,
        "bound": table.bound,
    }
    text = json.dumps(plain, separators=(",", ":")).encode()
    return b"".join([_MAGIC, len(text).to_bytes(8, "little"), text, code])


def decode_kernel(payload: bytes) -> tuple[KernelTable, bytes]:
    """The kernel that `encode_kernel` wrote; `DamagedKernelError` for anything else."""
    end = _START + int.from_bytes(payload[len(_MAGIC) : _START], "little")
    if len(payload) < _START or payload[: len(_MAGIC)] != _MAGIC or end > len(payload):
        raise DamagedKernelError("not a kernel of this format")
    try:
        return _table(json.loads(payload[_START:end])), payload[end:]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise DamagedKernelError(f"a damaged table: {error!r}") from None


def _table(data: Mapping[str, Any]) -> KernelTable:
    refused, failed = data["refused"], data["failed_template"]
    least, estimate, reason = data["bound"]
    if not all(isinstance(text, str) for text in (refused, failed, reason)):
        raise TypeError("a reason that is no text")
    if not all(isinstance(cycles, float) and 0 <= cycles < float("inf") for cycles in (least, estimate)):
        raise TypeError("cycles that are no number")
    return KernelTable(
        packing={_natural(number): _index_map(rank, steps) for number, rank, steps in data["packing"]},
        in_place=tuple((_natural(first), _natural(second)) for first, second in data["in_place"]),
        scratch=tuple(_natural(size) for size in data["scratch"]),
        device=None if data["device"] is None else device_kernel_from_metadata(data["device"]),
        refused=refused,
        failed_template=failed,
        bound=(least, estimate, reason),
    )


def _natural(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError(f"expected a whole number, found {value!r}")
    return value


def _index_map(rank: object, steps: object) -> IndexMap:
    if not isinstance(steps, list) or _natural(rank) > _MOST_AXES:
        raise TypeError("an index map that is no list, or of too many axes")
    checked: list[tuple[int, str, int]] = []
    for axis, part, factor in steps:
        if _natural(axis) >= _natural(rank) or part not in _PARTS:
            raise ValueError("an index map of axes that are not there")
        if (_natural(factor) > 0) == (part == "whole") or (part == "+inner" and not checked):
            raise ValueError("an index map whose axes are divided by nothing")
        checked.append((axis, part, factor))
    return IndexMap.decode(_natural(rank), checked)
