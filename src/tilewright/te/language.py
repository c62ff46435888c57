"""The words of the tensor-expression language: placeholder, var, compute, reduce_axis, scan, extern."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

from tilewright.ir.build import as_expr
from tilewright.ir.dtype import INDEX, DataType
from tilewright.ir.expr import ZERO, ExprLike, PrimExpr, Range, Var, const_value
from tilewright.ir.visit import pre_order
from tilewright.support.errors import UserError
from tilewright.te.reduction import Reduce
from tilewright.te.tensor import (
    Axis,
    ComputeOp,
    ExternOp,
    PlaceholderOp,
    ScanOp,
    Tensor,
    TensorLoad,
    operations_of,
)
from tilewright.tir.annotations import Place, problems
from tilewright.tir.buffer import Buffer
from tilewright.tir.stmt import IterKind, Stmt

ShapeLike = ExprLike | Sequence[ExprLike]


def _shape(shape: ShapeLike) -> tuple[PrimExpr, ...]:
    items = shape if isinstance(shape, (tuple, list)) else (shape,)
    dims = tuple(as_expr(item, INDEX) for item in items)
    for dim in dims:
        value = const_value(dim)
        if value is not None and value < 0:
            raise UserError(f"a dimension cannot be negative: {value}")
        if not dim.dtype.is_integer:
            raise UserError(f"a dimension must be an integer, not {dim.dtype}")
    return dims


def var(name: str = "n", dtype: DataType | str = INDEX) -> Var:
    """A scalar variable; as a dimension it stands for any size."""
    return Var(name, DataType.of(dtype))


def placeholder(shape: ShapeLike, dtype: DataType | str = "float32", name: str = "placeholder") -> Tensor:
    """An input tensor."""
    return PlaceholderOp(name, _shape(shape), DataType.of(dtype)).outputs[0]


def reduce_axis(domain: tuple[ExprLike, ExprLike] | Range, name: str = "k") -> Axis:
    """An axis to reduce over: `(begin, end)`."""
    if not isinstance(domain, Range):
        begin, end = (as_expr(item, INDEX) for item in domain)
        domain = Range(begin, end - begin)
    return Axis(Var(name), domain, IterKind.REDUCE)


def thread_axis(domain: object = None, tag: str = "threadIdx.x") -> str:
    """A hardware thread axis, to bind loops to."""
    return tag if domain is None or not isinstance(domain, str) else domain


def tensors_in(exprs: Sequence[PrimExpr]) -> tuple[Tensor, ...]:
    """The tensors that expressions load from, in order of first use."""
    found: dict[int, Tensor] = {}
    for expr in exprs:
        for item in pre_order(expr):
            if isinstance(item, TensorLoad):
                found.setdefault(id(item.tensor), item.tensor)
    return tuple(found.values())


def _axis_names(function: Callable[..., object], rank: int) -> list[str]:
    names: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
        elif parameter.kind is parameter.VAR_POSITIONAL:
            names.extend(f"i{n}" for n in range(len(names), rank))
    if len(names) != rank:
        raise UserError(f"te.compute: the shape has {rank} dimensions, the function takes {len(names)} indices")
    return names


def compute(
    shape: ShapeLike,
    function: Callable[..., ExprLike | tuple[ExprLike, ...]],
    name: str = "compute",
    notes: dict[str, object] | None = None,
) -> Tensor:
    """A tensor whose element at (i, j, ...) is `function(i, j, ...)`; see `compute_many` for several outputs."""
    outputs = compute_many(shape, function, name, notes)
    if len(outputs) != 1:
        raise UserError("this computation gives several values", hint="use te.compute_many")
    return outputs[0]


def compute_many(
    shape: ShapeLike,
    function: Callable[..., ExprLike | tuple[ExprLike, ...]],
    name: str = "compute",
    notes: dict[str, object] | None = None,
) -> tuple[Tensor, ...]:
    """Tensors of one shape computed together: the function gives a tuple (argmax: index and value)."""
    for problem in problems(notes or {}, Place.BLOCK):
        raise UserError(f"te.compute {name}: {problem}", hint="names of your own may hold anything")
    dims = _shape(shape)
    axes = tuple(
        Axis(Var(label), Range(ZERO, dim), IterKind.SPATIAL)
        for label, dim in zip(_axis_names(function, len(dims)), dims, strict=True)
    )
    result = function(*axes)
    body = tuple(as_expr(item) for item in (result if isinstance(result, tuple) else (result,)))
    reduces = [item for item in body if isinstance(item, Reduce)]
    nested = [item for value in body for item in pre_order(value) if isinstance(item, Reduce) and item not in body]
    if nested or (reduces and len(reduces) != len(body)):
        raise UserError(
            f"te.compute {name}: a reduction must be the whole body of a computation",
            hint="compute the reduction as a tensor of its own, then use it",
        )
    reduce_axes: tuple[Axis, ...] = ()
    if reduces:
        first = reduces[0]
        if any(item.reducer is not first.reducer for item in reduces):
            raise UserError(f"te.compute {name}: the values must come from one reduction")
        if len(reduces) != len(first.sources):
            raise UserError(f"te.compute {name}: all {len(first.sources)} values of the reduction must be outputs")
        reduce_axes = first.axes
    # A reduction over nothing is its identity: it reads nothing.
    empty = any(const_value(axis.domain.extent) == 0 for axis in reduce_axes)
    return ComputeOp(name, dims, axes, body, reduce_axes, () if empty else tensors_in(body), notes or {}).outputs


def scan(
    init: Tensor | Sequence[Tensor],
    update: Tensor | Sequence[Tensor],
    state: Tensor | Sequence[Tensor],
    inputs: Sequence[Tensor] = (),
    name: str = "scan",
) -> Tensor | tuple[Tensor, ...]:
    """A recurrence along the first axis.

    `state` are placeholders of the whole result; `init` gives its first rows, `update` row t from earlier rows:

        X = placeholder((T, n)); s = placeholder((T, n))
        first = compute((1, n), lambda _, i: X[0, i])
        step = compute((T, n), lambda t, i: s[t - 1, i] + X[t, i])
        cumsum = scan(first, step, s, inputs=[X])
    """
    many = not isinstance(state, Tensor)
    inits, updates, states = ((item,) if isinstance(item, Tensor) else tuple(item) for item in (init, update, state))
    if not len(inits) == len(updates) == len(states):
        raise UserError("te.scan needs as many init and update tensors as states")
    for first, step, whole in zip(inits, updates, states, strict=True):
        if not isinstance(whole.op, PlaceholderOp):
            raise UserError(f"te.scan: state {whole.name} must be a placeholder")
        if step.shape != whole.shape or first.shape[1:] != whole.shape[1:]:
            raise UserError(f"te.scan: init, update and state of {whole.name} differ in shape")
        if not step.dtype is whole.dtype is first.dtype:
            raise UserError(f"te.scan: init, update and state of {whole.name} differ in type")
        if const_value(first.shape[0]) is None:
            raise UserError("te.scan: the number of initial rows must be a constant")
    if len(set(updates)) != len(updates):
        raise UserError("te.scan: one update tensor is given for two states")
    steps = _scan_steps(name, updates, states)
    inside = {id(op) for op in steps}
    outer = [tensor for op in steps for tensor in op.inputs if id(tensor.op) not in inside and tensor not in states]
    outputs = ScanOp(name, inits, updates, states, tuple(dict.fromkeys([*inputs, *outer])), steps).outputs
    return outputs if many else outputs[0]


def _scan_steps(name: str, updates: tuple[Tensor, ...], states: tuple[Tensor, ...]) -> tuple[ComputeOp, ...]:
    """The operations that run at each step, producers first: the updates and what they need that reads the state."""
    moving: set[Tensor] = set(states)
    steps: list[ComputeOp] = []
    for op in operations_of(updates):
        if op.outputs[0] in updates or any(tensor in moving for tensor in op.inputs):
            if not isinstance(op, ComputeOp) or not op.axis or op.axis[0].domain.extent is not states[0].shape[0]:
                raise UserError(f"te.scan {name}: step {op.name} must be a computation whose first axis is time")
            moving.update(op.outputs)
            steps.append(op)
    return tuple(steps)


def extern(
    shape: ShapeLike | Sequence[Sequence[ExprLike]],
    inputs: Sequence[Tensor],
    function: Callable[[list[Buffer], list[Buffer]], Stmt | PrimExpr],
    name: str = "extern",
    dtype: DataType | str | Sequence[DataType | str] | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """Tensors written by a hand-made statement (or call): `function(input_buffers, output_buffers)`."""
    many = isinstance(shape, (tuple, list)) and bool(shape) and isinstance(shape[0], (tuple, list))
    shapes = tuple(_shape(item) for item in shape) if many else (_shape(shape),)  # type: ignore[union-attr, arg-type]
    if dtype is None:
        kinds = {item.dtype for item in inputs}
        if len(kinds) != 1:
            raise UserError(f"te.extern {name}: give dtype, the inputs do not agree on one")
        dtype = next(iter(kinds))
    names = [dtype] * len(shapes) if isinstance(dtype, (str, DataType)) else list(dtype)
    if len(names) != len(shapes):
        raise UserError(f"te.extern {name}: {len(shapes)} outputs but {len(names)} dtypes")
    outputs = ExternOp(name, shapes, tuple(DataType.of(item) for item in names), tuple(inputs), function).outputs
    return outputs if many else outputs[0]


def extern_rows(
    shapes: Sequence[Sequence[ExprLike]],
    along: int | Sequence[int],
    inputs: Sequence[Tensor],
    function: Callable[[list[Buffer], list[Buffer], tuple[PrimExpr, ...]], Stmt],
    name: str,
    dtypes: Sequence[DataType],
) -> tuple[Tensor, ...]:
    """Tensors whose rows along an axis (or several) are each written by a hand-made statement, in any order.

    The shapes differ along those axes at most. `function(input_buffers, output_buffers, place)` gives the statement
    that writes all elements of one row; `place` has its indices, 0 along the axes.
    """
    inside = (along,) if isinstance(along, int) else tuple(along)
    dims = [_shape(shape) for shape in shapes]
    if not dims or len(dtypes) != len(dims) or len({len(shape) for shape in dims}) != 1:
        raise UserError(
            f"te.extern_rows {name}: {len(dims)} outputs (of one rank, at least one) but {len(dtypes)} dtypes"
        )
    if not inside or len(set(inside)) < len(inside) or not all(0 <= n < len(dims[0]) for n in inside):
        raise UserError(f"te.extern_rows {name}: {list(inside)} are not different axes of {len(dims[0])} dimensions")
    others = [[dim for n, dim in enumerate(shape) if n not in inside] for shape in dims]
    if any(item != others[0] for item in others[1:]):
        raise UserError(f"te.extern_rows {name}: the shapes of the outputs differ beside axes {inside}")
    axes = tuple(Axis(Var(f"i{n}"), Range(ZERO, dim), IterKind.SPATIAL) for n, dim in enumerate(others[0]))
    return ExternOp(name, tuple(dims), tuple(dtypes), tuple(inputs), function, axes, inside).outputs
