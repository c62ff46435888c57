"""What a converter is given: one operator with its inputs as graph values, its attributes, and a builder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.frontend.core.arithmetic import ArithmeticBuilder
from tilewright.frontend.core.builder import evaluate, rank_of, size_at
from tilewright.frontend.core.node_inputs import NodeInputs
from tilewright.frontend.core.scopes import Scope
from tilewright.frontend.onnx.borrowed import OnnxOperators
from tilewright.frontend.paddle.model import Block, PaddleOperator
from tilewright.frontend.paddle.schema import TYPES
from tilewright.graph.ir.expr import Function, GraphExpr
from tilewright.ir.dtype import INT64, DataType
from tilewright.support.errors import UnsupportedError, UserError


@dataclass(frozen=True, slots=True)
class Bodies:
    """How an operator reaches the blocks of control flow."""

    run: Callable[[Block, Scope], None]
    """Imports the operators of a block into a scope."""
    scope: Scope
    """What names mean where the operator stands."""
    functions: list[Function]
    """The functions of the module beside main."""
    pending: dict[str, Callable[[], GraphExpr]]
    """Variables that only a branch gives a value, and how it computes them."""


class NodeContext(NodeInputs):
    """One operator being converted. Inputs are numbered; each is a group of values, mostly of one."""

    builder: ArithmeticBuilder

    def __init__(
        self,
        node: PaddleOperator,
        groups: Sequence[Sequence[GraphExpr]],
        builder: ArithmeticBuilder,
        bodies: Bodies,
        shapes: Sequence[tuple[int | None, ...] | None],
    ) -> None:
        super().__init__(node.kind, node.name, [group[0] if group else None for group in groups], builder)
        self.builder = builder
        self.node = node
        self.groups = groups
        self.bodies = bodies
        self.shapes = shapes
        """What the file says of the shape of each output."""
        self.onnx = OnnxOperators(builder, bodies.functions)

    def group(self, index: int) -> list[GraphExpr]:
        """All values of an input that takes several."""
        return list(self.groups[index]) if index < len(self.groups) else []

    # Whole numbers that an attribute or an input gives

    def whole_tensor(self, slots: Sequence[int], *attributes: str) -> GraphExpr | None:
        """A list of whole numbers as a tensor: by the first of some inputs that is there, or by an attribute."""
        for slot in slots:
            values = self.group(slot)
            if values:
                return self.builder.concatenate([self._list(value) for value in values], 0)
        for name in attributes:
            value = self.node.attributes.get(name)
            if value is not None:
                listed = value if isinstance(value, tuple) else (value,)
                return self.builder.constant(np.array(listed, np.int64).reshape(-1), INT64)
        return None

    def _list(self, value: GraphExpr) -> GraphExpr:
        if rank_of(value) > 1:
            raise UserError(f"{self.node.kind} needs a list of whole numbers, not a tensor of rank {rank_of(value)}")
        return self.builder.at_least_1d(self.builder.cast(value, INT64))

    def needed_tensor(self, what: str, slots: Sequence[int], *attributes: str) -> GraphExpr:
        """Whole numbers that must be given."""
        found = self.whole_tensor(slots, *attributes)
        if found is None:
            raise UserError(f"{self.node.kind} does not say {what}")
        return found

    def wholes(self, what: str, slots: Sequence[int], *attributes: str) -> tuple[int, ...] | None:
        """Whole numbers that must be known while importing; None if they are not given."""
        tensor = self.whole_tensor(slots, *attributes)
        if tensor is None:
            return None
        found = evaluate(tensor)
        if found is None:
            raise UnsupportedError(
                f"{what} of {self.node.kind} is computed from the inputs of the model",
                hint="it must be known while the model is imported: export it as a constant",
            )
        return tuple(int(item) for item in found.ravel())

    def whole(self, what: str, slots: Sequence[int], *attributes: str, default: int | None = None) -> int:
        """One whole number that must be known while importing."""
        found = self.wholes(what, slots, *attributes)
        if not found:
            if default is None:
                raise UserError(f"{self.node.kind} does not say {what}")
            return default
        return found[0]

    def known_number(self, slot: int, *attributes: str, default: float = 0.0) -> float:
        """A number by an input that must be known while importing, or by an attribute."""
        if self.has_input(slot):
            return float(self.constant(slot, "a number").ravel()[0])
        value = self.attribute(*attributes, default=default)
        try:
            return float(value)
        except (TypeError, ValueError) as error:
            raise UserError(f"the attribute '{attributes[0]}' of {self.node.kind} is no number: {value!r}") from error

    # Attributes

    def attribute(self, *names: str, default: Any = None) -> Any:
        """The first attribute of some names that is there."""
        for name in names:
            value = self.node.attributes.get(name)
            if value is not None:
                return value
        return default

    def _of(self, kinds: type | tuple[type, ...], names: Sequence[str], default: Any, what: str) -> Any:
        value = self.attribute(*names, default=default)
        if not isinstance(value, kinds):
            raise UserError(f"the attribute '{names[0]}' of {self.node.kind} must be {what}, it is {value!r}"[:200])
        return value

    def integer(self, *names: str, default: int | None = None) -> int:
        """A whole-number attribute."""
        return int(self._of((int, bool), names, default, "a whole number"))

    def number(self, *names: str, default: float | None = None) -> float:
        """A number attribute."""
        return float(self._of((int, float), names, default, "a number"))

    def flag(self, *names: str, default: bool = False) -> bool:
        """An attribute that is true or false."""
        return bool(self._of((int, bool), names, default, "true or false"))

    def text(self, *names: str, default: str | None = None) -> str:
        """A text attribute."""
        return str(self._of(str, names, default, "a text"))

    def ints(self, *names: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """An attribute that is a list of whole numbers."""
        value = self._of((tuple, int), names, default, "a list of whole numbers")
        listed = value if isinstance(value, tuple) else (value,)
        if not all(isinstance(item, int) for item in listed):
            raise UserError(f"the attribute '{names[0]}' of {self.node.kind} must be whole numbers: {listed!r}"[:200])
        return listed

    def floats(self, *names: str, default: tuple[float, ...] = ()) -> tuple[float, ...]:
        """An attribute that is a list of numbers."""
        value = self._of((tuple, float, int), names, default, "a list of numbers")
        return tuple(float(item) for item in (value if isinstance(value, tuple) else (value,)))

    def dtype(self, *names: str, default: DataType | None = None) -> DataType:
        """An attribute that is a data type: a number or a name; -1 and a missing one mean the default."""
        value = self.attribute(*names)
        if value is None or value == -1 or str(value).lower().startswith("undefined"):
            if default is None:
                raise UserError(f"{self.node.kind} does not say its data type")
            return default
        name = TYPES.get(value) if isinstance(value, int) else str(value)
        if name is None or name not in TYPES.values():
            raise UnsupportedError(f"{self.node.kind} with the data type {value!r}")
        return DataType.of(name)

    @property
    def channels_last(self) -> bool:
        """Whether the data has its channels in the last dimension."""
        return self.text("data_format", "data_layout", default="NCHW") in ("NHWC", "NDHWC", "NLC")

    # Axes

    def axis(self, value: int, rank: int) -> int:
        """An axis that may count from the end, as 0 .. rank-1."""
        return self.builder.axis(value, rank)

    def count(self, value: GraphExpr, axis: int) -> int:
        """A size that must be a number."""
        return size_at(value, axis)
