"""Random calls of every differentiable operator of tensors, with values at which it has a derivative."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.graph.gradient.cases import GATES, Case, Input, above_one, apart, normal, positive, small, truth, whole

Rng = np.random.Generator
Shape = tuple[int, ...]
_ANYWHERE = "exp expm1 sin cos sinh cosh tanh atan asinh erf sigmoid nn.softplus negative".split()
_APART = "abs nn.relu nn.leaky_relu nn.elu nn.selu nn.hard_sigmoid nn.gelu".split()


def _shape(rng: Rng, least: int = 0) -> tuple[int, ...]:
    return tuple(int(size) for size in rng.integers(1, 5, rng.integers(least, 5)))


def _beside(rng: Rng, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts to another."""
    kept = shape[int(rng.integers(0, len(shape) + 1)) :]
    return tuple(1 if rng.random() < 0.3 else size for size in kept)


def _unary(rng: Rng) -> Case:
    makers = [(_ANYWHERE, normal), (_APART, apart), (["log", "log1p", "sqrt", "rsqrt", "reciprocal"], positive)]
    makers.append((["tan", "asin", "acos", "atanh"], small))
    names, make = makers[rng.integers(len(makers))]
    return Case(names[rng.integers(len(names))], ((make, _shape(rng)),))


def _binary(rng: Rng) -> Case:
    name = ["add", "subtract", "multiply", "divide", "power"][rng.integers(5)]
    shape = _shape(rng)
    shapes = [shape, _beside(rng, shape)]
    rng.shuffle(shapes)
    return Case(name, ((positive, tuple(shapes[0])), (positive, tuple(shapes[1]))))


def _where(rng: Rng) -> Case:
    shape = _shape(rng)
    return Case("where", ((truth, _beside(rng, shape)), (normal, shape), (normal, _beside(rng, shape))))


def _reduction(rng: Rng) -> Case:
    shape = _shape(rng, 1)
    axes = tuple(sorted(rng.choice(len(shape), int(rng.integers(1, len(shape) + 1)), replace=False).tolist()))
    name = ["sum", "mean", "max", "min"][rng.integers(4)]
    return Case(name, ((apart, shape),), {"axes": axes, "keepdims": bool(rng.integers(2))})


def _softmax(rng: Rng) -> Case:
    shape = _shape(rng, 1)
    name = ["nn.softmax", "nn.log_softmax"][rng.integers(2)]
    return Case(name, ((normal, shape),), {"axis": int(rng.integers(len(shape)))})


def _layer_norm(rng: Rng) -> Case:
    shape = (*_shape(rng, 1)[:3], int(rng.integers(2, 6)))
    axis = int(rng.integers(len(shape)))
    inputs = ((normal, shape), (normal, shape[axis:]), (normal, shape[axis:]))
    return Case("nn.layer_norm", inputs, {"axis": axis, "epsilon": 1e-3})


def _matmul(rng: Rng) -> Case:
    m, k, n = (int(size) for size in rng.integers(1, 5, 3))
    batch = _shape(rng)[:2]
    a, b = bool(rng.integers(2)), bool(rng.integers(2))
    left = (*batch, *((k, m) if a else (m, k)))
    right = (*_beside(rng, batch), *((n, k) if b else (k, n)))
    return Case("matmul", ((normal, left), (normal, right)), {"transpose_a": a, "transpose_b": b})


