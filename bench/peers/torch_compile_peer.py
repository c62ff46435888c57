"""PyTorch's compiler (inductor) with weights frozen into the code.

Its rewriting of attention is left out: it takes the head layout of exported BERT graphs for another and raises.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import torch
import torch._inductor.config
from torch._inductor.fx_passes import fuse_attention

from bench.peers.onnx_to_torch import OnnxModule
from bench.peers.torch_peer import caller


def load(path: Path, threads: int, inputs: dict[str, np.ndarray], scratch: Path) -> Callable[[], list[np.ndarray]]:
    """The model compiled with constants folded; needs a C++ compiler."""
    torch.set_num_threads(threads)
    torch._inductor.config.freezing = True
    fuse_attention._sfdp_init = lambda *arguments: None
    # Models follow one another in this process; what was compiled for the last one is of no use.
    torch._dynamo.reset()
    module = OnnxModule(onnx.load(path)).eval()
    tensors = [torch.from_numpy(inputs[name]) for name in module.input_names]
    compiled = torch.compile(module)
    call = caller(compiled, tensors)
    call()
    return call
