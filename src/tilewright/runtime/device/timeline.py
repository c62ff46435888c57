"""What devices and the host did in a run of a model, and when: a table, a page, and a file that trace viewers open."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.runtime.device.model import DeviceRunner, Value
from tilewright.runtime.device.program import Span
from tilewright.support.errors import UserError
from tilewright.support.files import replacing
from tilewright.support.text import table

_LABEL_WIDTH, _PAGE_WIDTH, _ROW_HEIGHT = 160, 1000, 24
"""Of the page, in pixels."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """The kernels of a run, in the order in which they began."""

    spans: tuple[Span, ...]

    @property
    def places(self) -> tuple[str, ...]:
        """Where kernels ran: the host, and the device by its name."""
        return tuple(sorted({span.place for span in self.spans}))

    @property
    def cycles(self) -> int:
        """Cycles of the device's kernels together, where it counts them."""
        return sum(span.cycles or 0 for span in self.spans)

    @property
    def overlap(self) -> float:
        """Seconds in which at least two places were at work."""
        events = [(span.begin, 1, span.place) for span in self.spans] + [
            (span.end, -1, span.place) for span in self.spans
        ]
        busy: dict[str, int] = {}
        total = before = 0.0
        for moment, change, place in sorted(events):
            total += moment - before if sum(count > 0 for count in busy.values()) >= 2 else 0.0
            busy[place], before = busy.get(place, 0) + change, moment
        return total

    def text(self) -> str:
        """One line for each kernel: when it began and ended, in milliseconds."""
        start = min((span.begin for span in self.spans), default=0.0)
        rows = []
        for span in self.spans:
            times = (f"{1e3 * (when - start):.3f}" for when in (span.begin, span.end))
            rows.append((*times, "" if span.cycles is None else str(span.cycles), span.place, span.name))
        titles = ("begin", "end", "cycles", "where", "kernel")
        return f"{table(titles, rows)}\nseveral at once for {1e3 * self.overlap:.3f} ms"

    def chrome_trace(self) -> str:
        """The run in Chrome's trace format: a row for the host and one for the device."""
        rows = {place: number for number, place in enumerate(self.places)}
        start = min((span.begin for span in self.spans), default=0.0)
        events: list[dict[str, object]] = [
            {"ph": "M", "name": "thread_name", "pid": 0, "tid": number, "args": {"name": place}}
            for place, number in rows.items()
        ]
        for span in self.spans:
            when = {"ts": 1e6 * (span.begin - start), "dur": 1e6 * (span.end - span.begin)}
            about = {} if span.cycles is None else {"args": {"cycles": span.cycles}}
            events.append({"ph": "X", "name": span.name, "pid": 0, "tid": rows[span.place], **when, **about})
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})

    def html(self) -> str:
        """A page that stands alone: a row for each place, and what it did along the time."""
        start = min((span.begin for span in self.spans), default=0.0)
        whole = max((span.end for span in self.spans), default=start) - start
        scale = _PAGE_WIDTH / whole if whole else 0.0
        shapes = []
        for row, place in enumerate(self.places):
            top = row * _ROW_HEIGHT
            shapes.append(f"<text x='0' y='{top + 16}'>{html.escape(place)}</text>")
            for span in self.spans:
                if span.place == place:
                    left, width = _LABEL_WIDTH + scale * (span.begin - start), max(scale * (span.end - span.begin), 1.0)
                    times = f"{1e3 * (span.begin - start):.3f} to {1e3 * (span.end - start):.3f} ms"
                    shapes.append(
                        f"<rect x='{left:.1f}' y='{top + 2}' width='{width:.1f}' height='{_ROW_HEIGHT - 4}' "
                        f"fill='hsl({97 * row % 360} 55% 60%)'><title>{html.escape(span.name)}\n{times}</title></rect>"
                    )
        heading = f"{1e3 * whole:.3f} ms, several places at once for {1e3 * self.overlap:.3f} ms"
        size = f"width='{_LABEL_WIDTH + _PAGE_WIDTH}' height='{len(self.places) * _ROW_HEIGHT}'"
        drawing = f"<svg xmlns='http://www.w3.org/2000/svg' {size} font-family='sans-serif' font-size='13'>"
        table_text = html.escape(self.text())
        return (
            f"<!doctype html><meta charset='utf-8'><title>Timeline</title><h1>Timeline</h1><p>{heading}</p>"
            f"{drawing}{''.join(shapes)}</svg><pre>{table_text}</pre>"
        )

    def save(self, path: str | Path) -> None:
        """Write it for a trace viewer (Perfetto); as a page where the file is called `.html`."""
        with replacing(Path(path)) as temporary:
            temporary.write_text(self.html() if Path(path).suffix == ".html" else self.chrome_trace(), encoding="utf-8")


def timeline_of(runner: DeviceRunner, inputs: Sequence[Value]) -> Timeline:
    """One run, after one to warm up."""
    device = runner.device
    if not device.tells_spans:
        raise UserError(
            f"{device.name} does not say when its kernels run", hint="a profile has the time of each kernel"
        )
    prepared = runner.prepare(inputs)
    prepared.call(inputs, on_device=False)
    spans: list[Span] = []
    with device.lock:
        device.spans = spans
        try:
            prepared.call(inputs, on_device=False)
            device.wait()
        finally:
            device.spans = None
    return Timeline(tuple(sorted(spans, key=lambda span: span.begin)))
