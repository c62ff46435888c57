"""Operators about sizes: what they say about types, and what they compute."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.ops.running import infer
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Call, Function, If, Let, Tuple, TupleGet, Var, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import call
from tilewright.graph.ir.traverse import post_order
from tilewright.graph.ops.symbolic import requirements
from tilewright.graph.passes.canonicalize import canonicalize
from tilewright.graph.passes.eliminate_common_subexpressions import eliminate_common_subexpressions
from tilewright.graph.passes.eliminate_dead_code import eliminate_dead_code
from tilewright.graph.pipeline import optimize
from tilewright.graph.text.parser import parse_text
from tilewright.graph.text.printer import to_text
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.function import IRModule
from tilewright.ir.structural import structural_equal
from tilewright.ir.types import SequenceType, tensor_type
from tilewright.support.errors import UserError

N, M, COUNT = Symbol("n"), Symbol("m"), Symbol("count")
X = tensor_type((N, 4), "float32")


def test_types():
    assert infer("dimensions", values=(N, 2), shape=(2, 1)) is tensor_type((2, 1), "int64")
    assert infer("arange", count=N * 2) is tensor_type((N * 2,), "int64")
    assert infer("shape.match", tensor_type((None, 4), "float32"), dims=X.shape) is X
    assert infer("assume_shape", tensor_type((M, 4), "float32"), shape=(N, 4)) is X
    places = tensor_type((2,), "int64")
    assert infer("shape.reshape", X, places, dims=X.shape) is X
    assert infer("sequence.stack", SequenceType(X), places, dims=(M, *X.shape), dtype=X.dtype).shape[0] is M
    with pytest.raises(UserError, match="is not"):
        infer("shape.match", tensor_type((3,), "float32"), dims=tensor_type((4,), "float32").shape)
    with pytest.raises(UserError, match="has not 1 dimensions"):
        infer("assume_shape", X, shape=(N,))
    with pytest.raises(UserError, match="do not fill the shape"):
        infer("dimensions", values=(N,), shape=(2,))


def found(data):
    """The elements of a vector that are not zero, as a function whose result has a size of its own."""
    x = Var("x", tensor_type((N,), "float32"))
    places = call("host.nonzero", x, dims=(COUNT,))
    bound = Var("places", tensor_type((1, COUNT), "int64"))
    return x, Let(bound, places, data(x, bound))


def test_a_symbol_that_only_its_size_needs_keeps_its_binding():
    # Nothing reads the places: their number is all that the result wants.
    x, body = found(lambda x, places: call("dimensions", values=(COUNT, COUNT * 2), shape=(2,)))
    module = infer_types(IRModule([Function("main", (x,), body)]))
    value = np.array([0, 1, 2, 0, 3], np.float32)
    assert evaluate(module, value).tolist() == [3, 6]
    for change in (eliminate_dead_code, canonicalize, eliminate_common_subexpressions, optimize):
        changed = change(module)
        assert evaluate(changed, value).tolist() == [3, 6], change
        text = to_text(changed)
        assert structural_equal(parse_text(text, constants=text.constants), changed)


def test_a_binding_that_nothing_needs_goes():
    x, body = found(lambda x, places: call("nn.relu", x))
    module = eliminate_dead_code(infer_types(IRModule([Function("main", (x,), body)])))
    assert not any(isinstance(item, Let) for item in post_order(module["main"]))


def test_sizes_of_one_name_are_not_one_size():
    a, b = Symbol("size"), Symbol("size")
    x, y = Var("x", tensor_type((a,), "float32")), Var("y", tensor_type((b,), "float32"))
    parts = tuple(call("dimensions", values=(size,), shape=(1,)) for size in (a, b))
    main = Function("main", (x, y), Tuple((*parts, call("nn.relu", x), call("nn.relu", y))))
    module = eliminate_common_subexpressions(infer_types(IRModule([main])))
    results = evaluate(module, np.zeros(2, np.float32), np.zeros(3, np.float32))
    assert [item.tolist() for item in results[:2]] == [[2], [3]]


def test_arguments_give_symbols_values_and_are_checked():
    x, y = Var("x", tensor_type((N, M), "float32")), Var("y", tensor_type((N * 2,), "float32"))
    main = Function("main", (x, y), call("reshape", x, shape=(N * M,)))
    assert evaluate(main, np.ones((2, 3), np.float32), np.ones(4, np.float32)).shape == (6,)
    with pytest.raises(UserError, match=r"dimension 0 of the argument y is 5, expected \(n \* 2\) = 4"):
        evaluate(main, np.ones((2, 3), np.float32), np.ones(5, np.float32))


def test_requirements():
    x, y = Var("x", tensor_type((N,), "float32")), Var("y", tensor_type((M,), "float32"))
    same = call("assume_shape", y, shape=(N,))
    main = Function("main", (x, y), call("add", x, same))
    infer_types(main)
    assert requirements(main) == [(M, N)]
    with pytest.raises(UserError, match="the model needs"):
        evaluate(main, np.ones(2, np.float32), np.ones(3, np.float32))


def test_branches_and_host_results_have_sizes_of_their_own():
    flag, x = Var("flag", tensor_type((), "bool")), Var("x", tensor_type((N,), "float32"))
    double = call("concatenate", x, x, axis=0)
    chosen = If(flag, double, x)
    size = Symbol("size")
    bound = Var("chosen", tensor_type((size,), "float32"))
    matched = call("shape.match", chosen, dims=(size,))
    body = Let(bound, matched, Tuple((call("multiply", bound, bound), call("dimensions", values=(size,), shape=()))))
    module = infer_types(IRModule([Function("main", (flag, x), body)]))
    assert chosen.type is tensor_type((None,), "float32")
    for program in (module, optimize(module)):
        for value, count in ((True, 6), (False, 3)):
            squares, length = evaluate(program, np.array(value), np.arange(3, dtype=np.float32))
            assert squares.shape == (count,)
            assert int(length) == count


def test_a_function_is_called_with_other_sizes():
    inner = Var("v", tensor_type((N,), "float32"))
    twice = Function("", (inner,), call("concatenate", inner, inner, axis=0))
    name, x = Var("twice"), Var("x", tensor_type((M,), "float32"))
    main = Function("main", (x,), Let(name, twice, Call(name, (Call(name, (x,)),))))
    infer_types(main)
    assert main.body.type is tensor_type((M * 4,), "float32")
    assert evaluate(main, np.ones(3, np.float32)).shape == (12,)


def test_results_of_several_sizes():
    x = Var("x", tensor_type((N,), "float32"))
    first, second = Symbol("first"), Symbol("second")
    sizes = Var("sizes", tensor_type((2,), "int64"))
    parts = Var("parts", infer("shape.split", x.annotation, sizes.annotation, dims=(first, second)))
    split = call("shape.split", x, sizes, dims=(first, second))
    items = [TupleGet(parts, index) for index in range(2)]
    main = Function("main", (x, sizes), Let(parts, split, Tuple((*items, call("arange", count=second)))))
    module = infer_types(IRModule([main]))
    for program in (module, optimize(module)):
        results = evaluate(program, np.arange(5, dtype=np.float32), np.array([2, 3]))
        assert [len(item) for item in results] == [2, 3, 3]


def test_a_constant_is_not_folded_before_symbols_have_values():
    x = Var("x", tensor_type((N,), "float32"))
    table = constant(np.arange(8, dtype=np.float32))
    row = call("slice", table, begin=(N,), end=(N + 1,), strides=(1,))
    module = optimize(infer_types(IRModule([Function("main", (x,), row)])))
    assert evaluate(module, np.zeros(3, np.float32)).tolist() == [3]
