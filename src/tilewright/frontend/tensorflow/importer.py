"""Import of TensorFlow models: walks the nodes that results need and lets the converters build the graph.

module = from_tensorflow("saved_model/")
module = from_tensorflow("frozen.pb", shapes={"image": (1, 224, 224, 3)}, outputs=["logits"])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.frontend.core.arithmetic import ArithmeticBuilder
from tilewright.frontend.core.complex_values import Complex
from tilewright.frontend.core.functions import main_module, new_input
from tilewright.frontend.core.input_shapes import input_shapes
from tilewright.frontend.core.registry import located
from tilewright.frontend.tensorflow.context import NodeContext, Scope, State
from tilewright.frontend.tensorflow.entry import entry_of
from tilewright.frontend.tensorflow.families import FAMILIES
from tilewright.frontend.tensorflow.frames import structured
from tilewright.frontend.tensorflow.model import Body, Node, Ref, Signature, TensorSpec, TfModel
from tilewright.frontend.tensorflow.order import needed_nodes
from tilewright.frontend.tensorflow.reader import read_model
from tilewright.frontend.tensorflow.refused import reason_of
from tilewright.frontend.tensorflow.registry import find_converter
from tilewright.frontend.tensorflow.tensors import tensor_dtype
from tilewright.frontend.tensorflow.values import Handle, TensorList, Value
from tilewright.graph.ir.expr import Function, GraphExpr, Var
from tilewright.ir.function import IRModule
from tilewright.support.errors import UnsupportedError, UserError

assert FAMILIES  # imported so that every converter is registered
_DEEPEST = 64
"""Functions nested deeper than this are taken for a function that calls itself."""
_MOST_NODES = 1 << 20
"""The most nodes that are converted: functions that call others twice, and those again, never end."""
_OF_REFERENCES = ("Assign", "Scatter", "IsVariableInitialized", "CountUpTo", "RefEnter", "RefIdentity")
"""Operators (or beginnings of their names) that take a reference to a variable itself, not its value."""


def from_tensorflow(
    model: object,
    shapes: Mapping[str, Sequence[int | str | None]] | None = None,
    *,
    signature: str | None = None,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    tags: Sequence[str] | None = None,
) -> IRModule:
    """Import a TensorFlow model: a SavedModel folder, a frozen GraphDef (.pb, .pbtxt, or bytes), a .meta file.

    Of a SavedModel it is the function of a `signature` (`serving_default`, or the only one) of the graph with `tags`
    (`serve`); inputs and outputs go by the names of the signature. Of a graph without signatures the placeholders are
    the inputs, and what nothing takes are the outputs, unless `inputs` and `outputs` name nodes. Open dimensions are
    symbols; `shapes` fixes some or all of them, or names them, as for `from_onnx`. Variables are constants: what a run
    assigns is known to that run alone. The result has a function "main"; its attributes hold `model_name`,
    `output_names` and, if there are several, the names of all `signatures`.
    """
    found = read_model(model, tags)
    return _Importer(found).module(entry_of(found, signature, inputs, outputs), shapes or {})


@dataclass(frozen=True, slots=True)
class _Input:
    """An input as shapes are asked for."""

    name: str
    dims: tuple[int | str | None, ...] | None


class _Importer:
    """The import of one model."""

    def __init__(self, model: TfModel) -> None:
        self.model = model
        self.builder = ArithmeticBuilder()
        self.functions: list[Function] = []
        self.state = State()
        self.scope = Scope(model, self._run, self.functions, self.state)
        self.depth = 0
        self.count = 0
        self.orders: dict[int, tuple[Body, list[Node]]] = {}
        self.raised: dict[int, tuple[Body, Body]] = {}

    def module(self, entry: Signature, shapes: Mapping[str, Sequence[int | str | None]]) -> IRModule:
        self._initialise()
        params = self._params(entry.inputs, shapes)
        body = replace(
            self.model.graph,
            params=tuple(spec.ref.node for spec in entry.inputs),
            results=tuple(spec.ref for spec in entry.outputs),
        )
        found = zip(self._run(body, params), entry.outputs, strict=True)
        results = [self._tensor(value, spec) for value, spec in found]
        lasting = sorted(self.state.read & self.state.assigned)
        if lasting:
            raise UnsupportedError(
                f"the variable '{lasting[0]}' is read and then assigned: its value must last until the next run",
                where=self.model.source,
                hint="make the state an input and an output of the function that is exported, or export for inference",
            )
        names, signatures = [spec.name for spec in entry.outputs], tuple(item.key for item in self.model.signatures)
        further = {"signatures": signatures} if len(signatures) > 1 else {}
        return main_module(self.builder, params, results, names, entry.key, self.functions, **further)

    def _initialise(self) -> None:
        """Give variables what the checkpoint has, and fill tables."""
        model, texts = self.model, [self.builder.constant(np.array("", object), "string")]
        if model.restore is not None and model.checkpoint is not None:
            name = model.restore.filename.node
            self._run(replace(model.graph, params=(name,), effects=(model.restore.operation,)), texts)
        if model.initial:
            params = tuple(ref.node for ref in model.assets)
            files = [self.builder.constant(np.array(str(path), object), "string") for path in model.assets.values()]
            self._run(replace(model.graph, params=params, effects=model.initial), files)
        self.state.read.clear()
        self.state.assigned.clear()

    def _params(self, inputs: Sequence[TensorSpec], shapes: Mapping[str, Sequence[int | str | None]]) -> list[Var]:
        params: list[Var] = []
        known = input_shapes(self.model.source, [_Input(item.name, item.dims) for item in inputs], shapes)
        for spec, sizes in zip(inputs, known, strict=True):
            if sizes is None:
                raise UnsupportedError(
                    f"the input '{spec.name}' has an unknown number of dimensions",
                    where=self.model.source,
                    hint=f"give its shape: shapes={{'{spec.name}': (...)}}",
                )
            with located(self.builder, self.model.source, spec.name, "input"):
                params.append(new_input(self.builder, spec.name, sizes, tensor_dtype(spec.dtype)))
        return params

    def _tensor(self, value: Value, spec: TensorSpec) -> GraphExpr:
        """A result of the model."""
        if isinstance(value, Handle) and value.kind == "reference":
            value = self._read(value)
        if isinstance(value, GraphExpr):
            return value
        what = "complex numbers" if isinstance(value, Complex) else "no tensor"
        raise UnsupportedError(
            f"the output '{spec.name}' is {what}", where=self.model.source, hint="make its parts outputs of their own"
        )

    def _run(self, body: Body, values: Sequence[Value]) -> list[Value]:
        """The results of a body for values of its parameters."""
        if len(values) != len(body.params):
            raise UserError(f"'{body.name}' takes {len(body.params)} values, {len(values)} are given")
        self.depth += 1
        if self.depth > _DEEPEST:
            raise UserError("functions are nested too deeply: does one call itself?", where=self.model.source)
        span = self.builder.span
        try:
            known: dict[str, Sequence[Value | None]] = {
                name: (value,) for name, value in zip(body.params, values, strict=True)
            }
            body = self._raised(body)
            for node in self._order(body):
                known[node.name] = self._node(node, known)
            return [self._lookup(ref, known, body.name) for ref in body.results]
        finally:
            self.depth -= 1
            self.builder.span = span

    def _raised(self, body: Body) -> Body:
        """A body with frames and switches as control flow of its own."""
        key = id(body)
        if key not in self.raised:
            self.raised[key] = (body, structured(body, self.model.source))
        return self.raised[key][1]

    def _order(self, body: Body) -> list[Node]:
        key = id(body)
        if key not in self.orders:
            self.orders[key] = (body, needed_nodes(body, self.model.source))
        return self.orders[key][1]

    def _lookup(self, ref: Ref, known: Mapping[str, Sequence[Value | None]], where: str) -> Value:
        values = known.get(ref.node)
        if values is None or ref.port >= len(values) or (value := values[ref.port]) is None:
            raise UserError(f"nothing produces '{ref.node}:{ref.port}'", where=f"{self.model.source}, {where}")
        return value

    def _read(self, handle: Handle) -> GraphExpr:
        value = self.state.variables.get(handle.name)
        if value is None:
            raise UserError(
                f"the variable '{handle.name}' has no value",
                hint="freeze the graph, or put the checkpoint beside it",
            )
        if handle.name not in self.state.assigned:
            self.state.read.add(handle.name)
        return value

    def _node(self, node: Node, known: Mapping[str, Sequence[Value | None]]) -> Sequence[Value | None]:
        with located(self.builder, self.model.source, node.name, node.op):
            self.count += 1
            if self.count > _MOST_NODES:
                raise UserError(f"the model has more than {_MOST_NODES} nodes, with those of all calls of functions")
            values = [self._lookup(ref, known, node.name) for ref in node.inputs]
            if not node.op.startswith(_OF_REFERENCES):
                values = [
                    self._read(value) if isinstance(value, Handle) and value.kind == "reference" else value
                    for value in values
                ]
            if node.op in self.model.functions:
                return self._run(self.model.functions[node.op], values)
            return self._converted(NodeContext(node, values, self.builder, self.scope))

    def _converted(self, context: NodeContext) -> Sequence[Value | None]:
        convert = find_converter(context.node.op)
        if convert is None:
            reason, hint = reason_of(context.node.op) or ("", "")
            raise UnsupportedError(
                f"the operator {context.node.op} is not supported" + (f": {reason}" if reason else ""),
                hint=hint or "register a converter of your own: @tilewright.frontend.tensorflow.converter",
            )
        try:
            result = convert(context)
        except (IndexError, ValueError, OverflowError, KeyError) as error:
            # Files may say anything: ranks and lengths that no operator of that kind has are met in the arithmetic.
            raise UserError(f"the inputs and attributes of {context.node.op} do not fit together: {error}") from error
        if isinstance(result, (GraphExpr, Complex, Handle, TensorList)):
            return (result,)
        if isinstance(result, (list, tuple)):
            return result
        raise UserError(
            f"the converter of {context.node.op} gave {type(result).__name__}, not graph values",
            hint="give one value, or a list with one for each output: return node.call(...)",
        )
