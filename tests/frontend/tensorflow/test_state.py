"""Variables: constants that a run may assign, and what would have to last until the next run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.frontend.tensorflow.graphs import NodeText, graph, nodes_of
from tilewright.frontend import from_tensorflow
from tilewright.frontend.tensorflow.schema import SCHEMA
from tilewright.graph.interpreter import evaluate
from tilewright.support.errors import UnsupportedError, UserError

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "tensorflow"
ONES = np.ones(4, np.float32)


def with_nodes(folder: Path, *nodes: NodeText) -> Path:
    """The meta graph of the fixtures, whose variable `bias` has a value, with more nodes."""
    copy = shutil.copytree(FIXTURES / "checkpoint", folder / "copy")
    path = copy / "model.ckpt.meta"
    message = SCHEMA.read("MetaGraph", path.read_bytes(), "")
    nodes_of(message.graph_def.node, nodes)
    path.write_bytes(message.SerializeToString())
    return path


def run(content: Any, *inputs: Any, outputs: list[str]) -> Any:
    return evaluate(from_tensorflow(content, inputs=[f"x{at}" for at in range(len(inputs))], outputs=outputs), *inputs)


X: NodeText = ("x0", "Placeholder", [], {"dtype": 1, "shape": [4]})


def test_a_run_reads_what_it_has_assigned() -> None:
    content = graph(
        X,
        ("v", "VarHandleOp", [], {"shared_name": "v"}),
        ("first", "AssignVariableOp", ["v", "x0"], {}),
        ("c", "Const", [], {"value": ONES}),
        ("second", "AssignAddVariableOp", ["v", "c", "^first"], {}),
        ("third", "AssignSubVariableOp", ["v", "x0", "^second"], {}),
        ("r", "ReadVariableOp", ["v", "^third"], {}),
        ("size", "VariableShape", ["v", "^third"], {}),
    )
    read, size = run(content, ONES * 5, outputs=["r", "size"])
    assert read.tolist() == [1, 1, 1, 1]
    assert size.tolist() == [4]


def test_references_of_old_graphs() -> None:
    content = graph(
        X,
        ("v", "VariableV2", [], {"shared_name": "v"}),
        ("set", "Assign", ["v", "x0"], {}),
        ("more", "AssignAdd", ["set", "x0"], {}),
        ("y", "Mul", ["more", "x0"], {}),
    )
    assert run(content, ONES * 3, outputs=["y"]).tolist() == [18, 18, 18, 18]


def test_rows_of_variables() -> None:
    content = graph(
        X,
        ("v", "VarHandleOp", [], {"shared_name": "v"}),
        ("first", "AssignVariableOp", ["v", "x0"], {}),
        ("at", "Const", [], {"value": np.array([1, 3], np.int32)}),
        ("by", "Const", [], {"value": np.array([5, 7], np.float32)}),
        ("second", "ResourceScatterUpdate", ["v", "at", "by", "^first"], {}),
        ("third", "ResourceScatterAdd", ["v", "at", "by", "^second"], {}),
        ("rows", "ResourceGather", ["v", "at", "^third"], {}),
        ("all", "ReadVariableOp", ["v", "^third"], {}),
    )
    rows, whole = run(content, ONES, outputs=["rows", "all"])
    assert rows.tolist() == [10, 14]
    assert whole.tolist() == [1, 10, 1, 14]


def test_state_that_would_have_to_last(tmp_path: Path) -> None:
    path = with_nodes(
        tmp_path,
        ("ones", "Const", [], {"value": ONES}),
        ("count", "AssignAddVariableOp", ["bias", "ones"], {}),
        ("after", "ReadVariableOp", ["bias", "^count"], {}),
    )
    with pytest.raises(UnsupportedError, match="the variable 'bias' is read and then assigned") as error:
        from_tensorflow(path, inputs=[], outputs=["after"])
    assert "an input and an output" in str(error.value.hint)


def test_state_that_is_only_written(tmp_path: Path) -> None:
    path = with_nodes(
        tmp_path,
        ("ones", "Const", [], {"value": ONES}),
        ("set", "AssignVariableOp", ["bias", "ones"], {}),
        ("after", "ReadVariableOp", ["bias", "^set"], {}),
    )
    assert evaluate(from_tensorflow(path, inputs=[], outputs=["after"])).tolist() == [1, 1, 1, 1]  # type: ignore[union-attr]


def test_a_variable_without_a_value() -> None:
    content = graph(X, ("v", "VarHandleOp", [], {"shared_name": "v"}), ("r", "ReadVariableOp", ["v"], {}))
    with pytest.raises(UserError, match="the variable 'v' has no value"):
        run(content, ONES, outputs=["r"])


def test_tables_of_constants() -> None:
    content = graph(
        ("x0", "Placeholder", [], {"dtype": 9, "shape": [3]}),
        ("t", "HashTableV2", [], {"shared_name": "t"}),
        ("k", "Const", [], {"value": np.array([4, 9], np.int64)}),
        ("v", "Const", [], {"value": np.array([40, 90], np.int64)}),
        ("d", "Const", [], {"value": np.array(-1, np.int64)}),
        ("fill", "LookupTableImportV2", ["t", "k", "v"], {}),
        ("y", "LookupTableFindV2", ["t", "x0", "d", "^fill"], {"Tout": 9}),
        ("n", "LookupTableSizeV2", ["t", "^fill"], {}),
    )
    found, count = run(content, np.array([9, 5, 4]), outputs=["y", "n"])
    assert found.tolist() == [90, -1, 40]
    assert count == 2


@pytest.mark.parametrize(
    ("operator", "said"),
    [
        ("ReluGrad", "training"),
        ("DecodeJpeg", "decodes a file"),
        ("Lgamma", "statistics"),
        ("_FusedMatMul", "one machine"),
    ],
)
def test_refusals_say_why(operator: str, said: str) -> None:
    with pytest.raises(UnsupportedError, match=said) as error:
        run(graph(X, ("y", operator, ["x0"], {})), ONES, outputs=["y"])
    assert error.value.hint


def test_placeholders_with_a_default() -> None:
    content = graph(
        ("c", "Const", [], {"value": ONES}), ("p", "PlaceholderWithDefault", ["c"], {"dtype": 1, "shape": [4]}),
        X, ("y", "AddV2", ["p", "x0"], {}),
    )  # fmt: skip
    assert run(content, ONES, outputs=["y"]).tolist() == [2, 2, 2, 2]
    module = from_tensorflow(content, inputs=["x0", "p"], outputs=["y"])
    assert evaluate(module, ONES, ONES * 3).tolist() == [4, 4, 4, 4]  # type: ignore[union-attr]
