"""A run of training that a test starts in a process of its own: `python -m tests.train.killed_run FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.train.models import batch, perceptron
from tilewright.train import AdamW, Cosine, Step, fit


def run(folder: Path, epochs: int = 4) -> Step:
    """Eight batches an epoch, a checkpoint after every third."""
    step = Step(perceptron(), "cross_entropy", AdamW(Cosine(0.02, 40)), average=0.9, threads=1)
    data = batch(5, 64)
    fit(step, data, epochs=epochs, checkpoint=folder / "run.npz", every=3, log=folder / "run.csv")
    return step


if __name__ == "__main__":
    run(Path(sys.argv[1]), epochs=10_000)
