"""GPUs through WebGPU, as a kind of target."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tilewright.target.capabilities import Capabilities
from tilewright.target.kinds import gpu_kind

_GPU = gpu_kind(
    "webgpu",
    "GPUs through WebGPU",
    capabilities=Capabilities(
        dot4="dot4",
        few_steps="few-steps",
        software="software",
        least_shared_bytes=4,
        expanded_mathematics=None,
        written_out=True,
        most_buffers=8,
    ),
    cores=16,
    vector_registers=128,
    l2_bytes=1 << 20,
    max_threads=256,
    warp_size=1,
    shared_bytes=16 << 10,
)
KIND: Final = replace(_GPU, folder_host="wasm")
"""A model for it is a library of this machine, or the package of JavaScript that one for `wasm` is."""
