"""Import of PaddlePaddle inference models: walks the operators in order and lets the converters build the graph.

module = from_paddle("inference.pdmodel")
module = from_paddle("folder", shapes={"x": (1, 3, 48, 320)})
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilewright.frontend.core.arithmetic import ArithmeticBuilder
from tilewright.frontend.core.functions import main_module, new_input
from tilewright.frontend.core.input_shapes import input_shapes
from tilewright.frontend.core.registry import located
from tilewright.frontend.core.scopes import Scope
from tilewright.frontend.paddle import (
    activation,
    control,
    convolution,
    creation,
    detection,
    elementwise,
    fused,
    indexing,
    matrix_nms,
    normalization,
    pooling,
    quantize,
    recurrent,
    reduce,
    resize,
    shape,
)
from tilewright.frontend.paddle.context import Bodies, NodeContext
from tilewright.frontend.paddle.files import read_model
from tilewright.frontend.paddle.model import Block, PaddleModel, PaddleOperator
from tilewright.frontend.paddle.registry import Entry, Result, find_converter
from tilewright.graph.ir.expr import Function, GraphExpr, Var
from tilewright.ir.function import IRModule
from tilewright.support.errors import UnsupportedError, UserError

FAMILIES = (
    activation,
    control,
    convolution,
    creation,
    detection,
    elementwise,
    fused,
    indexing,
    matrix_nms,
    normalization,
    pooling,
    quantize,
    recurrent,
    reduce,
    resize,
    shape,
)
"""The modules whose converters are registered, one an operator family."""
_NONE = ("@EMPTY@", "")
_DEEPEST = 32


def from_paddle(model: object, shapes: Mapping[str, Sequence[int | str | None]] | None = None) -> IRModule:
    """Import a PaddlePaddle inference model: the path of its folder or of one of its files.

    Dimensions that the model leaves open are symbols: the compiled model takes any size there. `shapes` fixes some or
    all of them, or names them, as for `from_onnx`. The result has a function "main" whose parameters are named as the
    model's inputs; its attributes hold `model_name` and `output_names`.
    """
    return _Importer(read_model(model)).module(shapes or {})


class _Importer:
    """The import of one model."""

    def __init__(self, model: PaddleModel) -> None:
        self.model = model
        self.builder = ArithmeticBuilder()
        self.functions: list[Function] = []
        self.pending: dict[str, Callable[[], GraphExpr]] = {}
        self.depth = 0

    def module(self, shapes: Mapping[str, Sequence[int | str | None]]) -> IRModule:
        scope = Scope()
        scope.stored = self.model.parameters
        params: list[Var] = []
        known = input_shapes(self.model.source, self.model.inputs, shapes)
        for item, sizes in zip(self.model.inputs, known, strict=True):
            params.append(new_input(self.builder, item.name, sizes, item.dtype))
            scope.values[item.variable] = params[-1]
        self._block(self.model.block, scope)
        if not self.model.outputs:
            raise UserError("the model has no outputs", where=self.model.source)
        results: list[GraphExpr] = []
        for name, variable in self.model.outputs:
            value = scope.find(variable)
            if value is None:
                raise UserError(f"nothing produces the output '{name}'", where=self.model.source)
            results.append(value)
        names = [name for name, _ in self.model.outputs]
        return main_module(self.builder, params, results, names, "main", self.functions)

    def _block(self, block: Block, scope: Scope) -> None:
        """Import the operators of a block; what they give goes to the scope."""
        self.depth += 1
        if self.depth > _DEEPEST:
            raise UserError("blocks are nested too deeply", where=self.model.source)
        span = self.builder.span
        try:
            for operator in block.operators:
                with located(self.builder, self.model.source, operator.name, operator.kind):
                    self._operator(operator, scope)
        finally:
            self.depth -= 1
            self.builder.span = span

    def _operator(self, operator: PaddleOperator, scope: Scope) -> None:
        entry = find_converter(operator.kind)
        if entry is None:
            raise UnsupportedError(
                f"the operator {operator.kind} is not supported",
                hint="register a converter of your own: @tilewright.frontend.paddle.converter",
            )
        inputs = _groups(operator.inputs, entry.inputs)
        outputs = _groups(operator.outputs, entry.outputs)
        if operator.kind not in control.BY_NAME:
            values = [[self._value(name, scope) for name in group] for group in inputs]
        else:
            values = []
        bodies = Bodies(self._block, scope, self.functions, self.pending)
        shapes = [self.model.shapes.get(group[0]) if group else None for group in outputs]
        context = NodeContext(operator, values, self.builder, bodies, shapes)
        produced = self._convert(entry, context)
        if operator.kind in control.BY_NAME:
            return
        for group, value in zip(outputs, produced, strict=False):
            items = [value] if value is None or isinstance(value, GraphExpr) else list(value)
            for name, item in zip(group, items, strict=False):
                if item is not None:
                    scope.values[name] = item

    def _value(self, name: str, scope: Scope) -> GraphExpr:
        value = scope.find(name)
        if value is None:
            raise UserError(f"nothing produces its input '{name}'")
        return value

    def _convert(self, entry: Entry, context: NodeContext) -> Sequence[GraphExpr | Sequence[GraphExpr] | None]:
        kind = context.node.kind
        try:
            result: Result = entry.convert(context)
        except (LookupError, ValueError, OverflowError) as error:
            # Files may say anything: ranks and lengths that no operator of that kind has are met in the arithmetic.
            raise UserError(f"the inputs and attributes of {kind} do not fit together: {error}") from error
        if isinstance(result, GraphExpr):
            return (result,)
        if isinstance(result, (list, tuple)):
            return result
        raise UserError(
            f"the converter of {kind} gave {type(result).__name__}, not graph values",
            hint="give one value, or a list with one for each output: return node.call(...)",
        )


def _groups(
    given: Mapping[str, tuple[str, ...]] | tuple[tuple[str, ...], ...], order: Sequence[str]
) -> list[list[str]]:
    """Names of inputs or outputs in the order that a converter has them in; later operators write them small."""
    groups = (
        [given.get(name) or given.get(name.lower(), ()) for name in order]
        if isinstance(given, Mapping)
        else list(given)
    )
    return [[name for name in group if name not in _NONE] for group in groups]
