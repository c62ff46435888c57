"""Which layers stay in float32 so that a metric holds, and a record of the search that a later one goes on from.

Layers are ranked by what quantising each of them alone costs. The fewest of the most sensitive for which the metric
drops by no more than is allowed are found by bisection: some log2(layers) trials.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tilewright.graph.ir.expr import Function
from tilewright.ir.structural import structural_key
from tilewright.quantization.data import Feed
from tilewright.quantization.options import QuantizeOptions
from tilewright.support.errors import UserError
from tilewright.support.files import replacing


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What quantising one layer alone does to the model's results."""

    decibels: float
    """Signal to noise of the results."""
    metric: float | None = None
    """The user's metric then; None where there is none."""


class SearchRecord:
    """What a search has found so far, written to a file (if there is one) after every step.

    It belongs to a model, options and data; `max_drop` is free, so that another limit takes up what was measured.
    """

    def __init__(self, path: Path | None, key: str, metric_before: float) -> None:
        self.path, self.key, self.metric_before = path, key, metric_before
        self.layers: dict[str, Sensitivity] = {}
        self.trials: dict[int, float] = {}
        """The metric by the number of layers in float32."""
        if path is not None and path.exists():
            self._read(path)

    def _read(self, path: Path) -> None:
        try:
            stored: Any = json.loads(path.read_text())
            layers = {str(name): Sensitivity(**item) for name, item in stored["layers"].items()}
            trials = {int(count): float(metric) for count, metric in stored["trials"].items()}
            own = (str(stored["key"]), float(stored["metric_before"]))
        except OSError as error:
            raise UserError(f"cannot read the search: {error.strerror or error}", where=str(path)) from None
        except (ValueError, TypeError, KeyError, AttributeError):
            raise UserError("the file is no record of a search", where=str(path), hint="give another file") from None
        if own != (self.key, self.metric_before):
            raise UserError(
                "the search that was recorded had another model, other data, options or another metric",
                where=str(path),
                hint="give another file, or take this one away",
            )
        self.layers, self.trials = layers, trials

    def save(self) -> None:
        """Write everything."""
        if self.path is None:
            return
        layers = {name: asdict(item) for name, item in self.layers.items()}
        stored = {"key": self.key, "metric_before": self.metric_before, "layers": layers, "trials": self.trials}
        with replacing(self.path) as temporary:
            temporary.write_text(json.dumps(stored, indent=1))

    @property
    def ranking(self) -> list[str]:
        """Layers, the most sensitive first."""
        return sorted(self.layers, key=lambda name: self.layers[name].decibels)


def search_key(function: Function, options: QuantizeOptions, data: Sequence[Feed]) -> str:
    """Changes with the model, its weights, the options (but `max_drop`) and the data."""
    digest = hashlib.sha256(structural_key(function).encode())
    chosen = {name: value for name, value in asdict(options).items() if name not in ("max_drop", "sensitivity")}
    digest.update(repr(sorted(chosen.items())).encode())
    for feed in data:
        for array in feed:
            digest.update(f"{array.shape}{array.dtype}".encode())
            digest.update(array.tobytes())
    return digest.hexdigest()


def fewest_kept(record: SearchRecord, max_drop: float, try_kept: Callable[[frozenset[str]], float]) -> frozenset[str]:
    """The layers to keep in float32; `try_kept` gives the metric of a model that keeps some."""
    ranking = record.ranking

    def holds(count: int) -> bool:
        if count not in record.trials:
            record.trials[count] = try_kept(frozenset(ranking[:count]))
            record.save()
        return record.metric_before - record.trials[count] <= max_drop

    if holds(0):
        return frozenset()
    low, high = 0, len(ranking)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return frozenset(ranking[:high])
