"""What every language of kernels can do: turn kernels into the text of one program."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from tilewright.tir.passes.split_host_device import DeviceKernel


class KernelLanguage(ABC):
    """A language that kernels are written in."""

    name: ClassVar[str]
    suffix: ClassVar[str] = ".txt"
    """What names of files in it end with."""

    @abstractmethod
    def emit(self, kernels: Sequence[DeviceKernel]) -> str:
        """The text of one program with the given kernels."""
