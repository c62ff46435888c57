"""A fused group of operators -> one loop program, through the operator library's tensor expressions."""

from __future__ import annotations

import numpy as np

from tilewright.graph.ir.dimensions import symbols_of
from tilewright.graph.ir.expr import Call, Constant, Function, GraphExpr, Tuple, TupleGet, Var
from tilewright.graph.ir.op import Operator
from tilewright.graph.ir.traverse import post_order
from tilewright.graph.passes.joint_results import JOINT
from tilewright.ir import small_floats
from tilewright.ir.build import cast, const
from tilewright.ir.dtype import BFLOAT16, FLOAT32
from tilewright.ir.expr import PrimExpr
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.types import TensorType, Type
from tilewright.ir.visit import variables
from tilewright.support.errors import CompilerBug, UnsupportedError, UserError
from tilewright.te.language import compute, compute_many, placeholder
from tilewright.te.program import create_prim_func
from tilewright.te.tensor import PlaceholderOp, Tensor
from tilewright.tir.function import CONSTANTS, PrimFunc
from tilewright.topi.library import compute_operator
from tilewright.topi.registry import result_shape


def lower_primitive(
    function: Function, name: str, constants: tuple[int, ...] = (), *, on_cpu: bool = False
) -> PrimFunc:
    """The unscheduled loop program of a primitive function: its parameters, then its results, as buffers.

    `constants` are the numbers of the parameters that are known at compile time; `on_cpu` if it is for a CPU.

    Before: a graph function `(x, w, b) -> relu(conv2d(x, w) + b)`. After: blocks `pad_data`, `conv2d`, `add`, `relu`.
    """
    inputs: list[Tensor] = []
    values: dict[int, list[Tensor]] = {}
    for position, param in enumerate(function.params):
        tensor = _input(param, position)
        inputs.append(tensor)
        values[id(param)] = [tensor]
    outputs = _results(function, values, on_cpu)
    func = create_prim_func([*inputs, *outputs], name)
    hidden = _hidden_symbols(function, func)
    if hidden:
        func = func.replace(params=(*func.params, *hidden))
    return func.replace(attributes={CONSTANTS: constants}) if constants else func


def _results(function: Function, values: dict[int, list[Tensor]], on_cpu: bool) -> list[Tensor]:
    """The results of a primitive function; `values` are the tensors of its parameters."""
    for item in post_order(function.body, closures=False):
        if id(item) not in values and not isinstance(item, Function):
            values[id(item)] = _lower(item, values, on_cpu)
    outputs = [_owned(tensor) for tensor in values[id(function.body)]]
    # The same tensor may be returned twice; each result needs a buffer of its own.
    seen: set[int] = set()
    for n, tensor in enumerate(outputs):
        if id(tensor) in seen:
            outputs[n] = _copy(tensor)
        seen.add(id(outputs[n]))
    if function.notes.get(JOINT):
        # Elements of all results are stored together, so that each may be written over what it replaces.
        outputs = list(compute_many(outputs[0].shape, lambda *i: tuple(item[i] for item in outputs), "joint"))
    return outputs


def kernel_symbols(func: PrimFunc) -> tuple[Symbol, ...]:
    """The symbols that a kernel takes after its buffers, in order (docs/abi.md)."""
    return (*(param for param in func.params if isinstance(param, Symbol)), *func.symbolic_dims())


def _hidden_symbols(function: Function, func: PrimFunc) -> list[Symbol]:
    """Symbols that a kernel computes with though no shape of its buffers has them: those of attributes."""
    attributes = [item.attributes for item in post_order(function) if isinstance(item, Call)]
    candidates = [symbol for item in attributes if item is not None for symbol in symbols_of(item)]
    if not candidates:
        return []
    known = set(func.symbolic_dims())
    used = set(variables(func.body))
    return [symbol for symbol in dict.fromkeys(candidates) if symbol in used and symbol not in known]


def _input(param: Var, position: int) -> Tensor:
    kind = param.type
    if not isinstance(kind, TensorType):
        raise CompilerBug(f"parameter {param.name} of a kernel is no tensor")
    return placeholder(_dims(kind), kind.dtype, f"p{position}")


def _dims(kind: Type) -> tuple[PrimExpr, ...]:
    return result_shape(kind)


def _lower(item: GraphExpr, values: dict[int, list[Tensor]], on_cpu: bool) -> list[Tensor]:
    if isinstance(item, Constant):
        return [_scalar(item)]
    if isinstance(item, Tuple):
        return [tensor for part in item.items for tensor in values[id(part)]]
    if isinstance(item, TupleGet):
        return [values[id(item.value)][item.index]]
    if isinstance(item, Call) and isinstance(item.callee, Function):
        given = {id(param): values[id(arg)] for param, arg in zip(item.callee.params, item.args, strict=True)}
        return _results(item.callee, given, on_cpu)
    if isinstance(item, Call) and isinstance(item.callee, Operator):
        operands = [tensor for arg in item.args for tensor in values[id(arg)]]
        assert item.type is not None
        try:
            return compute_operator(item.callee.name, operands, item.attributes, item.type, on_cpu=on_cpu)
        except UnsupportedError as error:
            raise UnsupportedError(error.message, where=str(item.span or item.callee.name), hint=error.hint) from error
        except UserError as error:
            raise UserError(error.message, where=str(item.span or item.callee.name), hint=error.hint) from error
    raise CompilerBug(f"{type(item).__name__} cannot be part of a kernel")


def _scalar(item: Constant) -> Tensor:
    """A one-element constant inside a kernel: a number in the code."""
    if item.data.size != 1:
        raise CompilerBug(f"a constant of shape {item.data.shape} inside a kernel: it should be a parameter")
    raw = item.data.reshape(()).item()
    value: PrimExpr
    if item.dtype is BFLOAT16:
        # Storage is 16 bits, the upper half of a float32.
        number = float(np.asarray(int(raw) << 16, np.uint32).view(np.float32))
        value = cast(const(number, FLOAT32), BFLOAT16)
    elif item.dtype.is_small_float:
        value = const(small_floats.value_of(int(raw), item.dtype.name), item.dtype)
    else:
        value = const(raw, item.dtype)
    return compute(tuple(item.data.shape), lambda *i: value, "constant")


def _copy(tensor: Tensor) -> Tensor:
    return compute(tensor.shape, lambda *i: tensor[i], f"{tensor.name}_copy")


def _owned(tensor: Tensor) -> Tensor:
    """A result must be computed here: an input passed through is copied."""
    return _copy(tensor) if isinstance(tensor.op, PlaceholderOp) else tensor
