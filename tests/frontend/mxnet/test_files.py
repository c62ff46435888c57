"""MXNet's files: layouts of symbols, versions of arrays, pairs of files, inputs, and what is wrong with some."""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.frontend.formats import identify, model_files
from tilewright.frontend.mxnet.files import read_arrays
from tilewright.frontend.mxnet.shape import resolved
from tilewright.graph.interpreter import evaluate
from tilewright.support.errors import UnsupportedError, UserError

FOLDER = Path(__file__).resolve().parents[2] / "fixtures" / "mxnet"


def node(op: str, name: str, *inputs: int, key: str = "attrs", **attributes: str) -> dict[str, Any]:
    return {"op": op, "name": name, key: attributes, "inputs": [[at, 0, 0] for at in inputs]}


def symbol(*nodes: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"nodes": nodes, "heads": [[len(nodes) - 1, 0, 0]], **more}).encode()


def array(values: Any, version: int, kind: int = 0) -> bytes:
    """An array as versions of MXNet write it."""
    shape, context = values.shape, struct.pack("<iii", 1, 0, kind)
    match version:
        case 0:
            head = struct.pack(f"<I{len(shape)}I", len(shape), *shape)
        case 1:
            head = struct.pack(f"<II{len(shape)}q", 0xF993FAC8, len(shape), *shape)
        case _:
            head = struct.pack(f"<Iii{len(shape)}q", 0xF993FAC8 + version - 1, 0, len(shape), *shape)
    return head + context + values.tobytes()


def arrays(*items: bytes, names: list[str]) -> bytes:
    head = struct.pack("<QQQ", 0x112, 0, len(items)) + b"".join(items) + struct.pack("<Q", len(names))
    return head + b"".join(struct.pack("<Q", len(name)) + name.encode() for name in names)


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_versions_of_arrays(version: int) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    bytes_ = np.arange(4, dtype=np.int8)
    content = arrays(array(values, version), array(bytes_, version, 5), names=["arg:w", "aux:v"])
    assert identify(content).key == "mxnet"
    found = read_arrays(content, "here")
    np.testing.assert_array_equal(found["w"], values)
    np.testing.assert_array_equal(found["v"], bytes_)
    for end in range(len(content)):
        with pytest.raises(UserError, match=r"ends early|others|no file"):
            read_arrays(content[:end], "here")


def test_arrays_of_the_next_version_are_an_archive_of_numpy() -> None:
    stream = io.BytesIO()
    np.savez(stream, **{"arg:w": np.ones(2)})
    assert list(read_arrays(stream.getvalue(), "here")) == ["w"]
    with pytest.raises(UserError, match="the archive of arrays is damaged"):
        read_arrays(stream.getvalue()[:-30], "here")


def test_sparse_arrays_and_unknown_types() -> None:
    values = np.ones(2, np.float32)
    sparse = bytearray(array(values, 2))
    sparse[4] = 1
    with pytest.raises(UnsupportedError, match="a sparse array"):
        read_arrays(arrays(bytes(sparse), names=["w"]), "here")
    with pytest.raises(UnsupportedError, match="type number 77"):
        read_arrays(arrays(array(values, 2, 77), names=["w"]), "here")
    with pytest.raises(UserError, match="1 arrays and 2 names"):
        read_arrays(arrays(array(values, 2), names=["w", "v"]), "here")


@pytest.mark.parametrize("key", ["attr", "attrs", "param"])
def test_layouts_of_symbols(key: str) -> None:
    content = symbol(node("null", "data"), node("_plus_scalar", "out", 0, key=key, scalar="2"))
    assert identify(content).key == "mxnet"
    module = tw.load_model(content, shapes={"data": (2,)})
    assert module.attributes["output_names"] == ("out_output",)
    assert evaluate(module, np.float32([1, 2])).tolist() == [3, 4]


def test_a_graph_of_another_compiler_is_none_of_mxnet() -> None:
    with pytest.raises(UserError):
        identify(symbol(node("null", "x"), node("tvm_op", "y", 0)))


def test_inputs_need_shapes() -> None:
    content = symbol(node("null", "data"), node("relu", "out", 0))
    with pytest.raises(UserError, match="does not say the shape of its input 'data'") as error:
        tw.load_model(content)
    assert "shapes=" in str(error.value.hint)
    with pytest.raises(UserError, match="no input 'x'"):
        tw.load_model(content, shapes={"data": (1,), "x": (1,)})
    told = symbol({**node("null", "data"), "attrs": {"__shape__": "(0, 3)"}}, node("relu", "out", 0))
    assert evaluate(tw.load_model(told), np.float32([[1, -2, 3]])).tolist() == [[1, 0, 3]]
    with pytest.raises(UserError, match="3 elements along axis 1, not 4"):
        tw.load_model(told, shapes={"data": (1, 4)})


