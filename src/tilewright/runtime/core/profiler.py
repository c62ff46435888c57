"""Profiles of a model: time, arithmetic and traffic per kernel, as a text table and as one HTML page."""

from __future__ import annotations

import ctypes
import html
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.runtime.core.artifact import ArgKind, ArgRef, Extent, KernelInfo
from tilewright.runtime.core.convert import Array, address_of
from tilewright.runtime.core.entry import EntryRunner, Prepared, slot_starts
from tilewright.runtime.core.library import Library, bind, check_code
from tilewright.runtime.core.shapes import evaluate
from tilewright.runtime.vm.program import Opcode
from tilewright.runtime.vm.runner import ProgramRunner
from tilewright.support.files import replacing
from tilewright.support.text import human_count, human_seconds, shorten, table

_NODES_WIDTH = 60


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """One kernel call of the model: median and minimum seconds over the repeats."""

    step: int
    kernel: KernelInfo
    seconds: float
    min_seconds: float
    flops: int
    bytes: int
    launches: str = ""
    """How its launches fill a device."""

    @property
    def gflops(self) -> float:
        """Thousand million operations a second."""
        return self.flops / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def gigabytes(self) -> float:
        """Thousand million bytes a second, counting each operand once."""
        return self.bytes / self.seconds / 1e9 if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Profile:
    """Times of every kernel call, and of the whole model run as one call."""

    model: str
    rows: tuple[ProfileRow, ...]
    whole_seconds: float
    repeat: int

    @property
    def kernel_seconds(self) -> float:
        """The sum over the kernels."""
        return sum(row.seconds for row in self.rows)

    def share(self, row: ProfileRow) -> float:
        """The part of the kernels' time that a row takes, 0 to 1."""
        total = self.kernel_seconds
        return row.seconds / total if total else 0.0

    def text(self, limit: int | None = None) -> str:
        """A table, slowest kernel first, at most `limit` rows."""
        ordered = sorted(self.rows, key=lambda row: -row.seconds)
        shown = ordered if limit is None else ordered[:limit]
        lines = [self._heading()]
        # Only devices say how kernels fill them.
        header = (*_HEADER, "launches") if any(row.launches for row in self.rows) else _HEADER
        lines.append(table(header, [self._cells(row)[: len(header)] for row in shown]))
        if len(shown) < len(ordered):
            lines.append(f"... and {len(ordered) - len(shown)} more")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()

    def _heading(self) -> str:
        flops = sum(row.flops for row in self.rows)
        rate = f", {flops / self.whole_seconds / 1e9:.1f} GFLOP/s" if self.whole_seconds and flops else ""
        return (
            f"{self.model}: {human_seconds(self.whole_seconds)} a run{rate}; {len(self.rows)} kernel calls take "
            f"{human_seconds(self.kernel_seconds)} one by one (median of {self.repeat})"
        )

    def _cells(self, row: ProfileRow) -> tuple[str, ...]:
        kernel = row.kernel
        return (
            kernel.symbol,
            shorten(", ".join(kernel.nodes), _NODES_WIDTH) or "-",
            f"{row.seconds * 1e6:.1f}",
            f"{row.min_seconds * 1e6:.1f}",
            f"{100 * self.share(row):.1f}",
            f"{row.gflops:.1f}" if row.flops else "-",
            f"{row.gigabytes:.1f}" if row.bytes else "-",
            row.launches,
        )

    def html(self) -> str:
        """A page that stands alone: the summary and a table with a bar for each kernel, in the order of execution."""
        rows = []
        largest = max((row.seconds for row in self.rows), default=0.0)
        for row in self.rows:
            kernel = row.kernel
            bar = 100 * row.seconds / largest if largest else 0
            cells = [
                f"<td class=n>{row.step}</td>",
                f"<td>{html.escape(kernel.symbol)}<small>{html.escape(kernel.op)}</small></td>",
                f"<td class=o>{html.escape(', '.join(kernel.nodes))}</td>",
                f"<td class=n>{row.seconds * 1e6:.1f}</td>",
                f"<td class=b><i style='width:{bar:.1f}%'></i><span>{100 * self.share(row):.1f} %</span></td>",
                f"<td class=n>{human_count(row.flops) if row.flops else ''}</td>",
                f"<td class=n>{f'{row.gflops:.1f}' if row.flops else ''}</td>",
                f"<td class=n>{f'{row.gigabytes:.1f}' if row.bytes else ''}</td>",
            ]
            rows.append("<tr>" + "".join(cells) + "</tr>")
        return _PAGE.format(title=html.escape(self.model), heading=html.escape(self._heading()), rows="\n".join(rows))

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Write `html()` to a file."""
        with replacing(Path(path)) as temporary:
            temporary.write_text(self.html(), encoding="utf-8")


_HEADER = ("kernel", "nodes", "us", "min us", "%", "GFLOP/s", "GB/s")

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Profile of {title}</title><style>
body {{ font: 14px system-ui, sans-serif; margin: 2em; color: #1b1f24; background: #fff; }}
table {{ border-collapse: collapse; width: 100%; }}
th, td {{ padding: 4px 8px; border-bottom: 1px solid #e3e6ea; text-align: left; vertical-align: top; }}
th {{ position: sticky; top: 0; background: #fff; }}
td.n {{ text-align: right; font-variant-numeric: tabular-nums; }}
td.o {{ color: #57606a; max-width: 40em; overflow-wrap: anywhere; }}
td.b {{ position: relative; min-width: 10em; }}
td.b i {{ position: absolute; left: 0; top: 3px; bottom: 3px; background: #9ecbff; }}
td.b span {{ position: relative; }}
small {{ display: block; color: #57606a; }}
</style></head><body><h1>{title}</h1><p>{heading}</p>
<table><thead><tr><th>step</th><th>kernel</th><th>nodes</th><th>us</th><th>share</th><th>operations</th>
<th>GFLOP/s</th><th>GB/s</th></tr></thead><tbody>
{rows}
</tbody></table></body></html>
"""


