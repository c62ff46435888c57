"""Operations of Core ML with windows: convolutions and pooling in one, two and three dimensions."""

from __future__ import annotations

from tilewright.frontend.core.builder import dtype_of, rank_of, shape_of, sizes_of
from tilewright.frontend.core.windows import known_sizes, same_padding
from tilewright.frontend.coreml.operation import Operation, operation
from tilewright.frontend.onnx.borrowed import Attribute
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UserError

_AUTOMATIC = {"same": "SAME_UPPER", "same_lower": "SAME_LOWER"}


def _rank(op: Operation) -> int:
    """The number of dimensions that a window moves along."""
    rank = rank_of(op.value()) - 2
    if rank < 1:
        raise UserError(f"{op.kind} needs data of at least 3 dimensions, it has {rank + 2}")
    return rank


def _pairs(op: Operation, rank: int) -> tuple[list[int], list[int]]:
    """The argument `pad`: before and after, for each dimension."""
    pad = op.ints("pad", (0,) * (2 * rank))
    if len(pad) != 2 * rank:
        raise UserError(f"the argument 'pad' of {op.kind} must have {2 * rank} entries, it is {pad}")
    return list(pad[::2]), list(pad[1::2])


def _padding(op: Operation, rank: int, default: str | None = None) -> dict[str, Attribute]:
    """How the data is padded, as ONNX says it."""
    kind = op.text("pad_type", default)
    if kind in _AUTOMATIC:
        return {"auto_pad": _AUTOMATIC[kind]}
    if kind == "custom":
        before, after = _pairs(op, rank)
        return {"pads": [*before, *after]}
    if kind != "valid":
        raise UserError(f"the padding {kind!r} of {op.kind} is not known")
    return {}


@operation("conv")
def convolution(op: Operation) -> GraphExpr:
    """A convolution, with weights that may be computed."""
    rank = _rank(op)
    weight, bias = op.value("weight"), op.optional("bias")
    return op.onnx(
        "Conv",
        op.value(),
        op.builder.cast(weight, dtype_of(op.value())),
        None if bias is None else op.builder.cast(bias, dtype_of(op.value())),
        strides=op.ints("strides", (1,) * rank),
        dilations=op.ints("dilations", (1,) * rank),
        group=op.integer("groups", 1),
        **_padding(op, rank, "valid"),
    )


@operation("conv_transpose")
def transposed_convolution(op: Operation) -> GraphExpr:
    """The transpose of a convolution; a given shape of the result decides the padding at the end."""
    rank = _rank(op)
    x, weight, bias = op.value(), op.builder.cast(op.value("weight"), dtype_of(op.value())), op.optional("bias")
    strides, dilations = op.ints("strides", (1,) * rank), op.ints("dilations", (1,) * rank)
    before, after, extra = _transposed_padding(op, rank, shape_of(weight)[2:], strides, dilations)
    return op.onnx(
        "ConvTranspose",
        x,
        weight,
        None if bias is None else op.builder.cast(bias, dtype_of(x)),
        strides=strides,
        dilations=dilations,
        group=op.integer("groups", 1),
        pads=[*before, *after],
        output_padding=extra,
    )


def _transposed_padding(
    op: Operation, rank: int, kernel: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...]
) -> tuple[list[int], list[int], list[int]]:
    """What is cut off before and after, and what is added at the end."""
    kind = op.text("pad_type", "valid")
    before, after, extra = [0] * rank, [0] * rank, [0] * rank
    if kind == "custom":
        before, after = _pairs(op, rank)
    elif kind in _AUTOMATIC:
        for axis in range(rank):
            total = max(0, (kernel[axis] - 1) * dilations[axis] + 1 - strides[axis])
            before[axis] = (total + 1) // 2 if kind == "same_lower" else total // 2
            after[axis] = total - before[axis]
            extra[axis] = max(0, strides[axis] - (kernel[axis] - 1) * dilations[axis] - 1)
    elif kind != "valid":
        raise UserError(f"the padding {kind!r} of {op.kind} is not known")
    if op.has("output_shape"):
        sizes = known_sizes(sizes_of(op.value())[2:], "a given shape of the result")
        for axis, size in enumerate(op.ints("output_shape")[-rank:]):
            full = (sizes[axis] - 1) * strides[axis] + (kernel[axis] - 1) * dilations[axis] + 1
            rest = full - before[axis] - size
            after[axis], extra[axis] = max(0, rest), max(0, -rest)
    return before, after, extra


@operation("max_pool", "avg_pool", "l2_pool")
def pool(op: Operation) -> GraphExpr:
    """The greatest, the mean or the root of the sum of squares of each window."""
    rank = _rank(op)
    kernel = op.ints("kernel_sizes")
    options: dict[str, Attribute] = {
        "kernel_shape": kernel,
        "strides": op.ints("strides", (1,) * rank),
        "ceil_mode": op.flag("ceil_mode", False),
        **_padding(op, rank),
    }
    if op.kind == "max_pool":
        return op.onnx("MaxPool", op.value(), **options)
    if op.kind == "l2_pool":
        return op.onnx("LpPool", op.value(), p=2, **options)
    options["count_include_pad"] = not op.flag("exclude_padding_from_average", False)
    if "auto_pad" in options and options["count_include_pad"]:
        options = _explicit(op, options, kernel)
    return op.onnx("AveragePool", op.value(), **options)


def _explicit(op: Operation, options: dict[str, Attribute], kernel: tuple[int, ...]) -> dict[str, Attribute]:
    """Padding that counts in averages, in numbers."""
    strides = op.ints("strides", (1,) * len(kernel))
    sizes = known_sizes(sizes_of(op.value())[2:], "padding that counts in averages")
    totals = [same_padding(size, step, width, 1) for size, step, width in zip(sizes, strides, kernel, strict=True)]
    is_lower = options.pop("auto_pad") == "SAME_LOWER"
    before = [(total + 1) // 2 if is_lower else total // 2 for total in totals]
    return options | {"pads": [*before, *(total - first for total, first in zip(totals, before, strict=True))]}
