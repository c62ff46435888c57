"""Random nodes of operators that move, choose and window elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz.graph_draft import FLOATS, INTEGERS, Draft
from tests.fuzz.graph_makers import maker

ANY = (*FLOATS, *INTEGERS, "bool")


@maker("Transpose", "Flatten", "Squeeze", "Unsqueeze", "Reshape", "Expand", "Tile", "Shape", "Size")
def reshaped(d: Draft, op: str) -> list[str] | None:
    """The same elements in another shape."""
    a = d.pick(ANY)
    value = d.values[a]
    rank = value.ndim
    if op == "Transpose":
        return d.node(op, [a], **({"perm": d.random.permutation(rank).tolist()} if rank and d.chance(0.8) else {}))
    if op == "Flatten":
        return d.node(op, [a], axis=d.whole(-rank, rank))
    if op == "Squeeze":
        ones = [n - (rank if d.chance(0.4) else 0) for n, size in enumerate(value.shape) if size == 1]
        return d.node(op, [a] if d.chance(0.3) else [a, d.parameter(ones)])
    if op == "Unsqueeze":
        count = d.whole(1, 2)
        places = d.random.permutation(rank + count)[:count].tolist()
        return d.node(op, [a, d.parameter([n - (rank + count if d.chance(0.4) else 0) for n in places])])
    if op == "Reshape":
        return d.node(op, [a, d.parameter(_new_shape(d, value))])
    if op == "Expand":
        target = [1 if d.chance(0.4) else int(size) for size in value.shape]
        return d.node(op, [a, d.parameter([d.whole(1, 3), *target] if d.chance(0.4) else target)])
    if op == "Tile":
        return d.node(op, [a, d.parameter([d.whole(0 if d.chance(0.05) else 1, 3) for _ in range(rank)])])
    attributes = {"start": d.whole(-rank - 1, rank)} if op == "Shape" and d.chance(0.4) else {}
    return d.node(op, [a], **attributes)


def _new_shape(d: Draft, value: Any) -> list[int]:
    count = value.size
    if count == 0:
        return [0, -1] if value.ndim and value.shape[0] == 0 and d.chance(0.2) else [*value.shape, 1]
    divisors = [n for n in range(1, count + 1) if count % n == 0]
    first = int(d.one(*divisors))
    return list(d.one([-1], [first, count // first], [first, -1], [1, count], [count // first, 1, first]))


@maker("Concat", "Split", "Slice", "Pad")
def cut_and_joined(d: Draft, op: str) -> list[str] | None:
    """Parts of tensors."""
    a = d.pick(ANY, least=1)
    value = d.values[a]
    axis = d.axis(value.ndim)
    if op == "Concat":
        others = []
        for _ in range(d.whole(0, 2)):
            shape = list(value.shape)
            shape[axis] = d.whole(0 if d.chance(0.1) else 1, 4)
            others.append(d.fresh(shape, value.dtype.name))
        return d.node(op, d.random.permutation([a, *others]).tolist(), axis=axis)
    if op == "Split":
        size = value.shape[axis]
        if d.chance(0.5) and size:
            count = d.whole(1, min(size, 3))
            return d.node(op, [a], -(-size // -(-size // count)), axis=axis, num_outputs=-(-size // -(-size // count)))
        first = d.whole(0, size)
        return d.node(op, [a, d.parameter([first, size - first])], 2, axis=axis)
    if op == "Slice":
        axes = d.axes(value.ndim)
        starts, ends = ([d.whole(-8, 8) for _ in axes] for _ in range(2))
        steps = [int(d.one(1, 1, 2, 3, -1, -2)) for _ in axes]
        # onnxruntime takes the largest number, downwards, for the begin.
        ends = [int(d.one(end, 2**31 - 1 if step > 0 else -(2**31))) for end, step in zip(ends, steps, strict=True)]
        return d.node(op, [a, d.parameter(starts), d.parameter(ends), d.constant(axes), d.constant(steps)])
    mode = str(d.one("constant", "constant", "reflect", "edge", "wrap"))
    amounts = [d.whole(-2 if d.chance(0.2) else 0, 2) for _ in range(2 * value.ndim)]
    fill = [d.add(np.asarray(1, value.dtype))] if mode == "constant" and d.chance(0.5) else []
    return d.node(op, [a, d.parameter(amounts), *fill], mode=mode)


@maker("Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND", "OneHot", "Compress", "NonZero", "Trilu")
def indexed(d: Draft, op: str) -> list[str] | None:
    """Elements by their places."""
    a = d.pick(("float32", "int64", "float64"), least=1, where=lambda value: value.size > 0)
    value = d.values[a]
    axis = d.axis(value.ndim)
    size = value.shape[axis]
    kind = str(d.one("int64", "int32"))
    if op == "Gather":
        return d.node(op, [a, d.fresh(d.shape(d.whole(0, 2)), kind, -size, size - 1)], axis=axis)
    if op == "GatherElements":
        shape = [d.whole(1, n) if at != axis % value.ndim else d.whole(1, 4) for at, n in enumerate(value.shape)]
        return d.node(op, [a, d.fresh(shape, kind, -size, size - 1)], axis=axis)
    if op in ("GatherND", "ScatterND"):
        depth, rows = d.whole(1, value.ndim), d.whole(1, 3)
        places = [d.numbers((rows, 1), "int64", -n, n - 1) for n in value.shape[:depth]]
        index = d.add(np.concatenate(places, axis=1))
        if op == "GatherND":
            return d.node(op, [a, index])
        updates = d.fresh((rows, *value.shape[depth:]), value.dtype.name)
        return d.node(op, [a, index, updates], reduction=d.one("add", "max", "min"))
    if op == "ScatterElements":
        shape = [d.whole(1, n) for n in value.shape]
        return d.node(
            op,
            [a, d.fresh(shape, kind, -size, size - 1), d.fresh(shape, value.dtype.name)],
            axis=axis,
            reduction=d.one("add", "max", "min"),
        )
    if op == "OneHot":
        places = d.pick(("int64", "int32"))
        return d.node(
            op, [places, d.constant(d.whole(1, 5)), d.fresh((2,), "float32")], axis=d.axis(d.values[places].ndim + 1)
        )
    if op == "Compress":
        return d.node(op, [a, d.fresh((d.whole(1, size),), "bool")], axis=axis)
    if op == "Trilu":
        return d.node(
            op, [d.pick(("float32", "int64", "bool"), least=2), d.constant(d.whole(-3, 3))], upper=d.whole(0, 1)
        )
    return d.node(op, [d.pick(("float32", "int64", "bool"))])


@maker(
    "Range", "ConstantOfShape", "EyeLike", "DepthToSpace", "SpaceToDepth", "ReverseSequence", "Dropout", "Unique", "Det"
)
def made(d: Draft, op: str) -> list[str] | None:
    """Tensors from little."""
    if op == "Range":
        kind = str(d.one("int64", "float32"))
        return d.node(op, [d.add(np.asarray(n, kind)) for n in (d.whole(-3, 2), d.whole(-3, 6), d.one(1, 2, -1))])
    if op == "ConstantOfShape":
        return d.node(op, [d.parameter(d.shape())])
    if op == "EyeLike":
        return d.node(op, [d.pick(("float32", "int64"), rank=2)], k=d.whole(-2, 2))
    if op in ("DepthToSpace", "SpaceToDepth"):
        block = d.whole(1, 2)
        shape = (1, 2 * block**2, 3, 2) if op == "DepthToSpace" else (1, 3, 2 * block, 3 * block)
        attributes = {"mode": d.one("DCR", "CRD")} if op == "DepthToSpace" else {}
        return d.node(op, [d.fresh(shape)], blocksize=block, **attributes)
    if op == "ReverseSequence":
        return d.node(op, [d.fresh((4, 3, 2)), d.fresh((3,), "int64", 1, 4)], batch_axis=1, time_axis=0)
    if op == "Det":
        size = d.whole(1, 4)
        return d.node(op, [d.fresh((2, size, size))])
    if op == "Unique":
        return d.node(op, [d.pick(("int64", "float32"), rank=1)], 4, sorted=d.whole(0, 1))
    return d.node(op, [d.pick(("float32", "float64"))])


def _window(d: Draft, rank: int, kernel: list[int], transposed: bool = False) -> dict[str, Any]:
    attributes: dict[str, Any] = {"strides": [d.whole(1, 3) for _ in range(rank)]} if d.chance(0.6) else {}
    if d.chance(0.3):
        attributes["dilations"] = [d.whole(1, 2) for _ in range(rank)]
    if d.chance(0.3):
        attributes["auto_pad"] = d.one("SAME_UPPER", "SAME_LOWER", "VALID")
    elif d.chance(0.6):
        attributes["pads"] = [d.whole(0, max(0, kernel[n % rank] - 1)) for n in range(2 * rank)]
    if transposed and "strides" in attributes and d.chance(0.3):
        attributes["output_padding"] = [d.whole(0, stride - 1) for stride in attributes["strides"]]
    return attributes


def _window_fits(size: tuple[int, ...], kernel: list[int], attributes: dict[str, Any]) -> bool:
    """Whether there is a window along every axis: oracles disagree on how many there are otherwise."""
    rank = len(kernel)
    pads, dilations = attributes.get("pads", [0] * 2 * rank), attributes.get("dilations", [1] * rank)
    reaches = [(kernel[n] - 1) * dilations[n] + 1 for n in range(rank)]
    is_same = str(attributes.get("auto_pad", "")).startswith("SAME")
    return is_same or all(size[n] + pads[n] + pads[n + rank] >= reaches[n] for n in range(rank))


@maker("Conv", "ConvTranspose")
def convolution(d: Draft, op: str) -> list[str] | None:
    """Windows times weights."""
    rank = int(d.one(1, 2, 2, 3))
    groups = int(d.one(1, 1, 1, 2, 3))
    channels, outputs = groups * d.whole(1, 3), d.whole(1, 3)
    kernel = [int(d.one(1, 2, 3)) for _ in range(rank)]
    a = d.fresh((d.whole(1, 2), channels, *(d.whole(1, 7) for _ in range(rank))))
    shape = (channels, outputs, *kernel) if op == "ConvTranspose" else (groups * outputs, channels // groups, *kernel)
    bias = [d.fresh((groups * outputs,))] if d.chance(0.5) else []
    return d.node(op, [a, d.fresh(shape), *bias], group=groups, **_window(d, rank, kernel, op == "ConvTranspose"))


@maker("MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def pool(d: Draft, op: str) -> list[str] | None:
    """One number a window."""
    rank = int(d.one(1, 2, 2, 3))
    a = d.pick(("float32",), rank=rank + 2, where=lambda value: value.size > 0)
    if op.startswith("Global"):
        return d.node(op, [a])
    kernel = [int(d.one(1, 2, 3)) for _ in range(rank)]
    attributes = _window(d, rank, kernel)
    if op == "AveragePool" and d.chance(0.5):
        attributes["count_include_pad"] = d.whole(0, 1)
    if d.chance(0.3):
        attributes["ceil_mode"] = 1
    if not _window_fits(d.values[a].shape[2:], kernel, attributes):
        return None
    outputs = 2 if op == "MaxPool" and d.chance(0.3) else 1
    return d.node(op, [a], outputs, kernel_shape=kernel, **attributes)


@maker("Resize", "GridSample", "AffineGrid")
def sampled(d: Draft, op: str) -> list[str] | None:
    """Values between elements."""
    if op == "AffineGrid":
        return d.node(
            op, [d.fresh((2, 2, 3)), d.constant([2, 1, d.whole(2, 5), d.whole(2, 5)])], align_corners=d.whole(0, 1)
        )
    kind = "uint8" if op == "Resize" and d.chance(0.2) else "float32"
    a = d.fresh((1, 2, d.whole(1, 6), d.whole(1, 6)), kind, 0 if kind == "uint8" else -2, 255 if kind == "uint8" else 2)
    if op == "GridSample":
        grid = d.fresh((1, 3, 4, 2), low=-1.2, high=1.2)
        mode = d.one("linear", "nearest", "cubic") if d.opset >= 20 else d.one("bilinear", "nearest", "bicubic")
        return d.node(op, [a, grid], mode=mode, align_corners=d.whole(0, 1),
                      padding_mode=d.one("zeros", "border", "reflection"))  # fmt: skip
    mode = str(d.one("nearest", "linear", "cubic"))
    attributes: dict[str, Any] = {"mode": mode}
    attributes["coordinate_transformation_mode"] = d.one(
        "half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric"
    )
    if mode == "nearest":
        attributes["nearest_mode"] = d.one("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    else:
        attributes |= {"antialias": d.whole(0, 1)}
    if mode == "cubic":
        attributes |= {"cubic_coeff_a": float(d.one(-0.5, -0.75)), "exclude_outside": d.whole(0, 1)}
    if d.chance(0.5):
        return d.node(op, [a, "", "", d.parameter([1, 2, d.whole(1, 8), d.whole(1, 8)])], **attributes)
    return d.node(op, [a, "", d.parameter([1, 1, d.one(0.6, 1.3, 2.0), d.one(0.5, 1.5, 1.0)], "float32")], **attributes)
