"""Structural keys and equality: what counts, what does not, and how a difference is reported."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings

from tests.tir.programs import functions
from tilewright.graph.ir import expr as g
from tilewright.ir import expr as e
from tilewright.ir.build import const
from tilewright.ir.dtype import DataType
from tilewright.ir.expr import Var
from tilewright.ir.function import IRModule
from tilewright.ir.structural import (
    assert_same_ir,
    counted_fields,
    first_difference,
    structural_equal,
    structural_key,
)
from tilewright.ir.types import TensorType, TypeVariable, tensor_type
from tilewright.ir.visit import transform
from tilewright.support.errors import CompilerBug
from tilewright.tir import stmt as s
from tilewright.tir.buffer import Buffer, make_buffer
from tilewright.tir.function import PrimFunc
from tilewright.tir.script import parse_script
from tilewright.tir.stmt import For, LoopKind


def scale(name: str = "f", factor: float = 2.0, loop: str = "i", extent: int = 4) -> PrimFunc:
    a, b, i = make_buffer(f"A_{name}", (extent,)), make_buffer("B", (extent,)), Var(loop)
    store = s.BufferStore(b, (i,), a[i] * factor)
    return PrimFunc(name, (a, b), For(i, e.ZERO, const(extent), LoopKind.SERIAL, store))


def test_names_do_not_count() -> None:
    assert structural_key(scale("f", loop="i")) == structural_key(scale("g", loop="j"))
    assert structural_equal(scale(), scale())
    assert_same_ir(scale("f"), scale("g"))


def test_structure_counts() -> None:
    keys = {
        structural_key(item)
        for item in (scale(), scale(factor=3.0), scale(extent=5), scale().replace(attributes={"a": 1}), scale().body)
    }
    assert len(keys) == 5


def test_keys_do_not_depend_on_the_process() -> None:
    assert structural_key(e.Add(Var("x"), const(1))) == structural_key(e.Add(Var("y"), const(1)))
    assert len(structural_key(scale())) == 64


def test_variables_are_numbered_by_use() -> None:
    x, y = Var("x"), Var("y")
    assert structural_equal(e.Add(x, y), e.Add(y, x))
    assert not structural_equal(e.Add(x, y), e.Add(x, x))
    assert not structural_equal((x, y, e.Sub(x, y)), (x, y, e.Sub(y, x)))
    assert not structural_equal(Var("x"), Var("x", DataType.of("int32")))


def test_sharing_of_plain_structure_does_not_count() -> None:
    x = Var("x")
    shared = e.Range(x, const(4))
    assert structural_equal((x, shared, shared), (x, e.Range(x, const(4)), e.Range(x, const(4))))


def test_numbers_of_different_kinds_differ() -> None:
    values: list[object] = [1, True, 1.0, "1", None, (1,), [1], {"a": 1}, {1}, -0.0, 0.0, b"1", LoopKind.SERIAL]
    assert len({structural_key((value,)) for value in values}) == len(values)
    assert structural_key({"a": 1, "b": 2}) == structural_key({"b": 2, "a": 1})
    assert structural_key((np.int64(1),)) == structural_key((1,))
    assert structural_key((float("nan"),)) == structural_key((float("nan"),))


def test_arrays_count_by_content() -> None:
    a, b = np.arange(6, dtype=np.float32), np.arange(6, dtype=np.float32)
    assert structural_equal((a,), (b,))
    assert not structural_equal((a,), (a.reshape(2, 3),))
    assert not structural_equal((a,), (a.view(np.int32),))
    assert structural_equal((a.reshape(2, 3).T,), (np.ascontiguousarray(a.reshape(2, 3).T),))
    b.flags.writeable = False
    key = structural_key((b,))
    assert structural_key((b,)) == key == structural_key((a,))
    a[0] = 5
    assert structural_key((a,)) != key
    assert structural_key((np.zeros((0, 3)),)) != structural_key((np.zeros((3, 0)),))
    del b


def test_graphs() -> None:
    def graph(twice: bool, name: str = "x", weight: float = 1.0) -> g.Function:
        x = g.Var(name, tensor_type((2,), "float32"))
        one = g.Call(g.GlobalVar("f"), (x, g.constant([weight, 2.0], "float32")))
        two = g.Call(g.GlobalVar("f"), (x, g.constant([weight, 2.0], "float32"))) if twice else one
        return g.Function("main", (x,), g.Tuple((one, two)))

    assert structural_equal(graph(False), graph(False, "y"))
    assert not structural_equal(graph(False), graph(True))  # computed once or twice
    assert not structural_equal(graph(False), graph(False, weight=3.0))
    assert first_difference(graph(False), graph(True)) is not None


def test_deep_graphs() -> None:
    x = g.Var("x", tensor_type((2,), "float32"))
    body: g.GraphExpr = x
    for _ in range(20_000):
        body = g.Call(g.GlobalVar("f"), (body,))
    func = g.Function("main", (x,), body)
    assert len(structural_key(func)) == 64
    assert first_difference(func, func) is None


def test_wide_sharing_is_linear() -> None:
    x = Var("x", DataType.of("float32"))
    expr: e.PrimExpr = x
    for _ in range(300):
        expr = e.Mul(expr, expr)
    other: e.PrimExpr = Var("y", DataType.of("float32"))
    for _ in range(300):
        other = e.Mul(other, other)
    assert structural_equal(expr, other)
    assert first_difference(expr, other) is None


def test_types() -> None:
    n, m = Var("n"), Var("m")
    assert structural_equal(TensorType((n, n), DataType.of("int8")), TensorType((m, m), DataType.of("int8")))
    assert not structural_equal(TensorType((n, m), DataType.of("int8")), TensorType((n, n), DataType.of("int8")))
    assert structural_equal(TypeVariable("a"), TypeVariable("b"))


def test_modules() -> None:
    one, two = IRModule({"f": scale(), "g": scale(factor=3.0)}), IRModule({"g": scale(factor=3.0), "f": scale()})
    assert structural_equal(one, two)
    assert not structural_equal(one, IRModule({"f": scale(), "h": scale(factor=3.0)}))
    assert not structural_equal(one, one.with_attributes(a=1))
    assert str(first_difference(one, IRModule({"f": scale()}))) == ".functions: ['f', 'g'] and ['f']"
    found = first_difference(one, IRModule({"f": scale(extent=5), "g": scale(factor=3.0)}))
    assert found is not None
    assert found.path == ".functions['f'].params[0].shape[0].value"
    assert first_difference(one, two) is None
    assert first_difference(one, one.with_attributes(a=1)) is not None


@dataclass
class Note:
    text: str
    node: e.PrimExpr


class Described:
    def structural_text(self) -> str:
        return "described"


def test_other_values() -> None:
    x, y = Var("x"), Var("y")
    assert structural_equal((Note("a", x), x), (Note("a", y), y))
    assert not structural_equal((Note("a", x),), (Note("b", x),))
    assert structural_equal((Described(),), (Described(),))
    with pytest.raises(CompilerBug, match="a object in the IR has no structural text"):
        structural_key((object(),))
    assert counted_fields(Buffer) == ("shape", "dtype", "scope", "strides", "offset", "alignment")


def test_differences_are_shown() -> None:
    with pytest.raises(AssertionError) as caught:
        assert_same_ir(scale(factor=2.0), scale(factor=3.0))
    text = str(caught.value)
    assert "first difference at .body.body.value.b.value: 2.0 and 3.0" in text
    assert "-        B[i] = A_f[i] * 3.0" in text
    assert "+        B[i] = A_f[i] * 2.0" in text


@pytest.mark.parametrize(
    ("left", "right", "path"),
    [
        ((1, 2), (1, 3), "[1]"),
        ((1, 2), (1,), ""),
        ([1], (1,), ""),
        ({"a": 1}, {"b": 1}, ""),
        ({"a": 1}, {"a": 2}, "['a']"),
        ((e.Add(Var("x"), const(1)),), (e.Sub(Var("x"), const(1)),), "[0]"),
        ((const(1),), (1,), "[0]"),
    ],
)
def test_first_difference(left: object, right: object, path: str) -> None:
    found = first_difference(left, right)
    assert found is not None
    assert found.path == path
    assert not structural_equal(left, right)


def test_first_difference_of_variables() -> None:
    x, y = Var("x"), Var("y")
    found = first_difference(e.Add(x, x), e.Add(x, y))
    assert found is not None
    assert str(found) == ".b: Var x and Var y"


@given(functions())
@settings(max_examples=60)
def test_copies_have_the_same_key(func: PrimFunc) -> None:
    fresh: dict[Var, Var] = {}

    def rename(item: object) -> object:
        if type(item) is Var:
            if item not in fresh:
                fresh[item] = Var("other", item.dtype)
            return fresh[item]
        return None

    bound = {param for param in func.params if isinstance(param, Var)} | set(func.symbolic_dims())
    fresh.update({var: var for var in bound})
    copy = transform(func.body, rename)  # type: ignore[arg-type]
    # Shapes of allocations are not rewritten by a transform: leave out functions in which they use loop variables.
    shapes = [var for item in _allocated(func) for dim in item.shape for var in _variables(dim)]
    if all(var in bound for var in shapes):
        other = func.replace(name="other", body=copy)
        assert structural_key(other) == structural_key(func)
        assert first_difference(other, func) is None


def _allocated(func: PrimFunc) -> list[Buffer]:
    found: list[Buffer] = []
    stack: list[object] = [func.body]
    while stack:
        item = stack.pop()
        if isinstance(item, s.Allocate):
            found.append(item.buffer)
        if isinstance(item, s.Stmt):
            stack.extend(item.children())
    return found


def _variables(root: e.PrimExpr) -> list[Var]:
    found: list[object] = [root]
    for item in found:
        if isinstance(item, e.PrimExpr):
            found.extend(item.children())
    return [item for item in found if type(item) is Var]


def test_first_difference_agrees_with_keys() -> None:
    text = """
@script.function
def f(A: Buffer[(8,), "float32"]):
    for i in range(8):
        with block("b"):
            v = spatial(8, i)
            A[v] = A[v] + 1.0
"""
    func = parse_script(text)
    changes = [
        ("range(8)", "parallel(8)"),
        ("1.0", "1.5"),
        ("spatial", "reduce"),
        ('"float32"', '"float64"'),
        ("(8,)", "(9,)"),
    ]
    for old, new in changes:
        other = parse_script(text.replace(old, new))
        assert not structural_equal(func, other)
        assert first_difference(func, other) is not None
    assert structural_equal(func, parse_script(text.replace('"b"', '"c"')))
