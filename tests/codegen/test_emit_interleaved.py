"""Stores of every n-th element, put together in registers: images whose channels become neighbours."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import tilewright as tw
from tests.graph.helpers import op, var
from tilewright import te
from tilewright.arith.analyzer import Analyzer
from tilewright.backends.host import host_source
from tilewright.backends.llvm.emit_interleaved import interleaved_at
from tilewright.graph.ir.expr import Function
from tilewright.graph.ir.infer import infer_types
from tilewright.ir.dtype import DataType
from tilewright.ir.expr import ZERO, Broadcast, FloatImm, IntImm, Ramp
from tilewright.ir.function import IRModule
from tilewright.target import Target
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.stmt import BufferStore

X86 = "llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512"


def interleaved(channels: int, size: int, width: int, dtype: str) -> tuple[te.Schedule, te.Tensor, te.Tensor]:
    """`b[i, c] = a[c, i] + a[c, i]`: for all channels one after the other, vectors of `width` elements."""
    a = te.placeholder((channels, size), dtype, name="a")
    b = te.compute((size, channels), lambda i, c: a[c, i] + a[c, i], name="b")
    s = te.create_schedule(b.op)
    i, c = s[b].op.axis
    outer, lane = s[b].split(i, factor=width)
    s[b].reorder(outer, c, lane)
    s[b].unroll(c)
    s[b].vectorize(lane)
    return s, a, b


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "float64"])
@pytest.mark.parametrize("channels", [2, 3, 4, 5])
@pytest.mark.parametrize(("size", "width"), [(64, 16), (48, 8), (12, 4), (50, 16)])
def test_elements_lie_side_by_side(channels: int, size: int, width: int, dtype: str) -> None:
    s, a, b = interleaved(channels, size, width, dtype)
    given = (np.arange(channels * size).reshape(channels, size) % 100).astype(dtype)
    found = np.zeros((size + 1, channels), dtype)
    tw.build(s, [a, b], name="interleave")(given, found[:size])
    np.testing.assert_array_equal(found[:size], 2 * given.T)
    assert not found[size:].any()


@pytest.mark.parametrize(("channels", "stored"), [(2, "<32 x i8>"), (3, "<48 x i8>"), (4, "<64 x i8>"), (5, None)])
def test_a_run_is_stored_at_once(channels: int, stored: str | None) -> None:
    s, a, b = interleaved(channels, 64, 16, "uint8")
    text = host_source([s.func([a, b], "interleave")], Target(X86))
    assert (f"store {stored}" in text) if stored else ("extractelement" in text or "scatter" in text)


def test_what_is_read_between_stores_is_not_put_off() -> None:
    """The second store reads what the first has written: the two are no run."""
    buffer, lane = Buffer("b", (IntImm(64, ZERO.dtype),), DataType.of("float32")), ZERO
    even, odd = (Ramp(lane + first, IntImm(2, lane.dtype), 16) for first in (0, 1))
    ones = Broadcast(FloatImm(1.0, buffer.dtype), 16)
    plain = [BufferStore(buffer, (even,), ones), BufferStore(buffer, (odd,), ones)]
    chained = [plain[0], BufferStore(buffer, (odd,), BufferLoad(buffer, (even,)))]
    context = SimpleNamespace(mask=None, analyzer=Analyzer())
    assert interleaved_at(context, plain, 0) == 2  # type: ignore[arg-type]
    assert interleaved_at(context, plain, 1) == 0  # type: ignore[arg-type]
    assert interleaved_at(context, chained, 0) == 0  # type: ignore[arg-type]
    context.mask = "%lanes"
    assert interleaved_at(context, plain, 0) == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [(5, 7), (16, 16), (9, 31), (3, 224)])
@pytest.mark.parametrize("channels", [2, 3, 4])
def test_images_become_bytes_with_channels_last(channels: int, size: tuple[int, int]) -> None:
    """What comes before a quantised network's first convolution."""
    x = var("x", 1, channels, *size)
    scaled = op("round", op("multiply", x, x))
    turned = op("transpose", op("clip", scaled, minimum=0.0, maximum=255.0), axes=(0, 2, 3, 1))
    module = infer_types(IRModule([Function("main", (x,), turned)]))
    exe = tw.compile(module, threads=1)
    given = np.random.default_rng(0).normal(scale=12, size=(1, channels, *size)).astype("float32")
    expected = np.clip(np.round(given * given), 0, 255).transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(exe(given), expected)
