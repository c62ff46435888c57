"""OpenVINO's CPU plugin, held to float32 (its default on ARM is half precision)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino


def load(path: Path, threads: int, inputs: dict[str, np.ndarray], scratch: Path) -> Callable[[], list[np.ndarray]]:
    """One stream, set up for latency."""
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": "1",
        "INFERENCE_NUM_THREADS": str(threads),
        # The process is pinned as a whole, to the same cores as every other peer.
        "ENABLE_CPU_PINNING": "NO",
    }
    compiled = openvino.Core().compile_model(str(path), "CPU", settings)
    request = compiled.create_infer_request()

    def call() -> list[np.ndarray]:
        results = request.infer(inputs, share_inputs=True, share_outputs=True)
        return [results[port] for port in compiled.outputs]

    return call
