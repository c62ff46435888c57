"""Converters of layers with weights, normalisations, pooling and resizing."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontend.core.adaptive import adaptive_along
from tilewright.frontend.core.builder import dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.core.ceil_windows import average_pooled, check_window, max_pooled, summed
from tilewright.frontend.core.layers import along_channels, convolve, deconvolve, dense, flattened, repeated
from tilewright.frontend.core.local_response import across_channels, mean_free, of_unit_length
from tilewright.frontend.core.regions import max_pooled_regions
from tilewright.frontend.core.resampling import linear_at
from tilewright.frontend.core.windows import Extents
from tilewright.frontend.mxnet.node import Node, converter
from tilewright.graph.ir.dimensions import product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ops.common import sizes_text
from tilewright.ir.dtype import FLOAT32, INT64
from tilewright.support.errors import UnsupportedError, UserError


def _extents(node: Node, kernel: Sequence[int]) -> Extents:
    rank = len(kernel)
    strides, pads = node.ints("stride", ()) or (1,) * rank, node.ints("pad", ()) or (0,) * rank
    dilation = node.ints("dilate", ()) or (1,) * rank
    if not len(strides) == len(pads) == len(dilation) == rank:
        raise UserError(f"stride {strides}, pad {pads} and dilate {dilation} do not fit a kernel of {tuple(kernel)}")
    return Extents(tuple(kernel), strides, pads, pads, dilation)


def _bias(node: Node) -> GraphExpr | None:
    return None if node.flag("no_bias") else node.input(2)


def _channels_first(node: Node) -> None:
    if not node.text("layout", "NC").startswith("NC"):
        raise UnsupportedError(f"{node.op} in the layout {node.text('layout')}")


@converter("Convolution", "Convolution_v1")
def convolution(node: Node) -> GraphExpr:
    """In one, two or three dimensions."""
    data, weight = node.input(0), node.input(1)
    last = node.text("layout", "NC")[-1:] == "C" and len(node.text("layout", "NC")) > 2
    b, rank = node.b, rank_of(data)
    if last:
        order = (0, rank - 1, *range(1, rank - 1))
        data, weight = b.transpose(data, order), b.transpose(weight, order)
    extents = _extents(node, node.ints("kernel"))
    check_window(extents, sizes_of(data)[2:])
    result = convolve(b, data, weight, _bias(node), extents, node.integer("num_group", 1))
    return b.transpose(result, (0, *range(2, rank), 1)) if last else result


@converter("Deconvolution")
def deconvolution(node: Node) -> GraphExpr:
    """The transpose of a convolution; the size of its result may be given."""
    _channels_first(node)
    kernel = node.ints("kernel")
    extents = _extents(node, kernel)
    rank = len(kernel)
    adjust = node.ints("adj", ()) or (0,) * rank
    target = node.ints("target_shape", ())
    if any(target):
        pads: list[int] = []
        extra: list[int] = []
        for axis in range(rank):
            reach = (kernel[axis] - 1) * extents.dilation[axis] + 1
            full = extents.strides[axis] * (size_at(node.input(0), 2 + axis) - 1) + reach
            if full < target[axis]:
                raise UserError(f"a result of {target} elements does not follow from the data")
            extra.append((full - target[axis]) % 2)
            pads.append((full - target[axis] + 1) // 2)
        adjust, extents = tuple(extra), Extents(kernel, extents.strides, tuple(pads), tuple(pads), extents.dilation)
    bias = None if node.flag("no_bias", True) else node.input(2)
    groups = node.integer("num_group", 1)
    return deconvolve(node.b, node.input(0), node.input(1), bias, extents, adjust, groups)


@converter("FullyConnected")
def fully_connected(node: Node) -> GraphExpr:
    """Rows (all but the first axis as one, unless it says otherwise) times a matrix."""
    data = node.input(0)
    rows = flattened(node.b, data, 1) if node.flag("flatten", True) and rank_of(data) != 2 else data
    return dense(node.b, rows, node.input(1), _bias(node))


@converter("Embedding")
def embedding(node: Node) -> GraphExpr:
    """A row of the weights for each number; numbers outside are the nearest."""
    places = node.b.cast(node.input(0), INT64)
    return node.call("take", node.input(1), places, axis=0, mode="clip")


@converter("BatchNorm", "BatchNorm_v1", "CuDNNBatchNorm", "_contrib_SyncBatchNorm", "SyncBatchNorm")
def batch_norm(node: Node) -> list[GraphExpr]:
    """With the statistics of training; a fixed gamma is 1 whatever its value is."""
    data, b = node.input(0), node.b
    gamma, beta, mean, variance = (node.input(at) for at in range(1, 5))
    if node.flag("fix_gamma", True):
        gamma = b.filled(1, sizes_of(gamma), dtype_of(gamma))
    axis = node.axis(node.integer("axis", 1), rank_of(data))
    epsilon = node.number("eps", 1e-3)
    values = [b.cast(value, dtype_of(data)) for value in (gamma, beta, mean, variance)]
    result = node.call("nn.batch_norm", data, *values, epsilon=epsilon, axis=axis)
    return [result, mean, variance]


@converter("LayerNorm")
def layer_norm(node: Node) -> GraphExpr:
    """Statistics along one axis."""
    data, b = node.input(0), node.b
    rank = rank_of(data)
    axis = node.axis(node.integer("axis", -1), rank)
    normal = mean_free(b, data, (axis,), node.number("eps", 1e-5), outside=False)
    shape = [1] * (rank - axis - 1)
    scale, shift = (b.reshape(node.input(at), (*sizes_of(node.input(at)), *shape)) for at in (1, 2))
    return node.call("add", node.call("multiply", normal, scale), shift)


@converter("InstanceNorm")
def instance_norm(node: Node) -> GraphExpr:
    """Statistics of each channel of each image."""
    data, b = node.input(0), node.b
    rank = rank_of(data)
    normal = mean_free(b, data, range(2, rank), node.number("eps", 1e-3), outside=False)
    scale, shift = (along_channels(b, node.input(at), rank) for at in (1, 2))
    return node.call("add", node.call("multiply", normal, scale), shift)


@converter("GroupNorm")
def group_norm(node: Node) -> GraphExpr:
    """Statistics of groups of channels; scale and shift are of groups, or of channels."""
    data, b, groups = node.input(0), node.b, node.integer("num_groups", 1)
    sizes, rank = sizes_of(data), rank_of(data)
    channels = size_at(data, 1)
    if groups < 1 or channels % groups:
        raise UserError(f"{groups} groups do not divide {channels} channels")
    grouped = b.reshape(data, (sizes[0], groups, product((channels // groups, *sizes[2:]))))
    normal = mean_free(b, grouped, (2,), node.number("eps", 1e-5), outside=False)
    scale, shift = node.input(1), node.input(2)
    if size_at(scale, 0) == channels and channels != groups:
        normal = b.reshape(normal, sizes)
        scale, shift = (along_channels(b, value, rank) for value in (scale, shift))
    else:
        scale, shift = (along_channels(b, value, 3) for value in (scale, shift))
    return b.reshape(node.call("add", node.call("multiply", normal, scale), shift), sizes)


@converter("L2Normalization")
def l2_normalization(node: Node) -> GraphExpr:
    """Divided by the length of everything, of all channels at a place, or of each channel."""
    data, mode = node.input(0), node.text("mode", "instance")
    rank = rank_of(data)
    axes = {"instance": range(1, rank), "channel": (1,), "spatial": range(2, rank)}.get(mode)
    if axes is None:
        raise UserError(f"the mode {mode!r} of L2Normalization is not known")
    return of_unit_length(node.b, data, axes, node.number("eps", 1e-10))


@converter("LRN")
def local_response(node: Node) -> GraphExpr:
    """Divided by a power of the mean of squares of neighbouring channels."""
    alpha, beta, bias = node.number("alpha", 1e-4), node.number("beta", 0.75), node.number("knorm", 2.0)
    return across_channels(node.b, node.input(0), node.integer("nsize"), alpha, beta, bias)


@converter("Pooling", "Pooling_v1")
def pooling(node: Node) -> GraphExpr:
    """Windows whose number is rounded down (valid) or up (full); a global one is a reduction."""
    _channels_first(node)
    data, b, kind = node.input(0), node.b, node.text("pool_type", "max")
    rank = rank_of(data) - 2
    if kind not in ("max", "avg", "sum", "lp"):
        raise UserError(f"the pooling {kind!r} is not known")
    p = node.integer("p_value", 2)
    if kind == "lp":
        data = _powers(node, data, p)
    if node.flag("global_pool"):
        name = {"max": "max", "avg": "mean"}.get(kind, "sum")
        result = node.call(name, data, axes=tuple(range(2, rank + 2)), keepdims=True)
        return _root(node, result, p) if kind == "lp" else result
    kernel = node.ints("kernel")
    if len(kernel) != rank:
        raise UserError(f"a kernel of {kernel} does not fit data of {rank_of(data)} dimensions")
    extents = _extents(node, kernel)
    check_window(extents, sizes_of(data)[2:])
    convention = node.text("pooling_convention", "valid")
    if convention not in ("valid", "full"):
        raise UnsupportedError(f"the pooling convention {convention!r}")
    ceiling = convention == "full"
    match kind:
        case "max":
            return max_pooled(b, data, extents, ceiling)
        case "avg":
            return average_pooled(b, data, extents, ceiling, node.flag("count_include_pad", True))
    total = summed(b, data, extents, ceiling)
    return _root(node, total, p) if kind == "lp" else total


def _powers(node: Node, value: GraphExpr, p: int) -> GraphExpr:
    if p not in (1, 2, 3):
        raise UnsupportedError(f"pooling by the norm of order {p}")
    size = node.call("abs", value)
    result = size
    for _ in range(p - 1):
        result = node.call("multiply", result, size)
    return result


def _root(node: Node, value: GraphExpr, p: int) -> GraphExpr:
    return value if p == 1 else node.call("power", value, node.b.constant_like(1 / p, value))


@converter("_contrib_AdaptiveAvgPooling2D")
def adaptive_average(node: Node) -> GraphExpr:
    """Means of as many windows as the result has."""
    size = node.ints("output_size", ()) or (1,)
    value = node.input(0)
    for axis, count in zip((2, 3), size * 2 if len(size) == 1 else size, strict=True):
        value = adaptive_along(node.b, "mean", value, axis, count)
    return value


@converter("UpSampling")
def up_sampling(node: Node) -> GraphExpr:
    """Each element several times, or a transposed convolution with weights of its own."""
    scale, kind, b = node.integer("scale"), node.text("sample_type"), node.b
    if kind == "bilinear":
        kernel, pad = 2 * scale - scale % 2, scale // 2
        extents = Extents((kernel,) * 2, (scale,) * 2, (pad,) * 2, (pad,) * 2, (1, 1))
        return deconvolve(b, node.input(0), node.input(1), None, extents, (0, 0), size_at(node.input(0), 1))
    values = node.all_inputs()
    wanted = size_at(values[0], 2) * scale if len(values) > 1 else 0
    parts = [repeated(b, value, (wanted // size_at(value, 2) if wanted else scale,) * 2) for value in values]
    if len(parts) == 1:
        return parts[0]
    if node.text("multi_input_mode", "concat") == "concat":
        return b.concatenate(parts, 1)
    total = parts[0]
    for part in parts[1:]:
        total = node.call("add", total, part)
    return total


@converter("_contrib_BilinearResize2D")
def bilinear_resize(node: Node) -> GraphExpr:
    """Values between neighbours; corners on corners, or halves of elements on halves."""
    data, b, mode = node.input(0), node.b, node.text("mode", "size")
    for axis, length, scale in ((2, "height", "scale_height"), (3, "width", "scale_width")):
        size = sizes_of(data)[axis]
        if mode == "like" and node.has_input(1):
            wanted = sizes_of(node.input(1))[axis]
        elif node.has(scale):
            if not isinstance(size, int):
                raise UnsupportedError(f"a resize of open size {sizes_text(sizes_of(data))}")
            wanted = int(size * node.number(scale))
        else:
            wanted = node.integer(length)
        if not isinstance(size, int) or not isinstance(wanted, int) or wanted < 1:
            raise UnsupportedError(f"a resize of open size {sizes_text(sizes_of(data))}")
        places = b.cast(b.arange(wanted), FLOAT32)
        if node.flag("align_corners", True):
            places = b.multiply(places, (size - 1) / (wanted - 1) if wanted > 1 else 0.0)
        else:
            places = b.subtract(b.multiply(b.add(places, 0.5), size / wanted), 0.5)
            places = node.call("maximum", places, b.constant(0.0, FLOAT32))
        data = linear_at(b, data, axis, places)
    return data


@converter("ROIPooling")
def roi_pooling(node: Node) -> GraphExpr:
    """The greatest element of each bin of regions."""
    bins = node.ints("pooled_size")
    return max_pooled_regions(node.b, node.input(0), node.input(1), (bins[0], bins[-1]), node.number("spatial_scale"))


@converter(
    "Dropout",
    "identity",
    "_copy",
    "BlockGrad",
    "stop_gradient",
    "MakeLoss",
    "make_loss",
    "_identity_with_attr_like_rhs",
    "IdentityAttachKLSparseReg",
    "LinearRegressionOutput",
    "MAERegressionOutput",
    "SVMOutput",
)
def same(node: Node) -> GraphExpr:
    """What changes nothing when a symbol runs."""
    return node.input(0)


@converter("LogisticRegressionOutput")
def logistic_output(node: Node) -> GraphExpr:
    """Chances."""
    return node.call("sigmoid", node.input(0))


@converter("SoftmaxOutput", "Softmax")
def softmax_output(node: Node) -> GraphExpr:
    """Chances along the channels (or the last axis), or of all the rest of each row."""
    data, b = node.input(0), node.b
    if node.flag("multi_output"):
        return node.call("nn.softmax", data, axis=1)
    if node.flag("preserve_shape"):
        return node.call("nn.softmax", data, axis=rank_of(data) - 1)
    return b.reshape(node.call("nn.softmax", flattened(b, data, 1), axis=1), sizes_of(data))


@converter("SoftmaxActivation")
def softmax_activation(node: Node) -> GraphExpr:
    """Along the channels, or of all the rest of each row."""
    data, b = node.input(0), node.b
    if node.text("mode", "instance") == "channel":
        return node.call("nn.softmax", data, axis=1)
    return b.reshape(node.call("nn.softmax", flattened(b, data, 1), axis=1), sizes_of(data))


@converter("softmax", "log_softmax", "softmin")
def softmax(node: Node) -> GraphExpr:
    """Along an axis, with a temperature."""
    data, b = node.input(0), node.b
    axis = node.axis(node.integer("axis", -1), rank_of(data))
    if node.op == "softmin":
        data = node.call("negative", data)
    if node.has("temperature") and node.number("temperature") != 1:
        data = b.divide(data, node.number("temperature"))
    if node.flag("use_length") and node.has_input(1):
        places = b.positions(sizes_of(data), axis)
        lengths = b.expand_dims(b.cast(node.input(1), INT64), (axis,))
        inside = node.call("less", places, lengths)
        chances = node.call("nn.softmax", b.where(inside, data, float("-inf")), axis=axis)
        return b.where(inside, chances, 0.0)
    return node.call("nn.log_softmax" if node.op == "log_softmax" else "nn.softmax", data, axis=axis)
