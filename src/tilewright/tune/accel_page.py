"""What an exploration found, as a table, a plot and an HTML page."""

from __future__ import annotations

from html import escape

from tilewright.support.svg import Axis, Series, plot
from tilewright.support.text import human_count, table
from tilewright.tune.accel_explore import Exploration, Point

_HEADER = ("", "cycles", "KB on chip", "multipliers", "bus", "configuration")


def exploration_table(found: Exploration) -> str:
    """The beginning, then what nothing dominates; `<` marks what dominates the beginning."""
    return table(_HEADER, [_row(found, point) for point in (found.start, *_others(found))])


def _others(found: Exploration) -> list[Point]:
    return [point for point in found.front if point != found.start]


def _row(found: Exploration, point: Point) -> tuple[str, ...]:
    config = point.config
    mark = "start" if point == found.start else "<" if point.dominates(found.start) else ""
    numbers = (f"{int(point.cycles)}", f"{config.on_chip_bytes / 1024:.0f}", f"{config.multipliers}")
    return (mark, *numbers, f"{config.bus_bytes}", config.to_text())


def exploration_plot(found: Exploration, title: str) -> str:
    """Cycles over bytes on chip: everything that was compiled for, what nothing dominates, and the beginning."""
    rest = [point for point in found.points if point not in found.front and point != found.start]
    by_multipliers = sorted({point.config.multipliers for point in found.front})
    series = [Series("start", [_place(found.start)], ["start"])]
    for count in by_multipliers:
        own = [point for point in found.front if point.config.multipliers == count]
        series.append(Series(f"{count} multipliers", [_place(point) for point in own], line=True))
    if rest:
        series.append(Series("dominated", [_place(point) for point in rest]))
    across = Axis("bytes on chip", logarithmic=True, show=lambda value: f"{human_count(value)}B")
    return plot(title, across, Axis("cycles", logarithmic=True, show=human_count), series)


def _place(point: Point) -> tuple[float, float]:
    return point.config.on_chip_bytes, point.cycles


def exploration_html(found: Exploration, title: str) -> str:
    """One page: plot and table."""
    head = "".join(f"<th>{escape(name)}</th>" for name in _HEADER)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in _row(found, point)) + "</tr>"
        for point in (found.start, *_others(found))
    )
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title>"
        "<style>body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:62rem}"
        "table{border-collapse:collapse}td,th{padding:.3rem .6rem;border-bottom:1px solid #ddd;text-align:left}</style>"
        f"<h1>{escape(title)}</h1><p>{found.estimated} configurations judged by the analytic model, "
        f"{len(found.points)} compiled for and counted by the cycle model.</p>"
        f"{exploration_plot(found, title)}<table><tr>{head}</tr>{rows}</table></html>\n"
    )


def exploration_json(found: Exploration) -> dict[str, object]:
    """Plain data: the beginning, what nothing dominates, and which of it dominates the beginning."""
    return {
        "start": _figures(found.start),
        "front": [_figures(point) for point in found.front],
        "dominating": [point.config.to_text() for point in found.dominating],
        "estimated": found.estimated,
        "compiled": len(found.points),
    }


def _figures(point: Point) -> dict[str, object]:
    config = point.config
    return {
        "config": config.to_text(),
        "cycles": int(point.cycles),
        "on_chip_bytes": config.on_chip_bytes,
        "multipliers": config.multipliers,
        "bus_bytes": config.bus_bytes,
        "schedules": {name: dict(answers) for name, answers in point.schedules.items()},
    }
