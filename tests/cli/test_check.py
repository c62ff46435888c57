"""`tilewright check` and `tilewright reduce`: agreement, faults put into converters, crashes, the messages."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.integration import small_models
from tilewright.cli import check, reduce
from tilewright.cli.main import main
from tilewright.cli.onnx_models import (
    cut_out,
    fix_shapes,
    make_inputs,
    model_inputs,
    names_read,
    parse_sizes,
    record_values,
    size_choices,
)
from tilewright.cli.trial import ONE_THREAD, Failure, Trial, attempt, difference
from tilewright.cli.trial_process import TrialProcess
from tilewright.frontend.onnx import registry
from tilewright.frontend.onnx.registry import Entry
from tilewright.support.errors import UnsupportedError, UserError

Captured = pytest.CaptureFixture[str]


def chain() -> onnx.ModelProto:
    """Ten nodes in two branches; the Tanh is the one that tests break."""
    steps = ["Sigmoid", "Neg", "Exp", "Abs", "Tanh", "Softplus", "Relu"]
    nodes = [
        helper.make_node(kind, [f"v{i}" if i else "x"], [f"v{i + 1}"], name=f"{kind.lower()}_{i}")
        for i, kind in enumerate(steps)
    ]
    nodes += [
        helper.make_node("Mul", ["x", "x"], ["square"], name="square"),
        helper.make_node("Add", ["v7", "square"], ["sum"], name="sum"),
        helper.make_node("LeakyRelu", ["sum"], ["y"], name="last", alpha=0.2),
    ]
    return small_models.model(
        nodes, {"x": (TensorProto.FLOAT, [2, 3])}, {"y": (TensorProto.FLOAT, [2, 3]), "v7": (TensorProto.FLOAT, None)}
    )


@pytest.fixture
def broken_tanh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tanh comes out as a sine."""
    entry = Entry(1, 1 << 30, lambda node: node.call("sin", node.input(0)))
    monkeypatch.setitem(registry._TABLE, ("", "Tanh"), [entry])


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    onnx.save(chain(), tmp_path / "chain.onnx")
    return tmp_path / "chain.onnx"


def options(**changes: object) -> argparse.Namespace:
    given = {"sizes": [], "seed": 0, "tolerance": 1e-3, "target": None, **changes}
    return argparse.Namespace(**given)


def test_a_good_model_passes(model_file: Path, capsys: Captured) -> None:
    assert main(["check", str(model_file)]) == 0
    text = capsys.readouterr().out
    assert "fixed  y" in text
    assert "differs" not in text


def test_open_dimensions_take_several_sizes(tmp_path: Path, capsys: Captured) -> None:
    node = helper.make_node("MatMul", ["x", "x"], ["y"])
    kind = (TensorProto.FLOAT, ["n", "n"])
    onnx.save(small_models.model([node], {"x": kind}, {"y": kind}), tmp_path / "m.onnx")
    assert main(["check", str(tmp_path / "m.onnx"), "--sizes", "n=1,4"]) == 0
    text = capsys.readouterr().out
    assert "n=1" in text
    assert "4x4" in text


@pytest.mark.usefixtures("broken_tanh")
def test_the_node_at_fault_is_named(model_file: Path, capsys: Captured) -> None:
    assert main(["check", str(model_file)]) == 4
    text = capsys.readouterr().out
    assert "differs" in text
    assert "the first difference: node 'tanh_4' (Tanh), output 'v5'" in text
    assert "its meaning is at fault" in text


