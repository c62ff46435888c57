"""Amaranth, loaded when hardware is described first: the extra `accel` installs it."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

from tilewright.support.errors import MissingDependencyError


@cache
def _load() -> SimpleNamespace:
    try:
        import amaranth
        import amaranth.hdl._ir
        from amaranth.back import verilog
        from amaranth.lib import fifo, memory
    except ImportError:
        raise MissingDependencyError.for_extra("amaranth", "accel", "generating the accelerator's hardware") from None
    names = ("Cat", "ClockDomain", "Const", "Module", "Mux", "ResetInserter", "Signal", "signed")
    return SimpleNamespace(
        **{name: getattr(amaranth, name) for name in names},
        Memory=memory.Memory,
        SyncFIFO=fifo.SyncFIFO,
        SyncFIFOBuffered=fifo.SyncFIFOBuffered,
        PortDirection=amaranth.hdl._ir.PortDirection,
        convert=verilog.convert,
    )


class _Amaranth:
    """The names of Amaranth that the hardware uses, as attributes. The modules of this folder import without it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_load(), name)


hdl: Any = _Amaranth()
