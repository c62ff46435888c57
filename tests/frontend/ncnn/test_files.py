"""ncnn's files: parameters, kinds of weights, inputs, pairs of files, and what is wrong with some."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from bench.ncnn_cases import binary, marked, plain, random
from tilewright.frontend.formats import identify, model_files
from tilewright.frontend.ncnn import from_ncnn
from tilewright.frontend.ncnn.files import Bits, Numbers, read_layers
from tilewright.graph.interpreter import evaluate
from tilewright.support.errors import UserError

FOLDER = Path(__file__).resolve().parents[2] / "fixtures" / "ncnn"


def net(*lines: str, inputs: str = "Input x 0 1 x") -> bytes:
    return "\n".join(["7767517", f"{len(lines) + 1} 9", inputs, *lines]).encode()


def test_parameters_of_layers() -> None:
    (_, layer) = read_layers(net('Odd name 1 2 x a b 0=3 1=-2.5e-1 -23302=2,1,2.5 3="text"'), "here")
    assert (layer.kind, layer.name, list(layer.bottoms), list(layer.tops)) == ("Odd", "name", ["x"], ["a", "b"])
    assert layer.params == {0: 3, 1: -0.25, 2: [1, 2.5], 3: "text"}


def test_numbers_of_binary_files_are_what_a_layer_takes_them_for() -> None:
    content, _ = binary(net("Clip y 1 1 x y 0=9000000 1=0.5").decode())
    assert identify(content).key == "ncnn"
    params = read_layers(content, "here")[1].params
    assert params[0] == 9000000 and isinstance(params[1], Bits) and params[1].as_float() == 0.5


def test_kinds_of_weights() -> None:
    values = random(3, 2)
    table = np.arange(256, dtype=np.float32)
    content = (
        plain(values) + marked(values) + marked(values, form="half") + marked([[1, -2], [3, 4], [5, 6]], form="byte")
        + struct.pack("<I", 1) + table.tobytes() + bytes([7, 8, 9, 0]) + struct.pack("<I", 0x0002C056) + plain(values)
    )  # fmt: skip
    numbers = Numbers(content, "net.bin")
    np.testing.assert_array_equal(numbers.floats(3, 2), values)
    np.testing.assert_array_equal(numbers.marked(3, 2), values)
    np.testing.assert_allclose(numbers.marked(3, 2), values, rtol=1e-2, atol=1e-3)
    assert numbers.marked(3, 2).tolist() == [[1, -2], [3, 4], [5, 6]]
    assert numbers.marked(3).tolist() == [7, 8, 9]
    np.testing.assert_array_equal(numbers.marked(3, 2), values)
    numbers.finish()
    with pytest.raises(UserError, match=r"net.bin ends before the weights of a layer"):
        numbers.floats(1)


def test_inputs() -> None:
    layer = "ReLU y 1 1 x y"
    with pytest.raises(UserError, match="does not say the shape of its input 'x'"):
        from_ncnn(net(layer))
    told = net(layer, inputs="Input x 0 1 x 0=4 1=3 2=2")
    shape = tw.load_model(told)["main"].params[0].type.static_shape
    assert shape == (2, 3, 4)
    assert tw.load_model(told, shapes={"x": (2, 8, 8)})["main"].params[0].type.static_shape == (2, 8, 8)
    with pytest.raises(UserError, match="not"):
        tw.load_model(told, shapes={"x": (3, 8, 8)})
    with pytest.raises(UserError, match="no input 'z'"):
        tw.load_model(told, shapes={"z": (3, 8, 8)})


def test_the_weights_of_the_first_layer_say_the_channels() -> None:
    exe = tw.compile(FOLDER / "network.param", threads=1)
    for size in ((16, 16), (20, 17), (9, 30)):
        x = random(3, *size)
        same = tw.load_model(FOLDER / "network.param", shapes={"data": x.shape})
        np.testing.assert_allclose(exe(x), evaluate(same, x), rtol=1e-4, atol=1e-5)
    with pytest.raises(UserError, match="not"):
        tw.load_model(FOLDER / "network.param", shapes={"data": (4, 20, 17)})


def test_which_files_belong_together(tmp_path: Path) -> None:
    text, weights = (FOLDER / "network.param").read_bytes(), (FOLDER / "network.bin").read_bytes()
    path = tmp_path / "net.param"
    path.write_bytes(text)
    with pytest.raises(UserError, match="ends before the weights of a layer") as error:
        tw.load_model(path, shapes={"data": (3, 16, 16)})
    assert "'c1'" in str(error.value.where)
    (tmp_path / "net.bin").write_bytes(weights)
    assert model_files(path, identify(path)) == [path, tmp_path / "net.bin"]
    assert identify(tmp_path / "net.bin").key == "ncnn"
    content, names = binary(text.decode())
    (tmp_path / "other.param.bin").write_bytes(content)
    (tmp_path / "other.bin").write_bytes(weights)
    x = random(3, 16, 16)
    data = next(key for key, value in names.items() if value == "data")
    one = tw.load_model(path, shapes={"data": x.shape})
    two = tw.load_model(tmp_path / "other.param.bin", shapes={data: x.shape})
    np.testing.assert_array_equal(evaluate(one, x), evaluate(two, x))
    (tmp_path / "net.bin").write_bytes(weights + b"more")
    with pytest.raises(UserError, match="4 bytes more than the layers take"):
        tw.load_model(path, shapes={"data": x.shape})
    (tmp_path / "alone.bin").write_bytes(weights)
    with pytest.raises(UserError, match=r"no .param file beside"):
        from_ncnn(tmp_path / "alone.bin")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"7767516\n1 1\n", "its first line is not 7767517"),
        (net("ReLU y"), "is no layer"),
        (net("ReLU y 1 1 x"), "has 1 of 2 names"),
        (net("ReLU y 1 1 x y 0=z"), "'0=z' is no parameter"),
        (net("ReLU y 1 1 x y -23300=3,1"), "is no parameter"),
        (net("Mystery y 1 1 x y"), "the operator Mystery of ncnn is not supported"),
        (net("ReLU y 1 1 z y"), "reads 'z', which no layer before it gives"),
        (net("Softmax y 1 1 x y 0=1"), "whose axis was wrong"),
        (net("Pooling y 1 1 x y 1=9"), "does not fit"),
        (net("Permute y 1 1 x y 0=7"), "the order number 7"),
        (net("Slice y 1 2 x a b -23300=2,1,9"), "do not cut"),
        (net("Convolution y 1 1 x y 0=2 1=1 6=5"), "5 weights do not fit"),
        (net("BinaryOp y 1 1 x y 0=99 1=1"), "BinaryOp number 99"),
        (net("Reshape y 1 1 x y 0=5 1=-1"), "cannot have the shape"),
    ],
)
def test_errors_say_the_layer(content: bytes, said: str) -> None:
    with pytest.raises(UserError) as error:
        from_ncnn(content, {"x": (2, 4, 4)})
    assert said in error.value.message and error.value.where is not None


def test_damaged_binary_files() -> None:
    content, _ = binary(net("Clip y 1 1 x y 0=1.0", "Slice z 1 2 y a b -23300=2,1,-233").decode())
    for end in range(4, len(content)):
        with pytest.raises(UserError):
            from_ncnn(content[:end], {"0": (2, 4, 4)})
    with pytest.raises(UserError, match="type number 9999"):
        read_layers(content[:12] + struct.pack("<i", 9999) + content[16:], "here")


def test_sizes_of_which_only_a_run_knows_whether_they_fit() -> None:
    """A sum of an image of open size and a smaller one: they fit where the smaller one is a single row."""
    lines = ["Convolution c 1 1 x c 0=2 1=3 6=36", "BinaryOp a 2 1 c x a 0=0", "ReLU y 1 1 a y"]
    weights = random(2, 2, 3, 3)
    module = from_ncnn(net(*lines), {"x": (2, "height", "width")}, marked(weights))
    x = random(2, 3, 3)
    expected = np.maximum((weights * x).sum((1, 2, 3)).reshape(2, 1, 1) + x, 0)
    np.testing.assert_allclose(evaluate(module, x), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(UserError, match="a compiled value needs a shape") as error:
        tw.compile(module, threads=1)
    assert error.value.hint == "give the shapes of the inputs"
