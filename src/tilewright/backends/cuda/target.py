"""NVIDIA GPUs, as a kind of target."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tilewright.target.capabilities import Capabilities
from tilewright.target.kinds import added_features, gpu_kind

_GENERATIONS: Final = (70, 75, 80, 86, 89, 90, 100, 120)
_HOPPER: Final = {"cores": 132, "l2_bytes": 50 << 20, "shared_bytes": 227 << 10}
_BLACKWELL: Final = {"cores": 148, "l2_bytes": 126 << 20, "shared_bytes": 227 << 10}
"""Numbers of the server GPUs of an architecture."""


def generations(arch: str) -> frozenset[str]:
    """The generations of GPUs whose instructions one has: `sm_86` has those of `sm_75` and `sm_80`, and its own.

    What a name with a letter at its end adds (`sm_90a`) only GPUs of that very generation have.
    """
    digits = arch.removeprefix("sm_").rstrip("abcdefghijklmnopqrstuvwxyz")
    number = int(digits) if digits.isdigit() else 0
    older = {f"sm_{generation}" for generation in _GENERATIONS if generation <= number}
    return frozenset(older | {arch})


def _features(arch: str, cpu: str, features: str) -> frozenset[str]:
    """The generations of a GPU, and what is allowed beyond the ordinary (`+tf32`)."""
    return generations(arch) | added_features(features)


KIND: Final = replace(
    gpu_kind(
        "cuda",
        "NVIDIA GPUs",
        "sm_80",
        Capabilities(
            overlapping_parameters=True,
            warp_shuffles=True,
            async_copies=True,
            shared_reuse=True,
            static_shared_bytes=48 << 10,
            clusters="sm_90",
            dependent_launch="sm_90",
            dot4="sm_70",
            tensor_cores="sm_80",
            byte_tensor_cores="sm_75",
            float8_products="sm_89",
            warp_group_products="sm_90a",
            precisions=frozenset({"tf32"}),
            half_mathematics=frozenset({"exp", "tanh", "erf", "erf_plus_one", "sigmoid"}),
            flat_memory=True,
            # A line of the cache is 128 bytes, and is fetched with its neighbour. Rows and tiles of weights that begin
            # between lines take twice the requests: half the speed of what the second-level cache gives.
            memory_line=256,
            # Addresses in 4 KiB of parameters, which all drivers take.
            horizontal_buffers=500,
            barriers_in_branches=True,
        ),
        cores=108,
        vector_registers=255,
        l2_bytes=40 << 20,
        max_threads=1024,
        warp_size=32,
        shared_bytes=48 << 10,
    ),
    architectures={
        "sm_90": _HOPPER,
        "sm_90a": _HOPPER,
        "sm_100": _BLACKWELL,
        "sm_100a": _BLACKWELL,
        "sm_100f": _BLACKWELL,
    },
    features_of=_features,
)
