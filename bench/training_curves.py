"""Loss curves of `tw.train.Step` beside PyTorch's: `python -m bench.training_curves`.

    python -m bench.training_curves                        # both; a few minutes on one thread
    python -m bench.training_curves --only text --steps 100

- text: a character-level transformer (two layers of width 64, 64 characters of context) learns the texts that ship with
  Python: its licence, its credits and the Zen of Python. AdamW, warm-up and a cosine schedule, clipped gradients.
- resnet18: ResNet-18 with batch normalisation learns 64 of scikit-learn's digits, 8 at a time. They are brought to
  40 x 40 pixels, so that the last layers normalise over 32 values, and get some noise: an even background puts
  thousands of activations on one side of a kink at once. The last normalisation of a block begins at zero, as is usual
  for residual networks; SGD with momentum, and a rate that warms up to 0.001 in 10 steps.

Both sides start from the same weights and see the same batches in the same order. PyTorch in float64 is the referee:
how far is each side's float32 from it, at every step? Results are `training_curves.json`, and in bench/results the
plots `training_curve_<name>.svg` and `training_curve_<name>_rounding.svg`. Differences are relative to the loss.
scikit-learn comes from an environment of its own (`.venv-curves`) where it is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import site
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

import tilewright as tw
from bench import harness
from bench.environments import REPOSITORY, Environment, variables
from bench.torch_training_models import BasicBlock, resnet18
from tilewright.cli.options import positive_int
from tilewright.support.errors import UserError
from tilewright.support.svg import Axis, Series, plot
from tilewright.support.text import table

Batch = tuple[npt.NDArray[Any], npt.NDArray[np.int64]]
_CONTEXT, _WIDTH, _LAYERS, _HEADS, _BATCH = 64, 64, 2, 4, 16
_DIGITS, _IMAGES, _SIDE = 64, 8, 40
_ENVIRONMENT = Environment(REPOSITORY / ".venv-curves", ("sklearn",), (("scikit-learn",),))


class Characters(nn.Module):
    """A transformer that says what the next character is, from those before it."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.table, self.place = nn.Embedding(characters, _WIDTH), nn.Parameter(0.02 * torch.randn(_CONTEXT, _WIDTH))
        self.norms = nn.ModuleList(nn.LayerNorm(_WIDTH) for _ in range(2 * _LAYERS + 1))
        self.joint = nn.ModuleList(nn.Linear(_WIDTH, 3 * _WIDTH) for _ in range(_LAYERS))
        self.out = nn.ModuleList(nn.Linear(_WIDTH, _WIDTH) for _ in range(_LAYERS))
        self.wide = nn.ModuleList(nn.Linear(_WIDTH, 4 * _WIDTH) for _ in range(_LAYERS))
        self.narrow = nn.ModuleList(nn.Linear(4 * _WIDTH, _WIDTH) for _ in range(_LAYERS))
        self.last = nn.Linear(_WIDTH, characters)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores (places, characters)."""
        value = self.table(tokens) + self.place
        for layer in range(_LAYERS):
            joint = self.joint[layer](self.norms[2 * layer](value))
            parts = [part.unflatten(-1, (_HEADS, -1)).transpose(1, 2) for part in joint.chunk(3, -1)]
            found = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
            value = value + self.out[layer](found.transpose(1, 2).flatten(2))
            inner = nn.functional.gelu(self.wide[layer](self.norms[2 * layer + 1](value)))
            value = value + self.narrow[layer](inner)
        scores: torch.Tensor = self.last(self.norms[-1](value))
        return scores.flatten(0, 1)


def python_text() -> str:
    """Text that every Python has: its licence and credits, and the Zen of Python."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        import this  # noqa: F401  (it prints when it is imported)
    builtins = [site.__dict__.get("builtins")]
    texts = [said.getvalue()]
    for name in ("license", "credits", "copyright"):
        printer = getattr(builtins[0], name, None)
        if printer is not None:
            printer._Printer__setup()
            texts.append("\n".join(printer._Printer__lines))
    return "\n".join(texts)


