"""The verifier: good programs pass at their stage, every violation is found and named with its place."""

from __future__ import annotations

import pytest

from tilewright.ir import expr as e
from tilewright.ir import intrinsics
from tilewright.ir.build import const
from tilewright.ir.dtype import DataType
from tilewright.ir.expr import Range, Var
from tilewright.ir.function import ExternFunc, IRModule
from tilewright.ir.passes import verify_stage
from tilewright.support.errors import CompilerBug, UserError
from tilewright.tir import stmt as s
from tilewright.tir.buffer import Buffer, BufferLoad, BufferRegion, make_buffer
from tilewright.tir.function import PrimFunc
from tilewright.tir.script import parse_script
from tilewright.tir.stmt import Block, BlockIter, For, IterKind, LoopKind
from tilewright.tir.verify import STAGES, verify, verify_written, violations

GOOD = """
@script.function
def f(A: Buffer[(8, n), "float32"], B: Buffer[(8,), "float32"], x: float32):
    T = alloc_buffer((8,), "float32")
    for i, j in grid(8, n):
        with block("T"):
            vi, vj = spatial(8, i), reduce(n, j)
            with init():
                T[vi] = 0.0
            T[vi] = T[vi] + A[vi, vj] * x
    for i in vectorized(8):
        with block("B"):
            vi = spatial(8, i)
            y = exp(T[vi])
            B[vi] = y if y < 2.0 else 2.0
"""
A = make_buffer("A", (8,))
LOOP_I, LOOP_J = Var("i"), Var("j")
ONE = s.BufferStore(A, (e.ZERO,), const(1.0))


def found(body: s.Stmt, stage: str = "blocks_lowered", params: tuple[Buffer | Var, ...] = (A,)) -> list[str]:
    return violations(PrimFunc("f", params, body), stage)


def block(name: str, body: s.Stmt, *iters: BlockIter, **fields: object) -> Block:
    return Block(name, iters, (), (A.full_region(),), body).replace(**fields)


def loop(var: Var, body: s.Stmt, kind: LoopKind = LoopKind.SERIAL, thread: str | None = None) -> For:
    return For(var, const(0, var.dtype), const(4, var.dtype), kind, body, thread)


def root(body: s.Stmt, *allocations: Buffer) -> Block:
    return Block("root", (), (), (), body, allocations=allocations)


def test_good_programs_pass() -> None:
    func = parse_script(GOOD)
    assert isinstance(func, PrimFunc)
    verify(func)
    verify_written(func)
    verify_stage(IRModule({"f": func, "g": ExternFunc("g")}), "scheduled")
    lowered = loop(LOOP_I, s.BufferStore(A, (LOOP_I,), const(1.0)))
    for stage in STAGES[1:]:
        assert found(lowered, stage) == []
    with pytest.raises(UserError, match="there is no stage 'cooked'"):
        verify(func, "cooked")


def test_reports_list_everything() -> None:
    body = s.SeqStmt((s.BufferStore(A, (LOOP_I,), const(1.0)), s.BufferStore(A, (LOOP_J,), const(1.0))))
    func = PrimFunc("f", (A,), body)
    with pytest.raises(CompilerBug) as caught:
        verify(func, "flattened")
    text = str(caught.value)
    assert "function f is not well formed at stage flattened (2 violations)" in text
    assert "variable i is used where it is not defined" in text
    assert "variable j is used where it is not defined" in text
    with pytest.raises(UserError, match="2 violations"):
        verify_written(func, "flattened")
    many = PrimFunc("f", (A,), s.SeqStmt(tuple(s.BufferStore(A, (LOOP_I,), const(1.0)) for _ in range(30))))
    with pytest.raises(CompilerBug, match="and 10 more"):
        verify(many, "flattened")


def test_places() -> None:
    inner = loop(LOOP_I, s.LetStmt(LOOP_J, const(1), s.BufferStore(A, (Var("k"),), const(1.0))))
    assert found(inner) == ["variable k is used where it is not defined, in for i / let j"]
    func = parse_script(GOOD.replace("x: float32", "x: float32, n: int32"))
    assert isinstance(func, PrimFunc)
    assert "(<script>:" in violations(func)[0]


V = Var("v")
DOMAIN = Range(e.ZERO, const(8))
BIND = BlockIter(V, DOMAIN, IterKind.SPATIAL, LOOP_I)
F64 = DataType.of("float64")
BOOLX = Var("p", DataType.of("int32"))
OTHER = make_buffer("B", (8,))
WIDE = make_buffer("W", (8, 8))

