"""Small plots as SVG text: points, lines and labels on two axes, linear or logarithmic. No other file, no package."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

_WIDTH, _HEIGHT = 720, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 24, 34, 54
COLORS = ("#3b7dd8", "#d8663b", "#3ba55d", "#8a5bd1", "#777777")
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#555}.title{font-size:15px;fill:#222}"
    ".axis{stroke:#999}.grid{stroke:#e4e4e4}"
)


@dataclass(frozen=True, slots=True)
class Axis:
    """What an axis says, whether it is logarithmic, and how its numbers are written."""

    label: str
    logarithmic: bool = False
    show: Callable[[float], str] = "{:g}".format


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one colour, with labels beside them where they have some; joined by a line where that is wanted."""

    name: str
    points: Sequence[tuple[float, float]]
    labels: Sequence[str] = ()
    line: bool = False
    marks: bool = True


def plot(title: str, across: Axis, up: Axis, series: Sequence[Series]) -> str:
    """A plot of some series."""
    xs = [x for item in series for x, _ in item.points]
    ys = [y for item in series for _, y in item.points]
    x_scale = _Scale(across, xs, _LEFT, _WIDTH - _RIGHT)
    y_scale = _Scale(up, ys, _HEIGHT - _BOTTOM, _TOP)
    parts = [*_across(across, x_scale), *_up(up, y_scale)]
    for number, item in enumerate(series):
        parts += _series(item, COLORS[number % len(COLORS)], x_scale, y_scale)
        parts.append(
            f'<circle cx="{_WIDTH - 190}" cy="{_TOP + 6 + 18 * number}" r="4" fill="{COLORS[number % len(COLORS)]}"/>'
            f'<text x="{_WIDTH - 180}" y="{_TOP + 10 + 18 * number}">{escape(item.name)}</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}">'
        f"<style>{_STYLE}</style>"
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>'
        f'<text class="title" x="{_LEFT}" y="20">{escape(title)}</text>{"".join(parts)}</svg>\n'
    )


class _Scale:
    """From numbers to places on an axis."""

    def __init__(self, axis: Axis, values: Sequence[float], begin: float, end: float) -> None:
        self._logarithmic = axis.logarithmic
        self._begin, self._end = begin, end
        numbers = [self._number(value) for value in values] or [0.0, 1.0]
        low, high = min(numbers), max(numbers)
        room = 0.06 * (high - low) or 0.5
        self._low, self._high = low - room, high + room

    def _number(self, value: float) -> float:
        return log10(value) if self._logarithmic else value

    def __call__(self, value: float) -> float:
        part = (self._number(value) - self._low) / (self._high - self._low)
        return self._begin + part * (self._end - self._begin)

    def ticks(self) -> list[float]:
        """Round numbers on the axis."""
        if self._logarithmic:
            powers = range(floor(self._low), ceil(self._high) + 1)
            steps = (1, 2, 5) if self._high - self._low < 3 else (1,)
            values = [step * 10.0**power for power in powers for step in steps]
            return [value for value in values if self._low <= log10(value) <= self._high]
        step = 10.0 ** floor(log10((self._high - self._low) / 2))
        while (self._high - self._low) / step > 8:
            step *= 2
        return [number * step for number in range(ceil(self._low / step), floor(self._high / step) + 1)]


def _across(axis: Axis, scale: _Scale) -> list[str]:
    bottom = _HEIGHT - _BOTTOM
    parts = [f'<line class="axis" x1="{_LEFT}" y1="{bottom}" x2="{_WIDTH - _RIGHT}" y2="{bottom}"/>']
    for value in scale.ticks():
        x = scale(value)
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{escape(axis.show(value))}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle:.1f}" y="{_HEIGHT - 12}" text-anchor="middle">{escape(axis.label)}</text>')
    return parts


def _up(axis: Axis, scale: _Scale) -> list[str]:
    bottom, middle = _HEIGHT - _BOTTOM, (_TOP + _HEIGHT - _BOTTOM) / 2
    parts = [f'<line class="axis" x1="{_LEFT}" y1="{_TOP}" x2="{_LEFT}" y2="{bottom}"/>']
    for value in scale.ticks():
        y = scale(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(axis.show(value))}</text>')
    turned = f'transform="rotate(-90 16 {middle:.1f})"'
    parts.append(f'<text x="16" y="{middle:.1f}" text-anchor="middle" {turned}>{escape(axis.label)}</text>')
    return parts


def _series(item: Series, color: str, x_scale: _Scale, y_scale: _Scale) -> list[str]:
    places = [(x_scale(x), y_scale(y)) for x, y in item.points]
    parts = []
    if item.line:
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{joined}" fill="none" stroke="{color}" stroke-width="1.6"/>')
    if item.marks:
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{color}"/>' for x, y in places]
    for (x, y), label in zip(places, item.labels, strict=False):
        parts.append(f'<text x="{x + 6:.1f}" y="{y - 6:.1f}">{escape(label)}</text>')
    return parts
