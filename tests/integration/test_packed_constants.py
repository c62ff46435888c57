"""Packed constants of few bits: kernels of every target unpack them, and so do programs and exported libraries."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tests.requirements import need

KINDS = ("int4", "uint2", "float4_e2m1fn")
SHAPE = (51, 37)


def table(kind: str) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 2, SHAPE).astype(np.float32).astype(getattr(ml_dtypes, kind))


def packed_bytes(kind: str) -> int:
    """What a model stores for the table, in whole lines of 64 bytes."""
    bits = {"int4": 4, "uint2": 2, "float4_e2m1fn": 4}[kind]
    size = (SHAPE[0] * SHAPE[1] * bits + 7) // 8
    return (size + 63) // 64 * 64


def model(nodes, inputs, outputs, kind: str) -> onnx.ModelProto:
    values = [[helper.make_tensor_value_info(*item) for item in items] for items in (inputs, outputs)]
    graph = helper.make_graph(nodes, "packed", *values, [onnx.numpy_helper.from_array(table(kind), "table")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=13)


def element(kind: str) -> int:
    return helper.np_dtype_to_tensor_dtype(table(kind).dtype)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("target", ["llvm", "c", "opencl", "vulkan", "webgpu"])
def test_rows_of_a_table(kind: str, target: str) -> None:
    if target != "llvm":
        need("c-compiler" if target == "c" else target)
    nodes = [
        helper.make_node("Gather", ["table", "rows"], ["y"]),
        helper.make_node("Cast", ["y"], ["z"], to=TensorProto.FLOAT),
    ]
    outputs = [("y", element(kind), (4, 37)), ("z", TensorProto.FLOAT, (4, 37))]
    exe = tw.compile(model(nodes, [("rows", TensorProto.INT64, (4,))], outputs, kind), target=target, threads=1)
    assert exe.artifact.constants.nbytes == packed_bytes(kind)
    rows = np.array([0, 50, 3, 7])
    y, z = exe(rows)
    np.testing.assert_array_equal(y, table(kind)[rows])
    np.testing.assert_array_equal(z, table(kind)[rows].astype(np.float32))


@pytest.mark.parametrize("kind", KINDS)
def test_programs_unpack_what_they_hand_around(kind: str, tmp_path: Path) -> None:
    def side(name: str, source: str) -> onnx.GraphProto:
        outputs = [helper.make_tensor_value_info(name, element(kind), SHAPE)]
        return helper.make_graph([helper.make_node("Identity", [source], [name])], name, [], outputs)

    choice = helper.make_node("If", ["c"], ["y"], then_branch=side("a", "table"), else_branch=side("b", "x"))
    inputs = [("c", TensorProto.BOOL, ()), ("x", element(kind), SHAPE)]
    exe = tw.compile(model([choice], inputs, [("y", element(kind), SHAPE)], kind), threads=1)
    assert exe.artifact.constants.nbytes == packed_bytes(kind)
    other = table(kind)[::-1].copy()
    exe.export_library(tmp_path / "choice.so")
    for program in (exe, tw.load(tmp_path / "choice.so")):
        found = program(np.bool_(True), other)
        np.testing.assert_array_equal(found, table(kind))
        found[...] = 0  # It is the user's: the program's constant stays what it is.
        np.testing.assert_array_equal(program(np.bool_(True), other), table(kind))
        np.testing.assert_array_equal(program(np.bool_(False), other), other)


@pytest.mark.parametrize("kind", KINDS)
def test_a_constant_result(kind: str) -> None:
    nodes = [helper.make_node("Identity", ["table"], ["y"]), helper.make_node("Relu", ["x"], ["z"])]
    outputs = [("y", element(kind), SHAPE), ("z", TensorProto.FLOAT, (2,))]
    exe = tw.compile(model(nodes, [("x", TensorProto.FLOAT, (2,))], outputs, kind), threads=1)
    assert exe.artifact.constants.nbytes == packed_bytes(kind)
    np.testing.assert_array_equal(exe(np.ones(2, np.float32))[0], table(kind))
