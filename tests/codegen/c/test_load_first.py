"""Values of functions: what they read of memory is on its way before the first of them is computed."""

from __future__ import annotations

from tests.codegen.on_device import cuda_text
from tilewright import te


def _text(make: object) -> str:
    a, b = (te.placeholder((64,), name=name) for name in "AB")
    assert callable(make)
    c = te.compute((64,), lambda i: make(a[i], b[i]), name="C")
    s = te.create_schedule(c.op)
    s[c].bind(c.op.axis[0], te.thread_axis("threadIdx.x"))
    return cuda_text([s.func([a, b, c])])


def test_all_loads_come_before_functions() -> None:
    text = _text(lambda a, b: te.exp(a) * te.tanh(b))
    assert max(text.index("= A_["), text.index("= B_[")) < text.index("C_[")


def test_what_a_selection_may_not_read_stays_in_it() -> None:
    text = _text(lambda a, b: te.select(a > 0.0, te.exp(b), te.tanh(a)))
    assert "= B_[" not in text.split("if (")[0] and "B_[" in text


def test_plain_arithmetic_is_left_to_the_compiler() -> None:
    assert "C_[thread_x_] = (A_[thread_x_] * B_[thread_x_])" in _text(lambda a, b: a * b)
