"""The report of a quantisation: what became of each layer and what it costs, as text, JSON and an HTML page."""

from __future__ import annotations

import html
import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tilewright.support.files import replacing
from tilewright.support.text import table

_BAR = 320
"""Pixels of the longest bar of the page."""


@dataclass(frozen=True, slots=True)
class LayerReport:
    """One layer: what it is, whether it was quantised, and the noise that quantising it alone makes."""

    name: str
    operator: str
    weights: int
    quantized: bool
    decibels: float | None
    """Signal to noise of the model's results when this layer alone is quantised; None where it was not measured."""
    metric: float | None = None
    """The user's metric then."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A model of the search for `max_drop`: how many layers stayed in float32, and the metric then."""

    kept: int
    metric: float


@dataclass
class Report:
    """What a quantisation did."""

    scheme: str
    weight_bits: int
    observer: str
    runs: int
    layers: list[LayerReport]
    decibels: float
    """Signal to noise of the results of the whole quantised model on the calibration data."""
    metric_before: float | None = None
    metric_after: float | None = None
    max_drop: float | None = None
    trials: list[Trial] = field(default_factory=list)
    """The search for `max_drop`, in the order in which it went."""

    @property
    def kept(self) -> list[str]:
        """The layers that stayed in float32."""
        return [layer.name for layer in self.layers if not layer.quantized]

    @property
    def _by_noise(self) -> list[LayerReport]:
        return sorted(self.layers, key=lambda layer: (layer.decibels is None, layer.decibels or 0.0))

    def __str__(self) -> str:
        with_metric = any(layer.metric is not None for layer in self.layers)
        headers = ["layer", "operator", "weights", "SNR dB", *(["metric"] if with_metric else []), "kept in"]
        rows = [
            [
                layer.name,
                layer.operator,
                str(layer.weights),
                _decibels(layer.decibels),
                *([_number(layer.metric)] if with_metric else []),
                "" if layer.quantized else "float32",
            ]
            for layer in self._by_noise
        ]
        return "\n".join([table(headers, rows), self.summary()])

    def summary(self) -> str:
        """One line: how many layers, how much noise, which metric."""
        count = sum(layer.quantized for layer in self.layers)
        noise = f"signal to noise of the results {_decibels(self.decibels)} dB"
        text = f"{count} of {len(self.layers)} layers quantised; {noise}"
        if self.metric_before is not None and self.metric_after is not None:
            text += f"; metric {self.metric_before:.6g} -> {self.metric_after:.6g}"
        return text

    def to_json(self) -> str:
        """Everything, as JSON; what is infinite is null."""
        return json.dumps(_finite(asdict(self)), indent=1)

    def write(self, path: Path) -> None:
        """Write the JSON, or the page where the name ends in .html."""
        text = self.to_html() if path.suffix in (".html", ".htm") else self.to_json() + "\n"
        with replacing(path) as temporary:
            temporary.write_text(text)

    def to_html(self) -> str:
        """A page with a bar for each layer, the noisiest first, and a plot of the search."""
        known = [layer for layer in self.layers if layer.decibels is not None and math.isfinite(layer.decibels)]
        most = max((layer.decibels or 0.0 for layer in known), default=1.0) or 1.0
        rows = []
        for layer in self._by_noise:
            share = 0.0 if layer.decibels is None else layer.decibels / most
            width = round(_BAR * min(max(share, 0.0), 1.0)) if math.isfinite(share) else _BAR * (share > 0)
            rows.append(
                f"<tr><td>{html.escape(layer.name)}</td><td>{html.escape(layer.operator)}</td><td>{layer.weights}</td>"
                f"<td><div class='bar' style='width:{width}px'></div>{_decibels(layer.decibels)}</td>"
                f"<td>{_number(layer.metric)}</td>"
                f"<td>{f'{self.weight_bits}-bit weights' if layer.quantized else 'float32'}</td></tr>"
            )
        return _PAGE.format(summary=html.escape(self.summary()), rows="\n".join(rows), search=self._plot())

    def _plot(self) -> str:
        """The metric of each trial against the number of layers in float32, and the least that is allowed."""
        if not self.trials or self.metric_before is None or self.max_drop is None:
            return ""
        least = self.metric_before - self.max_drop
        values = [trial.metric for trial in self.trials] + [least, self.metric_before]
        low, high = min(values), max(values)
        wide, tall = max(len(self.layers), 1), (high - low) or 1.0

        def place(kept: float, metric: float) -> tuple[float, float]:
            return 40 + kept / wide * (_WIDTH - 60), 10 + (high - metric) / tall * (_HEIGHT - 40)

        points = []
        for trial in sorted(self.trials, key=lambda item: item.kept):
            x, y = place(trial.kept, trial.metric)
            label = f"{trial.kept} layers in float32: {trial.metric:.6g}"
            shade = "ok" if trial.metric >= least else "low"
            points.append(f"<circle class='{shade}' cx='{x:.1f}' cy='{y:.1f}' r='4'><title>{label}</title></circle>")
        left, line = place(0, least)
        return _PLOT.format(
            width=_WIDTH,
            height=_HEIGHT,
            left=left,
            right=_WIDTH - 20,
            line=line,
            middle=_WIDTH // 2,
            foot=_HEIGHT - 6,
            points="\n".join(points),
            limit=f"metric {least:.6g}",
        )


_WIDTH, _HEIGHT = 640, 240
_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Quantisation</title>
<style>body{{font:14px system-ui;margin:2em}}td,th{{padding:2px 10px;text-align:left}}
.bar{{display:inline-block;height:10px;background:#4a7;margin-right:6px}}.ok{{fill:#4a7}}.low{{fill:#c54}}</style>
<h1>Quantisation</h1><p>{summary}</p>
<table><tr><th>layer</th><th>operator</th><th>weights</th><th>signal to noise alone, dB</th><th>metric alone</th>
<th>computed in</th></tr>
{rows}
</table>{search}</html>
"""
_PLOT = """
<h2>Search</h2><svg width="{width}" height="{height}" font-size="12">
<line x1="{left}" x2="{right}" y1="{line:.1f}" y2="{line:.1f}" stroke="#999" stroke-dasharray="4"/>
<text x="{left}" y="{line:.1f}" dy="-3">{limit}</text>
<text x="{middle}" y="{foot}" text-anchor="middle">layers in float32</text>
{points}
</svg>"""


def _decibels(value: float | None) -> str:
    return "-" if value is None else "exact" if value == math.inf else f"{value:.1f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
