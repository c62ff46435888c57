"""The stateful way to run a compiled model, as the first papers show it: create, set_input, run, get_output."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import tilewright as tw
from bench import zoo
from tests.integration import small_models
from tilewright import runtime
from tilewright.cli.measure import max_relative_error
from tilewright.cli.peers import onnxruntime
from tilewright.support.errors import UserError


def test_create_set_input_run_get_output() -> None:
    graph = tw.frontend.from_onnx(zoo.path("lstm_lm_1"))
    lib = tw.compile(graph, target="native", threads=1)
    module = runtime.create(lib, runtime.cpu(0))
    inputs = zoo.inputs("lstm_lm_1")
    module.set_input("tokens", inputs["tokens"])
    module.set_input(h0=inputs["h0"], c0=runtime.array(inputs["c0"]))
    module.run()
    expected = onnxruntime(zoo.path("lstm_lm_1"), 1, inputs)()
    actual = [module.get_output(index).numpy() for index in range(module.get_num_outputs())]
    assert max_relative_error(actual, expected) <= 1e-4


def test_outputs_and_inputs_are_copies_of_their_moment() -> None:
    module = runtime.create(tw.compile(small_models.classifier().SerializeToString(), threads=1))
    x = small_models.image(1)
    module.set_input(0, x)
    x[...] = 0
    module.run()
    first = module.get_output(0).numpy().copy()
    kept = module.get_output(0)
    into = np.empty((1, 10), np.float32)
    module.run(image=small_models.image(2))
    module.get_output(0, into)
    np.testing.assert_array_equal(kept.numpy(), first)
    assert np.abs(into - first).max() > 0
    module.set_input("image", small_models.image(1))
    module.run()
    np.testing.assert_array_equal(module.get_output(0).numpy(), first)


def test_a_loaded_library_runs_the_same_way(tmp_path: Path) -> None:
    path = tmp_path / "small.so"
    executable = tw.compile(small_models.classifier().SerializeToString(), threads=1)
    executable.export_library(path)
    module = runtime.create(tw.load(path))
    module.run(image=small_models.image())
    np.testing.assert_array_equal(module.get_output(0).numpy(), executable(small_models.image()))


def test_messages() -> None:
    shapes = {"a": (small_models.FLOAT, [2]), "b": (small_models.FLOAT, [2])}
    node = onnx.helper.make_node("Add", ["a", "b"], ["y"])
    model = small_models.model([node], shapes, {"y": (small_models.FLOAT, [2])})
    module = runtime.create(tw.compile(model.SerializeToString(), threads=1))
    with pytest.raises(UserError, match="the model has not run yet"):
        module.get_output(0)
    module.set_input("a", [1.0, 2.0])
    with pytest.raises(UserError, match="the input 'b' is missing"):
        module.run()
    with pytest.raises(UserError, match="the model has no input 'c'"):
        module.set_input("c", [1.0, 2.0])
    module.run(b=[3.0, 4.0])
    np.testing.assert_array_equal(module.get_output(0).numpy(), [4.0, 6.0])
    with pytest.raises(UserError, match="the model has no output number 1"):
        module.get_output(1)
