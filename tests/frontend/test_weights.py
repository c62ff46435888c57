"""safetensors and GGUF files against what the packages that wrote them read (`tests/fixtures/weights`)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.frontend import read_weights
from tilewright.frontend.formats import identify
from tilewright.frontend.weights.gguf_blocks import BLOCKS
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Function, Var
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import call
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type
from tilewright.support.errors import UnsupportedError, UserError

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "weights"
with np.load(FOLDER / "expected.npz", allow_pickle=False) as _file:
    EXPECTED = {name: _file[name] for name in _file.files}
READ = sorted(set(EXPECTED) - {"IQ3_S"})


@pytest.mark.parametrize("name", READ)
def test_blocks_are_exact(name: str) -> None:
    weight = read_weights(FOLDER / "blocks.gguf")[name]
    assert weight.kind == name and weight.shape == EXPECTED[name].shape
    np.testing.assert_array_equal(np.asarray(weight.numbers(), np.float32), EXPECTED[name])


@pytest.mark.parametrize("name", [name for name in READ if name not in ("F16", "BF16", "F32")])
def test_blocks_in_a_graph(name: str) -> None:
    weight = read_weights(FOLDER / "blocks.gguf")[name]
    x = Var("x", tensor_type(weight.shape, "float32"))
    module = infer_types(IRModule({"main": Function("main", (x,), call("add", x, weight.expression()))}))
    found = evaluate(module, np.zeros(weight.shape, np.float32))
    np.testing.assert_array_equal(found, EXPECTED[name])


def test_a_product_with_packed_weights() -> None:
    weight = read_weights(FOLDER / "blocks.gguf")["Q4_0"]
    x = Var("x", tensor_type((3, weight.shape[1]), "float32"))
    body = call("matmul", x, weight.expression(), transpose_b=True)
    data = np.random.default_rng(0).standard_normal((3, weight.shape[1])).astype(np.float32)
    found = tw.compile(infer_types(IRModule({"main": Function("main", (x,), body)})), threads=1)(data)
    np.testing.assert_allclose(found, data @ EXPECTED["Q4_0"].T, rtol=1e-3, atol=1e-3)


def test_types_by_tables_have_bits_alone() -> None:
    weight = read_weights(FOLDER / "blocks.gguf")["IQ3_S"]
    assert weight.stored.shape[1] == 110
    with pytest.raises(UnsupportedError, match="'IQ3_S' has blocks of the type IQ3_S"):
        weight.numbers()
    assert {item.name for item in BLOCKS.values() if item.numbers is not None} >= set(READ) - {"F16", "BF16", "F32"}


def test_safetensors() -> None:
    numbers = np.load(FOLDER / "numbers.npy", allow_pickle=False)
    for source in (FOLDER / "plain.safetensors", (FOLDER / "plain.safetensors").read_bytes()):
        weights = read_weights(source)
        np.testing.assert_array_equal(weights["single"].numbers(), numbers.astype(np.float32))
        np.testing.assert_array_equal(weights["half"].numbers(), numbers.astype(np.float16))
        np.testing.assert_allclose(weights["brain"].numbers(), numbers, rtol=2**-8)
        np.testing.assert_allclose(weights["small"].numbers(), numbers, rtol=2**-4, atol=2**-9)
        assert weights["whole"].numbers().tolist() == [0, 1, 2, 3, 4]
        assert weights["truth"].numbers().tolist() == [True, False]
        assert weights["scalar"].numbers().shape == () and weights["empty"].shape == (0, 3)
        assert weights["brain"].expression().tensor_type.dtype.name == "bfloat16"


def test_weights_are_no_models() -> None:
    for name in ("blocks.gguf", "plain.safetensors"):
        assert identify(FOLDER / name).key == name.rpartition(".")[2]
        with pytest.raises(UserError, match="holds weights without a graph") as found:
            tw.compile(FOLDER / name)
        assert "read_weights" in str(found.value.hint)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 9]}, "does not fit its 9 bytes"),
        ({"dtype": "F32", "shape": [1 << 60], "data_offsets": [0, 8]}, "does not fit"),
        ({"dtype": "X", "shape": [2], "data_offsets": [0, 8]}, "the type X"),
        ({"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}, "no whole numbers"),
        ({"dtype": "F32", "shape": [2]}, "lacks something"),
        (7, "lacks something"),
    ],
)
def test_damaged_safetensors(entry: object, said: str) -> None:
    header = json.dumps({"w": entry}).encode()
    with pytest.raises(UserError, match=said):
        read_weights(len(header).to_bytes(8, "little") + header + bytes(8))


def test_damaged_gguf() -> None:
    whole = (FOLDER / "blocks.gguf").read_bytes()
    for data, said in (
        (whole[:-500], "beyond the end"),
        (whole[:20], "bytes are wanted"),
        (whole[:4] + b"\x09" + whole[5:], "version 9"),
        (whole[:8] + b"\xff" * 8 + whole[16:], "it says that it has"),
        (whole[:16] + b"\xff" * 8 + whole[24:], "it says that it has"),
    ):
        with pytest.raises(UserError, match=said):
            read_weights(data)
    with pytest.raises(UserError, match="a header of"):
        read_weights(b"short")
