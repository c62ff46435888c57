"""Less memory for a step: what the way back reads of the way forward is computed again instead of kept.

The way forward ends with the loss. What the way back reads of it lives from the one to the other, and that is most of
the memory of a step. Results of cheap operators (activations, normalisations, softmax, what moves elements) are
computed a second time, from what is kept (results of products and convolutions, statistics), right before the way back
reads them:

    before:  c = conv(x), r = relu(c), ..., dw = weight_gradient(dy, r)              c and r, or r alone, live on
    after:   ..., r' = relu(after(c, dy)), dw = weight_gradient(dy, r')              c lives on

`after` keeps the second computation from becoming one with the first, and from starting early.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from tilewright.frontend.core.arithmetic import ArithmeticBuilder
from tilewright.graph.ir.expr import Call, Constant, Function, GraphExpr, Tuple
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import FusionKind, Operator
from tilewright.graph.ir.traverse import children, post_order, rewrite, with_children
from tilewright.graph.state import STATE
from tilewright.ir.function import IRModule
from tilewright.ir.types import TensorType
from tilewright.support.errors import UserError
from tilewright.train.model import main_of

_CHEAP_REDUCTIONS = frozenset({"nn.softmax", "nn.log_softmax", "nn.layer_norm", "nn.rms_norm"})
"""Operators that reduce, and give as many numbers as they read."""
_LEAST_BYTES = 4096
"""Values smaller than this are kept: they are not what memory goes to."""


def recomputed(module: IRModule) -> IRModule:
    """A step that keeps less from the way forward to the way back; the first result is the loss."""
    main = main_of(module)
    if not isinstance(main.body, Tuple):
        raise UserError("a step with control flow cannot be computed again in parts", hint="leave out memory=")
    declared = module.attributes.get(STATE, ())
    assert isinstance(declared, (tuple, list))
    return infer_types(module.with_function(_Recompute(main, {name for name, _ in declared}).run()))


class _Recompute:
    def __init__(self, main: Function, state: Collection[str]) -> None:
        assert isinstance(main.body, Tuple)
        self._main = main
        self._forward = {id(item) for item in post_order(main.body.items[0])}
        """The loss, and all that it is computed from."""
        self._again: dict[int, GraphExpr] = {}
        """Second computations, by what they compute."""
        self._of_data = {id(param) for param in main.params if param.name not in state}
        """What depends on the batch: not parameters, and what is computed of them alone."""
        self._builder = ArithmeticBuilder()
        for param in main.params:
            assert param.type is not None
            self._builder.declare(param.type)

    def run(self) -> Function:
        """The function with second computations."""
        for item in post_order(self._main.body):
            if any(id(part) in self._of_data for part in children(item)):
                self._of_data.add(id(item))
            if isinstance(item, Call) and self._extends_forward(item):
                self._forward.add(id(item))
        body = rewrite(self._main.body, self._replaced)
        return self._main.replace(body=body)

    def _extends_forward(self, item: Call) -> bool:
        """Whether the way back computes something cheap from the way forward alone: it is one more value of this."""
        parts = all(id(arg) in self._forward or isinstance(arg, Constant) for arg in item.args)
        return parts and self._is_quick(item)

    def _replaced(self, old: GraphExpr, new: GraphExpr) -> GraphExpr | None:
        if new.type is None:
            new.type = old.type
        if id(old) in self._forward or not isinstance(old, Call) or not isinstance(old.callee, Operator):
            return None
        parts = list(children(new))
        before = children(old)
        late = [at for at, arg in enumerate(before) if id(arg) not in self._forward and not isinstance(arg, Constant)]
        early = [at for at, arg in enumerate(before) if id(arg) in self._forward and self._is_cheap(arg)]
        if not late or not early:
            return None
        when = self._scalar_of(parts[late[0]])
        if when is None:
            return None
        for at in early:
            parts[at] = self._second(before[at], when)
        made = with_children(new, parts)
        made.type = old.type
        return made

    def _is_cheap(self, item: GraphExpr) -> bool:
        """Whether a value of the way forward is quick to compute again, and worth it."""
        return _bytes(item) >= _LEAST_BYTES and self._is_quick(item)

    def _is_quick(self, item: GraphExpr) -> bool:
        if not isinstance(item, Call) or not isinstance(item.callee, Operator):
            return False
        operator = item.callee
        quick = operator.kind is FusionKind.INJECTIVE or operator.name in _CHEAP_REDUCTIONS
        return quick and id(item) in self._of_data

    def _scalar_of(self, value: GraphExpr) -> GraphExpr | None:
        """One element of a value, which is there when the value is."""
        kind = value.type
        if not isinstance(kind, TensorType) or kind.static_shape is None or 0 in kind.static_shape:
            return None
        b, rank = self._builder, len(kind.static_shape)
        if not rank:
            return value
        first = b.call("slice", value, begin=(0,) * rank, end=(1,) * rank, strides=(1,) * rank)
        return b.reshape(first, ())

    def _second(self, root: GraphExpr, when: GraphExpr) -> GraphExpr:
        """A value of the way forward computed again, after a value of the way back."""
        stack: list[GraphExpr] = [root]
        while stack:
            item = stack[-1]
            if id(item) in self._again:
                stack.pop()
                continue
            if not self._is_cheap(item):
                self._again[id(item)] = self._kept(item, when)
                stack.pop()
                continue
            missing = [arg for arg in children(item) if id(arg) not in self._again]
            if missing:
                stack.extend(missing)
                continue
            made = with_children(item, [self._again[id(arg)] for arg in children(item)])
            made.type = item.type
            self._again[id(item)] = made
            stack.pop()
        return self._again[id(root)]

    def _kept(self, item: GraphExpr, when: GraphExpr) -> GraphExpr:
        """A value that is kept, as a second computation reads it."""
        if isinstance(item, Constant) or not isinstance(item.type, TensorType) or _bytes(item) < _LEAST_BYTES:
            return item
        return self._builder.call("after", item, when)


def _bytes(item: GraphExpr) -> int:
    kind = item.type
    if not isinstance(kind, TensorType) or kind.static_shape is None:
        return 0
    return math.prod(kind.static_shape) * kind.dtype.itemsize


def parse_bytes(text: str | int) -> int:
    """An amount of memory: a number of bytes, or a text such as "2GiB" or "500MB"."""
    units: Sequence[tuple[str, int]] = [
        *((f"{letter}iB", 1 << 10 * (power + 1)) for power, letter in enumerate("KMGT")),
        *((f"{letter}B", 10 ** (3 * (power + 1))) for power, letter in enumerate("KMGT")),
        ("B", 1),
    ]
    if isinstance(text, str):
        plain = text.strip().replace(" ", "")
        for unit, size in units:
            if plain.upper().endswith(unit.upper()):
                try:
                    return int(float(plain[: -len(unit)]) * size)
                except ValueError:
                    break
    elif isinstance(text, int) and not isinstance(text, bool) and text > 0:
        return text
    raise UserError(f"an amount of memory is a number of bytes or a text such as '2GiB', not {text!r}")
