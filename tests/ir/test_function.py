"""Modules and functions."""

from __future__ import annotations

import pytest

from tilewright.ir.function import Constructor, ExternFunc, IRModule, TypeDefinition
from tilewright.ir.types import TypeVariable
from tilewright.support.errors import UserError
from tilewright.support.span import Span


def test_modules_hold_functions_by_name() -> None:
    module = IRModule([ExternFunc("f"), ExternFunc("g")])
    assert list(module) == ["f", "g"]
    assert len(module) == 2
    assert "f" in module
    assert module["g"].name == "g"
    with pytest.raises(UserError, match="the module has no function 'h'") as caught:
        module["h"]
    assert "it has: f, g" in str(caught.value)
    with pytest.raises(UserError, match="it has: none"):
        IRModule()["f"]
    with pytest.raises(UserError, match="two functions named f in one module"):
        IRModule([ExternFunc("f"), ExternFunc("f")])


def test_modules_are_values() -> None:
    module = IRModule([ExternFunc("f")], attributes={"a": 1})
    more = module.with_function(ExternFunc("g")).with_attributes(b=2)
    assert list(module) == ["f"]
    assert module.attributes == {"a": 1}
    assert list(more) == ["f", "g"]
    assert more.attributes == {"a": 1, "b": 2}
    assert list(more.with_functions({"x": ExternFunc("y")})) == ["x"]
    other = ExternFunc("f")
    assert module.with_function(other)["f"] is other


def test_type_definitions() -> None:
    nil, cons = Constructor("Nil", (), "List"), Constructor("Cons", (), "List")
    definition = TypeDefinition("List", (TypeVariable("a"),), (nil, cons))
    assert definition.constructor("Cons") is cons
    with pytest.raises(UserError, match="type List has no constructor Snoc"):
        definition.constructor("Snoc")
    assert IRModule(types=[definition]).types == {"List": definition}


def test_spans_stay_on_rebuilt_functions() -> None:
    function = ExternFunc("f")
    assert function.span is None
    function.span = Span("model.onnx")
    assert function.replace(name="g").span == Span("model.onnx")
