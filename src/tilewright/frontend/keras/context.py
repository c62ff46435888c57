"""What a converter of a layer sees: the layer's options and weights, the tensors and arguments of one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.frontend.core.builder import dtype_of, is_plain, rank_of, sizes_of
from tilewright.frontend.core.node_inputs import NodeInputs
from tilewright.frontend.keras.layer import Layer
from tilewright.frontend.keras.values import KerasBuilder, Value, tensors
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import Function, GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.graph.ops.common import sizes_text
from tilewright.ir.dtype import DataType
from tilewright.support.errors import UserError


@dataclass
class Session:
    """What the import of one model has at hand."""

    builder: KerasBuilder
    source: str
    apply: Callable[[Layer, Sequence[Any], Mapping[str, Any]], Any]
    """Calls a layer: gives its outputs as values with masks."""
    own: Mapping[str, Any] = field(default_factory=dict)
    """Converters of layers that the caller gave, by the names of classes."""
    assets: Mapping[str, bytes] = field(default_factory=dict)
    version: int = 3
    """The first number of the version of Keras that wrote the file."""
    functions: list[Function] = field(default_factory=list)
    """Functions beside `main`: loops."""
    constants: dict[tuple[str, DataType], GraphExpr] = field(default_factory=dict)
    """Weights that were read: one constant, however often its layer is called."""


_FIRST = "inputs"


class LayerCall(NodeInputs):
    """One call of a layer."""

    builder: KerasBuilder

    def __init__(self, layer: Layer, session: Session, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.layer = layer
        self.session = session
        self.kwargs = dict(kwargs)
        # The first argument may be given by its name, which is the same in nearly all layers.
        self.args = list(args) or [self.kwargs.pop(_FIRST)] if _FIRST in self.kwargs else list(args)
        self.values = tensors(self.args[0]) if self.args else []
        super().__init__(layer.kind, layer.name, [value.expr for value in self.values], session.builder)

    # Arguments

    def argument(self, name: str, place: int, default: Any = None) -> Any:
        """An argument of the call, by its place or its name."""
        if name in self.kwargs:
            return self.kwargs[name]
        return self.args[place] if place < len(self.args) else default

    def tensor(self, name: str, place: int) -> GraphExpr | None:
        """An argument that is a tensor, if it is given."""
        value = self.argument(name, place)
        if value is None or isinstance(value, Value):
            return None if value is None else value.expr
        return self.as_tensor(value)

    def as_tensor(self, value: Any) -> GraphExpr:
        """A tensor; a number or a list of numbers becomes a constant."""
        if isinstance(value, Value):
            return value.expr
        if isinstance(value, GraphExpr):
            return value
        array = np.asarray(value)
        if array.dtype.kind not in "biuf":
            raise UserError(f"a tensor is needed here, not {str(value)[:60]}")
        if array.dtype.kind == "f":
            array = array.astype(np.float32)
        elif array.dtype.kind in "iu":
            array = array.astype(np.int32) if abs(int(array.max(initial=0))) < 1 << 31 else array.astype(np.int64)
        return self.builder.constant(array)

    @property
    def mask(self) -> GraphExpr | None:
        """The mask of the call: the argument, or that of the first tensor."""
        given = self.kwargs.get("mask")
        if isinstance(given, Value):
            return given.expr
        if given is not None and not isinstance(given, (list, tuple)):
            return self.as_tensor(given)
        return self.values[0].mask if self.values else None

    # Weights

    @property
    def dtype(self) -> DataType:
        """The type that the layer computes in."""
        return self.layer.dtype

    def array(self, path: str, shape: Sequence[Size] | None = None) -> Array:
        """The numbers of a variable, which must be there, of a shape."""
        array = self.layer.weights.array(path)
        if array is None:
            raise UserError(
                f"the file has no weights '{self.layer.weights.prefix}{path}'",
                hint="save the whole model again, after it was built",
            )
        sizes = None if shape is None else tuple(shape)
        if sizes is not None and array.shape != sizes:
            raise UserError(f"the weights {path} have shape {array.shape}, not {sizes_text(sizes)}")
        return array

    def weight(self, path: str, shape: Sequence[Size] | None = None, dtype: DataType | None = None) -> GraphExpr:
        """A variable as a constant, of the type that the layer computes in."""
        wanted = self.dtype if dtype is None else dtype
        key = (self.layer.weights.prefix + path, wanted)
        if key not in self.session.constants:
            self.session.constants[key] = self.constant_of(self.array(path, shape), wanted)
        found = self.session.constants[key]
        if shape is not None and sizes_of(found) != tuple(shape):
            raise UserError(f"the weights {path} have shape {sizes_of(found)}, not {sizes_text(tuple(shape))}")
        return found

    def constant_of(self, array: Array, dtype: DataType) -> GraphExpr:
        """Numbers as a constant of a type."""
        if is_plain(dtype):
            return self.builder.constant(np.asarray(array, dtype.numpy(), order="C"), dtype)
        return self.builder.cast(self.builder.constant(array.astype(np.float32)), dtype)

    # Shapes

    def data(self, *ranks: int) -> GraphExpr:
        """The first tensor, which must have one of some numbers of dimensions."""
        value = self.input(0)
        if ranks and rank_of(value) not in ranks:
            wanted = " or ".join(map(str, ranks))
            raise UserError(f"{self.layer.kind} needs data of {wanted} dimensions, it is {sizes_text(sizes_of(value))}")
        return value

    def axis(self, value: Any, rank: int) -> int:
        """An axis that may count from the end."""
        if isinstance(value, bool) or not isinstance(value, int) or not -rank <= value < rank:
            raise UserError(f"axis {value!r} is out of range for {rank} dimensions")
        return value % rank

    def floats(self) -> GraphExpr:
        """The first tensor in the type that the layer computes in."""
        value = self.input(0)
        return value if dtype_of(value) is self.dtype else self.builder.cast(value, self.dtype)

    def apply(self, layer: Layer, *args: Any, **kwargs: Any) -> Any:
        """Call a layer inside this one; tensors may have masks or none."""
        given = [Value(item) if isinstance(item, GraphExpr) else item for item in args]
        return self.session.apply(layer, given, kwargs)

    def one(self, layer: Layer, *args: Any, **kwargs: Any) -> GraphExpr:
        """What a layer inside this one gives, which must be one tensor."""
        result = self.apply(layer, *args, **kwargs)
        if not isinstance(result, Value):
            raise UserError(f"{layer.where} must give one tensor")
        return result.expr
