"""Loading compiled objects into this process, through LLVM's ORC JIT linker."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from tilewright.backends.llvm import toolchain
from tilewright.backends.llvm.objects import undefined_symbols
from tilewright.support import trace
from tilewright.support.errors import CompilerBug
from tilewright.support.interrupts import held_interrupts
from tilewright.support.text import plural

_lock = threading.Lock()
_names = itertools.count()
_session: Any = None


def _jit_session() -> Any:
    """The one ORC session of the process: libraries in it are separate, each with a name of its own."""
    global _session
    if _session is None:
        llvm = toolchain.binding()
        # JITLink places all sections of a library together; the older linker may scatter them beyond the reach of
        # a relocation. Errors are not printed: they come back as exceptions.
        _session = llvm.create_lljit_compiler(use_jit_link=True, suppress_errors=True)
    return _session


class JitLibrary:
    """Objects linked together in memory; the code lives as long as this object.

    `imports` gives addresses for symbols that the objects leave undefined; what is in neither is looked up in the
    process (libc, libm). Whoever calls an address from `symbol` must keep the library alive meanwhile:
    `tilewright.runtime.core.library.bind` returns functions that do.
    """

    def __repr__(self) -> str:
        return f"JitLibrary({plural(len(self._objects), 'object')})"

    def __init__(self, objects: Iterable[bytes], imports: Mapping[str, int] | None = None) -> None:
        self._objects = [bytes(image) for image in objects]
        self._imports = dict(imports or {})
        self._addresses: dict[str, int] = dict(self._imports)
        self._trackers: list[Any] = []
        self._name = f"tilewright-{next(_names)}"
        with held_interrupts():
            self._link()

    def _link(self) -> None:
        builder = toolchain.binding().JITLibraryBuilder()
        for image in self._objects:
            builder.add_object_img(image)
        builder.add_current_process()
        for name, address in self._imports.items():
            builder.import_symbol(name, address)
        with _lock, trace.span("jit:link"):
            session = _jit_session()
            try:
                self._trackers.append(builder.link(session, self._name))
            except RuntimeError as error:
                raise CompilerBug(f"the JIT linker rejected an object: {str(error).strip()}") from None

    def find(self, name: str) -> int | None:
        """The address of `name`, or None when it is neither defined nor imported."""
        known = self._addresses.get(name)
        if known is not None:
            return known
        with held_interrupts(), _lock:
            try:
                tracker = _jit_session().lookup(self._name, name)
            except RuntimeError as error:
                if "not found" in str(error) and name in str(error):
                    return None
                missing = sorted(set().union(*map(undefined_symbols, self._objects)) - set(self._imports))
                raise CompilerBug(
                    f"the JIT could not link '{name}': {str(error).strip()} (symbols taken from the process: "
                    f"{', '.join(missing) or 'none'})"
                ) from None
            # An interrupt that came between lookup and here would free the tracker, and the library's code with it.
            self._trackers.append(tracker)
            address = self._addresses[name] = int(tracker[name])
        return address

    def symbol(self, name: str) -> int:
        """The address of `name`; a missing one is a `CompilerBug`."""
        address = self.find(name)
        if address is None:
            raise CompilerBug(f"the compiled library has no symbol '{name}'")
        return address
