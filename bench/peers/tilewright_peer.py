"""Tilewright itself, in a process of its own as any peer: what it is short of 1.00x is the error of the measurement."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

import tilewright as tw


def load(path: Path, threads: int, inputs: dict[str, np.ndarray], scratch: Path) -> Callable[[], list[np.ndarray]]:
    """The model as `bench.models` compiles it."""
    executable = tw.compile(tw.frontend.from_onnx(str(path)), target="native", threads=threads)
    return lambda: executable.run(inputs)
