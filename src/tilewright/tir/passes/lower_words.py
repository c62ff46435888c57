"""Products of the bytes of words become an instruction that adds them to a sum, or arithmetic.

    sums[0] = sums[0] + dot4(a[0], b[0])   ->   sums[0] = gpu.dot4(sums[0], a[0], b[0])        (where there is one)
                                           ->   sums[0] = sums[0] + (byte 0 of a * byte 0 of b + ...)

Words of four bytes are put together by arithmetic too, where no code generator reads them at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tilewright.ir.build import const
from tilewright.ir.expr import Add, Call, PrimExpr
from tilewright.tir.expansion import words
from tilewright.tir.function import PrimFunc
from tilewright.tir.machine import DOT4
from tilewright.tir.rewrite.statements import ExprRewriter, StmtRewriter


@dataclass(frozen=True, slots=True)
class LowerWordsOptions:
    """What the processor does with words."""

    has_dot4: bool = False
    """Whether an instruction adds the products of two words' bytes to a sum."""
    reads_words: bool = False
    """Whether the code generator reads four neighbouring bytes at once."""


_PLAIN = LowerWordsOptions()
_NAMES: Final = frozenset(("dot4", "word", DOT4))


def lower_words(func: PrimFunc, options: LowerWordsOptions = _PLAIN) -> PrimFunc:
    """The function without `dot4`, and without `word` where that means nothing to the code generator."""

    def lowered(expr: PrimExpr) -> PrimExpr | None:
        if options.has_dot4 and type(expr) is Add:
            for total, product in ((expr.a, expr.b), (expr.b, expr.a)):
                if _is_fresh_product(product):
                    assert isinstance(product, Call)
                    return Call(DOT4, (total, *product.args[1:]), expr.dtype)
        if type(expr) is not Call:
            return None
        if expr.name == "dot4":
            if options.has_dot4:
                return Call(DOT4, (const(0, expr.dtype), *expr.args), expr.dtype)
            return words.dot4(*expr.args)
        return words.joined_bytes(expr.args) if expr.name == "word" and not options.reads_words else None

    rewriter = StmtRewriter()
    rewriter.expr = ExprRewriter(lowered, lambda parts: not parts.isdisjoint(_NAMES))  # type: ignore[method-assign]
    return func.replace(body=rewriter.stmt(func.body))


def _is_fresh_product(item: PrimExpr) -> bool:
    """Whether a value is the instruction with a sum of zero: children are lowered first."""
    return type(item) is Call and item.name == DOT4 and item.args[0] is const(0, item.dtype)
