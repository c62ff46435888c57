"""Loop functions as operators of graphs: a hybrid or script function that a model calls.

    @tw.hybrid
    def add_one(a, b):
        n = var("n")
        A = bind_buffer(a, shape=[n])
        B = bind_buffer(b, shape=[n])
        for i in iter_range(n):
            B[i] = A[i] + 1.0

    y = call_loops(add_one, x)          # in a graph: x is read, the result is what add_one writes to b

Buffers that the function only reads are the operator's inputs, in the order of its parameters; those that it writes are
its results, and no inputs. Sizes of the results must follow from those of the inputs. The operator is opaque to fusion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.arith.analyzer import Analyzer
from tilewright.graph.ir.expr import Call, GraphExpr
from tilewright.graph.ir.op import Array, FusionKind, NoAttributes, Operator, Types, get_operator, operator, operators
from tilewright.graph.ops.common import agree, require_rank, tensors
from tilewright.ir.build import as_expr
from tilewright.ir.expr import PrimExpr, Var, const_value
from tilewright.ir.structural import structural_key
from tilewright.ir.types import TensorType, TupleType, Type
from tilewright.ir.visit import find_all, pre_order, substitute, variables
from tilewright.support.errors import CompilerBug, UserError
from tilewright.te.language import extern
from tilewright.te.tensor import Tensor
from tilewright.tir.admission import right_program
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.schedule.state import replace_buffers
from tilewright.tir.stmt import Block, BufferStore, Stmt
from tilewright.topi.registry import compute_of, result_shape

_PREFIX = "loops."
_KEY_DIGITS = 12


def call_loops(func: PrimFunc, *args: GraphExpr) -> Call:
    """A call of a loop function in a graph: its inputs in, its results out (a tuple where they are several)."""
    operator = operator_of(func)
    if len(args) != len(operator.inputs):
        names = ", ".join(operator.inputs) or "nothing"
        raise UserError(f"the loop function {func.name} reads {names}; it is called with {len(args)} inputs")
    return Call(operator, args, NoAttributes())


def operator_of(func: PrimFunc) -> Operator:
    """The operator that a loop function is, registered when first asked for; its name has a key of the function."""
    if not isinstance(func, PrimFunc):
        raise UserError(
            f"a loop function is needed, not {type(func).__name__}", hint="write it with @tw.hybrid or @tw.script"
        )
    name = f"{_PREFIX}{func.name}_{structural_key(func)[:_KEY_DIGITS]}"
    if name not in operators():
        _LoopOperator(func).register(name)
    return get_operator(name)


class _LoopOperator:
    """A loop function with its parameters told apart."""

    def __init__(self, func: PrimFunc) -> None:
        # What a user wrote is proven where it becomes an operator, as `tw.build` does: later it would be our bug.
        right_program(func)
        scalars = [param.name for param in func.params if not isinstance(param, Buffer)]
        if scalars:
            raise UserError(
                f"the loop function {func.name} takes the number {scalars[0]}: models call functions of buffers alone",
                hint="make it a buffer of one element, or a constant of the function",
            )
        written = {store.buffer for store in find_all(func.body, BufferStore)}
        read = {load.buffer for load in find_all(func.body, BufferLoad)}
        self.func = func
        self.inputs = [buffer for buffer in func.buffers if buffer not in written]
        self.outputs = [buffer for buffer in func.buffers if buffer in written]
        if not self.outputs:
            raise UserError(f"the loop function {func.name} writes to none of its buffers: it has no result")
        for buffer in self.outputs:
            if buffer in read and not _is_written_first(func, buffer):
                raise UserError(
                    f"the loop function {func.name} reads {buffer.name} before it writes it: results of a model's "
                    "operators have no values before",
                    hint="read another buffer and write the result to this one",
                )
        known = {symbol for buffer in self.inputs for dim in buffer.shape for symbol in variables(dim)}
        for buffer in self.outputs:
            missing = [symbol.name for dim in buffer.shape for symbol in variables(dim) if symbol not in known]
            if missing:
                raise UserError(
                    f"no input of the loop function {func.name} says how large {missing[0]} is ({buffer.name})"
                )

    def register(self, name: str) -> None:
        """Make the operator known: its type rule, its meaning and its computation."""
        names = tuple(buffer.name for buffer in self.inputs)

        def infer(types: Types, attributes: NoAttributes) -> Type:
            return self._infer(types)

        infer.__doc__ = f"The loop function {self.func.name}."
        operator(name, inputs=names, kind=FusionKind.OPAQUE, reference=self._reference)(infer)
        compute_of(name)(self._compute)

    def _infer(self, types: Types) -> Type:
        names = tuple(buffer.name for buffer in self.inputs)
        given = tensors(types, names)
        symbols: dict[Var, PrimExpr] = {}
        is_known = True
        for buffer, kind in zip(self.inputs, given, strict=True):
            if kind.dtype is not buffer.dtype:
                raise UserError(f"{buffer.name} of {self.func.name} must be {buffer.dtype}, it is {kind.dtype}")
            if kind.shape is None or None in kind.shape:
                is_known = False
                continue
            require_rank(kind.shape, len(buffer.shape), f"{buffer.name} of {self.func.name}")
            for axis, (declared, actual) in enumerate(zip(buffer.shape, kind.shape, strict=True)):
                assert actual is not None
                what = f"axis {axis} of {buffer.name} of {self.func.name}"
                if isinstance(declared, Var) and declared not in symbols:
                    symbols[declared] = actual
                elif not any(symbol not in symbols for symbol in variables(declared)):
                    agree(_simple(declared, symbols), actual, what)
        results = [
            TensorType(tuple(_simple(dim, symbols) for dim in buffer.shape) if is_known else None, buffer.dtype)
            for buffer in self.outputs
        ]
        return results[0] if len(results) == 1 else TupleType(tuple(results))

    def _reference(self, args: list[Array], attributes: NoAttributes) -> Array | tuple[Array, ...]:
        sizes: dict[Var, PrimExpr] = {}
        for buffer, array in zip(self.inputs, args, strict=True):
            for declared, size in zip(buffer.shape, array.shape, strict=True):
                if isinstance(declared, Var):
                    sizes.setdefault(declared, as_expr(size))
        results = {}
        for buffer in self.outputs:
            shape = [const_value(_simple(dim, sizes)) for dim in buffer.shape]
            results[buffer] = np.zeros([_number(size) for size in shape], buffer.dtype.numpy())
        places = dict(zip(self.inputs, args, strict=True)) | results
        interpret(self.func, *(places[buffer] for buffer in self.func.buffers))
        tensors = tuple(results.values())
        return tensors[0] if len(tensors) == 1 else tensors

    def _compute(self, inputs: list[Tensor], attributes: NoAttributes, result: Type) -> list[Tensor]:
        kinds = result.items if isinstance(result, TupleType) else (result,)
        shapes = [result_shape(kind) for kind in kinds]
        dtypes = [buffer.dtype for buffer in self.outputs]

        def build(sources: list[Buffer], targets: list[Buffer]) -> Stmt:
            return self._body([*sources, *targets])

        tensors = extern(shapes, inputs, build, self.func.name, dtypes)
        return list(tensors) if isinstance(tensors, tuple) else [tensors]

    def _body(self, places: Sequence[Buffer]) -> Stmt:
        """The function's statements on other buffers, whose sizes its symbols stand for."""
        own = [*self.inputs, *self.outputs]
        symbols: dict[Var, PrimExpr] = {}
        for buffer, place in zip(own, places, strict=True):
            for declared, actual in zip(buffer.shape, place.shape, strict=True):
                if isinstance(declared, Var):
                    symbols.setdefault(declared, actual)
        body = replace_buffers(self.func.body, dict(zip(own, places, strict=True)))
        return substitute(body, symbols)


def _is_written_first(func: PrimFunc, buffer: Buffer) -> bool:
    """Whether what a function reads of a result was written by itself: a reduction that begins, or an earlier store."""
    begun = [block.init for block in find_all(func.body, Block) if block.init is not None]
    if any(store.buffer is buffer for init in begun for store in find_all(init, BufferStore)):
        return True
    accesses = (item for item in pre_order(func.body) if isinstance(item, (BufferStore, BufferLoad)))
    first = next(item for item in accesses if item.buffer is buffer)
    if isinstance(first, BufferLoad):
        return False
    parts = (first.value, *first.indices)
    return not any(load.buffer is buffer for part in parts for load in find_all(part, BufferLoad))


def _simple(dim: PrimExpr, symbols: Mapping[Var, PrimExpr]) -> PrimExpr:
    return Analyzer().simplify(substitute(dim, symbols))


def _number(size: int | float | None) -> int:
    if size is None:
        raise CompilerBug("the size of a result is no number")
    return int(size)
