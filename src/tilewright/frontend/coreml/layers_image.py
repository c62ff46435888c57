"""Layers of Core ML's networks on images and sequences: convolution, pooling, normalisation, resizing, recurrence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.frontend.core.builder import rank_of, sizes_of
from tilewright.frontend.coreml.layer import Layer, layer
from tilewright.frontend.coreml.operation import Plain
from tilewright.graph.ir.dimensions import add, product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.ir.dtype import FLOAT32
from tilewright.support.errors import UnsupportedError, UserError

_SAMPLING = ("STRICT_ALIGN_CORNERS", "ALIGN_CORNERS", "DEFAULT", "OFFSET_CORNERS")
_BOXES = ("CORNERS_HEIGHT_FIRST", "CORNERS_WIDTH_FIRST", "CENTER_SIZE_HEIGHT_FIRST", "CENTER_SIZE_WIDTH_FIRST")
_POOLS = ("max_pool", "avg_pool", "l2_pool")


def _borders(amounts: Any) -> tuple[int, int, int, int]:
    """Top, bottom, left, right."""
    edges = [(int(item.startEdgeSize), int(item.endEdgeSize)) for item in amounts.borderAmounts] or [(0, 0), (0, 0)]
    (top, bottom), (left, right) = edges
    return top, bottom, left, right


def _padding(params: Any) -> dict[str, Plain]:
    """How a window's data is padded."""
    if params.HasField("same"):
        return {"pad_type": "same_lower" if params.same.asymmetryMode == 1 else "same"}
    pad = list(_borders(params.valid.paddingAmounts))
    return {"pad_type": "custom", "pad": pad} if any(pad) else {"pad_type": "valid"}


def _pair(values: Sequence[int], default: int) -> list[int]:
    found = [int(item) for item in values] or [default, default]
    if len(found) != 2:
        raise UserError(f"a window has two sizes, not {found}")
    return found


