"""Every algorithm that a database may ask for, in small models, against onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper

import tilewright as tw
from tests.integration.small_models import FLOAT, model, onnxruntime_outputs
from tests.requirements import need
from tilewright.graph.choices import stored_answer
from tilewright.lower.database import Database
from tilewright.lower.records import Selection
from tilewright.support import settings as tilewright_settings

need("onnxruntime")


def _weights(**shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {name: (rng.standard_normal(shape) * 0.3).astype(np.float32) for name, shape in shapes.items()}


def _convolutions() -> onnx.ModelProto:
    """3 x 3 convolutions with a residual, of sizes that are no multiples of tiles."""
    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["a"], name="first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("Conv", ["b", "w1"], ["c"], name="second", pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c", "a"], ["d"], name="add"),
        helper.make_node("Conv", ["d", "w2"], ["y"], name="third", pads=[0, 1, 2, 0]),
    ]
    weights = _weights(w0=(24, 24, 3, 3), b0=(24,), w1=(24, 24, 3, 3), w2=(10, 24, 3, 3))
    return model(nodes, {"x": (FLOAT, [2, 24, 13, 11])}, {"y": (FLOAT, [2, 10, 13, 10])}, weights)


def _separable() -> onnx.ModelProto:
    """An image, and two depthwise convolutions that 1 x 1 convolutions read, one of them with a stride."""
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], name="image", pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["a"], ["b"], name="relu0"),
        helper.make_node("Conv", ["b", "w1", "b1"], ["c"], name="depth1", pads=[1, 1, 1, 1], group=12),
        helper.make_node("Clip", ["c", "low", "high"], ["d"], name="clip"),
        helper.make_node("Conv", ["d", "w2", "b2"], ["e"], name="point1"),
        helper.make_node("Relu", ["e"], ["f"], name="relu1"),
        helper.make_node("Conv", ["f", "w3"], ["g"], name="depth2", pads=[2, 2, 2, 2], strides=[2, 2], group=20),
        helper.make_node("Conv", ["g", "w4"], ["y"], name="point2"),
    ]
    weights = {
        **_weights(w0=(12, 3, 3, 3), w1=(12, 1, 3, 3), b1=(12,), w2=(20, 12, 1, 1), b2=(20,)),
        **_weights(w3=(20, 1, 5, 5), w4=(9, 20, 1, 1)),
        "low": np.array(0, np.float32),
        "high": np.array(6, np.float32),
    }
    return model(nodes, {"x": (FLOAT, [1, 3, 21, 18])}, {"y": (FLOAT, [1, 9, 6, 5])}, weights)


def _generator() -> onnx.ModelProto:
    """Transposed convolutions to many channels and to few."""
    up = {"strides": [2, 2], "pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("ConvTranspose", ["x", "w0"], ["a"], name="up1", **up),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("ConvTranspose", ["b", "w1"], ["c"], name="up2", **up),
        helper.make_node("Tanh", ["c"], ["y"], name="tanh"),
    ]
    weights = _weights(w0=(16, 32, 4, 4), w1=(32, 3, 4, 4))
    return model(nodes, {"x": (FLOAT, [1, 16, 5, 6])}, {"y": (FLOAT, [1, 3, 20, 24])}, weights)


MODELS = {"convolutions": _convolutions, "separable": _separable, "generator": _generator}
COUNTS = {"convolutions": 2, "separable": 3, "generator": 2}
"""How many questions each asks at least."""


def _database(path: Path, target: tw.Target, answers: Mapping[str, str]) -> Path:
    with Database(path) as database:
        database.select(Selection(key, str(target), stored_answer(answer)) for key, answer in answers.items())
    return path


@pytest.mark.parametrize(("name", "threads"), [("convolutions", 1), ("separable", 2), ("generator", 1)])
def test_every_answer_gives_the_same_results(name: str, threads: int, tmp_path: Path) -> None:
    source = MODELS[name]()
    content = bytes(source.SerializeToString())
    shape = [dim.dim_value or 3 for dim in source.graph.input[0].type.tensor_type.shape.dim]
    inputs = {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    (expected,) = onnxruntime_outputs(source, inputs)
    plain = tw.Compilation(content, threads=threads)
    questions = {item.key: item for item in plain.questions}
    assert len(questions) >= COUNTS[name]
    graphs = {tuple(kernel.symbol for kernel in plain.kernels)}
    forms = 1
    for place in range(2):
        # All alternatives of one place at once: more in fewer compilations.
        answers = {item.key: item.alternatives[place : place + 1] for item in questions.values()}
        chosen = {key: found[0] for key, found in answers.items() if found}
        if not chosen:
            continue
        database = _database(tmp_path / f"{place}.db", plain.target, chosen)
        made = tw.Compilation(content, threads=threads, database=database)
        # Alternatives have questions of their own, which the next form answers.
        for question in made.questions:
            questions.setdefault(question.key, question)
        graphs.add(tuple(kernel.symbol for kernel in made.kernels))
        forms += 1
        (got,) = tw.compile(content, threads=threads, database=database).run(inputs)
        np.testing.assert_allclose(got, expected, rtol=0, atol=2e-5 * float(np.abs(expected).max()))
    assert len(graphs) == forms > 1, "the answers made other kernels"


def test_answers_without_meaning_change_nothing(tmp_path: Path) -> None:
    content = bytes(_convolutions().SerializeToString())
    plain = tw.Compilation(content, threads=1)
    stale = dict.fromkeys((item.key for item in plain.questions), "winograd6")
    database = _database(tmp_path / "stale.db", plain.target, {**stale, "graph:something else": "direct"})
    made = tw.Compilation(content, threads=1, database=database)
    assert [kernel.symbol for kernel in made.kernels] == [kernel.symbol for kernel in plain.kernels]
    # For another number of cores other answers hold.
    other = dict.fromkeys((item.key for item in plain.questions), "direct")
    database = _database(tmp_path / "other.db", plain.target, other)
    assert not any(
        "winograd" in kernel.symbol for kernel in tw.Compilation(content, threads=1, database=database).kernels
    )
    three = [tw.Compilation(content, threads=3, database=place).kernels for place in (None, database)]
    assert [kernel.symbol for kernel in three[0]] == [kernel.symbol for kernel in three[1]]


def test_exactness_goes_before_answers(tmp_path: Path) -> None:
    content = bytes(_convolutions().SerializeToString())
    plain = tw.Compilation(content, threads=1)
    database = _database(tmp_path / "w.db", plain.target, {item.key: "winograd4" for item in plain.questions})
    kernels = tw.Compilation(content, threads=1, database=database).kernels
    assert sum("winograd" in kernel.symbol for kernel in kernels) >= 2
    direct = tw.Compilation(content, threads=1, database=database, winograd=False)
    assert not direct.questions and not any("winograd" in kernel.symbol for kernel in direct.kernels)


@st.composite
def separable_layers(draw: st.DrawFn) -> onnx.ModelProto:
    """A depthwise convolution, something after it, and a 1 x 1 convolution, of any sizes (a column would be turned)."""
    channels, outputs = draw(st.integers(2, 40)), draw(st.integers(1, 70))
    taps, stride, size = draw(st.sampled_from([2, 3, 5])), draw(st.integers(1, 2)), draw(st.integers(7, 19))
    before, after = draw(st.integers(0, taps - 1)), draw(st.integers(0, taps - 1))
    nodes = [
        helper.make_node(
            "Conv", ["x", "w0"], ["a"], name="d", pads=[before, after] * 2, strides=[stride] * 2, group=channels
        ),
        helper.make_node(draw(st.sampled_from(["Relu", "Tanh", "Identity"])), ["a"], ["b"], name="between"),
        helper.make_node("Conv", ["b", "w1", "b1"], ["y"], name="p"),
    ]
    weights = _weights(w0=(channels, 1, taps, taps), w1=(outputs, channels, 1, 1), b1=(outputs,))
    images = draw(st.sampled_from([1, 2, "n"]))
    return model(nodes, {"x": (FLOAT, [images, channels, size, size + 1])}, {"y": (FLOAT, None)}, weights)


def check_separable(source: onnx.ModelProto) -> None:
    """Compare the kernels that the estimate would not make with onnxruntime."""
    content = bytes(source.SerializeToString())
    shape = [dim.dim_value or 3 for dim in source.graph.input[0].type.tensor_type.shape.dim]
    inputs = {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    (expected,) = onnxruntime_outputs(source, inputs)
    plain = tw.Compilation(content, threads=1)
    (question,) = [item for item in plain.questions if item.nodes == ("d", "p")]
    request = replace(plain.request, answers={question.key: stored_answer(question.alternatives[0])})
    # Random kernels would only fill the cache.
    with tilewright_settings.CACHE.override(False):
        made = tw.Compilation.of(request)
        assert abs(len(made.kernels) - len(plain.kernels)) == 1
        (got,) = made.executable().run(inputs)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@settings(max_examples=3, suppress_health_check=list(HealthCheck))
@given(separable_layers())
def test_separable_layers_of_any_sizes(source: onnx.ModelProto) -> None:
    check_separable(source)


@pytest.mark.fuzz
@settings(max_examples=500, suppress_health_check=list(HealthCheck))
@given(separable_layers())
def test_many_separable_layers_of_any_sizes(source: onnx.ModelProto) -> None:
    check_separable(source)
