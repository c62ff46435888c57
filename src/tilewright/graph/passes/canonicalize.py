"""Canonicalisation: identities vanish, chains of the same operator merge, equivalent forms become one form.

Before:  reshape(reshape(x, (6,)), (2, 3)); cast(x, float32) of a float32; x * 1; max(x, 0); split(x)[1]
After:   reshape(x, (2, 3));                x;                             x;     relu(x);   slice(x)

`let` bindings of values are inlined (a graph is a DAG: sharing a node means computing it once); `let` of functions
stays, it is what makes recursion, and `let` of what gives symbols values stays in front of what uses them. Rules
that drop `x + 0` do not keep the sign of a zero.
"""

from __future__ import annotations

import math

import numpy as np

from tilewright.graph.ir.dimensions import Sizes, constants, normal
from tilewright.graph.ir.expr import Call, Constant, Function, GraphExpr, Let, Tuple, TupleGet, constant
from tilewright.graph.ir.infer import fill_type
from tilewright.graph.ir.op import Operator, introduces_symbols, is_call_to
from tilewright.graph.ir.rewrite import Bindings, P, Rule, apply_rules, known_sizes, make, static_shape
from tilewright.graph.ir.traverse import children, map_functions, post_order, settling, with_children
from tilewright.graph.ops.contract import MatmulAttributes
from tilewright.graph.ops.convolution import Conv2dAttributes
from tilewright.graph.ops.elementwise import ClipAttributes
from tilewright.graph.ops.shape import AxisAttributes, PadAttributes, SplitAttributes
from tilewright.ir.dtype import DataType
from tilewright.ir.function import IRModule
from tilewright.support.order import children_first


def canonicalize(module: IRModule) -> IRModule:
    """Bring every function of the module to canonical form."""
    return map_functions(module, _canonical)


@settling
def _canonical(function: Function) -> Function:
    return apply_rules(inline_lets(function), RULES)


def inline_lets(function: Function) -> Function:
    """Replace variables bound by `let` to values by the values themselves, except to functions and new symbols."""
    values: dict[int, GraphExpr] = {
        id(item.var): item.value
        for item in post_order(function)
        if isinstance(item, Let) and not isinstance(item.value, Function) and not introduces_symbols(item.value)
    }
    if not values:
        return function

    def below(item: GraphExpr) -> tuple[GraphExpr, ...]:
        if isinstance(item, Let) and id(item.var) in values:
            return (item.body,)
        return (values[id(item)],) if id(item) in values else children(item)

    memo: dict[int, GraphExpr] = {}
    roots: list[GraphExpr] = [function]
    for item in children_first(roots, below):
        new = [memo[id(child)] for child in below(item)]
        if id(item) in values or (isinstance(item, Let) and id(item.var) in values):
            memo[id(item)] = new[0]
            continue
        rebuilt = with_children(item, new)
        fill_type(rebuilt)
        if rebuilt.type is None:
            rebuilt.type = item.type
        memo[id(item)] = rebuilt
    result = memo[id(function)]
    assert isinstance(result, Function)
    return result


def _same_type(b: Bindings) -> GraphExpr | None:
    """The captured node if it already has the type of the whole."""
    return b["x"] if b["x"].type is b.root.type else None


def _attribute(item: GraphExpr, name: str) -> tuple[int, ...]:
    assert isinstance(item, Call)
    value = getattr(item.attributes, name)
    assert isinstance(value, tuple)
    return value


def _sizes(item: GraphExpr, name: str) -> Sizes:
    assert isinstance(item, Call)
    value = getattr(item.attributes, name)
    assert isinstance(value, tuple)
    return value


def _merge_reshapes(b: Bindings) -> GraphExpr | None:
    shape = known_sizes(b.root)
    return None if shape is None else make("reshape", b["x"], shape=shape)


def _merge_transposes(b: Bindings) -> GraphExpr:
    inner, outer = _attribute(b["inner"], "axes"), _attribute(b.root, "axes")
    return make("transpose", b["x"], axes=tuple(inner[axis] for axis in outer))


def _trivial_transpose(b: Bindings) -> GraphExpr | None:
    """The identity, or one that moves only dimensions of 1: then the order of elements stays."""
    axes, shape = _attribute(b.root, "axes"), known_sizes(b["x"])
    if axes == tuple(range(len(axes))):
        return b["x"]
    if shape is None:
        return None
    moving = [axis for axis in axes if shape[axis] != 1]
    return make("reshape", b["x"], shape=tuple(shape[a] for a in axes)) if moving == sorted(moving) else None


