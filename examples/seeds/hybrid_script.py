"""First-class Python: a loop program written as a Python function, looked at, scheduled, built and run."""

from __future__ import annotations

import numpy as np

import tilewright as tw


@tw.hybrid
def te_add_one(a, b):
    n = var("n")  # noqa: F821
    A = bind_buffer(a, shape=[n])  # noqa: F821
    B = bind_buffer(b, shape=[n])  # noqa: F821
    for i in iter_range(n, iter_type="data_par"):  # noqa: F821
        A[i] = B[i] + 1


mod = tw.IRModule([te_add_one])
print(mod["te_add_one"].args)
assert [buffer.name for buffer in mod["te_add_one"].args] == ["A", "B"]

# Directly manipulate it: the loop carries the promise of data parallelism, so it may be split and vectorized.
schedule = tw.Schedule(te_add_one)
(block,) = schedule.blocks()
(loop,) = schedule.get_loops(block)
_, inner = schedule.split(loop, [None, 8])
schedule.vectorize(inner)
print(schedule)

for program in (te_add_one, schedule, mod):
    f = tw.build(program)
    for n in (1, 8, 13):
        b = np.arange(n, dtype=np.float32)
        a = np.empty(n, np.float32)
        f["te_add_one"](a, b)
        assert a.tolist() == (b + 1).tolist()
