"""Printing and parsing: what is printed parses back to the same program; messages show the place."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tir.programs import FLOATS, INTEGERS, expressions, functions
from tilewright.ir import expr as e
from tilewright.ir import intrinsics
from tilewright.ir.build import const
from tilewright.ir.codec import codec_for, to_text
from tilewright.ir.dtype import INDEX, DataType
from tilewright.ir.expr import Var
from tilewright.ir.function import ExternFunc, IRModule
from tilewright.ir.structural import assert_same_ir, structural_key
from tilewright.support.errors import UnsupportedError, UserError
from tilewright.tir import stmt as s
from tilewright.tir.buffer import BufferLoad, make_buffer
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.script import ScriptError, parse_script, to_script
from tilewright.tir.stmt import Block, For, LoopKind

MATMUL = """
@script.function
def matmul(A: Buffer[(8, 16), "float32"], B: Buffer[(16, 4), "float32"], C: Buffer[(8, 4), "float32"]):
    for i, j, k in grid(8, 4, 16):
        with block("C"):
            vi, vj = spatial(8, i), spatial(4, j) ; vk = reduce(16, k)
            with init(): C[vi, vj] = float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
"""


def round_trip(func: PrimFunc) -> PrimFunc:
    text = to_script(func)
    parsed = parse_script(text)
    assert isinstance(parsed, PrimFunc)
    assert_same_ir(parsed, func)
    assert parsed.name == func.name
    assert to_script(parsed) == text
    return parsed


def body_of(text: str, signature: str = 'A: Buffer[(8,), "float32"], n: int64') -> s.Stmt:
    lines = "\n".join(f"    {line}" for line in text.strip("\n").split("\n"))
    func = parse_script(f"@script.function\ndef f({signature}):\n{lines}\n")
    assert isinstance(func, PrimFunc)
    return func.body


def test_matmul_text() -> None:
    func = parse_script(MATMUL)
    assert isinstance(func, PrimFunc)
    assert to_script(func) == (
        "@script.function\n"
        'def matmul(A: Buffer[(8, 16), "float32"], B: Buffer[(16, 4), "float32"], C: Buffer[(8, 4), "float32"]):\n'
        "    for i, j, k in grid(8, 4, 16):\n"
        '        with block("C"):\n'
        "            vi, vj, vk = spatial(8, i), spatial(4, j), reduce(16, k)\n"
        "            reads(A[vi, vk], B[vk, vj])\n"
        "            writes(C[vi, vj])\n"
        "            with init():\n"
        "                C[vi, vj] = 0.0\n"
        "            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]"
    )
    round_trip(func)
    a, b, c = (np.random.default_rng(0).random(shape, np.float32) for shape in ((8, 16), (16, 4), (8, 4)))
    interpret(func, a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-5)


@given(functions())
@settings(max_examples=100)
def test_random_functions_round_trip(func: PrimFunc) -> None:
    round_trip(func)


@given(st.data())
@settings(max_examples=100)
def test_random_expressions_round_trip(data: st.DataObject) -> None:
    dtype = DataType.of(data.draw(st.sampled_from(["bool", *INTEGERS, *FLOATS])))
    variables = {INDEX: [Var("i"), Var("j")], dtype: [Var("x", dtype)]}
    expr = data.draw(expressions(dtype, variables, [make_buffer("A", (4,), "float32")], depth=5))
    params = (make_buffer("A", (4,), "float32"), *(v for group in variables.values() for v in group))
    target = make_buffer("R", (1,), dtype)
    loads = [item for item in _nodes(expr) if isinstance(item, BufferLoad)]
    params = (*({load.buffer for load in loads} or {params[0]}), target, *params[1:])
    round_trip(PrimFunc("f", params, s.BufferStore(target, (const(0),), expr)))


def _nodes(root: e.PrimExpr) -> list[object]:
    found: list[object] = [root]
    for item in found:
        if isinstance(item, e.PrimExpr):
            found.extend(item.children())
    return found


@pytest.mark.parametrize("value", [math.nan, -math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-45, 0.1, 1e300])
@pytest.mark.parametrize("name", FLOATS)
def test_float_constants_round_trip(value: float, name: str) -> None:
    target = make_buffer("R", (1,), name)
    imm = const(value, name)
    for expr in (imm, e.Add(imm, imm), e.Cast(e.Cast(imm, DataType.of("float64")), DataType.of(name))):
        round_trip(PrimFunc("f", (target,), s.BufferStore(target, (const(0),), expr)))


def test_nan_bits_are_kept() -> None:
    odd = struct.unpack("<d", bytes.fromhex("010000000000f87f"))[0]
    target = make_buffer("R", (1,), "float64")
    expr = e.FloatImm(odd, DataType.of("float64"))
    func = PrimFunc("f", (target,), s.BufferStore(target, (const(0),), expr))
    parsed = round_trip(func)
    assert parsed.body.value is expr


def test_every_intrinsic_round_trips() -> None:
    stores = []
    buffers = {name: make_buffer(f"R_{name}", (1,), name) for name in ("float32", "int32", "int8", "bool")}
    arguments = {"float": "float32", "number": "int32", "integer": "int32", "byte": "int8", "word": "int32"}
    arguments["bool"] = "bool"
    for name, item in intrinsics.table.items():
        if item.result == "given":
            continue
        dtype = arguments[item.accepts]
        args = tuple(buffers[dtype][const(0)] for _ in range(item.arity or 0))
        result = item.result_type(tuple(arg.dtype for arg in args))
        assert result is not None
        stores.append(s.BufferStore(buffers[result.name], (const(0),), e.Call(name, args, result)))
        stores.append(s.Evaluate(e.Call(name, args, DataType.of("int64"))))
    stores.append(s.Evaluate(intrinsics.reinterpret(buffers["float32"][0], "int32")))
    stores.append(s.Evaluate(intrinsics.call_extern("float32", "f.g", 1, 2.0)))
    stores.append(s.Evaluate(e.Call("mystery", (e.StringImm("a'b\"c"),), DataType.of("handle"))))
    stores.append(s.Evaluate(intrinsics.barrier()))
    round_trip(PrimFunc("f", tuple(buffers.values()), s.SeqStmt(tuple(stores))))


def test_vectors_round_trip() -> None:
    a, b = make_buffer("A", (64,)), make_buffer("B", (8,), "float32x4")
    i = Var("i")
    ramp = e.Ramp(i * 4, const(1), 4)
    value = e.Select(e.LT(ramp, e.Broadcast(i, 4)), BufferLoad(a, (ramp,)), e.Broadcast(const(1.0), 4))
    body = s.SeqStmt(
        (
            s.BufferStore(a, (ramp,), value),
            s.BufferStore(b, (i,), e.Cast(e.Cast(value, DataType.of("int8x4")), DataType.of("float32x4"))),
            s.BufferStore(a, (e.Ramp(i, e.IntImm(-2, INDEX), 4),), BufferLoad(b, (i,))),
        )
    )
    round_trip(PrimFunc("f", (a, b), For(i, e.ZERO, const(8), LoopKind.SERIAL, body)))


def test_shared_and_deep_expressions_print_in_linear_size() -> None:
    target, x = make_buffer("R", (1,)), Var("x", DataType.of("float32"))
    shared: e.PrimExpr = x
    for _ in range(60):
        shared = e.Add(e.Mul(shared, shared), shared)
    deep: e.PrimExpr = x
    for step in range(400):
        deep = e.Sub(const(float(step)), e.Max(deep, x))
    for expr in (shared, deep, e.Mul(shared, deep)):
        func = PrimFunc("f", (target, x), s.BufferStore(target, (const(0),), expr))
        assert len(to_script(func)) < 60_000
        round_trip(func)


def test_declarations_and_free_names_round_trip() -> None:
    n, m = Var("n", DataType.of("int32")), Var("m")
    a = make_buffer("A", (e.Cast(n, INDEX), m), "float32", "shared", (m, const(1)), 64)
    outside = make_buffer("X", (m, const(3)), "int8", "local")
    loose = Var("loose", DataType.of("float32"))
    store = s.BufferStore(a, (e.ZERO, e.ZERO), e.Add(loose, e.Cast(BufferLoad(outside, (e.ZERO, e.ZERO)), loose.dtype)))
    round_trip(PrimFunc("f", (a,), store))


def test_names_are_made_unique_and_legal() -> None:
    names = ["i", "i", "for", "range", "exp", "a.b", "0x", "", "é"]
    buffer = make_buffer("i", (2,))
    body: s.Stmt = s.BufferStore(buffer, (e.ZERO,), const(1.0))
    for name in names:
        body = For(Var(name), e.ZERO, const(1), LoopKind.PARALLEL, body)
    round_trip(PrimFunc("def", (buffer,), body))


def test_names_are_used_again_in_separate_suites() -> None:
    a = make_buffer("A", (4,))
    loops = [
        For(i, e.ZERO, const(4), LoopKind.SERIAL, s.BufferStore(a, (i,), const(1.0))) for i in (Var("i"), Var("i"))
    ]
    text = to_script(round_trip(PrimFunc("f", (a,), s.SeqStmt(tuple(loops)))))
    assert text.count("for i in range(4):") == 2


def test_roots_are_told_apart() -> None:
    a = make_buffer("A", (4,))
    store = s.BufferStore(a, (e.ZERO,), const(1.0))
    inner = Block("A", (), (), (), store)
    temporary = make_buffer("T", (1,))
    bodies: list[s.Stmt] = [
        store,
        inner,
        Block("root", (), (), (), store),
        Block("root", (), (), (), inner),
        Block("root", (), (a.full_region(),), (), inner),
        Block("root", (), (), (), Block("root", (), (), (), inner)),
        Block("root", (), (), (), store, allocations=(temporary,)),
        Block("root", (), (), (), store, annotations={"a": 1}),
        For(Var("i"), e.ZERO, const(2), LoopKind.SERIAL, inner),
    ]
    for body in bodies:
        round_trip(PrimFunc("f", (a,), body))


def test_sequences_and_definitions_round_trip() -> None:
    a = make_buffer("A", (4,))
    store = s.BufferStore(a, (e.ZERO,), const(1.0))
    x, y, z = Var("x"), Var("x"), Var("z")
    let = s.LetStmt(x, const(3), s.BufferStore(a, (x,), const(2.0)))
    alias = s.LetStmt(z, y, s.BufferStore(a, (z,), const(2.0)))
    bodies: list[s.Stmt] = [
        s.SeqStmt(()),
        s.SeqStmt((store,)),
        s.SeqStmt((s.SeqStmt((store, store)), store)),
        s.SeqStmt((let, store)),
        s.SeqStmt((store, s.LetStmt(y, const(3), s.SeqStmt((alias, store))))),
        s.SeqStmt((s.LetStmt(y, const(3), s.SeqStmt(())), store)),
        s.SeqStmt((let,)),
        s.SeqStmt((s.Allocate(make_buffer("T", (1,)), store), s.Allocate(make_buffer("T", (1,)), s.SeqStmt((store,))))),
    ]
    for body in bodies:
        round_trip(PrimFunc("f", (a,), body))


def test_modules_round_trip() -> None:
    matmul = parse_script(MATMUL)
    assert isinstance(matmul, PrimFunc)
    module = IRModule(
        {"matmul": matmul, "b": ExternFunc("lib.b"), "other": matmul.replace(name="x")}, attributes={"k": 1}
    )
    text = to_script(module)
    parsed = parse_script(text)
    assert isinstance(parsed, IRModule)
    assert_same_ir(parsed, module)
    assert parsed["b"].name == "lib.b"
    assert to_script(parsed) == text
    empty = parse_script(to_script(IRModule()))
    assert isinstance(empty, IRModule)
    assert not len(empty)
    two = parse_script(MATMUL + MATMUL.replace("matmul", "again"))
    assert isinstance(two, IRModule)
    assert list(two) == ["matmul", "again"]


def test_marks() -> None:
    func = parse_script(MATMUL)
    assert isinstance(func, PrimFunc)
    loop = func.root.body
    assert isinstance(loop, For)
    assert isinstance(loop.body, For)
    text = to_script(func, mark={loop.body.var: "does not divide", "C": "this block"})
    assert "for j in range(4):  # <-- does not divide" in text
    assert 'with block("C"):  # <-- this block' in text
    assert_same_ir(parse_script(text), func)  # type: ignore[arg-type]
    assert "# <-- here" in to_script(func, mark={loop: "here"})
    assert "root block" in to_script(func, mark={"root": "whole"})


def test_fragments_print() -> None:
    i, a = Var("i"), make_buffer("A", (4,))
    assert to_script(a[i + 1] * 2.0) == "A[i + 1] * 2.0"
    assert to_script(s.BufferStore(a, (i,), const(1.0))) == "A[i] = 1.0"
    assert to_script(a.full_region()) == "A[0:4]"
    assert to_script(a) == 'A: Buffer[(4,), "float32"]'
    with pytest.raises(UnsupportedError, match="has no script form"):
        to_script(3)


def test_codec() -> None:
    func = parse_script(MATMUL)
    codec = codec_for(func)
    assert codec is not None
    assert codec.name == "tir"
    assert to_text(func) == to_script(func)
    assert codec_for(IRModule()) is None
    assert structural_key(codec.parse(to_text(func), "f.py")) == structural_key(func)


# ------------------------------------------------------------------ hand-written programs


def test_loops() -> None:
    body = body_of(
        """