def _exactly_holds(wide: DataType, narrow: DataType) -> bool:
    """Whether every value of one type is a value of the other."""
    if wide is narrow:
        return True
    if narrow.is_bool:
        return wide.is_integer or wide.is_float
    if narrow.is_integer and wide.is_integer:
        fits_sign = narrow.is_uint or wide.is_int
        return fits_sign and wide.bits >= narrow.bits + (1 if narrow.is_uint and wide.is_int else 0)
    if narrow.is_float and wide.is_float:
        return wide.name == "float64" or (wide.name == "float32" and narrow.bits == 16)
    mantissa = {"float64": 53, "float32": 24, "float16": 11}.get(wide.name, 0)
    return narrow.is_integer and narrow.bits <= mantissa


def _merge_casts(b: Bindings) -> GraphExpr | None:
    source, middle = b["x"].tensor_type.dtype, b["inner"].tensor_type.dtype
    if not _exactly_holds(middle, source):
        return None
    return make("cast", b["x"], dtype=b.root.tensor_type.dtype)


def _trivial_pad(b: Bindings) -> GraphExpr | None:
    return _same_type(b) if all(size == 0 for size in (*_sizes(b.root, "before"), *_sizes(b.root, "after"))) else None


def _trivial_slice(b: Bindings) -> GraphExpr | None:
    return _same_type(b) if all(stride == 1 for stride in _attribute(b.root, "strides")) else None


def _merge_slices(b: Bindings) -> GraphExpr | None:
    inner, outer = b.call("inner"), b.root
    shape, result = static_shape(b["x"]), static_shape(b.root)
    steps = _attribute(inner, "strides") + _attribute(outer, "strides")
    if shape is None or result is None or any(step < 0 for step in steps):
        return None
    if constants((*_sizes(inner, "begin"), *_sizes(outer, "begin"))) is None:
        return None
    begin, end, strides = [], [], []
    for axis, size in enumerate(result):
        first, step = _attribute(inner, "begin")[axis], _attribute(inner, "strides")[axis]
        start = first + _attribute(outer, "begin")[axis] * step
        stride = step * _attribute(outer, "strides")[axis]
        begin.append(min(start, shape[axis]))
        end.append(min(start + (size - 1) * stride + 1, shape[axis]) if size else min(start, shape[axis]))
        strides.append(stride)
    return make("slice", b["x"], begin=tuple(begin), end=tuple(end), strides=tuple(strides))


def _slice_of_part(b: Bindings) -> GraphExpr | None:
    """A slice that lies in one part of a concatenation is a slice of that part."""
    joined = b.call("joined")
    axis = _axis(joined)
    shapes = [static_shape(arg) for arg in joined.args]
    ranges = constants((*_sizes(b.root, "begin"), *_sizes(b.root, "end")))
    if ranges is None or None in shapes or any(step != 1 for step in _attribute(b.root, "strides")):
        return None
    begin, end = (list(_attribute(b.root, name)) for name in ("begin", "end"))
    start = 0
    for part, shape in zip(joined.args, shapes, strict=True):
        assert shape is not None
        if start <= begin[axis] < end[axis] <= start + shape[axis]:
            begin[axis] -= start
            end[axis] -= start
            return make("slice", part, begin=tuple(begin), end=tuple(end), strides=(1,) * len(begin))
        start += shape[axis]
    return None


def _trivial_concatenate(b: Bindings) -> GraphExpr | None:
    args = b.call("root").args
    kept = [arg for arg in args if 0 not in (static_shape(arg) or ())]
    if len(args) == 1:
        return args[0]
    if not kept or len(kept) == len(args):
        return None
    return kept[0] if len(kept) == 1 else make("concatenate", *kept, axis=_axis(b.root))


def _axis(item: GraphExpr) -> int:
    assert isinstance(item, Call)
    assert isinstance(item.attributes, (AxisAttributes, SplitAttributes))
    return item.attributes.axis


def _split_item(b: Bindings) -> GraphExpr | None:
    root, split = b.root, b.call("split")
    shape = known_sizes(split.args[0])
    assert isinstance(root, TupleGet)
    if shape is None:
        return None
    sizes, axis = _sizes(split, "sizes"), _axis(split)
    first = normal(sum(sizes[: root.index]))
    last = normal(first + sizes[root.index])
    begin = tuple(first if a == axis else 0 for a in range(len(shape)))
    end = tuple(last if a == axis else size for a, size in enumerate(shape))
    part = make("slice", split.args[0], begin=begin, end=end, strides=(1,) * len(shape), span=split.span)
    return part if part.type is root.type else None  # open sizes may be the same without being written alike


