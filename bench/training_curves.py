"""Loss curves of `tw.train.Step` beside PyTorch's: `python -m bench.training_curves`.

    python -m bench.training_curves                        # both; a few minutes on one thread
    python -m bench.training_curves --only text --steps 100

- text: a character-level transformer (two layers of width 64, 64 characters of context) learns the texts that ship with
  Python: its licence, its credits and the Zen of Python. AdamW, warm-up and a cosine schedule, clipped gradients.
- resnet18: ResNet-18 with batch normalisation on images of 32 x 32, SGD with momentum, another batch each step.

Both sides start from the same weights and see the same batches in the same order. Results are `training_curves.json`
and `training_curve_<name>.svg` in bench/results. Differences are relative to the loss. What is rounding grows with
every step, and with batch normalisation of few values by much: PyTorch in float64 is the measure of both, and says how
far float32 is from it in PyTorch itself.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import site
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

import tilewright as tw
from bench import harness
from bench.torch_training_models import resnet18
from tilewright.cli.options import positive_int
from tilewright.support.errors import UserError
from tilewright.support.svg import Axis, Series, plot
from tilewright.support.text import table

Batch = tuple[npt.NDArray[Any], npt.NDArray[np.int64]]
_CONTEXT, _WIDTH, _LAYERS, _HEADS, _BATCH = 64, 64, 2, 4, 16


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
    """ResNet-18 on images of noise around a picture for each class."""

    def batches(count: int) -> Iterator[Batch]:
        rng = np.random.default_rng(0)
        pictures = rng.normal(size=(10, 3, 32, 32))
        for _ in range(count):
            labels = rng.integers(0, 10, 16)
            yield (pictures[labels] + rng.normal(size=(16, 3, 32, 32))).astype(np.float32), labels

    theirs = lambda model: torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)  # noqa: E731
    rate = tw.train.Constant(3e-4)
    return Course(resnet18(), batches, tw.train.SGD(rate, momentum=0.9), theirs, rate, None)


COURSES: dict[str, tuple[Callable[[int], Course], int]] = {"text": (text_course, 400), "resnet18": (image_course, 50)}
"""By name, with the steps they take."""


def ours(course: Course, steps: int, threads: int) -> list[float]:
    """The losses of compiled steps."""
    example = torch.from_numpy(next(course.batches(1))[0])
    with torch.no_grad():
        module = tw.frontend.from_torch(course.model.eval(), (example,))
    step = tw.train.Step(module, "cross_entropy", course.ours, clip_norm=course.clip, threads=threads)
    return [step(*batch).loss for batch in course.batches(steps)]


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
        "largest_difference": _largest(mine, other),
        "from_float64": {"tilewright": _largest(mine, exact), "torch": _largest(other, exact)},
        "last": {"tilewright": float(np.mean(mine[-tail:])), "torch": float(np.mean(other[-tail:]))},
    }


def _largest(values: Sequence[float], others: Sequence[float]) -> float:
    """The largest difference, relative to the other."""
    return max(abs(a - b) / abs(b) for a, b in zip(values, others, strict=True))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m bench.training_curves", description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=COURSES)
    parser.add_argument("--steps", type=positive_int, help="steps of training (default: 400 on text, 50 of ResNet-18)")
    parser.add_argument("--threads", type=positive_int, default=1)
    options = parser.parse_args(arguments)
    chosen = [options.only] if options.only else list(COURSES)
    found: dict[str, Any] = {}
    for name in chosen:
        found[name] = compared(name, options.steps or COURSES[name][1], options.threads)
        curves = [
            Series(who, list(enumerate(found[name][who])), line=True, marks=False) for who in ("tilewright", "torch")
        ]
        drawing = plot(f"Loss of training, {name}", Axis("step"), Axis("loss"), curves)
        (harness.RESULTS_FOLDER / f"training_curve_{name}.svg").write_text(drawing, encoding="utf-8")
    rows = [
        (name, str(item["steps"]), *(f"{item['last'][who]:.5f}" for who in ("tilewright", "torch")),
         f"{item['largest_difference']:.1e}", *(f"{item['from_float64'][who]:.1e}" for who in item["from_float64"]))
        for name, item in found.items()
    ]  # fmt: skip
    heads = ("largest difference", "ours from float64", "torch from float64")
    print(table(("model", "steps", "last loss, ours", "last loss, torch", *heads), rows))
    _write(found)


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
