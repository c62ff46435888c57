"""Other runtimes to be measured against, each in a process of its own, pinned to its cores.

`PEERS` lists them. A peer's module has `load(path, threads, inputs, scratch)`, which gives a call that runs the model
once; it is imported only by the worker process, in the environment that has the peer's package (`.venv-peers`, made by
`make bench`, or the one of this process).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

REFERENCE = "onnxruntime"
"""The peer that says what the right answer is."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A runtime: the packages that its module imports, the first of which has its version."""

    name: str
    module: str
    packages: tuple[str, ...]
    imports: tuple[str, ...]


PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer("onnxruntime", "bench.peers.onnxruntime_peer", ("onnxruntime",), ("onnxruntime",)),
        Peer("torch", "bench.peers.torch_peer", ("torch", "onnx"), ("torch", "onnx")),
        Peer("torch.compile", "bench.peers.torch_compile_peer", ("torch", "onnx"), ("torch", "onnx")),
        Peer("openvino", "bench.peers.openvino_peer", ("openvino",), ("openvino",)),
        Peer("ncnn", "bench.peers.ncnn_peer", ("ncnn", "pnnx", "onnx", "torch"), ("ncnn", "pnnx", "onnx", "torch")),
        Peer("mnn", "bench.peers.mnn_peer", ("MNN", "onnx"), ("MNN", "_tools", "onnx")),
        Peer("tilewright", "bench.peers.tilewright_peer", ("tilewright",), ("tilewright", "llvmlite")),
        Peer("unchecked", "bench.peers.unchecked_peer", ("tilewright",), ("tilewright", "llvmlite")),
    )
}
ITSELF = ("tilewright", "unchecked")
"""No peers, but what is measured, as if it were one: a check of the measurement, and what checks of indices and
divisors cost. 'all' leaves them out."""


def clock_for(threads: int) -> Callable[[], float]:
    """What runs of so many threads are timed by.

    On one thread it is the time that the process has the processor: other people's work on it does not count. Several
    threads wait for each other, and that does.
    """
    return time.process_time if threads == 1 else time.perf_counter
