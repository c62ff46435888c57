"""What can be quantised in a model: layers (contractions) and the activations that come to them.

A *layer* is a convolution, a transposed convolution or a matrix product. A *source* is an activation that is written
to memory for a layer to read: it is quantised once, for all its readers. What only moves values (pooling by maximum,
reshapes, transposes, concatenation, slices, resizing to the nearest) is done on the integers, so its inputs and result
share parameters: they are one *group* of sources. What is averaged before a layer reads it is a source of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.graph.ir.expr import Call, Constant, Function, GraphExpr, If, Let, Match, Tuple, Var
from tilewright.graph.ir.op import Operator
from tilewright.graph.ir.traverse import children, users
from tilewright.graph.ops.contract import MatmulAttributes
from tilewright.graph.ops.convolution import Conv2dAttributes, Conv2dTransposeAttributes
from tilewright.ir.dtype import FLOAT32
from tilewright.ir.types import TensorType
from tilewright.support.order import children_first

CONTRACTIONS = ("nn.conv2d", "nn.conv2d_transpose", "matmul")
MOVES = ("nn.max_pool2d", "reshape", "transpose", "concatenate", "slice", "broadcast_to", "tile", "take")
"""Operators whose results are values of their first input (all inputs of `concatenate`), wherever they lie."""

AVERAGES = ("nn.avg_pool2d", "mean")
"""Operators whose results are sums of their input's integers, times a number."""
_RECURRENT = ("nn.lstm", "nn.lstm_step", "nn.gru", "nn.rnn")


@dataclass(frozen=True, slots=True)
class Layer:
    """A contraction; `weight` is None where both operands are activations."""

    name: str
    call: Call

    @property
    def weight(self) -> Constant | None:
        """The constant operand."""
        return self.call.args[1] if isinstance(self.call.args[1], Constant) else None

    @property
    def activations(self) -> tuple[GraphExpr, ...]:
        """The operands that are computed when the model runs."""
        return tuple(item for item in self.call.args[:2] if not isinstance(item, Constant))

    @property
    def is_plain_product(self) -> bool:
        """Whether it is the product of an activation with one constant matrix."""
        attributes, weight = self.call.attributes, self.weight
        if not isinstance(attributes, MatmulAttributes) or weight is None:
            return False
        return weight.data.ndim == 2 and not attributes.transpose_a

    @property
    def output_axis(self) -> int:
        """The axis of the weight along which its outputs lie."""
        attributes = self.call.attributes
        if isinstance(attributes, (Conv2dAttributes, Conv2dTransposeAttributes)):
            return attributes.kernel_layout.index("O")
        assert isinstance(attributes, MatmulAttributes)
        return -2 if attributes.transpose_b else -1

    @property
    def scale_axes(self) -> tuple[int, ...]:
        """The axes of the weight that share a scale when each output has one."""
        assert self.weight is not None
        rank = self.weight.data.ndim
        return tuple(axis for axis in range(rank) if axis != self.output_axis % rank)


def is_operator(item: GraphExpr, *names: str) -> bool:
    """Whether an expression is a call of one of some operators."""
    return isinstance(item, Call) and isinstance(item.callee, Operator) and item.callee.name in names


def visible(function: Function) -> list[GraphExpr]:
    """The expressions of a function that every run computes, children first: not those of branches and closures."""

    def below(item: GraphExpr) -> tuple[GraphExpr, ...]:
        if isinstance(item, Function):
            return ()
        if isinstance(item, If):
            return (item.condition,)
        if isinstance(item, Match):
            return tuple(children(item))[:1]
        return tuple(children(item))

    return children_first([function.body], below)


def _is_float_tensor(item: GraphExpr) -> bool:
    return isinstance(item.type, TensorType) and item.type.dtype is FLOAT32


def find_layers(order: list[GraphExpr]) -> list[Layer]:
    """The layers of a model in the order in which they are computed, each with a name of its own."""
    layers: list[Layer] = []
    taken: set[str] = set()
    for item in order:
        if not is_operator(item, *CONTRACTIONS) or not _is_float_tensor(item):
            continue
        assert isinstance(item, Call)
        if isinstance(item.args[0], Constant):
            continue
        stem = str(item.span) if item.span is not None else f"layer_{len(layers)}"
        name = stem
        while name in taken:
            name = f"{stem}_{len(layers)}"
        taken.add(name)
        layers.append(Layer(name, item))
    return layers


