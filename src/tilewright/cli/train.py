"""`tilewright train`: a model and examples in, the same model with weights that fit them out."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from tilewright.cli.options import FLAGS, add_shapes, check_output, parse_shapes, positive_int
from tilewright.frontend import from_file
from tilewright.onnx_writer import to_onnx
from tilewright.runtime.core.state import read_arrays
from tilewright.support.errors import UserError
from tilewright.support.files import replacing
from tilewright.support.text import human_seconds
from tilewright.train.fit import Epoch, fit
from tilewright.train.initializers import initialize
from tilewright.train.losses import LOSSES
from tilewright.train.optimizers import OPTIMIZERS
from tilewright.train.schedules import Cosine, OneCycle, Schedule, WarmUp
from tilewright.train.step import Step

DESCRIPTION = """\
Train a model, or train it further: forward, backward and update are one compiled function.

The data is a .npz file with an array for each input of the model, by its name, and one called `target`; examples lie
along the first axis. The result is an ONNX model with the weights that were learned. With --checkpoint, a run that was
interrupted goes on where it was.

  tilewright train digits.onnx --data train.npz --loss cross_entropy --optimizer adamw --epochs 3 -o trained.onnx
  tilewright train digits.onnx --data train.npz --validation test.npz --checkpoint run.npz --log run.csv
"""

SCHEDULES = ("constant", "cosine", "one_cycle")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", type=Path, metavar="MODEL", help="a model of float32 (`tilewright formats`)")
    parser.add_argument("--data", type=Path, required=True, metavar="FILE.npz", help="what to learn from")
    parser.add_argument("--validation", type=Path, metavar="FILE.npz", help="what to measure on after each epoch")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE.onnx", help="the model to write (default: MODEL.trained.onnx)"
    )
    parser.add_argument("--loss", choices=tuple(LOSSES), default="cross_entropy", help="(default: cross_entropy)")
    parser.add_argument("--optimizer", choices=tuple(OPTIMIZERS), default="adamw", help="(default: adamw)")
    parser.add_argument("--rate", type=float, default=1e-3, metavar="X", help="the learning rate (default: 0.001)")
    parser.add_argument("--schedule", choices=SCHEDULES, default="constant", help="how the rate changes")
    parser.add_argument("--warm-up", type=positive_int, metavar="N", help="steps in which the rate rises first")
    parser.add_argument("--epochs", type=positive_int, default=1, metavar="N", help="(default: 1)")
    parser.add_argument("--batch-size", type=positive_int, metavar="N", help="(default: the model's, or 32)")
    parser.add_argument("--clip-norm", type=float, metavar="X", help="the most that gradients may be long")
    parser.add_argument("--accumulate", type=positive_int, default=1, metavar="N", help="batches a step")
    parser.add_argument("--initialize", action="store_true", help="draw new weights first")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="decides all that is drawn (default: 0)")
    parser.add_argument("--checkpoint", type=Path, metavar="FILE.npz", help="written as training goes, to go on from")
    parser.add_argument("--every", type=positive_int, metavar="N", help="batches between checkpoints")
    parser.add_argument(
        "--log",
        action="append",
        type=Path,
        default=[],
        metavar="FILE.csv|DIR",
        help="metrics, as CSV or for TensorBoard",
    )
    parser.add_argument(
        FLAGS["threads"], type=positive_int, metavar="N", help="threads to run on (default: every core)"
    )
    add_shapes(parser)


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    output: Path = options.output or Path(options.model.with_suffix(".trained.onnx").name)
    check_output(output, options.model, "model.trained.onnx")
    start = time.perf_counter()
    step = Step(
        from_file(options.model, parse_shapes(options.shape)),
        options.loss,
        OPTIMIZERS[options.optimizer](_rate(options)),
        clip_norm=options.clip_norm,
        accumulate=options.accumulate,
        seed=options.seed,
        threads=options.threads,
    )
    if options.initialize:
        step.assign(initialize(step.parameters(), options.seed))
    history = fit(
        step,
        options.data,
        epochs=options.epochs,
        batch_size=options.batch_size,
        validation=options.validation,
        checkpoint=options.checkpoint,
        every=options.every,
        log=options.log,
    )
    for epoch in history:
        print(_line(epoch))
    with replacing(output) as temporary:
        temporary.write_bytes(to_onnx(step.module()))
    print(f"{output}: after {step.steps} steps, in {human_seconds(time.perf_counter() - start)}")
    return 0


def _rate(options: argparse.Namespace) -> float | Schedule:
    rate: float | Schedule = options.rate
    if options.schedule != "constant":
        if options.batch_size is None:
            raise UserError("a schedule needs to know the number of steps", hint="say --batch-size")
        steps = max(options.epochs * _batches(options) // options.accumulate, 1)
        rate = (Cosine if options.schedule == "cosine" else OneCycle)(options.rate, steps)
    return rate if options.warm_up is None else WarmUp(rate, options.warm_up)


def _batches(options: argparse.Namespace) -> int:
    counts = [len(array) for array in read_arrays(options.data).values() if array.ndim]
    return min(counts, default=0) // int(options.batch_size)


def _line(epoch: Epoch) -> str:
    parts = [f"{name} {value:.4g}" for name, value in epoch.training.items()]
    parts += [f"validation {name} {value:.4g}" for name, value in epoch.validation.items()]
    return f"epoch {epoch.number + 1}: {', '.join(parts)}"
