"""Attention: of several heads, of heads that share keys, by products and by sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tilewright.frontend.core.builder import dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.keras.activations import softmax
from tilewright.frontend.keras.context import LayerCall
from tilewright.frontend.keras.layer import Layer, variables
from tilewright.frontend.keras.registry import Slot, layer, operation
from tilewright.frontend.keras.values import KerasBuilder, Value
from tilewright.graph.ir.dimensions import Size, product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import FLOAT16, INT32
from tilewright.support.errors import UnsupportedError, UserError


def _slots(prefix: str) -> Any:
    def slots(item: Layer) -> Sequence[Slot]:
        names = ["query_dense", "key_dense", "value_dense", "output_dense"]
        if item.flag("use_gate"):
            names.insert(2, "gate_dense")
        count = 1 + item.flag("use_bias", True)
        return [slot for name in names for slot in variables(count, f"{_attribute(item, prefix, name)}/")]

    return slots


def _attribute(item: Layer, prefix: str, name: str) -> str:
    """The name that a part's weights lie under: the gate has no public one."""
    return f"_{name}" if prefix or name == "gate_dense" else name


class _Heads:
    """One call of an attention layer of several heads."""

    def __init__(self, call: LayerCall, prefix: str) -> None:
        self.call, self.b, self.prefix = call, call.builder, prefix
        self.query = self._given("query", 0)
        self.value = self._given("value", 1)
        key = call.argument("key", 2)
        self.key = key if isinstance(key, Value) else self.value
        self.axes = self._axes()

    def _given(self, name: str, place: int) -> Value:
        value = self.call.argument(name, place)
        if not isinstance(value, Value):
            raise UserError(f"{self.call.layer.kind} needs a {name}")
        return value

    def _axes(self) -> tuple[int, ...]:
        rank, described = rank_of(self.query.expr), self.call.layer.option("attention_axes")
        if described is None:
            return tuple(range(1, rank - 1))
        listed = described if isinstance(described, (list, tuple)) else [described]
        return tuple(self.call.axis(item, rank) for item in listed)

    def projected(self, value: GraphExpr, part: str) -> GraphExpr:
        """(..., features) as (..., heads, size)."""
        b, name = self.b, _attribute(self.call.layer, self.prefix, part)
        kernel = self.call.weight(f"{name}/vars/0")
        features, heads, size = sizes_of(kernel) if rank_of(kernel) == 3 else (0, 0, 0)
        if features != sizes_of(value)[-1]:
            raise UserError(f"the weights {name} of shape {sizes_of(kernel)} do not fit {sizes_of(value)[-1]} features")
        result = b.call("matmul", value, b.reshape(kernel, (features, product((heads, size)))))
        result = b.reshape(result, (*sizes_of(value)[:-1], heads, size))
        if self.call.layer.flag("use_bias", True):
            result = b.add(result, self.call.weight(f"{name}/vars/1", (heads, size)))
        return result

    def gathered(self, value: GraphExpr) -> tuple[GraphExpr, list[int]]:
        """(batch and other axes, places, heads, size), and the order of axes that led to it."""
        rank = rank_of(value)
        others = [axis for axis in range(rank - 2) if axis not in self.axes]
        order = [*others, *self.axes, rank - 2, rank - 1]
        turned = self.b.transpose(value, order)
        sizes = sizes_of(turned)
        split = len(others)
        places = product(sizes[split : rank - 2])
        return self.b.reshape(turned, (product(sizes[:split]), places, *sizes[rank - 2 :])), order

    def output(self, value: GraphExpr) -> GraphExpr:
        """(..., heads, size) as (..., output shape)."""
        b, name = self.b, _attribute(self.call.layer, self.prefix, "output_dense")
        kernel = self.call.weight(f"{name}/vars/0")
        heads, size, *shape = sizes_of(kernel)
        lead = sizes_of(value)[:-2]
        flat = b.reshape(value, (*lead, product((heads, size))))
        result = b.call("matmul", flat, b.reshape(kernel, (product((heads, size)), product(shape))))
        if self.call.layer.flag("use_bias", True):
            result = b.add(result, b.reshape(self.call.weight(f"{name}/vars/1", shape), (product(shape),)))
        return b.reshape(result, (*lead, *shape))

    def mask(self, places: Size, sources: Size) -> GraphExpr | None:
        """Which sources each place sees, as (batch, 1 or heads, places, sources)."""
        b, call = self.b, self.call
        found: list[GraphExpr] = []
        own = self._steps("query_mask", self.query)
        if own is not None:
            found.append(b.reshape(own, (sizes_of(own)[0], 1, sizes_of(own)[1], 1)))
        names = [("value_mask", self.value)] + ([("key_mask", self.key)] if self.key is not self.value else [])
        for name, value in names:
            steps = self._steps(name, value)
            if steps is not None:
                found.append(b.reshape(steps, (sizes_of(steps)[0], 1, 1, sizes_of(steps)[1])))
        if call.argument("use_causal_mask", 9, False):
            found.append(causal(b, places, sources))
        window = call.layer.option("sliding_window")
        if window is not None:
            found.append(_near(b, places, sources, call.layer.integer("sliding_window")))
        given = call.tensor("attention_mask", 6)
        if given is not None:
            found.append(self._given_mask(b.truth(given), places, sources))
        result: GraphExpr | None = None
        for item in found:
            result = item if result is None else b.call("logical_and", result, item)
        return result

    def _steps(self, name: str, value: Value) -> GraphExpr | None:
        given = self.call.kwargs.get(name)
        mask = given.expr if isinstance(given, Value) else value.mask
        if mask is not None and len(self.axes) != 1:
            raise UnsupportedError("masks of steps with attention over several axes")
        return None if mask is None else self.b.truth(mask)

    def _given_mask(self, mask: GraphExpr, places: Size, sources: Size) -> GraphExpr:
        b, sizes = self.b, sizes_of(mask)
        count = len(self.axes)
        if rank_of(self.query.expr) - 2 > count:
            raise UnsupportedError("an attention mask with attention over some of several axes")
        lead = sizes[: len(sizes) - 2 * count]
        if len(lead) > 2:
            raise UserError(f"an attention mask of {len(sizes)} dimensions")
        targets = sizes[len(lead) : len(lead) + count]
        rest = sizes[len(lead) + count :]
        shape = [1] * (2 - len(lead)) if len(lead) != 1 else []
        wide = [*shape, *lead, *([1] if len(lead) == 1 else []), product(targets), product(rest)]
        return b.reshape(mask, wide)


