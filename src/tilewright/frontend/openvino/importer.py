"""Import of OpenVINO IR: walks the layers in order and lets the converters build the graph.

module = from_openvino("model.xml")
module = from_openvino("model.xml", shapes={"input": (1, 3, 224, 224)})
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tilewright.frontend.core.arithmetic import ArithmeticBuilder
from tilewright.frontend.core.builder import sizes_of
from tilewright.frontend.core.functions import main_module, new_input
from tilewright.frontend.core.input_shapes import input_shapes
from tilewright.frontend.openvino import (
    control,
    convolution,
    detection,
    elementwise,
    images,
    indexing,
    normalization,
    pooling,
    quantize,
    recurrent,
    reduce,
    resize,
    shape,
    spectral,
)
from tilewright.frontend.openvino.context import Bodies, NodeContext
from tilewright.frontend.openvino.model import Layer, Net, OpenvinoModel
from tilewright.frontend.openvino.reader import read_model
from tilewright.frontend.openvino.registry import find_converter
from tilewright.frontend.openvino.types import element_type, stored_tensor
from tilewright.graph.ir.dimensions import Sizes
from tilewright.graph.ir.expr import Function, GraphExpr, Var
from tilewright.ir.dtype import DataType
from tilewright.ir.function import IRModule
from tilewright.support.errors import UnsupportedError, UserError
from tilewright.support.span import Span

FAMILIES = (
    control,
    convolution,
    detection,
    elementwise,
    images,
    indexing,
    normalization,
    pooling,
    quantize,
    recurrent,
    reduce,
    resize,
    shape,
    spectral,
)
"""The modules whose converters are registered, one an operator family."""


def from_openvino(model: object, shapes: Mapping[str, Sequence[int | str | None]] | None = None) -> IRModule:
    """Import an OpenVINO model: the path of its .xml or .bin file.

    Dimensions that the model leaves open are symbols: the compiled model takes any size there. `shapes` fixes some or
    all of them, or names them, as for `from_onnx`. Inputs and outputs go by the names of their tensors. A variable of
    the model (`ReadValue`, `Assign`) is an input of its name, and an output of that name with `.next` behind it.
    """
    return _Importer(read_model(model)).module(shapes or {})


@dataclass(frozen=True, slots=True)
class _Input:
    """A parameter under the name of its tensor."""

    name: str
    layer: Layer
    dtype: DataType
    dims: tuple[int | str | None, ...] | None


class _Importer:
    """The import of one model."""

    def __init__(self, model: OpenvinoModel) -> None:
        self.model = model
        self.builder = ArithmeticBuilder()
        self.functions: list[Function] = []
        self.params: list[Var] = []
        self.states: dict[str, GraphExpr] = {}
        self.next: dict[str, GraphExpr] = {}

    def module(self, shapes: Mapping[str, Sequence[int | str | None]]) -> IRModule:
        net = self.model.net
        inputs = [self._input(layer) for layer in net.layers if layer.kind == "Parameter"]
        inputs.sort(key=lambda item: item.layer.number)
        given: dict[int, GraphExpr] = {}
        for item, sizes in zip(inputs, input_shapes(self.model.source, inputs, shapes), strict=True):
            given[item.layer.number] = self._parameter(item.name, sizes, item.dtype)
        results = self._net(net, given)
        names: list[str] = []
        outputs: list[GraphExpr] = []
        for layer in sorted((item for item in net.layers if item.kind == "Result"), key=lambda item: item.number):
            names.append(_output_name(net, layer))
            outputs.append(results[layer.number])
        for name, value in self.next.items():
            names.append(f"{name}.next")
            outputs.append(value)
        if not outputs:
            raise UserError("the model has no results", where=self.model.source)
        return main_module(self.builder, self.params, outputs, names, net.name, self.functions)

    def _input(self, layer: Layer) -> _Input:
        with self._located(layer):
            port = layer.outputs[0] if layer.outputs else None
            names = port.names if port is not None else ()
            name = layer.name if layer.name in names or not names else names[0]
            return _Input(name, layer, element_type(layer.options.get("element_type", "f32")), _dims(layer))

    def _parameter(self, name: str, sizes: Sizes | None, dtype: DataType) -> Var:
        self.params.append(new_input(self.builder, name, sizes, dtype))
        return self.params[-1]

    def _net(self, net: Net, given: Mapping[int, GraphExpr]) -> dict[int, GraphExpr]:
        """Import the layers of a net with values of its parameters; gives the values of its results by number."""
        values: dict[tuple[int, int], GraphExpr] = {}
        results: dict[int, GraphExpr] = {}
        for layer in net.layers:
            with self._located(layer):
                if layer.kind == "Parameter":
                    if layer.number not in given:
                        raise UserError("nothing gives it a value")
                    self._give(values, layer, [given[layer.number]])
                    continue
                inputs = [None if source is None else values.get(source) for source in layer.inputs]
                if layer.kind == "Result":
                    if not inputs or inputs[0] is None:
                        raise UserError("nothing produces this result")
                    results[layer.number] = inputs[0]
                elif layer.kind == "Const":
                    self._give(values, layer, [self._constant(layer)])
                else:
                    self._give(values, layer, self._convert(layer, inputs))
        return results

    def _constant(self, layer: Layer) -> GraphExpr:
        try:
            return stored_tensor(self.builder, self.model.weights, layer.options)
        except (LookupError, ValueError, OverflowError) as error:
            raise UserError(f"the constant does not say what it is: {error!r}"[:200]) from error

    @staticmethod
    def _give(values: dict[tuple[int, int], GraphExpr], layer: Layer, produced: Sequence[GraphExpr]) -> None:
        for port, value in zip(layer.outputs, produced, strict=False):
            values[layer.number, port.number] = value

    def _convert(self, layer: Layer, inputs: Sequence[GraphExpr | None]) -> Sequence[GraphExpr]:
        convert = find_converter(layer.kind)
        if convert is None:
            raise UnsupportedError(
                f"the operator {layer.kind} is not supported",
                hint="register a converter of your own: @tilewright.frontend.openvino.converter",
            )
        bodies = Bodies(self._net, self.functions, self._read_state, self._write_state)
        try:
            result = convert(NodeContext(layer, inputs, self.builder, bodies))
        except (LookupError, ValueError, OverflowError) as error:
            # Files may say anything: ranks and lengths that no operator of that kind has are met in the arithmetic.
            raise UserError(f"the inputs and options of {layer.kind} do not fit together: {error}") from error
        if isinstance(result, GraphExpr):
            return (result,)
        if isinstance(result, (list, tuple)) and all(isinstance(item, GraphExpr) for item in result):
            return result
        raise UserError(
            f"the converter of {layer.kind} gave {type(result).__name__}, not graph values",
            hint="give one value, or a list with one for each output: return node.call(...)",
        )

    def _read_state(self, name: str, layer: Layer, initial: GraphExpr | None) -> GraphExpr:
        """The variable of a name, an input; its shape is what the layer says, or that of its first value."""
        if name not in self.states:
            sizes = _dims(layer, "variable_shape") if "variable_shape" in layer.options else None
            if sizes is None and initial is not None:
                sizes = tuple(size if isinstance(size, int) else None for size in sizes_of(initial))
            if sizes is None:
                raise UnsupportedError(f"the variable '{name}' says no shape")
            kind = layer.options.get("variable_type")
            dtype = element_type(kind) if kind else initial.tensor_type.dtype if initial is not None else None
            if dtype is None:
                raise UnsupportedError(f"the variable '{name}' says no element type")
            named = tuple(f"{name}_{at}" if size is None else size for at, size in enumerate(sizes))
            (known,) = input_shapes(self.model.source, [_Input(name, layer, dtype, named)], {})
            self.states[name] = self._parameter(name, known, dtype)
        return self.states[name]

    def _write_state(self, name: str, value: GraphExpr) -> None:
        self.next[name] = value

    @contextmanager
    def _located(self, layer: Layer) -> Iterator[None]:
        """Put the layer's name on what is built, and on errors that do not say where they are."""
        before = self.builder.span
        self.builder.span = Span(layer.name, operation=layer.kind)
        try:
            yield
        except UserError as error:
            if error.where is None:
                error.where = f"{self.model.source}, layer '{layer.name}' ({layer.kind}, {layer.opset})"
            raise
        finally:
            self.builder.span = before


def _dims(layer: Layer, option: str = "shape") -> tuple[int | str | None, ...] | None:
    """The dimensions that an option says; open ones, and bounds, are None. `...` says nothing at all."""
    text = layer.options.get(option, "").strip()
    if "..." in text.split(","):
        return None
    parts = [part.strip() for part in text.split(",") if part.strip()]
    return tuple(int(part) if part.isdigit() else None for part in parts)


def _output_name(net: Net, layer: Layer) -> str:
    """The name of the tensor that a result is."""
    if layer.output_names:
        return layer.output_names[0]
    source = layer.inputs[0]
    if source is not None:
        for other in net.layers:
            if other.number == source[0]:
                for port in other.outputs:
                    if port.number == source[1] and port.names:
                        return port.names[0]
    return layer.name
