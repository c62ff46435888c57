"""Attention: products, softmax and products again become one operator, which keeps scores in the near caches.

Before:  q, k, v = transpose(x, (0, 2, 1, 3)), ...                       (batch, heads, places, size)
         matmul(softmax(matmul(q, k') * scale + mask), v)
After:   transpose(nn.attention(x, ..., mask, scale), (0, 2, 1, 3))      (batch, places, heads, size)

The operator reads heads where projections leave them, side by side: the changes of order around attention cancel with
those that are put in here. Keys and values whose heads are repeated for groups of queries' heads are read as they are
before that. Products without heads (of three dimensions) are attention of one head. Masks may be added,
or hide: where(seen, scores, -inf); those of diagonals (causal, of a sliding window; `diagonals.py`) become two numbers.
Queries that see nothing may give 0: where(max(scores) == -inf, 0, softmax(scores)),
or, with a gradient that is a number too, where(max(scores) == -inf, 0, softmax(where(max(scores) == -inf, 0, scores))).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce

import numpy as np

from tilewright.graph.interpreter import numbers_of
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import Call, Constant, GraphExpr, Var
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.rewrite import Bindings, P, Rule, apply_rules, known_sizes, make
from tilewright.graph.ir.traverse import map_functions
from tilewright.graph.ops.attention import ANY_DIAGONAL, Diagonals
from tilewright.graph.ops.contract import MatmulAttributes
from tilewright.graph.ops.indexing import TakeAttributes
from tilewright.graph.ops.normalization import SoftmaxAttributes
from tilewright.graph.ops.reduce import ReduceAttributes
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.diagonals import common_diagonals, diagonals_of
from tilewright.ir.dtype import FLOAT32, DataType
from tilewright.ir.function import IRModule
from tilewright.target import Target
from tilewright.target.machine import gpu_parameters

_HALVES = ("float16", "bfloat16")
"""Types of attention on tensor cores."""
_TYPES = ("float32", "float64", *_HALVES)
"""Types of attention; processors compute that of 16 bits in float32 and round once."""
_MOST_SIZE = 256
"""Sizes of a head up to which the results of a block of queries stay in registers and the near caches."""
_HEADS_LAST = (0, 2, 1, 3)
"""Axes of a transpose between (batch, heads, places, size) and (batch, places, heads, size)."""


def attention(module: IRModule, options: GraphOptions) -> IRModule:
    """Put attention in the place of the operators that make it up; on GPUs, where one kernel computes it."""
    target = options.machine
    rules = RULES if target.is_cpu else (Rule(_NAME, _PATTERN, partial(_replace_on_gpu, target)),)
    return map_functions(module, lambda function: apply_rules(function, rules))


@dataclass(frozen=True)
class _Scores:
    """What the softmax is taken of: products, multiplied by a number, with masks of one kind."""

    product: Call
    scale: float
    masks: tuple[GraphExpr, ...]
    """Numbers to add, or truth values that are false where a key is hidden."""
    diagonals: Diagonals
    """Those of the keys that queries see."""


def _replace_on_cpu(b: Bindings) -> GraphExpr | None:
    """The operator; of 16-bit types on float32, of which processors have fast kernels, and with one rounding only."""
    return _replace(b, FLOAT32 if b.call("outer").tensor_type.dtype.name in _HALVES else None)


def _replace(b: Bindings, computed: DataType | None = None) -> GraphExpr | None:
    """The operator, wherever it can compute the same; in another type than that of its operands if one is given."""
    outer, weights = b.call("outer"), b.call("weights")
    assert isinstance(outer.attributes, MatmulAttributes) and isinstance(weights.attributes, SoftmaxAttributes)
    sizes = known_sizes(weights)
    if sizes is None or len(sizes) not in (3, 4) or not b.used_once("weights") or b.uses(outer.args[0]) > 1:
        return None
    if outer.attributes.transpose_a or weights.attributes.axis != len(sizes) - 1:
        return None
    blind_is_zero = "largest" in b
    if blind_is_zero and not _is_maximum(b.call("largest"), len(sizes)):
        return None
    if b.uses(b["scores"]) != (2 if blind_is_zero else 1):
        return None
    scores = _scores(b, b["scores"], sizes)
    if scores is None:
        return None
    inner = scores.product
    assert isinstance(inner.attributes, MatmulAttributes)
    query = _heads_last(inner.args[0], sizes, inner.attributes.transpose_a)
    (first, second), _ = _ungrouped_pair(inner.args[1], outer.args[1])
    by_head = [
        len(sizes) == 4 and not is_turned and _is_kept(b, item)
        for item, is_turned in (
            (first, not inner.attributes.transpose_b),
            (second, outer.attributes.transpose_b),
        )
    ]
    key = _heads_last(first, sizes, not inner.attributes.transpose_b, by_head[0])
    value = _heads_last(second, sizes, outer.attributes.transpose_b, by_head[1])
    if query is None or key is None or value is None:
        return None
    shared = [known_sizes(item) or () for item in (key, value)]
    counts = [item[1 if first else 2] for item, first in zip(shared, by_head, strict=True)]
    if not _share_heads((known_sizes(query) or ())[2], counts, sizes):
        return None
    operands = [query, key, value, *_mask(scores.masks, len(sizes))]
    if computed is not None:
        operands = [item if item.tensor_type.dtype.is_bool else make("cast", item, dtype=computed) for item in operands]
    result = make(
        "nn.attention",
        *operands,
        scale=scores.scale,
        blind_is_zero=blind_is_zero,
        keys_by_head=by_head[0],
        values_by_head=by_head[1],
        first=scores.diagonals[0],
        last=scores.diagonals[1],
    )
    if computed is not None:
        result = make("cast", result, dtype=outer.tensor_type.dtype)
    if len(sizes) == 4:
        return make("transpose", result, axes=_HEADS_LAST)
    return make("reshape", result, shape=known_sizes(outer))


def _replace_on_gpu(target: Target, b: Bindings) -> GraphExpr | None:
    """The same where keys may come in tiles, or sizes fill threads and the scores of some queries fit their memory."""
    outer, weights = b.call("outer"), b.call("weights")
    sizes, results = known_sizes(weights), known_sizes(outer)
    scores = None if sizes is None else _scores(b, b["scores"], sizes)
    if sizes is None or results is None or scores is None:
        return None
    depths = known_sizes(scores.product.args[0])
    if depths is None or not all(isinstance(size, int) for size in (*sizes[-2:], results[-1], depths[-1])):
        return None
    queries, keys, width, depth = (int(str(size)) for size in (*sizes[-2:], results[-1], depths[-1]))
    dtype = scores.product.tensor_type.dtype.name
    static = all(isinstance(size, int) and size > 0 for size in (*sizes, width, depth))
    limits = gpu_parameters(target).attention
    _, group = _ungrouped_pair(scores.product.args[1], outer.args[1])
    # Of few queries on tensor cores, an empty tile takes less time than starting a kernel for each step would:
    # blocks of threads share keys from where on reading them takes longer than that.
    fills_tiles = queries * group >= limits.least_queries or dtype in _HALVES
    # Tensor cores leave registers for the results of the largest heads.
    fills_tiles = fills_tiles and (dtype in _HALVES or max(width, depth) <= limits.most_tiled_size)
    if dtype in ("float32", *_HALVES) and "sm_80" in target.feature_set and fills_tiles and static:
        return _replace(b)
    if dtype in _HALVES:
        return None
    whole = queries % 8 == 0 and keys % 32 == 0 and width % 32 == 0 and depth % 4 == 0
    tiles = 0 < keys <= limits.most_keys and (keys < 128 or keys % 128 == 0)
    memory = 4 * (8 * keys + 136 * (depth + 4)) + 4096
    fits = whole and tiles and memory <= target.shared_bytes and queries > 0
    return _replace(b) if fits and target.max_threads >= 256 else None


def _is_maximum(item: Call, rank: int) -> bool:
    """Whether a reduction is over the last axis, which is kept."""
    assert isinstance(item.attributes, ReduceAttributes)
    return tuple(item.attributes.axes) == (rank - 1,) and item.attributes.keepdims


def _scores(b: Bindings, start: GraphExpr, sizes: Sequence[Size]) -> _Scores | None:
    """Scores taken apart; None where they are something else, or are needed elsewhere."""
    masks: list[GraphExpr] = []
    scale, item = 1.0, start
    while not is_call_to(item, "matmul"):
        if not isinstance(item, Call) or (item is not start and b.uses(item) > 1):
            return None
        hidden = _hidden(item)
        if hidden is not None and scale == 1.0:
            mask, item = hidden
            masks.append(mask)
        elif is_call_to(item, "add") and scale == 1.0:
            place = next((n for n, arg in enumerate(item.args) if _leads_to_product(arg, sizes)), None)
            if place is None:
                return None
            masks.append(item.args[1 - place])
            item = item.args[place]
        elif is_call_to(item, "multiply"):
            place = next((n for n, arg in enumerate(item.args) if _number(arg) is not None), None)
            if place is None:
                return None
            scale *= _number(item.args[place]) or 0.0
            item = item.args[1 - place]
        else:
            return None
    assert isinstance(item, Call)
    alone = item is start or b.uses(item) == 1
    if not alone or known_sizes(item) != tuple(sizes) or item.tensor_type.dtype.name not in _TYPES:
        return None
    shown = [diagonals_of(mask) for mask in masks]
    others = [mask for mask, found in zip(masks, shown, strict=True) if found is None]
    if len({mask.tensor_type.dtype for mask in others}) > 1:
        return None
    diagonals = reduce(common_diagonals, filter(None, shown), (-ANY_DIAGONAL, ANY_DIAGONAL))
    return _Scores(item, scale, tuple(others), diagonals)


def _hidden(item: GraphExpr) -> tuple[GraphExpr, GraphExpr] | None:
    """`where(seen, scores, -inf)` as truth values and scores."""
    if not isinstance(item, Call) or not is_call_to(item, "where"):
        return None
    condition, first, second = item.args
    if _is_hiding(second):
        return condition, first
    return (make("logical_not", condition), second) if _is_hiding(first) else None


def _is_hiding(item: GraphExpr) -> bool:
    """Whether a constant is minus infinity throughout."""
    return isinstance(item, Constant) and item.data.size > 0 and bool((numbers_of(item) == -np.inf).all())


def _leads_to_product(item: GraphExpr, sizes: Sequence[Size]) -> bool:
    """Whether an operand of a sum is the products, not a mask."""
    while isinstance(item, Call) and known_sizes(item) == tuple(sizes):
        if is_call_to(item, "matmul"):
            return True
        hidden = _hidden(item)
        if hidden is not None:
            item = hidden[1]
            continue
        if not (is_call_to(item, "add") or is_call_to(item, "multiply")):
            return False
        item = next((arg for arg in item.args if known_sizes(arg) == tuple(sizes)), item.args[0])
    return False


def _number(item: GraphExpr) -> float | None:
    """The one number of a constant."""
    if not isinstance(item, Constant) or item.data.size != 1:
        return None
    number = float(np.asarray(numbers_of(item), np.float64).reshape(-1)[0])
    return number if np.isfinite(number) else None


def _is_kept(b: Bindings, item: GraphExpr) -> bool:
    """Whether a value lies in memory as it is, so that another order would be a copy: others read it too."""
    if is_call_to(item, "transpose"):
        return False
    return isinstance(item, Var) or b.uses(item) > 1


def _heads_last(item: GraphExpr, scores: Sequence[Size], is_turned: bool, stays: bool = False) -> GraphExpr | None:
    """An operand as (batch, places, heads, size), or as it is if it stays.

    None if it has other sequences than the scores, or too large heads.
    """
    sizes = known_sizes(item)
    if sizes is None or len(sizes) != len(scores) or sizes[0] != scores[0]:
        return None
    size = sizes[-2] if is_turned else sizes[-1]
    if not isinstance(size, int) or not 1 <= size <= _MOST_SIZE:
        return None
    if stays:
        return item
    if len(sizes) == 3:
        item = make("transpose", item, axes=(0, 2, 1)) if is_turned else item
        batch, places, size = known_sizes(item) or ()
        return make("reshape", item, shape=(batch, places, 1, size))
    return make("transpose", item, axes=(0, 3, 1, 2) if is_turned else _HEADS_LAST)


def _share_heads(ours: Size, counts: Sequence[Size], scores: Sequence[Size]) -> bool:
    """Whether queries have the heads of the scores, and keys and values the same, or as many queries share each."""
    theirs, others = counts
    if (len(scores) == 4 and ours != scores[1]) or theirs != others:
        return False
    return ours == theirs or (isinstance(ours, int) and isinstance(theirs, int) and ours % max(theirs, 1) == 0)


def _ungrouped_pair(key: GraphExpr, value: GraphExpr) -> tuple[tuple[GraphExpr, GraphExpr], int]:
    """Keys and values before their heads were repeated alike, and how often they were."""
    (first, often), (second, again) = _ungrouped(key), _ungrouped(value)
    return ((first, second), often) if often == again else ((key, value), 1)


def _ungrouped(item: GraphExpr) -> tuple[GraphExpr, int]:
    """A value of (batch, heads, ...) before each of its heads was repeated, and how often it was.

    Before:  reshape(broadcast_to(reshape(x, (b, h, 1, p, s)), (b, h, n, p, s)), (b, h * n, p, s)), or
             take(x, (0, 0, ..., 1, 1, ...), axis=1)
    """
    sizes = known_sizes(item)
    if not isinstance(item, Call) or sizes is None or len(sizes) != 4:
        return item, 1
    if is_call_to(item, "cast"):
        inner, often = _ungrouped(item.args[0])
        return (item, 1) if often == 1 else (make("cast", inner, dtype=item.tensor_type.dtype), often)
    if is_call_to(item, "transpose"):
        axes = tuple(getattr(item.attributes, "axes", ()))
        inner, often = _ungrouped(item.args[0])
        return (item, 1) if often == 1 or axes[:2] != (0, 1) else (make("transpose", inner, axes=axes), often)
    if is_call_to(item, "take"):
        return _ungrouped_take(item)
    if not is_call_to(item, "reshape") or not is_call_to(item.args[0], "broadcast_to"):
        return item, 1
    spread = item.args[0]
    assert isinstance(spread, Call)
    source, wide = known_sizes(spread.args[0]), known_sizes(spread)
    if source is None or wide is None or len(wide) != 5 or len(source) != 5 or not isinstance(wide[2], int):
        return item, 1
    if source != (*wide[:2], 1, *wide[3:]) or sizes[0] != wide[0] or tuple(sizes[2:]) != tuple(wide[3:]):
        return item, 1
    (before,) = spread.args
    given = before.args[0] if isinstance(before, Call) and is_call_to(before, "reshape") else before
    wanted = (*wide[:2], *wide[3:])
    return (given if known_sizes(given) == wanted else make("reshape", before, shape=wanted)), wide[2]


def _ungrouped_take(item: Call) -> tuple[GraphExpr, int]:
    """Heads that a list of numbers repeats."""
    places, heads = item.args[1], known_sizes(item.args[0])
    assert isinstance(item.attributes, TakeAttributes)
    if not isinstance(places, Constant) or item.attributes.axis != 1 or heads is None or not isinstance(heads[1], int):
        return item, 1
    often = places.data.size // max(heads[1], 1)
    if often < 2 or not np.array_equal(places.data, np.repeat(np.arange(heads[1]), often)):
        return item, 1
    return item.args[0], often


def _mask(masks: Sequence[GraphExpr], rank: int) -> list[GraphExpr]:
    """One mask, of four dimensions if it has the batch's, or none."""
    if not masks:
        return []
    total = masks[0]
    for item in masks[1:]:
        total = make("logical_and" if item.tensor_type.dtype.is_bool else "add", total, item)
    sizes = known_sizes(total)
    if rank == 3 and sizes is not None and len(sizes) == 3:
        total = make("reshape", total, shape=(sizes[0], 1, sizes[1], sizes[2]))
    return [total]


_WEIGHTS = P.op("nn.softmax", P.any("scores"), name="weights")
_BLIND = P.op("equal", P.op("max", P.any("scores"), name="largest"), P.value(-np.inf))
_SEEN = P.op("where", _BLIND, P.value(0.0), P.any("scores"))
_FINITE = P.op("nn.softmax", _SEEN, name="weights")
_NAME = "attention"
_PATTERN = P.op(
    "matmul",
    _WEIGHTS | P.op("where", _BLIND, P.value(0.0), _FINITE) | P.op("where", _BLIND, P.value(0.0), _WEIGHTS),
    P.any("value"),
    name="outer",
)
RULES = (Rule(_NAME, _PATTERN, _replace_on_cpu),)
"""All rules, tried in order at each node."""