def causal(b: KerasBuilder, places: Size, sources: Size) -> GraphExpr:
    """Each place sees the sources up to its own number."""
    rows = b.reshape(b.arange(places, dtype=INT32), (1, 1, places, 1))
    columns = b.reshape(b.arange(sources, dtype=INT32), (1, 1, 1, sources))
    return b.call("greater_equal", rows, columns)


def _near(b: KerasBuilder, places: Size, sources: Size, window: int) -> GraphExpr:
    rows = b.reshape(b.arange(places, dtype=INT32), (1, 1, places, 1))
    columns = b.reshape(b.arange(sources, dtype=INT32), (1, 1, 1, sources))
    return b.compare("less", b.call("abs", b.subtract(rows, columns)), window)


def attend(
    b: KerasBuilder,
    query: GraphExpr,
    key: GraphExpr,
    value: GraphExpr,
    mask: GraphExpr | None,
    scale: float,
    *,
    blind_is_zero: bool = False,
) -> GraphExpr:
    """softmax(query @ key' * scale) @ value, of (batch, places, heads, size).

    A place that sees nothing takes the mean of everything, as Keras has it, or nothing.
    """
    if sizes_of(query)[3] == sizes_of(value)[3]:
        if mask is not None and not blind_is_zero:
            mask = b.where(mask, b.scalar(0.0, dtype_of(query)), _hiding(query))
        extra = [] if mask is None else [mask]
        return b.call("nn.attention", query, key, value, *extra, scale=scale, blind_is_zero=blind_is_zero)
    shares = _shares(b, query, key, mask, scale, blind_is_zero)
    result = b.call("matmul", shares, b.transpose(value, (0, 2, 1, 3)))
    return b.transpose(result, (0, 2, 1, 3))


def _hiding(value: GraphExpr) -> float:
    """What is added to what a place does not see."""
    return -0.7 * (65504.0 if dtype_of(value) is FLOAT16 else 3.4028234663852886e38)


