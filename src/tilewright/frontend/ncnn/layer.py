"""What a converter is given: one layer with its bottoms as graph values (without a batch), parameters and weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tilewright.frontend.core.arithmetic import ArithmeticBuilder
from tilewright.frontend.core.builder import sizes_of
from tilewright.frontend.core.converters import Converters
from tilewright.frontend.core.node_inputs import NodeInputs
from tilewright.frontend.ncnn.files import Bits, LayerSpec, Numbers
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.ir.dtype import FLOAT32
from tilewright.support.errors import UnsupportedError, UserError

_MOST = 1 << 24
UNSET = -233
"""What stands for a parameter that is not given."""


class Layer(NodeInputs):
    """One layer being converted."""

    def __init__(
        self, spec: LayerSpec, bottoms: Sequence[GraphExpr], numbers: Numbers, builder: ArithmeticBuilder
    ) -> None:
        super().__init__(spec.kind, spec.name, bottoms, builder)
        self.spec = spec
        self.kind = spec.kind
        self.b = builder
        self.numbers = numbers

    def integer(self, key: int, default: int = 0) -> int:
        """A parameter that is a whole number."""
        value = self.spec.params.get(key, default)
        if not isinstance(value, (int, float)) or not float(value).is_integer() or abs(value) > 1 << 31:
            raise UserError(f"parameter {key} is {value!r}, not a whole number")
        return int(value)

    def count(self, key: int, default: int = 0, least: int = 0) -> int:
        """A parameter that is a size."""
        value = self.integer(key, default)
        if not least <= value <= _MOST:
            raise UserError(f"parameter {key} is {value}, which makes no sense")
        return value

    def number(self, key: int, default: float = 0.0) -> float:
        """A parameter that is a number."""
        value = self.spec.params.get(key, default)
        if not isinstance(value, (int, float)):
            raise UserError(f"parameter {key} is {value!r}, not a number")
        return value.as_float() if isinstance(value, Bits) else float(value)

    def floats(self, key: int) -> list[float]:
        """A parameter that is a list of numbers."""
        value = self.spec.params.get(key, [])
        values = value if isinstance(value, list) else []
        return [item.as_float() if isinstance(item, Bits) else item for item in values]

    def ints(self, key: int) -> list[int]:
        """A parameter that is a list of whole numbers."""
        value = self.spec.params.get(key, [])
        values = value if isinstance(value, list) else []
        if any(not float(value).is_integer() for value in values):
            raise UserError(f"parameter {key} is {values}, not a list of whole numbers")
        return [int(value) for value in values]

    @property
    def tops(self) -> int:
        """How many results the layer has."""
        return len(self.spec.tops)

    # Weights

    def constant_of(self, values: Array) -> GraphExpr:
        """Weights as a constant."""
        return self.builder.constant(np.ascontiguousarray(values, np.float32), FLOAT32)

    def plain(self, *shape: int) -> GraphExpr:
        """The next weights, which have no mark before them."""
        return self.constant_of(self.numbers.floats(*shape))

    def marked(self, *shape: int) -> GraphExpr:
        """The next weights, with a mark before them."""
        values = self.numbers.marked(*shape)
        if values.dtype == np.int8:
            raise UnsupportedError(f"{self.kind} with weights of 8 bits")
        return self.constant_of(values)

    # Batches

    def batched(self, value: GraphExpr) -> GraphExpr:
        """With a batch of one in front."""
        return self.b.expand_dims(value, (0,))

    def single(self, value: GraphExpr) -> GraphExpr:
        """Without the batch of one."""
        return self.b.reshape(value, sizes_of(value)[1:])

    def through(self, compute: Callable[[GraphExpr], GraphExpr]) -> GraphExpr:
        """A computation on a batch of one."""
        return self.single(compute(self.batched(self.input(0))))

    def axis(self, value: int, rank: int) -> int:
        """An axis counted from the front."""
        if not -rank <= value < rank:
            raise UserError(f"axis {value} is out of range for {rank} dimensions")
        return value % rank

    def activated(self, value: GraphExpr) -> GraphExpr:
        """The activation that a layer applies to its result."""
        kind, options = self.integer(9), self.floats(10)
        needed = {2: 1, 3: 2, 6: 2}.get(kind, 0)
        if len(options) < needed:
            raise UserError(f"the activation number {kind} needs {needed} parameters, it has {len(options)}")
        match kind:
            case 0:
                return value
            case 1:
                return self.call("nn.relu", value)
            case 2:
                return self.call("nn.leaky_relu", value, alpha=options[0])
            case 3:
                return self.call("clip", value, minimum=options[0], maximum=options[1])
            case 4:
                return self.call("sigmoid", value)
            case 5:
                return self.b.multiply(value, self.call("tanh", self.call("nn.softplus", value)))
            case 6:
                inner = self.call("nn.hard_sigmoid", value, alpha=options[0], beta=options[1])
                return self.b.multiply(value, inner)
        raise UnsupportedError(f"the activation number {kind}")


converter: Converters[Layer] = Converters("ncnn")
"""The converters of layers, by their types."""
