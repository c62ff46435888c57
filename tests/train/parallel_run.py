"""A process of a data-parallel run that a test starts: `python -m tests.train.parallel_run FOLDER [STEP TO DIE AT]`.

Its environment says who it is, as torchrun's does. The second process kills itself once, if it is told to.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np

from tests.train.models import batch, perceptron
from tilewright.train import AdamW, ParallelStep, fit

EPOCHS, EXAMPLES, SIZE = 3, 64, 16


def run(folder: Path, dies_at: int | None) -> None:
    """Four batches an epoch, a checkpoint after every second."""
    step = ParallelStep(perceptron(8), "cross_entropy", AdamW(0.02), clip_norm=1.0, threads=1)
    died = folder / "died"
    losses = []

    def observed(*arrays: object) -> object:
        if step.group.rank == 1 and step.calls == dies_at and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        result = ParallelStep.__call__(step, *arrays)
        losses.append(result.loss)
        return result

    data = batch(5, EXAMPLES)
    epochs = range(step.position.get("epoch", 0), EPOCHS)
    assert epochs
    fit(_Observed(step, observed), data, epochs=EPOCHS, batch_size=SIZE, checkpoint=folder / "run.npz", every=2)
    np.savez(folder / f"rank{step.group.rank}.npz", losses=losses, **step.parameters())


class _Observed:
    """A step whose calls are seen."""

    def __init__(self, step: ParallelStep, call: object) -> None:
        self.__dict__.update(inner=step, call=call)

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.inner, name, value)

    def __call__(self, *arrays: object) -> object:
        return self.call(*arrays)


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)
