"""Tilewright without checks of indices and divisors: what it is quicker than the default is what those cost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

import tilewright as tw


def load(path: Path, threads: int, inputs: dict[str, np.ndarray], scratch: Path) -> Callable[[], list[np.ndarray]]:
    """The model as `bench.models` compiles it, with `unchecked=True`."""
    executable = tw.compile(tw.frontend.from_onnx(str(path)), target="native", threads=threads, unchecked=True)
    return lambda: executable.run(inputs)
