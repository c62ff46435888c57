"""Operands of float32 products lie as kernels read them: once turned round, for all products that read them.

Before:  matmul(x, dy, transpose_a=True)                     nn.conv2d(x, w[h, w, i, o])
After:   matmul(x', dy', transpose_b=True)                   nn.conv2d_by_filters(x, w'[o, h, w, i])
         with x' = transpose(x), dy' = transpose(dy)         with w' = transpose(w)

GPUs of NVIDIA copy operands sixteen bytes at a time. Warp groups multiply tf32 only along rows of steps. Operands
that lie otherwise, as those of gradients and weights that are trained do, would be turned round on their way to
shared memory, four bytes at a time, once for each tile that reads them: some ten times slower than a kernel that
turns them once. In true float32, threads want rows of columns of the second operand (and take the first as it is);
there the loss is a quarter.

CPUs read vectors of columns. A product of many rows turns its second operand itself; that would cost one of a few rows
more than it computes, and where many of these read one matrix (a recurrent weight, at each time step of training) it
is turned once for all of them.

Constants lie as kernels want them anyway. Operands of half precision may lie either way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from tilewright.graph.ir.expr import Call, Constant, Function, GraphExpr, Var
from tilewright.graph.ir.infer import fill_type
from tilewright.graph.ir.op import get_operator, is_call_to
from tilewright.graph.ir.rewrite import Bindings, P, Rule, apply_rules, make, static_shape
from tilewright.graph.ir.traverse import map_functions, post_order
from tilewright.graph.ops.contract import MatmulAttributes
from tilewright.graph.ops.convolution import Conv2dAttributes
from tilewright.graph.ops.shape import TransposeAttributes
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.round_operands import is_large_product
from tilewright.ir.function import IRModule
from tilewright.target.machine import cpu_parameters
from tilewright.target.tensor_cores import truncates_operands

_LEAST_SIDE: Final = 64
"""Rows and columns of a product in tf32 from which on its operands are worth a kernel of their own."""
_LEAST_ROWS: Final = 512
"""Rows of a product in true float32 from which on its second operand is."""
_MOST_OF_A_ROW: Final = 1
"""Rows of a product on a CPU that are dot products, whose operands lie well as they are,"""
_LEAST_READERS: Final = 4
"""and how many products of a few more rows are worth a kernel that turns an operand of all."""
_FILTERS_FIRST: Final = (3, 0, 1, 2)
"""From weights [h, w, i, o] to [o, h, w, i]."""


def operand_order(module: IRModule, options: GraphOptions) -> IRModule:
    """Turn operands of large float32 products the way that kernels of the target read them."""
    turned = _Turned()
    if truncates_operands(options.machine):
        rules = [
            Rule("steps of a product last", P.op("matmul", name="root"), _steps_last(turned)),
            Rule("filters of a convolution first", P.op("nn.conv2d", name="root"), _filters_first(turned)),
        ]
    elif options.machine.capabilities.async_copies:
        rules = [Rule("columns of a product last", P.op("matmul", name="root"), _columns_last(turned))]
    elif options.machine.is_cpu:
        return map_functions(module, lambda function: _shared_by_few_rows(turned, function, options))
    else:
        return module
    return map_functions(module, lambda function: apply_rules(function, rules))


def _shared_by_few_rows(turned: _Turned, function: Function, options: GraphOptions) -> Function:
    """The function whose products of few rows share second operands turned round, where many read one."""
    most = cpu_parameters(options.machine).register_tile.rows_for_copy - 1

    def is_one(call: GraphExpr) -> bool:
        shape = static_shape(call) if is_call_to(call, "matmul") else None
        if not isinstance(call, Call) or not isinstance(call.attributes, MatmulAttributes) or shape is None:
            return False
        return call.attributes.transpose_b and _MOST_OF_A_ROW < shape[-2] <= most and shape[-1] >= _LEAST_SIDE

    readers = Counter(id(item.args[1]) for item in post_order(function.body) if isinstance(item, Call) and is_one(item))

    def rewritten(b: Bindings) -> GraphExpr | None:
        call = b.call("root")
        shared = is_one(call) and readers[id(call.args[1])] >= _LEAST_READERS
        return _turn_matrices(turned, call, (False, True)) if shared else None

    return apply_rules(function, [Rule("columns that many read last", P.op("matmul", name="root"), rewritten)])


class _Turned:
    """Operands in another order of dimensions: one for all that read it."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, tuple[int, ...]], tuple[GraphExpr, GraphExpr]] = {}

    def of(self, item: GraphExpr, axes: Sequence[int]) -> GraphExpr:
        """An operand turned round; what only rounds something turned round is made from that directly."""
        key = (id(item), tuple(axes))
        if key not in self._made:
            # With the operand itself, whose identity stays its own as long as it is there.
            self._made[key] = item, self._make(item, tuple(axes))
        return self._made[key][1]

    def _make(self, item: GraphExpr, axes: tuple[int, ...]) -> GraphExpr:
        if isinstance(item, Call) and isinstance(item.attributes, TransposeAttributes):
            before = item.attributes.axes
            both = tuple(before[axis] for axis in axes)
            return item.args[0] if both == tuple(range(len(both))) else make("transpose", item.args[0], axes=both)
        if isinstance(item, Call) and is_call_to(item, "round_to_tf32") and _is_at_hand(item.args[0]):
            # What is rounded for another product need not be kept for this one.
            return make("round_to_tf32", self.of(item.args[0], axes), span=item.span)
        return make("transpose", item, axes=axes)


