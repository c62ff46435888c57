"""A whole program as text, and back: its configuration, DRAM around it, instructions.

    config block_in=16 block_out=16          ; fields that differ from the default configuration
    buffer steps 0x0                         ; a part of DRAM: its name and its first byte, then what it holds
    uop acc=0 inp=3
    buffer image 0x100
    bytes 00 01 02 03
    zeros 12
    result sums 0x1000 64                    ; where a result lies, and its bytes
    load inp dram=image y_size=1 x_size=1    ; addresses may be names, with words of the bus added: image+2
    finish

A line is one of these; from `;` on it is a comment. What is printed is read back to the same program.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, fields

import numpy as np

from tilewright.accel.assembler import (
    MNEMONICS,
    Word,
    instruction_text,
    micro_op_text,
    parse_instruction,
    parse_micro_op,
    words_of,
)
from tilewright.accel.config import MICRO_OP_BITS, AccelConfig, Memory
from tilewright.accel.encoding import decode_micro_ops, encode_micro_ops
from tilewright.accel.instructions import Instruction, Load, MicroOp, check_formats, layout
from tilewright.accel.program import Program, check_segments
from tilewright.accel.rules import dram_rows
from tilewright.support.errors import UserError

_UOP_BYTES = MICRO_OP_BITS // 8
_LINE = 32
"""Bytes in a line."""
_FEW = 8
"""Zeros that are written as such."""


def program_text(program: Program) -> str:
    """The program as text."""
    usual = asdict(AccelConfig())
    config = [f"{name}={value}" for name, value in asdict(program.config).items() if value != usual[name]]
    lines = [" ".join(["config", *config])]
    names = {address: f"data{number}" for number, address in enumerate(sorted(program.segments))}
    uops = _micro_op_places(program)
    for address, name in names.items():
        lines.append(f"buffer {name} {address:#x}")
        lines += _content_lines(address, program.segments[address], uops, program.config)
    for number, (address, size) in enumerate(program.results):
        names.setdefault(address, f"result{number}")
        lines.append(f"result result{number} {address:#x} {size}")
    label = _labeller(names, program)
    lines += [instruction_text(instruction, label) for instruction in program.instructions]
    return "\n".join(lines) + "\n"


def _labeller(names: Mapping[int, str], program: Program) -> Callable[[int], str]:
    """What turns addresses in words of the bus to names of buffers that they lie in."""
    bus = program.config.bus_bytes
    ends = {address: address + size for address, size in program.results}
    ends.update({address: address + len(data) for address, data in program.segments.items()})
    starts = sorted(names)

    def label(word: int) -> str:
        index = bisect_right(starts, word * bus) - 1
        if index < 0 or word * bus >= ends[starts[index]] or starts[index] % bus:
            return f"{word:#x}"
        added = word - starts[index] // bus
        return names[starts[index]] + (f"+{added:#x}" if added else "")

    return label


def _micro_op_places(program: Program) -> set[int]:
    """The bytes of DRAM at which LOADs of UOP find words."""
    places: set[int] = set()
    for instruction in program.instructions:
        if isinstance(instruction, Load) and instruction.memory is Memory.UOP:
            first, rows, size, stride = dram_rows(instruction, program.config)
            for row in range(rows):
                places.update(range(first + row * stride, first + row * stride + size, _UOP_BYTES))
    return places


def _content_lines(address: int, data: bytes, uops: set[int], config: AccelConfig) -> Iterator[str]:
    used = max(low + bits for low, bits in layout(MicroOp, config).values())
    has_uops = any(address <= place < address + len(data) for place in uops)
    at = plain = 0
    while at < len(data):
        word = data[at : at + _UOP_BYTES]
        if address + at in uops and len(word) == _UOP_BYTES and not int.from_bytes(word, "little") >> used:
            yield from _byte_lines(data[plain:at])
            values = decode_micro_ops(np.frombuffer(word, "<u4"), config)
            yield micro_op_text(MicroOp(**{name: int(value[0]) for name, value in values.items()}))
            plain = at = at + _UOP_BYTES
        else:
            at = at + _UOP_BYTES if has_uops else len(data)
    yield from _byte_lines(data[plain:])


def _byte_lines(data: bytes) -> Iterator[str]:
    at = 0
    for match in re.finditer(rb"\0{%d,}" % _FEW, data):
        yield from _hex_lines(data[at : match.start()])
        yield f"zeros {match.end() - match.start()}"
        at = match.end()
    yield from _hex_lines(data[at:])


def _hex_lines(data: bytes) -> Iterator[str]:
    for at in range(0, len(data), _LINE):
        yield "bytes " + data[at : at + _LINE].hex(" ")


def parse_program(text: str, source: str = "program") -> Program:
    """The program that a text says; what is wrong with it is a `UserError` with line and column."""
    return _Parser(source).parse(text)


class _Parser:
    """Reads lines in two turns: first buffers and results, whose names instructions take wherever they stand."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._config = AccelConfig()
        self._segments: dict[int, bytearray] = {}
        self._names: dict[str, int] = {}
        self._results: list[tuple[int, int]] = []
        self._current: int | None = None

    def parse(self, text: str) -> Program:
        """The program."""
        lines = [words_of(line, self._source, number) for number, line in enumerate(text.splitlines(), 1)]
        code = []
        for number, words in enumerate(line for line in lines if line):
            if words[0].text in MNEMONICS:
                code.append(words)
                self._current = None
            else:
                self._directive(words, is_first=number == 0)
        bus = self._config.bus_bytes
        labels = {name: address // bus for name, address in self._names.items() if address % bus == 0}
        instructions: list[Instruction] = [parse_instruction(words, self._config, labels) for words in code]
        segments = {address: bytes(data) for address, data in self._segments.items()}
        check_segments(segments, self._source)
        return Program(self._config, tuple(instructions), segments, tuple(self._results))

    def _directive(self, words: list[Word], *, is_first: bool) -> None:
        first = words[0]
        directives: dict[str, Callable[[list[Word]], None]] = {
            "buffer": self._buffer,
            "result": self._result,
            "bytes": self._bytes,
            "zeros": self._zeros,
            "uop": self._uop,
        }
        if first.text == "config":
            if not is_first:
                raise first.error("config comes first")
            self._config = _config(words[1:], first)
        elif first.text in directives:
            directives[first.text](words)
        else:
            known = ", ".join(("config", *directives, *MNEMONICS))
            raise first.error(f"a line cannot begin with '{first.text}'", f"there are {known}")

    def _buffer(self, words: list[Word]) -> None:
        name, address = _arguments(words, "a name and an address", 2)
        self._current = address.number(address.text, "the address")
        self._name(name, self._current)
        if self._current in self._segments:
            raise address.error("another buffer begins there")
        self._segments[self._current] = bytearray()

    def _result(self, words: list[Word]) -> None:
        name, address, size = _arguments(words, "a name, an address and a number of bytes", 3)
        begin, count = address.number(address.text, "the address"), size.number(size.text, "the number of bytes")
        if count < 0:
            raise size.error(f"the number of bytes is {count}")
        self._name(name, begin)
        self._results.append((begin, count))
        self._current = None

    def _name(self, name: Word, address: int) -> None:
        if not re.fullmatch(r"[A-Za-z_]\w*", name.text):
            raise name.error(f"'{name.text}' is no name")
        if name.text in self._names:
            raise name.error(f"the name '{name.text}' is given twice")
        if address < 0:
            raise name.error(f"the address is {address}")
        self._names[name.text] = address

    def _content(self, word: Word) -> bytearray:
        if self._current is None:
            raise word.error(f"{word.text} is in no buffer", "it belongs behind `buffer NAME ADDRESS`")
        return self._segments[self._current]

    def _bytes(self, words: list[Word]) -> None:
        content = self._content(words[0])
        for word in words[1:]:
            if not re.fullmatch(r"([0-9a-fA-F]{2})+", word.text):
                raise word.error(f"'{word.text}' is no bytes", "two hexadecimal digits each")
            content += bytes.fromhex(word.text)

    def _zeros(self, words: list[Word]) -> None:
        content = self._content(words[0])
        (count,) = _arguments(words, "a number of bytes", 1)
        size = count.number(count.text, "the number of bytes")
        if not 0 <= size <= self._config.bus_bytes << 32:
            raise count.error(f"the number of bytes is {size}")
        content += bytes(size)

    def _uop(self, words: list[Word]) -> None:
        content = self._content(words[0])
        content += encode_micro_ops([parse_micro_op(words, self._config)], self._config).astype("<u4").tobytes()


def _arguments(words: list[Word], what: str, count: int) -> list[Word]:
    if len(words) != count + 1:
        raise words[0].error(f"{words[0].text} takes {what}, and has {len(words) - 1} words")
    return words[1:]


def _config(words: list[Word], first: Word) -> AccelConfig:
    known = {item.name for item in fields(AccelConfig)}
    values: dict[str, int] = {}
    for word in words:
        name, text = word.assignment()
        if name not in known:
            raise word.error(f"there is no '{name}' in a configuration", f"there are {', '.join(sorted(known))}")
        if name in values:
            raise word.error(f"{name} is given twice")
        values[name] = word.number(text, name)
    try:
        config = AccelConfig(**values)
        check_formats(config)
    except UserError as error:
        raise first.error(error.message.removeprefix("accelerator: "), error.hint) from None
    return config
