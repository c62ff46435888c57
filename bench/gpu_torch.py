"""PyTorch on a GPU in its strongest form: CUDA graphs of its operators, and of its compiler's frozen kernels.

Models are written as its users write them (`idioms.py`: linear layers, layer norms, GELU, attention). The compiler
folds batch normalisation into weights and lays weights out ahead (`freezing`). Its kernels are captured in a CUDA graph
by hand: its own `reduce-overhead` mode copies inputs and checks guards in every call.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
import torch
from torch._inductor import config as inductor_config

from bench.peers.idioms import idiomatic
from bench.peers.onnx_to_torch import OnnxModule

Call = Callable[[], Any]

COMPILED = {"compile": "default", "autotune": "max-autotune-no-cudagraphs"}
"""The compiled peers and the modes of torch's compiler."""


class TooLong(Exception):
    """A peer took longer to get ready than it may."""


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Stop the body after some seconds; it ends with `TooLong`, whatever the body makes of it."""
    over = False

    def stop(number: int, frame: object) -> None:
        nonlocal over
        over = True
        raise TooLong

    before = signal.signal(signal.SIGALRM, stop)
    # PyTorch's compiler catches what is raised while it tries kernels, and goes on: it is told again every second.
    signal.setitimer(signal.ITIMER_REAL, max(1, seconds), 1.0)
    try:
        yield
    except Exception as error:
        if over and not isinstance(error, TooLong):
            raise TooLong from error
        raise
    else:
        if over:
            raise TooLong
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def allow_tf32(allowed: bool) -> None:
    """Whether torch may round the operands of float32 products, its compiler's own kernels included."""
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed
    if hasattr(torch.backends.cudnn, "fp32_precision"):
        # The switch above leaves this one as it is, by which the compiler chooses for its convolutions.
        torch.backends.cudnn.fp32_precision = "tf32" if allowed else "ieee"


def reference(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs of a float32 model, computed in float64."""
    module = OnnxModule(model).eval().double().cuda()
    given = [torch.from_numpy(inputs[name]).cuda() for name in module.input_names]
    given = [tensor.double() if tensor.is_floating_point() else tensor for tensor in given]
    with torch.inference_mode():
        return [tensor.double().cpu().numpy() for tensor in module(*given)]


class TorchModel:
    """A module on the GPU with inputs of its own; `allow_tf32` lets products round their operands."""

    def __init__(self, module: torch.nn.Module, inputs: Sequence[torch.Tensor], allow_tf32: bool) -> None:
        torch.backends.cudnn.benchmark = True
        self.allow_tf32 = allow_tf32
        self.module = module
        self.inputs = list(inputs)

    @staticmethod
    def of_onnx(
        model: onnx.ModelProto, inputs: dict[str, np.ndarray], channels_last: bool, allow_tf32: bool
    ) -> TorchModel:
        """An ONNX model in one layout."""
        made = OnnxModule(idiomatic(model)).eval().cuda()
        given = [torch.from_numpy(inputs[name]).cuda() for name in made.input_names]
        module: torch.nn.Module = made
        if channels_last:
            module = module.to(memory_format=torch.channels_last)
            given = [
                tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor for tensor in given
            ]
        return TorchModel(module, given, allow_tf32)

    def _set(self) -> None:
        allow_tf32(self.allow_tf32)

    def graph(self) -> Call:
        """Its operators one by one, recorded as a CUDA graph."""
        self._set()
        return self._captured(self.module)

    def compiled(self, mode: str) -> Call:
        """Compiled by torch for exactly these shapes and strides, with frozen weights, recorded as a CUDA graph.

        Left to itself it would take strides that differ between two layouts of a model for symbols.
        """
        self._set()
        try:
            return self._ready(mode)
        except RuntimeError:
            # In float16 its search for patterns of attention fails on masks: without it, it can compile the model.
            with inductor_config.patch(pattern_matcher=False):
                return self._ready(mode)

    def _ready(self, mode: str) -> Call:
        torch._dynamo.reset()
        with inductor_config.patch(freezing=True):
            return self._captured(torch.compile(self.module, mode=mode, dynamic=False))

    def _captured(self, module: Callable[..., Any]) -> Call:
        """Runs of a module as one CUDA graph."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.inference_mode(), torch.cuda.stream(side):
            for _ in range(4):
                module(*self.inputs)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.inference_mode(), torch.cuda.graph(graph):
            outputs = module(*self.inputs)

        def call(kept: tuple[TorchModel, object] = (self, module)) -> Any:
            # The graph reads the memory of the weights and inputs, but does not keep it: `kept` does.
            graph.replay()
            return outputs

        return call


def wall_seconds(call: Call, runs: int) -> list[float]:
    """Seconds from the start of a run until the GPU is done."""
    results = []
    for _ in range(runs):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        results.append(time.perf_counter() - start)
    return results


def event_seconds(call: Call, runs: int) -> float:
    """Seconds a run by the GPU's own clock, over some runs in a row."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    call()
    torch.cuda.synchronize()
    start.record()
    for _ in range(runs):
        call()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) * 1e-3 / runs


def outputs_of(call: Call) -> Sequence[np.ndarray]:
    """The results of a call, on the host in float64."""
    result = call()
    torch.cuda.synchronize()
    result = [result] if isinstance(result, torch.Tensor) else result
    return [tensor.double().cpu().numpy() for tensor in result]
