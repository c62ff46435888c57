"""Models that call loop functions: of one module, by name; and as operators."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.graph.helpers import op, var
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Call, Function, GlobalVar, GraphExpr, TupleGet
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.text import parse_text, to_text
from tilewright.ir.function import IRModule
from tilewright.ir.structural import structural_equal
from tilewright.lower.loop_calls import resolve_loop_calls
from tilewright.support.errors import UserError
from tilewright.te.hybrid import parse_hybrid
from tilewright.tir.function import PrimFunc
from tilewright.topi.loop_operators import call_loops, operator_of

ADD_ONE = parse_hybrid("""
def add_one(a, b):
    n = var("n")
    A = bind_buffer(a, shape=[n])
    B = bind_buffer(b, shape=[n])
    for i in iter_range(n, iter_type="data_par"):
        B[i] = A[i] + 1.0
""")
SCRIPT = tw.script.parse("""
@script.function
def row_sums(A: Buffer[(n, m), "float32"], B: Buffer[(n,), "float32"], C: Buffer[(n, 2 * m), "float32"]):
    for i, j in grid(n, m):
        with block("sum"):
            vi, vj = spatial(n, i), reduce(m, j)
            with init():
                B[vi] = 0.0
            B[vi] = B[vi] + A[vi, vj]
    for i, j in grid(n, 2 * m):
        with block("twice"):
            vi, vj = spatial(n, i), spatial(2 * m, j)
            C[vi, vj] = A[vi, vj // 2]
""")


def main_of(result: GraphExpr, *params: object) -> Function:
    return Function("main", params, result)  # type: ignore[arg-type]


def test_a_graph_function_calls_a_loop_function_of_its_module() -> None:
    x = var("x", 10)
    body = op("nn.relu", Call(GlobalVar("add_one"), (op("multiply", x, x),)))
    module = IRModule([main_of(body, x), ADD_ONE])
    given = np.linspace(-2, 2, 10, dtype=np.float32)
    np.testing.assert_allclose(tw.compile(module, threads=1)(given), given * given + 1, rtol=1e-6)
    resolved = infer_types(resolve_loop_calls(module))
    np.testing.assert_allclose(evaluate(resolved, given), given * given + 1, rtol=1e-6)
    assert "add_one" not in resolved and structural_equal(parse_text(to_text(resolved), "text"), resolved)


def test_sizes_and_several_results() -> None:
    a = var("a", 3, 5)
    call = call_loops(SCRIPT, a)
    total = op("add", op("reshape", TupleGet(call, 0), shape=(3, 1)), TupleGet(call, 1))
    module = infer_types(IRModule([main_of(total, a)]))
    given = np.arange(15, dtype=np.float32).reshape(3, 5)
    expected = given.sum(1, keepdims=True) + given.repeat(2, 1)
    np.testing.assert_allclose(evaluate(module, given), expected)
    np.testing.assert_allclose(tw.compile(module, threads=2)(given), expected)


def test_symbolic_sizes_go_through() -> None:
    from tilewright.graph.ir.expr import Var
    from tilewright.ir.dtype import FLOAT32
    from tilewright.ir.expr import Var as Symbol
    from tilewright.ir.types import TensorType

    x = Var("x", TensorType((Symbol("n"),), FLOAT32))
    executable = tw.compile(IRModule([main_of(Call(GlobalVar("add_one"), (x,)), x), ADD_ONE]), threads=1)
    for size in (1, 7, 0):
        given = np.arange(size, dtype=np.float32)
        np.testing.assert_array_equal(executable(given), given + 1)


def test_equal_functions_are_one_operator() -> None:
    again = ADD_ONE.replace()
    assert operator_of(ADD_ONE) is operator_of(again)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A: Buffer[(4,), 'float32'], k: int32, B: Buffer[(4,), 'float32']", "takes the number k"),
        ("A: Buffer[(4,), 'float32'], B: Buffer[(n,), 'float32']", "how large n is"),
    ],
)
def test_functions_that_cannot_be_operators(text: str, message: str) -> None:
    func = tw.script.parse(f"""
@script.function
def f({text}):
    for i in range(4):
        with block("B"):
            v = spatial(4, i)
            B[v] = A[v]
""")
    assert isinstance(func, PrimFunc)
    with pytest.raises(UserError, match=message):
        operator_of(func)


def test_results_have_no_values_before() -> None:
    func = tw.script.parse("""
@script.function
def f(A: Buffer[(4,), "float32"], B: Buffer[(4,), "float32"]):
    for i in range(4):
        with block("B"):
            v = spatial(4, i)
            B[v] = B[v] + A[v]
""")
    with pytest.raises(UserError, match="reads B before it writes it"):
        operator_of(func)
    with pytest.raises(UserError, match="called with 2 inputs"):
        call_loops(ADD_ONE, var("x", 4), var("y", 4))
    with pytest.raises(UserError, match="must be float32, it is int32"):
        infer_types(IRModule([main_of(call_loops(ADD_ONE, x := var("x", 4, dtype="int32")), x)]))
    with pytest.raises(UserError, match="a loop function is needed"):
        operator_of(main_of(var("x", 4)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("loop", "statement", "message"),
    [
        ("range(8)", "B[i] = A[i + 1]", "out of bounds: the index is 8"),
        ("parallel(8)", "B[0] = A[i]", "several iterations may write the same elements of B"),
    ],
)
def test_loop_functions_are_proven_where_they_become_operators(loop: str, statement: str, message: str) -> None:
    text = '@script.function\ndef f(A: Buffer[(8,), "float32"], B: Buffer[(8,), "float32"]):\n'
    func = tw.script.parse(f"{text}    for i in {loop}:\n        {statement}\n")
    assert isinstance(func, PrimFunc)
    with pytest.raises(UserError, match=message):
        operator_of(func)


def test_a_loop_function_without_blocks() -> None:
    func = tw.script.parse(
        '@script.function\ndef twice(A: Buffer[(8,), "float32"], B: Buffer[(8,), "float32"]):\n'
        "    for i in parallel(8):\n        B[i] = A[i] * 2.0\n"
    )
    assert isinstance(func, PrimFunc)
    x = var("x", 8)
    module = IRModule([main_of(call_loops(func, op("nn.relu", x)), x)])
    given = np.linspace(-2, 2, 8, dtype=np.float32)
    np.testing.assert_allclose(tw.compile(module, threads=1)(given), np.maximum(given, 0) * 2)
