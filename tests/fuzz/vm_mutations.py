"""Changes to programs of the virtual machine: to their tables and instructions, and to their bytes."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np

from tilewright.runtime import host
from tilewright.runtime.core.dtypes import C_TYPES
from tilewright.runtime.host import registry
from tilewright.runtime.vm.codec import encode
from tilewright.runtime.vm.program import OPERANDS, BlobConstant, Instruction, Opcode, Operand, Program, VmFunction

Random = np.random.Generator

assert host is not None  # registers all host functions

_EXTENTS = [
    "s0",
    "s1",
    "s0 * 2",
    "s0 - 5",
    "-s0",
    "min(s0, s1)",
    "s0 // 0",
    "s0 ** 9",
    "((s0",
    "",
    "1 if s0 < 2 else 0",
]
_NUMBERS = [0, 1, 2, 3, 7, 63, 64, 255, 1 << 20, 1 << 31, (1 << 62) + 1]


def mutated(program: Program, random: Random) -> bytes:
    """A program that was changed in one to four places, as bytes."""
    if random.random() < 0.25:
        return _changed_bytes(encode(program), random)
    for _ in range(random.integers(1, 5)):
        program = _CHANGES[random.integers(len(_CHANGES))](program, random)
    content = encode(program)
    return _changed_bytes(content, random) if random.random() < 0.1 else content


def _changed_bytes(content: bytes, random: Random) -> bytes:
    data = bytearray(content)
    for _ in range(random.integers(1, 4)):
        place = int(random.integers(len(data)))
        match random.integers(5):
            case 0:
                data[place] ^= 1 << int(random.integers(8))
            case 1:
                data[place] = int(random.integers(256))
            case 2:
                del data[place : place + int(random.integers(1, 5))]
            case 3:
                data[place:place] = random.bytes(int(random.integers(1, 5)))
            case _:
                other = int(random.integers(len(data)))
                data[place : place + 4] = data[other : other + 4]
        if not data:
            data = bytearray(1)
    return bytes(data)


def _pick(values: Any, random: Random) -> Any:
    return values[int(random.integers(len(values)))]


def _with_code(program: Program, random: Random, change: Any) -> Program:
    """The program with the code of one function changed."""
    number = int(random.integers(len(program.functions)))
    function = program.functions[number]
    code = change(list(function.code), function, program, random)
    functions = list(program.functions)
    functions[number] = replace(function, code=tuple(code))
    return replace(program, functions=tuple(functions))


def _operand(kind: Operand, function: VmFunction, program: Program, random: Random) -> int:
    """A number that an operand might well be; now and then one that it cannot be."""
    if random.random() < 0.05:
        return int(_pick(_NUMBERS, random))
    most = {
        Operand.CONSTANT: len(program.constants),
        Operand.HOST: len(program.hosts),
        Operand.FUNCTION: len(program.functions),
        Operand.CONSTRUCTOR: len(program.constructors),
        Operand.TEXT: len(program.texts),
        Operand.EXTENT: len(program.extents),
        Operand.EXTENTS: len(program.extents),
        Operand.SYMBOLS: function.symbols,
        Operand.TARGET: len(function.code),
        Operand.NUMBER: 4,
        Operand.SEGMENT: 3,
    }.get(kind, function.registers)
    return int(random.integers(max(most, 1)))


def _new_instruction(function: VmFunction, program: Program, random: Random) -> Instruction:
    opcode = Opcode(int(random.integers(len(Opcode))))
    operands: list[Any] = []
    for kind in OPERANDS[opcode]:
        count = int(random.integers(4))
        if kind is Operand.DIMENSIONS:
            operands.append(tuple((int(random.integers(4)), int(random.integers(3))) for _ in range(count)))
        elif kind.is_list:
            operands.append(tuple(_operand(kind, function, program, random) for _ in range(count)))
        else:
            operands.append(_operand(kind, function, program, random))
    return (opcode, *operands)


def _change_operand(code: Any, function: VmFunction, program: Program, random: Random) -> Any:
    place = int(random.integers(len(code)))
    opcode, *operands = code[place]
    if operands:
        at = int(random.integers(len(operands)))
        kind = OPERANDS[opcode][at]
        if kind is Operand.DIMENSIONS:
            operands[at] = (*operands[at], (int(random.integers(4)), int(random.integers(3))))[random.integers(2) :]
        elif kind.is_list:
            items = [*operands[at], _operand(kind, function, program, random)]
            random.shuffle(items)
            operands[at] = tuple(int(item) for item in items[: len(operands[at]) + int(random.integers(2))])
        else:
            operands[at] = _operand(kind, function, program, random)
        code[place] = (opcode, *operands)
    return code


def _drop(code: Any, function: VmFunction, program: Program, random: Random) -> Any:
    del code[int(random.integers(len(code)))]
    return code or [(Opcode.FAIL, 0)]


def _repeat(code: Any, function: VmFunction, program: Program, random: Random) -> Any:
    code.insert(int(random.integers(len(code))), _pick(code, random))
    return code


def _insert(code: Any, function: VmFunction, program: Program, random: Random) -> Any:
    code.insert(int(random.integers(len(code))), _new_instruction(function, program, random))
    return code


def _swap(code: Any, function: VmFunction, program: Program, random: Random) -> Any:
    a, b = random.integers(len(code), size=2)
    code[a], code[b] = code[b], code[a]
    return code


def _change_function(program: Program, random: Random) -> Program:
    number = int(random.integers(len(program.functions)))
    name = _pick(("captured", "params", "captured_symbols", "registers", "symbols"), random)
    old = getattr(program.functions[number], name)
    new = int(_pick([max(old - 1, 0), old + 1, old + 2, 0, *_NUMBERS], random))
    functions = list(program.functions)
    functions[number] = replace(functions[number], **{name: new})
    return replace(program, functions=tuple(functions))


def _change_constant(program: Program, random: Random) -> Program:
    if not program.constants:
        return program
    number = int(random.integers(len(program.constants)))
    constant = program.constants[number]
    shape = tuple(int(_pick([extent, extent + 1, *_NUMBERS], random)) for extent in constant.shape)
    shape = (*shape, int(_pick(_NUMBERS, random)))[random.integers(2) :]
    new: Any = replace(constant, shape=shape)
    if isinstance(constant, BlobConstant):
        new = _pick([new, replace(constant, dtype=_pick([*C_TYPES, "string", "no"], random))], random)
        new = replace(new, offset=int(_pick([constant.offset, 1, 4, *_NUMBERS], random)))
    constants = list(program.constants)
    constants[number] = new
    return replace(program, constants=tuple(constants))


def _change_host(program: Program, random: Random) -> Program:
    if not program.hosts:
        return program
    number = int(random.integers(len(program.hosts)))
    call = program.hosts[number]
    attributes = [*call.attributes]
    if attributes and random.random() < 0.7:
        at = int(random.integers(len(attributes)))
        values = [None, True, -1, 0, 3, 1 << 40, 0.5, float("nan"), "x", "float32", b"\xff", (), (1, "y"), (3, (4,))]
        if random.random() < 0.3:
            del attributes[at]
        else:
            attributes[at] = (attributes[at][0], _pick(values, random))
        call = replace(call, attributes=tuple(attributes))
    else:
        call = replace(call, name=_pick(registry.names(), random))
    hosts = list(program.hosts)
    hosts[number] = call
    return replace(program, hosts=tuple(hosts))


def _change_extent(program: Program, random: Random) -> Program:
    if not program.extents:
        return program
    extents = list(program.extents)
    new = _pick([*_EXTENTS, *_NUMBERS, -1, -7], random)
    extents[int(random.integers(len(extents)))] = new
    return replace(program, extents=tuple(extents))


def _change_type(program: Program, random: Random) -> Program:
    if not program.inputs:
        return program
    inputs = list(program.inputs)
    number = int(random.integers(len(inputs)))
    kind: Any = inputs[number]
    name = _pick([item.name for item in fields(kind)], random)
    values = {
        "kind": list(type(kind.kind)),
        "name": [*C_TYPES, "string", "no", ""],
        "shape": [(), ("n",), (3, "n + 1"), ("(",), (1 << 62,) * 3, (0,)],
        "items": [(), (kind,), (kind, kind)],
        "number": _NUMBERS,
    }[name]
    inputs[number] = replace(kind, **{name: _pick(values, random)})
    return replace(program, inputs=tuple(inputs))


def _change_constructor(program: Program, random: Random) -> Program:
    if not program.constructors:
        return program
    constructors = list(program.constructors)
    number = int(random.integers(len(constructors)))
    new = {"fields": int(random.integers(4)), "name": _pick(constructors, random).name}
    name = _pick(tuple(new), random)
    constructors[number] = replace(constructors[number], **{name: new[name]})
    return replace(program, constructors=tuple(constructors))


_CHANGES: list[Any] = [
    *(
        (lambda program, random, change=change: _with_code(program, random, change))
        for change in (_change_operand, _change_operand, _change_operand, _drop, _repeat, _insert, _insert, _swap)
    ),
    _change_function,
    _change_constant,
    _change_host,
    _change_extent,
    _change_type,
    _change_constructor,
]
