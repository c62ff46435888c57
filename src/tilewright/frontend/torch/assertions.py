"""What a program asserts of the values that it computes: checked when the model runs, as torch checks it.

    torch._assert_async(x.min() > 0, "positive numbers only")   ->  host.require, which raises torch's message
    torch._check(torch.nonzero(x).shape[0] <= 10)               ->  sizes that must be equal (`conditions`)

An assertion gives no value that anything is computed from. It gives pairs of sizes that must be equal, which the
result of the graph that it is in is put under: one is the size of what `host.require` gives where the condition holds.
"""

from __future__ import annotations

from typing import Any

from tilewright.frontend.core.builder import evaluate
from tilewright.frontend.torch.builder import TorchBuilder
from tilewright.frontend.torch.conditions import Pair, related, truth_pair
from tilewright.frontend.torch.numbers import known_number
from tilewright.graph.ir.dimensions import Size, same
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import BOOL
from tilewright.ir.expr import Var as Symbol
from tilewright.support.errors import UnsupportedError, UserError

ASSERTIONS = frozenset(
    {
        "_assert_async",
        "_assert_scalar",
        "_assert_tensor_metadata",
        "sym_constrain_range",
        "sym_constrain_range_for_size",
        "_functional_assert_async",
        "_functional_assert_scalar",
    }
)
"""Operators that check something and compute nothing."""
UNSAID = "Expected Tensor with single nonzero value, but got zero"
"""What torch says of an assertion without a message."""


def assertion(b: TorchBuilder, name: str, arguments: dict[str, Any]) -> list[Pair]:
    """What must be equal for an assertion to hold; `arguments` are its own, conditions on sizes as torch has them."""
    condition = arguments.get("self")
    message = arguments.get("assert_msg", UNSAID)
    if name == "_assert_tensor_metadata":
        # Types and layouts are the same in every run, and shapes are those that torch says they are.
        return []
    if name.startswith("sym_constrain_range"):
        return _within(b, arguments["size"], arguments.get("min"), arguments.get("max"))
    if isinstance(condition, GraphExpr):
        return require(b, condition, message)
    known = known_number(condition)
    if known is not None:
        if not known:
            raise UserError(message)
        return []
    expression = getattr(getattr(condition, "node", None), "expr", None)
    if expression is None or not b.sizes.knows(expression):
        raise UnsupportedError(
            f"the program asserts '{message}', which is not understood",
            hint="assert it of a tensor: torch._assert_async(condition, message)",
        )
    return [pair for pair in [truth_pair(b.sizes, expression)] if not same(*pair)]


def require(b: TorchBuilder, condition: GraphExpr, message: str) -> list[Pair]:
    """The one element of a condition is not zero."""
    known = evaluate(condition)
    if known is not None:
        if not known:
            raise UserError(message)
        return []
    symbol = Symbol("held")
    b.call("host.require", b.reshape(b.cast(condition, BOOL), (1,)), message=message, dims=(symbol,))
    return [(symbol, 1)]


def constant_item(b: TorchBuilder, x: GraphExpr, value: bool | int | float) -> list[Pair]:
    """The element of a tensor is a number that torch knows."""
    found = b.call("equal", x, b.cast(b.constant(value), x.tensor_type.dtype))
    return require(b, found, f"the program is for a number that is {value}")


def _within(b: TorchBuilder, size: GraphExpr | Size, least: int | None, most: int | None) -> list[Pair]:
    """A number between bounds: a size, or one that a tensor holds."""
    pairs: list[Pair] = []
    for relation, name, bound in ((">=", "greater_equal", least), ("<=", "less_equal", most)):
        if bound is None:
            continue
        if isinstance(size, GraphExpr):
            pairs += require(
                b, b.compare(name, size, bound), f"Invalid value range: a number must be {relation} {bound}"
            )
        else:
            pairs.append(related(size, relation, bound))
    return [pair for pair in pairs if not same(*pair)]