MASK = e.Broadcast(e.TRUE, 4)
VECTOR = s.BufferStore(A, (e.Ramp(e.ZERO, e.ONE, 4),), e.Broadcast(const(1.0), 4))

CASES: list[tuple[str, s.Stmt, str, str]] = [
    ("root", ONE, "scheduled", "the body is not a root block"),
    ("root name", block("main", ONE), "scheduled", "the body is not a root block"),
    ("block left", root(ONE), "blocks_lowered", "block root is left after lowering"),
    (
        "out of scope",
        s.SeqStmt((loop(LOOP_I, ONE), s.BufferStore(A, (LOOP_I,), const(1.0)))),
        "flattened",
        "variable i is used",
    ),
    ("bound twice", s.SeqStmt((loop(LOOP_I, ONE), loop(LOOP_I, ONE))), "flattened", "loop variable i is bound twice"),
    ("let twice", loop(LOOP_I, s.LetStmt(LOOP_I, const(1), ONE)), "flattened", "variable i is bound twice"),
    (
        "undeclared",
        s.BufferStore(OTHER, (e.ZERO,), const(1.0)),
        "flattened",
        "buffer B is used where it is not declared",
    ),
    ("undeclared load", s.Evaluate(OTHER[0]), "flattened", "buffer B is used where it is not declared"),
    ("declared twice", s.Allocate(OTHER, s.Allocate(OTHER, ONE)), "flattened", "buffer B is declared twice"),
    ("let type", s.LetStmt(LOOP_I, const(1.0), ONE), "flattened", "variable i of int64 is defined as a float32"),
    ("nested", s.SeqStmt((s.SeqStmt((ONE, ONE)), ONE)), "flattened", "a sequence inside a sequence"),
    ("if", s.IfThenElse(const(1), ONE), "flattened", "the condition of an if is a int64"),
    ("mask early", s.IfThenElse(MASK, VECTOR), "flattened", "the condition of an if is a boolx4"),
    ("mask type", s.IfThenElse(e.Ramp(e.ZERO, e.ONE, 4), VECTOR), "vectorized", "the condition of an if is a int64x4"),
    ("mask else", s.IfThenElse(MASK, VECTOR, VECTOR), "vectorized", "guards more than a single store"),
    ("mask body", s.IfThenElse(MASK, s.SeqStmt((VECTOR, VECTOR))), "vectorized", "guards more than a single store"),
    ("mask lanes", s.IfThenElse(MASK, ONE), "vectorized", "a condition of 4 lanes guards a store of others"),
    ("assert", s.Assert(const(1), "x"), "flattened", "an asserted condition is a int64"),
    (
        "thread",
        loop(LOOP_I, ONE, LoopKind.SERIAL, "threadIdx.x"),
        "flattened",
        "loop i is serial with thread axis threadIdx.x",
    ),
    ("no thread", loop(LOOP_I, ONE, LoopKind.THREAD), "flattened", "loop i is thread with thread axis None"),
    ("vectorized", loop(LOOP_I, ONE, LoopKind.VECTORIZED), "vectorized", "loop i is still vectorized"),
    ("unrolled", loop(LOOP_I, ONE, LoopKind.UNROLLED), "cpu_ready", "loop i is still unrolled"),
    ("vthread", loop(LOOP_I, ONE, LoopKind.VTHREAD), "cpu_ready", "loop i is still vthread"),
    ("extent", For(LOOP_I, e.ZERO, const(1.0), LoopKind.SERIAL, ONE), "flattened", "the extent of loop i is a float32"),
    (
        "types",
        For(LOOP_I, e.ZERO, const(1, "int32"), LoopKind.SERIAL, ONE),
        "flattened",
        "of types int64, int64, int32",
    ),
    ("lanes", s.BufferStore(A, (e.Ramp(e.ZERO, e.ONE, 4),), const(1.0)), "flattened", "1 lanes are stored to 4 places"),
    ("index", s.BufferStore(A, (const(1.0),), const(1.0)), "flattened", "an index of buffer A is a float32"),
    ("rank", s.Allocate(WIDE, ONE), "flattened", "buffer W has 2 dimensions, strides or an offset after flattening"),
    ("rank of access", s.Allocate(WIDE, s.Evaluate(WIDE[0, 0])), "flattened", "W is indexed with 2 dimensions"),
    ("constant", s.Evaluate(e.FloatImm(0.1, DataType.of("float32"))), "flattened", "the constant 0.1 is not a float32"),
    ("arity", s.Evaluate(e.Call("exp", (), F64)), "flattened", "exp with 0 arguments"),
    ("argument", s.Evaluate(e.Call("exp", (const(1),), F64)), "flattened", "exp of int64"),
    (
        "result",
        s.Evaluate(e.Call("exp", (const(1.0),), F64)),
        "flattened",
        "exp of float32 with the result type float64",
    ),
    ("and", s.Evaluate(e.And(const(1), const(2))), "flattened", "And of int64"),
    ("floordiv", s.Evaluate(e.FloorDiv(const(1.0), const(2.0))), "flattened", "FloorDiv of float32"),
    ("ramp", s.Evaluate(e.Ramp(const(1), const(1, "int32"), 4)), "flattened", "Ramp with base int64 and stride int32"),
    ("broadcast", s.Evaluate(e.Broadcast(const(1), 1)), "flattened", "Broadcast of 1 lanes"),
    (
        "mixed lanes",
        s.Allocate(WIDE, s.Evaluate(BufferLoad(WIDE, (e.Ramp(e.ZERO, e.ONE, 2), e.Ramp(e.ZERO, e.ONE, 4))))),
        "blocks_lowered",
        "W is indexed with vectors of different lanes",
    ),
    (
        "dimension",
        s.Allocate(Buffer("X", (const(1.0),), F64), ONE),
        "blocks_lowered",
        "a dimension of buffer X is a float32",
    ),
    ("block names", root(s.SeqStmt((block("b", ONE), block("b", ONE)))), "scheduled", "two blocks are named b"),
    (
        "iterator twice",
        root(
            s.SeqStmt((loop(LOOP_I, block("b", ONE, BIND)), loop(LOOP_J, block("c", ONE, BIND.replace(value=LOOP_J)))))
        ),
        "scheduled",
        "block iterator v is bound twice",
    ),
    (
        "iterator type",
        root(block("b", ONE, BlockIter(BOOLX, DOMAIN, IterKind.SPATIAL, const(1)))),
        "scheduled",
        "iterator p of int32 is bound to a int64",
    ),
    (
        "domain",
        root(block("b", ONE, BlockIter(V, Range(const(1.0), const(1)), IterKind.SPATIAL, e.ZERO))),
        "scheduled",
        "the domain of iterator v is a float32",
    ),
    ("predicate", root(block("b", ONE, predicate=const(1))), "scheduled", "the predicate of block b is a int64"),
    (
        "unlisted",
        root(block("b", ONE, writes=())),
        "scheduled",
        "block b writes buffer A, which its writes do not list",
    ),
    (
        "unlisted read",
        root(block("b", s.BufferStore(A, (e.ZERO,), A[1]))),
        "scheduled",
        "block b reads buffer A, which its reads do not list",
    ),
    (
        "outside",
        root(
            loop(
                LOOP_I,
                block(
                    "b",
                    s.BufferStore(A, (e.Add(V, const(1)),), const(1.0)),
                    BIND,
                    writes=(BufferRegion.point(A, (V,)),),
                ),
            )
        ),
        "scheduled",
        "block b writes A outside the regions that it lists",
    ),
    (
        "region",
        root(block("b", ONE, reads=(OTHER.full_region(),))),
        "scheduled",
        "a region of buffer B, which is not declared",
    ),
]


@pytest.mark.parametrize(("body", "stage", "message"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_violations(body: s.Stmt, stage: str, message: str) -> None:
    assert any(message in item for item in found(body, stage)), found(body, stage)


def test_masked_stores_are_allowed_after_vectorization() -> None:
    assert found(s.IfThenElse(MASK, VECTOR), "vectorized") == []


def test_parameters_are_distinct() -> None:
    assert "parameter A is given twice" in found(ONE, params=(A, A))[0]


def test_allocations_inside_blocks_are_private() -> None:
    temporary = make_buffer("T", (1,))
    store = s.BufferStore(temporary, (e.ZERO,), const(1.0))
    inside = block("inside", store, writes=(temporary.full_region(),))
    body = s.SeqStmt((store, inside, s.BufferStore(A, (e.ZERO,), temporary[0])))
    assert found(root(block("b", body, allocations=(temporary,))), "scheduled") == []
    lowered = s.Allocate(make_buffer("L", (1,)), ONE)
    assert found(root(block("b", lowered)), "scheduled") == []
    assert found(root(store, temporary), "scheduled") == []
    assert found(s.Evaluate(intrinsics.barrier()), "cpu_ready") == []
