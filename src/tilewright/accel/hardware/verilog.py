"""The hardware as Verilog."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tilewright.accel.config import AccelConfig
from tilewright.accel.hardware.core import INPUTS, Core
from tilewright.accel.hardware.hdl import hdl
from tilewright.accel.instructions import check_formats

TOP = "tilewright_core"
_ZEROS = re.compile(r"^ *\S+\[\d+\] = \d+'[hd]0+;\n", re.MULTILINE)
_EMPTY = re.compile(r"^ *initial begin\n *end\n", re.MULTILINE)


def verilog(config: AccelConfig) -> str:
    """The core of a configuration, one module with a clock (clk), a synchronous reset (rst) and the memory port."""
    check_formats(config)
    core = Core(config)
    return _convert(core.module, core.ports)


def simulated_verilog(config: AccelConfig) -> str:
    """The core behind registers of all its inputs, with a memory port that is always ready.

    No logic depends on an input of the same cycle, so a simulator has nothing to evaluate when inputs change. Data of a
    read is there in the cycle after it was given.
    """
    check_formats(config)
    core, top = Core(config), hdl.Module()
    top.domains.sync = clock = hdl.ClockDomain(reset_less=True)
    reset, late_reset = hdl.Signal(name="rst"), hdl.Signal(name="late_rst")
    top.d.sync += late_reset.eq(reset)
    top.submodules.core = hdl.ResetInserter(late_reset)(core.module)
    ports = {"clk": clock.clk, "rst": reset, **core.ports}
    for name in INPUTS:
        inner = ports.pop(name)
        if inner is core.ports["request_ready"]:
            top.d.comb += inner.eq(1)
        else:
            ports[name] = hdl.Signal.like(inner, name=name)
            top.d.sync += inner.eq(ports[name])
    return _convert(top, ports)


def _convert(module: Any, ports: Mapping[str, Any]) -> str:
    inputs = {"clk", "rst", *INPUTS}
    directions = {
        name: (signal, hdl.PortDirection.Input if name in inputs else hdl.PortDirection.Output)
        for name, signal in ports.items()
    }
    text: str = hdl.convert(module, name=TOP, ports=directions, emit_src=False, strip_internal_attrs=True)
    # Memories begin with zeros in simulators of two states and on FPGAs; a line for each element says it again.
    return _EMPTY.sub("", _ZEROS.sub("", text))
