"""`fit`: epochs over data in an order that a seed decides, with checkpoints, metrics and a progress line.

    history = tw.train.fit(step, (x, y), epochs=3, batch_size=64, checkpoint="run.npz", log="run.csv")

A run that is killed goes on where its last checkpoint was, when it is started again in the same way, and ends with the
same numbers as one that was not: what follows depends on the checkpoint alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tilewright.graph.ops.random_bits import folded_key, key_of, random_bits
from tilewright.runtime.core.state import read_arrays
from tilewright.support.errors import UserError
from tilewright.support.progress import Progress
from tilewright.support.text import kind_of
from tilewright.train.log import Log, open_log
from tilewright.train.step import Result, Step

Array = npt.NDArray[Any]
Data: TypeAlias = "Sequence[Array] | Mapping[str, Array] | str | os.PathLike[str]"
"""The model's inputs and then the target, examples along the first axis; by name; or a .npz file of such arrays."""


@dataclass(frozen=True)
class Epoch:
    """What an epoch came to: means over its batches, and with data to validate on those of it."""

    number: int
    training: dict[str, float]
    validation: dict[str, float] = field(default_factory=dict)


class Examples:
    """Arrays of examples, in batches."""

    def __init__(self, step: Step, data: Data, what: str, parts: int = 1) -> None:
        names = step.program.inputs
        if isinstance(data, (str, os.PathLike)):
            data = read_arrays(Path(data))
        if isinstance(data, Mapping):
            for name in names:
                if name not in data:
                    raise UserError(f"the {what} has no '{name}'", hint=f"a step takes {', '.join(names)}")
            arrays = [np.asarray(data[name]) for name in names]
        elif isinstance(data, (tuple, list)):
            arrays = [np.asarray(item) for item in data]
        else:
            raise UserError(f"the {what} is arrays, a mapping of them or a .npz file, not {kind_of(data)}")
        if len(arrays) != len(names):
            raise UserError(f"the {what} has {len(arrays)} arrays, a step takes {len(names)}: {', '.join(names)}")
        counts = {len(array) if array.ndim else 0 for array in arrays}
        if len(counts) != 1 or counts == {0}:
            raise UserError(f"the arrays of the {what} have different numbers of examples, or none: {sorted(counts)}")
        self.arrays = arrays
        self.count = counts.pop()
        sizes = [shape[0] for shape in step.input_shapes() if shape]
        fixed = next((size for size in sizes if isinstance(size, int)), None)
        self.fixed = None if fixed is None else fixed * parts
        """The size that batches must have, if the model says so."""

    def batch_size(self, wanted: int | None) -> int:
        """How many examples a batch has."""
        size = self.fixed or 32 if wanted is None else wanted
        if not isinstance(size, int) or size < 1:
            raise UserError(f"the size of a batch is a whole number of at least 1, not {size!r}")
        if self.fixed is not None and size != self.fixed:
            raise UserError(f"the model takes batches of {self.fixed}, not {size}")
        if size > self.count:
            raise UserError(f"there are {self.count} examples, fewer than one batch of {size}")
        return size

    def batches(self, size: int, order: npt.NDArray[np.int64]) -> Iterator[list[Array]]:
        """Batches in an order; where the model has a fixed batch, what is left at the end is left out."""
        for start in range(0, self.count, size):
            chosen = order[start : start + size]
            if len(chosen) == size or self.fixed is None:
                yield [array[chosen] for array in self.arrays]

    def number_of_batches(self, size: int) -> int:
        """How many there are."""
        return self.count // size if self.fixed is not None else -(-self.count // size)


def epoch_order(seed: int, epoch: int, count: int) -> npt.NDArray[np.int64]:
    """The order of examples in an epoch: that of random numbers which seed and epoch decide."""
    return np.argsort(random_bits(folded_key(key_of(seed), epoch), (count,)), kind="stable").astype(np.int64)


