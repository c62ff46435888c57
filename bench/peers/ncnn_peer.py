"""ncnn, held to float32.

Models go through pnnx, whose generated script says how arrays map to ncnn's tensors, which have no batch dimension.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import ncnn
import numpy as np
import onnx
import pnnx

_INPUT = re.compile(r'ex\.input\("(\w+)", ncnn\.Mat\(\w+\.numpy\(\)(?:, batch_index=(\d+))?\)')
_OUTPUT = re.compile(r"out\.append\(torch\.from_numpy\((\w+)\.numpy\((?:batch_index=(\d+))?\)")
_NO_BATCH = 233


def load(path: Path, threads: int, inputs: dict[str, np.ndarray], scratch: Path) -> Callable[[], list[np.ndarray]]:
    """The converted model, with one extractor a call."""
    graph = onnx.load(path, load_external_data=False).graph
    weights = {item.name for item in graph.initializer}
    indices = {node.input[1] for node in graph.node if node.op_type == "Gather"}
    ordered = {
        item.name: _as_fed(inputs[item.name], item.name in indices) for item in graph.input if item.name not in weights
    }
    shapes = [[size.dim_value for size in item.type.tensor_type.shape.dim] for item in graph.output]
    if not (scratch / "model.ncnn.bin").exists():
        convert(path, ordered, scratch)
    script = (scratch / "model_ncnn.py").read_text()
    net = ncnn.Net()
    net.opt.num_threads = threads
    net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = False
    net.opt.use_bf16_storage = False
    if net.load_param(str(scratch / "model.ncnn.param")) or net.load_model(str(scratch / "model.ncnn.bin")):
        raise RuntimeError("ncnn cannot load the converted model")
    given = [
        (name, _matrix(array, int(batch or _NO_BATCH)))
        for (name, batch), array in zip(_INPUT.findall(script), ordered.values(), strict=True)
    ]
    wanted = [(name, int(batch or _NO_BATCH)) for name, batch in _OUTPUT.findall(script)]

    def call() -> list[np.ndarray]:
        extractor = net.create_extractor()
        for name, matrix in given:
            extractor.input(name, matrix)
        results = []
        for (name, batch), shape in zip(wanted, shapes, strict=True):
            code, matrix = extractor.extract(name)
            if code != 0:
                raise RuntimeError(f"ncnn cannot compute {name} (code {code})")
            results.append(np.array(matrix.numpy(batch_index=batch)).reshape(shape))
        return results

    return call


def convert(path: Path, inputs: dict[str, np.ndarray], scratch: Path) -> None:
    """Make `model.ncnn.param` and `.bin` with pnnx, which takes TorchScript further than ONNX."""
    np.savez(scratch / "inputs.npz", **inputs)
    _run([sys.executable, "-m", "bench.peers.to_torchscript", str(path), "inputs.npz", "model.pt"], scratch)
    for number, array in enumerate(inputs.values()):
        np.save(scratch / f"input{number}.npy", array)
    names = ",".join(f"input{number}.npy" for number in range(len(inputs)))
    _run([pnnx.EXEC_PATH, "model.pt", f"input={names}", "fp16=0"], scratch)
    for leftover in ("model.pt", "model.pnnx.bin", "model.pnnx.onnx"):
        (scratch / leftover).unlink(missing_ok=True)


def _run(command: list[str], folder: Path) -> None:
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
    said = (result.stdout + result.stderr).strip()
    if result.returncode != 0:
        raise RuntimeError(f"{Path(command[0]).name} failed: {said.splitlines()[-1] if said else result.returncode}")


def _as_fed(array: np.ndarray, is_index: bool) -> np.ndarray:
    """ncnn has no layer that makes floats of whole numbers: what is no index (a mask) is fed as floats."""
    return array if is_index or array.dtype.kind == "f" else array.astype(np.float32)


def _matrix(array: np.ndarray, batch: int) -> ncnn.Mat:
    """An array as ncnn holds it: whole numbers have 32 bits there."""
    if array.dtype.kind == "f":
        return ncnn.Mat(np.ascontiguousarray(array), batch_index=batch).clone()
    # One row of indices: pnnx takes the first dimension of [35, 1] for the batch, though it is time.
    return ncnn.Mat(np.ascontiguousarray(array.reshape(-1).astype(np.int32))).clone()
