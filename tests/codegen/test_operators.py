"""The rules that languages of kernels share: they know every node, and every language knows the same intrinsics."""

from __future__ import annotations

import pytest

from tilewright.backends.llvm import emit_intrinsics
from tilewright.backends.vulkan.expressions import SpirvExpressions
from tilewright.backends.webgpu.expressions import WgslExpressions
from tilewright.codegen.c.expressions import Expressions
from tilewright.codegen.operators import DIVISIONS, RULES, holds_all
from tilewright.ir import expr as e
from tilewright.ir import intrinsics
from tilewright.ir.dtype import DataType
from tilewright.ir.node import Node
from tilewright.tir.buffer import BufferLoad

INTEGERS = [DataType.of(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)]
ON_BITS = {"bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "shift_left", "shift_right", "popcount", "clz"}
LANGUAGES = [Expressions.intrinsics, WgslExpressions.intrinsics, SpirvExpressions.intrinsics, emit_intrinsics._TABLE]


def _kinds(kind: type[Node]) -> set[type[Node]]:
    return {kind}.union(*map(_kinds, kind.__subclasses__()))


def test_every_scalar_node_has_a_rule() -> None:
    abstract = {e.PrimExpr, e.BinaryExpr, e.CompareExpr}
    without = {
        kind for kind in _kinds(e.PrimExpr) - abstract - set(RULES) if kind.__module__.startswith("tilewright.ir")
    }
    # Vectors are taken apart before, texts are arguments of calls alone.
    assert without == {e.Ramp, e.Broadcast, e.StringImm}
    assert BufferLoad in RULES and set(DIVISIONS) <= set(RULES)


@pytest.mark.parametrize("table", LANGUAGES)
def test_languages_know_the_same_intrinsics(table: dict[str, object]) -> None:
    exact = set("isnan isinf isfinite abs reinterpret floor ceil round trunc sqrt fma copysign".split())
    assert exact | ON_BITS <= set(table)
    assert set(table) <= set(intrinsics.table), "a language has a rule for what is no intrinsic"


def test_types_that_hold_all_of_another() -> None:
    for source in INTEGERS:
        for target in INTEGERS:
            inside = target.min_value() <= source.min_value() and source.max_value() <= target.max_value()
            assert holds_all(source, target) == inside, (source, target)
