"""An ONNX model as a TorchScript file, for converters that know torch better: run as a process of its own.

python -m bench.peers.to_torchscript model.onnx inputs.npz model.pt
"""

from __future__ import annotations

import sys

import numpy as np
import onnx
import torch

from bench.peers.onnx_to_torch import OnnxModule


def main(model: str, inputs: str, result: str) -> None:
    """Trace the model on the inputs and save it."""
    module = OnnxModule(onnx.load(model)).eval()
    with np.load(inputs, allow_pickle=False) as arrays:
        tensors = tuple(torch.from_numpy(arrays[name]) for name in module.input_names)
    with torch.no_grad():
        torch.jit.trace(module, tensors, check_trace=False).save(result)


if __name__ == "__main__":
    main(*sys.argv[1:])