def profile_entry(
    runner: EntryRunner, library: Library, inputs: list[Array], repeat: int, clock: Callable[[], float]
) -> Profile:
    """Run the model's steps one kernel at a time, in order, `repeat` times after a warm-up, and time each."""
    prepared = runner.prepare(inputs)
    outputs = prepared.new_outputs()
    workspace = runner.workspaces.take(prepared.workspace_bytes)
    try:
        slots = _Slots(
            prepared,
            [address_of(array) for array in inputs],
            [address_of(array) for array in outputs],
            address_of(workspace),
        )
        return _profile(prepared, library, slots, repeat, clock)
    finally:
        runner.workspaces.give_back(workspace)


def profile_program(runner: ProgramRunner, inputs: list[Any], repeat: int) -> Profile:
    """Run a program `repeat` times after a warm-up; one row a segment and a host function, all its calls together."""
    model = runner.machine.model
    totals: list[dict[tuple[Opcode, int], float]] = []
    wholes: list[float] = []
    calls: dict[tuple[Opcode, int], int] = {}
    for turn in range(repeat + 1):
        seen: dict[tuple[Opcode, int], float] = {}
        calls.clear()

        def note(opcode: Opcode, number: int, seconds: float, seen: dict[tuple[Opcode, int], float] = seen) -> None:
            seen[(opcode, number)] = seen.get((opcode, number), 0.0) + seconds
            calls[(opcode, number)] = calls.get((opcode, number), 0) + 1

        start = time.perf_counter()
        runner.machine.run(inputs, note)
        if turn:
            wholes.append(time.perf_counter() - start)
            totals.append(seen)
    rows = []
    for step, key in enumerate(calls):
        opcode, number = key
        times = [total.get(key, 0.0) for total in totals]
        if opcode is Opcode.SEGMENT:
            info = model.segments[number]
            nodes = tuple(dict.fromkeys(node for kernel in info.kernels for node in kernel.nodes))
            kernel = KernelInfo(info.name, nodes, op=f"{calls[key]} calls")
            work = [item.flops for item in info.kernels]
        else:
            host = runner.machine.program.hosts[number]
            kernel = KernelInfo(host.name, (host.where,) if host.where else (), op=f"{calls[key]} calls")
            work = []
        flops = sum(item for item in work if isinstance(item, int)) * calls[key]
        rows.append(ProfileRow(step, kernel, statistics.median(times), min(times), flops, 0))
    return Profile(model.name, tuple(rows), statistics.median(wholes), repeat)


class _Slots:
    """Where the arguments of kernels are in one call of a model."""

    def __init__(self, prepared: Prepared, inputs: list[int], outputs: list[int], workspace: int) -> None:
        self.prepared = prepared
        self.inputs = inputs
        self.outputs = outputs
        self.workspace = workspace
        model = prepared.part.info
        self.symbols = dict(zip(model.symbols, prepared.values, strict=True))
        self.starts = slot_starts(model, self.symbols)
        self.sizes = [*prepared.values, *map(self.number, model.sizes)]

    def number(self, extent: Extent) -> int:
        """An extent in this call."""
        return evaluate(extent, self.symbols) or 0

    def value(self, ref: ArgRef) -> int:
        """An argument as the packed form of a kernel takes it."""
        match ref.kind:
            case ArgKind.INPUT:
                return self.inputs[ref.index] + ref.offset
            case ArgKind.OUTPUT:
                return self.outputs[ref.index] + ref.offset
            case ArgKind.WORKSPACE:
                return self.workspace + self.starts[ref.index] + ref.offset
            case ArgKind.CONSTANT:
                return self.prepared.part.constants_address + ref.offset
            case ArgKind.SCALAR:
                return ref.index
            case ArgKind.SYMBOL:
                return self.sizes[ref.index]


def _profile(prepared: Prepared, library: Library, slots: _Slots, repeat: int, clock: Callable[[], float]) -> Profile:
    model = prepared.part.info
    functions = {}
    calls = []
    for step in model.steps:
        symbol = model.kernels[step.kernel].symbol
        if symbol not in functions:
            functions[symbol] = bind(library, f"{symbol}__packed", ctypes.c_int32, ctypes.c_void_p)
        packed = (ctypes.c_int64 * max(len(step.args), 1))(*map(slots.value, step.args))
        calls.append((functions[symbol], packed, symbol))

    def whole() -> None:
        prepared.call(slots.inputs, slots.outputs, slots.workspace)

    whole()
    whole_times = []
    for _ in range(repeat):
        start = clock()
        whole()
        whole_times.append(clock() - start)
    times: list[list[float]] = [[] for _ in calls]
    for turn in range(repeat + 1):
        for record, (function, packed, symbol) in zip(times, calls, strict=True):
            start = clock()
            code = function(packed)
            elapsed = clock() - start
            check_code(code, f"the kernel '{symbol}'")
            if turn:
                record.append(elapsed)
    rows = tuple(
        _row(index, model.kernels[step.kernel], record, slots)
        for index, (step, record) in enumerate(zip(model.steps, times, strict=True))
    )
    return Profile(model.name, rows, statistics.median(whole_times), repeat)


def _row(index: int, kernel: KernelInfo, record: list[float], slots: _Slots) -> ProfileRow:
    flops, moved = slots.number(kernel.flops), slots.number(kernel.bytes)
    return ProfileRow(index, kernel, statistics.median(record), min(record), flops, moved)
