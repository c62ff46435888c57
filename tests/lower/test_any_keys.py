"""Attention over any number of keys: what becomes one kernel, and what stays."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.graph.helpers import function, op, random
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Function, GraphExpr, Tuple, Var
from tilewright.graph.ir.infer import infer_types
from tilewright.ir.build import add
from tilewright.ir.expr import PrimExpr
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type
from tilewright.ir.visit import variables
from tilewright.lower.any_keys import any_keys
from tilewright.lower.general_sizes import dims_of

N, T, PAST = Symbol("n"), Symbol("t"), Symbol("past")


def attention(keys: PrimExpr | int, *mask: PrimExpr | int, by_head: bool = False) -> Function:
    shape = (N, 4, keys, 16) if by_head else (N, keys, 4, 16)
    params = [Var("q", tensor_type((N, T, 4, 16), "float32"))]
    params += [Var(name, tensor_type(shape, "float32")) for name in ("k", "v")]
    params += [Var("m", tensor_type(mask, "float32"))] if mask else []
    return typed(params, op("nn.attention", *params, keys_by_head=by_head, values_by_head=by_head))


def typed(params: list[Var], body: GraphExpr) -> Function:
    result = infer_types(function(params, body))
    assert isinstance(result, Function)
    return result


def test_keys_are_a_number_of_their_own() -> None:
    before = attention(add(T, PAST), N, 1, T, add(T, PAST))
    after, sizes = any_keys(before)
    (keys,) = sizes
    assert sizes[keys] is add(T, PAST)
    shapes = [dims_of(param.type) for param in after.params]
    assert shapes[0][:2] == (N, T) and shapes[1][1] is shapes[2][1] is shapes[3][3] is keys and shapes[3][2] is T
    assert dims_of(after.body.type)[:2] == (N, T)


@pytest.mark.parametrize("mask", [(T, T), (N, 1, 1, T), (N, 4, T, 1), ()])
@pytest.mark.parametrize("by_head", [False, True])
def test_as_many_keys_as_queries_are_one_too(mask: tuple[PrimExpr | int, ...], by_head: bool) -> None:
    after, sizes = any_keys(attention(T, *mask, by_head=by_head))
    (keys,) = sizes
    assert sizes[keys] is T
    lengths = [size for param in after.params for size in dims_of(param.type) if size is not None]
    assert {symbol for size in lengths for symbol in variables(size)} == {N, T, keys}


def test_what_stays() -> None:
    known = attention(8)
    assert any_keys(known) == (known, {})
    x = Var("x", tensor_type((N, T), "float32"))
    other = typed([x], op("nn.relu", x))
    assert any_keys(other) == (other, {})
    q, k = (Var(name, tensor_type((N, T, 4, 16), "float32")) for name in "qk")
    twice = typed([q, k], op("nn.attention", q, k, k))
    assert any_keys(twice) == (twice, {}), "keys that are values as well are one parameter"


def test_attention_over_itself_and_over_others_is_one_kernel() -> None:
    def parameters(name: str, count: PrimExpr) -> list[Var]:
        shapes = {"q": (N, T, 4, 16), "k": (N, count, 4, 16), "v": (N, count, 4, 16), "m": (N, 1, T, count)}
        return [Var(name + kind, tensor_type(shape, "float32")) for kind, shape in shapes.items()]

    def arrays(count: int) -> list[np.ndarray]:
        shapes = ((2, 5, 4, 16), (2, count, 4, 16), (2, count, 4, 16), (2, 1, 5, count))
        return [random(number + count, *shape) for number, shape in enumerate(shapes)]

    first, second = parameters("first_", T), parameters("second_", PAST)
    main = typed([*first, *second], Tuple((op("nn.attention", *first), op("nn.attention", *second))))
    compilation = tw.Compilation(IRModule({"main": main}), threads=1)
    assert len(compilation.kernels) == 1 and not compilation.failed_templates
    inputs = [*arrays(5), *arrays(8)]
    expected = evaluate(main, *inputs)
    assert isinstance(expected, tuple)
    for ours, theirs in zip(compilation.executable()(*inputs), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
