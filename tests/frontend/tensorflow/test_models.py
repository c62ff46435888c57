"""Models that TensorFlow wrote: SavedModels, graphs of both kinds of control flow, checkpoints; files by any name."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.frontend import from_tensorflow
from tilewright.frontend.formats import identify, model_files
from tilewright.graph.interpreter import evaluate
from tilewright.ir.function import IRModule
from tilewright.support.errors import UnsupportedError, UserError

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "tensorflow"
RECORDED = np.load(FIXTURES / "models.npz")
SAVED = ("network", "lstm", "decoder", "table")
GRAPHS = {
    "frozen.pb": "frozen.pb",
    "text.pbtxt": "text.pbtxt",
    "checkpoint": "checkpoint/model.ckpt.meta",
    "old_checkpoint": "old_checkpoint/model.ckpt.meta",
    "array.pb": "array.pb",
    "branches.pb": "branches.pb",
    "loops.pb": "loops.pb",
}


def recorded(name: str) -> tuple[dict[str, Any], list[Any]]:
    """The inputs by name, and what TensorFlow gave."""
    inputs = {key.split("/")[2]: RECORDED[key] for key in RECORDED.files if key.startswith(f"{name}/input/")}
    inputs = {key: value.astype(object) if value.dtype.kind == "U" else value for key, value in inputs.items()}
    count = sum(key.startswith(f"{name}/output/") for key in RECORDED.files)
    return inputs, [RECORDED[f"{name}/output/{at}"] for at in range(count)]


def run(module: IRModule, inputs: dict[str, Any]) -> list[Any]:
    main: Any = module["main"]
    found = evaluate(module, *(inputs[param.name] for param in main.params))
    return list(found) if isinstance(found, (list, tuple)) else [found]


def assert_same(results: list[Any], expected: list[Any]) -> None:
    assert len(results) == len(expected)
    for ours, theirs in zip(results, expected, strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", SAVED)
def test_saved_model(name: str) -> None:
    inputs, expected = recorded(name)
    assert_same(run(from_tensorflow(FIXTURES / name), inputs), expected)


@pytest.mark.parametrize("name", GRAPHS)
def test_graph(name: str) -> None:
    inputs, expected = recorded(name)
    assert_same(run(from_tensorflow(FIXTURES / GRAPHS[name]), inputs), expected)


@pytest.mark.parametrize("name", ["network", "decoder", "loops.pb"])
def test_compiled(name: str) -> None:
    inputs, expected = recorded(name)
    exe = tw.compile(FIXTURES / name, threads=1)
    assert_same(exe.run(inputs), expected)


def test_open_lengths_are_symbols() -> None:
    inputs, _ = recorded("lstm")
    ((name, data),) = inputs.items()
    module = from_tensorflow(FIXTURES / "lstm")
    longer = np.concatenate([data, data, data], axis=1)
    assert run(module, {name: longer})[0].shape == (2, 15, 4)
    fixed = from_tensorflow(FIXTURES / "lstm", shapes={name: (1, 5, 3)})
    assert run(fixed, {name: data[:1]})[0].shape == (1, 5, 4)


def test_names_and_signatures() -> None:
    module = from_tensorflow(FIXTURES / "decoder")
    assert module.attributes["output_names"] == ("state", "steps", "tokens")
    with pytest.raises(UserError, match="no signature 'train'"):
        from_tensorflow(FIXTURES / "decoder", signature="train")
    with pytest.raises(UserError, match=r"no graph with the tags \['gpu'\]"):
        from_tensorflow(FIXTURES / "decoder", tags=["gpu"])


def test_outputs_of_a_graph_can_be_named() -> None:
    inputs, _ = recorded("frozen.pb")
    module = from_tensorflow(FIXTURES / "frozen.pb", outputs=["Relu"])
    assert run(module, inputs)[0].min() >= 0
    below = from_tensorflow(FIXTURES / "frozen.pb", inputs=["Relu"], outputs=["chances"], shapes={"Relu": (2, 8, 8, 4)})
    assert run(below, {"Relu": run(module, inputs)[0]})[0].shape == (2, 6)
    with pytest.raises(UserError, match="no node 'logits'"):
        from_tensorflow(FIXTURES / "frozen.pb", outputs=["logits"])


@pytest.mark.parametrize("name", [*SAVED, *GRAPHS.values()])
def test_recognised_by_content(name: str, tmp_path: Path) -> None:
    source = FIXTURES / name
    if source.is_dir():
        copy = shutil.copytree(source, tmp_path / "any")
        assert identify(copy).key == identify(copy / "saved_model.pb").key == "tensorflow"
        assert set(model_files(copy, identify(copy)) or ()) == {path for path in copy.rglob("*") if path.is_file()}
    else:
        copy = shutil.copy(source, tmp_path / "any.bin")
        assert identify(copy).key == "tensorflow"


def test_files_beside_a_meta_graph() -> None:
    path = FIXTURES / "checkpoint" / "model.ckpt.meta"
    found = model_files(path, identify(path)) or []
    assert [item.name for item in found] == [path.name, "model.ckpt.data-00000-of-00001", "model.ckpt.index"]


def test_a_checkpoint_without_a_graph(tmp_path: Path) -> None:
    shutil.copy(FIXTURES / "checkpoint" / "model.ckpt.index", tmp_path)
    with pytest.raises(UserError, match="it has variables and no graph"):
        from_tensorflow(tmp_path / "model.ckpt.index")


def test_variables_that_are_missing(tmp_path: Path) -> None:
    copy = shutil.copytree(FIXTURES / "network", tmp_path / "network")
    shutil.rmtree(copy / "variables")
    with pytest.raises(UserError, match=r"the variable '.*' has no value"):
        from_tensorflow(copy)


def test_a_shard_that_is_cut_short(tmp_path: Path) -> None:
    copy = shutil.copytree(FIXTURES / "network", tmp_path / "network")
    shard = copy / "variables" / "variables.data-00000-of-00001"
    shard.write_bytes(shard.read_bytes()[:100])
    with pytest.raises(UserError, match="lies behind the end"):
        from_tensorflow(copy)


def test_an_asset_outside_of_the_folder(tmp_path: Path) -> None:
    from tilewright.frontend.tensorflow.schema import SCHEMA

    copy = shutil.copytree(FIXTURES / "table", tmp_path / "table")
    message = SCHEMA.read("SavedModel", (copy / "saved_model.pb").read_bytes(), "")
    message.meta_graphs[0].asset_file_def[0].filename = "../../secret.txt"
    (copy / "saved_model.pb").write_bytes(message.SerializeToString())
    with pytest.raises(UserError, match="outside of its folder"):
        from_tensorflow(copy)


def test_unknown_operators_are_named() -> None:
    from tests.frontend.tensorflow.graphs import graph

    content = graph(("x", "Placeholder", [], {"dtype": 1, "shape": [2]}), ("y", "Frobnicate", ["x"], {}))
    with pytest.raises(UnsupportedError, match="the operator Frobnicate is not supported") as error:
        from_tensorflow(content)
    assert "'y' (Frobnicate)" in str(error.value.where)
