"""Graphs of thousands of nodes: every pass takes time in proportion to them, and none runs out of stack."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tests.graph.chains import MOTIFS, SIZE, chain_of
from tests.grids import rare
from tilewright.frontend import from_onnx
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Function, GraphExpr, Tuple, Var, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import call
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.fuse import MAX_GROUP
from tilewright.graph.pipeline import graph_pipeline
from tilewright.graph.text import parse_text, to_text
from tilewright.ir.function import IRModule
from tilewright.ir.structural import structural_equal, structural_key
from tilewright.ir.types import tensor_type
from tilewright.ir.visit import find_all
from tilewright.lower.model import lower_model
from tilewright.support.errors import UserError
from tilewright.target import Target
from tilewright.tir.stmt import Block

T = TypeVar("T")

SMALL, LARGE = 250, 2000
"""Nodes: the larger graph has eight times as many."""


def _sums(x: Var, count: int) -> GraphExpr:
    value: GraphExpr = x
    for number in range(count):
        value = call("add", value, x) if number % 2 else call("sigmoid", value)
    return value


def _products(x: Var, count: int) -> GraphExpr:
    weight = constant(np.eye(8, dtype=np.float32))
    value: GraphExpr = x
    for number in range(count):
        value = call("matmul", value, weight) if number % 2 else call("tanh", value)
    return value


def _moves(x: Var, count: int) -> GraphExpr:
    value: GraphExpr = x
    for number in range(count):
        turned = number % 3
        value = (
            call("transpose", value, axes=(1, 0))
            if turned == 0
            else call("reshape", value, shape=(8, 8))
            if turned == 1
            else call("exp", value)
        )
    return value


def _fan(x: Var, count: int) -> GraphExpr:
    """Many values of one, and the sum of all."""
    parts = [call("multiply", x, constant(np.float32(number))) for number in range(count // 2)]
    value: GraphExpr = parts[0]
    for part in parts[1:]:
        value = call("add", value, part)
    return value


def _results(x: Var, count: int) -> GraphExpr:
    """Every value is a result."""
    values: list[GraphExpr] = [x]
    for _ in range(count):
        values.append(call("exp", values[-1]))
    return Tuple(tuple(values[1:]))


def _indices(x: Var, count: int) -> GraphExpr:
    """Rows taken by indices that are checked."""
    value: GraphExpr = x
    places = call(
        "cast", call("reshape", call("slice", x, begin=(0, 0), end=(1, 8), strides=(1, 1)), shape=(8,)), dtype=INT
    )
    for _ in range(count // 3):
        status = call("check_values", places, what="index", sizes=(8,), axes=(0,), shape=(8,))
        inside = call("checked", places, status, what="index", axes=(0,))
        value = call("take", value, inside, axis=0)
    return value


INT = tensor_type((), "int64").dtype
GRAPHS: dict[str, Callable[[Var, int], GraphExpr]] = {
    "sums": _sums,
    "products": _products,
    "moves": _moves,
    "fan": _fan,
    "results": _results,
    "indices": _indices,
}


def _module(make: Callable[[Var, int], GraphExpr], count: int) -> IRModule:
    x = Var("x", tensor_type((8, 8), "float32"))
    module = IRModule([Function("main", (x,), make(x, count))])
    infer_types(module)
    return module


def _seconds(make: Callable[[Var, int], GraphExpr], count: int) -> dict[str, float]:
    """Seconds of the processor that each pass takes, over all its turns."""
    options = GraphOptions("NHWC", target=Target("llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v3"))
    module = _module(make, count)
    found: dict[str, float] = {}
    for item in graph_pipeline(options).passes:
        start = time.process_time()
        module = item(module)
        found[item.name] = found.get(item.name, 0.0) + time.process_time() - start
    return found


@pytest.mark.parametrize("name", GRAPHS)
def test_passes_take_time_in_proportion(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Verification between passes is timed with them.
    monkeypatch.setenv("TILEWRIGHT_VERIFY", "0")
    small, large = _seconds(GRAPHS[name], SMALL), _seconds(GRAPHS[name], LARGE)
    # Eight times the nodes: a pass that compares each with each takes 64 times as long.
    slow = {item: (small[item], seconds) for item, seconds in large.items() if seconds > 24 * small[item] + 0.15}
    assert not slow


OPTIONS = GraphOptions("NHWC", target=Target("llvm -mtriple=x86_64-linux-gnu -mcpu=cascadelake"))


def _stages(motif: str, nodes: int, rows: int | str = SIZE) -> dict[str, float]:
    """Seconds of the processor that each stage of a compilation takes for a chain, up to its kernels."""
    spent: dict[str, float] = {}

    def timed(name: str, run: Callable[[], T]) -> T:
        # A look for cyclic garbage goes through all that the process holds, which is not the stage's doing.
        gc.disable()
        start = time.process_time()
        try:
            return run()
        finally:
            spent[name] = spent.get(name, 0.0) + time.process_time() - start
            gc.enable()

    data = chain_of(motif, nodes, rows).SerializeToString()
    module = timed("import", lambda: from_onnx(data))
    text = timed("print", lambda: to_text(module))
    again = timed("parse", lambda: parse_text(text, "chain", text.constants))
    assert timed("compare", lambda: structural_equal(module, again))
    timed("hash", lambda: structural_key(module))
    for item in graph_pipeline(OPTIONS).passes:
        module = timed(item.name, partial(item, module))
    timed("print fused", lambda: to_text(module))
    lowered = timed("lower", lambda: lower_model(module, OPTIONS.machine))
    steps = sum(len(segment.info.steps) for segment in lowered.segments)
    # Kernels are shared by turns that are alike, and none grows with the chain.
    assert len(lowered.kernels) <= 16
    assert steps >= nodes / (2 * MAX_GROUP) or motif in FOLDED
    for kernel in lowered.kernels:
        # The operators of a group, a copy for the result, and the block around them all.
        assert len(find_all(kernel.func.body, Block)) <= MAX_GROUP + 2
    return spent


FOLDED = ("moves", "transposes", "shapes")
"""Chains of which canonical forms leave little."""


SIMPLER = ("residual", "transposes", "normalised", "powers", "shapes")
"""Chains of stages that others go through too."""


def _slow(small: dict[str, float], large: dict[str, float]) -> dict[str, tuple[float, float]]:
    """Stages that take more than twice the time in proportion to four times the nodes."""
    return {name: (small[name], seconds) for name, seconds in large.items() if seconds > 8 * small[name] + 0.1}


@pytest.mark.parametrize("motif", [*(name for name in MOTIFS if name not in SIMPLER), *rare(*SIMPLER)])
def test_stages_take_time_in_proportion(motif: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage that looks at all that came before takes 16 times as long for four times the nodes."""
    monkeypatch.setenv("TILEWRIGHT_VERIFY", "0")
    small, large = _stages(motif, 200), _stages(motif, 800)
    assert not _slow(small, large)


