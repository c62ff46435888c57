"""Optimizers as graph functions: a parameter, its gradient and what is remembered of earlier ones -> the same after.

They compute what torch.optim's of the same names do. What depends on the number of the step alone (the learning rate,
corrections of moments) is computed by the host in double precision, and comes in as scalars.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.frontend.core.arithmetic import ArithmeticBuilder
from tilewright.frontend.core.builder import rank_of, sizes_of
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UserError
from tilewright.train.schedules import Schedule, rate_at

Values = Mapping[str, GraphExpr]


@dataclass(frozen=True)
class Optimizer(ABC):
    """How parameters follow their gradients. `rate` is a number, or a schedule: a function of the step's number."""

    rate: float | Schedule = 1e-3

    @property
    def moments(self) -> tuple[str, ...]:
        """Names of what is remembered of each parameter, in tensors of its shape that start as zeros."""
        return ()

    def scalars(self, step: int) -> dict[str, float]:
        """What the update of a step, counted from 0, takes beside tensors."""
        return {"rate": rate_at(self.rate, step)}

    @abstractmethod
    def update(
        self, b: ArithmeticBuilder, parameter: GraphExpr, gradient: GraphExpr, moments: Values, scalars: Values
    ) -> tuple[GraphExpr, dict[str, GraphExpr]]:
        """The parameter and what is remembered of it, after a step."""

    def __post_init__(self) -> None:
        rate_at(self.rate, 0)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UserError(message)


def _is_share(value: float) -> bool:
    return 0.0 <= value < 1.0


@dataclass(frozen=True)
class SGD(Optimizer):
    """Steps against the gradient, or against a decaying sum of gradients (`momentum`), which `nesterov` looks ahead of.

    `weight_decay` times the parameter is added to its gradient.
    """

    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(_is_share(self.momentum), f"the momentum is at least 0 and below 1, not {self.momentum}")
        _require(self.weight_decay >= 0, f"the weight decay is at least 0, not {self.weight_decay}")
        _require(not self.nesterov or self.momentum > 0, "nesterov=True needs a momentum")

    @property
    def moments(self) -> tuple[str, ...]:
        """The sum of gradients, with a momentum."""
        return ("velocity",) if self.momentum else ()

    def update(
        self, b: ArithmeticBuilder, parameter: GraphExpr, gradient: GraphExpr, moments: Values, scalars: Values
    ) -> tuple[GraphExpr, dict[str, GraphExpr]]:
        """One step; the first velocity is the gradient."""
        if self.weight_decay:
            gradient = b.add(gradient, b.multiply(parameter, self.weight_decay))
        if not self.momentum:
            return b.subtract(parameter, b.multiply(gradient, scalars["rate"])), {}
        velocity = b.add(b.multiply(moments["velocity"], self.momentum), gradient)
        direction = b.add(gradient, b.multiply(velocity, self.momentum)) if self.nesterov else velocity
        return b.subtract(parameter, b.multiply(direction, scalars["rate"])), {"velocity": velocity}


