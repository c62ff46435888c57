"""Models with loops, branches on data and sizes that a run decides, as packages for JavaScript."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from bench.web_runner import FLAGS, run_packaged
from tests.graph.helpers import function, op, random, var
from tests.requirements import need, need_tool
from tilewright.compiler import Compilation
from tilewright.graph.ir import prelude
from tilewright.graph.ir.expr import (
    Call,
    Clause,
    ConstructorPattern,
    Function,
    GlobalVar,
    If,
    Let,
    Match,
    Var,
    VarPattern,
)
from tilewright.graph.ir.expr import constant as graph_constant
from tilewright.graph.ir.prelude import CONS, NIL, construct, list_of
from tilewright.ir.function import IRModule
from tilewright.ir.types import FunctionType, tensor_type
from tilewright.runtime.vm.program import Opcode
from tilewright.support.errors import UnsupportedError

need("node", "wasm-ld")

TARGET = "wasm -mattr=+relaxed-simd"
ROW = tensor_type((1, 8), "float32")
COUNT = tensor_type((), "int64")
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def info(name: str, kind: int = FLOAT, shape: list[int | str] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    **constants: npt.NDArray[np.generic],
) -> onnx.ModelProto:
    values = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "program", inputs, outputs, values)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def loop(*state: int | str) -> onnx.ModelProto:
    """So many turns of state + 1; the sum of each state is collected."""
    nodes = [
        helper.make_node("Add", ["carried", "one"], ["next"]),
        helper.make_node("ReduceSum", ["next"], ["sum"], keepdims=0),
        helper.make_node("Identity", ["go"], ["on"]),
    ]
    values = [info("carried", FLOAT, list(state)), info("next", FLOAT, list(state)), info("sum", FLOAT, [])]
    body = helper.make_graph(
        nodes, "body", [info("turn", INT64, []), info("go", BOOL, []), values[0]], [info("on", BOOL, []), *values[1:]]
    )
    again = helper.make_node("Loop", ["turns", "", "state"], ["last", "sums"], body=body)
    outputs = [info("last", FLOAT, list(state)), info("sums", FLOAT, ["n"])]
    return model_of([again], [info("turns", INT64, [1]), info("state", FLOAT, list(state))], outputs, one=np.float32(1))


def branch() -> onnx.ModelProto:
    sides = {
        side: helper.make_graph([helper.make_node(name, ["x"], [side])], side, [], [info(side, FLOAT, [4])])
        for side, name in (("then", "Exp"), ("else", "Neg"))
    }
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["positive"]),
        helper.make_node("If", ["positive"], ["y"], then_branch=sides["then"], else_branch=sides["else"]),
    ]
    return model_of(nodes, [info("x", FLOAT, [4])], [info("y", FLOAT, [4])], zero=np.float32(0))


def selection() -> onnx.ModelProto:
    """Elements and places that data selects, and arithmetic on them."""
    nodes = [
        helper.make_node("NonZero", ["x"], ["places"]),
        helper.make_node("Transpose", ["places"], ["rows"]),
        helper.make_node("GatherND", ["x", "rows"], ["chosen"]),
        helper.make_node("Exp", ["chosen"], ["y"]),
        helper.make_node("Shape", ["chosen"], ["count"]),
        helper.make_node("TopK", ["y", "count"], ["sorted", "order"]),
    ]
    outputs = [info("places", INT64, [2, "k"]), info("sorted", FLOAT, ["k"]), info("order", INT64, ["k"])]
    return model_of(nodes, [info("x", FLOAT, ["n", 4])], outputs)


def sizes() -> onnx.ModelProto:
    nodes = [helper.make_node("Add", ["x", "y"], ["sum"]), helper.make_node("Expand", ["sum", "shape"], ["wide"])]
    inputs = [info("x", FLOAT, ["n", "m"]), info("y", FLOAT, ["n", "m"]), info("shape", INT64, [3])]
    return model_of(nodes, inputs, [info("wide", FLOAT, ["a", "b", "c"])])


def recursion() -> IRModule:
    n, m, one = var("n", dtype="int64"), var("m", dtype="int64"), graph_constant(np.int64(1))
    rest = Call(GlobalVar("count"), (op("subtract", n, one),))
    body = If(op("less", n, one), graph_constant(np.int64(0)), op("add", rest, one))
    return IRModule([function([m], Call(GlobalVar("count"), (m,))), function([n], body, "count", result_type=COUNT)])


def check(model: onnx.ModelProto | IRModule, *runs: dict[str, npt.NDArray[np.generic]]) -> None:
    module = model if isinstance(model, IRModule) else tw.load_model(model.SerializeToString())
    exe = tw.compile(module, threads=1)
    assert exe.model.program
    for inputs in runs:
        given = exe(**inputs) if len(exe.model.outputs) > 1 else (exe(**inputs),)
        for found, expected in zip(run_packaged(module, inputs), given, strict=True):
            assert (found.dtype, found.shape) == (np.asarray(expected).dtype, np.shape(expected))
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_loops() -> None:
    state = np.arange(6, dtype=np.float32).reshape(2, 3)
    check(loop(2, 3), *({"turns": np.array([turns]), "state": state} for turns in (0, 1, 7)))


def test_branches_on_data() -> None:
    x = np.array([1, -2, 3, 0.5], np.float32)
    check(branch(), {"x": x}, {"x": -x})


def test_sizes_that_data_decides() -> None:
    x = np.array([[0, 2, 0, -1], [3, 0, 0, 0.5]], np.float32)
    check(selection(), {"x": x}, {"x": np.zeros_like(x)}, {"x": x[:0]})


def test_closures_and_algebraic_data() -> None:
    """A list is built by a recursion, and a closure goes over it."""
    x, n = var("x", 1, 8), var("n", dtype="int64")
    i, row, one = Var("i", COUNT), Var("row", ROW), graph_constant(np.int64(1))
    more = construct(CONS, row, Call(GlobalVar("build"), (op("subtract", i, one), op("tanh", row))))
    build = function([i, row], If(op("less", i, one), construct(NIL), more), "build", result_type=list_of(ROW))
    f, items = Var("f", FunctionType((ROW,), ROW)), Var("items", list_of(ROW))
    head, tail = Var("head"), Var("tail")
    added = op("add", Call(f, (head,)), Call(GlobalVar("total"), (f, tail)))
    clauses = (
        Clause(ConstructorPattern(NIL, ()), graph_constant(np.zeros((1, 8), np.float32))),
        Clause(ConstructorPattern(CONS, (VarPattern(head), VarPattern(tail))), added),
    )
    total = function([f, items], Match(items, clauses), "total", result_type=ROW)
    z = Var("z", ROW)
    scaled = Function("", (z,), op("multiply", z, op("exp", x)))
    g = Var("g")
    body = Let(g, scaled, Call(GlobalVar("total"), (g, Call(GlobalVar("build"), (n, x)))))
    module = prelude.with_prelude(IRModule([function([x, n], body), build, total]))
    check(module, *({"x": random(1, 1, 8), "n": np.array(count)} for count in (0, 1, 5)))


def test_what_programs_do_beyond_results(tmp_path: Path) -> None:
    models = {"loop": loop("n"), "sizes": sizes(), "recursion": recursion()}
    for name, model in models.items():
        module = model if isinstance(model, IRModule) else tw.load_model(model.SerializeToString())
        Compilation(module, target=TARGET).export_library(tmp_path / name)
    script = Path(__file__).with_name("programs.mjs")
    command = [need_tool("node"), *FLAGS, str(script), *(str(tmp_path / name) for name in models)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "all is as it should be"


def values_of_all_kinds() -> onnx.ModelProto:
    """Texts, sequences and optional values, in and out."""
    row = helper.make_tensor_type_proto(FLOAT, [2])
    rows = helper.make_sequence_type_proto(row)
    nodes = [
        helper.make_node("StringConcat", ["text", "suffix"], ["joined"]),
        helper.make_node("SequenceInsert", ["rows", "x"], ["more"]),
        helper.make_node("OptionalHasElement", ["maybe"], ["has"]),
        helper.make_node("Optional", ["more"], ["kept"]),
    ]
    inputs = [info("text", TensorProto.STRING, ["n"]), helper.make_value_info("rows", rows), info("x", FLOAT, [2])]
    inputs.append(helper.make_value_info("maybe", helper.make_optional_type_proto(row)))
    outputs = [info("joined", TensorProto.STRING, ["n"]), helper.make_value_info("more", rows), info("has", BOOL, [])]
    outputs.append(helper.make_value_info("kept", helper.make_optional_type_proto(rows)))
    return model_of(nodes, inputs, outputs, suffix=np.array(["!"], object))


def test_texts_sequences_and_optional_values(tmp_path: Path) -> None:
    module = tw.load_model(values_of_all_kinds().SerializeToString())
    Compilation(module, target=TARGET).export_library(tmp_path / "kinds")
    declared = (tmp_path / "kinds" / "index.d.ts").read_text()
    for member in ('"text": Input<string[]>', '"rows": Input<Float32Array>[]', '"maybe": (Input<Float32Array> | null)'):
        assert member in declared
    assert '"kept": (Tensor<Float32Array>[] | null)' in declared
    script = Path(__file__).with_name("kinds.mjs")
    command = [need_tool("node"), *FLAGS, str(script), str(tmp_path / "kinds")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "all is as it should be"


def test_what_packages_cannot_run_is_said_by_name(tmp_path: Path) -> None:
    items = Var("items", list_of(ROW))
    lists = prelude.with_prelude(IRModule([function([items], items)]))
    with pytest.raises(UnsupportedError, match="cannot run the input 'items'") as caught:
        Compilation(lists, target=TARGET).export_library(tmp_path / "refused")
    assert "deploy a native library" in (caught.value.hint or "")
    assert not (tmp_path / "refused").exists()


def test_javascript_knows_the_instructions() -> None:
    text = (Path(tw.__file__).parent / "backends/wasm/javascript/machine.js").read_text()
    names = text.split("const OPCODES = [")[1].split("]")[0].replace('"', "").replace(",", " ").split()
    assert names == [opcode.name.lower() for opcode in Opcode]