def run_right(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> list[Any]:
    return check.run_here(model, inputs, "native", ONE_THREAD)


def test_wrong_compiled_code_is_told_from_wrong_meaning() -> None:
    def run_wrong(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> list[Any]:
        names = [info.name for info in model.graph.output]
        return [
            value + 1 if name in ("v5", "v6") else value
            for name, value in zip(names, run_right(model, inputs), strict=True)
        ]

    fault = check.find_fault(chain(), {"x": np.ones((2, 3), np.float32)}, 1e-3, run_wrong)
    assert fault is not None
    assert (fault.name, fault.stage[:17]) == ("tanh_4", "the compiled code")


def test_faults_that_need_their_neighbours_are_searched_for() -> None:
    late = {"v4", "v5", "v6", "v7", "sum", "y"}

    def run_wrong(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> list[Any]:
        results = run_right(model, inputs)
        if len(results) == 1 and model.graph.output[0].name in late:
            return [results[0] + 1]
        return results

    fault = check.find_fault(chain(), {"x": np.ones((2, 3), np.float32)}, 1e-3, run_wrong)
    assert fault is not None
    assert fault.name == "abs_3"
    assert "together with those before it" in fault.text()
    late.clear()
    assert check.find_fault(chain(), {"x": np.ones((2, 3), np.float32)}, 1e-3, run_wrong) is None


@pytest.mark.usefixtures("broken_tanh")
def test_a_mismatch_is_reduced_to_its_node(model_file: Path, tmp_path: Path, capsys: Captured) -> None:
    small = tmp_path / "small.onnx"
    assert main(["reduce", str(model_file), "-o", str(small), "--in-process"]) == 0
    text = capsys.readouterr().out
    assert "mismatch: the error is" in text
    assert "1 node of 10, fails in the same way" in text
    found = onnx.load(small)
    assert [node.op_type for node in found.graph.node] == ["Tanh"]
    with np.load(small.with_suffix(".npz")) as inputs:
        assert list(inputs) == ["v4"]


def test_an_error_is_reduced_by_its_message(model_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(node: object) -> None:
        raise UnsupportedError("no LeakyRelu today")

    monkeypatch.setitem(registry._TABLE, ("", "LeakyRelu"), [Entry(1, 1 << 30, refuse)])
    small, inputs, failure = reduce.reduce_model(chain(), options(), ONE_THREAD, attempt)
    assert failure == Failure("error", "no LeakyRelu today")
    assert [node.op_type for node in small.graph.node] == ["LeakyRelu"]
    assert not small.graph.node[0].attribute  # it fails without its attribute too
    assert list(inputs) == ["sum"]


def test_a_crash_is_a_failure_and_the_next_trial_has_a_new_process() -> None:
    process = TrialProcess()
    try:
        trial = Trial(chain().SerializeToString(), {"x": np.ones((2, 3), np.float32)}, [])
        assert process.attempt(Trial(b"", {}, [])) == Failure("error", "the bytes: the file is empty")
        assert process.child is not None
        os.kill(process.child.pid, 9)
        found = process.attempt(trial)
        assert found is not None
        assert found.signature == "crash"
        again = process.attempt(trial)
        assert again is not None
        assert again.kind == "mismatch"  # two outputs, none expected
        process.longest = 0.0
        assert process.attempt(trial) == Failure("hang", "no result after 0 s")
    finally:
        process.stop()


def test_a_model_that_does_not_fail(model_file: Path, tmp_path: Path, capsys: Captured) -> None:
    assert main(["reduce", str(model_file), "-o", str(tmp_path / "s.onnx"), "--in-process"]) == 1
    assert "the model does not fail" in capsys.readouterr().err
    assert not (tmp_path / "s.onnx").exists()


def test_missing_and_damaged_files(tmp_path: Path, capsys: Captured) -> None:
    assert main(["check", str(tmp_path / "none.onnx")]) == 1
    assert "there is no file" in capsys.readouterr().err
    (tmp_path / "bad.onnx").write_bytes(b"\xff" * 20)
    assert main(["check", str(tmp_path / "bad.onnx")]) == 1
    assert "is not an ONNX model, or it is damaged" in capsys.readouterr().err


def test_weights_that_are_not_there(tmp_path: Path, capsys: Captured) -> None:
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in ("x", "y")]
    weights = [onnx.numpy_helper.from_array(np.ones(3, np.float32), "w")]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    path = tmp_path / "split.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert main(["check", str(path)]) == 0
    capsys.readouterr()
    (tmp_path / "weights.bin").unlink()
    assert main(["check", str(path)]) == 1
    assert f"cannot read the weights of {path}" in capsys.readouterr().err


def test_the_small_model_does_not_replace_the_large_one(model_file: Path, capsys: Captured) -> None:
    before = model_file.read_bytes()
    assert main(["reduce", str(model_file), "-o", str(model_file), "--in-process"]) == 1
    assert f"{model_file} is the model itself" in capsys.readouterr().err
    assert model_file.read_bytes() == before


@pytest.mark.parametrize("tolerance", ["-1", "0", "nan", "inf", "little"])
def test_a_tolerance_is_a_number_above_0(tolerance: str, model_file: Path, capsys: Captured) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["check", str(model_file), f"--tolerance={tolerance}"])
    assert f"'{tolerance}' is not a number above 0" in capsys.readouterr().err


def test_minimize_keeps_what_fails_together() -> None:
    seen = []

    def fails(items: list[int]) -> bool:
        seen.append(len(items))
        return 3 in items and 17 in items

    assert reduce.minimize(range(40), fails) == [3, 17]
    assert len(seen) < 60


def test_sizes() -> None:
    kind = (TensorProto.FLOAT, ["batch", "length", None])
    model = small_models.model([], {"x": kind}, {})
    inputs = model_inputs(model)
    assert inputs[0].dims == ("batch", "length", "x[2]")
    choices = size_choices(inputs, parse_sizes(["batch=1,4"]))
    assert [choice["batch"] for choice in choices] == [1, 4, 1]
    assert all(choice["length"] != choice["x[2]"] for choice in choices)
    with pytest.raises(UserError, match="no open dimension 'z'"):
        size_choices(inputs, {"z": (1,)})
    with pytest.raises(UserError, match="gives no sizes"):
        parse_sizes(["batch"])


def test_shapes_fix_open_dimensions_wherever_they_are() -> None:
    kinds = {"x": (TensorProto.FLOAT, ["batch", 3, None]), "y": (TensorProto.FLOAT, ["batch", "length"])}
    model = small_models.model([], kinds, {})
    fixed = fix_shapes(model, {"x": (4, 3, 7)})
    assert [item.dims for item in model_inputs(fixed)] == [(4, 3, 7), (4, "length")]
    assert model_inputs(model)[0].dims == ("batch", 3, "x[2]")
    assert fix_shapes(model, {}) is model
    for shapes, message in (
        ({"z": (1,)}, "the model has no input 'z'"),
        ({"x": (4, 3)}, r"the input 'x' is \(batch, 3, x\[2\]\), not \(4, 3\)"),
        ({"x": (4, 5, 7)}, r"not \(4, 5, 7\)"),
        ({"x": (4, 3, 7), "y": (5, 1)}, r"the input 'y' is \(batch, length\), not \(5, 1\)"),
    ):
        with pytest.raises(UserError, match=message):
            fix_shapes(model, shapes)


def test_a_model_is_checked_as_it_is_compiled(tmp_path: Path, capsys: Captured) -> None:
    node = helper.make_node("MatMul", ["x", "x"], ["y"])
    kind = (TensorProto.FLOAT, ["n", "n"])
    path = tmp_path / "m.onnx"
    onnx.save(small_models.model([node], {"x": kind}, {"y": kind}), path)
    words = ["check", str(path), "--shape", "x=96,96"]
    assert main(words) == 0
    assert "fixed  y       96x96" in capsys.readouterr().out
    # Products of halves differ from those of floats.
    assert main([*words, "--precision", "float16", "--tolerance", "1e-6"]) == 4
    assert "differs" in capsys.readouterr().out
    assert main(["check", str(path), "--sizes", "n=4,5", "--specialize", "n=4"]) == 0


def test_inputs_that_cannot_be_made_up() -> None:
    for info, message in (
        (helper.make_tensor_value_info("x", TensorProto.FLOAT, None), "how many dimensions the input 'x' has"),
        (helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, None), "the input 'x' is no tensor"),
    ):
        graph = helper.make_graph([], "g", [info], [])
        with pytest.raises(UserError, match=message):
            model_inputs(helper.make_model(graph))


def test_inputs_fit_the_tables_they_pick_from() -> None:
    nodes = [
        helper.make_node("Unsqueeze", ["ids", "zero"], ["wide"]),
        helper.make_node("Gather", ["table", "wide"], ["picked"]),
    ]
    inputs = {
        "ids": (TensorProto.INT64, [50]),
        "attention_mask": (TensorProto.INT64, [50]),
        "bytes": (TensorProto.INT8, [500]),
        "words": (TensorProto.STRING, [4]),
        "flags": (TensorProto.BOOL, [4]),
    }
    weights = {"table": np.zeros((3, 2), np.float32), "zero": np.array([0])}
    model = small_models.model(nodes, inputs, {"picked": (TensorProto.FLOAT, None)}, weights)
    values = make_inputs(model, model_inputs(model), {}, np.random.default_rng(0))
    assert set(values["ids"].tolist()) == {0, 1, 2}
    assert set(values["attention_mask"].tolist()) == {0, 1}
    assert values["bytes"].min() < -100
    assert all(isinstance(word, str) for word in values["words"])


@pytest.mark.parametrize(
    ("operator", "indices", "updates", "attributes", "expected"),
    [
        ("Gather", [99], None, {"axis": 1}, range(3)),
        ("GatherElements", [4, 99], None, {"axis": -1}, range(3)),
        ("GatherElements", ["n", 3], None, {}, range(4)),
        ("GatherND", [99, 1], None, {}, range(4)),
        ("GatherND", [99, 2], None, {}, range(3)),
        ("GatherND", [4, 99, 1], None, {"batch_dims": 1}, range(3)),
        ("ScatterElements", [4, 3], [4, 3], {"axis": 1, "reduction": "add"}, range(3)),
        ("ScatterND", [99, 1], [99, 3], {"reduction": "add"}, range(4)),
        ("ReverseSequence", [3], None, {"time_axis": 0, "batch_axis": 1}, range(1, 5)),
    ],
)
def test_indices_fit_what_they_pick_from(
    operator: str,
    indices: list[int | str],
    updates: list[int] | None,
    attributes: dict[str, object],
    expected: range,
    tmp_path: Path,
) -> None:
    """The data is computed from an input of an open size: what is picked from may be known only in a run."""
    names = ["turned", "indices", *(["updates"] if updates else [])]
    nodes = [
        helper.make_node("Transpose", ["x"], ["turned"]),
        helper.make_node(operator, names, ["y"], name="it", **attributes),
    ]
    inputs = {"x": (TensorProto.FLOAT, [3, "n"]), "indices": (TensorProto.INT64, indices)}
    if updates:
        inputs["updates"] = (TensorProto.FLOAT, updates)
    model = small_models.model(nodes, inputs, {"y": (TensorProto.FLOAT, None)})
    values = make_inputs(model, model_inputs(model), {"n": 4}, np.random.default_rng(0))
    assert set(values["indices"].reshape(-1).tolist()) <= set(expected)
    assert values["indices"].size < 50 or set(values["indices"].reshape(-1).tolist()) == set(expected)
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    assert main(["check", str(path), "--sizes", "n=4"]) == 0


def test_lengths_of_sequences_fit() -> None:
    inputs = {"x": (TensorProto.FLOAT, ["steps", 64, 2]), "lengths": (TensorProto.INT32, [64])}
    weights = {name: np.ones((1, 3, size), np.float32) for name, size in (("w", 2), ("r", 3))}
    node = helper.make_node("RNN", ["x", "w", "r", "", "lengths"], ["y"], hidden_size=3)
    model = small_models.model([node], inputs, {"y": (TensorProto.FLOAT, None)}, weights)
    values = make_inputs(model, model_inputs(model), {"steps": 3}, np.random.default_rng(0))
    assert set(values["lengths"].tolist()) == {1, 2, 3}


def test_parts_of_models_with_graphs_inside() -> None:
    then, other = (
        helper.make_graph(
            [helper.make_node(kind, ["a"], [kind])], kind, [], [helper.make_empty_tensor_value_info(kind)]
        )
        for kind in ("Neg", "Abs")
    )
    nodes = [
        helper.make_node("Exp", ["x"], ["a"]),
        helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other),
    ]
    kinds = {"x": (TensorProto.FLOAT, [2]), "c": (TensorProto.BOOL, [])}
    model = small_models.model(nodes, kinds, {"y": (TensorProto.FLOAT, [2])})
    assert names_read(model.graph.node[1]) == ["c", "a"]
    values = record_values(model, {"x": np.ones(2, np.float32), "c": np.array(True)})
    part = cut_out(model, [1], values)
    assert part is not None
    assert sorted(part[1]) == ["a", "c"]
    del values["a"]
    assert cut_out(model, [1], values) is None


def test_differences() -> None:
    ones = np.ones(3, np.float32)
    assert difference(ones, ones) == 0
    assert difference(ones * 1.01, ones) == pytest.approx(0.01, rel=1e-3)
    assert difference(ones, ones.astype(np.float64)) == np.inf
    assert difference(ones, ones[:2]) == np.inf
    assert difference(np.array([np.nan, 1.0]), np.array([np.nan, 1.0])) == 0
    assert difference(np.array([np.nan, 1.0]), np.array([np.inf, 1.0])) == np.inf
    assert difference(np.array([1, 2], np.uint8), np.array([1, 3], np.uint8)) == 0
    assert difference(np.array([1, 2]), np.array([1, 3])) == np.inf
    assert difference([ones], [ones, ones]) == np.inf
    assert difference([ones, None], [ones, None]) == 0
    assert difference(np.array(["a"], object), np.array(["b"], object)) == np.inf
