"""Losses as graph functions: what a model says and what was to be said -> one number, the mean over the batch.

They compute what torch.nn's of the same names do, with sums in float32.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.frontend.core.arithmetic import ArithmeticBuilder
from tilewright.frontend.core.builder import dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.core.checks import checked_index
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import FLOAT32, INT32, INT64
from tilewright.ir.types import TensorType, tensor_type
from tilewright.support.errors import UserError
from tilewright.support.text import kind_of


class Loss(ABC):
    """What is to become small."""

    def target(self, prediction: GraphExpr) -> TensorType:
        """The type of what was to be said: like the prediction, unless a loss says otherwise."""
        return tensor_type(sizes_of(prediction), FLOAT32)

    @abstractmethod
    def loss(self, b: ArithmeticBuilder, prediction: GraphExpr, target: GraphExpr) -> GraphExpr:
        """The loss, a float32 scalar."""

    def aimed(self, b: ArithmeticBuilder, prediction: GraphExpr, target: GraphExpr, loss: GraphExpr) -> GraphExpr:
        """What is differentiated: a scalar with the gradient of the loss; its value is not asked for."""
        return loss

    def metrics(self, b: ArithmeticBuilder, prediction: GraphExpr, target: GraphExpr) -> dict[str, GraphExpr]:
        """Further numbers worth watching, float32 scalars by name."""
        return {}


def _mean(b: ArithmeticBuilder, value: GraphExpr) -> GraphExpr:
    return b.reduce("mean", value, range(rank_of(value))) if rank_of(value) else value


def _sum(b: ArithmeticBuilder, value: GraphExpr) -> GraphExpr:
    return b.reduce("sum", value, range(rank_of(value))) if rank_of(value) else value


def _wide(b: ArithmeticBuilder, value: GraphExpr) -> GraphExpr:
    return b.cast(value, FLOAT32)


def _require_classes(prediction: GraphExpr, name: str) -> None:
    if rank_of(prediction) < 2:
        raise UserError(f"{name} needs predictions (batch, classes, ...), they have {rank_of(prediction)} dimensions")
    if not dtype_of(prediction).is_float:
        raise UserError(f"{name} needs predictions that are floats, not {dtype_of(prediction)}")


@dataclass(frozen=True)
class NLL(Loss):
    """Minus the logarithm of the probability of the right class; predictions are logarithms (batch, classes, ...).

    Targets are numbers of classes, int64; those that are `ignore_index` do not count.
    """

    ignore_index: int = -100

    def target(self, prediction: GraphExpr) -> TensorType:
        """Numbers of classes."""
        _require_classes(prediction, type(self).__name__)
        batch, _, *rest = sizes_of(prediction)
        return tensor_type((batch, *rest), INT64)

    def loss(self, b: ArithmeticBuilder, prediction: GraphExpr, target: GraphExpr) -> GraphExpr:
        """The mean over all that count."""
        logs = _wide(b, prediction)
        counted, safe = self._classes(b, prediction, target)
        chosen = _chosen(b, logs, safe)
        return self._mean(b, b.call("negative", chosen), counted)

    def _classes(self, b: ArithmeticBuilder, prediction: GraphExpr, target: GraphExpr) -> tuple[GraphExpr, GraphExpr]:
        """Which targets count, and the classes of all, checked: 0 for those that do not."""
        counted = b.compare("not_equal", target, self.ignore_index)
        classes = b.where(counted, target, 0)
        return counted, checked_index(b, classes, [size_at(prediction, 1)], [1], negative=False)

    def _mean(self, b: ArithmeticBuilder, values: GraphExpr, counted: GraphExpr) -> GraphExpr:
        kept = b.where(counted, values, 0.0)
        # As torch has it, the mean of none is NaN.
        return b.divide(_sum(b, kept), _sum(b, _wide(b, counted)))

    def metrics(self, b: ArithmeticBuilder, prediction: GraphExpr, target: GraphExpr) -> dict[str, GraphExpr]:
        """The share of right answers."""
        counted = b.compare("not_equal", target, self.ignore_index)
        said = b.cast(_first_of_greatest(b, _wide(b, prediction)), dtype_of(target))
        right = b.call("logical_and", counted, b.compare("equal", said, target))
        return {"accuracy": b.divide(_sum(b, _wide(b, right)), _sum(b, _wide(b, counted)))}


def _chosen(b: ArithmeticBuilder, values: GraphExpr, classes: GraphExpr) -> GraphExpr:
    """The value of the class that each place names: (batch, classes, ...) and (batch, ...) -> (batch, ...).

    By comparison with the number of each class: its gradient is as simple as itself.
    """
    return b.reduce("sum", b.where(_is_class(b, values, classes), values, 0.0), (1,))


def _numbers(b: ArithmeticBuilder, values: GraphExpr) -> GraphExpr:
    """The numbers of classes beside values (batch, classes, ...), in words as wide as the values."""
    _, count, *rest = sizes_of(values)
    return b.reshape(b.arange(count, dtype=INT32), (1, count, *(1 for _ in rest)))


def _is_class(b: ArithmeticBuilder, values: GraphExpr, classes: GraphExpr) -> GraphExpr:
    """Whether each of the values (batch, classes, ...) is that of the class which its place names."""
    batch, _, *rest = sizes_of(values)
    return b.compare("equal", b.reshape(b.cast(classes, INT32), (batch, 1, *rest)), _numbers(b, values))


def _first_of_greatest(b: ArithmeticBuilder, values: GraphExpr) -> GraphExpr:
    """The number of the class with the greatest value, the first of equal ones: (batch, classes, ...) -> (batch, ...).

    The greatest values are those that the cross entropy takes, so that looking for them costs one more pass.
    """
    largest = b.reduce("max", values, (1,), keepdims=True)
    is_less = b.compare("less", values, largest)
    return b.reduce("min", b.where(is_less, b.constant(2**31 - 1, INT32), _numbers(b, values)), (1,))


@dataclass(frozen=True)
class CrossEntropy(NLL):
    """NLL of the logarithms of a softmax over classes, of predictions that may be any numbers.

    With `label_smoothing`, that share of the probability that is to be said is spread over all classes.
    """

    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.label_smoothing <= 1.0:
            raise UserError(f"label smoothing is between 0 and 1, not {self.label_smoothing}")

    def loss(self, b: ArithmeticBuilder, prediction: GraphExpr, target: GraphExpr) -> GraphExpr:
        """The mean over all that count."""
        x = _wide(b, prediction)
        counted, safe = self._classes(b, prediction, target)
        largest, log_sum = _log_sum(b, x)
        # The difference first: the largest may be much larger than the rest of the result.
        values = b.add(b.subtract(_without_classes(b, largest), _element(b, x, safe)), _without_classes(b, log_sum))
        if self.label_smoothing:
            spread = b.add(b.subtract(largest, b.reduce("mean", x, (1,), keepdims=True)), log_sum)
            spread = _without_classes(b, spread)
            values = b.add(b.multiply(values, 1 - self.label_smoothing), b.multiply(spread, self.label_smoothing))
        return self._mean(b, values, counted)

    def aimed(self, b: ArithmeticBuilder, prediction: GraphExpr, target: GraphExpr, loss: GraphExpr) -> GraphExpr:
        """The sum of predictions times their gradient, (softmax - what was to be said) / how many count.

        One kernel computes that gradient from predictions and two numbers a place; the derivatives of the steps of the
        loss would write tensors of the size of the predictions, which for language models are the largest of all.
        """
        x = _wide(b, prediction)
        batch, _, *rest = sizes_of(x)
        counted, safe = self._classes(b, prediction, target)
        share = b.divide(_wide(b, counted), _sum(b, _wide(b, counted)))
        said = b.call("exp", b.subtract(x, b.add(*_log_sum(b, x))))
        if self.label_smoothing:
            said = b.subtract(said, self.label_smoothing / size_at(prediction, 1))
        # What is said stands here once: where both arms of a choice have it, kernels compute the exponential twice.
        slope = b.subtract(said, b.multiply(b.cast(_is_class(b, x, safe), FLOAT32), 1 - self.label_smoothing))
        slope = b.multiply(slope, b.reshape(share, (batch, 1, *rest)))
        return _sum(b, b.multiply(x, b.call("stop_gradient", slope)))


def _log_sum(b: ArithmeticBuilder, values: GraphExpr) -> tuple[GraphExpr, GraphExpr]:
    """The largest over classes, and the logarithm of the sum of the exponentials of what is left: (batch, 1, ...)."""
    largest = b.reduce("max", values, (1,), keepdims=True)
    powers = b.call("exp", b.subtract(values, largest))
    return largest, b.call("log", b.reduce("sum", powers, (1,), keepdims=True))


def _without_classes(b: ArithmeticBuilder, value: GraphExpr) -> GraphExpr:
    batch, _, *rest = sizes_of(value)
    return b.reshape(value, (batch, *rest))


def _element(b: ArithmeticBuilder, values: GraphExpr, classes: GraphExpr) -> GraphExpr:
    """What `_chosen` gives, read where it is: nothing flows back through it as quickly."""
    batch, count, *rest = sizes_of(values)
    places = dimensions.product(rest)
    rows = b.multiply(b.positions((batch, *rest), 0), b.size(dimensions.multiply(count, places)))
    index = b.add(rows, b.multiply(classes, b.size(places)))
    if rest:
        index = b.add(index, b.reshape(b.arange(places), (1, *rest)))
    total = dimensions.product((batch, count, *rest))
    return b.call("take", b.reshape(values, (total,)), index, axis=0, mode="inside")


@dataclass(frozen=True)
class MSE(Loss):
    """The mean of squared differences."""

    def loss(self, b: ArithmeticBuilder, prediction: GraphExpr, target: GraphExpr) -> GraphExpr:
        """The mean over all elements."""
        difference = b.subtract(_wide(b, prediction), target)
        return _mean(b, b.multiply(difference, difference))


@dataclass(frozen=True)
class L1(Loss):
    """The mean of absolute differences."""

    def loss(self, b: ArithmeticBuilder, prediction: GraphExpr, target: GraphExpr) -> GraphExpr:
        """The mean over all elements."""
        return _mean(b, b.call("abs", b.subtract(_wide(b, prediction), target)))


@dataclass(frozen=True)
class BCEWithLogits(Loss):
    """Binary cross entropy of sigmoids of the predictions; targets are probabilities."""

    def loss(self, b: ArithmeticBuilder, prediction: GraphExpr, target: GraphExpr) -> GraphExpr:
        """The mean over all elements: max(x, 0) - x y + log(1 + exp(-|x|)), which never overflows."""
        x = _wide(b, prediction)
        positive = b.call("nn.relu", x)
        rest = b.call("log", b.add(b.call("exp", b.call("negative", b.call("abs", x))), 1.0))
        return _mean(b, b.add(b.subtract(positive, b.multiply(x, target)), rest))

    def metrics(self, b: ArithmeticBuilder, prediction: GraphExpr, target: GraphExpr) -> dict[str, GraphExpr]:
        """The share of right answers."""
        said, right = b.compare("greater", prediction, 0.0), b.compare("greater", target, 0.5)
        return {"accuracy": _mean(b, _wide(b, b.call("equal", b.cast(said, INT64), b.cast(right, INT64))))}


LOSSES: Mapping[str, type[Loss]] = {
    "cross_entropy": CrossEntropy,
    "nll": NLL,
    "mse": MSE,
    "l1": L1,
    "bce_with_logits": BCEWithLogits,
}
"""Losses by the names that users may say instead."""


def loss_of(loss: Loss | str) -> Loss:
    """A loss, or the one of a name."""
    if isinstance(loss, Loss):
        return loss
    if loss not in LOSSES:
        known = ", ".join(LOSSES)
        said = repr(loss) if isinstance(loss, str) else kind_of(loss)
        raise UserError(f"there is no loss {said}", hint=f"one of {known}, or an object of tilewright.train")
    return LOSSES[loss]()
