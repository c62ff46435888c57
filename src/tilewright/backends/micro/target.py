"""Microcontrollers, as a kind of target."""

from __future__ import annotations

from typing import Final

from tilewright.target.capabilities import Capabilities
from tilewright.target.kinds import CPU_OPTIONS, TargetKind
from tilewright.target.llvm_cpus import CPU_MODELS
from tilewright.target.resolve import effective_features

_RISCV: Final = "-mtriple=riscv32-unknown-elf"
_ALIASES: Final = {
    **{name: (f"-mcpu={name}",) for name, model in CPU_MODELS.items() if model.arch == "thumb"},
    "rv32imac": (_RISCV,),
    "rv32imc": (_RISCV, "-mattr=-a"),
}
KIND: Final = TargetKind(
    "micro",
    "C sources for a microcontroller: no heap, no threads, no operating system",
    CPU_OPTIONS,
    is_cpu=True,
    defaults={"cores": 1},
    triple="thumbv7em-none-eabi",
    aliases=_ALIASES,
    capabilities=Capabilities(little_memory=True, dot4="dsp", run_dots="dsp"),
    features_of=effective_features,
    is_elsewhere=True,
)
"""Cortex-M and RISC-V of 32 bits; processors are targets by their own names, too: `cortex-m4`, `rv32imac`."""
