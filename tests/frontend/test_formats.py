"""One door for every format: the content decides, errors say what a file looks like, commands take them all."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tests.requirements import need_module
from tilewright.cli.main import main
from tilewright.frontend.builtin_formats import FORMATS
from tilewright.frontend.format import Format
from tilewright.frontend.formats import identify, known_formats, model_files, register_format
from tilewright.frontend.sample import HEAD, Sample
from tilewright.support.errors import UserError


def relu() -> bytes:
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", info[:1], info[1:])
    return bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]).SerializeToString())


@pytest.fixture
def own_format() -> object:
    from tilewright.frontend import formats

    before = dict(formats._OWN)
    yield register_format
    formats._OWN.clear()
    formats._OWN.update(before)


@pytest.mark.parametrize("item", FORMATS, ids=lambda item: item.key)
def test_every_importer_exists(item: Format) -> None:
    for package in item.missing():
        need_module(package)
    assert callable(item.load())


def test_keys_and_titles_are_unique() -> None:
    assert len({item.key for item in FORMATS}) == len({item.title for item in FORMATS}) == len(FORMATS)
    assert all(bool(item.extra) == bool(item.packages) for item in FORMATS)


@pytest.mark.parametrize("name", ["model.onnx", "model.bin", "model", "model.tflite", "model.pt2"])
def test_content_goes_before_the_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(relu())
    assert identify(path).key == "onnx"
    assert tw.compile(path)(np.float32([-1, 2])).tolist() == [0, 2]


def test_bytes_are_recognised() -> None:
    assert identify(relu()).key == "onnx"
    module = tw.load_model(bytearray(relu()), shapes={"x": (2,)})
    assert tw.compile(module)(np.float32([-1, 2])).tolist() == [0, 2]


def test_a_model_that_is_cut_short_is_still_one_of_its_format(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(relu()[:-20])
    with pytest.raises(UserError, match="is not an ONNX model, or it is damaged or cut short"):
        tw.load_model(path)


def test_other_protobuf_messages_are_no_onnx_models() -> None:
    for other in (onnx.TensorProto(dims=[2], data_type=1, raw_data=bytes(8)), helper.make_opsetid("", 21)):
        with pytest.raises(UserError, match=r"is no model|are no model|is damaged"):
            identify(other.SerializeToString())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "the file is empty"),
        (b"\x89PNG\r\n\x1a\n", "it looks like a PNG image"),
        (b"\x93NUMPY\x01\0", "it looks like a numpy array"),
        (bytes([200, 1, 2, 255]), "it begins with the 4 bytes c8 01 02 ff"),
    ],
)
def test_an_unknown_file_says_what_it_looks_like_and_what_is_known(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "model.weird"
    path.write_bytes(content)
    with pytest.raises(UserError) as found:
        tw.load_model(path)
    assert said in found.value.message
    assert not content or "Tilewright reads" in str(found.value.hint)
    assert not content or all(item.title in str(found.value.hint) for item in FORMATS)


def test_what_an_archive_holds_is_seen_behind_its_first_bytes(tmp_path: Path) -> None:
    path = tmp_path / "big.bin"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a/data/0", bytes(2 * HEAD))
        file.writestr("a/data.pkl", b"x")
    with pytest.raises(UserError, match="it looks like a PyTorch checkpoint"):
        tw.load_model(path)


def test_folders_and_missing_files(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(UserError, match=r"a folder without a model that Tilewright knows: it holds notes\.txt"):
        tw.load_model(tmp_path)
    with pytest.raises(UserError, match="there is no file"):
        tw.load_model(tmp_path / "absent.onnx")


def test_a_format_may_be_named(tmp_path: Path) -> None:
    assert tw.load_model(relu(), format="onnx")["main"] is not None
    with pytest.raises(UserError, match="there is no format 'x'") as found:
        tw.load_model(relu(), format="x")
    assert "onnx" in str(found.value.hint)


def test_a_file_without_what_its_importer_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.frontend.format.find_spec", lambda name: None)
    with pytest.raises(UserError, match="format ONNX needs the package 'onnx'") as found:
        tw.load_model(relu())
    assert found.value.hint == "pip install 'tilewright[onnx]'"


def test_a_format_of_ones_own(own_format: object, tmp_path: Path) -> None:
    def read(source: object, shapes: object = None) -> tw.IRModule:
        return tw.load_model(relu())

    mine = Format("mine", "Mine", "the word mine", lambda sample: sample.head.startswith(b"mine"), read, (".mine",))
    register_format(mine)
    path = tmp_path / "x.onnx"
    path.write_bytes(b"mine!")
    assert identify(path) is mine and known_formats()[0] is mine
    assert tw.compile(path)(np.float32([-1, 2])).tolist() == [0, 2]
    (tmp_path / "x.mine").write_bytes(b"?")
    assert identify(tmp_path / "x.mine") is mine
    with pytest.raises(UserError, match="there is a format 'onnx' already"):
        register_format(Format("onnx", "Other", "", lambda sample: False, read))


def test_companions_are_part_of_a_model(tmp_path: Path) -> None:
    beside = Format(
        "two", "Two", "", lambda sample: True, lambda source: None, companions=lambda p: [p.with_suffix(".b")]
    )
    path = tmp_path / "x.a"
    path.write_bytes(b"1")
    assert model_files(path, beside) == [path, tmp_path / "x.b"]
    assert model_files(tmp_path, beside) is None


def test_protobuf_fields_never_trust_a_length() -> None:
    assert Sample(b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x7f").fields == {7: 2}
    assert Sample(b"\x08").fields == {} and Sample(b"\x00\x00").fields == {} and Sample(b"\x0f").fields == {}
    assert Sample(b"\x08" + b"\xff" * 20).fields == {}
    assert Sample(b"\x0d\0\0\0\0\x11" + bytes(8)).fields == {1: 5, 2: 1}


def test_texts_that_are_cut_in_a_character() -> None:
    assert Sample(("ü" * HEAD).encode()).text == "ü" * (HEAD // 2)
    assert Sample(b"a" + "ü".encode() * HEAD).text == "a" + "ü" * (HEAD // 2 - 1)
    assert Sample(b"a\tb\r\n").text == "a\tb\r\n"
    assert not any(Sample(data).text for data in (b"", b"ab\0", b"ab\x08\x01", b"ab\xff\xff cd"))


def test_the_command_lists_and_recognises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["formats"]) == 0
    listed = capsys.readouterr().out
    assert all(item.key in listed and item.title in listed for item in FORMATS)
    path = tmp_path / "model.bin"
    path.write_bytes(relu())
    assert main(["formats", str(path)]) == 0
    assert "ONNX (onnx), ready" in capsys.readouterr().out
    assert main(["formats", str(tmp_path)]) == 1
    assert "a folder without a model" in capsys.readouterr().err


def test_exported_programs_and_scripts(tmp_path: Path) -> None:
    torch = need_module("torch")
    network = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU()).eval()
    x = torch.randn(2, 3)
    exported, script = io.BytesIO(), io.BytesIO()
    torch.export.save(torch.export.export(network, (x,)), exported)
    torch.jit.save(torch.jit.script(network), script)
    for name, content, shapes in (("a.bin", exported, None), ("b.pt", script, {"input": (2, 3)})):
        path = tmp_path / name
        path.write_bytes(content.getvalue())
        executable = tw.compile(path, threads=1, shapes=shapes)
        np.testing.assert_allclose(executable(x.numpy()), network(x).detach().numpy(), rtol=1e-5, atol=1e-6)
    assert identify(tmp_path / "a.bin").key == "torch-export" and identify(tmp_path / "b.pt").key == "torchscript"
    with pytest.raises(UserError, match="has its sizes already"):
        tw.load_model(tmp_path / "a.bin", shapes={"input": (2, 3)})
    with pytest.raises(UserError, match="does not say the sizes of its input 'input'"):
        tw.load_model(tmp_path / "b.pt")
    with pytest.raises(UserError, match="has no input 'x'"):
        tw.load_model(tmp_path / "b.pt", shapes={"x": (2, 3)})
    (tmp_path / "c.pt2").write_bytes(b"PK\x03\x04 cut short")
    with pytest.raises(UserError, match=r"torch cannot read .*c\.pt2 as an exported PyTorch program"):
        tw.load_model(tmp_path / "c.pt2")


def test_tflite_comes_in_by_the_same_door(tmp_path: Path) -> None:
    source = Path(__file__).parent / "tflite" / "models" / "network_float.tflite"
    path = tmp_path / "model.onnx"
    path.write_bytes(source.read_bytes())
    assert identify(path).key == "tflite"
    assert tw.load_model(path)["main"] is not None


@pytest.mark.parametrize("name", ["algebra.mlir", "algebra.mlirbc"])
def test_stablehlo_comes_in_by_the_same_door(name: str) -> None:
    source = Path(__file__).parent / "stablehlo" / "fixtures" / name
    assert identify(source).key == identify(source.read_bytes()).key == "stablehlo"
    assert tw.load_model(str(source))["main"] is not None
    with pytest.raises(UserError, match="has its sizes already"):
        tw.load_model(source, shapes={"x": (1,)})


FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
PAIRS = {
    "caffe": ("network.prototxt", "network.caffemodel"),
    "caffe2": ("predict_net.pb", "init_net.pb"),
    "mxnet": ("network-symbol.json", "network-0000.params"),
    "ncnn": ("network.param", "network.bin"),
    "darknet": ("tiny.cfg",),
}


@pytest.mark.parametrize(("key", "name"), [(key, name) for key, names in PAIRS.items() for name in names])
def test_models_of_two_files_are_those_of_one_format(key: str, name: str) -> None:
    sample = Sample(FIXTURES / key / name)
    assert [item.key for item in FORMATS if item.recognise(sample)] == [key]