@dataclass(frozen=True)
class Adam(Optimizer):
    """Steps by the mean of gradients over the root of the mean of their squares, both decaying (Kingma and Ba, 2015).

    `weight_decay` times the parameter is added to its gradient.
    """

    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        betas = tuple(self.betas)
        _require(len(betas) == 2 and all(map(_is_share, betas)), f"betas are two numbers from 0 to below 1: {betas}")
        _require(self.epsilon >= 0, f"epsilon is at least 0, not {self.epsilon}")
        _require(self.weight_decay >= 0, f"the weight decay is at least 0, not {self.weight_decay}")

    @property
    def moments(self) -> tuple[str, ...]:
        """Means of gradients and of their squares."""
        return ("mean", "square")

    def scalars(self, step: int) -> dict[str, float]:
        """The rate, and what makes up for means that started as zeros."""
        first, second = (1.0 - beta ** (step + 1) for beta in self.betas)
        return {**super().scalars(step), "mean_correction": 1 / first, "square_correction": second**-0.5}

    def _moments(
        self, b: ArithmeticBuilder, gradient: GraphExpr, moments: Values
    ) -> tuple[GraphExpr, dict[str, GraphExpr]]:
        first, second = self.betas
        mean = b.add(b.multiply(moments["mean"], first), b.multiply(gradient, 1 - first))
        squares = b.multiply(b.multiply(gradient, gradient), 1 - second)
        square = b.add(b.multiply(moments["square"], second), squares)
        return mean, {"mean": mean, "square": square}

    def _direction(
        self, b: ArithmeticBuilder, gradient: GraphExpr, moments: Values, scalars: Values
    ) -> tuple[GraphExpr, dict[str, GraphExpr]]:
        """Where a step goes, for a rate of 1."""
        mean, found = self._moments(b, gradient, moments)
        root = b.multiply(b.call("sqrt", found["square"]), scalars["square_correction"])
        return b.divide(b.multiply(mean, scalars["mean_correction"]), b.add(root, self.epsilon)), found

    def update(
        self, b: ArithmeticBuilder, parameter: GraphExpr, gradient: GraphExpr, moments: Values, scalars: Values
    ) -> tuple[GraphExpr, dict[str, GraphExpr]]:
        """One step."""
        if self.weight_decay:
            gradient = b.add(gradient, b.multiply(parameter, self.weight_decay))
        direction, found = self._direction(b, gradient, moments, scalars)
        return b.subtract(parameter, b.multiply(direction, scalars["rate"])), found


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam whose weight decay pulls at the parameter itself, not by its gradient (Loshchilov and Hutter, 2019)."""

    weight_decay: float = 1e-2

    def update(
        self, b: ArithmeticBuilder, parameter: GraphExpr, gradient: GraphExpr, moments: Values, scalars: Values
    ) -> tuple[GraphExpr, dict[str, GraphExpr]]:
        """One step."""
        direction, found = self._direction(b, gradient, moments, scalars)
        kept = parameter
        if self.weight_decay:
            kept = b.multiply(parameter, b.subtract(1.0, b.multiply(scalars["rate"], self.weight_decay)))
        return b.subtract(kept, b.multiply(direction, scalars["rate"])), found


@dataclass(frozen=True)
class LAMB(Adam):
    """AdamW's direction, as long as the parameter is: for large batches (You and others, 2020)."""

    epsilon: float = 1e-6
    weight_decay: float = 1e-2

    def update(
        self, b: ArithmeticBuilder, parameter: GraphExpr, gradient: GraphExpr, moments: Values, scalars: Values
    ) -> tuple[GraphExpr, dict[str, GraphExpr]]:
        """One step; where either length is zero, the direction is taken as it is."""
        direction, found = self._direction(b, gradient, moments, scalars)
        if self.weight_decay:
            direction = b.add(direction, b.multiply(parameter, self.weight_decay))
        lengths = [b.call("sqrt", sum_of_squares(b, value)) for value in (parameter, direction)]
        both = b.call("logical_and", *(b.compare("greater", length, 0.0) for length in lengths))
        trust = b.where(both, b.divide(lengths[0], b.where(both, lengths[1], 1.0)), 1.0)
        change = b.multiply(direction, b.multiply(trust, scalars["rate"]))
        return b.subtract(parameter, change), found


def sum_of_squares(b: ArithmeticBuilder, value: GraphExpr) -> GraphExpr:
    """The sum of the squares of all elements, taken as one row: it is divided into parts as suits a machine."""
    if not rank_of(value):
        return b.multiply(value, value)
    row = b.reshape(value, [dimensions.product(sizes_of(value))])
    return b.reduce("sum", b.multiply(row, row), [0])


OPTIMIZERS: Mapping[str, type[Optimizer]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW, "lamb": LAMB}
"""Optimizers by the names that the command line has for them."""
