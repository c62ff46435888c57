"""What an importer gives in the end: a module with the function `main`."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontend.core.builder import Builder, check_size
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import Function, GraphExpr, Var
from tilewright.ir.dtype import DataType
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type
from tilewright.support.errors import UserError
from tilewright.support.span import Span


def new_input(builder: Builder, name: str, shape: Sequence[Size | str] | None, dtype: DataType | str) -> Var:
    """A parameter of `main`; dimensions that are texts are symbols of that name. None: of any rank."""
    sizes = None if shape is None else tuple(Symbol(size) if isinstance(size, str) else size for size in shape)
    kind = tensor_type(sizes, dtype)
    check_size(kind)
    builder.declare(kind)
    var = Var(name, kind)
    var.span = Span(name)
    return var


def chosen_shape(
    name: str, shape: Sequence[int | str], shapes: dict[str, Sequence[int | str | None]]
) -> tuple[int | str, ...]:
    """The shape of an input, of which `shapes` may fix or name what is open; an entry that is used is taken out."""
    wanted = shapes.pop(name, None)
    if wanted is None:
        return tuple(shape)
    text = ", ".join(map(str, shape))
    if len(wanted) != len(shape):
        raise UserError(f"the input '{name}' has {len(shape)} dimensions ({text}), not {len(wanted)}")
    result: list[int | str] = []
    for old, new in zip(shape, wanted, strict=True):
        if isinstance(old, int) and isinstance(new, int) and old != new:
            raise UserError(f"the input '{name}' is ({text}), not {tuple(wanted)}")
        result.append(old if new is None or isinstance(old, int) else new)
    return tuple(result)


def refuse_unknown(shapes: dict[str, Sequence[int | str | None]], names: Sequence[str]) -> None:
    """Refuse shapes of inputs that a model does not have: those that `chosen_shape` left."""
    if shapes:
        raise UserError(f"the model has no input '{min(shapes)}'", hint=f"it has: {', '.join(names)}")


def main_module(
    builder: Builder,
    params: Sequence[Var],
    outputs: Sequence[GraphExpr],
    names: Sequence[str],
    model_name: str,
    functions: Sequence[Function] = (),
    **further: object,
) -> IRModule:
    """The module of inputs and results, and of functions that they call (loops), with further attributes."""
    builder.span = None
    main = Function("main", tuple(params), builder.body(builder.tuple(outputs)))
    attributes = {"model_name": model_name or "main", "output_names": tuple(names), **further}
    return IRModule([main, *functions], attributes=attributes)
