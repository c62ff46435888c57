"""The graph pipeline: its list, stage dumps and overrides, contracts between passes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.generate import random_module
from tests.graph.helpers import function, op, random, var
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.options import GraphOptions
from tilewright.graph.pipeline import graph_pipeline, optimize
from tilewright.graph.text import parse_text
from tilewright.graph.verify import verify_fused, verify_typed
from tilewright.ir.function import IRModule
from tilewright.ir.passes import Recorder, instrumented
from tilewright.ir.structural import assert_same_ir
from tilewright.support import settings
from tilewright.support.errors import CompilerBug, UserError


def model():
    x = var("x", 2, 3)
    return IRModule([function([x], op("nn.relu", op("matmul", x, constant(random(0, 3, 16)))))])


def test_list_of_passes():
    names = [name for name, _ in graph_pipeline(GraphOptions(layout="NHWC"))]
    assert names[0] == "infer_types"
    assert names[-2:] == ["fuse", "joint_results"]
    assert "convert_layout" in names
    assert "fuse" not in [name for name, _ in graph_pipeline(GraphOptions(fuse=False))]


def test_contracts_hold_after_every_pass(monkeypatch):
    with settings.VERIFY.override(True):
        for seed in range(10):
            optimize(random_module(seed), GraphOptions(layout="NHWC"))


def test_contracts_are_checked():
    untyped = model()
    with pytest.raises(CompilerBug, match="has no type"):
        verify_typed(untyped)
    typed = infer_types(model())
    with pytest.raises(CompilerBug, match="matmul of main is in no kernel"):
        verify_fused(typed)
    typed["main"].type = infer_types(function([], constant(1))).type
    with pytest.raises(CompilerBug, match="the passes say"):
        verify_typed(typed)


def test_stages_are_recorded_as_text_that_parses():
    recorder = Recorder()
    with instrumented(recorder):
        result = optimize(model())
    name, text = recorder.stages[-1]
    assert name == "joint_results"
    assert_same_ir(parse_text(text), result)


def test_dump_and_override_with_constants(tmp_path):
    data = random(1, 2, 3)
    with settings.TRACE.override(frozenset(["dump"])), settings.DUMP_DIR.override(tmp_path / "dump"):
        expected = evaluate(optimize(model()), data)
    files = sorted((tmp_path / "dump" / "graph.module").iterdir())
    assert files[-1].name.endswith("joint_results.graph.py")
    chosen = next(path for path in files if "recognize" in path.name)
    text = chosen.read_text()
    assert "const[0]" in text
    target = tmp_path / "override" / "graph.module" / chosen.name
    target.parent.mkdir(parents=True)
    target.write_text(text.replace("nn.relu", "negative"))
    with settings.OVERRIDE_DIR.override(tmp_path / "override"):
        changed = evaluate(optimize(model()), data)
    assert not np.array_equal(changed, expected)
    np.testing.assert_allclose(np.maximum(-changed, 0), expected, rtol=1e-6)
    target.write_text("not python at all")
    with settings.OVERRIDE_DIR.override(tmp_path / "override"), pytest.raises(UserError, match="not valid Python"):
        optimize(model())
