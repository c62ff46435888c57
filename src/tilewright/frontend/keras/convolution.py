"""Convolutions in one to three dimensions: plain, depthwise, separable and transposed, with channels first or last."""

from __future__ import annotations

from dataclasses import replace

from tilewright.frontend.core.builder import rank_of, size_at, sizes_of
from tilewright.frontend.core.volumes import transposed_volume, volume
from tilewright.frontend.core.windows import Extents, Window
from tilewright.frontend.keras.activations import configured
from tilewright.frontend.keras.context import LayerCall
from tilewright.frontend.keras.layer import kernel_and_bias, variables
from tilewright.frontend.keras.registry import layer, operation
from tilewright.frontend.keras.values import KerasBuilder
from tilewright.frontend.keras.windows import extents_of, padded
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UserError


def convolved(
    b: KerasBuilder,
    data: GraphExpr,
    kernel: GraphExpr,
    extents: Extents,
    groups: int,
    channels_first: bool,
) -> GraphExpr:
    """A convolution with a kernel (sizes, inputs of a group, outputs), in one, two or three dimensions."""
    count = len(extents.kernel)
    if count == 3:
        order = (0, 4, 1, 2, 3)
        images = data if channels_first else b.transpose(data, order)
        result = volume(b, images, b.transpose(kernel, (4, 3, 0, 1, 2)), extents, groups)
        return result if channels_first else b.transpose(result, (0, 2, 3, 4, 1))
    window = Window.of(*extents.fields())
    if count == 1:
        data = b.expand_dims(data, (2 if channels_first else 1,))
        kernel = b.expand_dims(kernel, (0,))
    result = b.call(
        "nn.conv2d",
        data,
        b.transpose(kernel, (3, 2, 0, 1)) if channels_first else kernel,
        strides=window.strides,
        padding=window.padding,
        dilation=window.dilation,
        groups=groups,
        data_layout="NCHW" if channels_first else "NHWC",
        kernel_layout="OIHW" if channels_first else "HWIO",
    )
    return _without_unit(b, result, channels_first) if count == 1 else result


def _without_unit(b: KerasBuilder, value: GraphExpr, channels_first: bool) -> GraphExpr:
    sizes = sizes_of(value)
    at = 2 if channels_first else 1
    return b.reshape(value, (*sizes[:at], *sizes[at + 1 :]))


def with_bias(b: KerasBuilder, value: GraphExpr, bias: GraphExpr, channels_first: bool) -> GraphExpr:
    """A value with a number added to each channel."""
    if channels_first:
        bias = b.reshape(bias, (size_at(bias, 0), *(1,) * (rank_of(value) - 2)))
    return b.call("add", value, bias)


def _images(call: LayerCall, rank: int) -> tuple[GraphExpr, GraphExpr | None]:
    """Data with one batch dimension, and the data as it came where it has more or none."""
    data = call.floats()
    if rank_of(data) < rank + 1:
        raise UserError(f"{call.layer.kind} needs data of {rank + 2} dimensions, it has {rank_of(data)}")
    if rank_of(data) == rank + 1:
        return call.builder.expand_dims(data, (0,)), data
    return call.data(rank + 2) if data is call.input(0) else data, None


def _finished(call: LayerCall, result: GraphExpr, single: GraphExpr | None, bias: str, outputs: int) -> GraphExpr:
    if call.layer.flag("use_bias", True):
        result = with_bias(call.builder, result, call.weight(bias, (outputs,)), call.layer.channels_first)
    result = configured(call, result)
    return result if single is None else call.builder.reshape(result, sizes_of(result)[1:])


def _window(call: LayerCall, rank: int) -> Extents:
    options = call.layer
    return extents_of(
        options.integers("kernel_size", rank),
        options.integers("strides", rank, 1),
        options.integers("dilation_rate", rank, 1),
    )


def _channels(call: LayerCall, data: GraphExpr) -> int:
    return size_at(data, 1 if call.layer.channels_first else rank_of(data) - 1)


