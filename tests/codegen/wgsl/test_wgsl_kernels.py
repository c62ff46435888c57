"""WGSL programs: their text, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.codegen.on_device import WEBGPU, program_of, require_webgpu
from tests.tir.passes.test_bind_threads import tiled_product
from tilewright import te
from tilewright.backends.webgpu.types import float_text
from tilewright.ir.expr import ZERO, IntImm, Var
from tilewright.support.errors import UnsupportedError, UserError
from tilewright.tir.buffer import make_buffer
from tilewright.tir.function import PrimFunc
from tilewright.tir.stmt import Allocate, BufferStore, For, LoopKind, seq


def test_indices_that_may_overflow_are_computed_in_their_low_bits() -> None:
    n = te.var("n")
    a = te.placeholder((n, n), name="A")
    b = te.compute((n, n), lambda i, j: a[j, i], name="B")
    s = te.create_schedule(b.op)
    for axis, name in zip(b.op.axis, "yx", strict=True):
        s[b].bind(axis, te.thread_axis(f"blockIdx.{name}"))
    (text,) = [line for line in program_of([s.func([a, b])], WEBGPU).source.splitlines() if "k0_B_[" in line]
    assert "tw_mul" not in text and "bitcast<i32>(n_.x)" in text


def test_float64_is_refused_by_name() -> None:
    a = te.placeholder((4,), "float64", name="A")
    b = te.compute((4,), lambda i: a[i] * 2.0, name="B")
    with pytest.raises(UnsupportedError, match="WebGPU kernels do not know float64"):
        program_of([te.create_prim_func([a, b], "double")], WEBGPU)


@pytest.mark.parametrize("bits", [0x7F7FFFFF, 0x7F7FFFFE, 0x00800000, 0x00000001, 0x3DCCCCCD])
@pytest.mark.parametrize("sign", [0, 0x80000000])
def test_literals_are_in_the_range_of_their_type(bits: int, sign: int) -> None:
    """Shortest decimals may lie beyond the greatest number, which compilers of WGSL refuse."""
    value = np.array(bits | sign, np.uint32).view(np.float32)[()]
    text = float_text(float(value)).strip("()").removesuffix("f")
    assert np.float32(float(text)) == value and abs(float(text)) <= float(np.finfo(np.float32).max)


def test_elements_of_constant_places_are_variables() -> None:
    """A thread's own elements need no array where no index varies."""
    own, turned = (make_buffer(name, (2,), "float32", scope="local") for name in ("own", "turned"))
    a, out = make_buffer("a", (8,), "float32"), make_buffer("out", (8,), "float32")
    t, i = Var("t"), Var("i")
    body = seq(
        *(BufferStore(own, (IntImm(n),), a[t * 2 + n]) for n in range(2)),
        For(i, ZERO, IntImm(2), LoopKind.SERIAL, BufferStore(turned, (i,), own[0] - own[1])),
        *(BufferStore(out, (t * 2 + n,), turned[n]) for n in range(2)),
    )
    nest = For(t, ZERO, IntImm(4), LoopKind.THREAD, Allocate(own, Allocate(turned, body)), "threadIdx.x")
    source = program_of([PrimFunc("pairs", (a, out), nest)], WEBGPU).source
    assert "var own_0: f32;" in source and "own_[" not in source


def test_small_types_take_words_of_shared_memory() -> None:
    """A tile of 5000 bytes is 20000 bytes of a workgroup's memory, which not every device has."""
    t, u = Var("t"), Var("u")
    a, out = make_buffer("a", (50, 100), "int8"), make_buffer("out", (50, 100), "int8")
    tile = make_buffer("tile", (5000,), "int8", scope="shared")
    inner = Var("inner")
    fill = For(inner, ZERO, IntImm(100), LoopKind.SERIAL, BufferStore(tile, (t * 100 + inner,), a[t, inner]))
    other = Var("other")
    read = For(other, ZERO, IntImm(100), LoopKind.SERIAL, BufferStore(out, (u, other), tile[4999 - u * 100 - other]))
    threads = [For(var, ZERO, IntImm(50), LoopKind.THREAD, body, "threadIdx.x") for var, body in ((t, fill), (u, read))]
    body = For(Var("block"), ZERO, IntImm(1), LoopKind.THREAD, Allocate(tile, seq(*threads)), "blockIdx.x")
    func = PrimFunc("reverse", (a, out), body)
    with pytest.raises(UserError, match="uses 20000 bytes of shared memory, WebGPU devices have 16384"):
        program_of([func], WEBGPU)


def test_names_are_words_of_no_language() -> None:
    """Reserved words, leading underscores and signs in names do not reach the text."""
    require_webgpu()
    a = te.placeholder((3,), name="__loop")
    b = te.compute((3,), lambda var: a[var] + 1.0, name="fn.main-β")
    out = np.zeros(3, np.float32)
    tw.build(te.create_schedule(b.op), [a, b], target="webgpu")(np.ones(3, np.float32), out)
    np.testing.assert_array_equal(out, np.full(3, 2.0, np.float32))


def test_threads_meet_outside_of_divergent_code() -> None:
    """A barrier stands in loops of all threads only."""
    around: list[str] = []
    met = 0
    for line in program_of([tiled_product(9, 17, 8, (2, 8), (3, 2), 4)], WEBGPU).source.splitlines():
        if line.strip().startswith("}"):
            around.pop()
        if "workgroupBarrier" in line:
            met += 1
            assert all(opened.startswith(("for", ")")) for opened in around), around
        if line.endswith("{"):
            around.append(line.strip())
    assert met == 2
