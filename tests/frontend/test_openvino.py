"""OpenVINO models against what its CPU plugin gave, and against damaged and hostile documents."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.frontend.core.builder import Builder
from tilewright.frontend.formats import identify, model_files
from tilewright.frontend.openvino.types import stored_tensor
from tilewright.frontend.openvino.xml import parse
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Constant
from tilewright.support.errors import UnsupportedError, UserError

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "openvino"
MODELS = sorted(FOLDER.glob("*.xml"))


def run(source: Any, inputs: Any) -> list[Any]:
    module = tw.load_model(source)
    main: Any = module["main"]
    result = evaluate(module, *(inputs[param.name] for param in main.params))
    return list(result) if isinstance(result, tuple) else [result]


def compare(found: list[Any], stored: Any) -> None:
    assert sum(name.startswith("result_") for name in stored) == len(found)
    for at, ours in enumerate(found):
        theirs = stored[f"result_{at}"]
        assert np.asarray(ours).dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=5e-5, atol=5e-6)


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_models_give_what_openvino_gives(path: Path) -> None:
    stored = np.load(path.with_suffix(".npz"))
    compare(run(path, stored), stored)


def test_a_compiled_model_takes_any_batch() -> None:
    stored = np.load(FOLDER / "network.npz")
    executable = tw.compile(FOLDER / "network.xml", threads=1)
    compare(executable.run({"image": stored["image"]}), stored)
    assert executable.run({"image": stored["image"][:1]})[0].shape == (1, 4)


def test_loops_of_unknown_length_are_functions() -> None:
    """What a run counts is a function that calls itself, and gives the same for other counts."""
    module = tw.load_model(FOLDER / "loop_counted.xml")
    assert len(list(module.functions)) == 2
    x = np.float32([1, 2, 3])
    for count in (1, 3):
        np.testing.assert_array_equal(
            run(FOLDER / "loop_counted.xml", {"x": x, "count": np.array(count)})[0], x * 2**count
        )


def test_branches_go_both_ways() -> None:
    x = np.float32([[0, 1, 2], [3, -1, 0]])
    for condition, expected in ((True, -x), (False, np.exp(x))):
        found = run(FOLDER / "branch.xml", {"condition": np.array(condition), "x": x})
        np.testing.assert_allclose(found[0], expected, rtol=1e-6)


def document(*layers: str, edges: str = "", version: str = "11") -> bytes:
    """A model of an input x of float32[2] and a result."""
    x = (
        '<layer id="0" name="x" type="Parameter" version="opset1"><data shape="2" element_type="f32"/>'
        '<output><port id="0" names="x"/></output></layer>'
    )
    end = '<layer id="9" name="y" type="Result" version="opset1"><input><port id="0"/></input></layer>'
    body = f"<layers>{x}{''.join(layers)}{end}</layers><edges>{edges}</edges>"
    return f'<?xml version="1.0"?><net name="m" version="{version}">{body}</net>'.encode()


def layer(kind: str, options: str = "", number: int = 1) -> str:
    return (
        f'<layer id="{number}" name="n{number}" type="{kind}" version="opset1"><data {options}/>'
        f'<input><port id="0"/></input><output><port id="1"/></output></layer>'
    )


LINE = (
    '<edge from-layer="0" from-port="0" to-layer="1" to-port="0"/>'
    '<edge from-layer="1" from-port="1" to-layer="9" to-port="0"/>'
)


def test_state_is_inputs_and_outputs() -> None:
    read = layer("ReadValue", 'variable_id="memory" variable_shape="2" variable_type="f32"', 1)
    add = (
        '<layer id="2" name="sum" type="Add" version="opset1"><input><port id="0"/><port id="1"/></input>'
        '<output><port id="2"/></output></layer>'
    )
    edges = "".join(
        f'<edge from-layer="{a}" from-port="{b}" to-layer="{c}" to-port="{d}"/>'
        for a, b, c, d in ((0, 0, 1, 0), (0, 0, 2, 0), (1, 1, 2, 1), (2, 2, 3, 0), (2, 2, 9, 0))
    )
    module = tw.load_model(document(read, add, layer("Assign", 'variable_id="memory"', 3), edges=edges))
    assert module.attributes["output_names"] == ("y", "memory.next")
    result: Any = evaluate(module, np.float32([1, 2]), np.float32([10, 20]))
    np.testing.assert_array_equal(result[1], [11, 22])


def test_any_file_names_a_model(tmp_path: Path) -> None:
    for suffix in (".xml", ".bin"):
        shutil.copy((FOLDER / "network").with_suffix(suffix), tmp_path / f"net{suffix}")
    path = tmp_path / "net.xml"
    assert identify(path).key == identify(path.read_bytes()).key == "openvino"
    assert model_files(path, identify(path)) == [path, tmp_path / "net.bin"]
    stored = np.load(FOLDER / "network.npz")
    compare(run(path, stored), stored)
    assert tw.load_model(tmp_path / "net.bin", format="openvino")["main"] is not None
    (tmp_path / "net.bin").write_bytes(b"")
    with pytest.raises(UserError, match="outside of the file of weights"):
        tw.load_model(path)


@pytest.mark.parametrize(
    ("kind", "data", "expected"),
    [
        ("i4", bytes([0x8F, 0x07]), [-1, -8, 7]),
        ("u4", bytes([0x8F, 0x07]), [15, 8, 7]),
        ("u2", bytes([0b00111001]), [1, 2, 3]),
        ("u1", bytes([0b10100000]), [1, 0, 1]),
    ],
)
def test_integers_of_few_bits_stay_integers(kind: str, data: bytes, expected: list[int]) -> None:
    options = {"element_type": kind, "shape": "3", "offset": "0", "size": str(len(data))}
    value = stored_tensor(Builder(), memoryview(data), options)
    assert isinstance(value, Constant)
    assert value.data.tolist() == expected
    assert str(value.dtype) == {"i4": "int4", "u4": "uint4", "u2": "uint2", "u1": "uint8"}[kind]


def test_codes_of_normal_floats_are_looked_up() -> None:
    options = {"element_type": "nf4", "shape": "2", "offset": "0", "size": "1"}
    value = stored_tensor(Builder(), memoryview(bytes([0xF0])), options)
    assert isinstance(value, Constant)
    assert value.data.tolist() == [-1.0, 1.0]


def test_errors_name_the_layer() -> None:
    with pytest.raises(UnsupportedError, match="the operator Strange is not supported") as found:
        tw.load_model(document(layer("Strange"), edges=LINE))
    assert "layer 'n1' (Strange, opset1)" in str(found.value.where)
    with pytest.raises(UserError, match="needs the option 'alpha'"):
        tw.load_model(document(layer("Elu"), edges=LINE))
    with pytest.raises(UserError, match="'alpha' of Elu is no number"):
        tw.load_model(document(layer("Elu", 'alpha="x"'), edges=LINE))
    loop = '<edge from-layer="1" from-port="1" to-layer="1" to-port="0"/>'
    with pytest.raises(UserError, match="in a circle"):
        tw.load_model(document(layer("Elu", 'alpha="1"'), edges=loop))
    with pytest.raises(UserError, match="version '9'"):
        tw.load_model(document(version="9"))
    with pytest.raises(UserError, match="nothing produces this result"):
        tw.load_model(document())


def test_hostile_documents() -> None:
    bomb = b'<?xml version="1.0"?><!DOCTYPE net [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><net version="11">&b;</net>'
    external = b'<?xml version="1.0"?><!DOCTYPE net SYSTEM "file:///etc/passwd"><net version="11"/>'
    for content in (bomb, external):
        with pytest.raises(UserError, match="declares entities"):
            parse(content, "")
    with pytest.raises(UserError, match="too deep"):
        parse(b"<a>" * 100, "")
    for content in (b"<net>", b"", b"\xff\xfe<", b"<net version='11'><layers><layer/></layers></net>"):
        with pytest.raises(UserError):
            tw.load_model(content, format="openvino")