def _shares(
    b: KerasBuilder,
    query: GraphExpr,
    key: GraphExpr,
    mask: GraphExpr | None,
    scale: float,
    blind_is_zero: bool,
) -> GraphExpr:
    """How much each place takes of each source: (batch, heads, places, sources)."""
    query, key = b.transpose(query, (0, 2, 1, 3)), b.transpose(key, (0, 2, 3, 1))
    scores = b.call("matmul", b.multiply(query, scale), key)
    if mask is None:
        return softmax(b, scores)
    result = softmax(b, b.where(mask, scores, _hiding(scores)))
    return b.where(mask, result, 0.0) if blind_is_zero else result


def _attention(call: LayerCall, prefix: str, size_option: str) -> Any:
    heads = _Heads(call, prefix)
    b = call.builder
    query = heads.projected(heads.query.expr, "query_dense")
    key = heads.projected(heads.key.expr, "key_dense")
    value = heads.projected(heads.value.expr, "value_dense")
    flat, order = heads.gathered(query)
    keys, values = heads.gathered(key)[0], heads.gathered(value)[0]
    repeats = size_at(flat, 2) // max(size_at(keys, 2), 1)
    if repeats > 1:
        keys, values = (_repeated(b, item, repeats) for item in (keys, values))
    scale = 1 / math.sqrt(call.layer.integer(size_option))
    mask = heads.mask(sizes_of(flat)[1], sizes_of(keys)[1])
    scores = None
    if call.argument("return_attention_scores", 7, False):
        scores = _shares(b, flat, keys, mask, scale, True)
        result = b.transpose(b.call("matmul", scores, b.transpose(values, (0, 2, 1, 3))), (0, 2, 1, 3))
        scores = _scores_as_given(heads, scores)
    else:
        dropped = call.layer.number("dropout", 0.0) > 0  # which makes Keras take another way
        result = attend(b, flat, keys, values, mask, scale, blind_is_zero=dropped and mask is not None)
    sizes = [sizes_of(query)[axis] for axis in order[:-1]] + [sizes_of(values)[3]]
    result = b.reshape(result, sizes)
    result = b.transpose(result, [order.index(axis) for axis in range(len(order))])
    if call.layer.flag("use_gate"):
        gate = heads.projected(heads.query.expr, "gate_dense")
        result = b.multiply(result, b.call("sigmoid", gate))
    output = Value(heads.output(result), heads.query.mask)
    return output if scores is None else (output, scores)


def _scores_as_given(heads: _Heads, scores: GraphExpr) -> GraphExpr:
    """The shares with all axes apart: those without attention, heads, places, sources."""
    query, key = sizes_of(heads.query.expr)[:-1], sizes_of(heads.key.expr)
    others = [size for axis, size in enumerate(query) if axis not in heads.axes]
    places, sources = [query[axis] for axis in heads.axes], [key[axis] for axis in heads.axes]
    return heads.b.reshape(scores, (*others, sizes_of(scores)[1], *places, *sources))


def _repeated(b: KerasBuilder, value: GraphExpr, count: int) -> GraphExpr:
    """Each head so many times, one after the other."""
    batch, places, heads, size = sizes_of(value)
    wide = b.broadcast_to(b.reshape(value, (batch, places, heads, 1, size)), (batch, places, heads, count, size))
    return b.reshape(wide, (batch, places, product((heads, count)), size))


@layer("MultiHeadAttention", variables=_slots(""))
def multi_head_attention(call: LayerCall) -> Any:
    """Attention of several heads over one or more axes."""
    return _attention(call, "", "key_dim")


@layer("GroupedQueryAttention", "GroupQueryAttention", variables=_slots("_"))
def grouped_query_attention(call: LayerCall) -> Any:
    """Attention of heads that share keys and values."""
    return _attention(call, "_", "head_dim")


# One head


