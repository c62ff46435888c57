"""Microcontrollers, as a kind of target."""

from __future__ import annotations

from typing import Final

from tilewright.target.capabilities import Capabilities
from tilewright.target.kinds import CPU_OPTIONS, TargetKind
from tilewright.target.resolve import effective_features

KIND: Final = TargetKind(
    "micro",
    "C sources for a microcontroller: no heap, no threads, no operating system",
    CPU_OPTIONS,
    is_cpu=True,
    # Vectors of C are arrays: compilers do not find them again in registers of MVE.
    defaults={"cores": 1, "vector_bits": 32},
    triple="thumbv7em-none-eabi",
    capabilities=Capabilities(little_memory=True, dot4="dsp"),
    features_of=effective_features,
    is_elsewhere=True,
)
"""Cortex-M; RISC-V is named by its triple, `micro -mtriple=riscv32-unknown-elf`."""
