"""PaddlePaddle models against what its own predictor gave, in both formats of programs, and against damaged files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.frontend.formats import identify, model_files
from tilewright.frontend.paddle.schema import SCHEMA
from tilewright.graph.interpreter import evaluate
from tilewright.support.errors import UnsupportedError, UserError

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "paddle"
PROGRAMS = sorted(path for path in FOLDER.iterdir() if path.suffix in (".json", ".pdmodel"))


def run(path: Path | bytes, inputs: dict[str, Any], **options: Any) -> list[Any]:
    module = tw.load_model(path, **options)
    main: Any = module["main"]
    result = evaluate(module, *(inputs[param.name] for param in main.params))
    return list(result) if isinstance(result, tuple) else [result]


def compare(found: list[Any], stored: Any) -> None:
    expected = [stored[f"y{at}"] for at in range(len(found))]
    assert f"y{len(found)}" not in stored
    for ours, theirs in zip(found, expected, strict=True):
        assert np.asarray(ours).dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_models_give_what_paddle_gives(path: Path) -> None:
    stored = np.load(path.with_suffix(".npz"))
    compare(run(path, dict(stored)), stored)


def test_a_compiled_model_takes_any_batch() -> None:
    path = FOLDER / "network.json"
    stored = np.load(path.with_suffix(".npz"))
    executable = tw.compile(path, threads=1)
    compare(executable.run({"x0": stored["x0"]}), stored)
    assert executable.run({"x0": stored["x0"][:1]})[0].shape == (1, 5)
    main: Any = tw.load_model(path, shapes={"x0": (2, 3, 12, 12)})["main"]
    assert main.params[0].type.static_shape == (2, 3, 12, 12)


def test_any_file_or_the_folder_names_a_model(tmp_path: Path) -> None:
    for suffix in (".json", ".pdiparams"):
        shutil.copy((FOLDER / "network").with_suffix(suffix), tmp_path / f"inference{suffix}")
    stored = np.load(FOLDER / "network.npz")
    for path in (tmp_path, tmp_path / "inference.pdiparams", tmp_path / "inference.json"):
        assert identify(path).key == "paddle"
        compare(run(path, dict(stored)), stored)
    program = tmp_path / "inference.json"
    assert model_files(program, identify(program)) == [program, tmp_path / "inference.pdiparams"]


def test_the_old_layout_of_one_file_a_parameter(tmp_path: Path) -> None:
    shutil.copy(FOLDER / "network_old.pdmodel", tmp_path / "__model__")
    content = (FOLDER / "network_old.pdiparams").read_bytes()
    program = SCHEMA.read("Program", (tmp_path / "__model__").read_bytes(), "")
    names = sorted(item.name for item in program.blocks[0].vars if item.persistable and item.type.type == 7)
    from tilewright.frontend.paddle.parameters import _Reader

    reader = _Reader(content, "")
    for name in names:
        start = reader.at
        reader.tensor(name)
        (tmp_path / name).write_bytes(content[start : reader.at])
    stored = np.load(FOLDER / "network_old.npz")
    compare(run(tmp_path, dict(stored)), stored)
    (tmp_path / names[0]).unlink()
    with pytest.raises(UserError, match="has no file in"):
        tw.load_model(tmp_path)


def program(*operators: tuple[str, dict[str, list[str]], dict[str, list[str]], dict[str, Any]], **more: Any) -> bytes:
    """A program of PaddlePaddle 2 of one input x and one output y."""
    message = SCHEMA.message("Program")()
    block = message.blocks.add(idx=0, parent_idx=-1)
    for name in ("x", "y", "n"):
        variable = block.vars.add(name=name)
        variable.type.type = 7
        variable.type.lod_tensor.tensor.data_type = 5
        variable.type.lod_tensor.tensor.dims.extend([2, 3])
    feed = ("feed", {}, {"Out": ["x"]}, {"col": 0})
    fetch = ("fetch", {"X": ["y"]}, {}, {"col": 0})
    blocks = [(block, [feed, *operators, fetch])]
    for inner in more.get("blocks", ()):
        blocks.append((message.blocks.add(idx=len(message.blocks), parent_idx=0), inner))
    for place, items in blocks:
        for kind, inputs, outputs, attributes in items:
            operator = place.ops.add(type=kind)
            for groups, listed in ((operator.inputs, inputs), (operator.outputs, outputs)):
                for parameter, names in listed.items():
                    groups.add(parameter=parameter, arguments=names)
            for key, value in attributes.items():
                item = operator.attrs.add(name=key)
                if key == "sub_block":
                    item.type, item.block_idx = 8, value
                elif isinstance(value, float):
                    item.type, item.f = 1, value
                elif isinstance(value, list):
                    item.type = 3
                    item.ints.extend(value)
                else:
                    item.type, item.i = 0, value
    return bytes(message.SerializeToString())


def test_branches_by_variables() -> None:
    """Two blocks, of which one runs, and a choice among what they wrote."""
    content = program(
        ("reduce_sum", {"X": ["x"]}, {"Out": ["total"]}, {"reduce_all": 1}),
        ("fill_constant", {}, {"Out": ["zero"]}, {"shape": [], "value": 0.0, "dtype": 5}),
        ("greater_than", {"X": ["total"], "Y": ["zero"]}, {"Out": ["above"]}, {}),
        ("logical_not", {"X": ["above"]}, {"Out": ["below"]}, {}),
        ("cast", {"X": ["above"]}, {"Out": ["mask"]}, {"in_dtype": 0, "out_dtype": 2}),
        ("conditional_block", {"Cond": ["above"]}, {"Out": ["a"]}, {"sub_block": 1}),
        ("conditional_block", {"Cond": ["below"]}, {"Out": ["b"]}, {"sub_block": 2}),
        ("select_input", {"X": ["b", "a"], "Mask": ["mask"]}, {"Out": ["y"]}, {}),
        blocks=[
            [("scale", {"X": ["x"]}, {"Out": ["a"]}, {"scale": 2.0})],
            [("scale", {"X": ["x"]}, {"Out": ["b"]}, {"scale": -1.0})],
        ],
    )
    ones = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(run(content, {"x": ones})[0], 2 * ones)
    np.testing.assert_array_equal(run(content, {"x": -ones})[0], ones)


def test_operands_begin_at_an_axis() -> None:
    content = program(
        ("fill_constant", {}, {"Out": ["c"]}, {"shape": [2], "value": 3.0, "dtype": 5}),
        ("elementwise_mul", {"X": ["x"], "Y": ["c"]}, {"Out": ["y"]}, {"axis": 0}),
    )
    np.testing.assert_array_equal(run(content, {"x": np.ones((2, 3), np.float32)})[0], np.full((2, 3), 3.0))


def test_errors_name_the_operator() -> None:
    with pytest.raises(UnsupportedError, match="the operator strange is not supported") as found:
        tw.load_model(program(("strange", {"X": ["x"]}, {"Out": ["y"]}, {})))
    assert "'y' (strange)" in str(found.value.where)
    with pytest.raises(UserError, match="nothing produces its input 'z'"):
        tw.load_model(program(("relu", {"X": ["z"]}, {"Out": ["y"]}, {})))
    with pytest.raises(UserError, match="does not follow its own"):
        tw.load_model(program(("while", {"Condition": ["x"]}, {"Out": ["y"]}, {"sub_block": 0})))


def test_files_that_do_not_belong_together(tmp_path: Path) -> None:
    shutil.copy(FOLDER / "network.json", tmp_path / "a.json")
    with pytest.raises(UserError, match=r"the parameters of .* are not there"):
        tw.load_model(tmp_path / "a.json")
    content = (FOLDER / "network.pdiparams").read_bytes()
    for damaged, said in (
        (content[:-4], "ends within a tensor"),
        (content + b"1234", "4 bytes more"),
        (b"\x01" + content[1:], "holds no tensor for"),
    ):
        (tmp_path / "a.pdiparams").write_bytes(damaged)
        with pytest.raises(UserError, match=said):
            tw.load_model(tmp_path / "a.json")
    with pytest.raises(UserError, match="parameters, which are in another file"):
        tw.load_model((FOLDER / "network.json").read_bytes())
    (tmp_path / "b.pdiparams").write_bytes(content)
    with pytest.raises(UserError, match="no program is beside it"):
        tw.load_model(tmp_path / "b.pdiparams", format="paddle")


def test_damaged_programs() -> None:
    document = json.loads((FOLDER / "gather.json").read_text())
    del document["program"]["regions"]
    with pytest.raises(UserError, match=r"no program of PaddlePaddle 3, or it is damaged"):
        tw.load_model(json.dumps(document).encode())
    with pytest.raises(UserError, match="is damaged"):
        tw.load_model((FOLDER / "gather_old.pdmodel").read_bytes()[:-3], format="paddle")


@pytest.mark.parametrize("column", [[0], 0.5])
def test_places_of_inputs_and_outputs_are_numbers(column: object) -> None:
    with pytest.raises(UserError, match=r"the attribute 'col' of fetch is .*, not a number"):
        tw.load_model(program(("fetch", {"X": ["y"]}, {}, {"col": column})), format="paddle")