for i in range(2, n):
    for j in parallel(4, annotations={"a": 1}):
        for k in thread_binding("threadIdx.x", 32):
            for l in unroll(n, start=3, dtype="int64"):
                for m in vectorized(4):
                    for o in vthread(2):
                        A[i] = 1
"""
    )
    kinds = []
    while isinstance(body, For):
        kinds.append((body.kind, body.thread))
        body = body.body
    assert [kind.value for kind, _ in kinds] == ["serial", "parallel", "thread", "unrolled", "vectorized", "vthread"]
    assert kinds[2][1] == "threadIdx.x"


def test_scalars_are_definitions() -> None:
    body = body_of("x = A[0] + 1\ny: float64 = x\nx = x * 2\nA[1] = x")
    assert isinstance(body, s.LetStmt)
    assert isinstance(body.body, s.LetStmt)
    assert isinstance(body.body.value, e.Cast)
    func = parse_script(
        '@script.function\ndef f(A: Buffer[(4,), "float32"]):\n'
        "    x = A[0] + 1\n    x += 2\n    A[1] = x\n    A[2] -= x"
    )
    assert isinstance(func, PrimFunc)
    a = np.array([1, 0, 10, 0], np.float32)
    interpret(func, a)
    np.testing.assert_array_equal(a, [1, 4, 6, 0])


def test_numbers_known_while_parsing() -> None:
    body = body_of("w = 2 * 2\nt = (w, 3)\nfor i in range(t[1] + len(t)):\n    A[i // w] = 2 ** 3 if w == 4 else 0")
    assert isinstance(body, For)
    assert e.is_const_int(body.extent, 5)
    assert isinstance(body.body, s.BufferStore)
    assert body.body.value is const(8.0)
    chosen = body_of("flag = True\nif flag:\n    A[0] = 1\nelse:\n    A[1] = 1")
    assert isinstance(chosen, s.BufferStore)


def test_expressions_of_all_forms() -> None:
    body = body_of(
        """
