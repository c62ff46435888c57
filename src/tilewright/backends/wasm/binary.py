"""The binary format of WebAssembly, as far as a package must know it: what a module imports, and its memory."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.support.errors import CompilerBug

_MAGIC = b"\0asm\1\0\0\0"
_IMPORTS = 2
_FUNCTION, _TABLE, _MEMORY, _GLOBAL = range(4)
_HAS_MAXIMUM = 1


@dataclass(frozen=True, slots=True)
class Imports:
    """What a module imports: functions by name, and the memory."""

    functions: tuple[str, ...]
    memory_pages: int
    """Pages that its own data and stack take, from the beginning of the memory."""
    memory_flags: int
    """Where in the file the byte is that says whether the memory has a maximum (1) and is shared (2)."""


class _Reader:
    def __init__(self, content: bytes, place: int) -> None:
        self.content, self.place = content, place

    def number(self) -> int:
        value = shift = 0
        while True:
            byte = self.content[self.place]
            self.place += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    def text(self) -> str:
        length = self.number()
        self.place += length
        return self.content[self.place - length : self.place].decode()


def read_imports(content: bytes) -> Imports:
    """The imports of a linked module."""
    if not content.startswith(_MAGIC):
        raise CompilerBug("the linker wrote no WebAssembly module")
    reader = _Reader(content, len(_MAGIC))
    while reader.place < len(content):
        section, length = reader.number(), reader.number()
        if section == _IMPORTS:
            return _imports(reader)
        reader.place += length
    raise CompilerBug("the linked module imports no memory")


def _imports(reader: _Reader) -> Imports:
    functions: list[str] = []
    memory: tuple[int, int] | None = None
    for _ in range(reader.number()):
        reader.text()
        name, kind = reader.text(), reader.number()
        if kind == _FUNCTION:
            reader.number()
            functions.append(name)
        elif kind == _MEMORY:
            flags = reader.place
            if reader.number() != _HAS_MAXIMUM:
                raise CompilerBug("the memory of the linked module has no maximum")
            memory = reader.number(), flags
            reader.number()
        else:
            raise CompilerBug(f"the linked module imports '{name}', which is no function")
    if memory is None:
        raise CompilerBug("the linked module imports no memory")
    return Imports(tuple(functions), *memory)
