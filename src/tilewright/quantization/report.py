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
    trials: list[dict[str, float]] = field(default_factory=list)
    """The search for `max_drop`: how many layers stayed in float32, and the metric then."""

    @property
    def kept(self) -> list[str]:
        """The layers that stayed in float32."""
        return [layer.name for layer in self.layers if not layer.quantized]

    def __str__(self) -> str:
        rows = [
            [
                layer.name,
                layer.operator,
                str(layer.weights),
                _decibels(layer.decibels),
                "" if layer.quantized else "float32",
            ]
            for layer in sorted(self.layers, key=lambda layer: (layer.decibels is None, layer.decibels or 0.0))
        ]
        lines = [table(["layer", "operator", "weights", "SNR dB", "kept in"], rows), self.summary()]
        return "\n".join(lines)

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
        """A page with a bar for each layer, the noisiest first."""
        known = [layer for layer in self.layers if layer.decibels is not None and math.isfinite(layer.decibels)]
        most = max((layer.decibels or 0.0 for layer in known), default=1.0) or 1.0
        rows = []
        for layer in sorted(self.layers, key=lambda item: (item.decibels is None, item.decibels or 0.0)):
            width = 0 if layer.decibels is None else round(_BAR * min(max(layer.decibels / most, 0.0), 1.0))
            rows.append(
                f"<tr><td>{html.escape(layer.name)}</td><td>{html.escape(layer.operator)}</td><td>{layer.weights}</td>"
                f"<td><div class='bar' style='width:{width}px'></div>{_decibels(layer.decibels)}</td>"
                f"<td>{'int8' if layer.quantized else 'float32'}</td></tr>"
            )
        trials = "".join(
            f"<li>{int(trial['kept'])} layers in float32: metric {trial['metric']:.6g}</li>" for trial in self.trials
        )
        return _PAGE.format(
            summary=html.escape(self.summary()), rows="\n".join(rows), trials=f"<ol>{trials}</ol>" if trials else ""
        )


_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Quantisation</title>
<style>body{{font:14px system-ui;margin:2em}}td,th{{padding:2px 10px;text-align:left}}
.bar{{display:inline-block;height:10px;background:#4a7;margin-right:6px}}</style>
<h1>Quantisation</h1><p>{summary}</p>
<table><tr><th>layer</th><th>operator</th><th>weights</th><th>signal to noise, dB</th><th>computed in</th></tr>
{rows}
</table>{trials}</html>
"""


def _decibels(value: float | None) -> str:
    return "-" if value is None else "exact" if value == math.inf else f"{value:.1f}"


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
