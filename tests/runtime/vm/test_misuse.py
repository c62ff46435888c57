"""Programs that make no sense: refused when they are loaded, or, where values decide, by an error of our own."""

from __future__ import annotations

from base64 import b64encode
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tests.graph.helpers import random
from tests.lower.vm.test_programs import loop_module
from tests.runtime.vm.test_codec import PROGRAM, TENSOR, check, with_main
from tilewright.runtime.core.executor import Executable
from tilewright.runtime.host.registry import names
from tilewright.runtime.vm.codec import encode
from tilewright.runtime.vm.program import BIND, BlobConstant, HostCall, Opcode, Program, TextConstant, VmFunction
from tilewright.runtime.vm.runner import ProgramRunner
from tilewright.runtime.vm.types import DataDefinition, Kind, ValueType
from tilewright.support.errors import UserError


def _type(**changes: object) -> Program:
    return replace(PROGRAM, inputs=(replace(TENSOR, **changes),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (replace(PROGRAM, constants=(TextConstant((3,), ("a",)),) * 2), "constant 0 has 1 texts"),
        (replace(PROGRAM, constants=(BlobConstant(0, (0, 1 << 62), "int8"),) * 2), "constant 0 has the shape"),
        (replace(PROGRAM, constants=(BlobConstant(0, (1,) * 40, "int8"),) * 2), "constant 0 has the shape"),
        (replace(PROGRAM, constants=(BlobConstant(2, (1,), "float32"),) * 2), "constant 0 is not aligned"),
        (replace(PROGRAM, constants=(BlobConstant(0, (64,), "float32"),) * 2), "constant 0 lies outside"),
        (replace(PROGRAM, extents=(4, "s0 ** 2")), "not arithmetic over symbols"),
        (replace(PROGRAM, extents=(4, "s0.real")), "not arithmetic over symbols"),
        (replace(PROGRAM, extents=(4, "print(s0)")), "not arithmetic over symbols"),
        (replace(PROGRAM, extents=(4, "s0 is 4")), "not arithmetic over symbols"),
        (replace(PROGRAM, extents=(4, "\0")), "not arithmetic over symbols"),
        (replace(PROGRAM, extents=(4, "(" * 5000)), "not arithmetic over symbols"),
        (replace(PROGRAM, extents=(4, "s0" + "+s0" * 4000)), "letters"),
        (replace(PROGRAM, extents=(4, "s0" + "+s0" * 2000)), "nests too deep"),
        (_type(name="float31"), "there is no data type 'float31'"),
        (_type(shape=("n", "(")), "not arithmetic over symbols"),
        (_type(kind=Kind.SEQUENCE), "a type sequence of 0 types"),
        (_type(kind=Kind.OPTIONAL, items=(TENSOR, TENSOR)), "a type optional of 2 types"),
        (_type(kind=Kind.DATA, name="Nobody"), "there is no algebraic data type 'Nobody'"),
        (
            replace(PROGRAM, definitions=(DataDefinition("Pair", (("Both", (ValueType(Kind.DATA, "No"),)),)),)),
            "there is no algebraic data type 'No'",
        ),
        (with_main(registers=1 << 19), "function main has 524288 registers"),
        (with_main(symbols=1 << 19), "function main has 524288 symbols"),
    ],
)
def test_what_the_verifier_refuses(program: Program, message: str) -> None:
    with pytest.raises(UserError, match=f"the bytecode is damaged: .*{message}"):
        check(program)


@pytest.fixture(scope="module")
def loop() -> Executable:
    return tw.compile(loop_module(7), threads=1)


def _with(exe: Executable, program: Program) -> Executable:
    model = replace(exe.model, program=b64encode(encode(program)).decode())
    return Executable(replace(exe.artifact, model=model), exe.library)


def _program(exe: Executable) -> Program:
    assert isinstance(exe.runner, ProgramRunner)
    return exe.runner.machine.program


X = random(1, 1, 8)


@pytest.mark.parametrize(
    "code",
    [
        [(Opcode.FIELD, 1, 0, 0)],
        [(Opcode.TUPLE, 1, (0,)), (Opcode.FIELD, 1, 1, 7)],
        [(Opcode.TUPLE, 1, (0,)), (Opcode.MATCH, 1, ((BIND, 0),), 0)],
        [(Opcode.BRANCH, 0, 1)],
        [(Opcode.CALL_CLOSURE, 1, 0, ())],
        [(Opcode.TUPLE, 1, (0,)), (Opcode.VIEW, 1, 1, 0, (0,))],
    ],
)
def test_values_that_an_instruction_cannot_take(loop: Executable, code: list[tuple[object, ...]]) -> None:
    whole = (*code, (Opcode.RETURN, 0))
    main = VmFunction("main", 0, 1, 0, 4, 2, whole)
    program = replace(_program(loop), functions=(main,), extents=(8,), texts=("it",))
    with pytest.raises(UserError, match=r"instruction \d \([A-Z_]+\) of 'main' cannot take its operands"):
        _with(loop, program)(X)


