"""Import of Darknet models: a .cfg text and the .weights file of the same name beside it.

The result has one input, `data` (batch, channels, height, width), and gives what each [yolo] and [region] layer
gives after its activations, as Darknet has it, or the last layer where there is none.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from tilewright.frontend.core.builder import Builder, rank_of, shape_of, sizes_of
from tilewright.frontend.core.functions import chosen_shape, main_module, new_input, refuse_unknown
from tilewright.frontend.darknet.activations import activated
from tilewright.frontend.darknet.files import Numbers, Section, pair_of, read_sections
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.ir.dtype import FLOAT32
from tilewright.ir.function import IRModule
from tilewright.support.errors import UnsupportedError, UserError
from tilewright.support.span import Span

_MOST = 1 << 24
"""The most of any size or number of filters."""


def from_darknet(
    source: str | os.PathLike[str] | bytes, shapes: Mapping[str, Sequence[int | str | None]] | None = None
) -> IRModule:
    """Import a Darknet model: the path of its .cfg or .weights file; the other one lies beside it."""
    if isinstance(source, bytes):
        raise UserError("a Darknet model is two files: pass the path of its .cfg, with the .weights beside it")
    text_path, numbers_path = pair_of(Path(os.fspath(source)))
    try:
        text = text_path.read_text(encoding="utf-8", errors="replace")
        content = numbers_path.read_bytes()
    except OSError as error:
        raise UserError(
            f"cannot read {error.filename}: {error.strerror or error}",
            hint=f"a Darknet model is two files: {text_path.name} and {numbers_path.name}, in one folder",
        ) from error
    sections = read_sections(text, str(text_path))
    return _Importer(sections, Numbers(content, str(numbers_path))).module(dict(shapes or {}), text_path.stem)


class _Importer:
    """The import of one network."""

    def __init__(self, sections: Sequence[Section], numbers: Numbers) -> None:
        self.net, self.sections, self.numbers = sections[0], sections[1:], numbers
        self.builder = Builder()
        self.layers: list[GraphExpr] = []
        self.outputs: list[tuple[str, GraphExpr]] = []

    def module(self, shapes: dict[str, Sequence[int | str | None]], name: str) -> IRModule:
        sizes = [
            self._size(self.net, key, default) for key, default in (("channels", 3), ("height", 416), ("width", 416))
        ]
        shape = chosen_shape("data", ("batch", *sizes), shapes)
        refuse_unknown(shapes, ["data"])
        data = new_input(self.builder, "data", shape, FLOAT32)
        value: GraphExpr = data
        for number, section in enumerate(self.sections):
            self.builder.span = Span(f"{number}:{section.kind}")
            if section.kind not in _LAYERS:
                raise UnsupportedError(
                    f"layers of the kind [{section.kind}] of Darknet are not supported",
                    where=section.where,
                    hint=f"known are {', '.join(_LAYERS)}",
                )
            try:
                value = _LAYERS[section.kind](self, section, value)
            except UserError as error:
                if error.where is not None:
                    raise
                raise type(error)(error.message, where=section.where, hint=error.hint) from error
            self.layers.append(value)
        if not self.layers:
            raise UserError("the Darknet model has no layers", where=self.net.where)
        self.numbers.finish()
        found = self.outputs or [(f"{len(self.layers) - 1}:{self.sections[-1].kind}", value)]
        return main_module(self.builder, [data], [item for _, item in found], [key for key, _ in found], name)

    @staticmethod
    def _size(section: Section, key: str, default: int, least: int = 1) -> int:
        size = section.whole(key, default)
        if not least <= size <= _MOST:
            raise UserError(f"{key}={size} makes no sense", where=section.where)
        return size

    # Layers with weights

    def convolutional(self, section: Section, data: GraphExpr) -> GraphExpr:
        channels = self._image(data)[0]
        filters, size = self._size(section, "filters", 1), self._size(section, "size", 1)
        stride, groups = self._size(section, "stride", 1), self._size(section, "groups", 1)
        dilation = self._size(section, "dilation", 1)
        border = dilation * (size // 2) if section.whole("pad", 0) else self._size(section, "padding", 0, 0)
        if channels % groups or filters % groups:
            raise UserError(f"{groups} groups do not divide {channels} channels and {filters} filters")
        bias, factor = self._normalization(section, filters)
        weights = self.numbers.take((filters, channels // groups, size, size), section.where)
        result = self.builder.call(
            "nn.conv2d",
            data,
            self.builder.constant(weights, FLOAT32),
            strides=(stride, stride),
            padding=(border,) * 4,
            dilation=(dilation, dilation),
            groups=groups,
        )
        return activated(self.builder, section, self._affine(result, factor, bias, (filters, 1, 1)), "logistic")

    def _normalization(self, section: Section, count: int) -> tuple[Array, Array | None]:
        """What is added to each output, and what it is multiplied with before that."""
        bias = self.numbers.take((count,), section.where).astype(np.float64)
        if not section.whole("batch_normalize", 0):
            return bias, None
        scale, mean, variance = (self.numbers.take((count,), section.where).astype(np.float64) for _ in range(3))
        return _normalized(bias, scale, mean, variance)

    def _affine(self, value: GraphExpr, factor: Array | None, bias: Array, shape: tuple[int, ...]) -> GraphExpr:
        build = self.builder
        if factor is not None:
            value = build.call("multiply", value, build.constant(factor.reshape(shape), FLOAT32))
        return build.call("add", value, build.constant(bias.reshape(shape), FLOAT32))

    def connected(self, section: Section, data: GraphExpr) -> GraphExpr:
        flat = self._flat(data)
        inputs, outputs = shape_of_rest(flat)[0], self._size(section, "output", 1)
        bias: Array = self.numbers.take((outputs,), section.where).astype(np.float64)
        weights = self.numbers.take((outputs, inputs), section.where)
        factor = None
        if section.whole("batch_normalize", 0):
            parts = [self.numbers.take((outputs,), section.where).astype(np.float64) for _ in range(3)]
            bias, factor = _normalized(bias, *parts)
        result = self.builder.call("matmul", flat, self.builder.constant(weights, FLOAT32), transpose_b=True)
        return activated(self.builder, section, self._affine(result, factor, bias, (outputs,)), "logistic")

    # Layers without weights

    def maxpool(self, section: Section, data: GraphExpr) -> GraphExpr:
        _, height, width = self._image(data)
        stride = self._size(section, "stride", 1)
        size = self._size(section, "size", stride)
        padding = self._size(section, "padding", size - 1, 0)
        before = padding // 2
        after = []
        for extent in (height, width):
            count = (extent + padding - size) // stride + 1
            if count < 1:
                raise UserError(f"a window of {size} does not fit an image of {height} x {width}")
            after.append(max(0, (count - 1) * stride + size - extent - before))
        ends = (before, before, after[0], after[1])
        pooled = self.builder.call("nn.max_pool2d", data, kernel=(size, size), strides=(stride, stride), padding=ends)
        # A window may end before the image does.
        counts = [(extent + padding - size) // stride + 1 for extent in (height, width)]
        for axis, count in zip((2, 3), counts, strict=True):
            pooled = self.builder.slice_axis(pooled, axis, 0, count)
        return pooled

    def avgpool(self, section: Section, data: GraphExpr) -> GraphExpr:
        self._image(data)
        return self.builder.call("mean", data, axes=(2, 3), keepdims=True)

    def route(self, section: Section, data: GraphExpr) -> GraphExpr:
        parts = [self._layer(section, number) for number in section.wholes("layers")]
        groups, chosen = self._size(section, "groups", 1), self._size(section, "group_id", 0, 0)
        if not parts or chosen >= groups:
            raise UserError("it takes nothing from other layers")
        if groups > 1:
            widths = [self._image(part)[0] // groups for part in parts]
            parts = [
                self.builder.slice_axis(part, 1, width * chosen, width * (chosen + 1))
                for part, width in zip(parts, widths, strict=True)
            ]
        return parts[0] if len(parts) == 1 else self.builder.concatenate(parts, 1)

    def shortcut(self, section: Section, data: GraphExpr) -> GraphExpr:
        value = data
        for number in section.wholes("from"):
            other = self._layer(section, number)
            if shape_of_rest(other) != shape_of_rest(data):
                raise UnsupportedError(
                    f"layers of {shape_of_rest(data)} and {shape_of_rest(other)} elements are added, which differ"
                )
            value = self.builder.call("add", value, other)
        return activated(self.builder, section, value, "linear")

    def scale_channels(self, section: Section, data: GraphExpr) -> GraphExpr:
        others = [self._layer(section, number) for number in section.wholes("from")]
        if len(others) != 1:
            raise UserError("it scales the channels of one other layer")
        return activated(self.builder, section, self.builder.call("multiply", others[0], data), "linear")

    def _layer(self, section: Section, number: int) -> GraphExpr:
        place = number if number >= 0 else len(self.layers) + number
        if not 0 <= place < len(self.layers):
            raise UserError(f"there is no layer {number} before it")
        return self.layers[place]

    def upsample(self, section: Section, data: GraphExpr) -> GraphExpr:
        self._image(data)
        stride = self._size(section, "stride", 2)
        batch, channels, height, width = sizes_of(data)
        assert isinstance(height, int) and isinstance(width, int)
        wide = self.builder.reshape(data, (batch, channels, height, 1, width, 1))
        repeated = self.builder.call("broadcast_to", wide, shape=(batch, channels, height, stride, width, stride))
        result = self.builder.reshape(repeated, (batch, channels, height * stride, width * stride))
        scale = section.number("scale", 1.0)
        return (
            result if scale == 1 else self.builder.call("multiply", result, self.builder.constant_like(scale, result))
        )

    def reorg(self, section: Section, data: GraphExpr) -> GraphExpr:
        """Darknet's own order: the image is read as one of fewer channels and more pixels, then taken apart."""
        channels, height, width = self._image(data)
        step = self._size(section, "stride", 1)
        if section.whole("reverse", 0) or section.whole("flatten", 0) or section.whole("extra", 0):
            raise UnsupportedError("a reorg layer with reverse, flatten or extra")
        if channels % (step * step) or height % step or width % step:
            raise UserError(f"an image of {channels} x {height} x {width} cannot be taken apart by {step}")
        batch = sizes_of(data)[0]
        outer = channels // (step * step)
        read = self.builder.reshape(data, (batch, outer, height, step, width, step))
        turned = self.builder.transpose(read, (0, 3, 5, 1, 2, 4))
        return self.builder.reshape(turned, (batch, channels * step * step, height // step, width // step))

    def activation(self, section: Section, data: GraphExpr) -> GraphExpr:
        return activated(self.builder, section, data, "linear")

    def same(self, section: Section, data: GraphExpr) -> GraphExpr:
        """What changes nothing when a network runs."""
        return data

    def softmax(self, section: Section, data: GraphExpr) -> GraphExpr:
        flat = self._flat(data)
        temperature = section.number("temperature", 1.0)
        if section.whole("groups", 1) != 1 or not temperature > 0 or "tree" in section.options:
            raise UnsupportedError("a softmax layer with groups or a tree")
        scaled = self.builder.call("divide", flat, self.builder.constant_like(temperature, flat))
        return self.builder.call("nn.softmax", scaled, axis=1)

    # Detection

    def yolo(self, section: Section, data: GraphExpr) -> GraphExpr:
        """Places and chances between 0 and 1; widths and heights stay as they are."""
        count = len(section.wholes("mask")) or self._size(section, "num", 1)
        scale = section.number("scale_x_y", 1.0)

        def finished(parts: list[GraphExpr]) -> list[GraphExpr]:
            places, sizes, rest = parts
            places = self.builder.call("sigmoid", places)
            if scale != 1:
                half = self.builder.constant_like(0.5 * (scale - 1), places)
                stretched = self.builder.call("multiply", places, self.builder.constant_like(scale, places))
                places = self.builder.call("subtract", stretched, half)
            return [places, sizes, self.builder.call("sigmoid", rest)]

        return self._detected(section, data, count, finished)

    def region(self, section: Section, data: GraphExpr) -> GraphExpr:
        """As yolo, with the chances of classes by softmax where the option says so."""
        if section.whole("coords", 4) != 4 or section.whole("background", 0) or "tree" in section.options:
            raise UnsupportedError("a region layer with a background, a tree or other coordinates")

        def finished(parts: list[GraphExpr]) -> list[GraphExpr]:
            places, sizes, rest = parts
            length = sizes_of(rest)[2]
            assert isinstance(length, int)
            chance = self.builder.call("sigmoid", self.builder.slice_axis(rest, 2, 0, 1))
            classes = self.builder.slice_axis(rest, 2, 1, length)
            if section.whole("softmax", 0):
                classes = self.builder.call("nn.softmax", classes, axis=2)
            return [self.builder.call("sigmoid", places), sizes, chance, classes]

        return self._detected(section, data, self._size(section, "num", 1), finished)

    def _detected(
        self,
        section: Section,
        data: GraphExpr,
        count: int,
        finished: Callable[[list[GraphExpr]], list[GraphExpr]],
    ) -> GraphExpr:
        channels, height, width = self._image(data)
        length = 5 + self._size(section, "classes", 20)
        if channels != count * length:
            raise UserError(f"{channels} channels are not {count} boxes of {length} numbers")
        batch = sizes_of(data)[0]
        boxes = self.builder.reshape(data, (batch, count, length, height, width))
        parts = [self.builder.slice_axis(boxes, 2, low, high) for low, high in ((0, 2), (2, 4), (4, length))]
        joined = self.builder.concatenate(finished(parts), 2)
        result = self.builder.reshape(joined, (batch, channels, height, width))
        self.outputs.append((f"{len(self.layers)}:{section.kind}", result))
        return result

    # Shapes

    def _image(self, value: GraphExpr) -> tuple[int, int, int]:
        if rank_of(value) != 4:
            raise UserError("an image is needed here, not a list of numbers")
        channels, height, width = shape_of_rest(value)
        return channels, height, width

    def _flat(self, value: GraphExpr) -> GraphExpr:
        count = int(np.prod(shape_of_rest(value), dtype=np.int64))
        return self.builder.reshape(value, (sizes_of(value)[0], count))


def _normalized(bias: Array, scale: Array, mean: Array, variance: Array) -> tuple[Array, Array]:
    """Batch normalisation, with Darknet's own small number, as a factor and what is added then."""
    with np.errstate(all="ignore"):
        factor = scale / (np.sqrt(variance) + 1e-6)
        return bias - mean * factor, factor


def shape_of_rest(value: GraphExpr) -> tuple[int, ...]:
    """The dimensions behind the batch, which are numbers."""
    rest = sizes_of(value)[1:]
    if not all(isinstance(size, int) for size in rest):
        return shape_of(value)[1:]
    return tuple(int(size) for size in rest if isinstance(size, int))


_Layer = Callable[[_Importer, Section, GraphExpr], GraphExpr]
_LAYERS: dict[str, _Layer] = {
    "convolutional": _Importer.convolutional,
    "conv": _Importer.convolutional,
    "connected": _Importer.connected,
    "conn": _Importer.connected,
    "maxpool": _Importer.maxpool,
    "max": _Importer.maxpool,
    "avgpool": _Importer.avgpool,
    "avg": _Importer.avgpool,
    "route": _Importer.route,
    "shortcut": _Importer.shortcut,
    "scale_channels": _Importer.scale_channels,
    "upsample": _Importer.upsample,
    "reorg": _Importer.reorg,
    "activation": _Importer.activation,
    "dropout": _Importer.same,
    "cost": _Importer.same,
    "softmax": _Importer.softmax,
    "soft": _Importer.softmax,
    "yolo": _Importer.yolo,
    "region": _Importer.region,
}
"""What each kind of section means."""
