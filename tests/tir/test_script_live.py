"""`@tw.script` on functions of the running program."""
# ruff: noqa: F821, UP037

from __future__ import annotations

import numpy as np
import pytest

from tilewright.ir.function import IRModule
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.script import ScriptError, script
from tilewright.tir.script.dialect import Buffer


def test_live_functions_use_the_names_around_them() -> None:
    size, kind = 4, "float32"
    rows = (size, 2)

    @script
    def live(A: Buffer[rows, kind], B: Buffer[(size, 2), kind]):
        """Doubles."""
        for i, j in grid(size, 2):
            B[i, j] = A[i, j] * 2.0

    assert isinstance(live, PrimFunc)
    assert live.span is not None
    assert live.span.source.endswith("test_script_live.py")
    assert live.body.span is not None
    assert live.body.span.line == live.span.line + 2
    out = np.zeros((4, 2), np.float32)
    interpret(live, np.ones((4, 2), np.float32), out)
    assert (out == 2).all()


def test_live_module() -> None:
    @script.module
    class Module:
        attributes = {"entry": "f"}  # noqa: RUF012

        @script.function
        def f(A: Buffer[(2,), "float32"]):
            A[0] = 1.0

        @script.function(name="g.h")
        def g(A: "Buffer[(2,), 'float32']"):
            A[0] = 1.0

    assert isinstance(Module, IRModule)
    assert list(Module) == ["f", "g.h"]
    assert Module.attributes == {"entry": "f"}
    assert script.print(script.parse(script.print(Module))) == script.print(Module)


def test_live_functions_need_a_source() -> None:
    scope: dict[str, object] = {}
    # A name of its own: Python 3.13 knows what "<string>" holds in a process that runs `python -c`.
    exec(compile("def f(): pass", "<nowhere>", "exec"), scope)
    with pytest.raises(ScriptError, match="the source of f cannot be found"):
        script(scope["f"])
    with pytest.raises(ScriptError, match="no function definition"):
        script(lambda: 1)
