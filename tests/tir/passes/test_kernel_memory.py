"""What kernels agree on with their callers about memory: scratch memory as parameters, results over inputs."""

from __future__ import annotations

import pytest

from tests.tir.passes.programs import script
from tilewright.ir.structural import assert_same_ir
from tilewright.support.errors import CompilerBug
from tilewright.tir.analysis.in_place import in_place_pairs, with_in_place
from tilewright.tir.passes.keep_in_place import keep_in_place
from tilewright.tir.passes.scratch_parameters import SCRATCH, scratch_bytes, scratch_parameters

BEFORE = """
@script.function
def reversed(A: Buffer[(10000,), "float32"], B: Buffer[(10000,), "float32"]):
    T = allocate((10000,), "float32")
    S = allocate((4,), "float32")
    for i in range(10000):
        S[0] = A[i]
        T[i] = S[0]
    for j in range(10000):
        B[j] = T[9999 - j]
"""
AFTER = """
@script.function
def reversed(A: Buffer[(10000,), "float32"], B: Buffer[(10000,), "float32"], T: Buffer[(10000,), "float32"]):
    S = allocate((4,), "float32")
    for i in range(10000):
        S[0] = A[i]
        T[i] = S[0]
    for j in range(10000):
        B[j] = T[9999 - j]
"""


def test_large_scratch_becomes_a_parameter_and_small_stays_on_the_stack() -> None:
    after = scratch_parameters(script(BEFORE))
    assert after.attributes[SCRATCH] == 1 and scratch_bytes(after) == (40000,)
    assert_same_ir(after.replace(attributes={}), script(AFTER))
    assert scratch_bytes(script(AFTER)) == ()


def test_scratch_of_unknown_size_is_a_bug() -> None:
    func = script(
        """
@script.function
def f(A: Buffer[(n,), "float32"]):
    symbolic(n="int64")
    A[0] = 0.0
"""
    )
    with pytest.raises(CompilerBug, match="scratch memory of f has no constant size"):
        scratch_bytes(func.replace(attributes={SCRATCH: 1}))


def test_results_stay_over_inputs_that_are_read_where_they_are_written() -> None:
    func = script(
        """
@script.function
def f(A: Buffer[(8,), "float32"], C: Buffer[(8,), "float32"], B: Buffer[(8,), "float32"]):
    for i in range(8):
        B[i] = A[i] + C[7 - i]
"""
    )
    assert keep_in_place(func) is func
    kept = keep_in_place(with_in_place(func, ((0, 2), (1, 2))))
    assert in_place_pairs(kept) == ((0, 2),)
    assert_same_ir(kept, with_in_place(func, ((0, 2),)))
    assert_same_ir(keep_in_place(with_in_place(func, ((1, 2),))), func)