def _convolution(rng: Rng) -> Case:
    groups = int(rng.integers(1, 4))
    inputs, outputs = (groups * int(size) for size in rng.integers(1, 3, 2))
    kernel = tuple(int(size) for size in rng.integers(1, 4, 2))
    attributes: dict[str, object] = {
        "strides": tuple(rng.integers(1, 4, 2).tolist()),
        "dilation": tuple(rng.integers(1, 3, 2).tolist()),
        "padding": tuple(rng.integers(0, 3, 4).tolist()),
        "groups": groups,
    }
    height, width = rng.integers(5, 9, 2).tolist()
    batch = int(rng.integers(1, 3))
    if rng.integers(2):
        attributes |= {"data_layout": "NHWC", "kernel_layout": "HWIO"}
        shapes = (batch, height, width, inputs), (*kernel, inputs // groups, outputs)
    else:
        shapes = (batch, inputs, height, width), (outputs, inputs // groups, *kernel)
    return Case("nn.conv2d", ((normal, shapes[0]), (normal, shapes[1])), attributes)


def _attention(rng: Rng) -> Case:
    batch, rows, columns, heads, size, width = rng.integers(1, 4, 6).tolist()
    inputs = [
        (normal, (batch, rows, heads, size)),
        (normal, (batch, columns, heads, size)),
        (normal, (batch, columns, heads, width)),
    ]
    attributes: dict[str, object] = {"scale": float(rng.uniform(0.1, 1))}
    if rng.integers(2):
        inputs.append((truth, _beside(rng, (batch, heads, rows, columns))))
        attributes["blind_is_zero"] = True
    return Case("nn.attention", tuple(inputs), attributes)


def _two_sided(rng: Rng) -> Case:
    name = ["maximum", "minimum", "floor_mod", "fmod"][rng.integers(4)]
    shape = _shape(rng)
    makes = (apart, normal) if name in ("maximum", "minimum") else (positive, above_one)
    return Case(name, ((makes[0], shape), (makes[1], _beside(rng, shape))))


def _more_unary(rng: Rng) -> Case:
    shape, choice = _shape(rng, 1), rng.integers(5)
    if choice == 0:
        return Case("clip", ((apart, shape),), {"minimum": -0.5, "maximum": 0.6})
    if choice == 1:
        return Case("acosh", ((above_one, shape),))
    if choice == 2:
        return Case("nn.gelu", ((normal, shape),), {"approximate": True})
    if choice == 3:
        return Case("nn.prelu", ((apart, shape), (normal, _beside(rng, shape))))
    return Case("nn.leaky_relu", ((apart, shape),), {"alpha": float(rng.uniform(0.1, 0.9))})


def _running(rng: Rng) -> Case:
    shape = _shape(rng, 1)
    name = ["cumsum", "cumprod"][rng.integers(2)]
    attributes = {
        "axis": int(rng.integers(len(shape))),
        "exclusive": bool(rng.integers(2)),
        "reverse": bool(rng.integers(2)),
    }
    return Case(name, ((normal, shape),), attributes)


def _product(rng: Rng) -> Case:
    shape = _shape(rng, 1)
    axes = tuple(sorted(rng.choice(len(shape), int(rng.integers(1, len(shape) + 1)), replace=False).tolist()))
    return Case("prod", ((normal, shape),), {"axes": axes, "keepdims": bool(rng.integers(2))})


def _moved(rng: Rng) -> Case:
    """Elements that are only moved, repeated or put together."""
    shape, choice = _shape(rng, 1), rng.integers(6)
    axis = int(rng.integers(len(shape)))
    if choice == 0:
        return Case("reshape", ((normal, shape),), {"shape": tuple(reversed(shape))})
    if choice == 1:
        return Case("transpose", ((normal, shape),), {"axes": tuple(rng.permutation(len(shape)).tolist())})
    if choice == 2:
        narrow = tuple(1 if rng.random() < 0.5 else size for size in shape)
        return Case("broadcast_to", ((normal, narrow),), {"shape": (int(rng.integers(1, 3)), *shape)})
    if choice == 3:
        return Case("tile", ((normal, shape),), {"repeats": tuple(rng.integers(1, 4, len(shape)).tolist())})
    sizes = tuple(rng.integers(1, 4, rng.integers(1, 4)).tolist())
    parts = [(*shape[:axis], size, *shape[axis + 1 :]) for size in sizes]
    if choice == 4:
        return Case("concatenate", tuple((normal, part) for part in parts), {"axis": axis})
    joined = (*shape[:axis], sum(sizes), *shape[axis + 1 :])
    return Case("split", ((normal, joined),), {"sizes": sizes, "axis": axis})


def _part(rng: Rng) -> Case:
    shape = tuple(int(size) for size in rng.integers(2, 7, rng.integers(1, 4)))
    bounds = []
    for size in shape:
        low, high = sorted(rng.integers(0, size, 2).tolist())
        step = int(rng.integers(1, 4))
        bounds.append((low, high + 1, step) if rng.integers(2) else (high, low - 1, -step))
    begin, end, strides = (tuple(item) for item in zip(*bounds, strict=True))
    return Case("slice", ((normal, shape),), {"begin": begin, "end": end, "strides": strides})


def _padded(rng: Rng) -> Case:
    shape = tuple(int(size) for size in rng.integers(3, 6, rng.integers(1, 4)))
    before, after = (tuple(rng.integers(0, 3, len(shape)).tolist()) for _ in range(2))
    mode = ["constant", "reflect", "edge"][rng.integers(3)]
    return Case("pad", ((normal, shape),), {"before": before, "after": after, "value": 2.0, "mode": mode})


def _taken(rng: Rng) -> Case:
    shape = _shape(rng, 1)
    axis = int(rng.integers(len(shape)))
    mode = ["wrap_negative", "clip"][rng.integers(2)]
    least = -shape[axis] if mode == "wrap_negative" else -2
    return Case("take", ((normal, shape), (whole(shape[axis], least), _shape(rng)[:2])), {"axis": axis, "mode": mode})


def _scattered(rng: Rng) -> Case:
    reduction = ["none", "add", "mul", "max", "min"][rng.integers(5)]
    rows, columns, updates = (int(size) for size in rng.integers(1, 5, 3))
    choice = rng.integers(3)
    if choice == 0:
        inputs: tuple[Input, ...] = ((normal, (updates, columns)), (whole(rows + 1, -1), (updates,)))
        return Case("segment_sum", inputs, {"count": rows})
    if choice == 1:
        inputs = ((normal, (rows, columns)), (whole(rows + 1, -1), (updates,)), (apart, (updates, columns)))
        return Case("scatter", inputs, {"reduction": reduction})
    axis = int(rng.integers(2))
    shape = (updates, columns) if axis == 0 else (rows, updates)
    inputs = ((normal, (rows, columns)), (whole((rows, columns)[axis], -1), shape), (apart, shape))
    return Case("scatter_elements", inputs, {"axis": axis, "reduction": reduction})


def _extreme(rng: Rng) -> Case:
    shape = _shape(rng, 1)
    axis = int(rng.integers(len(shape)))
    attributes = {"axis": axis, "k": int(rng.integers(1, shape[axis] + 1)), "largest": bool(rng.integers(2))}
    return Case("topk", ((apart, shape),), attributes)


def _grouped(rng: Rng) -> Case:
    rows, inner, outer, groups = (int(size) for size in rng.integers(1, 5, 4))
    inputs = ((normal, (rows, inner)), (normal, (groups, inner, outer)), (whole(groups + 1, -1), (rows,)))
    return Case("grouped_matmul", inputs)


def _batch_norm(rng: Rng) -> Case:
    shape = _shape(rng, 2)
    axis = int(rng.integers(len(shape)))
    inputs = ((normal, shape), *([(normal, (shape[axis],))] * 3), (positive, (shape[axis],)))
    return Case("nn.batch_norm", inputs, {"axis": axis})


def _window(rng: Rng) -> dict[str, object]:
    """Kernel, steps and padding of windows that all touch the data."""
    kernel = tuple(rng.integers(2, 4, 2).tolist())
    return {
        "kernel": kernel,
        "strides": tuple(rng.integers(1, 3, 2).tolist()),
        "padding": tuple(rng.integers(0, 2, 4).tolist()),
    }


def _pooled(rng: Rng) -> Case:
    batch, channels = (int(size) for size in rng.integers(1, 3, 2))
    height, width = (int(size) for size in rng.integers(4, 7, 2))
    attributes = _window(rng)
    (k0, k1), (s0, s1), (top, left, bottom, right) = (attributes[name] for name in ("kernel", "strides", "padding"))  # type: ignore[misc]
    rows, columns = (height + top + bottom - k0) // s0 + 1, (width + left + right - k1) // s1 + 1
    last = bool(rng.integers(2))
    attributes["layout"] = "NHWC" if last else "NCHW"
    image = (batch, height, width, channels) if last else (batch, channels, height, width)
    pooled = (batch, rows, columns, channels) if last else (batch, channels, rows, columns)
    choice = rng.integers(4)
    if choice == 0:
        return Case("nn.max_pool2d", ((apart, image),), attributes)
    if choice == 1:
        return Case("nn.max_pool2d_gradient", ((apart, image), (normal, pooled)), attributes)
    attributes["count_include_pad"] = bool(rng.integers(2))
    if choice == 2:
        return Case("nn.avg_pool2d", ((normal, image),), attributes)
    return Case("nn.avg_pool2d_gradient", ((normal, pooled),), attributes | {"size": (height, width)})


def _convolution_back(rng: Rng) -> Case:
    """What a convolution gives back to its data, or to its weights."""
    forward = _convolution(rng)
    attributes = dict(forward.attributes)
    (_, image), (_, weights) = forward.inputs
    last = attributes.get("data_layout") == "NHWC"
    strides, dilation, padding = (attributes[name] for name in ("strides", "dilation", "padding"))
    sizes, kernel = (image[1:3], weights[:2]) if last else (image[2:], weights[2:])
    top, left, bottom, right = padding  # type: ignore[misc]
    around, outputs = (top + bottom, left + right), weights[3 if last else 0]
    shape = tuple((sizes[n] + around[n] - (kernel[n] - 1) * dilation[n] - 1) // strides[n] + 1 for n in (0, 1))  # type: ignore[index]
    result = (image[0], *shape, outputs) if last else (image[0], outputs, *shape)
    if rng.integers(2):
        return Case("nn.conv2d_weight_gradient", ((normal, image), (normal, result)), attributes | {"kernel": kernel})
    groups = attributes["groups"]
    if last and groups != 1:
        return _convolution_back(rng)  # grouped transposed convolutions are planar
    turned = (*weights[:2], weights[3], weights[2]) if last else weights
    left_over = tuple(
        sizes[n] + around[n] - (kernel[n] - 1) * dilation[n] - 1 - (shape[n] - 1) * strides[n]
        for n in (0, 1)  # type: ignore[index]
    )
    inputs = ((normal, result), (normal, turned))
    return Case("nn.conv2d_transpose", inputs, attributes | {"output_padding": left_over})


def _layer_norm_back(rng: Rng) -> Case:
    rows, columns = (int(size) for size in rng.integers(1, 5, 2))
    whole_, row = (rows, columns + 1), (rows, 1)
    inputs = ((normal, whole_), (normal, whole_[1:]), (normal, whole_), (small, row), (positive, row))
    return Case("nn.layer_norm_gradient", inputs, {"axis": 1})


def _recurrent(rng: Rng) -> Case:
    steps, batch, width = (int(size) for size in rng.integers(1, 4, 3))
    kind = ["lstm", "gru", "rnn"][rng.integers(3)]
    gates = {"lstm": 4, "gru": 3, "rnn": 1}[kind]
    state: Input = (normal, (batch, width))
    inputs: list[Input] = [(normal, (steps, batch, gates, width)), (normal, (gates, width, width)), state]
    attributes: dict[str, object] = {"backward": bool(rng.integers(2))}
    if kind == "lstm":
        inputs.append(state)
        attributes |= {"activations": GATES, "coupled": bool(rng.integers(2))}
    elif kind == "gru":
        inputs.append((normal, (width,)))
        attributes |= {"activations": GATES[:2], "reset_after": bool(rng.integers(2))}
    else:
        attributes["activations"] = (("tanh", 0.0, 0.0),)
    if rng.integers(2):
        inputs.append((whole(steps + 1), (batch,)))
    return Case(f"nn.{kind}", tuple(inputs), attributes)


MAKERS: list[Callable[[Rng], Case]] = [
    *[_unary] * 6, _binary, _where, _reduction, _softmax, _layer_norm, _matmul, _convolution, _attention, _two_sided,
    _more_unary, _running, _product, _moved, _part, _padded, _taken, _scattered, _extreme, _grouped, _batch_norm,
    _pooled, _convolution_back, _layer_norm_back, _recurrent,
]  # fmt: skip


def random_case(seed: int) -> Case:
    """One random call."""
    rng = np.random.default_rng(seed)
    return MAKERS[rng.integers(len(MAKERS))](rng)
