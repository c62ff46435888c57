"""What a user sees of objects in a session: a short line by name, the whole text on print."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import tilewright as tw
from tests.graph.helpers import function, op, var
from tilewright import te
from tilewright.compiler import Compilation
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.text import parse_text
from tilewright.ir.function import IRModule
from tilewright.ir.structural import structural_equal
from tilewright.tir.schedule import Schedule

_LONGEST = 200


def model() -> IRModule:
    x = var("x", 2, 3)
    return infer_types(IRModule([function([x], op("nn.relu", x))]))


def loops() -> tuple[te.Tensor, te.Tensor]:
    a = te.placeholder((8,), name="A")
    return a, te.compute((8,), lambda i: a[i] * 2.0, name="B")


def test_representations_are_short_and_say_what_the_thing_is() -> None:
    graph = model()
    compilation = Compilation(graph, threads=1)
    a, b = loops()
    schedule = Schedule(te.create_prim_func([a, b]))
    executable = tw.compile(graph, threads=1)
    built = tw.build(te.create_schedule(b.op), [a, b])
    shown = {
        "IRModule(main)": graph,
        "Function(main(x))": graph["main"],
        "Compilation(IRModule(main) for ": compilation,
        "Kernel(tw_nn_relu_": compilation.kernels[0],
        "LoweredModel(": compilation.lowered,
        "Schedule(main: B)": schedule,
        "PrimFunc(main(": schedule.func,
        "Trace(0 calls)": schedule.trace,
        "Executable(": executable,
        "Artifact(": executable.artifact,
        "JitLibrary(": executable.library,
        "Module(main(A: float32[8], B: float32[8]))": built,
        "cpu(0)": tw.runtime.cpu(0),
    }
    for start, item in shown.items():
        assert repr(item).startswith(start) and len(repr(item)) < _LONGEST, repr(item)
    assert str(schedule.trace) == ""  # looking records nothing


def test_printing_gives_the_text_that_parses_back() -> None:
    graph = model()
    assert structural_equal(parse_text(str(graph), "printed")["main"], graph["main"])
    a, b = loops()
    program = te.create_prim_func([a, b])
    assert structural_equal(tw.script.parse(str(program)), program)
    assert str(IRModule([program])).startswith("@script.module")


def test_modules_of_many_functions_name_the_first() -> None:
    names = [f"f{number}" for number in range(20)]
    a, b = loops()
    program = te.create_prim_func([a, b])
    assert repr(IRModule([program.replace(name=name) for name in names])).endswith("f7, and 12 more)")


def test_the_logger_says_what_was_compiled_and_where_the_time_went(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="tilewright"):
        executable = tw.compile(model(), threads=1)
    executable(np.zeros((2, 3), np.float32))
    texts = [(record.levelno, record.getMessage()) for record in caplog.records]
    assert any(level == logging.INFO and ("compiled" in text or "cache" in text) for level, text in texts)
    assert any(level == logging.DEBUG and text.endswith("ms") for level, text in texts)
