"""Loops that run natively: the same results as the interpreted ones, in every form that loops of models have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.runtime.core.executor import Executable
from tilewright.runtime.vm import loops, machine
from tilewright.support.errors import UserError

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
value = helper.make_tensor_value_info
node = helper.make_node
WIDTH = 6


def _loop(
    body: list[NodeProto],
    *,
    turns: str = "n",
    going: str = "",
    collected: tuple[str, ...] = ("y",),
    flag: str = "on",
    shape: tuple[int | str | None, ...] = (1, WIDTH),
) -> ModelProto:
    """A Loop over the state `h`; `body` makes `h2`, what is collected and `on`."""
    rank = len(shape)
    graph = helper.make_graph(
        [*body, *([node("Identity", ["going"], ["on"])] if flag == "on" else [])],
        "body",
        [value("turn", INT, []), value("going", BOOL, []), value("h", FLOAT, [None] * rank)],
        [
            value(flag, BOOL, []),
            value("h2", FLOAT, [None] * rank),
            *(value(name, FLOAT, None) for name in collected),
        ],
    )
    names = ["last", *(f"all_{name}" for name in collected)]
    inputs = [value("x", FLOAT, ["length", WIDTH]), value("h0", FLOAT, list(shape)), value("n", INT, [])]
    constants = {
        "weight": np.roll(np.eye(WIDTH, dtype=np.float32), 1, 1) * np.float32(0.9),
        "true": np.array(True),
        "endless": np.array(np.iinfo(np.int64).max),
        "limit": np.array(5.0, np.float32),
        "one": np.array(1.0, np.float32),
        "flat": np.array([-1, WIDTH]),
    }
    outer = helper.make_graph(
        [node("Loop", [turns, going, "h0"], names, body=graph)],
        "net",
        inputs,
        [value(name, FLOAT, None) for name in names],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(outer, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


CELL = [
    node("MatMul", ["h", "weight"], ["moved"]),
    node("Gather", ["x", "turn"], ["xt"]),
    node("Add", ["moved", "xt"], ["sum"]),
    node("Tanh", ["sum"], ["h2"]),
]
COUNT = [node("Add", ["h", "one"], ["h2"]), node("Mul", ["h2", "h2"], ["y"])]
SMALLER = [
    node("ReduceMax", ["h2"], ["most"], keepdims=0),
    node("Less", ["most", "limit"], ["goes"]),
]
MODELS: dict[str, Callable[[], ModelProto]] = {
    "a cell whose state is collected": lambda: _loop([*CELL, node("Identity", ["h2"], ["y"])]),
    "a cell, nothing collected": lambda: _loop(CELL, collected=()),
    "one value collected twice, and another": lambda: _loop(
        [*CELL, node("Identity", ["h2"], ["y"]), node("Identity", ["h2"], ["z"]), node("Exp", ["h2"], ["w"])],
        collected=("y", "z", "w"),
    ),
    "a view collected": lambda: _loop([*CELL, node("Exp", ["h2"], ["e"]), node("Reshape", ["e", "flat"], ["y"])]),
    "scalars collected": lambda: _loop([*COUNT[:1], node("ReduceSum", ["h2"], ["y"], keepdims=0)]),
    "until a condition": lambda: _loop([*COUNT, *SMALLER], turns="endless", going="true", flag="goes"),
    "a condition only": lambda: _loop([*COUNT, *SMALLER], turns="", going="true", flag="goes"),
    "a constant condition": lambda: _loop([*CELL, node("Identity", ["h2"], ["y"])], going="true"),
    "the state before a turn": lambda: _loop([*COUNT[:1], node("Identity", ["h"], ["y"])]),
    "a state that grows": lambda: _loop(
        [node("Concat", ["h", "h"], ["h2"], axis=0), node("ReduceSum", ["h"], ["y"], keepdims=0)], shape=("rows", WIDTH)
    ),
}


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops of tests go through all that happens after many turns."""
    monkeypatch.setattr(loops, "_MOST_TURNS", 4)
    monkeypatch.setattr(loops, "_FIRST_ROWS", 2)


def _interpreted(exe: Executable) -> Executable:
    """The same model, whose loops are interpreted."""
    made = exe.__copy__()
    for code in made.runner.machine._functions:  # type: ignore[union-attr]
        code.loop = None
    return made


def _feed(turns: int, length: int = 30) -> dict[str, np.ndarray]:
    return {
        "x": np.linspace(-1, 1, length * WIDTH, dtype=np.float32).reshape(length, WIDTH),
        "h0": np.full((1, WIDTH), 0.25, np.float32),
        "n": np.array(turns),
    }


