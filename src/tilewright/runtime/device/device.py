"""Devices: where an array lives and a program runs."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.support.errors import UnsupportedError

_DLPACK_TYPES = {"cpu": 1}


@dataclass(frozen=True, slots=True)
class Device:
    """A device by kind and index; only the CPU so far."""

    kind: str
    index: int = 0

    def __post_init__(self) -> None:
        if self.kind not in _DLPACK_TYPES:
            raise UnsupportedError(
                f"the runtime cannot use devices of the kind '{self.kind}'", hint=f"it has {', '.join(_DLPACK_TYPES)}"
            )
        if self.index != 0:
            raise UnsupportedError(f"there is one CPU device, cpu(0); cpu({self.index}) does not exist")

    @property
    def dlpack(self) -> tuple[int, int]:
        """The device as DLPack writes it: (type, index)."""
        return _DLPACK_TYPES[self.kind], self.index

    def __repr__(self) -> str:
        return f"{self.kind}({self.index})"


def cpu(index: int = 0) -> Device:
    """The CPU."""
    return Device("cpu", index)