def test_native_code_is_never_given_less_memory_than_it_reads(loop: Executable) -> None:
    program = _program(loop)
    number = next(n for n, info in enumerate(loop.model.segments) if any(item.shape == (1, 8) for item in info.inputs))
    info = loop.model.segments[number]
    for offset, dims, dtype in ((0, (4,), "float32"), (0, (8,), "int64")):
        constants = (BlobConstant(0, (8,), dtype),)
        code = (
            (Opcode.CONSTANT, 1, 0),
            (Opcode.VIEW, 1, 1, 0, (1,)),
            (Opcode.SEGMENT, number, (1,) * len(info.inputs), tuple(range(2, 2 + len(info.outputs))), ()),
            (Opcode.RETURN, 1),
        )
        main = VmFunction("main", 0, 1, 0, 8, 0, code)
        changed = replace(program, functions=(main,), constants=constants, extents=(offset, dims[0]))
        big = replace(loop.artifact, constants=np.zeros(128, np.uint8))
        model = replace(loop.model, program=b64encode(encode(changed)).decode())
        with pytest.raises(UserError, match=r"\(SEGMENT\) of 'main' cannot take its operands: .* in the place of"):
            Executable(replace(big, model=model), loop.library)(X)


@pytest.mark.parametrize(
    ("inputs", "results", "call", "message"),
    [
        ((), (1,), HostCall("axes.to_end", (), "node"), "list index out of range"),
        ((0,), (1, 2), HostCall("sequence.make", (), "node"), "gives 1 results"),
        ((0,), (1,), HostCall("host.nowhere", (), "node"), "no host function"),
    ],
)
def test_host_functions_that_are_called_wrongly(
    loop: Executable, inputs: tuple[int, ...], results: tuple[int, ...], call: HostCall, message: str
) -> None:
    code = ((Opcode.HOST, 0, inputs, results), (Opcode.RETURN, 1))
    main = VmFunction("main", 0, 1, 0, 4, 0, code)
    program = replace(_program(loop), functions=(main,), hosts=(call,))
    with pytest.raises(UserError, match=message):
        _with(loop, program)(X)


@pytest.mark.parametrize("name", names())
def test_every_host_function_without_values_and_attributes(loop: Executable, name: str) -> None:
    """Whatever they make of nothing, it is an error of ours or a result."""
    for inputs in ((), (0,), (0, 0), (0, 0, 0, 0)):
        main = VmFunction(
            "main", 0, 1, 0, 4, 0, ((Opcode.HOST, 0, inputs, (1,)), (Opcode.TUPLE, 1, (1, 1)), (Opcode.RETURN, 1))
        )
        with suppress(UserError):
            _with(loop, replace(_program(loop), functions=(main,), hosts=(HostCall(name, (), "node"),)))(X)


def test_sizes_below_zero_and_results_of_another_kind(loop: Executable) -> None:
    code = ((Opcode.MATCH, 0, ((BIND, 0), (BIND, 1)), 0), (Opcode.VIEW, 1, 0, 0, (1,)), (Opcode.RETURN, 1))
    main = VmFunction("main", 0, 1, 0, 4, 2, code)
    program = replace(_program(loop), functions=(main,), extents=(0, "s0 - s1"), texts=("it",))
    with pytest.raises(UserError, match=r"cannot be viewed as \[-7\]"):
        _with(loop, program)(X)
    main = VmFunction("main", 0, 1, 0, 4, 0, ((Opcode.RETURN, 0),))
    with pytest.raises(UserError, match="it gives no tuple of 2 outputs"):
        _with(loop, replace(program, functions=(main,)))(X)
    two = replace(main, params=2)
    with pytest.raises(UserError, match="it has other inputs than the model"):
        _with(loop, replace(program, functions=(two,), inputs=program.inputs * 2))


def test_values_nested_without_end(loop: Executable) -> None:
    """`f(t, n) = n ? f((t,), n - 1) : t` with a tuple around a tuple around ...: results are copied, level by level."""
    code = [(Opcode.TUPLE, 0, (0,))] * 5000
    main = VmFunction("main", 0, 1, 0, 1, 0, (*code, (Opcode.TUPLE, 0, (0, 0)), (Opcode.RETURN, 0)))
    with pytest.raises(UserError, match="the values of the program are nested too deep"):
        _with(loop, replace(_program(loop), functions=(main,)))(X)
