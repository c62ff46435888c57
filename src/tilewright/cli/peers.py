"""The other runtimes that Tilewright is measured against, each set up as its makers advise for latency.

A peer is a function from a model file, a number of threads and the inputs to a call that runs the model once and
gives its outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tilewright.cli.litert import LiteRt
from tilewright.support.errors import MissingDependencyError, UserError

Arrays = dict[str, npt.NDArray[np.generic]]
Run = Callable[[], list[npt.NDArray[np.generic]]]


@contextmanager
def _failures_of(peer: str, path: Path) -> Iterator[None]:
    """What a peer says about a model it cannot run, as a `UserError`: peers raise errors of many kinds."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{peer} cannot run the model: {str(error).strip()}", where=str(path)) from error


def onnxruntime(path: Path, threads: int, inputs: Arrays) -> Run:
    """ONNX Runtime's CPU provider."""
    try:
        import onnxruntime as runtime
    except ImportError as error:
        raise MissingDependencyError.for_extra("onnxruntime", "bench", "measuring against onnxruntime") from error
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    with _failures_of("onnxruntime", path):
        session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run() -> list[npt.NDArray[np.generic]]:
        with _failures_of("onnxruntime", path):
            results: list[npt.NDArray[np.generic]] = session.run(None, inputs)
        return results

    return run


def openvino(path: Path, threads: int, inputs: Arrays) -> Run:
    """OpenVINO's CPU plugin, held to float32 (its default on ARM is half precision)."""
    try:
        import openvino as runtime
    except ImportError as error:
        raise UserError(
            "measuring against openvino needs the package 'openvino', which is not installed",
            hint="pip install openvino",
        ) from error
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": "1",
        "INFERENCE_NUM_THREADS": str(threads),
    }
    with _failures_of("openvino", path):
        compiled = runtime.Core().compile_model(str(path), "CPU", settings)
        request = compiled.create_infer_request()

    def run() -> list[npt.NDArray[np.generic]]:
        with _failures_of("openvino", path):
            results = request.infer(inputs)
        return [results[port] for port in compiled.outputs]

    return run


def litert(path: Path, threads: int, inputs: Arrays) -> Run:
    """LiteRT with XNNPACK, which it uses by default."""
    with _failures_of("litert", path):
        model = LiteRt(path, inputs, threads)

    def run() -> list[npt.NDArray[np.generic]]:
        with _failures_of("litert", path):
            return list(model.run())

    return run


PEERS: dict[str, Callable[[Path, int, Arrays], Run]] = {
    "onnxruntime": onnxruntime,
    "openvino": openvino,
    "litert": litert,
}
OWN_FORMATS = {"litert": "tflite"}
"""Peers that read files of a format of their own; the others read ONNX."""

# The peer that says what the right answer is.
REFERENCE = "onnxruntime"


def parse_peers(text: str) -> list[str]:
    """The peers in a comma-separated list; a `UserError` for one that is not known."""
    chosen = [name.strip() for name in text.split(",") if name.strip()]
    for name in chosen:
        if name not in PEERS:
            raise UserError(f"unknown peer '{name}': the peers are {', '.join(PEERS)}", where="--against")
    return list(dict.fromkeys(chosen))