def recurrent_inputs(order: list[GraphExpr]) -> set[int]:
    """Contractions, by identity, whose results a recurrent layer takes in step by step."""
    result = set()
    for item in order:
        if not is_operator(item, *_RECURRENT):
            continue
        while isinstance(item, Call) and is_operator(item, *_RECURRENT, "reshape", "transpose", "add"):
            item = item.args[0]
        if is_operator(item, *CONTRACTIONS):
            result.add(id(item))
    return result


class Sources:
    """Activations to quantise, in groups that share parameters."""

    def __init__(self, order: list[GraphExpr], layers: list[Layer], *, integers: bool = False) -> None:
        """`integers`: whether what is averaged is a source even where it is a sum with a residual, so that processors
        without floats compute it."""
        self.values: dict[int, GraphExpr] = {}
        """Sources by identity."""
        self._parents: dict[int, int] = {}
        self._readers = users(order)
        self._integers = integers
        self._layers = {id(layer.call) for layer in layers}
        for layer in layers:
            for value in layer.activations:
                self._add(value)
        for item in order:
            if is_operator(item, "add"):
                assert isinstance(item, Call)
                self._add_residual(item)
            elif is_operator(item, *AVERAGES) and id(item) in self._parents:
                assert isinstance(item, Call)
                self._add_pooled(item.args[0])

    def group(self, source: GraphExpr) -> int:
        """The group of a source or of a value made of sources by moving, by the identity of one member."""
        place = id(source)
        while self._parents.get(place, place) != place:
            place = self._parents[place]
        return place

    def _join(self, a: GraphExpr, b: GraphExpr) -> None:
        self._parents[self.group(a)] = self.group(b)

    def _add(self, value: GraphExpr) -> None:
        """Make sources of what a value is moved from, all in one group."""
        stack, links = [value], []
        while stack:
            item = stack.pop()
            if id(item) in self._parents:
                continue
            self._parents[id(item)] = id(item)
            moved = self._moved_from(item)
            if not moved:
                self.values[id(item)] = item
            stack += moved
            links += [(part, item) for part in moved]
        for part, item in links:
            self._join(part, item)

    def _moved_from(self, item: GraphExpr) -> tuple[GraphExpr, ...]:
        if not is_operator(item, *MOVES):
            return ()
        assert isinstance(item, Call)
        parts = item.args if is_operator(item, "concatenate") else item.args[:1]
        return parts if all(not isinstance(part, Constant) and _is_float_tensor(part) for part in parts) else ()

    def _add_residual(self, item: Call) -> None:
        """Of two layers' results that are added, one passes through memory: the one that is computed first."""
        chains = [self._ends_layer(part) for part in item.args]
        if all(chains) and item.args[0].type is item.args[1].type:
            self._add(item.args[0])

    def _add_pooled(self, item: GraphExpr) -> None:
        """A layer's result that is averaged passes through memory: the average, which a layer reads, is of integers."""
        if _is_float_tensor(item) and (self._ends_layer(item) or (self._integers and self._ends_sum(item))):
            self._add(item)

    def _ends_sum(self, item: GraphExpr) -> bool:
        """Whether a value is a layer's result with a residual, through activations that nothing else reads."""
        while isinstance(item, Call) and is_operator(item, "nn.relu", "clip"):
            item = item.args[0]
        return isinstance(item, Call) and is_operator(item, "add") and any(map(self._ends_layer, item.args))

    def _ends_layer(self, item: GraphExpr) -> bool:
        """Whether a value is a layer's result, through elementwise operators that nothing else reads."""
        while isinstance(item, Call) and len(self._readers[id(item)]) == 1:
            if id(item) in self._layers:
                return True
            if not isinstance(item.callee, Operator) or not item.callee.elementwise:
                return False
            parts = [part for part in item.args if not isinstance(part, (Constant, Var))]
            if len(parts) != 1:
                return False
            (item,) = parts
        return False


def with_more_results(function: Function, values: list[GraphExpr]) -> Function:
    """A function that gives a tuple: its own results, then these values of its body."""
    lets: list[Let] = []
    body = function.body
    while isinstance(body, Let):
        lets.append(body)
        body = body.body
    own = body.items if isinstance(body, Tuple) else (body,)
    body = Tuple((*own, *values))
    for let in reversed(lets):
        body = Let(let.var, let.value, body)
    return Function(function.name, function.params, body, None, function.type_parameters, function.notes)
