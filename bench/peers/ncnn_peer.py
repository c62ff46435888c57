"""ncnn, held to float32. Models go through pnnx, whose generated script says how arrays map to ncnn's batchless tensors."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import ncnn
import numpy as np
import onnx
import pnnx

_INPUT = re.compile(r'ex\.input\("(\w+)", ncnn\.Mat\(\w+\.numpy\(\)(?:, batch_index=(\d+))?\)')
_OUTPUT = re.compile(r"out\.append\(torch\.from_numpy\((\w+)\.numpy\((?:batch_index=(\d+))?\)")
_NO_BATCH = 233


def load(
    path: Path, threads: int, inputs: dict[str, np.ndarray], scratch: Path
) -> Callable[[], list[np.ndarray]]:
    """The converted model, with one extractor a call."""
    graph = onnx.load(path, load_external_data=False).graph
    weights = {item.name for item in graph.initializer}
    arrays = [inputs[item.name] for item in graph.input if item.name not in weights]
    shapes = [[size.dim_value for size in item.type.tensor_type.shape.dim] for item in graph.output]
    if not (scratch / "model.ncnn.bin").exists():
        convert(path, arrays, scratch)
    script = (scratch / "model_ncnn.py").read_text()
    net = ncnn.Net()
    net.opt.num_threads = threads
    net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = False
    net.opt.use_bf16_storage = False
    if net.load_param(str(scratch / "model.ncnn.param")) or net.load_model(str(scratch / "model.ncnn.bin")):
        raise RuntimeError("ncnn cannot load the converted model")
    given = [
        (name, _matrix(array, int(batch or _NO_BATCH)))
        for (name, batch), array in zip(_INPUT.findall(script), arrays, strict=True)
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


def convert(path: Path, arrays: list[np.ndarray], scratch: Path) -> None:
    """Make `model.ncnn.param` and `.bin` with pnnx, which runs the model on the true inputs to learn its shapes."""
    for number, array in enumerate(arrays):
        np.save(scratch / f"input{number}.npy", array)
    shutil.copyfile(path, scratch / "model.onnx")
    names = ",".join(f"input{number}.npy" for number in range(len(arrays)))
    command = [pnnx.EXEC_PATH, "model.onnx", f"input={names}", "fp16=0"]
    result = subprocess.run(command, cwd=scratch, capture_output=True, text=True, errors="replace", check=False)
    (scratch / "pnnx.log").write_text(result.stdout + result.stderr)
    if not (scratch / "model.ncnn.bin").exists():
        lines = (result.stdout + result.stderr).strip().splitlines()
        raise RuntimeError(f"pnnx cannot convert the model: {lines[-1] if lines else f'code {result.returncode}'}")
    for leftover in ("model.onnx", "model.pnnx.bin", "model.pnnx.onnx", "model.pnnxsim.onnx"):
        (scratch / leftover).unlink(missing_ok=True)


def _matrix(array: np.ndarray, batch: int) -> ncnn.Mat:
    """An array as ncnn holds it: whole numbers have 32 bits there."""
    narrow = array.astype(np.int32) if array.dtype == np.int64 else array
    return ncnn.Mat(np.ascontiguousarray(narrow), batch_index=batch).clone()