def _tuple_item(b: Bindings) -> GraphExpr:
    value, root = b["tuple"], b.root
    assert isinstance(value, Tuple)
    assert isinstance(root, TupleGet)
    return value.items[root.index]


def _needless_broadcast(b: Bindings) -> GraphExpr | None:
    """An elementwise operator broadcasts its inputs itself, if another input has the full shape."""
    call = b.call("root")
    assert isinstance(call.callee, Operator)
    if not call.callee.elementwise or len(call.args) < 2 or call.callee.name == "nn.prelu":
        return None
    args = list(call.args)
    for index, arg in enumerate(args):
        if not (isinstance(arg, Call) and is_call_to(arg, "broadcast_to")):
            continue
        others = [other for place, other in enumerate(args) if place != index]
        if any(static_shape(other) == static_shape(call) for other in others):
            args[index] = arg.args[0]
            new = Call(call.callee, tuple(args), call.attributes)
            new.span = call.span
            fill_type(new)
            return new if new.type is call.type else None
    return None


def _power(b: Bindings) -> GraphExpr | None:
    first, x = _scalar(b.constant("c")), b["x"]
    if x.type is not b.root.type:
        return None
    if first == 2:
        return make("multiply", x, x)
    if first == 3:
        return make("multiply", make("multiply", x, x, span=b.root.span), x)
    if first == -1:
        return make("reciprocal", x)
    return None


def _divide_exactly(b: Bindings) -> GraphExpr | None:
    """Division by powers of two is multiplication by their inverses, exactly."""
    divisor = b.constant("c")
    if divisor.dtype.name not in ("float32", "float64") or divisor.data.size == 0:
        return None
    mantissa, exponent = np.frexp(divisor.data)
    if not bool(((np.abs(mantissa) == 0.5) & (np.abs(exponent) < 64)).all()):
        return None
    inverse = constant(np.reciprocal(divisor.data), divisor.dtype)
    return make("multiply", b["x"], inverse)


def _scalar(item: Constant) -> float | None:
    """The number that all elements of a float constant are."""
    if item.dtype.name not in ("float16", "float32", "float64") or not 0 < item.data.size <= 65536:
        return None
    first = float(item.data.reshape(-1)[0])
    return first if not math.isnan(first) and bool((item.data == first).all()) else None


def _as_relu(b: Bindings) -> GraphExpr | None:
    return make("nn.relu", b["x"]) if b["x"].type is b.root.type else None


def _as_clip(b: Bindings) -> GraphExpr | None:
    bound = _scalar(b.constant("c"))
    assert isinstance(b.root, Call)
    assert isinstance(b.root.callee, Operator)
    if bound is None or b["x"].type is not b.root.type:
        return None
    if b.root.callee.name == "maximum":
        return make("clip", b["x"], minimum=bound)
    return make("clip", b["x"], maximum=bound)


def _bounds(item: Call) -> tuple[float | None, float | None]:
    assert isinstance(item.callee, Operator)
    if item.callee.name == "nn.relu":
        return 0.0, None
    assert isinstance(item.attributes, ClipAttributes)
    return item.attributes.minimum, item.attributes.maximum


def _merge_clips(b: Bindings) -> GraphExpr | None:
    """Clamps compose to a clamp between the images of minus and plus infinity."""
    if not b["x"].tensor_type.dtype.is_float:
        return None
    low, high = -math.inf, math.inf
    for name in ("inner", "outer"):
        minimum, maximum = _bounds(b.call(name))
        if minimum is not None:
            low, high = max(low, minimum), max(high, minimum)
        if maximum is not None:
            low, high = min(low, maximum), min(high, maximum)
    if low == 0.0 and high == math.inf:
        return make("nn.relu", b["x"])
    new_low, new_high = (None if math.isinf(bound) else bound for bound in (low, high))
    return make("clip", b["x"], minimum=new_low, maximum=new_high)


def _open_clip(b: Bindings) -> GraphExpr | None:
    low, high = _bounds(b.call("root"))
    return b["x"] if low is None and high is None else None


