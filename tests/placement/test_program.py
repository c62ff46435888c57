"""A model over the host, a GPU and the tensor processor at once: the CPU's answers, and work that overlaps."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import tilewright as tw
from tests.graph.fixed_layers import RandomLayers
from tests.integration import small_models
from tests.requirements import need
from tilewright.graph.ir.expr import Function, If, Tuple, Var, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import call
from tilewright.ir.dtype import FLOAT32
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type
from tilewright.placement.program import ProgramPlacement
from tilewright.runtime.device.parts import Part, PlacedModel
from tilewright.support.errors import UserError
from tilewright.support.span import Span


def _model() -> IRModule:
    """A layer in fixed point, a float branch in two steps, and their sum: a part for each of three places."""
    x = Var("x", tensor_type((1, 8, 8, 8), "int8"))
    layer = RandomLayers(3).layer(x, 8, 8, (3, 3), padding=(1, 1, 1, 1))
    for item in (layer,):
        item.span = Span("layer")
    floats = call("exp", call("multiply", call("cast", x, dtype=FLOAT32), constant(np.float32(0.01))))
    floats.span = Span("floats")
    weight = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32) / 64
    rows = call("matmul", call("reshape", floats, shape=(8, 64)), constant(weight))
    rows.span = Span("rows")
    joined = call("tanh", call("add", call("reshape", rows, shape=(1, 8, 8, 8)), call("cast", layer, dtype=FLOAT32)))
    joined.span = Span("joined")
    return infer_types(IRModule([Function("main", (x,), Tuple((joined, rows)))]))


X = np.random.default_rng(1).integers(-128, 128, (1, 8, 8, 8)).astype(np.int8)
WHERE = {"layer": "accel", "rows": "opencl", "floats": "host", "joined": "host"}


@pytest.fixture(scope="module")
def placement() -> ProgramPlacement:
    need("opencl")
    return tw.place(_model(), [X], ["opencl", "accel"])


@pytest.fixture(scope="module")
def placed(placement: ProgramPlacement) -> PlacedModel:
    """The same with a part at each place, whatever is quickest here."""
    return placement.moved(WHERE).compile()


def _expected() -> tuple[np.ndarray, ...]:
    results: tuple[np.ndarray, ...] = tw.compile(_model())(X)
    return results


def test_costs_decide(placement: ProgramPlacement) -> None:
    assert [place.name for place in placement.places] == ["host", "opencl", "accel"]
    text = str(placement)
    assert "so placed" in text and "all on the host" in text and "links: opencl" in text and "cannot" in text
    everywhere = [dict.fromkeys(placement.chosen, 0)]
    assert placement.seconds() <= min(placement.seconds(where) for where in everywhere) + 1e-9
    assert {span.place for span in placement.timeline.spans} <= {
        "host", "opencl", "accel", "copies, opencl", "copies, accel",
    }  # fmt: skip
    with placement.compile() as model:
        for found, expected in zip(model(X), _expected(), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_three_places_give_what_the_cpu_gives(placed: PlacedModel) -> None:
    assert {part.place for part in placed.parts} == {"host", "opencl", "accel"}
    expected = _expected()
    for found, wanted in zip(placed(X), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    [first, second] = placed.run({"x": X})
    np.testing.assert_allclose(second, expected[1], rtol=1e-5, atol=1e-6)
    assert first.shape == (1, 8, 8, 8)
    table = placed.placement()
    assert all(name in table for name in ("host", "opencl", "accel", "layer", "rows", "joined"))
    many = list(placed.map([X, X, X, X], ahead=2))
    assert len(many) == 4 and all(np.array_equal(result[0], many[0][0]) for result in many)


class Meeting:
    """An executable that begins when another one has begun as well: alone it would wait in vain."""

    def __init__(self, executable: Any, meeting: threading.Barrier, at: str) -> None:
        self._executable, self._meeting, self._at = executable, meeting, at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executable, name)

    def __call__(self, *arrays: object) -> Any:
        if self._at == "run":
            self._meeting.wait(20)
        return self._executable(*arrays)

    def to_device(self, *arguments: Any) -> Any:
        if self._at == "copy":
            self._meeting.wait(20)
        return self._executable.to_device(*arguments)


@pytest.mark.parametrize("what", ["run", "copy"])
def test_places_and_copies_work_at_once(placed: PlacedModel, what: str) -> None:
    """The tensor processor's layer, or the copy of its input, meets the host's first part: the spans overlap."""
    meeting = threading.Barrier(2)
    numbers = {
        place: next(n for n, part in enumerate(placed.parts) if part.place == place) for place in ("host", "accel")
    }
    parts: list[Part] = list(placed.parts)
    for place, at in (("host", "run"), ("accel", what)):
        made: Any = Meeting(parts[numbers[place]].executable, meeting, at)
        parts[numbers[place]] = replace(parts[numbers[place]], executable=made)
    with PlacedModel(parts, placed.results, placed.input_info, placed.output_info) as model:
        timeline = model.timeline(X)
    [host] = [span for span in timeline.spans if span.place == "host" and f"part {numbers['host']}:" in span.name]
    rows = "accel" if what == "run" else "copies, accel"
    others = [span for span in timeline.spans if span.place == rows]
    assert any(host.begin < other.end and other.begin < host.end for other in others)
    assert timeline.overlap > 0
    assert "several at once for" in timeline.text()


def test_timelines_are_written(placed: PlacedModel, tmp_path: Path) -> None:
    timeline = placed.timeline(X, runs=2)
    assert sum(span.place == "accel" for span in timeline.spans) == 2
    timeline.save(tmp_path / "run.json")
    names = {event["args"]["name"] for event in json.loads((tmp_path / "run.json").read_text())["traceEvents"][:5]}
    assert {"host", "opencl", "accel", "copies, opencl", "copies, accel"} == names
    timeline.save(tmp_path / "run.html")
    page = (tmp_path / "run.html").read_text()
    assert page.count("<rect") == len(timeline.spans) and "copies, accel" in page


def test_a_placed_model_is_saved(placed: PlacedModel, tmp_path: Path) -> None:
    placed.save(tmp_path / "saved")
    with PlacedModel.load(tmp_path / "saved") as model:
        for found, wanted in zip(model(X), placed(X), strict=True):
            np.testing.assert_array_equal(found, wanted)
    plan = tmp_path / "saved" / "placement.json"
    good = plan.read_text()
    for old, new in (
        ('"part": null', '"part": 7'),
        ('"format": 1', '"format": 9'),
        ('"index": 0', '"index": -1'),
        ("{", ""),
    ):
        plan.write_text(good.replace(old, new))
        with pytest.raises(UserError, match=r"damaged|has format 9"):
            PlacedModel.load(tmp_path / "saved")
    with pytest.raises(UserError, match="there is no placed model"):
        PlacedModel.load(tmp_path / "nothing")


def test_what_is_wrong_is_said(placed: PlacedModel, placement: ProgramPlacement) -> None:
    with pytest.raises(UserError, match="no node 'mystery'"):
        placement.moved({"mystery": "host"})
    with pytest.raises(UserError, match="no place 'moon'"):
        placement.moved({"rows": "moon"})
    with pytest.raises(UserError, match="'rows' cannot run at 'accel'"):
        placement.moved({"rows": "accel"})
    with pytest.raises(UserError, match="takes 1 input"):
        placed(X, X)
    with pytest.raises(UserError, match="takes the inputs x, not y"):
        placed.run({"y": X})
    with pytest.raises(UserError, match="at least one run"):
        list(placed.map([X], ahead=0))
    # An error in a part is the caller's, and the model goes on.
    with pytest.raises(UserError, match=r"shape|axis"):
        placed(X[:, :4])
    np.testing.assert_allclose(placed(X)[1], _expected()[1], rtol=1e-5, atol=1e-6)
    model = placement.moved(WHERE).compile()
    under_way = [model.start(X) for _ in range(3)]
    model.close()
    assert all(run.done() and run.exception() is None for run in under_way), "what has begun ends well"
    with pytest.raises(UserError, match="closed"):
        model(X)


def test_what_cannot_be_placed_is_refused() -> None:
    module = _model()
    with pytest.raises(UserError, match="devices and the one CPU"):
        tw.place(module, [X], ["native"])
    with pytest.raises(UserError, match="of one device"):
        tw.place(module, [X], ["accel"], options=tw.CompileOptions(on_host=("k",)))
    x = Var("x", tensor_type((), "bool"))
    choice = infer_types(IRModule([Function("main", (x,), If(x, constant(np.float32(1)), constant(np.float32(2))))]))
    with pytest.raises(UserError, match="cannot be divided among places: it has if nodes"):
        tw.place(choice, [np.True_], ["accel"])
    open_rows = small_models.one_node("Relu", {"x": (TensorProto.FLOAT, ("rows", 3))})
    with pytest.raises(UserError, match="placed for fixed sizes"):
        tw.place(bytes(open_rows.SerializeToString()), [np.zeros((2, 3), np.float32)], ["accel"])
