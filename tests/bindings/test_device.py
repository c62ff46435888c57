"""Models on devices through the runtime for C: the answers of Python's own runtime, and of the processor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper

import tilewright as tw
from tests.bindings.c_runtime import RuntimeForC
from tests.bindings.languages import LANGUAGES, make
from tests.integration import small_models
from tests.requirements import need, needs

need("make", *LANGUAGES["c"].needs)

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
RANDOM = np.random.default_rng(0)


@pytest.fixture(params=["opencl", "cuda"])
def target(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    need(name)
    return name


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> RuntimeForC:
    folder = tmp_path_factory.mktemp("runtime")
    make("c", "all", folder, folder)
    return RuntimeForC(folder / "libtilewright.so")


def run(runtime: RuntimeForC, target: str, model: bytes, folder: Path, *inputs: np.ndarray) -> None:
    """Compile for a device, export, run from C, and compare with Python on the same device."""
    exe = tw.compile(model, target=target)
    exe.export_library(folder / "model.so")
    expected = exe.run({info.name: array for info, array in zip(exe.input_info, inputs, strict=True)})
    outputs = [np.full(array.shape, 7, array.dtype) for array in expected]
    runtime.run(folder / "model.so", list(inputs), outputs)
    for ours, array in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(ours, array, rtol=1e-6, atol=1e-6)


def test_convolutions_and_weights(runtime: RuntimeForC, target: str, tmp_path: Path) -> None:
    image = RANDOM.standard_normal((1, 3, 32, 32)).astype(np.float32)
    run(runtime, target, small_models.classifier().SerializeToString(), tmp_path, image)


@pytest.mark.parametrize("first", [3, 4])
def test_places_inside_other_memory(runtime: RuntimeForC, target: str, tmp_path: Path, first: int) -> None:
    # A part of an input that no sub-buffer can start in (96 bytes from its start), and one that it can (128).
    nodes: list[NodeProto] = [
        helper.make_node("Split", ["x", "sizes"], ["a", "b"], axis=0),
        helper.make_node("Exp", ["a"], ["c"]),
        helper.make_node("Gemm", ["b", "b"], ["d"], transB=1),
    ]
    outputs = {"c": (FLOAT, [first, 8]), "d": (FLOAT, [5, 5])}
    sizes = {"sizes": np.array([first, 5])}
    model = small_models.model(nodes, {"x": (FLOAT, [first + 5, 8])}, outputs, sizes)
    run(runtime, target, model.SerializeToString(), tmp_path, RANDOM.standard_normal((first + 5, 8)).astype(np.float32))


def test_checks_of_data(runtime: RuntimeForC, target: str, tmp_path: Path) -> None:
    node = helper.make_node("Gather", ["table", "ids"], ["rows"], name="lookup")
    inputs = {"table": (FLOAT, [5, 4]), "ids": (INT64, [3])}
    model = small_models.model([node], inputs, {"rows": (FLOAT, [3, 4])}).SerializeToString()
    table = RANDOM.standard_normal((5, 4)).astype(np.float32)
    run(runtime, target, model, tmp_path, table, np.array([4, 0, 2]))
    rows = np.empty((3, 4), np.float32)
    with pytest.raises(ValueError, match=r"lookup.*out of range"):
        runtime.run(tmp_path / "model.so", [table, np.array([0, 7, 1])], [rows])


RUN_ON_CUDA = """
import ctypes, sys
from pathlib import Path
import numpy as np
from tests.bindings.c_runtime import RuntimeForC
runtime, model = RuntimeForC(Path(sys.argv[1])), Path(sys.argv[2])
x, y = np.arange(-4, 4, dtype=np.float32), np.full(8, 7, np.float32)
for _ in range(3):
    runtime.run(model, [x], [y])
print(y.tolist(), ctypes.CDLL("libcuda.so.1").stand_in_live())
"""


def test_cuda_is_called_as_it_should_be(runtime: RuntimeForC, c_compiler: str, tmp_path: Path) -> None:
    need("nvrtc")
    shape = (FLOAT, [8])
    model = small_models.model([helper.make_node("Relu", ["x"], ["y"])], {"x": shape}, {"y": shape})
    tw.compile(model.SerializeToString(), target="cuda -arch=sm_90").export_library(tmp_path / "model.so")
    source, driver = Path(__file__).with_name("stand_in_cuda.c"), tmp_path / "libcuda.so.1"
    subprocess.run([c_compiler, "-std=c11", "-shared", "-fPIC", "-o", str(driver), str(source)], check=True)
    command = [sys.executable, "-c", RUN_ON_CUDA, str(runtime.path), str(tmp_path / "model.so")]
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.stdout.split("] ") == ["[0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0", "0\n"], done.stderr


@needs("no-cuda")
def test_no_driver_is_an_error(runtime: RuntimeForC, tmp_path: Path) -> None:
    need("nvrtc")
    shape = (FLOAT, [8])
    model = small_models.model([helper.make_node("Relu", ["x"], ["y"])], {"x": shape}, {"y": shape})
    tw.compile(model.SerializeToString(), target="cuda -arch=sm_90").export_library(tmp_path / "model.so")
    x = np.zeros(8, np.float32)
    with pytest.raises(ValueError, match=r"device \(cuda\): (no driver|there is no GPU)"):
        runtime.run(tmp_path / "model.so", [x], [np.zeros(8, np.float32)])
