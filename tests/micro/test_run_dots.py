"""Products of bytes by dot products of runs, and vectors of MVE: the same bits as on the host, whatever the sizes."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from bench.micro_models import MicroModel, QuantizedGraph
from bench.micro_runner import run_micro
from tests.requirements import C_COMPILERS, need, need_tool
from tilewright.backends.micro.run_dots import run_dots_text
from tilewright.compiler import Compilation

BOARDS = {"cortex-m4": "micro -mcpu=cortex-m4", "cortex-m55": "micro -mcpu=cortex-m55"}


def random_model(seed: int) -> MicroModel:
    """Convolutions of random sizes, one after the other; some of each channel by itself."""
    random = np.random.default_rng(seed)
    height, width, channels = (int(random.integers(low, high)) for low, high in ((5, 12), (5, 12), (1, 20)))
    graph = QuantizedGraph(f"random{seed}", (1, channels, height, width))
    value = "input"
    for _ in range(4):
        size = (int(random.integers(1, 4)), int(random.integers(1, 4)))
        stride = int(random.integers(1, 3))
        if random.integers(3) == 0:
            value = graph.conv(value, graph.shapes[value][1], size, stride, deep=True)
        else:
            value = graph.conv(value, int(random.integers(1, 24)), size, stride, relu=bool(random.integers(2)))
    return graph.finish(graph.dense(graph.pool(value), int(random.integers(1, 9))))


@pytest.mark.parametrize("target", BOARDS.values())
def test_random_layers_in_portable_c(target: str, tmp_path: Path) -> None:
    compiler = need_tool("c-compiler", *C_COMPILERS)
    for seed in range(3):
        model = random_model(seed)
        data = model.proto.SerializeToString()
        folder = tmp_path / f"m{seed}"
        Compilation(data, target=target).export_library(folder)
        library = tmp_path / f"m{seed}.so"
        command = [compiler, "-O1", "-ffp-contract=off", "-shared", "-fPIC", str(folder / f"m{seed}.c")]
        subprocess.run([*command, "-o", str(library), "-lm"], check=True)
        run = getattr(ctypes.CDLL(str(library)), f"m{seed}_run")
        run.argtypes = [ctypes.c_void_p] * 2
        given = np.random.default_rng(seed).integers(-128, 128, model.shape, np.int8)
        expected = np.asarray(tw.compile(data, threads=1)(given))
        result = np.zeros(expected.shape, np.int8)
        assert run(given.ctypes.data, result.ctypes.data) == 0
        np.testing.assert_array_equal(result, expected, f"seed {seed}")


@pytest.mark.parametrize("board", BOARDS)
def test_random_layers_on_boards(board: str, tmp_path: Path) -> None:
    need("arm-none-eabi", "make")
    for seed in (10, 11):
        model = random_model(seed)
        data = model.proto.SerializeToString()
        Compilation(data, target=BOARDS[board]).export_library(tmp_path / f"m{seed}")
        given = np.random.default_rng(seed).integers(-128, 128, model.shape, np.int8)
        result = run_micro(tmp_path / f"m{seed}", {"input": given}).outputs["output"]
        np.testing.assert_array_equal(result, tw.compile(data, threads=1)(given), f"seed {seed}")


def rounding_model(kind: int, zero: int, count: int) -> onnx.ModelProto:
    """Floats made bytes."""
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    constants = [
        numpy_helper.from_array(np.float32(0.5), "scale"),
        numpy_helper.from_array(np.asarray(zero, dtype), "zero"),
    ]
    node = helper.make_node("QuantizeLinear", ["input", "scale", "zero"], ["output"])
    ports = [
        helper.make_tensor_value_info("input", TensorProto.FLOAT, [count]),
        helper.make_tensor_value_info("output", kind, [count]),
    ]
    graph = helper.make_graph([node], "rounding", ports[:1], ports[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.grid
@pytest.mark.parametrize("board", BOARDS)
@pytest.mark.parametrize(("kind", "zero"), [(TensorProto.INT8, 3), (TensorProto.UINT8, 250), (TensorProto.INT8, 0)])
def test_floats_become_bytes_as_on_the_host(board: str, kind: int, zero: int, tmp_path: Path) -> None:
    """Ties, what is beyond the range of a byte or of an integer, infinities and NaN."""
    need("arm-none-eabi", "make")
    special = [0.25, 0.75, -0.25, -0.75, 1.25, 63.75, -64.25, 1e9, -1e9, 3e38, -3e38, np.inf, -np.inf, np.nan, -0.0, 0]
    random = np.random.default_rng(0).uniform(-200, 200, 19)
    values = np.asarray([*special, *np.round(random * 4) / 4], np.float32)
    data = rounding_model(kind, zero, len(values)).SerializeToString()
    Compilation(data, target=BOARDS[board]).export_library(tmp_path / "rounding")
    result = run_micro(tmp_path / "rounding", {"input": values}).outputs["output"]
    np.testing.assert_array_equal(result, tw.compile(data, threads=1)(values))


def test_functions_have_names() -> None:
    assert run_dots_text("tw_dot4") is None
    text = run_dots_text("tw_run_dots_2x2")
    assert text is not None and "vmladava" in text and "smlad" in text
    many = run_dots_text("tw_run_dots_2x4")
    assert many is not None and "vmladava" not in many, "more sums than vectors have registers for"
