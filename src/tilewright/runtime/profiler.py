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

from tilewright.runtime.artifact import ArgKind, ArgRef, KernelInfo, ModelInfo
from tilewright.runtime.library import Library, bind, check_code
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

    @property
    def gflops(self) -> float:
        """Thousand million operations a second."""
        return self.kernel.flops / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def gigabytes(self) -> float:
        """Thousand million bytes a second, counting each operand once."""
        return self.kernel.bytes / self.seconds / 1e9 if self.seconds else 0.0


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
        lines.append(table(_HEADER, [self._cells(row) for row in shown]))
        if len(shown) < len(ordered):
            lines.append(f"... and {len(ordered) - len(shown)} more")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()

    def _heading(self) -> str:
        flops = sum(row.kernel.flops for row in self.rows)
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
            f"{row.gflops:.1f}" if kernel.flops else "-",
            f"{row.gigabytes:.1f}" if kernel.bytes else "-",
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
                f"<td class=n>{human_count(kernel.flops) if kernel.flops else ''}</td>",
                f"<td class=n>{f'{row.gflops:.1f}' if kernel.flops else ''}</td>",
                f"<td class=n>{f'{row.gigabytes:.1f}' if kernel.bytes else ''}</td>",
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


def profile_steps(
    model: ModelInfo,
    library: Library,
    *,
    inputs: list[int],
    outputs: list[int],
    workspace: int,
    constants: int,
    whole: Callable[[], None],
    repeat: int,
) -> Profile:
    """Run the model's steps one kernel at a time, in order, `repeat` times after a warm-up, and time each."""

    def slot(ref: ArgRef) -> int:
        match ref.kind:
            case ArgKind.INPUT:
                return inputs[ref.index] + ref.offset
            case ArgKind.OUTPUT:
                return outputs[ref.index] + ref.offset
            case ArgKind.WORKSPACE:
                return workspace + ref.offset
            case ArgKind.CONSTANT:
                return constants + ref.offset
            case ArgKind.SCALAR:
                return ref.index

    functions = {}
    calls = []
    for step in model.steps:
        symbol = model.kernels[step.kernel].symbol
        if symbol not in functions:
            functions[symbol] = bind(library, f"{symbol}__packed", ctypes.c_int32, ctypes.c_void_p)
        slots = (ctypes.c_int64 * max(len(step.args), 1))(*map(slot, step.args))
        calls.append((functions[symbol], slots, symbol))

    clock = time.perf_counter
    whole()
    whole_times = []
    for _ in range(repeat):
        start = clock()
        whole()
        whole_times.append(clock() - start)
    times: list[list[float]] = [[] for _ in calls]
    for turn in range(repeat + 1):
        for record, (function, slots, symbol) in zip(times, calls, strict=True):
            start = clock()
            code = function(slots)
            elapsed = clock() - start
            check_code(code, f"the kernel '{symbol}'")
            if turn:
                record.append(elapsed)
    rows = tuple(
        ProfileRow(index, model.kernels[step.kernel], statistics.median(record), min(record))
        for index, (step, record) in enumerate(zip(model.steps, times, strict=True))
    )
    return Profile(model.name, rows, statistics.median(whole_times), repeat)
