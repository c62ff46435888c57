"""Indices out of range and divisors of zero in the data of a run: refused where onnxruntime refuses, everywhere."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tests.codegen.on_device import require_opencl, require_vulkan, require_webgpu
from tilewright.compiler import Compilation
from tilewright.graph.interpreter import evaluate
from tilewright.support.errors import UserError

Arrays = list[np.ndarray[Any, Any]]
X = np.arange(20, dtype=np.float32).reshape(5, 4)
GOOD, BAD, ZEROS = np.array([0, 1, -5]), np.array([0, 7, 1]), np.array([1, 0, 2])
NEEDS: dict[str, Callable[[], None]] = {
    "native": lambda: None,
    "opencl": require_opencl,
    "vulkan": require_vulkan,
    "webgpu": require_webgpu,
}


def _info(name: str, array: np.ndarray[Any, Any], shape: Any = None) -> Any:
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape if shape is None else shape
    )


def _model(nodes: list[Any], inputs: dict[str, Any], outputs: dict[str, int], constants: Any = ()) -> bytes:
    graph = helper.make_graph(
        nodes,
        "net",
        list(inputs.values()),
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
        list(constants),
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    data: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    return data


@dataclass
class Case:
    """An operator, its inputs, and which of them (and which column) is an index into which size."""

    operator: str
    inputs: Arrays
    where: int
    limits: tuple[int, ...]
    attributes: dict[str, Any]
    negative: bool = True
    is_length: bool = False

    def model(self) -> bytes:
        names = [f"x{n}" for n in range(len(self.inputs))]
        domain = "ai.onnx.ml" if self.operator == "ArrayFeatureExtractor" else ""
        node = helper.make_node(self.operator, names, ["y"], name="mine", domain=domain, **self.attributes)
        kind = helper.np_dtype_to_tensor_dtype(self.inputs[0].dtype)
        return _model([node], {n: _info(n, a) for n, a in zip(names, self.inputs, strict=True)}, {"y": kind})

    def samples(self, count: int, seed: int) -> list[Arrays]:
        """Inputs in range and, one in two, with one index just or far outside."""
        random = np.random.default_rng(seed)
        found: list[Arrays] = []
        for turn in range(count):
            given = [array.copy() for array in self.inputs]
            index = given[self.where].reshape(-1)
            for place in range(index.size):
                size = self.limits[place % len(self.limits)]
                index[place] = random.integers(-size if self.negative else 0, size + self.is_length)
            if turn % 2:
                place = int(random.integers(index.size))
                size = self.limits[place % len(self.limits)]
                wrong = [size + self.is_length, size + 9, -size - 1, -(2**31), 2**31 - 1]
                index[place] = random.choice(wrong if self.negative else [*wrong, -1])
            found.append(given)
        return found


def _floats(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).random(shape, np.float32)


def _whole(*shape: int, dtype: Any = np.int64) -> np.ndarray[Any, Any]:
    return np.zeros(shape, dtype)


CASES = {
    "gather": Case("Gather", [_floats(5, 4), _whole(2, 21)], 1, (5,), {}),
    "gather_columns_32": Case("Gather", [_floats(5, 4), _whole(3, dtype=np.int32)], 1, (4,), {"axis": 1}),
    "gather_scalar": Case("Gather", [_floats(5, 4), _whole()], 1, (5,), {}),
    "gather_elements": Case("GatherElements", [_floats(5, 4), _whole(3, 4)], 1, (5,), {"axis": 0}),
    "gather_nd": Case("GatherND", [_floats(5, 4), _whole(7, 2)], 1, (5, 4), {}),
    "gather_nd_batch": Case("GatherND", [_floats(3, 5, 4), _whole(3, 2, 1)], 1, (5,), {"batch_dims": 1}),
    "scatter_elements": Case("ScatterElements", [_floats(5, 4), _whole(2, 4), _floats(2, 4)], 1, (5,), {}),
    "scatter_add": Case("ScatterElements", [_floats(5, 4), _whole(2, 4), _floats(2, 4)], 1, (5,), {"reduction": "add"}),
    "scatter_nd": Case("ScatterND", [_floats(5, 4), _whole(3, 1), _floats(3, 4)], 1, (5,), {}),
    "scatter_nd_max": Case("ScatterND", [_floats(5, 4), _whole(3, 2), _floats(3)], 1, (5, 4), {"reduction": "max"}),
    "features": Case("ArrayFeatureExtractor", [_floats(5, 4), _whole(1, 3)], 1, (4,), {}, negative=False),
    "reverse": Case(
        "ReverseSequence",
        [_floats(6, 3, 2), _whole(3)],
        1,
        (6,),
        {"time_axis": 0, "batch_axis": 1},
        negative=False,
        is_length=True,
    ),
}


def _outcome(run: Callable[[], Any], *errors: type[Exception]) -> Any:
    try:
        return run()
    except errors:
        return None


def _compare(case: Case, target: str, samples: list[Arrays]) -> None:
    session = onnxruntime.InferenceSession(case.model())
    exe = tw.compile(case.model(), target, 1)
    names = [f"x{n}" for n in range(len(case.inputs))]
    raised = 0
    for arrays in samples:
        feeds = dict(zip(names, arrays, strict=True))
        # Its errors are plain exceptions of several kinds.
        want = _outcome(lambda feeds=feeds: session.run(None, feeds)[0], Exception)  # type: ignore[misc]
        got = _outcome(lambda arrays=arrays: exe(*arrays), UserError)  # type: ignore[misc]
        assert (got is None) == (want is None), (arrays[case.where], want)
        if want is None:
            raised += 1
        else:
            np.testing.assert_allclose(got, want, rtol=1e-5)
    assert raised == len(samples) // 2


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> None:
    onnxruntime.set_default_logger_severity(4)


@pytest.mark.parametrize("name", CASES)
def test_refuses_what_onnxruntime_refuses(name: str) -> None:
    _compare(CASES[name], "native", CASES[name].samples(12, 5))


@pytest.mark.parametrize("name", ["gather", "gather_nd", "scatter_elements", "reverse"])
def test_refuses_the_same_on_a_device(name: str) -> None:
    require_opencl()
    _compare(CASES[name], "opencl", CASES[name].samples(6, 6))


@pytest.mark.fuzz
@pytest.mark.parametrize("target", NEEDS)
@pytest.mark.parametrize("name", CASES)
def test_campaign(name: str, target: str) -> None:
    NEEDS[target]()
    _compare(CASES[name], target, CASES[name].samples(400, 7))


def _gather(shape: Any = None, indices: Any = GOOD) -> bytes:
    node = helper.make_node("Gather", ["x", "i"], ["y"], name="rows")
    return _model([node], {"x": _info("x", X, shape), "i": _info("i", indices)}, {"y": TensorProto.FLOAT})


MESSAGES = [
    ("gather", "the index 7 (element (1, 3) of the indices) is out of range for axis 0 of size 5", "Gather", (1, 3), 7),
    ("gather_nd", "the index -5 (element (2, 1) of the indices) is out of range for axis 1 of size 4", "", (2, 1), -5),
    ("features", "the index -1 (element (0, 1) of the indices) is out of range for axis 1 of size 4", "", (0, 1), -1),
    ("reverse", "the length 7 (element 2 of the lengths) does not fit axis 0 of size 6", "ReverseSequence", (2,), 7),
]


@pytest.mark.parametrize(("name", "message", "operator", "place", "value"), MESSAGES)
def test_messages(name: str, message: str, operator: str, place: tuple[int, ...], value: int) -> None:
    case = CASES[name]
    arrays = [array.copy() for array in case.inputs]
    arrays[case.where][place] = value
    exe = tw.compile(case.model(), threads=1)
    with pytest.raises(UserError) as caught:
        exe(*arrays)
    assert caught.value.message == message
    assert caught.value.where == f"node 'mine' ({operator or case.operator})"
    assert "unchecked=True" in str(caught.value.hint)
    with pytest.raises(UserError, match="of size") as caught:
        exe.profile(*arrays)
    assert caught.value.message == message
    with pytest.raises(UserError) as caught:
        evaluate(Compilation(case.model()).imported, *arrays)
    assert caught.value.message == message


@pytest.mark.parametrize("operator", ["Div", "Mod"])
@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.int64])
def test_whole_numbers_divided_by_zero(operator: str, dtype: Any) -> None:
    a, b = np.arange(12, dtype=dtype).reshape(3, 4), np.array([1, 2, 3, 4], dtype)
    kind = helper.np_dtype_to_tensor_dtype(a.dtype)
    node = helper.make_node(operator, ["a", "b"], ["y"], name="part")
    exe = tw.compile(_model([node], {"a": _info("a", a), "b": _info("b", b)}, {"y": kind}), threads=1)
    np.testing.assert_array_equal(exe(a, b), a // b if operator == "Div" else a % b)
    b[2] = 0
    with pytest.raises(
        UserError, match="a divisor of an integer division is zero: element 2 of the divisors"
    ) as caught:
        exe(a, b)
    assert caught.value.where == f"node 'part' ({operator})"


def test_floats_are_divided_by_zero() -> None:
    node = helper.make_node("Div", ["a", "b"], ["y"])
    model = _model([node], {"a": _info("a", X), "b": _info("b", X)}, {"y": TensorProto.FLOAT})
    exe = tw.compile(model, threads=1)
    assert exe.model.checks == ()
    assert np.isinf(exe(X + 1, 0 * X)).all()


@pytest.mark.parametrize("kind", ["index", "divisor"])
def test_constants_are_checked_while_importing(kind: str) -> None:
    operator, wrong = ("Gather", [9]) if kind == "index" else ("Div", [0])
    node = helper.make_node(operator, ["x", "i"], ["y"], name="mine")
    constant = helper.make_tensor("i", TensorProto.INT64, [1], wrong)
    model = _model([node], {"x": _info("x", np.arange(4))}, {"y": TensorProto.INT64}, [constant])
    for options in ({}, {"unchecked": True}):
        with pytest.raises(UserError, match=r"out of range for axis 0 of size 4|division is zero") as caught:
            tw.compile(model, **options)  # type: ignore[arg-type]
        assert f"'mine' ({operator}" in str(caught.value.where)


PROVEN = {
    "argmax": [helper.make_node("ArgMax", ["s"], ["i"], axis=0, keepdims=0)],
    "topk": [helper.make_node("TopK", ["s", "k"], ["v", "i"], axis=0)],
    "mod": [helper.make_node("Mod", ["n", "five"], ["i"])],
    "clip": [helper.make_node("Clip", ["n", "zero", "four"], ["i"])],
    "constant": [helper.make_node("Identity", ["k"], ["i"])],
    "moved": [
        helper.make_node("ArgMin", ["s"], ["a"], axis=0),
        helper.make_node("Cast", ["a"], ["b"], to=TensorProto.INT32),
        helper.make_node("Transpose", ["b"], ["i"]),
    ],
    "added": [
        helper.make_node("ArgMax", ["s"], ["a"], axis=0, keepdims=0),
        helper.make_node("Sub", ["a", "five"], ["b"]),
        helper.make_node("Add", ["a", "zero"], ["c"]),
        helper.make_node("Concat", ["c", "k"], ["i"], axis=0),
    ],
}


@pytest.mark.parametrize("name", PROVEN)
def test_what_is_certain_is_not_checked(name: str) -> None:
    nodes = [*PROVEN[name], helper.make_node("Gather", ["x", "i"], ["y"])]
    constants = [
        helper.make_tensor(label, TensorProto.INT64, [1] if label == "k" else [], [value])
        for label, value in (("k", 3), ("five", 5), ("zero", 0), ("four", 4))
    ]
    scores, numbers = np.arange(15, dtype=np.float32).reshape(5, 3), np.arange(7)
    inputs = {"x": _info("x", X), "s": _info("s", scores), "n": _info("n", numbers)}
    model = Compilation(_model(nodes, inputs, {"y": TensorProto.FLOAT}, constants), threads=1)
    assert model.lowered.info.checks == ()


def test_one_check_for_indices_that_are_used_twice() -> None:
    nodes = [helper.make_node("Gather", [name, "i"], [f"y{name}"], name=f"of_{name}") for name in "ab"]
    inputs = {"a": _info("a", X), "b": _info("b", X), "i": _info("i", GOOD)}
    exe = tw.compile(_model(nodes, inputs, {"ya": TensorProto.FLOAT, "yb": TensorProto.FLOAT}), threads=1)
    assert [check.node for check in exe.model.checks] == ["node 'of_a' (Gather)"]


@pytest.mark.parametrize("name", CASES)
def test_unchecked(name: str) -> None:
    """No checks: what is out of range gives some other element, and nothing outside the data is read or written."""
    case = CASES[name]
    exe = tw.compile(case.model(), threads=1, unchecked=True)
    assert exe.model.checks == ()
    known = {0.0, *(float(v) for n, array in enumerate(case.inputs) if n != case.where for v in array.reshape(-1))}
    for arrays in case.samples(6, 8):
        got = exe(*arrays)
        if case.attributes.get("reduction") != "add":
            assert {float(value) for value in got.reshape(-1)} <= known


def test_options_have_keys_of_their_own() -> None:
    assert tw.compile(_gather(), threads=1).model.checks
    assert not tw.compile(_gather(), threads=1, unchecked=True).model.checks
    assert tw.compile(_gather(), threads=1).model.checks


def _branches() -> bytes:
    def out(name: str) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, None)

    then = [
        helper.make_node("Gather", ["x", "i"], ["a"], name="in_then"),
        helper.make_node("Div", ["i", "d"], ["q"], name="part_in_then"),
        helper.make_node("Cast", ["q"], ["qf"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["qf"], ["qs"], keepdims=0),
        helper.make_node("Add", ["a", "qs"], ["t"]),
    ]
    other = [helper.make_node("Gather", ["x", "j"], ["e"], name="in_else")]
    node = helper.make_node(
        "If",
        ["c"],
        ["y"],
        then_branch=helper.make_graph(then, "then", [], [out("t")]),
        else_branch=helper.make_graph(other, "else", [], [out("e")]),
    )
    inputs = {name: _info(name, GOOD) for name in "ijd"}
    return _model([node], {"c": _info("c", np.array(True)), "x": _info("x", X), **inputs}, {"y": TensorProto.FLOAT})


def _loop() -> bytes:
    """The sum of rows that a list of indices names."""
    body = [
        helper.make_node("Gather", ["list", "k"], ["at"], name="pick"),
        helper.make_node("Gather", ["x", "at"], ["row"], name="row_of"),
        helper.make_node("Add", ["sum", "row"], ["more"]),
        helper.make_node("Identity", ["going"], ["goes"]),
    ]
    zero = np.zeros(4, np.float32)
    inside = [_info("k", np.array(0)), _info("going", np.array(True)), _info("sum", zero)]
    graph = helper.make_graph(body, "body", inside, [_info("goes", np.array(True)), _info("more", zero)])
    node = helper.make_node("Loop", ["n", "", "start"], ["y"], body=graph)
    inputs = {"n": np.array(0), "x": X, "list": GOOD, "start": zero}
    return _model([node], {name: _info(name, array) for name, array in inputs.items()}, {"y": TensorProto.FLOAT})


@pytest.mark.parametrize("target", ["native", "opencl"])
def test_branches_and_loops(target: str) -> None:
    NEEDS[target]()
    yes, no, start = np.array(True), np.array(False), np.zeros(4, np.float32)
    exe = tw.compile(_branches(), target, 1)
    np.testing.assert_array_equal(exe(yes, X, GOOD, BAD, np.ones(3, int)), X[GOOD] - 4)
    np.testing.assert_array_equal(exe(no, X, BAD, GOOD, ZEROS), X[GOOD])
    loop = tw.compile(_loop(), target, 1)
    np.testing.assert_array_equal(loop(np.array(3), X, GOOD, start), X[GOOD].sum(0))
    for name, run in {
        "in_then": lambda: exe(yes, X, BAD, GOOD, GOOD + 9),
        "part_in_then": lambda: exe(yes, X, GOOD, GOOD, ZEROS),
        "in_else": lambda: exe(no, X, GOOD, BAD, ZEROS),
        "row_of": lambda: loop(np.array(3), X, BAD, start),
        "pick": lambda: loop(np.array(4), X, GOOD, start),
    }.items():
        with pytest.raises(UserError, match=r"out of range|is zero") as caught:
            run()
        assert f"'{name}'" in str(caught.value.where)


def test_places_that_the_host_finds() -> None:
    """What a run computes on the host is checked too: the check is a segment of its own."""
    nodes = [
        helper.make_node("NonZero", ["c"], ["nz"]),
        helper.make_node("Squeeze", ["nz", "axis"], ["places"]),
        helper.make_node("Gather", ["x", "places"], ["y"], name="by_places"),
    ]
    chosen = np.zeros(8, np.float32)
    axis = helper.make_tensor("axis", TensorProto.INT64, [1], [0])
    inputs = {"c": _info("c", chosen), "x": _info("x", X)}
    exe = tw.compile(_model(nodes, inputs, {"y": TensorProto.FLOAT}, [axis]), threads=1)
    chosen[2] = 1
    np.testing.assert_array_equal(exe(chosen, X), X[[2]])
    chosen[6] = 1
    with pytest.raises(UserError, match=r"the index 6 \(element 1 of the indices\)"):
        exe(chosen, X)


@pytest.mark.parametrize("target", ["opencl", "vulkan", "webgpu"])
def test_results_that_stay_on_a_device(target: str) -> None:
    NEEDS[target]()
    exe = tw.compile(_gather(), target, 1)
    x = exe.to_device(X)
    np.testing.assert_array_equal(exe(x, GOOD).numpy(), X[GOOD])
    wrong = exe(x, BAD)
    with pytest.raises(
        UserError, match=r"the index 7 \(element 1 of the indices\) is out of range for axis 0 of size 5"
    ):
        wrong.numpy()
    np.testing.assert_array_equal(exe(X, GOOD), X[GOOD])


def test_symbolic_sizes_and_variants() -> None:
    exe = tw.compile(_gather(["n", 4]), threads=1, specialize=[{"n": 5}])
    assert [part.first_check for part in (exe.model, *exe.model.variants)] == [0, 1]
    for size in (5, 3):
        rows = X[:size]
        np.testing.assert_array_equal(exe(rows, np.array([0, 1, -size])), rows[[0, 1, -size]])
        with pytest.raises(UserError, match=rf"the index 7 \(element 1 .* axis 0 of size {size}"):
            exe(rows, BAD)


def test_an_empty_axis_has_no_elements() -> None:
    exe = tw.compile(_gather(["n", 4]), threads=1)
    with pytest.raises(UserError, match="the axis is empty"):
        exe(X[:0], GOOD)


PROGRAM = """
#include <stdio.h>
#include "net.h"
int main(void) {
  float x[20] = {0}, y[12];
  int64_t good[3] = {0, 1, -5}, bad[3] = {0, 7, 1};
  void* outputs[] = {y};
  void* fine[] = {x, good};
  void* wrong[] = {x, bad};
  int32_t first = net_run(fine, outputs, 0), second = net_run(wrong, outputs, 0);
  printf("%d|%d|%s|%s|%s", (int)first, (int)second, net_message(first), net_message(second), net_message(99));
  return 0;
}
"""


def test_a_program_in_c_gets_a_code_and_its_meaning(tmp_path: Path, c_compiler: str) -> None:
    tw.compile(_gather(), threads=1).export_library(tmp_path / "net.so")
    (tmp_path / "main.c").write_text(PROGRAM)
    command = [c_compiler, "-Wall", "-Werror", str(tmp_path / "main.c"), str(tmp_path / "net.so"), f"-I{tmp_path}"]
    subprocess.run([*command, f"-Wl,-rpath,{tmp_path}", "-o", str(tmp_path / "main")], check=True)
    done = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True)
    meaning = "node 'rows' (Gather): an index is out of range for axis 0"
    assert done.stdout == f"0|16|no error|{meaning}|an unknown code"


def test_a_loaded_library_says_the_value(tmp_path: Path) -> None:
    tw.compile(_gather(), threads=1).export_library(tmp_path / "net.so")
    with pytest.raises(UserError, match=r"the index 7 \(element 1 of the indices\)"):
        tw.load(tmp_path / "net.so")(X, BAD)
