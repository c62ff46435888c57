"""Attention is found however a model writes it, keeps its meaning, and what is no attention stays."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.helpers import function, op, random, var
from tilewright.graph.interpreter import evaluate, to_bfloat16
from tilewright.graph.ir.expr import Constant, GraphExpr, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.traverse import post_order
from tilewright.graph.ops.attention import ANY_DIAGONAL
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.attention import attention
from tilewright.graph.passes.canonicalize import canonicalize
from tilewright.ir.dtype import BFLOAT16, DataType
from tilewright.ir.function import IRModule
from tilewright.target import Target

CPU = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512")
BATCH, ROWS, COLUMNS, HEADS, SIZE = 2, 5, 7, 3, 4


def module(body: GraphExpr, *inputs: GraphExpr) -> IRModule:
    return infer_types(IRModule([function(list(inputs), body)]))


def operators(found: IRModule, name: str) -> list[GraphExpr]:
    return [item for item in post_order(found["main"]) if is_call_to(item, name)]


def heads(x: GraphExpr, *axes: int) -> GraphExpr:
    return op("transpose", x, axes=axes)


def infer_var(name: str, *shape: int) -> GraphExpr:
    """A parameter whose type expressions may ask for."""
    made = var(name, *shape)
    made.type = made.annotation
    return made


def number(value: float) -> GraphExpr:
    return constant(np.float32(value))


def check(before: IRModule, shapes: list[tuple[int, ...]], found: int = 1) -> IRModule:
    after = attention(before, GraphOptions(target=CPU))
    assert len(operators(after, "nn.attention")) == found
    arrays = [random(n, *shape) for n, shape in enumerate(shapes)]
    np.testing.assert_allclose(evaluate(after, *arrays), evaluate(before, *arrays), rtol=1e-5, atol=1e-6)
    return after


QUERY, KEY = (BATCH, ROWS, HEADS, SIZE), (BATCH, COLUMNS, HEADS, SIZE)


def inputs() -> tuple[GraphExpr, GraphExpr, GraphExpr]:
    return var("q", *QUERY), var("k", *KEY), var("v", *KEY)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("scaled", ["after", "none", "first"])
@pytest.mark.parametrize("masks", [0, 1, 2])
def test_heads_of_projections(turned: bool, scaled: str, masks: int) -> None:
    q, k, v = inputs()
    keys = heads(k, 0, 2, 1, 3) if turned else heads(k, 0, 2, 3, 1)
    queries = heads(q, 0, 2, 1, 3)
    if scaled == "first":
        queries = op("multiply", queries, number(0.5))
    scores = op("matmul", queries, keys, transpose_b=turned)
    if scaled == "after":
        scores = op("multiply", number(0.5), scores)
    shapes = [(BATCH, 1, 1, COLUMNS), (ROWS, COLUMNS)][:masks]
    given = [var(f"m{n}", *shape) for n, shape in enumerate(shapes)]
    for mask in given:
        scores = op("add", mask, scores)
    body = op("matmul", op("nn.softmax", scores, axis=3), heads(v, 0, 2, 1, 3))
    before = module(heads(body, 0, 2, 1, 3), q, k, v, *given)
    after = check(before, [QUERY, KEY, KEY, *shapes])
    if scaled != "first":
        assert not operators(canonicalize(after), "transpose")


def test_products_without_heads() -> None:
    shapes = [(3, 5, 4), (3, 7, 4), (3, 7, 6), (3, 5, 7)]
    q, k, v, mask = (var(name, *shape) for name, shape in zip("qkvm", shapes, strict=True))
    scores = op("add", op("matmul", q, k, transpose_b=True), mask)
    body = op("matmul", op("nn.softmax", scores, axis=2), v)
    check(module(body, q, k, v, mask), shapes)


@pytest.mark.parametrize("blind", ["", "zero", "finite"])
@pytest.mark.parametrize("inverted", [False, True])
def test_masks_that_hide(blind: str, inverted: bool) -> None:
    """What a query gives that sees no key: NaN, 0, or 0 of a softmax that never meets such a row."""
    q, k, v = inputs()
    rows = np.arange(ROWS)[:, None] >= np.arange(COLUMNS)
    masks = [rows, np.arange(COLUMNS) != (0 if blind else 3)]
    scores: GraphExpr = op("multiply", op("matmul", heads(q, 0, 2, 1, 3), heads(k, 0, 2, 3, 1)), number(0.25))
    for mask in masks:
        hidden = number(-np.inf)
        if inverted:
            scores = op("where", constant(~mask), hidden, scores)
        else:
            scores = op("where", constant(mask), scores, hidden)
    sees_none = op("equal", op("max", scores, axes=(3,), keepdims=True), number(-np.inf))
    seen = op("where", sees_none, number(0), scores) if blind == "finite" else scores
    weights: GraphExpr = op("nn.softmax", seen, axis=3)
    if blind:
        weights = op("where", sees_none, number(0), weights)
    before = module(op("matmul", weights, heads(v, 0, 2, 1, 3)), q, k, v)
    after = check(before, [QUERY, KEY, KEY])
    (call,) = operators(after, "nn.attention")
    assert call.attributes.blind_is_zero == bool(blind)
    assert call.args[3].tensor_type.dtype.is_bool
    assert (call.attributes.first, call.attributes.last) == (-ANY_DIAGONAL, 0)


@pytest.mark.parametrize("written", ["places", "truth values", "numbers"])
@pytest.mark.parametrize(("first", "last"), [(-ANY_DIAGONAL, 0), (-2, 1), (-ANY_DIAGONAL, COLUMNS - ROWS)])
def test_masks_of_diagonals(written: str, first: int, last: int) -> None:
    """Causal masks and windows are two numbers, however they are written; another kind of mask may come with them."""
    q, k, v = inputs()
    extra = var("m", BATCH, 1, 1, COLUMNS)
    scores: GraphExpr = op("matmul", heads(q, 0, 2, 1, 3), heads(k, 0, 2, 3, 1))
    distance = np.arange(COLUMNS) - np.arange(ROWS)[:, None]
    seen = (first <= distance) & (distance <= last)
    if written == "numbers":
        scores = op("add", scores, constant(np.where(seen, 0, -np.inf).astype(np.float32)))
    elif written == "truth values":
        scores = op("where", constant(seen), scores, number(-np.inf))
    else:
        column = op("arange", count=COLUMNS)
        rows = [op("reshape", op("arange", count=ROWS, start=start), shape=(ROWS, 1)) for start in (last, first)]
        shown = op("greater_equal", rows[0], column)
        if first > -ANY_DIAGONAL:
            shown = op("logical_and", shown, op("logical_not", op("less", column, rows[1])))
        scores = op("where", shown, scores, number(-np.inf))
    body = op("matmul", op("nn.softmax", op("add", scores, extra), axis=3), heads(v, 0, 2, 1, 3))
    after = check(module(body, q, k, v, extra), [QUERY, KEY, KEY, (BATCH, 1, 1, COLUMNS)])
    (call,) = operators(after, "nn.attention")
    assert (call.attributes.first, call.attributes.last) == (first, last)
    assert call.args[3] is extra


@pytest.mark.parametrize("kind", ["scattered", "of a sequence each", "places two apart", "halves, not places"])
def test_masks_of_no_diagonals(kind: str) -> None:
    """Other masks stay masks."""
    table = np.tri(ROWS, COLUMNS, dtype=bool)
    mask: GraphExpr = constant(table)
    if kind == "scattered":
        table[4, 1] = False
    elif kind == "of a sequence each":
        mask = constant(np.stack([table, table])[:, None])
    elif kind == "halves, not places":
        # Neighbours among numbers of bfloat16, whose storage grows by one.
        rows, columns = (np.arange(count, dtype=np.uint16) + 0x3F80 for count in (ROWS, COLUMNS))
        mask = op("greater_equal", Constant(rows[:, None], BFLOAT16), Constant(columns, BFLOAT16))
    else:
        rows = op("reshape", op("arange", count=ROWS, step=2), shape=(ROWS, 1))
        mask = op("greater_equal", rows, op("arange", count=COLUMNS))
    q, k, v = inputs()
    scores = op("where", mask, op("matmul", heads(q, 0, 2, 1, 3), heads(k, 0, 2, 3, 1)), number(-np.inf))
    body = op("matmul", op("nn.softmax", scores, axis=3), heads(v, 0, 2, 1, 3))
    (call,) = operators(check(module(body, q, k, v), [QUERY, KEY, KEY]), "nn.attention")
    assert call.attributes.sees_all and len(call.args) == 4


def test_masks_of_two_kinds_stay() -> None:
    q, k, v = inputs()
    scores = op("matmul", heads(q, 0, 2, 1, 3), heads(k, 0, 2, 3, 1))
    scores = op("where", constant(np.arange(COLUMNS) != 1), scores, number(-np.inf))
    scores = op("add", scores, constant(random(5, ROWS, COLUMNS)))
    body = op("matmul", op("nn.softmax", scores, axis=3), heads(v, 0, 2, 1, 3))
    check(module(body, q, k, v), [QUERY, KEY, KEY], found=0)


def _plain(**changes: object) -> tuple[IRModule, list[tuple[int, ...]]]:
    """Attention with something about it changed."""
    q, k, v = inputs()
    scores = op("matmul", heads(q, 0, 2, 1, 3), heads(k, 0, 2, 3, 1))
    if changes.get("divided"):
        scores = op("tanh", scores)
    weights = op("nn.softmax", scores, axis=changes.get("axis", 3))
    body = op("matmul", weights, heads(v, 0, 2, 1, 3))
    if changes.get("again") == "weights":
        body = op("add", body, op("sum", weights, axes=(3,), keepdims=True))
    if changes.get("again") == "scores":
        body = op("add", body, op("sum", scores, axes=(3,), keepdims=True))
    return module(body, q, k, v), [QUERY, KEY, KEY]


def test_plain_attention_is_found() -> None:
    check(*_plain())


@pytest.mark.parametrize("changes", [{"divided": True}, {"axis": 2}, {"again": "weights"}, {"again": "scores"}])
def test_what_is_something_else_stays(changes: dict[str, object]) -> None:
    check(*_plain(**changes), found=0)


def test_keys_of_one_head_are_shared() -> None:
    shapes = [QUERY, (BATCH, COLUMNS, 1, SIZE), (BATCH, COLUMNS, 1, SIZE)]
    q, k, v = (var(name, *shape) for name, shape in zip("qkv", shapes, strict=True))
    scores = op("matmul", heads(q, 0, 2, 1, 3), heads(k, 0, 2, 3, 1))
    body = op("matmul", op("nn.softmax", scores, axis=3), heads(v, 0, 2, 1, 3))
    after = check(module(body, q, k, v), shapes)
    (found,) = operators(after, "nn.attention")
    assert found.args[1].tensor_type.static_shape == shapes[1]


def repeated(x: GraphExpr, how: str) -> GraphExpr:
    """Each of two heads of (batch, heads, places, size) three times in a row."""
    batch, shared, places, size = x.tensor_type.static_shape
    if how == "take":
        return op("take", x, constant(np.repeat(np.arange(shared), 3)), axis=1)
    spread = op("reshape", x, shape=(batch, shared, 1, places, size))
    spread = op("broadcast_to", spread, shape=(batch, shared, 3, places, size))
    return op("reshape", spread, shape=(batch, 3 * shared, places, size))


@pytest.mark.parametrize("how", ["broadcast", "take"])
@pytest.mark.parametrize("turned", [False, True])
def test_groups_of_queries_share_keys(how: str, turned: bool) -> None:
    """Repeated heads are read where they are, by their order in memory, with a cache that others read too."""
    shapes = [(BATCH, 6, ROWS, SIZE), (BATCH, 2, COLUMNS, SIZE), (BATCH, 2, COLUMNS, SIZE)]
    q, k, v = (infer_var(name, *shape) for name, shape in zip("qkv", shapes, strict=True))
    keys = repeated(k, how)
    scores = op("matmul", q, op("transpose", keys, axes=(0, 1, 3, 2)) if turned else keys, transpose_b=not turned)
    body = op("matmul", op("nn.softmax", scores, axis=3), repeated(v, how))
    after = check(module(body, q, k, v), shapes)
    (found,) = operators(after, "nn.attention")
    assert not operators(after, "broadcast_to") and not operators(after, "take")
    assert found.attributes.values_by_head
    assert found.args[2] is after["main"].params[2]


def test_heads_that_are_repeated_in_another_order_are_no_groups() -> None:
    shapes = [(BATCH, 4, ROWS, SIZE), (BATCH, 2, COLUMNS, SIZE), (BATCH, 2, COLUMNS, SIZE)]
    q, k, v = (infer_var(name, *shape) for name, shape in zip("qkv", shapes, strict=True))
    keys, values = (op("take", item, constant(np.array([0, 1, 0, 1])), axis=1) for item in (k, v))
    body = op("matmul", op("nn.softmax", op("matmul", q, keys, transpose_b=True), axis=3), values)
    after = check(module(body, q, k, v), shapes)
    assert len(operators(after, "take")) == 2


@pytest.mark.parametrize(
    ("target", "dtype", "queries", "size", "found"),
    [
        ("cuda -arch=sm_90", "float16", 17, 20, 1),
        ("cuda -arch=sm_80", "bfloat16", 17, 20, 1),
        ("cuda -arch=sm_90", "float32", 17, 20, 1),
        ("cuda -arch=sm_90", "float16", 1, 20, 1),
        ("cuda -arch=sm_90", "float16", 17, 200, 1),
        ("cuda -arch=sm_90", "float16", 17, 264, 0),
        ("cuda -arch=sm_90", "float32", 17, 200, 0),
        ("cuda -arch=sm_75", "float16", 32, 64, 0),
        ("opencl", "float32", 17, 20, 0),
        ("opencl", "float32", 32, 32, 1),
    ],
)
def test_devices_take_what_one_kernel_computes(target: str, dtype: str, queries: int, size: int, found: int) -> None:
    """Keys in tiles are for all sizes; elsewhere sizes must fill threads."""
    q = var("q", 1, queries, 2, size, dtype=dtype)
    k, v = (var(name, 1, 32, 2, size, dtype=dtype) for name in "kv")
    scores = op("matmul", heads(q, 0, 2, 1, 3), heads(k, 0, 2, 3, 1))
    before = module(op("matmul", op("nn.softmax", scores, axis=3), heads(v, 0, 2, 1, 3)), q, k, v)
    assert len(operators(attention(before, GraphOptions(target=Target(target))), "nn.attention")) == found


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_float32_inside_on_processors(dtype: str) -> None:
    """Results are rounded once: nearer to the true ones than products and softmax that each round."""
    q, k, v = (var(name, 1, 4, 2, 8, dtype=dtype) for name in "qkv")
    mask = var("mask", 4, 4, dtype=dtype)
    scores = op("add", op("matmul", heads(q, 0, 2, 1, 3), heads(k, 0, 2, 3, 1)), mask)
    before = module(op("matmul", op("nn.softmax", scores, axis=3), heads(v, 0, 2, 1, 3)), q, k, v, mask)
    (found,) = operators(attention(before, GraphOptions(target=CPU)), "nn.attention")
    assert [item.tensor_type.dtype.name for item in (found, *found.args)] == ["float32"] * 5
    assert {
        item.tensor_type.dtype.name for item in operators(attention(before, GraphOptions(target=CPU)), "transpose")
    } >= {dtype}


@pytest.mark.parametrize(
    ("dtype", "quarter", "hidden"),
    [
        ("float16", np.float16(0.25), np.float16(-np.inf)),
        ("bfloat16", to_bfloat16(np.float32(0.25)), to_bfloat16(np.float32(-np.inf))),
    ],
)
def test_numbers_are_read_as_their_type_says(dtype: str, quarter: np.ndarray, hidden: np.ndarray) -> None:
    """The storage of bfloat16 is integers: 0.25 lies there as 16000."""
    q, k, v = (var(name, 1, 4, 2, 8, dtype=dtype) for name in "qkv")
    scale, hide = (Constant(np.asarray(item), DataType.of(dtype)) for item in (quarter, hidden))
    scores = op("multiply", op("matmul", heads(q, 0, 2, 1, 3), heads(k, 0, 2, 3, 1)), scale)
    scores = op("where", constant(np.tri(4, 4, dtype=bool)), scores, hide)
    before = module(op("matmul", op("nn.softmax", scores, axis=3), heads(v, 0, 2, 1, 3)), q, k, v)
    (call,) = operators(attention(before, GraphOptions(target=CPU)), "nn.attention")
    assert (call.attributes.scale, call.attributes.last) == (0.25, 0)


def test_half_precision_is_rounded_once() -> None:
    rng = np.random.default_rng(5)
    arrays = [rng.uniform(-2, 2, (1, 6, 2, 8)).astype(np.float16) for _ in range(3)]
    q, k, v = (var(name, 1, 6, 2, 8, dtype="float16") for name in "qkv")
    scores = op("matmul", heads(q, 0, 2, 1, 3), heads(k, 0, 2, 3, 1))
    before = module(op("matmul", op("nn.softmax", scores, axis=3), heads(v, 0, 2, 1, 3)), q, k, v)
    wide = [array.astype(np.float64).transpose(0, 2, 1, 3) for array in arrays]
    weights = np.exp(wide[0] @ wide[1].swapaxes(2, 3))
    exact = weights / weights.sum(axis=3, keepdims=True) @ wide[2]
    result = evaluate(attention(before, GraphOptions(target=CPU)), *arrays)
    assert isinstance(result, np.ndarray)
    assert np.abs(result - exact).max() <= 0.5 * np.spacing(np.float16(np.abs(exact).max())) + 1e-6