def _simple(call: LayerCall, scores: Any) -> Any:
    b, given = call.builder, call.args[0]
    if not isinstance(given, (list, tuple)) or not 2 <= len(given) <= 3:
        raise UserError(f"{call.layer.kind} needs a query, a value and maybe a key")
    query, value = given[0], given[1]
    key = given[2] if len(given) == 3 else value
    masks = call.kwargs.get("mask")
    masks = masks if isinstance(masks, (list, tuple)) else [item.mask for item in given]
    own, other = (item.expr if isinstance(item, Value) else item for item in masks[:2])
    score = scores(query.expr, key.expr)
    places, sources = sizes_of(score)[-2:]
    mask = None if other is None else b.reshape(b.truth(other), (sizes_of(other)[0], 1, sizes_of(other)[1]))
    if call.argument("use_causal_mask", 4, False):
        order = b.reshape(causal(b, places, sources), (1, places, sources))
        mask = order if mask is None else b.call("logical_and", mask, order)
    if mask is not None:
        lowest = 65504.0 if dtype_of(score) is FLOAT16 else 1e9
        score = b.where(mask, score, b.subtract(score, lowest))
    weights = softmax(b, score)
    result = b.call("matmul", weights, value.expr)
    if own is not None:
        own = b.truth(own)
        result = b.where(b.reshape(own, (*sizes_of(own), 1)), result, 0.0)
    output = Value(result, own)
    return (output, weights) if call.argument("return_attention_scores", 3, False) else output


@layer("Attention", variables=lambda item: variables(item.flag("use_scale") + (item.option("score_mode") == "concat")))
def attention(call: LayerCall) -> Any:
    """By products of queries and keys, or by the hyperbolic tangent of their sums."""
    b, options = call.builder, call.layer
    scale = call.weight("vars/0", ()) if options.flag("use_scale") else None

    def scores(query: GraphExpr, key: GraphExpr) -> GraphExpr:
        if options.option("score_mode", "dot") == "dot":
            result = b.call("matmul", query, key, transpose_b=True)
            return result if scale is None else b.multiply(result, scale)
        total = _sums(b, query, key)
        total = total if scale is None else b.multiply(total, scale)
        weight = call.weight(f"vars/{int(scale is not None)}", ())
        return b.multiply(b.reduce("sum", b.call("tanh", total), (3,)), weight)

    return _simple(call, scores)


def _sums(b: KerasBuilder, query: GraphExpr, key: GraphExpr) -> GraphExpr:
    """Each query plus each key: (batch, places, sources, size)."""
    return b.add(b.expand_dims(query, (2,)), b.expand_dims(key, (1,)))


@layer("AdditiveAttention", variables=lambda item: variables(int(item.flag("use_scale", True))))
def additive_attention(call: LayerCall) -> Any:
    """By the hyperbolic tangent of sums of queries and keys."""
    b = call.builder

    def scores(query: GraphExpr, key: GraphExpr) -> GraphExpr:
        value = b.call("tanh", _sums(b, query, key))
        if call.layer.flag("use_scale", True):
            value = b.multiply(value, call.weight("vars/0", (size_at(query, 2),)))
        return b.reduce("sum", value, (3,))

    return _simple(call, scores)


@operation("DotProductAttention")
def dot_product_attention(call: LayerCall) -> GraphExpr:
    """`keras.ops.dot_product_attention`: (batch, places, heads, size)."""
    b = call.builder
    query, key, value = (call.tensor(name, place) for place, name in enumerate(("query", "key", "value")))
    if query is None or key is None or value is None:
        raise UserError("dot_product_attention needs a query, a key and a value")
    bias, mask = call.tensor("bias", 3), call.tensor("mask", 4)
    scale = call.argument("scale", 5)
    size = size_at(query, 3)
    scale = 1 / math.sqrt(size) if scale is None else float(scale)
    repeats = size_at(query, 2) // max(size_at(key, 2), 1)
    if repeats > 1:
        key, value = (_repeated(b, item, repeats) for item in (key, value))
    mask = None if mask is None else b.truth(mask)
    if call.argument("is_causal", 6, call.layer.flag("is_causal")):
        order = causal(b, sizes_of(query)[1], sizes_of(key)[1])
        mask = order if mask is None else b.call("logical_and", mask, order)
    if bias is None:
        return attend(b, query, key, value, mask, scale)
    scores = b.call("matmul", b.transpose(query, (0, 2, 1, 3)), b.transpose(key, (0, 2, 3, 1)))
    scores = b.add(b.multiply(scores, scale), bias)
    if mask is not None:
        scores = b.where(mask, scores, _hiding(scores))
    result = b.call("matmul", softmax(b, scores), b.transpose(value, (0, 2, 1, 3)))
    return b.transpose(result, (0, 2, 1, 3))