def _trivial_reduction(b: Bindings) -> GraphExpr | None:
    """Over axes of size 1 there is nothing to reduce."""
    before, after = static_shape(b["x"]), static_shape(b.root)
    if before is None or after is None or any(before[axis] != 1 for axis in _attribute(b.root, "axes")):
        return None
    return b["x"] if before == after else make("reshape", b["x"], shape=after)


def _swaps_last_two(item: Call) -> bool:
    axes = _attribute(item, "axes")
    rank = len(axes)
    return rank >= 2 and axes == (*range(rank - 2), rank - 1, rank - 2)


def _matmul_of_transpose(b: Bindings) -> GraphExpr | None:
    """A matmul reads its inputs swapped if asked to."""
    call = b.call("root")
    assert isinstance(call.attributes, MatmulAttributes)
    flags = [call.attributes.transpose_a, call.attributes.transpose_b]
    args = list(call.args)
    changed = False
    for index, arg in enumerate(call.args):
        if is_call_to(arg, "transpose") and isinstance(arg, Call) and _swaps_last_two(arg):
            args[index] = arg.args[0]
            flags[index] = not flags[index]
            changed = True
    return make("matmul", *args, transpose_a=flags[0], transpose_b=flags[1]) if changed else None


def _constant_rows(b: Bindings) -> GraphExpr | None:
    """Constant rows times rows of data are rows of data times constant columns, turned round.

    Constant columns lie in memory as a kernel wants them; what is turned is mostly turned back by what follows.
    """
    call, rows = b.call("root"), b["rows"]
    attributes, data = call.attributes, b["x"]
    assert isinstance(attributes, MatmulAttributes) and isinstance(rows, Constant)
    shape = known_sizes(data)
    turned = attributes.transpose_b and not attributes.transpose_a and not isinstance(data, Constant)
    if not turned or shape is None or len(shape) != 2 or rows.data.ndim < 2:
        return None
    *outer, depth = rows.data.shape
    product = make("matmul", data, constant(rows.data.reshape(-1, depth), rows.dtype), transpose_b=True)
    apart = make("reshape", product, shape=(shape[0], *outer))
    return make("transpose", apart, axes=(*range(1, len(outer) + 1), 0))


def _padded_convolution(b: Bindings) -> GraphExpr | None:
    """A convolution pads with zeros itself."""
    call, pad = b.call("root"), b.call("pad")
    assert isinstance(call.attributes, Conv2dAttributes)
    assert isinstance(pad.attributes, PadAttributes)
    layout = call.attributes.data_layout
    before, after = constants(pad.attributes.before), constants(pad.attributes.after)
    if before is None or after is None:
        return None
    h, w = layout.index("H"), layout.index("W")
    elsewhere = any(before[axis] or after[axis] for axis in range(len(layout)) if axis not in (h, w))
    if pad.attributes.mode != "constant" or pad.attributes.value != 0 or elsewhere:
        return None
    added = (before[h], before[w], after[h], after[w])
    padding = tuple(old + new for old, new in zip(call.attributes.padding, added, strict=True))
    result = Call(call.callee, (b["x"], call.args[1]), call.attributes.replace(padding=padding))
    fill_type(result)
    return result


def _column_convolution(b: Bindings) -> GraphExpr | None:
    """A convolution along a column of pixels is one along a row: neighbours of a row are what tiles are made of."""
    call = b.call("root")
    attributes, (data, weight) = call.attributes, call.args
    assert isinstance(attributes, Conv2dAttributes)
    h, w = attributes.data_layout.index("H"), attributes.data_layout.index("W")
    sizes, taps = known_sizes(data), known_sizes(weight)
    if sizes is None or taps is None:
        return None
    top, left, bottom, right = attributes.padding
    is_column = sizes[w] == 1 and taps[attributes.kernel_layout.index("W")] == 1 and (left, right) == (0, 0)
    if not is_column or sizes[h] == 1:
        return None
    row = attributes.replace(
        strides=attributes.strides[::-1], dilation=attributes.dilation[::-1], padding=(left, top, right, bottom)
    )
    turned = Call(call.callee, (_turned(data, sizes, row.data_layout), _turned(weight, taps, row.kernel_layout)), row)
    turned.span = call.span
    fill_type(turned)
    rows = known_sizes(turned)
    return None if rows is None else _turned(turned, rows, row.data_layout)


