"""MNN at high precision (float32), through its module interface, which also runs models with loops inside.

The converter is called by its native entry: the `mnnconvert` command installs a telemetry client when it starts.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import _tools
import MNN
import numpy as np
import onnx


def load(path: Path, threads: int, inputs: dict[str, np.ndarray], scratch: Path) -> Callable[[], list[np.ndarray]]:
    """The converted model on `threads` threads."""
    graph = onnx.load(path, load_external_data=False).graph
    weights = {item.name for item in graph.initializer}
    names = [item.name for item in graph.input if item.name not in weights]
    converted = scratch / "model.mnn"
    if not converted.exists():
        aside = scratch / "aside.mnn"
        _tools.mnnconvert(
            ["mnnconvert", "-f", "ONNX", "--modelFile", str(path), "--MNNModel", str(aside), "--bizCode", "bench"]
        )
        if not aside.exists():
            raise RuntimeError("MNN's converter cannot convert the model")
        aside.rename(converted)
    manager = MNN.nn.create_runtime_manager(({"backend": "CPU", "precision": "high", "numThread": threads},))
    module = MNN.nn.load_module_from_file(
        str(converted), names, [item.name for item in graph.output], runtime_manager=manager
    )
    shapes = [[size.dim_value for size in item.type.tensor_type.shape.dim] for item in graph.output]
    variables = [_variable(inputs[name]) for name in names]

    def call() -> list[np.ndarray]:
        results = module.forward(variables)
        # Reading forces the computation.
        return [np.array(item.read()).reshape(shape) for item, shape in zip(results, shapes, strict=True)]

    return call


def _variable(array: np.ndarray) -> MNN.expr.Var:
    """An input variable in MNN's plain order of dimensions; whole numbers have 32 bits there."""
    narrow = array.astype(np.int32) if array.dtype == np.int64 else array
    kind = MNN.expr.int if narrow.dtype == np.int32 else MNN.expr.float
    variable = MNN.expr.placeholder(list(narrow.shape), MNN.expr.NCHW, kind)
    variable.write(np.ascontiguousarray(narrow))
    return variable
