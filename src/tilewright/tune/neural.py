"""A neural cost model over the loops of a program: a small recurrent network, in numpy alone.

A program is a tree: blocks with loops around them. The network reads every block from its innermost loop outwards: a
state begins as what is known of the block (arithmetic, traffic, accesses), each loop changes it through a gate, and the
states of the blocks, joined with what is known of the whole program, give the score. All blocks of all programs move
one level at a time, so a level is a few matrix products.

    state = tanh(block W + b);  for each loop:  state += gate * (candidate - state)
    score = relu([program, main block's state, sum of states] W + b) w

It learns which of two programs of a task is quicker (the logistic loss of their difference, heavier for pairs that
differ more), by gradients written out here and Adam.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.support.errors import UserError
from tilewright.tune.cost import CostModel, Matrix, Vector
from tilewright.tune.features import BLOCKS, LOOPS, layout

Array = npt.NDArray[Any]
Weights = dict[str, Array]


@dataclass(slots=True)
class NeuralModel:
    """The recurrent network. `steps` gradients are taken at each fit, the first time more of them (`first_steps`)."""

    state: int = 32
    hidden: int = 48
    steps: int = 150
    first_steps: int = 500
    batch: int = 96
    rate: float = 3e-3
    decay: float = 1e-4
    seed: int = 0
    prior: CostModel | None = None
    _weights: Weights = field(default_factory=dict, repr=False)
    _scale: tuple[Array, Array] | None = field(default=None, repr=False)

    def fit(self, features: Matrix, scores: Vector, tasks: Sequence[str]) -> None:
        """Go on learning from everything measured so far."""
        if len(scores) != len(features) or len(tasks) != len(features):
            raise UserError(f"{len(features)} programs need as many scores and tasks")
        random = np.random.default_rng(self.seed)
        steps = self.steps if self._weights else self.first_steps
        if self._scale is None or len(features) < 4 * self.batch:
            # What few programs say of the spread of features is not yet to be kept.
            self._scale = features.mean(axis=0), np.maximum(features.std(axis=0), 1e-2)
        if not self._weights:
            self._weights = first_weights(self.state, self.hidden, random)
        rows = self._scaled(features)
        start = self.prior.predict(features) if self.prior is not None else np.zeros(len(features), np.float32)
        groups = [np.flatnonzero(np.asarray(tasks) == task) for task in dict.fromkeys(tasks)]
        groups = [group for group in groups if len(group) > 1]
        if not groups:
            return
        sizes = np.asarray([len(group) for group in groups], np.float64)
        adam = _Adam(self._weights, self.decay)
        for step in range(steps):
            group = groups[int(random.choice(len(groups), p=sizes / sizes.sum()))]
            chosen = random.choice(group, min(self.batch, len(group)), replace=False)
            said, kept = forward(self._weights, rows[chosen])
            slope = rank_slope(said + start[chosen], scores[chosen])
            adam.step(backward(self._weights, kept, slope), self.rate * (1 - step / steps))

    def predict(self, features: Matrix) -> Vector:
        """Scores; zeros before anything was learned."""
        start = self.prior.predict(features) if self.prior is not None else np.zeros(len(features), np.float32)
        if not self._weights or not len(features):
            return start
        return np.asarray(forward(self._weights, self._scaled(features))[0] + start, np.float32)

    def _scaled(self, features: Matrix) -> Array:
        assert self._scale is not None
        mean, spread = self._scale
        return np.clip((features - mean) / spread, -6, 6).astype(np.float32)


def first_weights(state: int, hidden: int, random: np.random.Generator) -> Weights:
    """Small random weights."""
    places = layout()
    loops = places.loops.stop - places.loops.start
    length = places.blocks[0].stop - places.blocks[0].start
    whole = places.width - BLOCKS * length
    shapes = {
        "block": (length - loops, state),
        "gate": (loops // LOOPS + state, state),
        "change": (loops // LOOPS + state, state),
        "join": (whole + 2 * state, hidden),
        "score": (hidden, 1),
    }
    weights: Weights = {}
    for name, (inputs, outputs) in shapes.items():
        weights[name] = random.normal(0, inputs**-0.5, (inputs, outputs)).astype(np.float32)
        weights[f"{name} bias"] = np.zeros(outputs, np.float32)
    return weights


@dataclass(slots=True)
class _Level:
    """What one loop of all blocks did: its input beside the state, the gate, the candidate, the state before."""

    given: Array
    gate: Array
    change: Array
    before: Array


def forward(weights: Mapping[str, Array], rows: Array) -> tuple[Array, dict[str, Any]]:
    """The scores of programs (scaled features), and what `backward` needs."""
    places, count = layout(), len(rows)
    blocks = np.concatenate([rows[:, place] for place in places.blocks])
    own = np.delete(blocks, np.arange(places.loops.start, places.loops.stop), axis=1)
    loops = blocks[:, places.loops].reshape(len(blocks), LOOPS, -1)
    state = np.tanh(own @ weights["block"] + weights["block bias"])
    first, levels = state, []
    for number in range(LOOPS):
        given = np.concatenate([loops[:, number], state], axis=1)
        gate = _sigmoid(given @ weights["gate"] + weights["gate bias"])
        change = np.tanh(given @ weights["change"] + weights["change bias"])
        levels.append(_Level(given, gate, change, state))
        state = state + gate * (change - state)
    by_block = state.reshape(BLOCKS, count, -1)
    whole = np.delete(rows, np.arange(places.blocks[0].start, places.blocks[-1].stop), axis=1)
    joined = np.concatenate([whole, by_block[0], by_block.sum(axis=0)], axis=1)
    hidden = np.maximum(joined @ weights["join"] + weights["join bias"], 0)
    score = (hidden @ weights["score"] + weights["score bias"])[:, 0]
    return score, {"own": own, "first": first, "levels": levels, "joined": joined, "hidden": hidden}


def backward(weights: Mapping[str, Array], kept: Mapping[str, Any], slope: Array) -> Weights:
    """The gradient of every weight, from the slope of the loss at every score."""
    found: Weights = {}

    def through(name: str, given: Array, out: Array) -> Array:
        """Add to the gradient of a layer; gives the slope at what was given to it."""
        found[name] = found.get(name, 0) + given.T @ out
        found[f"{name} bias"] = found.get(f"{name} bias", 0) + out.sum(axis=0)
        return np.asarray(out @ weights[name].T)

    hidden = through("score", kept["hidden"], slope[:, None]) * (kept["hidden"] > 0)
    joined = through("join", kept["joined"], hidden)
    size = kept["first"].shape[1]
    main, total = joined[:, -2 * size : -size], joined[:, -size:]
    state = np.concatenate([main + total, *[total] * (BLOCKS - 1)])
    for level in reversed(kept["levels"]):
        gate = state * (level.change - level.before) * level.gate * (1 - level.gate)
        change = state * level.gate * (1 - level.change**2)
        given = through("gate", level.given, gate) + through("change", level.given, change)
        state = state * (1 - level.gate) + given[:, -size:]
    through("block", kept["own"], state * (1 - kept["first"] ** 2))
    return found


def rank_slope(said: Array, scores: Array) -> Array:
    """The slope, at each of the scores said, of the logistic loss over all pairs of programs of one task."""
    better = scores[:, None] - scores[None, :]
    weight = np.maximum(better, 0)
    pull = weight * _sigmoid(-(said[:, None] - said[None, :]))
    return np.asarray((pull.sum(axis=0) - pull.sum(axis=1)) / max(float(weight.sum()), 1e-9), said.dtype)


def _sigmoid(value: Array) -> Array:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * value)))


class _Adam:
    """Steps along gradients, each weight's by its own recent size; weights of layers shrink a little at each step."""

    def __init__(self, weights: Weights, decay: float) -> None:
        self._weights = weights
        self._decay = decay
        self._mean = {name: np.zeros_like(value) for name, value in weights.items()}
        self._square = {name: np.zeros_like(value) for name, value in weights.items()}
        self._count = 0

    def step(self, gradients: Mapping[str, Array], rate: float) -> None:
        """Change the weights in place."""
        self._count += 1
        first, second = 1 - 0.9**self._count, 1 - 0.999**self._count
        for name, gradient in gradients.items():
            mean, square = self._mean[name], self._square[name]
            mean += 0.1 * (gradient - mean)
            square += 0.001 * (gradient**2 - square)
            self._weights[name] -= rate * (mean / first) / (np.sqrt(square / second) + 1e-8)
            if not name.endswith("bias"):
                self._weights[name] *= 1 - rate * self._decay
