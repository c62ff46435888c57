"""What a kind of target is (`backends/<kind>/target.py` declares one), and the options that kinds share."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import tilewright.backends
from tilewright.backends import slices
from tilewright.support.errors import CompilerBug, UserError
from tilewright.target.capabilities import Capabilities


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a target: how it is written, the field it sets, and whether its value is a number."""

    flag: str
    field: str
    is_number: bool
    meaning: str


_PLAIN: Final = Capabilities()


@dataclass(frozen=True, slots=True)
class TargetKind:
    """A kind of target: the options it takes, the numbers it has by default, and what its processors can do."""

    name: str
    meaning: str
    options: tuple[Option, ...]
    is_cpu: bool
    arch: str = ""
    defaults: Mapping[str, int] = field(default_factory=dict)
    architectures: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Numbers of architectures, by name, where they are not the kind's own."""
    triple: str = ""
    """The triple of targets that name none; empty: this machine's."""
    capabilities: Capabilities = _PLAIN
    features_of: Callable[[str, str, str], frozenset[str]] = lambda arch, cpu, features: frozenset()
    """The features that a processor has, by its architecture, its name and the features that are added or removed."""
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Short names of processors and machines that stand for this kind with some options: `cortex-m4`, `armv7`."""
    arch_of: Callable[[str], str] = str
    """The architecture that a text in a target names: itself, or what it stands for (a file, say)."""
    is_elsewhere: bool = False
    """Whether its processors are never this machine, and devices beside them never this machine's."""
    folder_host: str = ""
    """The kind of CPU beside a device whose models can be written as folders; empty where there are no folders."""

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
CPU_OPTIONS: Final = (
    Option("mtriple", "triple", False, "LLVM target triple, such as aarch64-unknown-linux-gnu"),
    Option("mcpu", "cpu", False, "processor name as LLVM spells it, or native, or generic"),
    Option("mattr", "features", False, "features to add or remove, such as +avx2,-fma"),
    *_COMMON,
)
GPU_OPTIONS: Final = (
    Option("arch", "arch", False, "device architecture, such as sm_90 or gfx90a"),
    Option("mattr", "features", False, "what is there, or is allowed, beyond the ordinary, such as +dot4 or +tf32"),
    *_COMMON,
    Option("max-threads", "max_threads", True, "most threads of one block"),
    Option("warp-size", "warp_size", True, "threads that execute together"),
    Option("shared-bytes", "shared_bytes", True, "shared memory of one block"),
)


def added_features(features: str) -> frozenset[str]:
    """What a target's text allows beyond the ordinary: `+tf32`."""
    return frozenset(name[1:] for name in features.split(",") if name.startswith("+"))


def gpu_kind(
    name: str, meaning: str, arch: str = "generic", capabilities: Capabilities = _PLAIN, **numbers: int
) -> TargetKind:
    """A kind of devices with blocks of threads; `numbers` are defaults, by the names of a target's fields."""
    defaults = {"vector_bits": 128, "l1_bytes": 0, "l3_bytes": 0, **numbers}
    wanted = {option.field for option in GPU_OPTIONS if option.is_number}
    if wanted != set(defaults):
        raise CompilerBug(f"the target kind {name} needs the numbers {', '.join(sorted(wanted))}, and no others")
    return TargetKind(
        name,
        meaning,
        GPU_OPTIONS,
        is_cpu=False,
        arch=arch,
        defaults=defaults,
        capabilities=capabilities,
        features_of=lambda arch, cpu, features: added_features(features),
    )


@lru_cache(maxsize=64)
def kind_named(name: str) -> TargetKind:
    """The kind of a resolved target."""
    return slices.load(name, "target", TargetKind)


def target_kinds() -> list[TargetKind]:
    """All kinds, in the order of the back ends."""
    return [kind_named(name) for name in tilewright.backends.SLICES]


def without_alias(words: list[str]) -> list[str]:
    """The words of a target whose first one may be a short name that a kind knows: of a processor, or a machine.

    `cortex-m4 -mattr=-dsp` is `micro -mcpu=cortex-m4 -mattr=-dsp`. Options that are there go before those of the name.
    """
    if words and words[0] not in tilewright.backends.SLICES:
        given = {word.lstrip("-").partition("=")[0] for word in words[1:]}
        for kind in target_kinds():
            if words[0] in kind.aliases:
                implied = [word for word in kind.aliases[words[0]] if word[1:].partition("=")[0] not in given]
                return [kind.name, *implied, *words[1:]]
    return words


EXAMPLES = "'native', 'llvm -mcpu=skylake-avx512', 'llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1'"


def find_kind(name: str, where: str) -> TargetKind:
    """The kind called `name`, or a `UserError` that lists the kinds there are."""
    known = tilewright.backends.SLICES
    if name not in known:
        aliases = [alias for kind in target_kinds() for alias in kind.aliases]
        near = closest(name, [*known, "native", *aliases])
        raise UserError(
            f"unknown kind of target '{name}'{near}: the kinds are {', '.join(known)} and native",
            where=where,
            hint=f"examples: {EXAMPLES}; machines by short names: {', '.join(aliases)}",
        )
    return kind_named(name)


def closest(name: str, choices: Iterable[str]) -> str:
    """A short "did you mean" for an unknown name, or an empty text when nothing is near."""
    near = difflib.get_close_matches(name, list(choices), n=1, cutoff=0.6)
    return f" (did you mean '{near[0]}'?)" if near else ""
