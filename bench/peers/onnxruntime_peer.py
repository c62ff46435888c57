"""ONNX Runtime's CPU provider."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime


def load(path: Path, threads: int, inputs: dict[str, np.ndarray], scratch: Path) -> Callable[[], list[np.ndarray]]:
    """A session of `threads` threads."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, inputs)
