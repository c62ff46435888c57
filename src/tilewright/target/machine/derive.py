"""Values for processors that no table knows, from their own numbers: vector width, caches, architecture of a GPU.

They start from the table that all others were compared with, and change what follows from a number. `docs/machines.md`
explains the formulas. Where a number says nothing, the choice that loses less when it is wrong is taken.
"""

from __future__ import annotations

import re

from tilewright.target.machine.tables import Values, merged
from tilewright.target.target import Target

REFERENCE_CPU, REFERENCE_GPU = "x86_64-avx512", "cuda-hopper"
_REFERENCE_LANES = 16
_LARGE_CORE = 1 << 20
"""Bytes of a second cache level that cores with two pipelines for multiply-adds have."""
_LATENCY = 4
"""Cycles of a multiply-add, on nearly all processors since 2015."""
_VECTORS_FROM_L2 = 4
"""Multiply-adds in the time of which a whole vector comes from the second cache level."""

_STREAMS = {"x86_64": 8, "aarch64": 2}
"""Streams that prefetchers follow: those of x86 end at a page, one of a Neoverse N1 gets two thirds of what two get."""
_CODES_AHEAD = {"x86_64": 8192}
"""Bytes ahead at which packed codes are fetched, where prefetchers end at pages; 1 is none.

A Neoverse N1 reads a seventh less where it is told what to fetch.
"""
_SCALES_AHEAD = {"x86_64": 2048}
"""The same of the scales of their groups."""
_WEIGHTS_AHEAD = {"x86_64": 512}
"""The same of weights of dot products that come from the second cache level, pass after pass."""
_ROW_REGISTERS = {"aarch64": 16}
"""Registers for rows of a tile on Arm, where a multiply-add takes a lane and reads no memory: one elsewhere."""


def derived_cpu(reference: Values, target: Target) -> Values:
    """The values of a CPU that no table knows."""
    lanes = target.lanes(32)
    pipes = 2 if target.l2_bytes >= _LARGE_CORE else 1
    memory = float(reference["core"]["memory_bytes_per_cycle"])
    core = {
        "fma_per_cycle": pipes,
        "fma_in_flight": pipes * _LATENCY,
        # A vector as wide as a cache line takes as long as its line; narrower ones take a part of it.
        "l2_bytes_per_fma": target.vector_bits / 8 / _VECTORS_FROM_L2,
        # Without a last cache level that holds a model's weights, each inference reads them from memory.
        "memory_bytes_per_cycle": memory if target.l3_bytes else memory / 2,
    }
    # Waking a core takes the same time everywhere, in which narrower vectors do less.
    scaled = ("least_work", "least_piece", "large_piece")
    parallel = {name: max(1, int(reference["parallel"][name]) * lanes // _REFERENCE_LANES) for name in scaled}
    streams = {"count": _STREAMS.get(target.arch, 1)}
    tile = {"row_registers": _ROW_REGISTERS.get(target.arch, 1)}
    ahead = {
        "codes_ahead": _CODES_AHEAD.get(target.arch, 1),
        "scales_ahead": _SCALES_AHEAD.get(target.arch, 1),
        "weights_ahead": _WEIGHTS_AHEAD.get(target.arch, 1),
    }
    return merged(
        reference, {"core": core, "parallel": parallel, "streams": streams, "prefetch": ahead, "register_tile": tile}
    )


_TENSOR_CORES = {70: 512, 75: 512, 80: 1024, 86: 512, 87: 512, 89: 512, 90: 1024, 100: 1024, 103: 1024, 120: 512}
"""Multiply-adds of half precision that warps of NVIDIA's architectures start in a cycle of a multiprocessor."""
_RESIDENT = {75: 1024, 86: 1536, 87: 1536, 89: 1536, 120: 1536}
"""Threads that a multiprocessor holds, where these are not 2048."""


def derived_gpu(reference: Values, target: Target) -> Values:
    """The values of a GPU that no table knows: of NVIDIA's, what the compute capability says; else the reference's."""
    architecture = re.match(r"sm_(\d+)", target.arch)
    number = int(architecture[1]) if architecture else 0
    known = [capability for capability in _TENSOR_CORES if capability <= number]
    if not known:
        return reference
    # Newer ones than are listed are taken for the newest that is.
    capability = max(known)
    slower = _TENSOR_CORES[capability] / _TENSOR_CORES[90]
    products = ("products_8_bit", "products_16_bit", "products_32_bit")
    warp = {name: reference["warp_tile"][name] * slower for name in products}
    warp["product"] = reference["warp_tile"]["product"] / slower
    core = {"resident_threads": _RESIDENT.get(capability, 2048)}
    return merged(reference, {"multiprocessor": core, "warp_tile": warp})
