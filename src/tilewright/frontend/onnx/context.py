"""What a converter is given: one node with its inputs as graph values, its attributes, and a builder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tilewright.frontend.core.builder import Builder, dtype_of, evaluate, rank_of, shape_of
from tilewright.frontend.core.forks import among
from tilewright.frontend.core.node_inputs import NodeInputs
from tilewright.frontend.core.scopes import Captures, TensorValue
from tilewright.frontend.core.symbolic_values import symbolic_value
from tilewright.frontend.onnx.model import AttributeValue, OnnxGraph, OnnxNode, Reference, ValueInfo
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import Call, Function, GraphExpr
from tilewright.graph.ir.op import is_call_to
from tilewright.ir.types import OptionalType, SequenceType, Type, tensor_type
from tilewright.support.errors import UnsupportedError, UserError

_D = TypeVar("_D")


@dataclass(frozen=True, slots=True)
class Bodies:
    """How the subgraphs of a node are imported."""

    inline: Callable[[OnnxGraph, Sequence[GraphExpr]], list[GraphExpr]]
    """In the scope of the node, with values for its inputs."""
    closed: Callable[[OnnxGraph, Sequence[GraphExpr]], tuple[list[GraphExpr], Captures]]
    """As the body of a function: values from outside become parameters, which are listed."""
    functions: list[Function]
    """The functions of the module beside main."""


class NodeContext(NodeInputs):
    """One node being converted.

    Attributes are read by kind and default; `finish` refuses attributes that nobody read, so that a meaning is never
    dropped in silence.
    """

    def __init__(
        self,
        node: OnnxNode,
        opset: int,
        inputs: Sequence[GraphExpr | None],
        builder: Builder,
        bodies: Bodies,
    ) -> None:
        result = next((output for output in node.outputs if output), node.name)
        super().__init__(node.op_type, result, inputs, builder)
        self.node = node
        self.opset = opset
        self.bodies = bodies
        self.run_graph = bodies.inline
        self._read: set[str] = set()

    def items(self, index: int, what: str) -> list[Size | float | GraphExpr]:
        """The elements of an input that is a list: as far as they are known, else scalars that are computed."""
        value = self.input(index)
        if rank_of(value) != 1:
            raise UserError(f"{what} must be a list, it has {rank_of(value)} dimensions")
        return self._items(value)

    def _items(self, value: GraphExpr) -> list[Size | float | GraphExpr]:
        found = symbolic_value(value)
        if found is None:
            found = evaluate(value)
        if found is not None:
            return found.reshape(-1).tolist()
        if is_call_to(value, "concatenate"):
            assert isinstance(value, Call)
            return [item for part in value.args for item in self._items(part)]
        (count,) = shape_of(value)
        parts = [self.builder.slice_axis(value, 0, place, place + 1) for place in range(count)]
        return [self.builder.reshape(part, ()) for part in parts]

    def chosen_axis(self, index: int, rank: int, what: str) -> int:
        """The value of an input that is an axis; where only a run knows it, there is a side for each."""
        if evaluate(self.input(index)) is None:
            choices = {axis: (axis, axis - rank) for axis in range(rank)}
            raise among(self.builder, self.input(index), choices, what)
        return self.axis(self.constant_int(index, what), rank)

    def chosen_flag(self, index: int, what: str) -> bool:
        """The value of an input that is a truth value; where only a run knows it, there are two sides."""
        known = evaluate(self.input(index))
        if known is None:
            raise among(self.builder, self.input(index), {0: (0,), 1: (1,)}, what)
        return bool(known.any())

    def constant_ints(self, index: int, what: str) -> tuple[int, ...]:
        """The value of an input that is a list of whole numbers known while importing."""
        array = self.constant(index, what)
        if array.dtype.kind not in "iu" or array.ndim > 1:
            raise UserError(f"{what} must be a list of whole numbers, it is {array.dtype} of shape {array.shape}")
        return tuple(int(item) for item in array.ravel())

    def wants_output(self, index: int) -> bool:
        """Whether an output is used (named)."""
        return index < len(self.node.outputs) and bool(self.node.outputs[index])

    def only_output(self, count: int, missing: str) -> None:
        """Refuse nodes that use more than the first outputs."""
        for index in range(count, len(self.node.outputs)):
            if self.wants_output(index):
                raise UnsupportedError(f"{self.node.op_type} with {missing} (output number {index + 1})")

    # Attributes

    def has_attribute(self, name: str) -> bool:
        """Whether an attribute is given."""
        return name in self.node.attributes

    def ignore(self, *names: str) -> None:
        """Say that attributes have no bearing on the result."""
        self._read.update(names)

    def _attribute(self, name: str) -> AttributeValue:
        self._read.add(name)
        value = self.node.attributes.get(name)
        if isinstance(value, Reference):
            raise UserError(f"attribute '{name}' refers to '{value.name}' outside of any function")
        return value

    def _wrong(self, name: str, wanted: str) -> UserError:
        found = _kind(self.node.attributes.get(name))
        return UserError(f"attribute '{name}' of {self.node.op_type} must be {wanted}, it is {found}")

    def integer(self, name: str, default: int | None = None) -> int:
        """A whole-number attribute; required if there is no default."""
        value = self._attribute(name)
        if name not in self.node.attributes:
            return self._default(name, default)
        if not isinstance(value, int):
            raise self._wrong(name, "a whole number")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """A whole-number attribute that means yes or no."""
        return bool(self.integer(name, int(default)))

    def number(self, name: str, default: float | None = None) -> float:
        """A number attribute (stored as float32)."""
        value = self._attribute(name)
        if name not in self.node.attributes:
            return float(self._default(name, default))
        if not isinstance(value, float):
            raise self._wrong(name, "a number")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """A text attribute."""
        value = self._attribute(name)
        if name not in self.node.attributes:
            return self._default(name, default)
        if not isinstance(value, bytes):
            raise self._wrong(name, "a text")
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise UserError(f"attribute '{name}' of {self.node.op_type} is not a text: {value[:40]!r}") from error

    def ints(self, name: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """An attribute that is a list of whole numbers."""
        value = self._attribute(name)
        if name not in self.node.attributes:
            return self._default(name, default)
        if not isinstance(value, tuple) or not all(isinstance(item, int) for item in value):
            raise self._wrong(name, "a list of whole numbers")
        return tuple(item for item in value if isinstance(item, int))

    def floats(self, name: str, default: tuple[float, ...] | None = None) -> tuple[float, ...]:
        """An attribute that is a list of numbers."""
        value = self._attribute(name)
        if name not in self.node.attributes:
            return self._default(name, default)
        if not isinstance(value, tuple) or not all(isinstance(item, float) for item in value):
            raise self._wrong(name, "a list of numbers")
        return tuple(item for item in value if isinstance(item, float))

    def texts(self, name: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """An attribute that is a list of texts."""
        value = self._attribute(name)
        if name not in self.node.attributes:
            return self._default(name, default)
        if not isinstance(value, tuple) or not all(isinstance(item, bytes) for item in value):
            raise self._wrong(name, "a list of texts")
        return tuple(item.decode(errors="replace") for item in value if isinstance(item, bytes))

    def tensor(self, name: str) -> TensorValue:
        """An attribute that is a tensor."""
        value = self._attribute(name)
        if not callable(value):
            raise self._wrong(name, "a tensor")
        return value()

    def graph(self, name: str) -> OnnxGraph:
        """An attribute that is a graph."""
        value = self._attribute(name)
        if not isinstance(value, OnnxGraph):
            raise self._wrong(name, "a graph")
        return value

    def type(self, name: str) -> Type:
        """An attribute that is a type; dimensions that are not fixed may differ from value to value."""
        value = self._attribute(name)
        if not isinstance(value, ValueInfo):
            raise self._wrong(name, "a type")
        return held_type(value)

    def _default(self, name: str, default: _D | None) -> _D:
        if default is None:
            raise UserError(f"{self.node.op_type} needs the attribute '{name}', which is not there")
        return default

    def finish(self) -> None:
        """Refuse attributes that the converter did not look at."""
        unknown = [name for name in self.node.attributes if name not in self._read]
        if unknown:
            raise UnsupportedError(
                f"{self.node.op_type} of opset {self.opset} with the attribute '{unknown[0]}' is not supported"
            )

    # Axes

    def axes(self, values: Sequence[int], rank: int) -> tuple[int, ...]:
        """Several axes, each as 0 .. rank-1."""
        found = tuple(self.axis(value, rank) for value in values)
        if len(set(found)) != len(found):
            raise UserError(f"axes {tuple(values)} repeat")
        return found


def held_type(info: ValueInfo) -> Type:
    """The type of a value that may be no tensor; dimensions that are not fixed may differ from item to item."""
    if info.item is not None:
        return (SequenceType if info.kind == "sequence" else OptionalType)(held_type(info.item))
    if info.dtype is None:
        raise UnsupportedError(f"'{info.name}' holds a {info.kind}, which is not supported")
    dims = None if info.dims is None else tuple(dim if isinstance(dim, int) else None for dim in info.dims)
    return tensor_type(dims, info.dtype)


def _kind(value: AttributeValue) -> str:
    match value:
        case ValueInfo():
            return "a type"
        case int():
            return "a whole number"
        case float():
            return "a number"
        case bytes() | str():
            return "a text"
        case tuple():
            return f"a list ({_kind(value[0]).removeprefix('a ')}s)" if value else "an empty list"
        case OnnxGraph():
            return "a graph"
        case None:
            return "of an unknown kind"
    return "a tensor" if callable(value) else "a reference"


__all__ = ["Bodies", "NodeContext", "dtype_of", "rank_of", "shape_of"]