@dataclass(frozen=True)
class Course:
    """A model, the batches it learns from, and how it learns, by both."""

    model: nn.Module
    batches: Callable[[int], Iterator[Batch]]
    ours: tw.train.Optimizer
    theirs: Callable[[nn.Module], torch.optim.Optimizer]
    rate: Callable[[int], float]
    clip: float | None


def text_course(steps: int) -> Course:
    """The character-level transformer."""
    text = python_text()
    alphabet = sorted(set(text))
    codes = np.array([alphabet.index(letter) for letter in text], np.int64)

    def batches(count: int) -> Iterator[Batch]:
        rng = np.random.default_rng(0)
        for _ in range(count):
            starts = rng.integers(0, len(codes) - _CONTEXT - 1, _BATCH)
            rows = np.stack([codes[start : start + _CONTEXT + 1] for start in starts])
            yield rows[:, :-1].copy(), rows[:, 1:].flatten()

    rate = tw.train.WarmUp(tw.train.Cosine(3e-3, steps), 20)
    theirs = lambda model: torch.optim.AdamW(model.parameters(), lr=1.0, weight_decay=0.01)  # noqa: E731
    return Course(Characters(len(alphabet)), batches, tw.train.AdamW(rate), theirs, rate, 1.0)


def image_course(steps: int) -> Course:
    """ResNet-18 on scikit-learn's digits."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    small = torch.from_numpy(digits.images[:_DIGITS, None] / 16).expand(-1, 3, -1, -1)
    large = nn.functional.interpolate(small, size=(_SIDE, _SIDE), mode="bilinear").numpy()
    large = (large - large.mean()) / large.std()
    images = (large + 0.1 * np.random.default_rng(0).normal(size=large.shape)).astype(np.float32)
    labels = digits.target[:_DIGITS].astype(np.int64)

    def batches(count: int) -> Iterator[Batch]:
        for number in range(count):
            chosen = (np.arange(_IMAGES) + _IMAGES * number) % _DIGITS
            yield images[chosen], labels[chosen]

    model = resnet18()
    for block in model.modules():
        if isinstance(block, BasicBlock):
            nn.init.zeros_(block.bn2.weight)
    theirs = lambda model: torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)  # noqa: E731
    rate = tw.train.WarmUp(tw.train.Constant(1e-3), 10)
    return Course(model, batches, tw.train.SGD(rate, momentum=0.9), theirs, rate, None)


COURSES: dict[str, tuple[Callable[[int], Course], int]] = {"text": (text_course, 400), "resnet18": (image_course, 50)}
"""By name, with the steps they take."""


def ours(course: Course, steps: int, threads: int) -> list[float]:
    """The losses of compiled steps."""
    example = torch.from_numpy(next(course.batches(1))[0])
    with torch.no_grad():
        module = tw.frontend.from_torch(course.model.eval(), (example,))
    step = tw.train.Step(module, "cross_entropy", course.ours, clip_norm=course.clip, threads=threads)
    losses = []
    for number, batch in enumerate(course.batches(steps)):
        losses.append(step(*batch).loss)
        harness.say(f"ours, step {number}: {losses[-1]}")
    return losses


def theirs(course: Course, steps: int) -> list[float]:
    """The losses of PyTorch; it changes the model."""
    model = course.model.train()
    kind = next(model.parameters()).dtype
    optimizer = course.theirs(model)
    losses = []
    for number, (x, y) in enumerate(course.batches(steps)):
        for group in optimizer.param_groups:
            group["lr"] = course.rate(number)
        values = torch.from_numpy(x)
        values = values.to(kind) if values.is_floating_point() else values
        loss = nn.functional.cross_entropy(model(values), torch.from_numpy(y))
        optimizer.zero_grad()
        loss.backward()
        if course.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), course.clip)
        optimizer.step()
        losses.append(float(loss.detach()))
        harness.say(f"torch {kind}, step {number}: {losses[-1]}")
    return losses


def compared(name: str, steps: int, threads: int) -> dict[str, Any]:
    """Both curves of a course."""
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    course = COURSES[name][0](steps)
    mine = ours(course, steps, threads)
    first = copy.deepcopy(course.model.state_dict())
    other = theirs(course, steps)
    course.model.load_state_dict(first)
    exact = theirs(replace(course, model=course.model.double()), steps)
    tail = max(steps // 10, 1)
    return {
        "steps": steps,
        "tilewright": mine,
        "torch": other,
        "torch float64": exact,
        "largest_difference": max(_differences(mine, other)),
        "from_float64": {
            "tilewright": max(_differences(mine, exact)),
            "torch": max(_differences(other, exact)),
            "most_times_torch": _most_times(_differences(mine, exact), _differences(other, exact)),
        },
        "last": {"tilewright": float(np.mean(mine[-tail:])), "torch": float(np.mean(other[-tail:]))},
    }


def _differences(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """Step by step, relative to the other."""
    return [abs(a - b) / abs(b) for a, b in zip(values, others, strict=True)]


def _most_times(mine: Sequence[float], other: Sequence[float]) -> float:
    """At the worst step, how many times as far we are as the other was by then; both at least as far as rounding."""
    rounding = float(np.finfo(np.float32).eps)
    ours, theirs = (np.maximum.accumulate([max(value, rounding) for value in side]) for side in (mine, other))
    return float((ours / theirs).max())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m bench.training_curves", description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=COURSES)
    parser.add_argument("--steps", type=positive_int, help="steps of training (default: 400 on text, 50 of ResNet-18)")
    parser.add_argument("--threads", type=positive_int, default=1)
    options = parser.parse_args(arguments)
    python = _ENVIRONMENT.python()
    if python != sys.executable:
        given = sys.argv[1:] if arguments is None else arguments
        command = [python, "-m", "bench.training_curves", *given]
        sys.exit(subprocess.run(command, cwd=REPOSITORY, env=variables(), check=False).returncode)
    chosen = [options.only] if options.only else list(COURSES)
    found: dict[str, Any] = {}
    for name in chosen:
        found[name] = compared(name, options.steps or COURSES[name][1], options.threads)
        curves = [
            Series(who, list(enumerate(found[name][who])), line=True, marks=False) for who in ("tilewright", "torch")
        ]
        drawing = plot(f"Loss of training, {name}", Axis("step"), Axis("loss"), curves)
        (harness.RESULTS_FOLDER / f"training_curve_{name}.svg").write_text(drawing, encoding="utf-8")
        (harness.RESULTS_FOLDER / f"training_curve_{name}_rounding.svg").write_text(_rounding(name, found[name]))
    rows = [
        (name, str(item["steps"]), *(f"{item['last'][who]:.5f}" for who in ("tilewright", "torch")),
         f"{item['largest_difference']:.1e}", *(f"{item['from_float64'][who]:.1e}" for who in item["from_float64"]))
        for name, item in found.items()
    ]  # fmt: skip
    heads = ("largest difference", "ours from float64", "torch from float64", "most times torch's")
    print(table(("model", "steps", "last loss, ours", "last loss, torch", *heads), rows))
    _write(found)


def _rounding(name: str, course: dict[str, Any]) -> str:
    """How far both are from float64, step by step; nothing is nearer than a tenth of a float32's rounding."""
    least = float(np.finfo(np.float32).eps) / 10
    series = []
    for who in ("tilewright", "torch"):
        away = _differences(course[who], course["torch float64"])
        points = [(step, max(value, least)) for step, value in enumerate(away)]
        series.append(Series(who, points, line=True, marks=False))
    up = Axis("difference from float64", logarithmic=True, show="{:.0e}".format)
    return plot(f"Rounding in training, {name}", Axis("step"), up, series)


def _write(found: dict[str, Any]) -> None:
    path = harness.RESULTS_FOLDER / "training_curves.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"courses": {}}
    if not isinstance(known, dict):
        raise UserError("the file of curves is none", where=str(path))
    courses = {**known["courses"], **found}
    harness.write_json(
        path, {"machine": harness.machine(), "versions": harness.versions(["torch"]), "courses": courses}
    )


if __name__ == "__main__":
    main()