@layer("convolution")
def convolution(own: Layer) -> GraphExpr:
    """In two dimensions, or its transpose; the weights may be a second input."""
    p = own.params
    kernel, groups = _pair(p.kernelSize, 3), int(p.nGroups) or 1
    outputs, channels = int(p.outputChannels), int(p.kernelChannels)
    bias = own.constant(own.weights(p.bias, (outputs,))) if p.hasBias else None
    common: dict[str, Plain] = {"strides": _pair(p.stride, 1), "groups": groups, "bias": bias, **_padding(p)}
    if p.isDeconvolution:
        if outputs % groups:
            raise UserError(f"{groups} groups do not divide {outputs} channels")
        weight = own.constant(own.weights(p.weights, (channels, outputs // groups, *kernel)))
        if len(p.outputShape):
            common["output_shape"] = [int(size) for size in p.outputShape]
        return own.over_images(own.x, lambda x: own.apply("conv_transpose", x=x, weight=weight, **common))
    if len(own.inputs) > 1:
        weight = own.input(1)
    else:
        weight = own.constant(own.weights(p.weights, (outputs, channels, *kernel)))
    dilations = _pair(p.dilationFactor, 1)
    return own.over_images(own.x, lambda x: own.apply("conv", x=x, weight=weight, dilations=dilations, **common))


def _triple(params: Any, name: str) -> list[int]:
    return [int(getattr(params, f"{name}{axis}")) or 1 for axis in ("Depth", "Height", "Width")]


def _volume_padding(params: Any) -> dict[str, Plain]:
    if params.paddingType == 2:
        return {"pad_type": "same"}
    if params.paddingType == 1:
        return {"pad_type": "valid"}
    sides = ("Front", "Back", "Top", "Bottom", "Left", "Right")
    return {"pad_type": "custom", "pad": [int(getattr(params, f"customPadding{side}")) for side in sides]}


@layer("convolution3d")
def convolution3d(own: Layer) -> GraphExpr:
    """In three dimensions, or its transpose."""
    p = own.params
    kernel, groups = _triple(p, "kernel"), int(p.nGroups) or 1
    outputs, inputs = int(p.outputChannels), int(p.inputChannels)
    if outputs % groups or inputs % groups:
        raise UserError(f"{groups} groups do not divide {inputs} and {outputs} channels")
    bias = own.constant(own.weights(p.bias, (outputs,))) if p.hasBias else None
    common: dict[str, Plain] = {
        "strides": _triple(p, "stride"),
        "dilations": _triple(p, "dilation"),
        "groups": groups,
        "bias": bias,
        **_volume_padding(p),
    }
    if p.isDeconvolution:
        weight = own.constant(own.weights(p.weights, (inputs, outputs // groups, *kernel)))
        shape = [int(size) for size in p.outputShape] or None
        return own.apply("conv_transpose", x=own.x, weight=weight, output_shape=shape, **common)
    weight = own.constant(own.weights(p.weights, (outputs, inputs // groups, *kernel)))
    return own.apply("conv", x=own.x, weight=weight, **common)


@layer("pooling")
def pooling(own: Layer) -> GraphExpr:
    """The greatest, the mean or the norm of windows, or of whole images."""
    p = own.params
    if not 0 <= p.type < len(_POOLS):
        raise UserError(f"pooling of the kind {p.type} is not known")
    kind = _POOLS[p.type]
    if p.globalPooling:
        axes = [own.at(-2), own.at(-1)]
        name = {"max_pool": "reduce_max", "avg_pool": "reduce_mean", "l2_pool": "reduce_l2_norm"}[kind]
        return own.apply(name, x=own.x, axes=axes, keep_dims=True)
    options: dict[str, Plain] = {"kernel_sizes": _pair(p.kernelSize, 3), "strides": _pair(p.stride, 1)}
    if p.HasField("includeLastPixel"):
        down, across = _pair(p.includeLastPixel.paddingAmounts, 0)
        options |= {"pad_type": "custom", "pad": [down, down, across, across], "ceil_mode": True}
    else:
        options |= _padding(p)
    if kind == "avg_pool":
        options["exclude_padding_from_average"] = bool(p.avgPoolExcludePadding)
    return own.over_images(own.x, lambda x: own.apply(kind, x=x, **options))


@layer("pooling3d")
def pooling3d(own: Layer) -> GraphExpr:
    """Over windows in three dimensions."""
    p = own.params
    options: dict[str, Plain] = {
        "kernel_sizes": _triple(p, "kernel"),
        "strides": _triple(p, "stride"),
        **_volume_padding(p),
    }
    if p.type == 0:
        return own.apply("max_pool", x=own.x, **options)
    return own.apply("avg_pool", x=own.x, exclude_padding_from_average=bool(p.countExcludePadding), **options)


@layer("globalPooling3d")
def global_pooling3d(own: Layer) -> GraphExpr:
    """Over whole volumes."""
    name = "reduce_max" if own.params.type == 0 else "reduce_mean"
    return own.apply(name, x=own.x, axes=[own.at(axis) for axis in (-3, -2, -1)], keep_dims=True)


# Normalisation


def _epsilon(value: float, default: float) -> float:
    return float(value) or default


@layer("batchnorm")
def batchnorm(own: Layer) -> GraphExpr:
    """By known means and variances, or by those of each image or of the batch."""
    p = own.params
    channels, epsilon = int(p.channels), _epsilon(p.epsilon, 1e-5)
    gamma, beta = (own.weights(item, (channels,)) for item in (p.gamma, p.beta))
    if not p.computeMeanVar:
        mean, variance = (own.weights(item, (channels,)) for item in (p.mean, p.variance))
        return own.over_images(
            own.x,
            lambda x: own.apply(
                "batch_norm", x=x, mean=mean, variance=variance, gamma=gamma, beta=beta, epsilon=epsilon
            ),
        )
    axis = own.at(-3)
    kept = range(axis + 1) if p.instanceNormalization else (axis,)
    axes = [at for at in range(rank_of(own.x)) if at not in kept]
    result = own.apply("layer_norm", x=own.x, axes=axes, epsilon=epsilon)
    return _scaled(own, result, gamma.reshape(-1, 1, 1), beta.reshape(-1, 1, 1))


def _scaled(own: Layer, value: GraphExpr, scale: Array, bias: Array | None) -> GraphExpr:
    result = own.call("multiply", value, own.constant(scale))
    return result if bias is None else own.call("add", result, own.constant(bias))


@layer("mvn")
def mean_variance(own: Layer) -> GraphExpr:
    """Less the mean, and divided by the deviation."""
    p = own.params
    axes = [own.at(axis) for axis in ((-3, -2, -1) if p.acrossChannels else (-2, -1))]
    if p.normalizeVariance:
        return own.apply("layer_norm", x=own.x, axes=axes, epsilon=_epsilon(p.epsilon, 1e-6))
    return own.call("subtract", own.x, own.call("mean", own.x, axes=tuple(axes), keepdims=True))


@layer("l2normalize")
def l2normalize(own: Layer) -> GraphExpr:
    """Divided by the norm of channels, rows and columns."""
    return own.apply("l2_norm", x=own.x, epsilon=_epsilon(own.params.epsilon, 1e-6))


@layer("lrn")
def lrn(own: Layer) -> GraphExpr:
    """By the squares of neighbouring channels."""
    p = own.params
    options = {"size": int(p.localSize), "alpha": float(p.alpha), "beta": float(p.beta), "k": _epsilon(p.k, 1.0)}
    return own.over_images(own.x, lambda x: own.apply("local_response_norm", x=x, **options))


@layer("layerNormalization")
def layer_normalization(own: Layer) -> GraphExpr:
    """Over the last dimensions."""
    p = own.params
    shape = [int(size) for size in p.normalizedShape]
    rank = rank_of(own.x)
    return own.apply(
        "layer_norm",
        x=own.x,
        axes=list(range(rank - len(shape), rank)),
        gamma=own.weights(p.gamma, shape),
        beta=own.weights(p.beta, shape),
        epsilon=_epsilon(p.eps, 1e-5),
    )


# Borders and sizes


@layer("padding")
def padding(own: Layer) -> GraphExpr:
    """Around the last two dimensions."""
    p = own.params
    mode = "reflect" if p.HasField("reflection") else "replicate" if p.HasField("replication") else "constant"
    value = float(p.constant.value) if mode == "constant" else 0.0
    return own.apply("pad", x=own.x, pad=list(_borders(p.paddingAmounts)), mode=mode, constant_val=value)


@layer("crop")
def crop(own: Layer) -> GraphExpr:
    """The last two dimensions cut, by amounts or to the size of a second input."""
    if len(own.inputs) == 1:
        top, bottom, left, right = _borders(own.params.cropAmounts)
        return own.apply("crop", x=own.x, crop_height=[top, bottom], crop_width=[left, right])
    result = own.x
    for axis, offset in zip((-2, -1), _pair(own.params.offset, 0), strict=True):
        size = sizes_of(own.input(1))[axis]
        result = own.builder.slice_axis(result, own.at(axis), offset, add(size, offset))
    return result


@layer("upsample")
def upsample(own: Layer) -> GraphExpr:
    """Scaled by whole or fractional factors."""
    p = own.params
    factors = [float(item) for item in (p.fractionalScalingFactor or p.scalingFactor)] or [1.0, 1.0]
    sizes: dict[str, Plain] = {"scale_factor_height": factors[0], "scale_factor_width": factors[1]}
    if p.mode == 0:
        return own.apply("upsample_nearest_neighbor", x=own.x, **sizes)
    aligned = p.linearUpsampleMode == 1
    half = p.linearUpsampleMode == 2
    return own.apply("upsample_bilinear", x=own.x, align_corners=aligned, half_pixel_centers=half, **sizes)


def _sampling(mode: Any) -> str:
    if not 0 <= mode.samplingMethod < len(_SAMPLING):
        raise UserError(f"the sampling method {mode.samplingMethod} is not known")
    return _SAMPLING[mode.samplingMethod]


@layer("resizeBilinear")
def resize_bilinear(own: Layer) -> GraphExpr:
    """To a given size, between pixels."""
    height, width = _pair(own.params.targetSize, 1)
    mode = _sampling(own.params.mode)
    return own.apply("resize_bilinear", x=own.x, target_size_height=height, target_size_width=width, sampling_mode=mode)


@layer("cropResize")
def crop_resize(own: Layer) -> GraphExpr:
    """Boxes of images, each resized: (1, batch, channels, height, width) and (count, 1, 4 or 5, 1, 1)."""
    p = own.params
    height, width = _pair(p.targetSize, 1)
    if rank_of(own.x) == 5 and not 0 <= p.boxIndicesMode.boxMode < len(_BOXES):
        raise UserError("the boxes of cropResize are of a kind that is not known")
    images = own.builder.reshape(own.x, sizes_of(own.x)[-4:])
    return own.apply(
        "crop_resize",
        x=images,
        roi=own.input(1),
        target_height=height,
        target_width=width,
        normalized_coordinates=bool(p.normalizedCoordinates),
        spatial_scale=float(p.spatialScale) or 1.0,
        box_coordinate_mode=_BOXES[p.boxIndicesMode.boxMode],
        sampling_mode=_sampling(p.mode),
    )


@layer("reorganizeData")
def reorganize(own: Layer) -> GraphExpr:
    """Blocks of pixels to channels and back."""
    p = own.params
    names = (("space_to_depth", "block_size"), ("depth_to_space", "block_size"), ("pixel_shuffle", "upscale_factor"))
    if not 0 <= p.mode < len(names):
        raise UserError(f"reorganizing data by the mode {p.mode} is not known")
    kind, argument = names[p.mode]
    return own.over_images(own.x, lambda x: own.apply(kind, x=x, **{argument: int(p.blockSize)}))


# Recurrence

_RECURRENT: dict[str, tuple[str, tuple[float, float]]] = {
    "linear": ("linear", (1.0, 0.0)),
    "ReLU": ("relu", (0.0, 0.0)),
    "tanh": ("tanh", (0.0, 0.0)),
    "scaledTanh": ("scaled_tanh", (1.0, 1.0)),
    "sigmoid": ("sigmoid", (0.0, 0.0)),
    "sigmoidHard": ("hard_sigmoid", (0.2, 0.5)),
}
"""Activations of recurrent layers: the operation's name, and the numbers that it means where the layer gives none."""


def _activation(params: Any) -> str:
    for field, value in params.ListFields():
        name, numbers = _RECURRENT.get(field.name, ("", (0.0, 0.0)))
        given = tuple(float(getattr(value, key, 0.0)) for key in ("alpha", "beta"))
        if name and (given == (0.0, 0.0) or np.allclose(given, numbers)):
            return name
    raise UnsupportedError(
        "a recurrent layer with this activation function",
        hint="known are linear, ReLU, tanh, sigmoid and hard sigmoid with their usual numbers",
    )


def _sequence(own: Layer, count: int, size: int) -> tuple[GraphExpr, list[GraphExpr]]:
    """The data (steps, batch, features), and states: given by further inputs, or zeros."""
    sizes = sizes_of(own.x)
    if len(sizes) != 5:
        raise UserError(f"a recurrent layer needs (sequence, batch, features, 1, 1), not {len(sizes)} dimensions")
    data = own.builder.reshape(own.x, (*sizes[:2], product(sizes[2:])))
    states: list[GraphExpr] = []
    for at in range(count):
        if at + 1 < len(own.inputs):
            states.append(own.builder.reshape(own.input(at + 1), (sizes[1], size)))
        else:
            states.append(own.builder.filled(0, (sizes[1], size), FLOAT32))
    return data, states


def _results(own: Layer, values: Sequence[GraphExpr]) -> list[GraphExpr]:
    """Sequences and last states with five dimensions."""
    results = []
    for value in values[: max(1, own.outputs)]:
        sizes = sizes_of(value)
        leading = sizes[:2] if len(sizes) == 3 else (1, sizes[0])
        results.append(own.builder.reshape(value, (*leading, sizes[-1], 1, 1)))
    return results


def _direction(own: Layer) -> str:
    return "reverse" if own.params.reverseInput else "forward"


@layer("simpleRecurrent")
def simple_recurrent(own: Layer) -> Sequence[GraphExpr]:
    """A recurrent network."""
    p = own.params
    inputs, size = int(p.inputVectorSize), int(p.outputVectorSize)
    data, (hidden,) = _sequence(own, 1, size)
    return _results(
        own,
        own.apply_all(
            "rnn",
            x=data,
            initial_h=hidden,
            weight_ih=own.weights(p.weightMatrix, (size, inputs)),
            weight_hh=own.weights(p.recursionMatrix, (size, size)),
            bias=own.weights(p.biasVector, (size,)) if p.hasBiasVector else None,
            direction=_direction(own),
            output_sequence=bool(p.sequenceOutput),
            activation=_activation(p.activation),
        ),
    )


@layer("gru")
def gru(own: Layer) -> Sequence[GraphExpr]:
    """A gated recurrent unit, whose state is reset before its product."""
    p = own.params
    inputs, size = int(p.inputVectorSize), int(p.outputVectorSize)
    data, (hidden,) = _sequence(own, 1, size)
    gates = ("resetGate", "outputGate", "updateGate")
    shapes = {"WeightMatrix": (size, inputs), "RecursionMatrix": (size, size), "BiasVector": (size,)}
    tables = {
        name: np.concatenate([own.weights(getattr(p, f"{gate}{name}"), shape) for gate in gates])
        for name, shape in shapes.items()
        if name != "BiasVector" or p.hasBiasVectors
    }
    first, second = p.activations
    return _results(
        own,
        own.apply_all(
            "gru",
            x=data,
            initial_h=hidden,
            weight_ih=tables["WeightMatrix"],
            weight_hh=tables["RecursionMatrix"],
            bias=tables.get("BiasVector"),
            direction=_direction(own),
            output_sequence=bool(p.sequenceOutput),
            recurrent_activation=_activation(first),
            activation=_activation(second),
        ),
    )


def _lstm_tables(own: Layer, weights: Any, end: str) -> dict[str, Plain]:
    """The weights of one direction, as the operation names them."""
    p = own.params
    inputs, size = int(p.inputVectorSize), int(p.outputVectorSize)
    gates = ("inputGate", "forgetGate", "outputGate", "blockInput")

    def joined(name: str, shape: tuple[int, ...], of: Sequence[str] = gates) -> Array:
        result: Array = np.concatenate([own.weights(getattr(weights, f"{gate}{name}"), shape) for gate in of])
        return result

    tables: dict[str, Plain] = {
        f"weight_ih{end}": joined("WeightMatrix", (size, inputs)),
        f"weight_hh{end}": joined("RecursionMatrix", (size, size)),
    }
    bias = joined("BiasVector", (size,)) if p.params.hasBiasVectors else np.zeros(4 * size, np.float32)
    if p.params.forgetBias:
        bias[size : 2 * size] += 1
    tables[f"bias{end}"] = bias
    if p.params.hasPeepholeVectors:
        tables[f"peephole{end}"] = joined("PeepholeVector", (size,), gates[:3])
    return tables


@layer("uniDirectionalLSTM", "biDirectionalLSTM")
def lstm(own: Layer) -> Sequence[GraphExpr]:
    """Long short-term memory in one direction or both."""
    p = own.params
    both = own.kind == "biDirectionalLSTM"
    weights = list(p.weightParams) if both else [p.weightParams]
    if p.params.coupledInputAndForgetGate:
        raise UnsupportedError("an LSTM whose input and forget gate are one")
    if both and len(weights) != 2:
        raise UserError(f"an LSTM in both directions has {len(weights)} sets of weights")
    size, count = int(p.outputVectorSize), 2 * len(weights)
    data, states = _sequence(own, count, size)
    first, second, third = (p.activationsForwardLSTM if both else p.activations)[:3]
    tables: dict[str, Plain] = {}
    for params, end in zip(weights, ("", "_back"), strict=False):
        tables |= _lstm_tables(own, params, end)
    results = own.apply_all(
        "lstm",
        x=data,
        initial_h=own.builder.concatenate(states[::2], 1),
        initial_c=own.builder.concatenate(states[1::2], 1),
        direction="bidirectional" if both else _direction(own),
        output_sequence=bool(p.params.sequenceOutput),
        recurrent_activation=_activation(first),
        cell_activation=_activation(second),
        activation=_activation(third),
        clip=float(p.params.cellClipThreshold) or None,
        **tables,
    )
    if both and own.outputs > 1:
        # The states of each direction by themselves: hidden and cell forward, then backward.
        parts = [own.builder.slice_axis(item, 1, at, at + size) for at in (0, size) for item in results[1:]]
        results = [results[0], *parts]
    return _results(own, results)


@layer("sequenceRepeat")
def sequence_repeat(own: Layer) -> GraphExpr:
    """The sequence several times."""
    reps = [1] * rank_of(own.x)
    reps[own.at(-5)] = int(own.params.nRepetitions) or 1
    return own.apply("tile", x=own.x, reps=reps)
