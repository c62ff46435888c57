"""PyTorch, one operator at a time, in inference mode."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import torch

from bench.peers.onnx_to_torch import OnnxModule


def load(path: Path, threads: int, inputs: dict[str, np.ndarray], scratch: Path) -> Callable[[], list[np.ndarray]]:
    """The model as a torch module."""
    torch.set_num_threads(threads)
    module = OnnxModule(onnx.load(path)).eval()
    return caller(module, [torch.from_numpy(inputs[name]) for name in module.input_names])


def caller(
    module: Callable[..., tuple[torch.Tensor, ...]], tensors: list[torch.Tensor]
) -> Callable[[], list[np.ndarray]]:
    """A call that runs a module without gradients and gives numpy arrays over its results."""

    def call() -> list[np.ndarray]:
        with torch.inference_mode():
            return [tensor.numpy() for tensor in module(*tensors)]

    return call