@pytest.mark.fuzz
@pytest.mark.parametrize("rows", [SIZE, "rows"])
@pytest.mark.parametrize("motif", MOTIFS)
def test_chains_of_ten_thousand_nodes(motif: str, rows: int | str, monkeypatch: pytest.MonkeyPatch) -> None:
    if rows == "rows" and motif in FIXED:
        return
    monkeypatch.setenv("TILEWRIGHT_VERIFY", "0")
    assert not _slow(_stages(motif, 2500, rows), _stages(motif, 10_000, rows))


FIXED = ("moves", "transposes")
"""Chains that reshape to numbers, or turn rows to columns."""


@pytest.mark.parametrize("motif", ["residual", "dynamically quantised"])
def test_chains_compile_and_run(motif: str) -> None:
    """The compiled chain gives what the graph's interpreter gives; both are deeper than Python's stack."""
    data = chain_of(motif, 1000).SerializeToString()
    x = np.random.default_rng(0).uniform(0.1, 0.9, (SIZE, SIZE)).astype(np.float32)
    exe = tw.compile(data, threads=1)
    want = evaluate(from_onnx(data), x)
    np.testing.assert_allclose(exe(x), want, rtol=1e-3, atol=1e-3)


@pytest.mark.fuzz
@pytest.mark.parametrize("motif", MOTIFS)
def test_chains_of_ten_thousand_nodes_run(motif: str) -> None:
    data = chain_of(motif, 10_000).SerializeToString()
    x = np.random.default_rng(0).uniform(0.1, 0.9, (SIZE, SIZE)).astype(np.float32)
    found = tw.compile(data, threads=1)(x)
    np.testing.assert_allclose(found, evaluate(from_onnx(data), x), rtol=1e-2, atol=1e-2)


