"""Kernels of the tensor processor as text: their instructions, with what a launch patches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tilewright.accel.config import AccelConfig
from tilewright.accel.kernel import to_text
from tilewright.backends.accel.kernel import make_kernel
from tilewright.backends.accel.lowering import CONFIG
from tilewright.codegen.language import KernelLanguage
from tilewright.tir.passes.split_host_device import DeviceKernel


class AccelText(KernelLanguage):
    """The text of instruction streams (`accel/kernel.py`)."""

    name: ClassVar[str] = "accel"
    suffix: ClassVar[str] = ".accel"

    def emit(self, kernels: Sequence[DeviceKernel]) -> str:
        """The programs of the kernels, each proved right."""
        return to_text(
            [make_kernel(item.func, AccelConfig.from_text(str(item.func.attributes[CONFIG]))) for item in kernels]
        )
