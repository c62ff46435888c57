"""The kinds of target and their options: one table that parsing, printing and error messages share."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field

from tilewright.support.errors import UserError


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a target: how it is written, the field it sets, and whether its value is a number."""

    flag: str
    field: str
    is_number: bool
    meaning: str


@dataclass(frozen=True, slots=True)
class TargetKind:
    """A kind of target: what generates its code, the options it takes and the numbers it has by default."""

    name: str
    meaning: str
    options: tuple[Option, ...]
    is_cpu: bool
    arch: str = ""
    defaults: dict[str, int] = field(default_factory=dict)

    def option(self, flag: str) -> Option | None:
        """The option written as `-flag`, or None."""
        return next((option for option in self.options if option.flag == flag), None)


_COMMON = (
    Option("num-cores", "cores", True, "cores (a CPU) or multiprocessors (a GPU) to divide work over"),
    Option("vector-bits", "vector_bits", True, "width of a vector register or of the widest memory access"),
    Option("vector-registers", "vector_registers", True, "number of registers that a tile may fill"),
    Option("l1-bytes", "l1_bytes", True, "size of the first-level data cache"),
    Option("l2-bytes", "l2_bytes", True, "size of the second-level cache"),
    Option("l3-bytes", "l3_bytes", True, "size of the third-level cache"),
)
_CPU = (
    Option("mtriple", "triple", False, "LLVM target triple, such as aarch64-unknown-linux-gnu"),
    Option("mcpu", "cpu", False, "processor name as LLVM spells it, or native, or generic"),
    Option("mattr", "features", False, "features to add or remove, such as +avx2,-fma"),
    *_COMMON,
)
_GPU = (
    Option("arch", "arch", False, "device architecture, such as sm_90 or gfx90a"),
    Option("mattr", "features", False, "what is allowed beyond the ordinary, such as +tf32"),
    *_COMMON,
    Option("max-threads", "max_threads", True, "most threads of one block"),
    Option("warp-size", "warp_size", True, "threads that execute together"),
    Option("shared-bytes", "shared_bytes", True, "shared memory of one block"),
)

_KIB = 1024


def _gpu(
    name: str, meaning: str, arch: str, cores: int, registers: int, l2: int, threads: int, warp: int, shared: int
) -> TargetKind:
    defaults = {
        "cores": cores,
        "vector_bits": 128,
        "vector_registers": registers,
        "l1_bytes": 0,
        "l2_bytes": l2,
        "l3_bytes": 0,
        "max_threads": threads,
        "warp_size": warp,
        "shared_bytes": shared,
    }
    return TargetKind(name, meaning, _GPU, is_cpu=False, arch=arch, defaults=defaults)


TARGET_KINDS: dict[str, TargetKind] = {
    kind.name: kind
    for kind in (
        TargetKind("llvm", "machine code for a CPU, through LLVM", _CPU, is_cpu=True),
        TargetKind("c", "C source for a CPU", _CPU, is_cpu=True),
        _gpu("cuda", "NVIDIA GPUs", "sm_80", 108, 255, 40 << 20, 1024, 32, 48 * _KIB),
        _gpu("rocm", "AMD GPUs", "gfx90a", 104, 256, 8 << 20, 1024, 64, 64 * _KIB),
        _gpu("opencl", "devices with OpenCL", "generic", 16, 128, 1 << 20, 256, 1, 32 * _KIB),
        _gpu("metal", "Apple GPUs", "generic", 8, 128, 4 << 20, 1024, 32, 32 * _KIB),
        _gpu("vulkan", "GPUs through Vulkan", "generic", 16, 128, 1 << 20, 256, 1, 16 * _KIB),
        _gpu("webgpu", "GPUs through WebGPU", "generic", 16, 128, 1 << 20, 256, 1, 16 * _KIB),
    )
}

EXAMPLES = "'native', 'llvm -mcpu=skylake-avx512', 'llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1'"


def find_kind(name: str, where: str) -> TargetKind:
    """The kind called `name`, or a `UserError` that lists the kinds there are."""
    kind = TARGET_KINDS.get(name)
    if kind is None:
        near = closest(name, [*TARGET_KINDS, "native"])
        raise UserError(
            f"unknown kind of target '{name}'{near}: the kinds are {', '.join(TARGET_KINDS)} and native",
            where=where,
            hint=f"examples: {EXAMPLES}",
        )
    return kind


def closest(name: str, choices: Iterable[str]) -> str:
    """A short "did you mean" for an unknown name, or an empty text when nothing is near."""
    near = difflib.get_close_matches(name, list(choices), n=1, cutoff=0.6)
    return f" (did you mean '{near[0]}'?)" if near else ""
