"""Random integer and bool expressions of every width, and loops over narrow variables: exact."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.codegen.compiled import assert_stages_agree, run
from tests.tir.programs import expressions
from tilewright.ir import build
from tilewright.ir.dtype import DataType
from tilewright.ir.expr import ZERO, IntImm, PrimExpr, Var
from tilewright.ir.visit import pre_order, substitute
from tilewright.support.errors import UserError
from tilewright.tir.buffer import make_buffer
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.stmt import BufferStore, For, LoopKind

TYPES = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"]
SMALL = ["int4", "uint4", "int2", "uint2", "int1", "uint1"]
COUNT = 16


@settings(max_examples=40)
@given(data=st.data(), dtype=st.sampled_from([*TYPES, *SMALL]), lanes=st.sampled_from([1, 4, 16]))
def test_random_integer_expressions(data: st.DataObject, dtype: str, lanes: int) -> None:
    variables = {DataType.of(name): [Var(f"v_{name}", DataType.of(name))] for name in TYPES}
    expr = data.draw(expressions(DataType.of(dtype), variables, depth=3))
    assume(not any(isinstance(node, PrimExpr) and node.dtype.is_float for node in pre_order(expr)))
    outer, inner = Var("outer"), Var("inner")
    place = outer * lanes + inner
    buffers = {name: make_buffer(f"b_{name}", (COUNT,), name) for name in TYPES}
    result = make_buffer("result", (COUNT,), DataType.of(dtype).numpy().name)
    loads = {variables[DataType.of(name)][0]: buffer[place] for name, buffer in buffers.items()}

    value = build.cast(substitute(expr, loads), result.dtype)
    store = BufferStore(result, (place,), value)
    body = For(
        outer,
        ZERO,
        IntImm(COUNT // lanes),
        LoopKind.SERIAL,
        For(inner, ZERO, IntImm(lanes), LoopKind.VECTORIZED, store),
    )
    func = PrimFunc("random", (*buffers.values(), result), body)
    rng = np.random.default_rng(data.draw(st.integers(0, 100)))
    arrays = []
    for name in TYPES:
        kind = DataType.of(name)
        if kind.is_bool:
            arrays.append(rng.integers(0, 2, COUNT).astype(bool))
            continue
        edges = [kind.min_value(), kind.max_value(), 0, 1, kind.max_value() // 2, 3]
        arrays.append(np.array([edges[k] for k in rng.integers(0, 6, COUNT)], name))
    out = np.zeros(COUNT, result.dtype.numpy())
    try:
        interpret(func, *[a.copy() for a in arrays], out.copy())
    except UserError:
        assume(False)  # division by zero: the program is in error
    assert_stages_agree(func, *arrays, out)


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8", "uint32"])
@pytest.mark.parametrize("kind", [LoopKind.SERIAL, LoopKind.PARALLEL, LoopKind.VECTORIZED, LoopKind.UNROLLED])
def test_loops_over_narrow_variables(dtype: str, kind: LoopKind) -> None:
    i = Var("i", DataType.of(dtype))
    a, b = make_buffer("A", (40,), dtype), make_buffer("B", (40,), "int64")
    low, extent = IntImm(3, i.dtype), IntImm(20, i.dtype)
    body = For(i, low, extent, kind, BufferStore(b, (build.cast(i, "int64"),), build.cast(a[i] + i * i, "int64")))
    func = PrimFunc("narrow", (a, b), body)
    assert_stages_agree(func, np.arange(40).astype(dtype), np.zeros(40, "int64"))


def test_narrow_symbolic_extent() -> None:
    n, i = Var("n", DataType.of("int32")), Var("i", DataType.of("int32"))
    a = make_buffer("A", (16,), "int32")
    body = For(i, IntImm(0, i.dtype), n, LoopKind.PARALLEL, BufferStore(a, (i,), i * 2))
    func = PrimFunc("symbolic", (n, a), body)
    out = run(func, 10, np.zeros(16, "int32"))[1]
    np.testing.assert_array_equal(out, [*range(0, 20, 2), 0, 0, 0, 0, 0, 0])
