"""Two products with only elementwise operators between them: in parts of the values between, which then stay near.

Before:  matmul(gelu(matmul(x, a) + b), c)
After:   y = matmul(gelu(matmul(x, a[:, :n]) + b[:n]), c[:n])
         y = matmul(gelu(matmul(x, a[:, n:2n]) + b[n:2n]), c[n:2n]) + y       and so on

For CPUs, where the hidden values of all rows are too much for the second cache level and those of a part are not: they
would go to the next level and come back, and the sums of the second product be added up in parts at any rate. Each
part's sums begin at those before, in their place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from math import prod

import numpy as np

from tilewright.graph.choices import GraphChoices
from tilewright.graph.expr import Call, Constant, Function, GraphExpr
from tilewright.graph.infer import fill_type
from tilewright.graph.op import Operator, is_call_to
from tilewright.graph.ops.contract import MatmulAttributes
from tilewright.graph.rewrite import Bindings, P, Rule, apply_rules, make, static_shape
from tilewright.graph.traverse import map_functions
from tilewright.ir.dtype import FLOAT32
from tilewright.ir.function import IRModule
from tilewright.target import Target

_CACHE_SHARE = 0.375
"""The part of the second cache level for the hidden values of a part and a panel of weights."""
_PANEL = 48
"""Columns of such a panel, about."""
_LEAST_ROWS = 64
"""With fewer rows reading weights is most of the work, in whatever order."""
_LEAST_PART, _MOST_PARTS = 512, 8
"""Sums are read and written once for each part."""
_ALIASED = 1024
"""Rows at a multiple of so many elements from each other fall on the same places of the first cache level;"""
_WORTH_LESS = 0.6
"""parts that avoid this may be so much smaller."""
_MOST_CORES = 4
"""More cores have hidden values of each other to read, through the next level. For two to four that is not estimated,
but asked."""


def hidden_parts(module: IRModule, target: Target, choices: GraphChoices | None = None) -> IRModule:
    """Compute products of products in parts on one core of a CPU, and on few where that was measured to be quicker."""
    if not target.is_cpu or target.cores > _MOST_CORES:
        return module
    rule = Rule(
        "products in parts",
        P.op("matmul", name="last"),
        partial(_in_parts, target, GraphChoices() if choices is None else choices),
    )

    def rewritten(function: Function) -> Function:
        return apply_rules(function, [rule])

    result = map_functions(module, rewritten)
    assert isinstance(result, IRModule)
    return result


def _in_parts(target: Target, choices: GraphChoices, b: Bindings) -> GraphExpr | None:
    last = b.call("last")
    weights, shape = _weights(last), static_shape(last.args[0])
    if weights is None or shape is None or len(shape) < 2 or 0 in shape:
        return None
    size = _part(prod(shape[:-1]), shape[-1], target)
    if size is None:
        return None
    between = _Between(b, shape)
    if not between.enter(last.args[0]) or not between.is_closed():
        return None
    estimated = "parts" if target.cores == 1 else "whole"
    if choices.choose([*between.products, last], ("whole", "parts"), estimated) == "whole":
        return None
    total: GraphExpr | None = None
    for begin in range(0, shape[-1], size):
        part = slice(begin, begin + size)
        hidden = between.part(last.args[0], part, {})
        product = make("matmul", hidden, _like(weights[part], last.args[1]), span=last.span)
        total = product if total is None else make("add", product, total, span=last.span)
    return total


def _part(rows: int, depth: int, target: Target) -> int | None:
    """How many hidden values of each row make a part; None where there is nothing to gain."""
    most = int(target.l2_bytes * _CACHE_SHARE) // ((rows + _PANEL) * FLOAT32.itemsize)
    if most >= depth or rows < _LEAST_ROWS:
        return None
    lanes = target.lanes(FLOAT32.bits)
    sizes = [
        size
        for size in range(_LEAST_PART, most + 1)
        if depth % size == 0 and depth // size <= _MOST_PARTS and size % lanes == 0
    ]
    if not sizes:
        return None
    apart = [size for size in sizes if size % _ALIASED and size >= _WORTH_LESS * sizes[-1]]
    return max(apart or sizes)


def _weights(call: GraphExpr) -> np.ndarray | None:
    """The constant matrix [k, j] of a product in single precision."""
    if not is_call_to(call, "matmul"):
        return None
    assert isinstance(call, Call) and isinstance(call.attributes, MatmulAttributes)
    matrix = call.args[1]
    if not isinstance(matrix, Constant) or matrix.data.ndim != 2 or call.attributes.transpose_a:
        return None
    if call.tensor_type.dtype is not FLOAT32 or matrix.tensor_type.dtype is not FLOAT32:
        return None
    return matrix.data.T if call.attributes.transpose_b else matrix.data


def _like(data: np.ndarray, old: GraphExpr) -> Constant:
    made = Constant(np.ascontiguousarray(data), old.tensor_type.dtype)
    made.span = old.span
    fill_type(made)
    return made


@dataclass(eq=False)
class _Between:
    """What lies between two products: operators on hidden values of one shape, and the products that they begin at."""

    bindings: Bindings
    shape: tuple[int, ...]
    products: list[Call] = field(default_factory=list)
    _reads: dict[int, int] = field(default_factory=dict)
    _found: dict[int, GraphExpr] = field(default_factory=dict)

    def enter(self, item: GraphExpr) -> bool:
        """Take a value and all that it is made of; False where something else is among it."""
        if isinstance(item, Constant):
            return item.data.size == 1 or item.data.shape[-1:] == (item.data.size,) == self.shape[-1:]
        self._reads[id(item)] = self._reads.get(id(item), 0) + 1
        if id(item) in self._found:
            return True
        self._found[id(item)] = item
        if not isinstance(item, Call) or static_shape(item) != self.shape:
            return False
        if _weights(item) is not None:
            self.products.append(item)
            return True
        is_elementwise = isinstance(item.callee, Operator) and item.callee.elementwise
        return is_elementwise and all(self.enter(part) for part in item.args)

    def is_closed(self) -> bool:
        """Whether there is a product, and nobody else reads anything of this."""
        return bool(self.products) and all(
            self.bindings.uses(item) == self._reads[number] for number, item in self._found.items()
        )

    def part(self, item: GraphExpr, part: slice, made: dict[int, GraphExpr]) -> GraphExpr:
        """A value for some columns only; `made` has what is known of these."""
        if isinstance(item, Constant):
            return item if item.data.size == 1 else _like(item.data[..., part], item)
        if id(item) not in made:
            assert isinstance(item, Call)
            weights = _weights(item)
            if weights is not None:
                columns = _like(weights[:, part], item.args[1])
                made[id(item)] = make("matmul", item.args[0], columns, span=item.span)
            else:
                args = tuple(self.part(operand, part, made) for operand in item.args)
                made[id(item)] = fill_type(item.replace(args=args))
        return made[id(item)]
