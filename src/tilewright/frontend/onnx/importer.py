"""Import of ONNX models: walks the nodes in order and lets the converters build the graph.

module = from_onnx("resnet18.onnx")
module = from_onnx("bert.onnx", shapes={"input_ids": (1, 128)})
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

from tilewright.frontend.core.builder import Builder, Undecided, check_size
from tilewright.frontend.core.forks import (
    MOST_SIDES,
    Fork,
    Imported,
    Side,
    by_run,
    import_side,
    import_sides,
    join_sides,
)
from tilewright.frontend.core.input_shapes import input_shapes
from tilewright.frontend.core.scopes import Captures, Scope
from tilewright.frontend.onnx import (
    activation,
    classic,
    contract,
    contrib_attention,
    contrib_fused,
    contrib_quantized,
    control,
    convolution,
    einsum,
    indexing,
    legacy,
    math,
    ml_classifiers,
    ml_labels,
    normalization,
    ordering,
    patches,
    pooling,
    quantize,
    random_numbers,
    recurrent,
    reduce,
    resize,
    sampling,
    selection,
    sequence,
    slicing,
    spectral,
    strings,
    tensor,
    training,
)
from tilewright.frontend.onnx.context import Bodies, NodeContext, held_type
from tilewright.frontend.onnx.expansion import check_expansion
from tilewright.frontend.onnx.exported_sizes import exported_sizes
from tilewright.frontend.onnx.functions import is_known_operator, schema_function
from tilewright.frontend.onnx.model import (
    AttributeValue,
    OnnxFunction,
    OnnxGraph,
    OnnxModel,
    OnnxNode,
    Reference,
)
from tilewright.frontend.onnx.order import sort_nodes
from tilewright.frontend.onnx.reader import read_model
from tilewright.frontend.onnx.registry import NEWEST_OPSET, OLDEST_OPSET, UseDefinition, find_converter
from tilewright.frontend.onnx.scopes import Rest, last_uses
from tilewright.graph.ir.expr import Constant, Function, GraphExpr, Var
from tilewright.graph.likely_sizes import with_likely_sizes
from tilewright.ir.function import IRModule
from tilewright.ir.types import Type, tensor_type
from tilewright.support.errors import UnsupportedError, UserError
from tilewright.support.span import Span

FAMILIES = (
    activation,
    classic,
    contract,
    contrib_attention,
    contrib_fused,
    contrib_quantized,
    control,
    convolution,
    einsum,
    indexing,
    math,
    ml_classifiers,
    ml_labels,
    normalization,
    ordering,
    patches,
    pooling,
    quantize,
    random_numbers,
    recurrent,
    reduce,
    resize,
    sampling,
    selection,
    sequence,
    slicing,
    spectral,
    strings,
    tensor,
    training,
)
"""The modules whose converters are registered, one an operator family."""
_REASONS = {
    "ImageDecoder": "decode images before they go to the model",
}
"""Why operators are not supported, where there is a reason of principle."""
_DEEPEST = 32
"""Functions and subgraphs nested deeper than this are taken for a function that calls itself."""


def from_onnx(model: object, shapes: Mapping[str, Sequence[int | str | None]] | None = None) -> IRModule:
    """Import an ONNX model: a path, the bytes of a file, or an `onnx.ModelProto` (which is not changed).

    Dimensions that the model leaves open are symbols: the compiled model takes any size there. `shapes` fixes some or
    all of them, e.g. `{"input": (1, 3, 224, 224)}`, or names them: `{"input": ("batch", 3, 224, 224)}`.
    The result has a function "main" whose parameters are named as the model's inputs; its attributes hold
    `model_name` and `output_names`.
    """
    plain = read_model(model)
    return _Importer(plain).module(shapes or {})


class _Importer:
    """The import of one model."""

    def __init__(self, model: OnnxModel) -> None:
        self.model = model
        self.builder = Builder()
        self.functions: list[Function] = []
        """Functions that loops became, beside main."""
        self.sides = 0
        """Sides of forks that were imported, each time they were."""
        self.depth = 0
        self.in_definition = 0
        """Inside the body of an operator that ONNX defines: nodes there go by the name of the operator's node."""

    def module(self, shapes: Mapping[str, Sequence[int | str | None]]) -> IRModule:
        graph = self.model.graph
        self._check_opsets(self.model.opsets)
        check_expansion(self.model)
        params: list[Var] = []
        scope = Scope()
        scope.stored = graph.initializers
        inputs = [item for item in graph.inputs if item.name not in graph.initializers]
        tensors = [info for info in inputs if info.item is None]
        for info in tensors:
            if info.dtype is None:
                raise UnsupportedError(
                    f"the input '{info.name}' is a {info.kind}, which is not supported", where=self.model.source
                )
        known = dict(zip(tensors, input_shapes(self.model.source, tensors, shapes), strict=True))
        for info in inputs:
            if info.name in scope.values:
                raise UserError(f"two inputs are named '{info.name}'", where=self.model.source)
            annotation: Type = held_type(info) if info.dtype is None else tensor_type(known[info], info.dtype)
            check_size(annotation)
            self.builder.declare(annotation)
            var = Var(info.name, annotation)
            var.span = Span(info.name)
            params.append(var)
            scope.values[info.name] = var
        outputs = self._graph(graph, scope, self.model.opsets)
        if not outputs:
            raise UserError("the model has no outputs", where=self.model.source)
        names = tuple(info.name for info in graph.outputs)
        self.builder.span = None
        outputs = [sequence.as_sequence(self.builder, value) for value in outputs]
        body = self.builder.body(self.builder.tuple(outputs))
        function = Function("main", tuple(params), body)
        functions = [function, *self.functions]
        attributes: dict[str, object] = {"model_name": graph.name or "main", "output_names": names}
        sizes = exported_sizes(self.model.metadata, [known[info] for info in tensors])
        return with_likely_sizes(IRModule(functions, attributes=attributes), sizes)

    def _check_opsets(self, opsets: Mapping[str, int]) -> None:
        version = opsets.get("")
        if version is None:
            return
        if version < OLDEST_OPSET:
            raise UnsupportedError(
                f"the model uses opset {version}, the oldest supported is {OLDEST_OPSET}",
                where=self.model.source,
                hint="convert it with onnx.version_converter.convert_version(model, 13)",
            )
        if version > NEWEST_OPSET:
            raise UnsupportedError(
                f"the model uses opset {version}, the newest supported is {NEWEST_OPSET}",
                where=self.model.source,
                hint="export it for an older opset, or convert it with onnx.version_converter",
            )

    def _graph(self, graph: OnnxGraph, scope: Scope, opsets: Mapping[str, int]) -> list[GraphExpr]:
        """Import the nodes of a graph; gives the values of its outputs."""
        nodes = sort_nodes(graph.nodes, scope.__contains__, self.model.source)
        self._nodes(nodes, scope, opsets, [info.name for info in graph.outputs])
        results: list[GraphExpr] = []
        for info in graph.outputs:
            value = scope.find(info.name)
            if value is None:
                raise UserError(f"nothing produces the output '{info.name}'", where=self.model.source)
            results.append(value)
        return results

    def _nodes(self, nodes: Sequence[OnnxNode], scope: Scope, opsets: Mapping[str, int], wanted: Sequence[str]) -> None:
        """Import nodes in order; `wanted` are the names that are used after the last one."""
        at = 0
        uses: dict[str, int] | None = None
        while at < len(nodes):
            bound = len(self.builder.current_bindings())
            try:
                self._node(nodes[at], scope, opsets)
                at += 1
                continue
            except Undecided as error:
                if not scope.names_of(error.value):
                    raise
                undecided, fork = error, None
            except Fork as found:
                undecided, fork = None, found
            self.builder.forget(bound)
            uses = last_uses(nodes) if uses is None else uses
            rest = Rest(nodes[at:], scope, opsets, wanted, at, uses)
            with self._located(nodes[at], opsets.get(nodes[at].domain)):
                if fork is None:
                    assert undecided is not None
                    fork = by_run(self.builder, undecided)
                at += self._fork(fork, rest)

    def _fork(self, fork: Fork, rest: Rest) -> int:
        """Import the sides of a fork with the nodes that belong to them; gives the number of nodes that are done."""
        before = len(self.functions)

        def attempt(count: int) -> Sequence[Imported]:
            del self.functions[before:]
            self.sides += len(fork.sides)
            if self.sides > MOST_SIDES:
                raise UnsupportedError(
                    f"what only a run decides gives the model more than {MOST_SIDES} forms",
                    hint="give the shapes of its inputs: shapes={...}",
                )
            live = rest.live(count, fork.value)
            return [
                import_side(self.builder, partial(self._side, fork, rest, count, live, side)) for side in fork.sides
            ]

        count, sides = import_sides(attempt, len(rest.nodes))
        failed = next((side.error for side in sides if isinstance(side.error, UnsupportedError)), None)
        if fork.value is None and failed is not None:
            warnings.warn(
                f"a branch cannot be compiled, a run that takes it ends with this error: {failed}", stacklevel=2
            )
        live = rest.live(count, fork.value)
        if live:
            values = join_sides(self.builder, [side.condition for side in fork.sides], sides, live)
            rest.scope.values.update(zip(live, values, strict=True))
        return count

    def _side(self, fork: Fork, rest: Rest, count: int, live: Sequence[str], side: Side) -> list[GraphExpr]:
        """The values of the names that are used after a side of a fork and so many nodes."""
        scope = Scope(rest.scope)
        done = 0
        if side.outputs is not None:
            self._give(rest.nodes[0], side.outputs(), scope)
            done = 1
        elif side.known is not None and fork.value is not None:
            scope.values.update(dict.fromkeys(rest.scope.names_of(fork.value), side.known()))
        self._nodes(rest.nodes[done:count], scope, rest.opsets, live)
        values: list[GraphExpr] = []
        for name in live:
            value = scope.find(name)
            if value is None:
                raise UserError(f"nothing produces '{name}'")
            values.append(sequence.as_sequence(self.builder, value))
        return values

    def _node(self, node: OnnxNode, scope: Scope, opsets: Mapping[str, int]) -> None:
        opset = opsets.get(node.domain)
        with self._located(node, opset):
            inputs: list[GraphExpr | None] = []
            for name in node.inputs:
                value = scope.find(name) if name else None
                if name and value is None:
                    raise UserError(f"nothing produces its input '{name}'")
                self._note_weight(value)
                inputs.append(value)
            self._give(node, self._convert(node, opset, inputs, scope, opsets), scope)

    def _note_weight(self, value: GraphExpr | None) -> None:
        """Let what is computed from a stored tensor of floats stay a computation: training changes such tensors.

        Single numbers (factors, limits) are none that are trained, and converters look at their values.
        """
        if not isinstance(value, Constant) or not value.dtype.is_float or value.data.size < 2:
            return
        if value.span is not None and not value.span.operation:
            self.builder.weights[id(value)] = value

    @staticmethod
    def _give(node: OnnxNode, outputs: Sequence[GraphExpr | None], scope: Scope) -> None:
        """Give the outputs of a node their names."""
        for index, name in enumerate(node.outputs):
            if not name:
                continue
            produced = outputs[index] if index < len(outputs) else None
            if produced is None:
                raise UnsupportedError(f"output number {index + 1} of {node.op_type} is not supported")
            if name in scope.values or name in scope.stored:
                raise UserError(f"the name '{name}' is given to two values")
            scope.values[name] = produced

    def _convert(
        self,
        node: OnnxNode,
        opset: int | None,
        inputs: list[GraphExpr | None],
        scope: Scope,
        opsets: Mapping[str, int],
    ) -> Sequence[GraphExpr | None]:
        function = self.model.functions.get((node.domain, node.op_type, node.overload))
        if function is not None:
            return self._call(function, node, inputs, opsets)
        if opset is None:
            raise UserError(
                f"the model imports no operator set for the domain {_domain_text(node.domain)}",
                hint="opset_import of the model must name every domain that is used",
            )
        if not node.domain and opset < legacy.MODERN:
            convert = legacy.find_legacy(node, opset)
        else:
            convert = find_converter(node.domain, node.op_type, opset)
        if convert is not None:

            def run_graph(graph: OnnxGraph, values: Sequence[GraphExpr]) -> list[GraphExpr]:
                return self._subgraph(graph, values, scope, opsets)

            def run_body(graph: OnnxGraph, values: Sequence[GraphExpr]) -> tuple[list[GraphExpr], Captures]:
                captures: Captures = []
                return self._subgraph(graph, values, scope, opsets, captures), captures

            bodies = Bodies(run_graph, run_body, self.functions)
            context = NodeContext(node, opset, inputs, self.builder, bodies)
            with suppress(UseDefinition):
                result = convert(context)
                context.finish()
                return _outputs(node, result)
        function = schema_function(node, opset, inputs)
        if function is not None:
            self.in_definition += 1
            try:
                return self._call(function, node, inputs, opsets)
            finally:
                self.in_definition -= 1
        if is_known_operator(node.domain, node.op_type):
            reason = _REASONS.get(node.op_type)
            why = "" if reason is None else f": {reason}"
            raise UnsupportedError(f"the operator {node.op_type} is not supported{why}")
        raise UnsupportedError(
            f"unknown operator {node.op_type} in the domain {_domain_text(node.domain)}",
            hint="export the model with standard operators, or register a converter of your own: "
            "@tilewright.frontend.onnx.registry.converter",
        )

    def _subgraph(
        self,
        graph: OnnxGraph,
        values: Sequence[GraphExpr],
        outer: Scope,
        opsets: Mapping[str, int],
        captures: Captures | None = None,
    ) -> list[GraphExpr]:
        if len(values) != len(graph.inputs):
            raise UserError(f"the graph '{graph.name}' takes {len(graph.inputs)} inputs, {len(values)} are given")
        scope = Scope(outer, captures)
        scope.stored = graph.initializers
        for info, value in zip(graph.inputs, values, strict=True):
            scope.values[info.name] = value
        with self._deeper():
            return self._graph(graph, scope, opsets)

    def _call(
        self,
        function: OnnxFunction,
        node: OnnxNode,
        inputs: Sequence[GraphExpr | None],
        opsets: Mapping[str, int],
    ) -> Sequence[GraphExpr | None]:
        """Replace a call by the body of its function."""
        if len(inputs) > len(function.inputs):
            raise UserError(f"function {function.name} takes {len(function.inputs)} inputs, {len(inputs)} are given")
        unknown = set(node.attributes) - set(function.attribute_names) - set(function.defaults)
        if unknown:
            raise UserError(f"function {function.name} has no attribute '{min(unknown)}'")
        scope = Scope()
        for name, value in zip(function.inputs, inputs, strict=False):
            if value is not None:
                scope.values[name] = value
        absent = {name for name in function.inputs if name not in scope.values}
        given = {**function.defaults, **node.attributes}
        body_opsets = {**opsets, **function.opsets}
        with self._deeper():
            body = [_instantiate(item, given, absent, f"{node.name}/{item.name}") for item in function.nodes]
            nodes = sort_nodes(body, scope.__contains__, self.model.source)
            self._nodes(nodes, scope, body_opsets, function.outputs)
        results: list[GraphExpr | None] = []
        for index, name in enumerate(function.outputs):
            value = scope.find(name)
            if value is None and index < len(node.outputs) and node.outputs[index]:
                raise UserError(f"function {function.name} does not produce its output '{name}'")
            results.append(value)
        return results

    @contextmanager
    def _deeper(self) -> Iterator[None]:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise UserError("functions or graphs are nested too deeply: does a function call itself?")
        span = self.builder.span
        try:
            yield
        finally:
            self.depth -= 1
            self.builder.span = span

    @contextmanager
    def _located(self, node: OnnxNode, opset: int | None) -> Iterator[None]:
        """Put the node's name on what is built, and on errors that do not say where they are."""
        if not self.in_definition:
            self.builder.span = Span(node.name, operation=node.op_type)
        try:
            yield
        except UserError as error:
            if error.where is None:
                version = "" if opset is None else f", opset {opset}"
                error.where = (
                    f"{self.model.source}, node '{node.name}' "
                    f"({node.op_type}, domain {_domain_text(node.domain)}{version})"
                )
            raise


