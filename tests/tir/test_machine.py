"""Machine instructions: only known ones, with their own types, on processors that have them."""

from __future__ import annotations

import pytest

from tilewright.backends.host import host_source
from tilewright.ir.build import const
from tilewright.ir.dtype import INT32, DataType
from tilewright.ir.expr import Broadcast, PrimExpr, Ramp
from tilewright.support.errors import UnsupportedError, UserError
from tilewright.target import Target
from tilewright.tir.buffer import BufferLoad, make_buffer
from tilewright.tir.evaluate import evaluate
from tilewright.tir.function import PrimFunc
from tilewright.tir.machine import find_instruction, machine_call, table
from tilewright.tir.stmt import BufferStore


def dot_program() -> PrimFunc:
    a, b = make_buffer("a", (4,), "uint8"), make_buffer("b", (64,), "int8")
    c = make_buffer("c", (16,), "int32")
    place = (Ramp(const(0), const(1), 16),)
    row, column = BufferLoad(a, (Ramp(const(0), const(1), 4),)), BufferLoad(b, (Ramp(const(0), const(1), 64),))
    value = machine_call("x86.vpdpbusd.512", BufferLoad(c, place), row, column)
    return PrimFunc("dot", (a, b, c), BufferStore(c, place, value))


def test_unknown_instructions_and_wrong_types_are_refused() -> None:
    with pytest.raises(UserError, match=r"there is no machine instruction 'x86.mystery'"):
        machine_call("x86.mystery")
    with pytest.raises(UserError, match="takes 3 arguments, not 1"):
        machine_call("arm.sdot", const(0))
    with pytest.raises(UserError, match=r"argument 0 of arm.sdot is a int32, not int32x4"):
        machine_call("arm.sdot", *(const(0, INT32) for _ in range(3)))


def test_a_target_without_the_feature_is_refused_before_llvm_sees_it() -> None:
    func = dot_program()
    assert "vpdpbusd.512" in host_source([func], Target("llvm -mtriple=x86_64-linux-gnu -mcpu=icelake-server"))
    for spec in ("-mtriple=x86_64-linux-gnu -mcpu=haswell", "-mtriple=aarch64-linux-gnu -mcpu=neoverse-n1"):
        with pytest.raises(UnsupportedError, match=r"x86.vpdpbusd.512 needs \+avx512vnni"):
            host_source([func], Target(f"llvm {spec}"))


def test_references_wrap_as_the_instructions_do() -> None:
    total = Broadcast(const(2**31 - 1, INT32), 4)
    row = Broadcast(const(1, DataType.of("int8")), 4)
    column = Broadcast(const(1, DataType.of("int8")), 16)
    assert evaluate(machine_call("arm.sdot", total, row, column)) == [-(2**31) + 3] * 4


def test_nested_instructions_are_computed_once() -> None:
    """Each is a function of whole vectors: thirty of them take thirty steps, not four to the thirtieth."""
    row, column = (Broadcast(const(1, DataType.of("int8")), lanes) for lanes in (4, 16))
    total: PrimExpr = Broadcast(const(0, INT32), 4)
    for _ in range(30):
        total = machine_call("arm.sdot", total, row, column)
    assert evaluate(total) == [120] * 4
    assert evaluate(total + total) == [240] * 4


OTHERWISE = ("cuda.", "gpu.", "accel.", "arm.interleave4")
"""Instructions that code generators write themselves, and not as a call of LLVM's: shuffles, and other languages'."""


def test_every_instruction_names_features_and_what_it_does() -> None:
    for name, item in table.items():
        assert item.features and all(item.features), name
        assert item.doc and (item.llvm.startswith("llvm.") or name.startswith(OTHERWISE)), name
    assert find_instruction("amx.tdpbusd").is_on(Target("llvm -mtriple=x86_64-linux-gnu -mcpu=sapphirerapids"))
