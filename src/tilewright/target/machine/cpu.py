"""The machine parameters of CPUs, by subject: numbers that were fitted by measuring, and what each of them decides.

A share is a part of a cache level. An idle factor says how much longer than evenly divided work may take. Values are in
`tables/`; nothing here has a default, so that a table is complete or refused.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Core:
    """What one core does in a cycle, beside its vector width, registers and caches (those are the target's)."""

    fma_per_cycle: int
    """Fused multiply-adds of whole vectors that a core starts in a cycle."""
    fma_in_flight: int
    """Fused multiply-adds that a core starts before the first is done: smaller tiles take as long as one of so many."""
    efficiency: float
    """The part of the arithmetic peak that register tiles reach."""
    l2_bytes_per_fma: float
    """Bytes that come from the second cache level in the time of a multiply-add."""
    memory_bytes_per_cycle: float
    """How fast one core reads weights that are in no near cache, while it computes."""
    cores_to_saturate: int
    """Cores that together read as fast as memory gives."""


@dataclass(frozen=True, slots=True)
class Parallel:
    """How work is divided over cores; work is counted in elements."""

    least_work: int
    """Work below which waking other cores costs more than it gives."""
    most_idle: float
    """The idle factor up to which work is not divided further."""
    least_gain: float
    """How much smaller pieces must gain."""
    least_piece: int
    """Work that a piece has at least: taking one costs about a hundred cycles."""
    pieces_per_core: int
    """Pieces for each core, where they stay large: cores are not equally quick, and one that is done takes others'."""
    large_piece: int
    """Work that such a piece has at least."""


@dataclass(frozen=True, slots=True)
class Winograd:
    """When and how 3 x 3 convolutions are computed by Winograd's algorithm."""

    least_gain: float
    """How much better than the direct computation an estimate must be: it is no more precise than that itself."""
    weights_exponent: float
    """How much fewer cycles larger weights are worth: 2.25 times as many (tiles of 4 instead of 2) must save 15 %."""
    least_channels: int
    """Channels below which the transforms have nothing to be shared by."""


@dataclass(frozen=True, slots=True)
class Convolution:
    """Layouts and forms of convolutions."""

    most_filled: float
    """How much more than all pixels whole vectors of them may be, for a 1 x 1 convolution of planes as a product."""
    most_planar_taps: int
    """Taps of a depthwise convolution of planes: each is a load, which channels last have many of in one register."""
    most_joined_groups: int
    """Groups that may become one: as many times more multiplications, about what gathering costs."""
    phases_least_gain: float
    """How many fewer vector products the convolution of all phases of a transposed one must have, whose results are
    moved once more."""
    separable_results_share: float
    """L2 share that results between a depthwise and a 1 x 1 convolution take at least for both to be one kernel."""
    separable_weights_share: float
    """L2 share that the weights of such a kernel take at most."""


@dataclass(frozen=True, slots=True)
class Half:
    """Products of half precision."""

    winograd_least_gain: float
    """How much better than products of halves the estimate of Winograd's algorithm in float32 must be."""


@dataclass(frozen=True, slots=True)
class CpuParameters:
    """All parameters of a family of CPUs."""

    core: Core
    parallel: Parallel
    winograd: Winograd
    convolution: Convolution
    half: Half
