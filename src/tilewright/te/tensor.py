"""Tensors of the tensor-expression language, their axes, and the operations that produce them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.ir.build import as_expr
from tilewright.ir.dtype import INDEX, DataType
from tilewright.ir.expr import ExprLike, ExprOperators, PrimExpr, Range, Var
from tilewright.ir.node import Node, node
from tilewright.support.errors import UserError
from tilewright.support.order import children_first
from tilewright.tir.stmt import IterKind, Stmt


@node()
class Axis(Node, ExprOperators):
    """An axis of an operation: a variable over a domain, spatial or reduced. Usable wherever an index is."""

    var: Var
    domain: Range
    kind: IterKind

    def as_prim_expr(self) -> PrimExpr:
        """The variable, where an expression is wanted."""
        return self.var

    @property
    def name(self) -> str:
        """The printing name."""
        return self.var.name


class Tensor:
    """One output of an operation: index it to get an expression, `A[i, j]`."""

    __slots__ = ("__weakref__", "dtype", "name", "op", "shape", "value_index")

    def __init__(
        self, op: Operation, value_index: int, shape: tuple[PrimExpr, ...], dtype: DataType, name: str
    ) -> None:
        self.op = op
        self.value_index = value_index
        self.shape = shape
        self.dtype = dtype
        self.name = name

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def __getitem__(self, indices: ExprLike | tuple[ExprLike, ...]) -> TensorLoad:
        if not isinstance(indices, tuple):
            indices = (indices,)
        return TensorLoad(self, tuple(as_expr(index, INDEX) for index in indices))

    def __repr__(self) -> str:
        dims = ", ".join(str(getattr(dim, "value", getattr(dim, "name", dim))) for dim in self.shape)
        return f"Tensor({self.name}, ({dims}), {self.dtype})"


@node(interned=True)
class TensorLoad(PrimExpr):
    """The element of a tensor at indices; becomes a buffer load when the program is made."""

    tensor: Tensor
    indices: tuple[PrimExpr, ...]

    def _post_init(self) -> None:
        if len(self.indices) != len(self.tensor.shape):
            raise UserError(
                f"tensor {self.tensor.name} has {len(self.tensor.shape)} dimensions, indexed with {len(self.indices)}"
            )
        for index in self.indices:
            if not index.dtype.is_integer:
                raise UserError(f"tensor {self.tensor.name} is indexed with a {index.dtype}", hint="cast it to int64")
        self.dtype = self.tensor.dtype


class Operation:
    """What produces tensors. `outputs` are its tensors, `inputs` the tensors it reads, `axis` its spatial axes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.outputs: tuple[Tensor, ...] = ()
        self.inputs: tuple[Tensor, ...] = ()
        self.axis: tuple[Axis, ...] = ()
        self.reduce_axis: tuple[Axis, ...] = ()

    def output(self, index: int) -> Tensor:
        """The tensor of an output."""
        return self.outputs[index]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"


class PlaceholderOp(Operation):
    """An input of the program."""

    def __init__(self, name: str, shape: tuple[PrimExpr, ...], dtype: DataType) -> None:
        super().__init__(name)
        self.outputs = (Tensor(self, 0, shape, dtype, name),)


class ComputeOp(Operation):
    """Elements given by an expression of the axes; several outputs share the axes."""

    def __init__(
        self,
        name: str,
        shape: tuple[PrimExpr, ...],
        axis: tuple[Axis, ...],
        body: tuple[PrimExpr, ...],
        reduce_axis: tuple[Axis, ...],
        inputs: tuple[Tensor, ...],
        notes: dict[str, object],
    ) -> None:
        super().__init__(name)
        self.axis = axis
        self.body = body
        self.reduce_axis = reduce_axis
        self.inputs = inputs
        self.notes = notes
        names = [name] if len(body) == 1 else [f"{name}_v{i}" for i in range(len(body))]
        self.outputs = tuple(
            Tensor(self, i, shape, value.dtype, label) for i, (value, label) in enumerate(zip(body, names, strict=True))
        )


class ScanOp(Operation):
    """A recurrence along the first axis: `update` gives step t from the states of earlier steps.

    `steps` are the operations that run at each step, producers first; `inputs` what they read besides the state.
    """

    def __init__(
        self,
        name: str,
        init: tuple[Tensor, ...],
        update: tuple[Tensor, ...],
        state: tuple[Tensor, ...],
        inputs: tuple[Tensor, ...],
        steps: tuple[ComputeOp, ...],
    ) -> None:
        super().__init__(name)
        self.steps = steps
        self.init = init
        self.update = update
        self.state = state
        self.inputs = (*init, *inputs)
        names = [name] if len(state) == 1 else [f"{name}_v{i}" for i in range(len(state))]
        self.outputs = tuple(
            Tensor(self, i, item.shape, item.dtype, label)
            for i, (item, label) in enumerate(zip(state, names, strict=True))
        )


class ExternOp(Operation):
    """Elements given by a hand-written loop program or a call to an extern function.

    With `along`, there is a program for each row of the outputs along those axes: `build` is then given the place of
    the row too, and `axis` has the other axes.
    """

    def __init__(
        self,
        name: str,
        shapes: tuple[tuple[PrimExpr, ...], ...],
        dtypes: tuple[DataType, ...],
        inputs: tuple[Tensor, ...],
        build: Callable[..., Stmt | PrimExpr],
        axis: tuple[Axis, ...] = (),
        along: tuple[int, ...] = (),
    ) -> None:
        super().__init__(name)
        self.inputs = inputs
        self.build = build
        self.axis = axis
        self.along = along
        names = [name] if len(shapes) == 1 else [f"{name}_v{i}" for i in range(len(shapes))]
        self.outputs = tuple(
            Tensor(self, i, shape, dtype, label)
            for i, (shape, dtype, label) in enumerate(zip(shapes, dtypes, names, strict=True))
        )


class StagedOp(Operation):
    """What a schedule made of a tensor: a copy in another memory scope, or partial results of a reduction."""

    def __init__(
        self,
        name: str,
        shape: tuple[PrimExpr, ...],
        dtype: DataType,
        axis: tuple[Axis, ...],
        reduce_axis: tuple[Axis, ...],
    ) -> None:
        super().__init__(name)
        self.axis = axis
        self.reduce_axis = reduce_axis
        self.outputs = (Tensor(self, 0, shape, dtype, name),)


def operations_of(outputs: Sequence[Tensor]) -> list[Operation]:
    """The operations that outputs depend on, producers first."""
    return children_first([tensor.op for tensor in outputs], lambda op: [tensor.op for tensor in op.inputs])
