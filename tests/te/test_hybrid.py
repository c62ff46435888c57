"""Hybrid script: the papers' form of writing loop programs as Python functions."""
# ruff: noqa: F821

from __future__ import annotations

import numpy as np
import pytest

from tilewright.ir.function import IRModule
from tilewright.te.hybrid import hybrid, parse_hybrid
from tilewright.tir.buffer import Buffer
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.script import ScriptError, to_script
from tilewright.tir.stmt import Block, For, LoopKind
from tilewright.tir.verify import verify


def test_the_papers_example() -> None:
    @hybrid
    def te_add_one(a, b):
        n = var("n")
        A = bind_buffer(a, shape=[n])
        B = bind_buffer(b, shape=[n])
        for i in iter_range(n, iter_type="data_par"):
            A[i] = B[i] + 1

    module = IRModule([te_add_one])
    args = module["te_add_one"].args
    assert [arg.name for arg in args] == ["A", "B"]
    assert all(isinstance(arg, Buffer) for arg in args)
    verify(te_add_one)
    out = np.zeros(5, np.float32)
    interpret(te_add_one, out, np.arange(5, dtype=np.float32))
    np.testing.assert_array_equal(out, [1, 2, 3, 4, 5])
    assert to_script(te_add_one) == (
        "@script.function\n"
        'def te_add_one(A: Buffer[(n,), "float32"], B: Buffer[(n,), "float32"]):\n'
        "    for i in range(n):\n"
        '        with block("A"):\n'
        "            v_i = spatial(n, i)\n"
        "            reads(B[v_i])\n"
        "            writes(A[v_i])\n"
        "            A[v_i] = B[v_i] + 1.0"
    )


def parse(body: str, signature: str = "a, b") -> PrimFunc:
    lines = "\n".join(f"    {line}" for line in body.strip().split("\n"))
    return parse_hybrid(f"def f({signature}):\n{lines}\n")


def test_reductions_and_loop_kinds() -> None:
    func = parse("""
n = var("n")
A = bind_buffer(a, shape=[n, 4], dtype="int32")
B = bind_buffer(b, shape=[n], dtype="int32")
for i in iter_range(n, iter_type="parallel"):
    B[i] = 0
    for k in iter_range(4, iter_type="reduce"):
        B[i] += A[i, k]
""")
    verify(func)
    loop = func.root.body
    assert isinstance(loop, For)
    assert loop.kind is LoopKind.PARALLEL
    text = to_script(func)
    assert "v_i, v_k = spatial(n, i), reduce(4, k)" in text
    assert 'with block("B_1"):' in text
    a = np.arange(12, dtype=np.int32).reshape(3, 4)
    b = np.zeros(3, np.int32)
    interpret(func, a, b)
    np.testing.assert_array_equal(b, a.sum(1))


def test_typed_parameters_serial_loops_and_explicit_blocks() -> None:
    func = parse(
        """
A = bind_buffer(a, shape=[8])
for i in iter_range(1, m, iter_type="serial"):
    if i % 2 == 0:
        x = A[i - 1] * 2.0
        A[i] = x
for i in range(8):
    with block("own"):
        v = spatial(8, i)
        A[v] = A[v] + 1.0
evaluate(barrier("shared"))
""",
        "a, m: int64",
    )
    verify(func)
    names = [item.name for item in _blocks(func)]
    assert names == ["root", "A", "own", "statement"]
    assert "opaque(m - 1, i, start=1)" in to_script(func)


def _blocks(func: PrimFunc) -> list[Block]:
    found: list[Block] = []
    stack: list[object] = [func.body]
    while stack:
        item = stack.pop(0)
        if isinstance(item, Block):
            found.append(item)
        stack[:0] = list(item.children())  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("A = bind_buffer(a, shape=[4])\nA[0] = 1", "nothing says what parameter b is"),
        ("A = bind_buffer(a)", "bind_buffer needs the keyword shape"),
        ("A = bind_buffer(3, shape=[4])", "bind_buffer needs a parameter"),
        ("A = bind_buffer(a, shape=[4])\nB = bind_buffer(a, shape=[4])", "parameter a is bound to a buffer twice"),
        ("for i in iter_range(4, iter_type='odd'):\n    pass", "there is no iter_type 'odd'"),
        ("a[0] = 1", "a buffer is expected here"),
    ],
)
def test_messages(body: str, message: str) -> None:
    with pytest.raises(ScriptError, match=message):
        parse(body)
