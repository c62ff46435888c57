"""What a converter of a layer is given: its parameters, its inputs as graph values, weights as arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from tilewright.frontend.core.arithmetic import ArithmeticBuilder
from tilewright.frontend.core.builder import rank_of, sizes_of
from tilewright.frontend.core.registry import Registry
from tilewright.frontend.coreml.blobs import unpacked
from tilewright.frontend.coreml.operation import Plain, run_operation
from tilewright.graph.ir.dimensions import product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.support.errors import UnsupportedError, UserError

_MOST = 1 << 31


class Layer:
    """One layer being converted."""

    def __init__(
        self, kind: str, name: str, params: Any, inputs: Sequence[GraphExpr], outputs: int, builder: ArithmeticBuilder
    ) -> None:
        self.kind = kind
        self.name = name
        self.params = params
        self.inputs = list(inputs)
        self.outputs = outputs
        self.builder = builder
        self.call = builder.call

    @property
    def x(self) -> GraphExpr:
        """The first input."""
        return self.input(0)

    def input(self, index: int) -> GraphExpr:
        """A required input."""
        if index >= len(self.inputs):
            raise UserError(f"a layer of the kind {self.kind} needs an input number {index + 1}, which is not there")
        return self.inputs[index]

    def apply(self, kind: str, **arguments: Plain) -> GraphExpr:
        """The first result of an operation."""
        return self.apply_all(kind, **arguments)[0]

    def apply_all(self, kind: str, **arguments: Plain) -> list[GraphExpr]:
        """The results of an operation."""
        return run_operation(kind, self.name, arguments, self.builder)

    def constant(self, values: Array) -> GraphExpr:
        """Numbers as a tensor."""
        return self.builder.constant(np.ascontiguousarray(values, np.float32), "float32")

    def at(self, axis: int) -> int:
        """An axis that counts from the end, in the first input."""
        rank = rank_of(self.x)
        if not -rank <= axis < rank:
            raise UserError(f"a layer of the kind {self.kind} needs data of more than {rank} dimensions")
        return axis % rank

    def over_images(self, value: GraphExpr, function: Callable[[GraphExpr], GraphExpr]) -> GraphExpr:
        """A function of images (batch, channels, height, width) of a value with any dimensions before those."""
        sizes = sizes_of(value)
        if len(sizes) < 3:
            raise UserError(f"a layer of the kind {self.kind} needs images, not data of {len(sizes)} dimensions")
        leading = sizes[:-3]
        if len(leading) == 1:
            return function(value)
        result = function(self.builder.reshape(value, (product(leading), *sizes[-3:])))
        return self.builder.reshape(result, (*leading, *sizes_of(result)[1:]))

    def weights(self, params: Any, shape: Sequence[int]) -> Array:
        """Weights as numbers, whatever they are stored as; the first dimension is that of the output channels."""
        shape = tuple(int(size) for size in shape)
        count = math.prod(shape)
        if any(size < 0 for size in shape) or count > _MOST:
            raise UserError(f"weights of shape {shape} make no sense")
        if len(params.floatValue):
            values = np.array(params.floatValue, np.float32)
        elif params.float16Value:
            values = _halves(params.float16Value)
        elif params.rawValue or params.int8RawValue:
            values = _quantized(params, count, shape)
        else:
            values = np.zeros(0, np.float32)
        if values.size != count:
            raise UserError(f"{values.size} weights are there, {shape} needs {count}")
        return values.reshape(shape)


def _halves(content: bytes) -> Array:
    if len(content) % 2:
        raise UserError("weights of half precision have an odd number of bytes")
    return np.frombuffer(content, "<f2").astype(np.float32)


def _quantized(params: Any, count: int, shape: tuple[int, ...]) -> Array:
    """Integers of few bits with a scale and a bias, or a table of values."""
    quantization = params.quantization
    bits = int(quantization.numberOfBits) or 8
    if not 1 <= bits <= 8:
        raise UnsupportedError(f"weights of {bits} bits")
    if params.int8RawValue:
        codes: Array = np.frombuffer(params.int8RawValue, np.int8)[:count].astype(np.float32)
        places = None
    else:
        places = unpacked(params.rawValue, bits, count)
        codes = places.astype(np.float32)
    if quantization.HasField("lookupTableQuantization"):
        table = np.array(quantization.lookupTableQuantization.floatValue, np.float32)
        if places is None or (places.size and int(places.max()) >= table.size):
            raise UserError(f"a table of {table.size} values does not fit weights of {bits} bits")
        return table[places]
    linear = quantization.linearQuantization
    scale, bias = (np.array(item, np.float32) for item in (linear.scale, linear.bias))
    rows = shape[0] if shape else 1
    if not rows or codes.size % rows or any(item.size not in (0, 1, rows) for item in (scale, bias)):
        raise UserError(f"{scale.size} scales do not fit weights of shape {shape}")
    wide = codes.reshape(rows, -1)
    if scale.size:
        wide = wide * scale.reshape(-1, 1)
    return (wide + bias.reshape(-1, 1) if bias.size else wide).reshape(-1)


Converter = Callable[[Layer], GraphExpr | Sequence[GraphExpr]]
C = TypeVar("C", bound=Converter)
_TABLE: Registry[str, Converter] = Registry()


def layer(*kinds: str) -> Callable[[C], C]:
    """Register a converter of layers."""

    def register(convert: C) -> C:
        for kind in kinds:
            _TABLE.add(kind, convert, convert)
        return convert

    return register


def converted_layers() -> list[str]:
    """The layers that there are converters for."""
    return sorted(_TABLE.entries())


def convert_layer(context: Layer) -> list[GraphExpr]:
    """The results of a layer."""
    converter = _TABLE.get(context.kind)
    if converter is None:
        raise UnsupportedError(
            f"layers of the kind {context.kind} are not supported",
            hint="layers of an application's own code cannot be imported"
            if context.kind == "custom"
            else f"known are {', '.join(converted_layers())}",
        )
    try:
        result = converter(context)
    except (IndexError, ValueError, OverflowError, TypeError) as error:
        # Files may say anything: ranks and lengths that no layer of that kind has are met in the arithmetic.
        raise UserError(f"the parameters of {context.kind} do not fit its inputs: {error}") from error
    return [result] if isinstance(result, GraphExpr) else list(result)