def _turned(value: GraphExpr, sizes: Sizes, layout: str) -> GraphExpr:
    """An image with rows for columns, of which there is one: nothing moves in memory."""
    shape = list(sizes)
    h, w = layout.index("H"), layout.index("W")
    shape[h], shape[w] = shape[w], shape[h]
    return make("reshape", value, shape=tuple(shape))


_X = P.any("x")
_BINARY = ("add", "subtract", "multiply", "divide", "minimum", "maximum", "power", "floor_divide", "floor_mod", "fmod")
_BROADCASTING = (*_BINARY, "equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "where")

RULES = (
    Rule("item of a tuple", P.tuple_get(P.tuple_of("tuple")), _tuple_item),
    Rule("item of a split", P.tuple_get(P.op("split", name="split")), _split_item),
    Rule("reshape of reshape", P.op("reshape", P.op("reshape", _X)), _merge_reshapes),
    Rule("reshape to the same shape", P.op("reshape", _X), _same_type),
    Rule("transpose of transpose", P.op("transpose", P.op("transpose", _X, name="inner")), _merge_transposes),
    Rule("transpose that keeps the order", P.op("transpose", _X), _trivial_transpose),
    Rule("cast to the same type", P.op("cast", _X), _same_type),
    Rule("cast of an exact cast", P.op("cast", P.op("cast", _X, name="inner")), _merge_casts),
    Rule("stop_gradient", P.op("stop_gradient", _X), _same_type),
    Rule("pad by nothing", P.op("pad", _X), _trivial_pad),
    Rule("slice of everything", P.op("slice", _X), _trivial_slice),
    Rule("slice of one part", P.op("slice", P.op("concatenate", name="joined")), _slice_of_part),
    Rule("slice of slice", P.op("slice", P.op("slice", _X, name="inner")), _merge_slices),
    Rule("tile once", P.op("tile", _X), _same_type),
    Rule("broadcast to the same shape", P.op("broadcast_to", _X), _same_type),
    Rule("concatenate of one", P.op("concatenate", name="root"), _trivial_concatenate),
    Rule("broadcast before an operator that broadcasts", P.op(_BROADCASTING, name="root"), _needless_broadcast),
    Rule("x + 0", P.op("add", _X, P.value(0)), _same_type),
    Rule("x - 0", P.op("subtract", _X, P.value(0)), _same_type),
    Rule("x * 1", P.op("multiply", _X, P.value(1)), _same_type),
    Rule("x / 1", P.op("divide", _X, P.value(1)), _same_type),
    Rule("x / 2^n", P.op("divide", _X, P.const("c")), _divide_exactly),
    Rule("x ^ 1", P.op("power", _X, P.value(1)), _same_type),
    Rule("x ^ n", P.op("power", _X, P.const("c")), _power),
    Rule("- - x", P.op("negative", P.op("negative", _X)), _same_type),
    Rule("1 / sqrt", P.op("reciprocal", P.op("sqrt", _X)), lambda b: make("rsqrt", b["x"])),
    Rule("not not x", P.op("logical_not", P.op("logical_not", _X)), _same_type),
    Rule("where everywhere", P.op("where", P.value(True), _X, P.any("other")), _same_type),
    Rule("where nowhere", P.op("where", P.value(False), P.any("other"), _X), _same_type),
    Rule("max(x, 0)", P.op("maximum", _X, P.value(0)), _as_relu),
    Rule("max(x, c), min(x, c)", P.op(("maximum", "minimum"), _X, P.const("c")), _as_clip),
    Rule("open clip", P.op("clip", _X, name="root"), _open_clip),
    Rule(
        "clip of clip",
        P.op(("clip", "nn.relu"), P.op(("clip", "nn.relu"), _X, name="inner"), name="outer"),
        _merge_clips,
    ),
    Rule("reduction of nothing", P.op(("sum", "mean", "max", "min", "prod", "all", "any"), _X), _trivial_reduction),
    Rule(
        "pad before a convolution",
        P.op("nn.conv2d", P.op("pad", _X, name="pad"), P.any(), name="root"),
        _padded_convolution,
    ),
    Rule("convolution along a column", P.op("nn.conv2d", name="root"), _column_convolution),
    Rule("matmul of a transpose", P.op("matmul", name="root"), _matmul_of_transpose),
    Rule("constant rows times rows", P.op("matmul", P.const("rows"), _X, name="root"), _constant_rows),
)
"""All rules, tried in order at each node."""

__all__ = ["RULES", "canonicalize", "inline_lets"]