def _is_at_hand(item: GraphExpr) -> bool:
    """Whether a value is one of the model's inputs, or made of one by turning it round."""
    return isinstance(item, Var) or is_call_to(item, "transpose")


def _steps_last(turned: _Turned) -> Callable[[Bindings], GraphExpr | None]:
    def rewritten(b: Bindings) -> GraphExpr | None:
        call = b.call("root")
        attributes, shape = call.attributes, static_shape(call)
        assert isinstance(attributes, MatmulAttributes)
        if shape is None or not is_large_product(call) or min(shape[-2:]) < _LEAST_SIDE:
            return None
        return _turn_matrices(turned, call, (attributes.transpose_a, not attributes.transpose_b))

    return rewritten


def _columns_last(turned: _Turned) -> Callable[[Bindings], GraphExpr | None]:
    def rewritten(b: Bindings) -> GraphExpr | None:
        call = b.call("root")
        attributes, shape = call.attributes, static_shape(call)
        assert isinstance(attributes, MatmulAttributes)
        if shape is None or not is_large_product(call) or shape[-2] < _LEAST_ROWS or shape[-1] < _LEAST_SIDE:
            return None
        return _turn_matrices(turned, call, (False, attributes.transpose_b))

    return rewritten


def _turn_matrices(turned: _Turned, call: Call, wanted: tuple[bool, bool]) -> GraphExpr | None:
    """A product with some of its operands turned round, constants excepted; None where there is none to turn."""
    args = list(call.args)
    for place, (arg, is_wanted) in enumerate(zip(call.args, wanted, strict=True)):
        size = static_shape(arg)
        if is_wanted and size is not None and not isinstance(arg, Constant):
            rank = len(size)
            args[place] = turned.of(arg, (*range(rank - 2), rank - 1, rank - 2))
    changed = [new is not old for new, old in zip(args, call.args, strict=True)]
    if not any(changed):
        return None
    attributes = call.attributes
    assert isinstance(attributes, MatmulAttributes)
    transpose_a, transpose_b = attributes.transpose_a != changed[0], attributes.transpose_b != changed[1]
    return make("matmul", *args, transpose_a=transpose_a, transpose_b=transpose_b, span=call.span)


def _filters_first(turned: _Turned) -> Callable[[Bindings], GraphExpr | None]:
    def rewritten(b: Bindings) -> GraphExpr | None:
        call = b.call("root")
        attributes, (data, weight), shape = call.attributes, call.args, static_shape(call)
        assert isinstance(attributes, Conv2dAttributes)
        is_plain = attributes.kernel_layout == "HWIO" and attributes.groups == 1
        if shape is None or isinstance(weight, Constant) or not is_plain or not is_large_product(call):
            return None
        if shape[-1] < _LEAST_SIDE:
            return None
        changed = attributes.replace(kernel_layout="OHWI")
        operands = (data, turned.of(weight, _FILTERS_FIRST))
        return fill_type(call.replace(callee=get_operator("nn.conv2d_by_filters"), args=operands, attributes=changed))

    return rewritten
