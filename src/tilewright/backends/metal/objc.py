"""Messages to Objective-C objects, through ctypes and the signatures of what is sent."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from tilewright.support.errors import CompilerBug

ID: Final = ctypes.c_void_p
"""An object, a class or a selector."""
Signature = tuple[Any, tuple[Any, ...]]
"""The type of a method's result (None: nothing), and those of its arguments after the receiver and the selector."""

_FOUNDATION: Final[dict[str, Signature]] = {
    "new": (ID, ()),
    "retain": (ID, ()),
    "release": (None, ()),
    "stringWithUTF8String:": (ID, (ctypes.c_char_p,)),
    "UTF8String": (ctypes.c_char_p, ()),
    "localizedDescription": (ID, ()),
}


class ObjectiveC:
    """The runtime of Objective-C in a loaded library. Objects are addresses; who makes one releases it."""

    def __init__(self, library: Any, signatures: Mapping[str, Signature]) -> None:
        self._signatures = {**_FOUNDATION, **signatures}
        self._methods: dict[str, tuple[int, Any]] = {}
        self._send = ctypes.cast(library.objc_msgSend, ID).value
        self._class = ctypes.CFUNCTYPE(ID, ctypes.c_char_p)(("objc_getClass", library))
        self._selector = ctypes.CFUNCTYPE(ID, ctypes.c_char_p)(("sel_registerName", library))
        self._push = ctypes.CFUNCTYPE(ID)(("objc_autoreleasePoolPush", library))
        self._pop = ctypes.CFUNCTYPE(None, ID)(("objc_autoreleasePoolPop", library))

    def send(self, receiver: int | None, selector: str, *args: Any) -> Any:
        """The result of a message; one to nothing gives nothing, as in Objective-C."""
        if receiver is None:
            return None
        method = self._methods.get(selector)
        if method is None:
            method = self._methods[selector] = self._prepare(selector)
        number, function = method
        return function(receiver, number, *args)

    def _prepare(self, selector: str) -> tuple[int, Any]:
        found = self._signatures.get(selector)
        if found is None:
            raise CompilerBug(f"the signature of the method {selector} is not known")
        result, arguments = found
        assert len(arguments) == selector.count(":"), selector
        # A function of exactly these types: methods are not called as functions of variable arguments are.
        function = ctypes.CFUNCTYPE(result, ID, ID, *arguments)(self._send or 0)
        return self._selector(selector.encode()), function

    def create(self, name: str) -> int:
        """A new object of a class, which the caller releases."""
        made: int = self.send(self._class(name.encode()), "new")
        return made

    def string(self, text: str) -> int:
        """A string that lives as long as the pool around."""
        made: int = self.send(self._class(b"NSString"), "stringWithUTF8String:", text.encode())
        return made

    def text(self, string: int | None) -> str:
        """What a string says."""
        raw: bytes | None = self.send(string, "UTF8String")
        return "" if raw is None else raw.decode(errors="replace")

    def release(self, item: int | None) -> None:
        """Give an object back."""
        self.send(item, "release")

    @contextmanager
    def pool(self) -> Iterator[None]:
        """What methods give without being asked to make it is released at the end of the block."""
        pool = self._push()
        try:
            yield
        finally:
            self._pop(pool)
