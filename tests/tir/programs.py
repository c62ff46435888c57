"""Random expressions and loop programs for property tests of the loop-level IR."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from tilewright.ir import expr as e
from tilewright.ir import intrinsics
from tilewright.ir.build import const
from tilewright.ir.dtype import BOOL, INDEX, DataType
from tilewright.ir.expr import PrimExpr, Range, Var
from tilewright.ir.small_floats import FORMATS
from tilewright.tir import stmt as s
from tilewright.tir.buffer import Buffer, BufferLoad, BufferRegion, make_buffer
from tilewright.tir.function import PrimFunc
from tilewright.tir.stmt import Block, BlockIter, For, IterKind, LoopKind, Stmt

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
INTEGERS += ["int4", "uint4", "int2", "uint2", "int1", "uint1"]
FLOATS = ["float16", "float32", "float64", "bfloat16", *FORMATS]
FLOAT_CALLS = [name for name, item in intrinsics.table.items() if item.accepts == "float" and item.result == "same"]
INT_CALLS = [name for name, item in intrinsics.table.items() if item.accepts == "integer"]


@st.composite
def constants(draw: st.DrawFn, dtype: DataType) -> PrimExpr:
    """A constant of a type, special values included."""
    if dtype.is_bool:
        return const(draw(st.booleans()), dtype)
    if dtype.is_integer:
        small = st.integers(max(-8, dtype.min_value()), min(8, dtype.max_value()))
        whole = st.integers(dtype.min_value(), dtype.max_value())
        return e.IntImm(draw(small | whole), dtype)
    special = st.sampled_from([0.0, -0.0, 1.0, -1.5, math.inf, -math.inf, math.nan, 1e-30, 3e38, 1 / 3])
    return const(draw(special | st.floats(-100, 100)), dtype)


@st.composite
def expressions(
    draw: st.DrawFn,
    dtype: DataType,
    variables: dict[DataType, list[Var]],
    buffers: list[Buffer] = [],  # noqa: B006
    depth: int = 3,
) -> PrimExpr:
    """A well-typed expression of a scalar type over variables and one-dimensional buffers."""
    known = variables.get(dtype, [])
    loads = [buffer for buffer in buffers if buffer.dtype is dtype]
    if depth == 0 or draw(st.integers(0, 5)) == 0:
        if known and draw(st.booleans()):
            return draw(st.sampled_from(known))
        return draw(constants(dtype))

    def sub(kind: DataType = dtype) -> PrimExpr:
        return draw(expressions(kind, variables, buffers, depth - 1))

    if loads and draw(st.integers(0, 2)) == 0:
        buffer = draw(st.sampled_from(loads))
        return BufferLoad(buffer, tuple(sub(INDEX) for _ in buffer.shape))
    choice = draw(st.integers(0, 5))
    if choice == 0:
        return e.Select(sub(BOOL), sub(), sub())
    if choice == 1:
        other = DataType.of(draw(st.sampled_from(["bool", *INTEGERS, *FLOATS])))
        return e.Cast(sub(other), dtype)
    if dtype.is_bool:
        if choice == 2:
            return e.Not(sub())
        if choice == 3:
            return draw(st.sampled_from([e.And, e.Or]))(sub(), sub())
        other = DataType.of(draw(st.sampled_from(["int64", "int32", "uint8", "float32", "float16", "bool"])))
        kinds = [e.EQ, e.NE] if other.is_bool else [e.EQ, e.NE, e.LT, e.LE]
        return draw(st.sampled_from(kinds))(sub(other), sub(other))
    if choice == 2:
        name = draw(st.sampled_from(FLOAT_CALLS if dtype.is_float else INT_CALLS))
        arity = intrinsics.table[name].arity or 0
        return e.Call(name, tuple(sub() for _ in range(arity)), dtype)
    kinds = [e.Add, e.Sub, e.Mul, e.Min, e.Max, e.Div]
    if dtype.is_integer:
        kinds += [e.FloorDiv, e.FloorMod, e.Mod]
    return draw(st.sampled_from(kinds))(sub(), sub())


@st.composite
def functions(draw: st.DrawFn) -> PrimFunc:
    """A well-formed function of loops, conditionals, definitions, allocations and (often) blocks."""
    dtypes = [
        DataType.of(name)
        for name in draw(st.lists(st.sampled_from(["float32", "int32", "bool", "float16"]), min_size=1, max_size=3))
    ]
    extent = draw(st.integers(1, 4))
    symbol = Var("n")
    params: list[Buffer | Var] = [make_buffer(f"A{i}", (extent,), dtype) for i, dtype in enumerate(dtypes)]
    if draw(st.booleans()):
        params.append(
            Buffer("S", (symbol, e.Add(symbol, const(1))), DataType.of("float32"), "global", (symbol, const(1)))
        )
    scalar = Var("x", DataType.of("float32"))
    if draw(st.booleans()):
        params.append(scalar)
    maker = _Maker(draw, [p for p in params if isinstance(p, Buffer)], {INDEX: []})
    if scalar in params:
        maker.variables[scalar.dtype] = [scalar]
    blocks = draw(st.booleans())
    body = maker.statement(3, blocks)
    if blocks:
        allocated = make_buffer("T", (2, 2), "float32", draw(st.sampled_from(["global", "local", "shared"])))
        body = Block("root", (), (), (), body, allocations=(allocated,) if draw(st.booleans()) else ())
    attributes: dict[str, object] = {"note": [1, 2.5, "x", (None, True)]} if draw(st.booleans()) else {}
    return PrimFunc(draw(st.sampled_from(["main", "a.b", "for"])), tuple(params), body, attributes)


class _Maker:
    def __init__(self, draw: st.DrawFn, buffers: list[Buffer], variables: dict[DataType, list[Var]]) -> None:
        self.draw = draw
        self.buffers = buffers
        self.variables = variables
        self.count = 0

    def fresh(self, hint: str) -> str:
        self.count += 1
        return f"{hint}{self.count if self.draw(st.booleans()) else ''}"

    def expr(self, dtype: DataType, depth: int = 2) -> PrimExpr:
        return self.draw(expressions(dtype, self.variables, self.buffers, depth))

    def with_var(self, var: Var, depth: int, blocks: bool) -> Stmt:
        self.variables.setdefault(var.dtype, []).append(var)
        body = self.statement(depth, blocks)
        self.variables[var.dtype].remove(var)
        return body

    def statement(self, depth: int, blocks: bool) -> Stmt:
        draw = self.draw
        choice = draw(st.integers(0, 8)) if depth > 0 else 0
        if choice <= 1:
            buffer = draw(st.sampled_from(self.buffers))
            return s.BufferStore(buffer, tuple(self.expr(INDEX, 1) for _ in buffer.shape), self.expr(buffer.dtype))
        if choice == 2:
            return s.SeqStmt(tuple(self.statement(depth - 1, blocks) for _ in range(draw(st.integers(0, 3)))))
        if choice == 3:
            var = Var(self.fresh("y"), DataType.of(draw(st.sampled_from(["float32", "int64", "bool"]))))
            return s.LetStmt(var, self.expr(var.dtype), self.with_var(var, depth - 1, blocks))
        if choice == 4:
            orelse = self.statement(depth - 1, blocks) if draw(st.booleans()) else None
            return s.IfThenElse(self.expr(BOOL), self.statement(depth - 1, blocks), orelse)
        if choice == 5:
            buffer = make_buffer(
                self.fresh("B"), (self.expr(INDEX, 1),), "float32", "local", (), draw(st.sampled_from([0, 64]))
            )
            self.buffers.append(buffer)
            body = self.statement(depth - 1, blocks)
            self.buffers.remove(buffer)
            return s.Allocate(buffer, body)
        if choice == 6 and blocks:
            return self.block(depth)
        if choice == 7:
            return draw(
                st.sampled_from(
                    [
                        s.Evaluate(intrinsics.barrier("shared")),
                        s.Evaluate(intrinsics.call_extern("int32", "f", 1, 2.0)),
                        s.Assert(self.expr(BOOL, 1), 'he said "no"\n'),
                    ]
                )
            )
        kind = draw(st.sampled_from(list(LoopKind)))
        dtype = DataType.of(draw(st.sampled_from(["int64", "int64", "int32"])))
        var = Var(self.fresh("i"), dtype)
        thread = draw(st.sampled_from(["threadIdx.x", "blockIdx.y"])) if kind is LoopKind.THREAD else None
        notes: dict[str, object] = {"unroll": 4, "e": self.expr(INDEX, 1)} if draw(st.integers(0, 4)) == 0 else {}
        low, extent = (
            (e.IntImm(0, dtype), e.IntImm(4, dtype))
            if draw(st.booleans())
            else (self.expr(dtype, 1), self.expr(dtype, 1))
        )
        return For(var, low, extent, kind, self.with_var(var, depth - 1, blocks), thread, notes)

    def block(self, depth: int) -> Stmt:
        draw = self.draw
        iters = []
        for _ in range(draw(st.integers(0, 2))):
            var = Var(self.fresh("v"), INDEX)
            domain = Range(self.expr(INDEX, 0), self.expr(INDEX, 0))
            iters.append(BlockIter(var, domain, draw(st.sampled_from(list(IterKind))), self.expr(INDEX, 1)))
        predicate = self.expr(BOOL) if draw(st.booleans()) else e.TRUE
        for item in iters:
            self.variables[INDEX].append(item.var)
        regions = [self.region() for _ in range(draw(st.integers(0, 3)))]
        init = self.statement(0, False) if draw(st.booleans()) else None
        body = self.statement(depth - 1, True)
        for item in iters:
            self.variables[INDEX].remove(item.var)
        name = f"block{self.count}"
        self.count += 1
        split = len(regions) // 2
        return Block(name, tuple(iters), tuple(regions[:split]), tuple(regions[split:]), body, init, predicate)

    def region(self) -> BufferRegion:
        buffer = self.draw(st.sampled_from(self.buffers))
        return BufferRegion(buffer, tuple(Range(self.expr(INDEX, 1), self.expr(INDEX, 1)) for _ in buffer.shape))