def test_labels_are_no_inputs_and_what_nothing_needs_is_left_out() -> None:
    content = symbol(
        node("null", "data"),
        node("null", "label"),
        node("Mystery", "aside", 0),
        node("SoftmaxOutput", "prob", 0, 1),
    )
    module = tw.load_model(content, shapes={"data": (1, 2)})
    assert [param.name for param in module["main"].params] == ["data"]


def test_which_files_belong_together(tmp_path: Path) -> None:
    text = (FOLDER / "network-symbol.json").read_bytes()
    params = (FOLDER / "network-0000.params").read_bytes()
    path = tmp_path / "net-symbol.json"
    path.write_bytes(text)
    (tmp_path / "net-0001.params").write_bytes(b"")
    (tmp_path / "net-0007.params").write_bytes(params)
    assert model_files(path, identify(path)) == [path, tmp_path / "net-0007.params"]
    assert model_files(tmp_path / "net-0007.params", identify(path))[1:] == [path]
    assert tw.load_model(path)["main"] is not None
    x = np.zeros((1, 3, 12, 12), np.float32)
    own = tw.frontend.from_mxnet(text, params=tmp_path / "net-0007.params", shapes={"data": x.shape})
    np.testing.assert_array_equal(evaluate(own, x), evaluate(tw.load_model(path), x))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a-0000.params").write_bytes(params)
    with pytest.raises(UserError, match="there is no symbol beside"):
        tw.load_model(tmp_path / "other" / "a-0000.params")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"nodes": [', "the text is no JSON"),
        (b'{"other": 1}', "it has no nodes"),
        (symbol(node("null", "data"), node("Custom", "c", 0)), "not supported: it is a program in Python"),
        (symbol(node("null", "data"), node("relu", "c", 7)), "reads a node that is not there"),
        (symbol(node("null", "data"), node("elemwise_add", "c", 0, 1)), "reads a result that no node before it gives"),
        (symbol(node("null", "data"), node("sum", "c", 0, axis="9")), "axis 9 is out of range"),
        (symbol(node("null", "data"), node("Reshape", "c", 0, shape="(5, -1)")), "cannot have the shape"),
        (symbol(node("null", "data"), node("_plus_scalar", "c", 0, scalar="x")), "scalar=x is no number"),
        (symbol(node("null", "data"), node("Pooling", "c", 0, pool_type="odd")), "the pooling 'odd' is not known"),
        (symbol(node("null", "data"), node("SliceChannel", "c", 0, num_outputs="3")), "3 equal parts"),
        (symbol(node("null", "data"), heads=[[5, 0]]), "gives a node that is not there"),
        (symbol(node("null", "data"), node("RNN", "c", 0, mode="odd")), "RNN of the mode 'odd'"),
    ],
)
def test_errors_say_the_node(content: bytes, said: str) -> None:
    with pytest.raises(UserError) as error:
        tw.load_model(content, format="mxnet", shapes={"data": (2, 4, 4)})
    assert said in error.value.message and error.value.where is not None


def test_codes_of_reshape() -> None:
    assert resolved((0, -1), (2, 3, 4)) == [2, 12]
    assert resolved((-4, 2, -1, -3), (6, 3, 4)) == [2, 3, 12]
    for codes in ((0, 0, 0, 0), (-5,), (-4, 2), (-4, -1, -1)):
        with pytest.raises(UserError):
            resolved(codes, (2, 3, 4))


def test_deconvolution_to_a_size() -> None:
    """The padding follows from the size, what is left over is added at the end: a kernel of ones counts its reach."""
    content = symbol(
        node("null", "data"),
        node("null", "w"),
        node("Deconvolution", "c", 0, 1, kernel="(3,)", stride="(2,)", target_shape="(6,)", num_filter="1"),
    )
    weight = arrays(array(np.float32([[[1, 10, 100]]]), 2), names=["arg:w"])
    module = tw.frontend.from_mxnet(content, params=weight, shapes={"data": (1, 1, 3)})
    full = np.zeros(7)
    for at, value in enumerate((1, 2, 3)):
        full[2 * at : 2 * at + 3] += value * np.array([1, 10, 100])
    np.testing.assert_allclose(evaluate(module, np.float32([[[1, 2, 3]]])).ravel(), full[1:7])