A[0] = min(A[0], 1, A[2]) if 0 <= n < 8 and not n == 3 else max(exp(A[1]), pow(A[1], 2))
A[1] = float32(n) + A[n % 8].astype("float32") - fabs(-A[3])
A[int64(A[2])] = A[3] // 2 + A[3] % 2
A[n & 7 | 1 ^ n << 1 >> 2] = select(n > 2, 1.0, A[0])
A[truncdiv(n, 3) + truncmod(n, 3)] = sigmoid(1.0) + round(A[0])
A[ramp(0, 2, 4)] = broadcast(A[0], 4) + 1
A[ramp(0, 2, 4)] = 1
evaluate(reinterpret(A[0], "int32"))
barrier("shared")
assert n > 0, "n must be positive"
assert n < 100
"""
    )
    assert isinstance(body, s.SeqStmt)
    text = to_script(body)
    assert "broadcast(1.0, 4)" not in text
    assert "broadcast(float32(1.0), 4)" in text
    last = body.stmts[-1]
    assert isinstance(last, s.Assert)
    assert last.message == "n < 100"


def test_regions() -> None:
    func = parse_script(
        """
@script.function
def f(A: Buffer[(8, 8), "float32"], n: int64):
    with block("b"):
        v = spatial(8, n)
        reads(A[v, 0:4], A[v * 2:v * 2 + 3, 2:5], A[v:8, n], A)
        writes()
        pass
