"""Small libraries for the tests of remote sessions: one that works, and some that hang, crash or eat memory."""

from __future__ import annotations

from pathlib import Path

import tilewright as tw
from tilewright import te


def double(folder: Path) -> Path:
    """`double(a, b)`: b = 2 a, for 8 floats."""
    a = te.placeholder((8,), "float32", "a")
    b = te.compute((8,), lambda i: a[i] * 2.0, "b")
    return _export(folder, "double", te.create_schedule(b.op), [a, b])


def crash(folder: Path) -> Path:
    """`crash(index, a, b)`: reads where `index` says, which may be nowhere."""
    index = te.placeholder((8,), "int64", "index")
    a = te.placeholder((8,), "float32", "a")
    b = te.compute((8,), lambda i: a[index[i]], "b")
    return _export(folder, "crash", te.create_schedule(b.op), [index, a, b])


def hang(folder: Path) -> Path:
    """`hang(n, a, b)`: a sum over `n` terms that no compiler can shorten; a large n takes for ever."""
    n = te.var("n")
    a = te.placeholder((8,), "int64", "a")
    k = te.reduce_axis((0, n), "k")
    b = te.compute((8,), lambda i: te.sum((a[k % 8] * (k + i)) // (a[i] + 7), axis=k), "b")
    return _export(folder, "hang", te.create_schedule(b.op), [n, a, b])


def scale(folder: Path, factor: float) -> Path:
    """`scale(a, b)`: b = factor * a, always in a file of one name."""
    a = te.placeholder((8,), "float32", "a")
    b = te.compute((8,), lambda i: a[i] * factor, "b")
    return _export(folder, "scale", te.create_schedule(b.op), [a, b])


def _export(folder: Path, name: str, schedule: te.Schedule, arguments: list[object]) -> Path:
    path = folder / f"{name}.so"
    tw.build(schedule, arguments, name=name).export_library(path)  # type: ignore[arg-type]
    return path
