"""Images, weights and parameters in the blocks of channels that a tensor processor computes with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.accel.config import PARAMETER_WORDS, RESIDUAL_SHIFT_AT, AccelConfig
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.rewrite import make, static_shape
from tilewright.target import Target

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Blocks:
    """The tensors of a processor: rows of a batch, input channels and output channels."""

    batch: int
    inputs: int
    outputs: int

    @staticmethod
    def of(target: Target) -> Blocks:
        """The tensors of a target, which its configuration says."""
        config = AccelConfig.from_text(target.arch)
        return Blocks(config.batch, config.block_in, config.block_out)

    @property
    def whole(self) -> int:
        """The fewest channels that are whole blocks of inputs and of outputs."""
        return max(self.inputs, self.outputs)

    def pack(self, data: GraphExpr, lanes: int, whole: int = 1) -> GraphExpr:
        """N, C, H, W as [n, c, h, w, rows, lanes], with zeros for channels that fill a block (or `whole` channels)."""
        shape = static_shape(data)
        assert shape is not None
        rows, more = self.batch, -shape[1] % max(lanes, whole)
        if more:
            data = make("pad", data, before=(0, 0, 0, 0), after=(0, more, 0, 0), span=data.span)
        number, channels, height, width = shape[0], shape[1] + more, shape[2], shape[3]
        split = (number // rows, rows, channels // lanes, lanes, height, width)
        return make(
            "transpose", make("reshape", data, shape=split, span=data.span), axes=(0, 2, 4, 5, 1, 3), span=data.span
        )

    def unpack(self, data: GraphExpr, shape: tuple[int, ...]) -> GraphExpr:
        """[n, c, h, w, rows, lanes] as N, C, H, W of a shape."""
        lines = make("transpose", data, axes=(0, 4, 1, 5, 2, 3), span=data.span)
        blocks = static_shape(data)
        assert blocks is not None
        whole = (shape[0], blocks[1] * blocks[5], *shape[2:])
        image = make("reshape", lines, shape=whole, span=data.span)
        if whole == shape:
            return image
        return make("slice", image, begin=(0, 0, 0, 0), end=shape, strides=(1, 1, 1, 1), span=data.span)

    def grouped(self, weight: Array, groups: int) -> tuple[Array, int]:
        """Weights of groups that are whole blocks, and how many those are; smaller groups join, with zeros between."""
        outputs, inputs = weight.shape[0] // groups, weight.shape[1]
        joined = 1
        while joined < groups and (joined * inputs % self.inputs or joined * outputs % self.outputs):
            joined += 1
            while groups % joined:
                joined += 1
        parts = weight.reshape(groups // joined, joined, outputs, *weight.shape[1:])
        wide = np.zeros((groups // joined, joined, outputs, joined, *weight.shape[1:]), weight.dtype)
        for number in range(joined):
            wide[:, number, :, number] = parts[:, number]
        return wide.reshape(weight.shape[0], joined * inputs, *weight.shape[2:]), groups // joined

    def weights(self, weight: Array) -> Array:
        """Weights as [co, ci, kh, kw, lanes, lanes], with zeros for channels that fill a block."""
        ours, theirs = self.outputs, self.inputs
        padded = np.pad(weight, ((0, -weight.shape[0] % ours), (0, -weight.shape[1] % theirs), (0, 0), (0, 0)))
        outputs, inputs, *kernel = padded.shape
        return padded.reshape(outputs // ours, ours, inputs // theirs, theirs, *kernel).transpose(0, 2, 4, 5, 1, 3)

    def diagonal(self) -> Array:
        """Weights that make accumulators of inputs, for the fewest channels that are whole blocks."""
        return self.weights(np.eye(self.whole, dtype=np.int8)[:, :, None, None])

    def parameters(self, numbers: list[Array]) -> Array:
        """Bias, multiplier, shift (and residual's multiplier and shift) of channels as [co, 4, lanes]."""
        bias, multiplier, shift, *residual = numbers
        factor, places = residual or (np.zeros_like(bias), np.zeros_like(bias))
        wrapped = bias.astype(np.uint64).astype(np.uint32).view(np.int32).astype(np.int64)
        words = np.stack([wrapped, multiplier, factor, shift | places << RESIDUAL_SHIFT_AT])
        words = np.pad(words, ((0, 0), (0, -words.shape[1] % self.outputs)))
        return words.reshape(PARAMETER_WORDS, -1, self.outputs).transpose(1, 0, 2).astype(np.int32)
