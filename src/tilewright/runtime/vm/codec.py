"""Programs as bytes and back: versioned, with every length checked; damaged bytes are a UserError, never a crash."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TypeVar

from tilewright.runtime.core.artifact import Extent
from tilewright.runtime.host.registry import HostAttribute
from tilewright.runtime.vm.program import (
    OPERANDS,
    BlobConstant,
    ConstructorInfo,
    HostCall,
    Instruction,
    Opcode,
    Operand,
    Program,
    TextConstant,
    VmFunction,
)
from tilewright.runtime.vm.types import DataDefinition, Kind, ValueType
from tilewright.support.errors import CompilerBug, UserError

MAGIC = b"TWVM"
VERSION = 1
_LARGEST_DEPTH = 64
"""How deep types and attributes may nest: more is damage."""

T = TypeVar("T")


class _Damage(Exception):
    """The bytes are not a program."""


class _Writer:
    def __init__(self) -> None:
        self.data = bytearray()

    def natural(self, value: int) -> None:
        """A number of at least 0, in groups of seven bits, lowest first."""
        if value < 0:
            raise CompilerBug(f"{value} in bytecode where no negative number can be")
        while value > 0x7F:
            self.data.append(value & 0x7F | 0x80)
            value >>= 7
        self.data.append(value)

    def integer(self, value: int) -> None:
        """Any number, the sign in the lowest bit."""
        self.natural(value * 2 if value >= 0 else -value * 2 - 1)

    def text(self, value: str) -> None:
        self.block(value.encode())

    def block(self, value: bytes) -> None:
        self.natural(len(value))
        self.data += value

    def each(self, write: Callable[[T], None], values: Sequence[T]) -> None:
        self.natural(len(values))
        for value in values:
            write(value)

    def extent(self, value: Extent) -> None:
        self.natural(isinstance(value, str))
        if isinstance(value, str):
            self.text(value)
        else:
            self.integer(value)

    def attribute(self, value: HostAttribute) -> None:
        if value is None or isinstance(value, bool):
            self.natural((None, False, True).index(value))
        elif isinstance(value, int):
            self.natural(3)
            self.integer(value)
        elif isinstance(value, float):
            self.natural(4)
            self.data += struct.pack("<d", value)
        elif isinstance(value, str):
            self.natural(5)
            self.text(value)
        elif isinstance(value, bytes):
            self.natural(6)
            self.block(value)
        else:
            self.natural(7)
            self.each(self.attribute, value)

    def type(self, value: ValueType) -> None:
        self.natural(value.kind)
        self.text(value.name)
        self.each(self.extent, value.shape)
        self.each(self.type, value.items)
        self.natural(value.number)

    def instruction(self, value: Instruction) -> None:
        opcode, *operands = value
        self.natural(opcode)
        for kind, operand in zip(OPERANDS[opcode], operands, strict=True):
            if kind is Operand.DIMENSIONS:
                self.each(self.dimension, operand)
            elif kind.is_list:
                self.each(self.natural, operand)
            else:
                self.natural(operand)

    def dimension(self, value: tuple[int, int]) -> None:
        for number in value:
            self.natural(number)

    def function(self, value: VmFunction) -> None:
        self.text(value.name)
        counts = (value.captured, value.params, value.captured_symbols, value.registers, value.symbols)
        for count in counts:
            self.natural(count)
        self.each(self.instruction, value.code)

    def constant(self, value: BlobConstant | TextConstant) -> None:
        self.natural(isinstance(value, TextConstant))
        self.each(self.natural, value.shape)
        if isinstance(value, TextConstant):
            self.each(self.text, value.items)
        else:
            self.natural(value.offset)
            self.text(value.dtype)

    def host(self, value: HostCall) -> None:
        self.text(value.name)
        self.each(self.named_attribute, value.attributes)
        self.text(value.where)

    def named_attribute(self, value: tuple[str, HostAttribute]) -> None:
        self.text(value[0])
        self.attribute(value[1])

    def constructor(self, value: ConstructorInfo) -> None:
        self.text(value.type_name)
        self.text(value.name)
        self.natural(value.number)
        self.natural(value.fields)

    def definition(self, value: DataDefinition) -> None:
        self.text(value.name)
        self.each(self.named_types, value.constructors)

    def named_types(self, value: tuple[str, tuple[ValueType, ...]]) -> None:
        self.text(value[0])
        self.each(self.type, value[1])


def encode(program: Program) -> bytes:
    """The bytes of a program."""
    writer = _Writer()
    writer.data += MAGIC
    writer.natural(VERSION)
    writer.each(writer.text, program.texts)
    writer.each(writer.extent, program.extents)
    writer.each(writer.constant, program.constants)
    writer.each(writer.host, program.hosts)
    writer.each(writer.constructor, program.constructors)
    writer.each(writer.definition, program.definitions)
    writer.each(writer.type, program.inputs)
    writer.each(writer.function, program.functions)
    return bytes(writer.data)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.place = 0
        self.depth = 0

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.place:
            raise _Damage(f"{count} bytes are wanted at {self.place}, {len(self.data) - self.place} are left")
        self.place += count
        return self.data[self.place - count : self.place]

    def natural(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise _Damage(f"a number at {self.place} has more than 64 bits")

    def integer(self) -> int:
        value = self.natural()
        return value // 2 if value % 2 == 0 else -(value + 1) // 2

    def block(self) -> bytes:
        return self.take(self.natural())

    def text(self) -> str:
        try:
            return self.block().decode()
        except UnicodeDecodeError:
            raise _Damage(f"the text before {self.place} is not UTF-8") from None

    def each(self, read: Callable[[], T]) -> tuple[T, ...]:
        count = self.natural()
        # Everything takes a byte at least, so a damaged count cannot ask for more memory than the file has.
        if count > len(self.data) - self.place:
            raise _Damage(f"a list at {self.place} claims {count} items")
        return tuple([read() for _ in range(count)])

    def nested(self, read: Callable[[], T]) -> T:
        self.depth += 1
        if self.depth > _LARGEST_DEPTH:
            raise _Damage("something nests too deep")
        value = read()
        self.depth -= 1
        return value

    def extent(self) -> Extent:
        return self.text() if self.choice(2) else self.integer()

    def choice(self, count: int) -> int:
        value = self.natural()
        if value >= count:
            raise _Damage(f"{value} before {self.place} where less than {count} is allowed")
        return value

    def attribute(self) -> HostAttribute:
        kind = self.choice(8)
        if kind < 3:
            return (None, False, True)[kind]
        if kind == 3:
            return self.integer()
        if kind == 4:
            value: float = struct.unpack("<d", self.take(8))[0]
            return value
        if kind == 5:
            return self.text()
        if kind == 6:
            return self.block()
        return self.nested(lambda: self.each(self.attribute))

    def type(self) -> ValueType:
        kind, name, shape = Kind(self.choice(len(Kind))), self.text(), self.each(self.extent)
        items = self.nested(lambda: self.each(self.type))
        return ValueType(kind, name, shape, items, self.natural())

    def instruction(self) -> Instruction:
        opcode = Opcode(self.choice(len(Opcode)))
        return (opcode, *[self.operand(kind) for kind in OPERANDS[opcode]])

    def operand(self, kind: Operand) -> object:
        if kind is Operand.DIMENSIONS:
            return self.each(lambda: (self.natural(), self.natural()))
        return self.each(self.natural) if kind.is_list else self.natural()

    def function(self) -> VmFunction:
        name = self.text()
        captured, params, captured_symbols, registers, symbols = [self.natural() for _ in range(5)]
        code = self.each(self.instruction)
        return VmFunction(name, captured, params, captured_symbols, registers, symbols, code)

    def constant(self) -> BlobConstant | TextConstant:
        is_text, shape = self.choice(2), self.each(self.natural)
        return (
            TextConstant(shape, self.each(self.text)) if is_text else BlobConstant(self.natural(), shape, self.text())
        )

    def host(self) -> HostCall:
        name, attributes = self.text(), self.each(lambda: (self.text(), self.attribute()))
        return HostCall(name, attributes, self.text())

    def constructor(self) -> ConstructorInfo:
        return ConstructorInfo(self.text(), self.text(), self.natural(), self.natural())

    def definition(self) -> DataDefinition:
        return DataDefinition(self.text(), self.each(lambda: (self.text(), self.each(self.type))))

    def program(self) -> Program:
        texts, extents = self.each(self.text), self.each(self.extent)
        constants, hosts = self.each(self.constant), self.each(self.host)
        constructors, definitions = self.each(self.constructor), self.each(self.definition)
        inputs, functions = self.each(self.type), self.each(self.function)
        return Program(functions, constants, hosts, constructors, extents, texts, inputs, definitions)


def decode(data: bytes, where: str | None = None) -> Program:
    """The program that `encode` wrote. Whether it makes sense is for `verify` to say."""
    reader = _Reader(data)
    try:
        if reader.take(len(MAGIC)) != MAGIC:
            raise _Damage("it does not start as bytecode does")
        version = reader.natural()
        if version > VERSION:
            raise UserError(
                f"the bytecode has version {version}; this runtime reads versions up to {VERSION}",
                where=where,
                hint="upgrade: pip install --upgrade tilewright",
            )
        program = reader.program()
        if reader.place != len(data):
            raise _Damage(f"{len(data) - reader.place} bytes are left over")
        return program
    except _Damage as damage:
        raise UserError(f"the bytecode is damaged: {damage}", where=where) from None