def test_a_long_chain_compiles_and_runs() -> None:
    """Longer than the stack of Python is deep, and than a kernel may be."""
    nodes, value = [], "x"
    for number in range(1200):
        nodes.append(helper.make_node("Add" if number % 2 else "Neg", [value, "x"][: 1 + number % 2], [f"v{number}"]))
        value = f"v{number}"
    kind = helper.make_tensor_value_info("x", TensorProto.INT32, [4])
    graph = helper.make_graph(nodes, "long", [kind], [helper.make_tensor_value_info(value, TensorProto.INT32, [4])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    x = np.arange(4, dtype=np.int32)
    want = x
    for number in range(1200):
        want = want + x if number % 2 else -want
    exe = tw.compile(model.SerializeToString(), threads=1)
    np.testing.assert_array_equal(exe(x), want)
    assert len(exe.model.steps) < 60


def _functions(depth: int, calls: int) -> bytes:
    """Functions that call the one before them several times."""
    made = []
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("mine", 1)]
    for level in range(depth):
        nodes, value = [], "a"
        for number in range(calls if level else 1):
            result = "b" if number == (calls if level else 1) - 1 else f"t{number}"
            operator, domain = (f"f{level - 1}", "mine") if level else ("Neg", "")
            nodes.append(helper.make_node(operator, [value], [result], domain=domain))
            value = result
        made.append(helper.make_function("mine", f"f{level}", ["a"], ["b"], nodes, opsets))
    kind = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])
    node = helper.make_node(f"f{depth - 1}", ["x"], ["y"], domain="mine")
    graph = helper.make_graph([node], "net", [kind], [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])])
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=made)
    data: bytes = model.SerializeToString()
    return data


def test_functions_that_call_functions() -> None:
    x = np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(tw.compile(_functions(6, 2), threads=1)(x), x)
    with pytest.raises(UserError, match="the functions of the model stand for 1610612734 nodes, more than the 100000"):
        from_onnx(_functions(30, 2))
    with pytest.raises(UserError, match="nested too deeply"):
        from_onnx(_functions(60, 1))


def test_functions_that_call_themselves() -> None:
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("mine", 1)]
    nodes = [helper.make_node("f", ["a"], ["t"], domain="mine"), helper.make_node("f", ["t"], ["b"], domain="mine")]
    function = helper.make_function("mine", "f", ["a"], ["b"], nodes, opsets)
    kind = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])
    graph = helper.make_graph(
        [helper.make_node("f", ["x"], ["y"], domain="mine")],
        "net",
        [kind],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])],
    )
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=[function])
    with pytest.raises(UserError, match="does a function call itself"):
        from_onnx(model.SerializeToString())


def _relu(shape: list[int | str], kind: int = TensorProto.FLOAT) -> bytes:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"], name="only")],
        "net",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", kind, shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    data: bytes = model.SerializeToString()
    return data


def test_too_many_dimensions() -> None:
    x = np.full([1] * 64, -1, np.float32)
    assert tw.compile(_relu([1] * 64), threads=1)(x).shape == x.shape
    for rank in (65, 1000):
        with pytest.raises(UserError, match=f"a tensor of {rank} dimensions has too many") as caught:
            from_onnx(_relu([1] * rank))
        assert "at most 64" in str(caught.value.hint)


@pytest.mark.parametrize("shape", [[1 << 40, 1 << 40], [1 << 62], [1 << 31, 1 << 31], [1 << 46, 1, 2]])
def test_sizes_that_no_machine_has(shape: list[int | str]) -> None:
    with pytest.raises(UserError, match="elements is too large"):
        from_onnx(_relu(shape))


def test_a_workspace_whose_size_does_not_fit_in_64_bits() -> None:
    """Sizes that come with the inputs, and what lies between two kernels is their product."""
    nodes = [
        helper.make_node("MatMul", ["a", "b"], ["outer"]),
        helper.make_node("MatMul", ["outer", "c"], ["y"]),
    ]
    names = {"a": ["n", 1], "b": [1, "m"], "c": ["m", 1]}
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in names.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 1])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    exe = tw.compile(model.SerializeToString(), threads=1)
    few = [np.ones((3, 1), np.float32), np.ones((1, 2), np.float32), np.ones((2, 1), np.float32)]
    np.testing.assert_array_equal(exe(*few), np.full((3, 1), 2, np.float32))
    many = 1 << 31
    part = exe.runner.part
    with pytest.raises(UserError, match="no memory for the model's workspace of"):
        part.prepare(tuple({"n": many, "m": many}[name] for name in exe.model.symbols))
