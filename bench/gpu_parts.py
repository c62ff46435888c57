"""Runs of `bench.gpu` in parts: what earlier parts have timed, and what all parts say together.

Compiling every peer takes longer than a machine may be had for at a time. A run writes what it knows after each model;
`bench.gpu --resume` reads that, times what is missing and adds it. A row is one model in one size and precision with
the peers that were timed in turns with ours, so that a configuration has several rows where its peers came in parts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import gpu_ahead, zoo
from bench.gpu_ahead import GRAPH
from tilewright.support.errors import UserError

Row = dict[str, Any]
Configuration = tuple[int, str, str]
"""Batch, precision and model."""

NO_TIME = "no time left"
TOO_SLOW = "took too long to get ready"


def read(path: Path, device: str) -> list[Row]:
    """The rows of earlier parts: none where there is no such file."""
    if not path.exists():
        return []
    try:
        kept = json.loads(path.read_text())
        rows, other = list(kept["results"]), kept["device"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} does not hold figures of this benchmark", hint="name another file by --json, or leave out --resume"
        ) from error
    if other != device:
        raise UserError(f"the figures in {path} are of another GPU: {other}", hint="name another file by --json")
    return rows


def configuration(row: Row) -> Configuration:
    """What a row is about."""
    return row["batch"], row["precision"], row["model"]


def is_about_time(failure: str) -> bool:
    """Whether a peer that failed might be ready if it were given longer."""
    return failure.startswith((NO_TIME, TOO_SLOW))


def missing(
    rows: Sequence[Row], wanted: Sequence[Configuration], ways: Sequence[str]
) -> dict[Configuration, list[str]]:
    """Which ways of compiling are yet to be timed of each configuration; one that has everything is not in there."""
    found: dict[Configuration, list[str]] = {}
    for one in wanted:
        own = [row for row in rows if configuration(row) == one]
        left = [way for way in ways if not any(_has(row, way) for row in own)]
        if left or not any(_has(row, GRAPH) for row in own):
            found[one] = left
    return found


def together(rows: Sequence[Row], row: Row) -> list[Row]:
    """The rows with a new one, which takes the place of those about the same that have timed no other peers.

    That there was no time is worth a row only where there is no other.
    """
    if is_about_time(row.get("error", "")) and any(configuration(other) == configuration(row) for other in rows):
        return list(rows)
    timed = set(row.get("wall_us", {}))
    kept = [
        other
        for other in rows
        if configuration(other) != configuration(row) or not set(other.get("wall_us", {})) <= timed
    ]
    return sorted([*kept, row], key=_place)


def _place(row: Row) -> tuple[int, int, int, str]:
    """Where a row stands: models of no set come last, by name."""
    batch, precision, model = configuration(row)
    names = zoo.known()
    place = names.index(model) if model in names else len(names)
    return batch, list(gpu_ahead.PRECISIONS).index(precision), place, model


def ratios(rows: Sequence[Row]) -> dict[Configuration, float]:
    """How much quicker ours is than the quickest peer of any part."""
    found: dict[Configuration, float] = {}
    for row in rows:
        if row.get("ratio"):
            one = configuration(row)
            found[one] = min(row["ratio"], found.get(one, row["ratio"]))
    return found


def _has(row: Mapping[str, Any], way: str) -> bool:
    """Whether a row says what became of a way of running the model, in all layouts."""
    failed = row.get("peers_failed", {})
    peers = [gpu_ahead.Program("", 0, "", way, layout).peer for layout in gpu_ahead.layouts(row["model"], way)]
    return "error" not in row and all(
        peer in row["wall_us"] or (peer in failed and not is_about_time(failed[peer])) for peer in peers
    )
