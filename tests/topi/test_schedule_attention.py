"""The schedule of attention keeps its meaning, on sizes that divide and sizes that do not, constant and symbolic."""

from __future__ import annotations

import pytest

from tests.topi.scheduling import schedule_cpu
from tests.topi.test_schedule_cpu import TARGETS, check, check_symbolic, compare, kernel, kinds, var
from tilewright.graph.ir.expr import Var
from tilewright.graph.ir.op import call
from tilewright.ir import expr as ir
from tilewright.ir.structural import structural_equal
from tilewright.ir.types import tensor_type
from tilewright.ir.visit import find_all, uses_any
from tilewright.target import Target
from tilewright.tir.function import PrimFunc
from tilewright.tir.schedule import Trace, replay
from tilewright.tir.schedule.schedule import Schedule
from tilewright.tir.stmt import Block, For, LoopKind
from tilewright.topi.schedule.choices import Choices
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.cpu import strategy
from tilewright.topi.schedule.cpu.strategy import WHOLE_KERNELS
from tilewright.topi.schedule.template import apply_first

SIZES = [(1, 8, 16, 4, 8, 8), (2, 9, 33, 1, 5, 7), (1, 1, 35, 3, 16, 4), (1, 21, 1, 1, 1, 1)]


def attention(batch: int, rows: int, columns: int, heads: int, depth: int, width: int, mask: str = "") -> PrimFunc:
    query, key = var("q", batch, rows, heads, depth), var("k", batch, columns, heads, depth)
    inputs = [query, key, var("v", batch, columns, heads, width)]
    if mask:
        inputs.append(var("m", batch, 1, rows, columns, dtype=mask))
    return kernel(inputs, call("nn.attention", *inputs, scale=0.5, blind_is_zero=mask == "bool"))


@pytest.mark.grid
@pytest.mark.parametrize("target", list(TARGETS.values()), ids=list(TARGETS))
class TestAttention:
    @pytest.mark.parametrize("sizes", SIZES)
    def test_constant_sizes(self, target: Target, sizes: tuple[int, ...]) -> None:
        for mask in ("", "float32", "bool"):
            check(attention(*sizes, mask), target)

    def test_symbolic_lengths(self, target: Target) -> None:
        def make(n: int | ir.Var) -> PrimFunc:
            shapes = (("q", (1, n, 2, 8)), ("k", (1, n, 2, 8)), ("v", (1, n, 2, 8)), ("m", (1, 1, 1, n)))
            inputs = [Var(name, tensor_type(shape, "float32")) for name, shape in shapes]
            return kernel(inputs, call("nn.attention", *inputs, scale=0.25))

        assert LoopKind.VECTORIZED in kinds(check_symbolic(make, [1, 16, 41], target))

    def test_a_cache_of_symbolic_length(self, target: Target) -> None:
        def make(n: int | ir.Var) -> PrimFunc:
            shapes = (("q", (1, 1, 2, 8)), ("k", (1, n, 2, 8)), ("v", (1, n, 2, 8)))
            inputs = [Var(name, tensor_type(shape, "float32")) for name, shape in shapes]
            return kernel(inputs, call("nn.attention", *inputs))

        check_symbolic(make, [1, 37], target)

    def test_a_symbolic_batch_of_keys_that_are_no_whole_vectors(self, target: Target) -> None:
        def make(n: int | ir.Var) -> PrimFunc:
            shapes = (("q", (n, 21, 2, 8)), ("k", (n, 21, 2, 8)), ("v", (n, 21, 2, 6)))
            inputs = [Var(name, tensor_type(shape, "float32")) for name, shape in shapes]
            return kernel(inputs, call("nn.attention", *inputs))

        scheduled = check_symbolic(make, [1, 3], target)
        for name in ("attention_products", "attention_mixed"):
            (product,) = (block for block in find_all(scheduled.body, Block) if block.name == name)
            column = product.iters[3]
            assert not uses_any(product.predicate, list(find_all(column.value, ir.Var)))

    @pytest.mark.parametrize("queries", [4, 8, 16])
    def test_blocks_of_queries(self, target: Target, queries: int) -> None:
        func = attention(1, 19, 16, 2, 4, 4, "float32")
        compare(func, schedule_cpu(func, target, Choices({"queries": queries})))


def test_sums_over_an_open_number_of_keys_are_not_guarded() -> None:
    """Keys are padded to whole tiles: a guard in each step would keep sums out of registers, and multiply the code."""
    n = ir.Var("n")
    shapes = (("q", (1, 16, 2, 8)), ("k", (1, n, 2, 8)), ("v", (1, n, 2, 8)), ("m", (1, 1, 16, n)))
    for count in (3, 4):
        inputs = [Var(name, tensor_type(shape, "float32")) for name, shape in shapes[:count]]
        scheduled = schedule_cpu(kernel(inputs, call("nn.attention", *inputs)), TARGETS["neon"])
        blocks = {item.name: item for item in find_all(scheduled, Block)}
        assert not uses_any(blocks["attention_products"].predicate, [n])
        # What the mask is added to has a guard, for it has nothing past the last key.
        assert uses_any(blocks["attention_scores"].predicate, [n]) == (count == 4)


def test_cores_share_heads_or_blocks_of_queries() -> None:
    for heads, regions in ((8, 1), (3, 3)):
        func = attention(1, 128, 256, heads, 64, 64)
        scheduled = schedule_cpu(func, TARGETS["avx512"])
        loops = find_all(scheduled.body, For)
        assert sum(loop.kind is LoopKind.PARALLEL for loop in loops) == regions


def test_attention_is_scheduled_by_primitives_alone_whose_trace_replays() -> None:
    func = attention(1, 40, 48, 4, 16, 16, "float32")
    context = ScheduleContext(Schedule(func), TARGETS["avx512"])
    assert apply_first(WHOLE_KERNELS, context).name == "attention"
    compare(func, context.sch.func)
    assert not {item.kind for item in context.sch.trace.instructions} & {"replace_by_equivalent", "unsafe_set_dtype"}
    replayed = replay(Trace.from_json(context.sch.trace.to_json()), func)
    assert structural_equal(replayed.func, context.sch.func)


def test_attention_of_nothing_is_left_to_other_templates() -> None:
    for sizes in ((1, 0, 8, 2, 4, 4), (1, 8, 8, 2, 0, 4), (1, 8, 8, 2, 4, 0)):
        func = attention(*sizes)
        (choice,) = strategy.schedule_cpu(func, TARGETS["avx512"]).templates
        assert ("attention", "no elements") in [(item.name, item.reason) for item in choice.passed_over]
        check(func, TARGETS["avx512"])