def _native_turns(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The turns that native code takes from now on, a number each time."""
    counts: list[int] = []
    take = loops._Turns.take

    def counted(turns: loops._Turns) -> bool:
        is_over = take(turns)
        counts.append(turns.taken)
        return is_over

    monkeypatch.setattr(loops._Turns, "take", counted)
    return counts


INTERPRETED = ("the state before a turn", "a state that grows")
WHILE = ("until a condition", "a condition only")


@pytest.mark.parametrize("name", MODELS)
def test_results_are_those_of_the_interpreter_and_of_onnxruntime(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = MODELS[name]()
    exe = tw.compile(model.SerializeToString(), threads=1)
    interpreted = _interpreted(exe)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    given = {item.name for item in session.get_inputs()}
    counts = _native_turns(monkeypatch)
    for turns in (0, 1, 2, 5, 7) if name in INTERPRETED else (0, 1, 2, 5, 23):
        feed = _feed(turns)
        counts.clear()
        found = exe.run(feed)
        assert sum(counts) == (0 if name in INTERPRETED else 5 if name in WHILE else turns)
        for result, same in zip(found, interpreted.run(feed), strict=True):
            np.testing.assert_array_equal(result, same)
        if turns:  # onnxruntime cannot stack no values
            expected = session.run(None, {key: feed[key] for key in given})
            for result, want in zip(found, expected, strict=True):
                np.testing.assert_allclose(result, want.reshape(result.shape), rtol=1e-5, atol=1e-6)


def test_memory_grows_with_what_is_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing says how many turns there are, there is room for two, then for twice as many each time."""
    exe = tw.compile(MODELS["a condition only"]().SerializeToString(), threads=1)
    counts = _native_turns(monkeypatch)
    found = exe.run(_feed(0))
    assert counts == [2, 3]
    np.testing.assert_array_equal(found[1].reshape(5, WIDTH)[:, 0], (np.arange(1, 6) + 0.25) ** 2)


def test_a_turn_that_fails_says_what_is_wrong() -> None:
    """An index that a later turn takes and that is not there."""
    model = _loop([*CELL, node("Identity", ["h2"], ["y"])])
    exe = tw.compile(model.SerializeToString(), threads=1)
    assert exe.run(_feed(3, length=3))[1].shape == (3, 1, WIDTH)
    with pytest.raises(UserError, match="index 3"):
        exe.run(_feed(4, length=3))


def test_results_do_not_share_memory() -> None:
    """The last state is the last row of what was collected: each output is the user's own."""
    exe = tw.compile(MODELS["one value collected twice, and another"]().SerializeToString(), threads=1)
    found = exe.run(_feed(9))
    for place, result in enumerate(found):
        assert not any(np.shares_memory(result, other) for other in found[:place])
    kept = [result.copy() for result in found]
    exe.run({**_feed(9), "h0": np.ones((1, WIDTH), np.float32)})
    for result, before in zip(found, kept, strict=True):
        np.testing.assert_array_equal(result, before)


def test_an_exported_library_has_native_loops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exe = tw.compile(MODELS["a cell whose state is collected"]().SerializeToString(), threads=1)
    exe.export_library(tmp_path / "cell.so")
    loaded = tw.load(tmp_path / "cell.so")
    counts = _native_turns(monkeypatch)
    for found, want in zip(loaded.run(_feed(5)), exe.run(_feed(5)), strict=True):
        np.testing.assert_array_equal(found, want)
    assert sum(counts) == 10


def test_a_profile_has_the_turns() -> None:
    exe = tw.compile(MODELS["a cell whose state is collected"]().SerializeToString(), threads=1)
    text = str(exe.profile(*_feed(9).values(), repeat=1))
    assert "Tanh" in text
    assert "sequence.insert" not in text


def test_sequences_of_interpreted_loops_grow_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that appends to a sequence copies it once, for it may be somebody else's, and not in every turn."""
    exe = _interpreted(tw.compile(MODELS["a cell whose state is collected"]().SerializeToString(), threads=1))
    copies: list[int] = []
    original = machine.sequence

    def counted(items: list[object]) -> list[object]:
        copies.append(len(items))
        return original(items)  # type: ignore[arg-type, return-value]

    monkeypatch.setattr(machine, "sequence", counted)
    exe.run(_feed(9))
    assert copies == [0]