"""
    )
    assert isinstance(func, PrimFunc)
    assert "reads(A[v, 0:4], A[v * 2:v * 2 + 3, 2:5], A[v:v + (8 - v), n], A[0:8, 0:8])" in to_script(func)
    round_trip(func)


# ------------------------------------------------------------------ messages

MESSAGES = [
    ("A[0] = m", "the name m is not defined"),
    ("A[0, 1] = 1", "has 1 dimensions, it is indexed with 2"),
    ("A[0] = A[1, 2]", "has 1 dimensions, it is indexed with 2"),
    ("A[1.5] = 1", "is not a int64|the constant 1.5"),
    ("A[A[0]] = 1", "an index must be an integer, not float32"),
    ("A[0:2] = 1", "a slice is no index"),
    ("A[0] = n", "a int64 is stored to buffer A of float32"),
    ("A[0] = n / 2", "`/` divides floats, not int64"),
    ("A[0] = A", "a value is expected here, not buffer A"),
    ("A[0] = 'x'", "a value is expected here, not 'x'"),
    ("A[0] = sin(n)", "sin needs floating-point values, not int64"),
    ("A[0] = sin(A[0], A[1])", "sin takes 1 arguments, 2 are given"),
    ("A[0] = wrong(A[0])", "a script has no function wrong"),
    ("A[0] = A[0] ** 2", "a script has no operator Pow"),
    ("A[0] = A[0] if n else A[1]", "a condition must be bool, not int64"),
    ("A[0] = (n > 1) + (n > 2)", "arithmetic on bool values"),
    ("A[0] = A[0] if n > 1 and n else 1.0", "a condition must be bool"),
    ("A[0] = float32('many')", "'many' is not a number"),
    ("A[0] = float32(A[0], 1)", "float32 takes 1 arguments, 2 are given"),
    ("A[0] = cast(n, 'float33')", "unknown data type 'float33'"),
    ("A[0] = cast(n, n)", "a data type is expected here"),
    ("A[0] = broadcast(A[0], n)", "a whole number is expected here"),
    ("A[ramp(0, 1, 4)] = broadcast(A[0], 3)", "3 lanes are stored to 4 places"),
    ("A[0] = A.size", "has no attribute size"),
    ("A[0] = n[0]", "cannot be indexed"),
    ("A[0] = (1, 2)[5]", "has no item 5"),
    ("A[0] = lambda: 1", "a script has no Lambda"),
    ("A[0] = 1j", "a script has no constants such as 1j"),
    ("A[0] = 1 // 0", "division"),
    ("A[0] = len(n)", "has no length"),
    ("A[0] = call('f', A[0])", "call needs the keyword dtype"),
    ("A[0] = 1 if n in (1, 2) else 2", "a script has no comparison In"),
    ("x = 1.0\nfor i in range(4):\n    x = x + 1", "x is already bound outside this suite"),
    ("x = A[0]\nif n > 1:\n    x = A[1]", "would be lost after it"),
    ("for i in range(4):\n    for i in range(4):\n        A[i] = 1", "the loop variable i is already bound"),
    ("for i in range(4):\n    A[i] = 1\nelse:\n    A[0] = 1", "a loop of a script has no else"),
    ("for i in A:\n    A[i] = 1", "a loop runs over range"),
    ("for i in walk(4):\n    A[i] = 1", "a loop cannot run over walk"),
    ("for i, j in range(4):\n    A[i] = 1", "one loop variable is expected here"),
    ("for i, i in grid(4, 4):\n    A[i] = 1", "distinct loop variables are expected"),
    ("for i, j in grid(4):\n    A[i] = 1", "grid has 1 extents for 2 loop variables"),
    ("for i in range(A[0]):\n    A[i] = 1", "the bounds of a loop are integers, not float32"),
    ("for i in range(1, 2, 3):\n    A[i] = 1", "range takes an extent, or a start and an end"),
    ("for i in range(4, step=2):\n    A[i] = 1", "range has no keyword step"),
    ("for i in serial(4, annotations=3):\n    A[i] = 1", "a dictionary with names as keys"),
    ("while n > 1:\n    A[0] = 1", "nothing in this loop can change its condition"),
    ("del A[0]", "a script has no statement Delete"),
    ("return A", "a script returns nothing"),
    ("A[0]", "an expression alone does nothing"),
    ("reads(A[0])", "reads stands inside"),
    ("v = spatial(4, n)", "spatial stands inside"),
    ("with block('b'):\n    reads(3)\n    A[0] = 1", "a region of a buffer is expected here"),
    ("with block('b'):\n    reads(A[0:])\n    A[0] = 1", "a region needs both bounds"),
    ("with block(3):\n    A[0] = 1", "a string is expected here"),
    ("with open('x') as f:\n    A[0] = 1", "a script has no `with open"),
    ("with block('a'), block('b'):\n    A[0] = 1", "a script has `with block"),
    ("a = b = 1", "assign to one target at a time"),
    ("a, b = 1, 2, 3", "2 values are expected here"),
    ("a, b = A[0], A[1]", "define scalar values one at a time"),
    ("(a, A[0]) = 1, 2", "a tuple of names is expected here"),
    ("n.x = 1", "a script assigns to names and buffer elements"),
    ("n.x += 1", "a script assigns to names and buffer elements"),
    ("B = alloc_buffer((4,), 'float32', strides=(1, 2))", "2 strides for 1 dimensions"),
    ("attributes(3)", "a dictionary with names as keys"),
    ("A[0] = {**n}", "a script has no \\*\\*"),
    ("A[0] = float('x')", "'x' is not a float"),
    ("x = f()()", "a script calls functions by name"),
    ("A[0] = A[0] & A[1]", "bitwise_and needs integers"),
]


@pytest.mark.parametrize(("text", "message"), MESSAGES, ids=[text[:30] for text, _ in MESSAGES])
def test_messages_of_statements(text: str, message: str) -> None:
    with pytest.raises(ScriptError, match=message) as caught:
        body_of(text)
    assert "<script>:" in (caught.value.where or "")
    assert "^" in (caught.value.where or "")


SIGNATURES = [
    ("A", "parameter A has no type"),
    ("A: Buffer[1, 2, 3, 4]", "a buffer type is written"),
    ("A: int33", "the name int33 is not defined"),
    ('A: Buffer[(4,), "float33"]', "unknown data type"),
    ("n: int64 = 3", "no defaults"),
    ("*A", "no defaults"),
]


@pytest.mark.parametrize(("signature", "message"), SIGNATURES)
def test_messages_of_signatures(signature: str, message: str) -> None:
    with pytest.raises(ScriptError, match=message):
        body_of("pass", signature)


def test_messages_of_texts() -> None:
    with pytest.raises(ScriptError, match="not valid Python") as caught:
        parse_script("def f(:\n    pass", "file.py")
    assert "file.py:1:7" in str(caught.value)
    with pytest.raises(UserError, match="defines no function"):
        parse_script("import os")
    with pytest.raises(ScriptError, match="a script holds functions"):
        parse_script("x = 1")
    with pytest.raises(ScriptError, match="a module holds functions"):
        parse_script("class M:\n    x = 1")
    with pytest.raises(ScriptError, match="a module holds functions"):
        parse_script("class M:\n    del x")
    with pytest.raises(ScriptError, match="are a dictionary"):
        parse_script("class M:\n    attributes = 1")
    with pytest.raises(ScriptError, match="has no keyword colour"):
        parse_script("@script.function(colour=1)\ndef f():\n    pass")


def test_the_place_is_shown_with_a_caret() -> None:
    with pytest.raises(ScriptError) as caught:
        parse_script('@script.function\ndef f(A: Buffer[(4,), "float32"]):\n    A[0] = A[0] + nope\n', "my.py")
    assert str(caught.value) == (
        "the name nope is not defined\n  where: my.py:3:19\n    A[0] = A[0] + nope\n                  ^^^^"
    )


def test_unprintable_annotations() -> None:
    a = make_buffer("A", (4,))
    store = s.BufferStore(a, (e.ZERO,), const(1.0))
    func = PrimFunc("f", (a,), store, {"x": object()})
    with pytest.raises(UnsupportedError, match="an annotation of type object"):
        to_script(func)
    rich = {"d": {"k": (1,)}, "t": DataType.of("int8"), "f": math.inf, "b": a, "n": None, "neg": -2}
    round_trip(PrimFunc("f", (a,), store, {"x": rich, "e": a[0], "s": e.StringImm("q")}))
