"""What device and host did in one run of a model, and when: a table, and a timeline that trace viewers open."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.runtime.device.model import DeviceRunner, Value
from tilewright.runtime.device.program import Span
from tilewright.support.errors import UserError
from tilewright.support.files import replacing
from tilewright.support.text import table


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
        """Seconds in which host and device both computed."""
        host, device = ([span for span in self.spans if (span.place == "host") is wanted] for wanted in (True, False))
        return sum(max(0.0, min(a.end, b.end) - max(a.begin, b.begin)) for a in host for b in device)

    def text(self) -> str:
        """One line for each kernel: when it began and ended, in milliseconds."""
        start = min((span.begin for span in self.spans), default=0.0)
        rows = []
        for span in self.spans:
            times = (f"{1e3 * (when - start):.3f}" for when in (span.begin, span.end))
            rows.append((*times, "" if span.cycles is None else str(span.cycles), span.place, span.name))
        titles = ("begin", "end", "cycles", "where", "kernel")
        return f"{table(titles, rows)}\nboth at once for {1e3 * self.overlap:.3f} ms"

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

    def save(self, path: str | Path) -> None:
        """Write it for a trace viewer (Perfetto)."""
        with replacing(Path(path)) as temporary:
            temporary.write_text(self.chrome_trace())


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
