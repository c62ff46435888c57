"""Compiled code in this process: where symbols are, and functions bound to them."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from typing import Any, Protocol

from tilewright.support import settings
from tilewright.support.errors import UserError

ERROR_ASSERT = 1
ERROR_MEMORY = 2
ERROR_TILES = 3
ERROR_LEVEL = 4
NO_LEVEL_SHAPES = -(1 << 31)
"""What functions that size a call return in the place of `ERROR_LEVEL`: their small numbers mean dimensions."""


class Library(Protocol):
    """Loaded code. Its addresses are good for as long as the object lives."""

    def symbol(self, name: str) -> int:
        """The address of a symbol that must be there."""

    def find(self, name: str) -> int | None:
        """The address of a symbol, or None."""


class SharedLibrary:
    """A shared library through the system's loader; `where` names it in errors.

    The library may hide its symbols and give their addresses in a table instead, `<name>__tilewright`.
    """

    def __init__(self, path: str, where: str | None = None, table: str | None = None) -> None:
        self.where = where or path
        self._hidden: dict[str, int] = {}
        try:
            self._handle = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
        except OSError as error:
            said = str(error).replace(path, self.where)
            raise UserError(f"the system cannot load the library: {said}", where=self.where) from None
        if table is not None:
            self._hidden = self._read_table(table)

    def _read_table(self, table: str) -> dict[str, int]:
        """The hidden symbols by name: pairs of addresses, of a name and of what it names, up to a null."""
        pairs = ctypes.cast(self.symbol(table), ctypes.POINTER(ctypes.c_void_p))
        addresses: dict[str, int] = {}
        place = 0
        while (name := pairs[place]) is not None:
            addresses[ctypes.string_at(name).decode()] = pairs[place + 1] or 0
            place += 2
        return addresses

    def find(self, name: str) -> int | None:
        """The address of a symbol, or None."""
        hidden = self._hidden.get(name)
        if hidden is not None:
            return hidden
        try:
            function = self._handle[name]
        except AttributeError:
            return None
        return ctypes.cast(function, ctypes.c_void_p).value

    def symbol(self, name: str) -> int:
        """The address of a symbol that must be there."""
        address = self.find(name)
        if address is None:
            raise UserError(f"the library is damaged: it has no symbol '{name}'", where=self.where)
        return address


def bind(library: Library, name: str, result: Any, *arguments: Any) -> Any:
    """The C function `name` as a callable that releases the interpreter lock and keeps the library alive."""
    function: Any = ctypes.CFUNCTYPE(result, *arguments)(library.symbol(name))
    function.tilewright_library = library
    return function


def thread_setter(library: Library, prefix: str) -> Callable[[int], None]:
    """The function that says how many threads later calls use; 0 is the default.

    An exported library has its own under its prefix; code compiled in this process shares one pool. Code without
    parallel loops may come without either.
    """
    # A wrong word in the environment is said here; compiled code, which reads it too, would ignore it in silence.
    settings.NUM_THREADS.get()
    for name in (f"{prefix}_set_num_threads", "tw_set_num_threads"):
        address = library.find(name)
        if address is not None:
            return _remembering(bind(library, name, None, ctypes.c_int64), address)
    return lambda threads: None


_set_last: dict[int, int] = {}
"""What the pools of this process were last told, by the address of the function that tells them."""
_setting = threading.Lock()
"""Held while a pool is told: what was said last is what is known to be said last."""


def _remembering(setter: Callable[[int], None], address: int) -> Callable[[int], None]:
    """The same, without a call where the pool has been told so already."""

    def set_threads(threads: int) -> None:
        if _set_last.get(address) != threads:
            with _setting:
                setter(threads)
                _set_last[address] = threads

    return set_threads


def check_threads(threads: int | None) -> int | None:
    """A number of threads that a user asks for; None is the default."""
    if threads is not None and threads < 1:
        raise UserError(f"the number of threads must be at least 1, not {threads}")
    return threads


def check_code(code: int, where: str) -> None:
    """Raise what an error code of compiled code stands for."""
    if code == 0:
        return
    if code == ERROR_MEMORY:
        raise UserError(f"{where} ran out of memory")
    if code == ERROR_ASSERT:
        raise UserError(
            f"{where} stopped at a failed check", hint="an argument breaks a condition that the program states"
        )
    if code == ERROR_TILES:
        raise UserError(
            f"{where} needs the processor's matrix tiles, which the operating system does not let this process use",
            hint="compile with -mattr=-amx-tile",
        )
    if code in (ERROR_LEVEL, NO_LEVEL_SHAPES):
        raise UserError(
            f"{where} has no code that this processor can run, or TILEWRIGHT_CPU names one that it has none for",
            hint="unset TILEWRIGHT_CPU, or export it with a target for this machine",
        )
    raise UserError(f"{where} failed with the code {code}")
