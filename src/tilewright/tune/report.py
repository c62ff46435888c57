"""The report of a tuning as one HTML page: what each kernel gained, and how the best time fell from trial to trial."""

from __future__ import annotations

import os
from collections.abc import Sequence
from html import escape
from math import inf
from pathlib import Path

from tilewright.support.files import replacing
from tilewright.support.text import human_rate, human_seconds, plural
from tilewright.tune.tuner import Progress, Report

_WIDTH, _HEIGHT, _MARGIN = 420, 120, 34
_LEAST_RANGE = 0.95, 1.1
"""The axis of speed-ups reaches from here to here at least."""
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; color: #1a1a1a; }
table { border-collapse: collapse; width: 100%; } td, th { padding: .3rem .6rem; border-bottom: 1px solid #ddd; }
td { text-align: right; font-variant-numeric: tabular-nums; } td:first-child, th { text-align: left; }
figure { display: inline-block; margin: .6rem; } figcaption { font-size: .85rem; color: #555; }
svg { background: #fafafa; } .bar { fill: #3b7dd8; } .line { fill: none; stroke: #3b7dd8; stroke-width: 2; }
.axis { stroke: #999; } text { font-size: 10px; fill: #666; }
@media (prefers-color-scheme: dark) { body { background: #16181c; color: #ddd; } svg { background: #1e2126; }
td, th { border-color: #333; } }
"""


def write_report(path: str | os.PathLike[str], title: str, report: Report) -> None:
    """Write the page; it needs no other file and no network."""
    with replacing(Path(path)) as temporary:
        temporary.write_text(report_html(title, report), encoding="utf-8", errors="backslashreplace")


def report_html(title: str, report: Report) -> str:
    """The page as text."""
    tuned = sorted((item for item in report.tasks if item.trials), key=lambda item: -_saved(item))
    total = f"{report.before / report.after:.2f}x" if report.after else "nothing measured"
    figures = "".join(_curve_of(item) for item in tuned)
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title><style>{_STYLE}</style>"
        f"<h1>{escape(title)}</h1>"
        f"<p>{report.trials} trials in {human_seconds(report.seconds)}"
        f"{' (stopped early)' if report.stopped else ''}; tuned kernels: {human_seconds(report.before)} &rarr; "
        f"{human_seconds(report.after)} a run, <b>{total}</b>.{_whole(report)} {_place(report)}</p>"
        f"{_algorithms(report)}"
        f"{_timeline(report)}"
        f"<h2>Gains</h2><table>{_header()}{''.join(_row(item, report.before) for item in tuned)}</table>"
        f"<h2>Best speed-up by trials</h2>{figures}</html>\n"
    )


def _timeline(report: Report) -> str:
    """How much quicker all kernels together are, batch by batch; a level where nothing was tried any more."""
    if not report.timeline:
        return ""
    gains = [gain for _, gain in report.timeline]
    return _figure("all kernels measured so far", gains if len(gains) > 1 else gains * 2, report.timeline[-1][0])


def _whole(report: Report) -> str:
    """What the whole model takes, where kernels were chosen in it."""
    if report.in_graph is None:
        return f" Not tried in the whole model: {escape(report.not_in_graph)}." if report.not_in_graph else ""
    times = (report.in_graph.default, report.in_graph.alone, report.in_graph.together)
    texts = " &rarr; ".join(human_seconds(seconds) for seconds in times)
    return f" Whole model: {texts} (by default, with the best of each kernel alone, with those chosen in it)."


def _algorithms(report: Report) -> str:
    """The algorithms that were measured, where some were open: what each option took."""
    chosen = report.algorithms
    if chosen is None:
        return ""
    names = ("computation", "nodes", "estimated", "chosen", "times")
    rows = [
        (
            item.question.label,
            ", ".join(item.question.nodes),
            item.question.default,
            item.answer,
            ", ".join(f"{option} {human_seconds(seconds)}" for option, seconds in item.seconds.items()) or "-",
        )
        for item in chosen.choices
    ]
    return (
        f"<h2>Algorithms</h2><p>Whole model: {human_seconds(chosen.estimated)} &rarr; {human_seconds(chosen.chosen)} "
        f"(as estimated, as chosen); {plural(chosen.trials, 'trial')} in {human_seconds(chosen.seconds)}.</p>"
        f"<table><tr>{''.join(f'<th>{name}</th>' for name in names)}</tr>{''.join(map(_cells, rows))}</table>"
    )


def _cells(cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"


def _header() -> str:
    names = ("kernel", "sizes", "uses", "share", "trials", "failed", "default", "best", "speed-up", "rate", "answers")
    return "<tr>" + "".join(f"<th>{name}</th>" for name in names) + "</tr>"


def _row(item: Progress, before: float) -> str:
    """One kernel; its share is that of the tuned kernels' time in one run with default schedules."""
    best = min(item.best_seconds, item.default_seconds)
    changed = {name: value for name, value in item.best.items() if item.space.default.get(name) != value}
    answers = ", ".join(f"{name}={value}" for name, value in sorted(changed.items())) if item.gain > 1 else ""
    share = item.default_seconds * item.task.uses / before if before and item.default_seconds < inf else 0.0
    cells = (
        item.task.label,
        item.task.sizes,
        str(item.task.uses),
        f"{share:.0%}",
        str(item.trials),
        str(item.failures),
        human_seconds(item.default_seconds) if item.default_seconds < inf else "-",
        human_seconds(best) if best < inf else "-",
        f"{item.gain:.2f}x",
        human_rate(item.task.flops / best, "FLOP/s") if 0 < best < inf else "-",
        answers or "as by default",
    )
    return _cells(cells)


def _saved(item: Progress) -> float:
    """Seconds of one run of the model that tuning this task saves."""
    if item.default_seconds == inf or item.best_seconds == inf:
        return 0.0
    return max(0.0, item.default_seconds - item.best_seconds) * item.task.uses


def _place(report: Report) -> str:
    """For what was tuned."""
    targets = {(item.task.target.cpu or item.task.target.kind, item.task.target.cores) for item in report.tasks}
    return "; ".join(f"For {escape(name)}, {plural(cores, 'core')}." for name, cores in sorted(targets))


def _curve_of(item: Progress) -> str:
    """The speed-up of a kernel over its default schedule, from the first trial to the last."""
    if item.default_seconds == inf:
        return ""
    speed_ups = [item.default_seconds / value if 0 < value < inf else 0.0 for value in item.history]
    return _figure(f"{item.task.label} {item.task.sizes}: {item.gain:.2f}x", speed_ups, item.trials)


def _figure(caption: str, speed_ups: Sequence[float], trials: int) -> str:
    """A curve of speed-ups, with a dashed line where nothing is gained.

    Gains are seldom large: the axis begins where the curve does, not at zero.
    """
    if not speed_ups:
        return ""
    low, top = min(_LEAST_RANGE[0], *speed_ups), max(_LEAST_RANGE[1], *speed_ups)
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in _places(speed_ups, low, top))
    base = _HEIGHT - _MARGIN
    [(_, level)] = _places([1.0], low, top)
    return (
        f'<figure><svg width={_WIDTH} height={_HEIGHT} role=img aria-label="{escape(caption)}">'
        f"<line class=axis x1={_MARGIN} y1={base} x2={_WIDTH - 4} y2={base} />"
        f'<line class=axis stroke-dasharray="3 3" x1={_MARGIN} y1={level:.1f} x2={_WIDTH - 4} y2={level:.1f} />'
        f'<polyline class=line points="{points}" />'
        f"<text x=2 y={level + 3:.1f}>1.0x</text><text x=2 y=12>{top:.2f}x</text>"
        f"<text x={_WIDTH - 60} y={_HEIGHT - 8}>{trials} trials</text></svg>"
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _places(values: Sequence[float], low: float, top: float) -> list[tuple[float, float]]:
    base = _HEIGHT - _MARGIN
    step = (_WIDTH - _MARGIN - 4) / max(1, len(values) - 1)
    height = (base - _MARGIN / 2) / (top - low)
    return [(_MARGIN + n * step, base - (value - low) * height) for n, value in enumerate(values)]
