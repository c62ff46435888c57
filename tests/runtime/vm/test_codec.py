"""Bytecode: written and read back, damaged in every way, refused when it makes no sense."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.runtime.core.artifact import ModelInfo, TensorInfo
from tilewright.runtime.vm.codec import VERSION, decode, encode
from tilewright.runtime.vm.disassemble import disassemble
from tilewright.runtime.vm.program import (
    ANY,
    BIND,
    EQUAL,
    BlobConstant,
    ConstructorInfo,
    HostCall,
    Instruction,
    Opcode,
    Program,
    TextConstant,
    VmFunction,
)
from tilewright.runtime.vm.types import DataDefinition, Kind, ValueType
from tilewright.runtime.vm.verify import verify
from tilewright.support.errors import UserError

TENSOR = ValueType(Kind.TENSOR, "float32", ("n", 4))
SEGMENTS = (ModelInfo("seg", (TensorInfo("x", ("n", 4), "float32"),), (TensorInfo("y", ("n",), "float32"),), 0,
                      symbols=("n",)),)  # fmt: skip

MAIN: tuple[Instruction, ...] = (
    (Opcode.MATCH, 0, ((BIND, 0), (EQUAL, 0), (ANY, 0)), 0),
    (Opcode.SEGMENT, 0, (0,), (1,), (0,)),
    (Opcode.CONSTANT, 2, 0),
    (Opcode.VIEW, 3, 2, 0, (1, 0)),
    (Opcode.DATA, 4, 0, (1, 3)),
    (Opcode.TAG, 4, 0, 9),
    (Opcode.FIELD, 5, 4, 1),
    (Opcode.RELEASE, (1, 2, 3)),
    (Opcode.JUMP, 10),
    (Opcode.MOVE, 5, 0),
    (Opcode.HOST, 0, (5,), (6,)),
    (Opcode.BRANCH, 6, 15),
    (Opcode.CLOSURE, 7, 1, (5,), (0,)),
    (Opcode.TUPLE, 8, (5, 6)),
    (Opcode.TAIL_CLOSURE, 7, (8,)),
    (Opcode.CALL, 7, 2, (5,)),
    (Opcode.RETURN, 7),
)
PROGRAM = Program(
    functions=(
        VmFunction("main", 0, 1, 0, 9, 1, MAIN),
        VmFunction("inner", 1, 1, 1, 3, 1, ((Opcode.FAIL, 0),)),
        VmFunction("id", 0, 1, 0, 1, 0, ((Opcode.RETURN, 0),)),
    ),
    constants=(BlobConstant(64, (2, 4), "float32"), TextConstant((2,), ("a", "é"))),
    hosts=(HostCall("host.nonzero", (("axis", -1), ("f", 0.5), ("t", (None, True, "x", b"\0"))), "node"),),
    constructors=(ConstructorInfo("Pair", "Both", 0, 2),),
    extents=(4, "s0 * 2 + 1"),
    texts=("a text",),
    inputs=(TENSOR,),
    definitions=(DataDefinition("Pair", (("Both", (TENSOR, ValueType(Kind.VARIABLE, number=1))),)),),
)


def check(program: Program) -> None:
    verify(program, SEGMENTS, 128)


def with_main(*code: Instruction, **changes: object) -> Program:
    main = replace(PROGRAM.functions[0], code=code or MAIN, **changes)  # type: ignore[arg-type]
    return replace(PROGRAM, functions=(main, *PROGRAM.functions[1:]))


def test_a_program_is_the_same_after_a_round_trip() -> None:
    check(PROGRAM)
    assert decode(encode(PROGRAM)) == PROGRAM


def test_text() -> None:
    text = disassemble(PROGRAM)
    assert "f1 inner(r1) captures r0, s0: 3 registers, 1 symbols" in text
    assert "match         r0 [s0:=, 4, _] 'a text'" in text
    assert "segment       segment0 (r0) [s0] -> r1" in text
    assert "view          r2 +4 [s0 * 2 + 1, 4] -> r3" in text
    assert "tag           r4 Both to 9" in text


RETURN = (Opcode.RETURN, 0)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (replace(PROGRAM, functions=()), "no function"),
        (replace(PROGRAM, inputs=()), "does not take the model's inputs"),
        (replace(PROGRAM, constants=(BlobConstant(120, (4,), "float32"),)), "constant 0 lies outside"),
        (replace(PROGRAM, constants=(BlobConstant(0, (4,), "float99"),)), "no data type 'float99'"),
        (replace(PROGRAM, extents=(4, "s0 +")), "not arithmetic"),
        (replace(PROGRAM, extents=(4, "s1")), "computes with symbol s1"),
        (with_main((Opcode.RETURN, 1)), "reads register 1 before it is written"),
        (with_main((Opcode.MOVE, 99, 0), RETURN), "writes register 99 of 9"),
        (with_main((Opcode.MOVE, 1, 0)), "does not end"),
        (with_main((Opcode.JUMP, 0), RETURN), "jumps to 0"),
        (with_main((Opcode.BRANCH, 0, 9), RETURN), "jumps to 9"),
        (with_main((Opcode.BRANCH, 0, 2), (Opcode.MOVE, 1, 0), (Opcode.RETURN, 1)), "reads register 1 before"),
        (with_main(RETURN, RETURN), "never reached"),
        (with_main((Opcode.CONSTANT, 1, 7), RETURN), "names constant 7 of 2"),
        (with_main((Opcode.SEGMENT, 0, (), (1,), ()), RETURN), "calls segment 0 with"),
        (with_main((Opcode.SEGMENT, 0, (0,), (1,), (0,)), RETURN), "reads symbol 0 before it has a value"),
        (with_main((Opcode.MATCH, 0, ((BIND, 5),), 0), RETURN), "binds symbol 5 of 1"),
        (with_main((Opcode.MATCH, 0, ((7, 0),), 0), RETURN), "a dimension of kind 7"),
        (with_main((Opcode.CALL, 1, 2, ()), RETURN), "calls id with 0 arguments"),
        (with_main((Opcode.CALL, 1, 1, (0, 0)), RETURN), "calls inner with 2 arguments"),
        (with_main((Opcode.CLOSURE, 1, 1, (), ()), RETURN), "captures 0 values and 0 symbols for inner"),
        (with_main((Opcode.DATA, 1, 0, (0,)), RETURN), "builds Both of 1 fields"),
        (with_main((Opcode.RELEASE, (0,)), RETURN), "reads register 0 before"),
        (with_main(registers=1 << 40), "has 1099511627776 registers"),
        (with_main(symbols=1 << 40), "has 1099511627776 symbols"),
    ],
)
def test_malformed_programs_are_refused(program: Program, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check(program)


def test_a_host_function_that_is_not_here() -> None:
    with pytest.raises(UserError, match=r"no host function 'host\.no_such'"):
        check(replace(PROGRAM, hosts=(HostCall("host.no_such", ()),)))


def test_versions_and_lengths() -> None:
    data = encode(PROGRAM)
    with pytest.raises(UserError, match="has version 2; this runtime reads versions up to 1"):
        decode(data[:4] + bytes([VERSION + 1]) + data[5:])
    with pytest.raises(UserError, match="1 bytes are left over"):
        decode(data + b"\0")
    with pytest.raises(UserError, match="does not start as bytecode does"):
        decode(b"ELF!" + data[4:])
    for end in range(len(data)):
        with pytest.raises(UserError, match="damaged"):
            decode(data[:end])


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(4, len(encode(PROGRAM)) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_damaged_bytes_never_crash(changes: list[tuple[int, int]]) -> None:
    data = bytearray(encode(PROGRAM))
    for place, value in changes:
        data[place] = value
    try:
        program = decode(bytes(data))
        check(program)
    except UserError:
        return
    assert disassemble(program)


def test_attributes_of_every_kind_survive() -> None:
    values = (None, False, True, 0, -1, 1 << 62, 0.25, float("inf"), "", "é", b"", (), ((1, (2.0,)),))
    program = replace(PROGRAM, hosts=(HostCall("host.nonzero", (("a", values),)),))
    assert decode(encode(program)).hosts == program.hosts
    (found,) = decode(encode(replace(PROGRAM, hosts=(HostCall("h", (("nan", np.nan),)),)))).hosts
    assert np.isnan(found.attributes[0][1])  # type: ignore[arg-type]