def _convolution(rank: int) -> None:
    def convert(call: LayerCall) -> GraphExpr:
        data, single = _images(call, rank)
        options, extents = call.layer, _window(call, rank)
        groups, outputs, inputs = options.integer("groups", 1), options.integer("filters"), _channels(call, data)
        if groups < 1 or inputs % groups or outputs % groups:
            raise UserError(f"{groups} groups do not divide {inputs} channels and {outputs} filters")
        kernel = call.weight("vars/0", (*extents.kernel, inputs // groups, outputs))
        first = options.channels_first
        data, extents = padded(call.builder, data, extents, options.text("padding", "valid"), first)
        result = convolved(call.builder, data, kernel, extents, groups, first)
        return _finished(call, result, single, "vars/1", outputs)

    convert.__doc__ = f"A convolution in {rank} dimensions."
    layer(f"Conv{rank}D", f"Convolution{rank}D", variables=kernel_and_bias)(convert)


def depthwise_kernel(b: KerasBuilder, kernel: GraphExpr) -> GraphExpr:
    """A kernel (sizes, channels, multiplier) as one of groups of one channel each."""
    *sizes, channels, multiplier = sizes_of(kernel)
    assert isinstance(channels, int) and isinstance(multiplier, int)
    return b.reshape(kernel, (*sizes, 1, channels * multiplier))


def _depthwise(rank: int) -> None:
    def convert(call: LayerCall) -> GraphExpr:
        data, single = _images(call, rank)
        options, extents = call.layer, _window(call, rank)
        inputs, multiplier = _channels(call, data), options.integer("depth_multiplier", 1)
        kernel = depthwise_kernel(call.builder, call.weight("vars/0", (*extents.kernel, inputs, multiplier)))
        first = options.channels_first
        data, extents = padded(call.builder, data, extents, options.text("padding", "valid"), first)
        result = convolved(call.builder, data, kernel, extents, inputs, first)
        return _finished(call, result, single, "vars/1", inputs * multiplier)

    convert.__doc__ = f"A convolution of each channel by itself, in {rank} dimensions."
    layer(f"DepthwiseConv{rank}D", variables=kernel_and_bias)(convert)


def _separable(rank: int) -> None:
    def convert(call: LayerCall) -> GraphExpr:
        b, options = call.builder, call.layer
        data, single = _images(call, rank)
        extents, first = _window(call, rank), options.channels_first
        inputs, outputs = _channels(call, data), options.integer("filters")
        multiplier = options.integer("depth_multiplier", 1)
        kernel = depthwise_kernel(b, call.weight("vars/0", (*extents.kernel, inputs, multiplier)))
        pointwise = call.weight("vars/1", (*(1,) * rank, inputs * multiplier, outputs))
        data, extents = padded(b, data, extents, options.text("padding", "valid"), first)
        deep = convolved(b, data, kernel, extents, inputs, first)
        unit = (1,) * rank
        result = convolved(b, deep, pointwise, extents_of(unit, unit, unit), 1, first)
        return _finished(call, result, single, "vars/2", outputs)

    convert.__doc__ = f"A convolution of each channel by itself, then one of points, in {rank} dimensions."
    names = (f"SeparableConv{rank}D", f"SeparableConvolution{rank}D")
    layer(*names, variables=lambda item: variables(2 + item.flag("use_bias", True)))(convert)


# Transposed


def _lost(extents: Extents, padding: str, more: tuple[int | None, ...]) -> tuple[Extents, tuple[int, ...]]:
    """What a transposed convolution loses before and after each dimension, and has more at its end."""
    before: list[int] = []
    after: list[int] = []
    extra: list[int] = []
    for taps, stride, space, added in zip(extents.kernel, extents.strides, extents.dilation, more, strict=True):
        reach = (taps - 1) * space + 1
        if padding == "valid":
            left = reach - 1
            right = reach - 1 + (max(reach, stride) - reach if added is None else added)
        elif padding == "same":
            total = stride + reach - 2 if added is None else reach + reach % 2 - 2 + added
            left = min(total // 2 + total % 2, reach - 1)
            right = total - left
        else:
            raise UserError(f"the padding {padding!r} is not known", hint="one of valid and same")
        before.append(reach - 1 - left)
        after.append(max(0, reach - 1 - right))
        extra.append(max(0, right - reach + 1))
    return replace(extents, before=tuple(before), after=tuple(after)), tuple(extra)


def transposed(
    b: KerasBuilder,
    data: GraphExpr,
    kernel: GraphExpr,
    extents: Extents,
    extra: tuple[int, ...],
    channels_first: bool,
) -> GraphExpr:
    """A transposed convolution with a kernel (sizes, outputs, inputs)."""
    count = len(extents.kernel)
    if count == 3:
        images = data if channels_first else b.transpose(data, (0, 4, 1, 2, 3))
        result = transposed_volume(b, images, b.transpose(kernel, (4, 3, 0, 1, 2)), extents, extra, 1)
        return result if channels_first else b.transpose(result, (0, 2, 3, 4, 1))
    window = Window.of(*extents.fields())
    if count == 1:
        data = b.expand_dims(data, (2 if channels_first else 1,))
        kernel, extra = b.expand_dims(kernel, (0,)), (0, *extra)
    result = b.call(
        "nn.conv2d_transpose",
        data,
        b.transpose(kernel, (3, 2, 0, 1) if channels_first else (0, 1, 3, 2)),
        strides=window.strides,
        padding=window.padding,
        output_padding=extra,
        dilation=window.dilation,
        data_layout="NCHW" if channels_first else "NHWC",
        kernel_layout="IOHW" if channels_first else "HWIO",
    )
    return _without_unit(b, result, channels_first) if count == 1 else result


def _output_padding(call: LayerCall, rank: int) -> tuple[int | None, ...]:
    described = call.layer.option("output_padding")
    if described is None:
        return (None,) * rank
    if isinstance(described, (list, tuple)) and all(item is None for item in described):
        return (None,) * rank
    return call.layer.integers("output_padding", rank)


def _transposed(rank: int) -> None:
    def convert(call: LayerCall) -> GraphExpr:
        data, single = _images(call, rank)
        options, extents = call.layer, _window(call, rank)
        outputs, inputs = options.integer("filters"), _channels(call, data)
        kernel = call.weight("vars/0", (*extents.kernel, outputs, inputs))
        extents, extra = _lost(extents, options.text("padding", "valid"), _output_padding(call, rank))
        result = transposed(call.builder, data, kernel, extents, extra, options.channels_first)
        return _finished(call, result, single, "vars/1", outputs)

    convert.__doc__ = f"A transposed convolution in {rank} dimensions."
    names = [f"Conv{rank}DTranspose", f"Convolution{rank}DTranspose", *(["Deconvolution2D"] if rank == 2 else [])]
    layer(*names, variables=kernel_and_bias)(convert)


for _rank in (1, 2, 3):
    _convolution(_rank)
    _transposed(_rank)
for _rank in (1, 2):
    _depthwise(_rank)
    _separable(_rank)


# Operations: the kernel is a tensor


def _operands(call: LayerCall) -> tuple[GraphExpr, GraphExpr, int]:
    b = call.builder
    data, kernel = call.input(0), call.tensor("kernel", 1)
    if kernel is None:
        raise UserError(f"{call.layer.kind} needs a kernel")
    data, kernel = b.operands(data, kernel)
    return data, kernel, rank_of(data) - 2


def _sizes(kernel: GraphExpr, rank: int) -> tuple[int, ...]:
    return tuple(size_at(kernel, axis) for axis in range(rank))


def _operation_window(call: LayerCall, kernel: GraphExpr, rank: int) -> Extents:
    options = call.layer
    strides = options.integers("strides", rank, 1) if options.option("strides") is not None else (1,) * rank
    dilation = (
        options.integers("dilation_rate", rank, 1) if options.option("dilation_rate") is not None else (1,) * rank
    )
    return extents_of(_sizes(kernel, rank), strides, dilation)


@operation("Conv")
def conv_operation(call: LayerCall) -> GraphExpr:
    """`keras.ops.conv`."""
    data, kernel, rank = _operands(call)
    first, extents = call.layer.channels_first, _operation_window(call, kernel, rank)
    groups = _channels(call, data) // max(1, size_at(kernel, rank))
    data, extents = padded(call.builder, data, extents, call.layer.text("padding", "valid"), first)
    return convolved(call.builder, data, kernel, extents, groups, first)


@operation("DepthwiseConv")
def depthwise_operation(call: LayerCall) -> GraphExpr:
    """`keras.ops.depthwise_conv`."""
    data, kernel, rank = _operands(call)
    first, extents = call.layer.channels_first, _operation_window(call, kernel, rank)
    groups = _channels(call, data)
    data, extents = padded(call.builder, data, extents, call.layer.text("padding", "valid"), first)
    return convolved(call.builder, data, depthwise_kernel(call.builder, kernel), extents, groups, first)


@operation("SeparableConv")
def separable_operation(call: LayerCall) -> GraphExpr:
    """`keras.ops.separable_conv`."""
    b = call.builder
    data, deep = call.input(0), call.tensor("depthwise_kernel", 1)
    point = call.tensor("pointwise_kernel", 2)
    if deep is None or point is None:
        raise UserError("SeparableConv needs two kernels")
    rank, first = rank_of(data) - 2, call.layer.channels_first
    extents, groups = _operation_window(call, deep, rank), _channels(call, data)
    data, extents = padded(b, data, extents, call.layer.text("padding", "valid"), first)
    middle = convolved(b, data, depthwise_kernel(b, deep), extents, groups, first)
    unit = (1,) * rank
    return convolved(b, middle, point, extents_of(unit, unit, unit), 1, first)


@operation("ConvTranspose")
def transposed_operation(call: LayerCall) -> GraphExpr:
    """`keras.ops.conv_transpose`."""
    data, kernel, rank = _operands(call)
    extents = _operation_window(call, kernel, rank)
    extents, extra = _lost(extents, call.layer.text("padding", "valid"), _output_padding(call, rank))
    return transposed(call.builder, data, kernel, extents, extra, call.layer.channels_first)