def _instantiate(node: OnnxNode, given: Mapping[str, AttributeValue], absent: set[str], name: str) -> OnnxNode:
    """A node of a function's body for one call: attributes filled in, inputs that were left out dropped."""
    attributes: dict[str, AttributeValue] = {}
    for key, value in node.attributes.items():
        if isinstance(value, Reference):
            if value.name in given:
                attributes[key] = given[value.name]
        elif isinstance(value, OnnxGraph):
            body = tuple(_instantiate(item, given, absent, item.name) for item in value.nodes)
            attributes[key] = replace(value, nodes=body)
        else:
            attributes[key] = value
    inputs = tuple("" if item in absent else item for item in node.inputs)
    return replace(node, attributes=attributes, inputs=inputs, name=name, proto=None)


def _outputs(node: OnnxNode, result: object) -> Sequence[GraphExpr | None]:
    """What a converter gave, checked: converters may be others' own."""
    if isinstance(result, GraphExpr):
        return (result,)
    if isinstance(result, (list, tuple)) and all(item is None or isinstance(item, GraphExpr) for item in result):
        return result
    raise UserError(
        f"the converter of {node.op_type} gave {type(result).__name__}, not graph values",
        hint="give one value, or a list with one for each output: return node.call(...)",
    )


def _domain_text(domain: str) -> str:
    return domain or "ai.onnx"
