"""A transposed convolution as a plain one: the stride x stride results that begin at one element are its channels.

conv2d_transpose(x[n, i, h, w], w[i, o, 4, 4], strides=(2, 2), padding=(1, 1, 1, 1))                    [n, o, 2h, 2w]
    = spread(conv2d(x, w'[4 * o, i, 2, 2], padding=(1, 1, 1, 1)), strides=(2, 2), before=(1, 1))

The phases of all results of the whole, uncut image meet the same elements, so that no window has zeros for one of them;
what is cut off is left out when the phases are put side by side.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.rewrite import make, static_shape
from tilewright.graph.ops.convolution import Conv2dTransposeAttributes
from tilewright.graph.passes.channel_blocks import Array
from tilewright.support.span import Span


@dataclass(frozen=True, slots=True)
class _Axis:
    """One direction: phases, taps of one of them, elements around the image, and where the results begin."""

    stride: int
    taps: int
    padding: tuple[int, int]
    before: int
    size: int

    @staticmethod
    def of(length: int, kernel: int, stride: int, padding: tuple[int, int], more: int) -> _Axis | None:
        """For an image of a length; None where nothing is left of the results."""
        size = (length - 1) * stride + kernel + more - sum(padding)
        if size < 1:
            return None
        if length == 1:
            # The stride between the prints of one element means nothing: each result has a tap of its own.
            stride = max(kernel, padding[0] + size)
        taps = -(-kernel // stride)
        # Whole steps that are cut off are not computed, as far as they are in the padding.
        first = min(padding[0] // stride, taps - 1)
        steps = (padding[0] + size - 1) // stride + 1
        return _Axis(stride, taps, (taps - 1 - first, max(0, steps - length)), padding[0] - first * stride, size)


@dataclass(frozen=True, slots=True)
class Phases:
    """What the channels of the convolution are."""

    down: _Axis
    across: _Axis

    @staticmethod
    def of(attributes: Conv2dTransposeAttributes, shape: tuple[int, ...], weight: tuple[int, ...]) -> Phases | None:
        """Those of a transposed convolution of N, C, H, W data with I, O, H, W weights."""
        axes = [
            _Axis.of(
                shape[2 + n],
                weight[2 + n],
                attributes.strides[n],
                (attributes.padding[n], attributes.padding[n + 2]),
                attributes.output_padding[n],
            )
            for n in range(2)
        ]
        down, across = axes
        return None if down is None or across is None else Phases(down, across)

    @property
    def count(self) -> int:
        """How many there are."""
        return self.down.stride * self.across.stride

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of the results."""
        return self.down.size, self.across.size

    @property
    def padding(self) -> tuple[int, int, int, int]:
        """That of the convolution: top, left, bottom, right."""
        return self.down.padding[0], self.across.padding[0], self.down.padding[1], self.across.padding[1]

    def weights(self, weight: Array) -> Array:
        """I, O, H, W weights as those of the convolution: channels of the first phase, then of the next one."""
        inputs, outputs, height, width = weight.shape
        (p, u), (q, v) = ((axis.stride, axis.taps) for axis in (self.down, self.across))
        padded = np.pad(weight, ((0, 0), (0, 0), (0, p * u - height), (0, q * v - width)))
        # Taps of a phase are a stride apart, and the last one meets the first element.
        taps = padded.reshape(inputs, outputs, u, p, v, q)[:, :, ::-1, :, ::-1]
        return taps.transpose(3, 5, 1, 0, 2, 4).reshape(p * q * outputs, inputs, u, v)

    def spread(self, layer: GraphExpr, span: Span | None) -> GraphExpr:
        """The results side by side, of phases in whole blocks of channels."""
        strides, before = (self.down.stride, self.across.stride), (self.down.before, self.across.before)
        return make("accel.spread", layer, strides=strides, size=self.size, before=before, phases=True, span=span)

    def apart(self, image: GraphExpr, span: Span | None) -> GraphExpr:
        """The results side by side, of phases in channels of N, C, H, W."""
        shape = static_shape(image)
        assert shape is not None
        number, channels, height, width = shape
        p, q = self.down.stride, self.across.stride
        value = make("reshape", image, shape=(number, p, q, channels // self.count, height, width), span=span)
        value = make("transpose", value, axes=(0, 3, 4, 1, 5, 2), span=span)
        value = make("reshape", value, shape=(number, channels // self.count, height * p, width * q), span=span)
        begin = (0, 0, self.down.before, self.across.before)
        end = (number, channels // self.count, *(at + size for at, size in zip(begin[2:], self.size, strict=True)))
        return make("slice", value, begin=begin, end=end, strides=(1, 1, 1, 1), span=span)
