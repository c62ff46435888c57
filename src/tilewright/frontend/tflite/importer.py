"""Import of TFLite models: walks the operators in order and lets the converters build the graph.

module = from_tflite("mobilenet.tflite")
module = from_tflite("detector.tflite", shapes={"image": (1, 320, 320, 3)}, signature="serving_default")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.frontend.core.functions import main_module, new_input
from tilewright.frontend.core.input_shapes import input_shapes
from tilewright.frontend.core.registry import located
from tilewright.frontend.stablehlo.builder import StableBuilder
from tilewright.frontend.tflite import (
    activation,
    arithmetic,
    control,
    convolution,
    creation,
    dense,
    detection,
    indexing,
    normalization,
    pooling,
    quantize,
    recurrent,
    reduce,
    resize,
    segments,
    shape,
    slicing,
    spectral,
    stablehlo,
    variables,
)
from tilewright.frontend.tflite.context import Bodies, NodeContext
from tilewright.frontend.tflite.model import Signature, TfliteGraph, TfliteModel, TfliteOperator, TfliteTensor
from tilewright.frontend.tflite.reader import read_model
from tilewright.frontend.tflite.registry import find_converter
from tilewright.graph.ir.expr import Function, GraphExpr, Var, constant
from tilewright.graph.ir.op import Array
from tilewright.ir.function import IRModule
from tilewright.support.errors import UnsupportedError, UserError
from tilewright.support.span import Span

FAMILIES = (
    activation,
    arithmetic,
    control,
    convolution,
    creation,
    dense,
    detection,
    indexing,
    normalization,
    pooling,
    quantize,
    recurrent,
    reduce,
    resize,
    segments,
    shape,
    slicing,
    spectral,
    stablehlo,
    variables,
)
"""The modules whose converters are registered, one an operator family."""
_REASONS = {
    "DELEGATE": "a delegate is made by a runtime for one machine: import the model before it was delegated",
    "PLACEHOLDER_FOR_GREATER_OP_CODES": "the file is damaged, or of a later version of the format",
}
"""Why operators are not supported, where there is a reason of principle."""
_DEEPEST = 32
"""Graphs nested deeper than this are taken for a graph that calls itself."""


def from_tflite(
    model: object, shapes: Mapping[str, Sequence[int | str | None]] | None = None, signature: str | None = None
) -> IRModule:
    """Import a TFLite model: a path, or the bytes of a file.

    Inputs and outputs go by the names of the signature (the first one, unless `signature` names another), or by those
    of their tensors in files without. Dimensions that the model leaves open are symbols: the compiled model takes any
    size there. `shapes` fixes some or all of them, or names them, as for `from_onnx`. The result has a function "main";
    its attributes hold `model_name`, `output_names` and, if there are several, the names of all `signatures`.
    """
    return _Importer(read_model(model)).module(shapes or {}, signature)


@dataclass(frozen=True, slots=True)
class _Input:
    """An input under the name that the importer gives it."""

    name: str
    tensor: TfliteTensor
    place: int

    @property
    def dims(self) -> tuple[int | str | None, ...] | None:
        return self.tensor.dims


class _Importer:
    """The import of one model."""

    def __init__(self, model: TfliteModel) -> None:
        self.model = model
        self.builder = StableBuilder()
        self.functions: list[Function] = []
        self.variables: dict[str, GraphExpr] = {}
        self.tables: dict[str, tuple[Array, Array]] = {}
        self.depth = 0

    def module(self, shapes: Mapping[str, Sequence[int | str | None]], key: str | None) -> IRModule:
        chosen = self._signature(key)
        graph = self.model.graphs[0 if chosen is None else chosen.graph]
        inputs, names = self._entry(graph, chosen)
        known = input_shapes(self.model.source, inputs, shapes)
        params: list[Var] = []
        given: dict[int, GraphExpr] = {}
        for item, sizes in zip(inputs, known, strict=True):
            if item.tensor.dtype is None or sizes is None:
                raise UnsupportedError(f"the input '{item.name}' is a {item.tensor.kind}", where=self.model.source)
            params.append(new_input(self.builder, item.name, sizes, item.tensor.dtype))
            given[item.place] = params[-1]
        values = [given[place] for place in graph.inputs]
        results = self._graph(graph, values)
        if not results:
            raise UserError("the model has no outputs", where=self.model.source)
        by_place = dict(zip(graph.outputs, results, strict=True))
        places = graph.outputs if chosen is None else [chosen.outputs[name] for name in names]
        values, signatures = [by_place[place] for place in places], tuple(item.key for item in self.model.signatures)
        further = {"signatures": signatures} if len(signatures) > 1 else {}
        return main_module(self.builder, params, values, names, graph.name, self.functions, **further)

    def _signature(self, key: str | None) -> Signature | None:
        """The signature that is asked for; the first of the first graph by default."""
        if key is None:
            return next((item for item in self.model.signatures if item.graph == 0), None)
        for item in self.model.signatures:
            if item.key == key:
                return item
        known = ", ".join(repr(item.key) for item in self.model.signatures) or "none"
        raise UserError(f"the model has no signature '{key}'", where=self.model.source, hint=f"it has {known}")

    def _entry(self, graph: TfliteGraph, chosen: Signature | None) -> tuple[list[_Input], list[str]]:
        """The inputs under their names, in the order of the graph, and the names of the outputs."""
        if chosen is not None:
            fits = set(chosen.inputs.values()) == set(graph.inputs) and set(chosen.outputs.values()) <= set(
                graph.outputs
            )
            if not fits:
                raise UserError(
                    f"the signature '{chosen.key}' does not fit its graph '{graph.name}'", where=self.model.source
                )
            by_place = {place: name for name, place in chosen.inputs.items()}
            order = sorted(chosen.outputs, key=lambda name: graph.outputs.index(chosen.outputs[name]))
            inputs = [_Input(by_place[place], graph.tensors[place], place) for place in graph.inputs]
            return inputs, order
        inputs = [_Input(graph.tensors[place].name, graph.tensors[place], place) for place in graph.inputs]
        counts: dict[str, int] = {}
        for at, item in enumerate(inputs):
            counts[item.name] = counts.get(item.name, 0) + 1
            if counts[item.name] > 1:
                inputs[at] = _Input(f"{item.name}_{counts[item.name]}", item.tensor, item.place)
        return inputs, [graph.tensors[place].name for place in graph.outputs]

    def _graph(self, graph: TfliteGraph, inputs: Sequence[GraphExpr]) -> list[GraphExpr]:
        """Import the operators of a graph with values for its inputs; gives the values of its outputs."""
        if len(inputs) != len(graph.inputs):
            raise UserError(f"the graph '{graph.name}' takes {len(graph.inputs)} inputs, {len(inputs)} are given")
        values: dict[int, GraphExpr] = dict(zip(graph.inputs, inputs, strict=True))
        for operator in graph.operators:
            self._operator(operator, graph, values)
        results: list[GraphExpr] = []
        for place in graph.outputs:
            value = self._value(graph, place, values)
            if graph.tensors[place].kind.startswith("complex"):
                raise UnsupportedError("a result of complex numbers", where=self.model.source)
            if value is None:
                raise UserError(f"nothing produces the output '{graph.tensors[place].name}'", where=self.model.source)
            results.append(value)
        return results

    def _value(self, graph: TfliteGraph, place: int, values: dict[int, GraphExpr]) -> GraphExpr | None:
        """The value of a tensor: one that was computed, or a constant."""
        if place in values:
            return values[place]
        tensor = graph.tensors[place]
        if tensor.data is None and tensor.is_variable and tensor.dtype is not None:
            if tensor.dims is None or None in tensor.dims:
                raise UserError(f"the variable '{tensor.name}' has open dimensions")
            # Variables of a run begin with zeros, or with what stands for zero.
            shape = tuple(size for size in tensor.dims if size is not None)
            zero = tensor.quantization.zero if tensor.quantization is not None and tensor.kind != "float32" else 0
            values[place] = self.builder.filled(zero, shape, tensor.dtype)
            return values[place]
        if tensor.data is None or tensor.dtype is None:
            return None
        made = constant(tensor.data, tensor.dtype)
        made.span = Span(tensor.name)
        values[place] = made
        return made

    def _operator(self, operator: TfliteOperator, graph: TfliteGraph, values: dict[int, GraphExpr]) -> None:
        outputs = [graph.tensors[place].name for place in operator.outputs if place >= 0]
        name = outputs[0] if outputs else operator.name
        kind = f"{'custom operator ' if operator.is_custom else ''}{operator.name}, version {operator.version}"
        with located(self.builder, self.model.source, name, operator.name, kind):
            inputs: list[GraphExpr | None] = []
            for place in operator.inputs:
                value = None if place < 0 else self._value(graph, place, values)
                if place >= 0 and value is None and graph.tensors[place].dtype is not None:
                    raise UserError(f"nothing produces its input '{graph.tensors[place].name}'")
                inputs.append(value)
            kinds = [graph.tensors[place].kind for place in operator.inputs if place >= 0]
            if operator.name not in spectral.OF_PAIRS and any(kind.startswith("complex") for kind in kinds):
                raise UnsupportedError(f"{operator.name} of complex numbers")
            bodies = Bodies(self._run, self.model.graphs, self.functions, self.variables, self.tables)
            context = NodeContext(operator, name, graph, inputs, self.builder, bodies)
            produced = self._convert(context)
            for place, value in zip(operator.outputs, produced, strict=False):
                if place >= 0 and value is not None:
                    values[place] = value
            if len(produced) < len(operator.outputs):
                raise UnsupportedError(f"{operator.name} with {len(operator.outputs)} outputs")

    def _convert(self, context: NodeContext) -> Sequence[GraphExpr | None]:
        node = context.node
        convert = find_converter(node.name, node.is_custom)
        if convert is None:
            if node.is_custom:
                raise UnsupportedError(
                    f"the custom operator {node.name} is not known",
                    hint="register a converter: @tilewright.frontend.tflite.converter(name, custom=True)",
                )
            reason = _REASONS.get(node.name)
            raise UnsupportedError(
                f"the operator {node.name} is not supported" + ("" if reason is None else f": {reason}"),
                hint="register a converter of your own: @tilewright.frontend.tflite.converter",
            )
        try:
            result = convert(context)
        except (IndexError, ValueError, OverflowError) as error:
            # Files may say anything: ranks and lengths that no operator of that kind has are met in the arithmetic.
            raise UserError(f"the inputs and options of {node.name} do not fit together: {error}") from error
        if isinstance(result, GraphExpr):
            return (result,)
        if isinstance(result, (list, tuple)) and all(item is None or isinstance(item, GraphExpr) for item in result):
            return result
        raise UserError(
            f"the converter of {node.name} gave {type(result).__name__}, not graph values",
            hint="give one value, or a list with one for each output: return node.call(...)",
        )

    def _run(self, number: int, values: Sequence[GraphExpr]) -> list[GraphExpr]:
        """The outputs of another graph of the model."""
        if not 0 <= number < len(self.model.graphs):
            raise UserError(f"the model has no graph {number}")
        self.depth += 1
        if self.depth > _DEEPEST:
            raise UserError("graphs are nested too deeply: does one call itself?")
        span = self.builder.span
        try:
            return self._graph(self.model.graphs[number], values)
        finally:
            self.depth -= 1
            self.builder.span = span