def fit(
    step: Step,
    data: Data,
    *,
    epochs: int,
    batch_size: int | None = None,
    validation: Data | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    every: int | None = None,
    log: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    shuffle: bool = True,
    seed: int | None = None,
) -> list[Epoch]:
    """Train for so many epochs, and give what each came to.

    `checkpoint` is a file that is written after every epoch, and after every `every` batches; if it is there, training
    goes on from it. `log` is a .csv file, a folder of event files for TensorBoard, or several of these. `seed` (that of
    the step) decides the order of examples. Epochs before the checkpoint are not among the results.
    """
    examples = Examples(step, data, "training data", step.batch_parts)
    size = examples.batch_size(batch_size)
    tested = None if validation is None else Examples(step, validation, "data to validate on")
    place = None if checkpoint is None else Path(checkpoint)
    if every is not None and (not isinstance(every, int) or every < 1):
        raise UserError(f"every is a number of batches of at least 1, not {every!r}")
    if place is not None and step.has_checkpoint(place):
        step.restore(place)
    run = _Run(step, examples, size, tested, place, every, step.seed if seed is None else seed, shuffle)
    paths = [log] if isinstance(log, (str, os.PathLike)) else list(log)
    columns = ["loss", *step.program.metrics]
    columns += [] if tested is None else [f"validation_{name}" for name in ("loss", *step.program.measures)]
    logs = [open_log(path, columns, step.calls) for path in paths if step.writes_files]
    try:
        first = step.position.get("epoch", 0)
        return [run.epoch(number, epochs, logs) for number in range(first, epochs)]
    finally:
        for item in logs:
            item.close()


@dataclass
class _Run:
    """One call of `fit`."""

    step: Step
    examples: Examples
    size: int
    tested: Examples | None
    place: Path | None
    every: int | None
    seed: int
    shuffle: bool

    def epoch(self, number: int, epochs: int, logs: Sequence[Log]) -> Epoch:
        """What is left of an epoch."""
        step, examples = self.step, self.examples
        order = epoch_order(self.seed, number, examples.count) if self.shuffle else np.arange(examples.count)
        done = step.position.get("batch", 0)
        total = examples.number_of_batches(self.size)
        sums: dict[str, float] = {}
        with Progress(f"epoch {number + 1} of {epochs}", total=total) as line:
            line.step(count=done)
            for place, batch in enumerate(examples.batches(self.size, order)):
                if place < done:
                    continue
                result = step(*batch)
                step.position = {"epoch": number, "batch": place + 1}
                _add(sums, result)
                for item in logs:
                    item.write(step.calls, result)
                line.step(f"loss {result.loss:.4f}")
                if self.place is not None and self.every is not None and (place + 1) % self.every == 0:
                    step.save(self.place)
        step.position = {"epoch": number + 1, "batch": 0}
        measured = {} if self.tested is None else evaluate_all(step, self.tested, self.size)
        for item in logs:
            if measured:
                item.write(step.calls, {f"validation_{name}": value for name, value in measured.items()})
        if self.place is not None:
            step.save(self.place)
        count = max(total - done, 1)
        return Epoch(number, {name: value / count for name, value in sums.items()}, measured)


def _add(sums: dict[str, float], result: Result) -> None:
    for name, value in result.items():
        sums[name] = sums.get(name, 0.0) + value


def evaluate_all(step: Step, examples: Examples, size: int) -> dict[str, float]:
    """Means of the loss and metrics over examples, each of which counts the same."""
    size = min(size, examples.count) if examples.fixed is None else size
    sums: dict[str, float] = {}
    seen = 0
    for batch in examples.batches(size, np.arange(examples.count)):
        result = step.evaluate(*batch)
        _add(sums, Result({name: value * len(batch[0]) for name, value in result.items()}))
        seen += len(batch[0])
    return {name: value / max(seen, 1) for name, value in sums.items()}
