"""Damaged files give errors, never crashes or endless work: bytes that change, and messages that say other things."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.frontend.tensorflow.graphs import graph
from tilewright.frontend import from_tensorflow
from tilewright.frontend.tensorflow.checkpoint import read_checkpoint
from tilewright.frontend.tensorflow.schema import SCHEMA
from tilewright.frontend.tensorflow.table import _decompressed, entries_of
from tilewright.support.errors import UserError

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "tensorflow"
GRAPHS = ("frozen.pb", "array.pb", "branches.pb", "loops.pb")
NUMBERS = (-1, 0, 1, 7, 1 << 20, 1 << 40, (1 << 63) - 1, -(1 << 63))


def changed(content: bytes, random: np.random.Generator) -> bytes:
    """A graph of which a node says something else."""
    message = SCHEMA.read("Graph", content, "")
    nodes = message.node
    for _ in range(random.integers(1, 3)):
        node = nodes[random.integers(len(nodes))]
        other = nodes[random.integers(len(nodes))]
        match random.integers(6):
            case 0:
                node.op = other.op
            case 1 if node.input:
                node.input[random.integers(len(node.input))] = f"{other.name}:{random.integers(3)}"
            case 2:
                node.input.append(other.name)
            case 3 if node.input:
                del node.input[-1]
            case 4 if node.attr:
                del node.attr[sorted(node.attr)[random.integers(len(node.attr))]]
            case _ if node.attr:
                _change(node.attr[sorted(node.attr)[random.integers(len(node.attr))]], random)
    return bytes(message.SerializeToString())


def _change(value: Any, random: np.random.Generator) -> None:
    number = NUMBERS[random.integers(len(NUMBERS))]
    if value.HasField("tensor"):
        if value.tensor.tensor_shape.dim and random.random() < 0.5:
            value.tensor.tensor_shape.dim[0].size = number
        elif value.tensor.int_val:
            value.tensor.int_val[0] = int(np.clip(number, -(1 << 31), (1 << 31) - 1))
        else:
            value.tensor.dtype = int(random.integers(0, 32))
    elif value.HasField("i"):
        value.i = number
    elif value.HasField("type"):
        value.type = int(random.integers(0, 32))
    elif value.HasField("shape") and value.shape.dim:
        value.shape.dim[0].size = number
    elif value.HasField("list") and value.list.i:
        value.list.i[0] = number
    elif value.HasField("s"):
        value.s = b"\xff"
    elif value.HasField("b"):
        value.b = not value.b


def read(content: bytes) -> bool:
    """Whether a graph is read; other errors than a user's are not caught."""
    try:
        from_tensorflow(content)
    except UserError:
        return False
    return True


@pytest.mark.parametrize("name", GRAPHS)
def test_nodes_that_say_something_else(name: str) -> None:
    content = (FIXTURES / name).read_bytes()
    outcomes = [read(changed(content, np.random.default_rng(seed))) for seed in range(60)]
    assert True in outcomes
    assert False in outcomes


@pytest.mark.parametrize("name", GRAPHS)
def test_files_that_end_early(name: str) -> None:
    content = (FIXTURES / name).read_bytes()
    assert not any(read(content[:size]) for size in range(0, len(content) - 8, len(content) // 10))


def test_an_index_that_is_damaged(tmp_path: Path) -> None:
    content = (FIXTURES / "checkpoint" / "model.ckpt.index").read_bytes()
    random = np.random.default_rng(0)
    for _ in range(200):
        data = bytearray(content)
        data[random.integers(len(data))] = random.integers(256)
        (tmp_path / "model.index").write_bytes(bytes(data))
        try:
            checkpoint = read_checkpoint(tmp_path / "model")
            for name in checkpoint.entries:
                checkpoint.tensor(name)
        except UserError:
            continue


def test_blocks_that_are_compressed() -> None:
    # Four bytes as they are, then six copied from four back, then two from eleven back by the longer form.
    packed = bytes([12, 3 << 2]) + b"abcd" + bytes([(6 - 4) << 2 | 1, 4, (2 - 1) << 2 | 2, 10, 0])
    assert _decompressed(packed) == b"abcdabcdabab"
    for wrong in (bytes([4, 0]) + b"a", bytes([4, 1, 9]), bytes([255] * 12)):
        with pytest.raises((ValueError, IndexError)):
            _decompressed(wrong)
    with pytest.raises(UserError, match="no index of a checkpoint"):
        list(entries_of(b"x" * 100, "a file"))


def test_functions_that_call_themselves() -> None:
    message = SCHEMA.message("Graph")()
    message.ParseFromString(graph(("x", "Placeholder", [], {"dtype": 1, "shape": [2]}), ("y", "f", ["x"], {})))
    function = message.library.function.add()
    function.signature.name = "f"
    function.signature.input_arg.add(name="a")
    function.signature.output_arg.add(name="b")
    function.node_def.add(name="n", op="f", input=["a"])
    function.ret["b"] = "n:b:0"
    with pytest.raises(UserError, match="nested too deeply"):
        from_tensorflow(message.SerializeToString())


def test_a_constant_larger_than_its_bytes() -> None:
    message = SCHEMA.message("Graph")()
    node = message.node.add(name="c", op="Const")
    node.attr["value"].tensor.dtype = 1
    node.attr["value"].tensor.tensor_shape.dim.add(size=1 << 40)
    node.attr["value"].tensor.float_val.append(1)
    message.node.add(name="y", op="Identity", input=["c"])
    with pytest.raises(UserError, match="are not all in the file"):
        from_tensorflow(message.SerializeToString())
