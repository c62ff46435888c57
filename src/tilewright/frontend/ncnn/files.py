"""ncnn's two files: layers with numbered parameters, as a text or in binary, and the weights of all layers in order."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.graph.ir.op import Array
from tilewright.support.errors import UnsupportedError, UserError

MAGIC = 7767517
_END, _ARRAYS = -233, -23300
"""The id that ends the parameters of a layer, and the one that arrays are counted down from."""
_HALVES, _BYTES, _FLOATS = 0x01306B47, 0x000D4B38, 0x0002C056
"""Marks before weights of 16 bits, of 8 bits, and of 32 bits that are scaled later."""
_MOST_LAYERS = 1 << 20

TYPES = (
    "AbsVal ArgMax BatchNorm Bias BNLL Concat Convolution Crop Deconvolution Dropout Eltwise ELU Embed Exp "
    "Flatten InnerProduct Input Log LRN MemoryData MVN Pooling Power PReLU Proposal Reduction ReLU Reshape "
    "ROIPooling Scale Sigmoid Slice Softmax Split SPP TanH Threshold Tile RNN LSTM BinaryOp UnaryOp "
    "ConvolutionDepthWise Padding Squeeze ExpandDims Normalize Permute PriorBox DetectionOutput Interp "
    "DeconvolutionDepthWise ShuffleChannel InstanceNorm Clip Reorg YoloDetectionOutput Quantize Dequantize "
    "Yolov3DetectionOutput PSROIPooling ROIAlign Packing Requantize Cast HardSigmoid SELU HardSwish Noop "
    "PixelShuffle DeepCopy Mish StatisticsPooling Swish Gemm GroupNorm LayerNorm Softplus GRU MultiHeadAttention "
    "GELU Convolution1D Pooling1D ConvolutionDepthWise1D Convolution3D ConvolutionDepthWise3D Pooling3D MatMul "
    "Deconvolution1D DeconvolutionDepthWise1D Deconvolution3D DeconvolutionDepthWise3D Einsum DeformableConv2D "
    "GLU Fold Unfold GridSample CumulativeSum CopyTo Erf Diag CELU Shrink RMSNorm Spectrogram InverseSpectrogram "
    "Flip SDPA RotaryEmbed"
).split()
"""The types of layers in the order of their numbers in binary files."""


class Bits(int):
    """A number of a binary file, whose type only its reader knows: a whole number, or the bits of a float."""

    def as_float(self) -> float:
        """The float that the bits are."""
        return float(struct.unpack("<f", struct.pack("<i", self))[0])


Value = int | float | str | list[float]


@dataclass(frozen=True)
class LayerSpec:
    """A layer as the file has it."""

    kind: str
    name: str
    bottoms: Sequence[str]
    tops: Sequence[str]
    params: Mapping[int, Value]


def read_layers(content: bytes, where: str) -> list[LayerSpec]:
    """The layers of a .param text, or of its binary form."""
    if content[:4] == struct.pack("<i", MAGIC):
        return _Binary(content, where).layers()
    return _from_text(content.decode("utf-8", "replace"), where)


def _from_text(text: str, where: str) -> list[LayerSpec]:
    lines = [line.split() for line in text.splitlines() if line.strip()]
    if len(lines) < 2 or lines[0] != [str(MAGIC)]:
        raise UserError("this is no ncnn model: its first line is not 7767517", where=where)
    layers: list[LayerSpec] = []
    for number, words in enumerate(lines[2:], start=3):
        place = f"{where}, line {number}"
        try:
            bottoms, tops = int(words[2]), int(words[3])
        except (IndexError, ValueError) as error:
            raise UserError(f"'{' '.join(words)[:60]}' is no layer", where=place) from error
        names = words[4 : 4 + bottoms + tops]
        if bottoms < 0 or tops < 0 or len(names) != bottoms + tops:
            raise UserError(f"the layer has {len(names)} of {bottoms + tops} names", where=place)
        params = _params(words[4 + bottoms + tops :], place)
        layers.append(LayerSpec(words[0], words[1], names[:bottoms], names[bottoms:], params))
    return layers


def _params(words: Sequence[str], where: str) -> dict[int, Value]:
    found: dict[int, Value] = {}
    for word in words:
        key, separator, text = word.partition("=")
        try:
            number = int(key)
            if not separator:
                raise ValueError(word)
            if number <= _ARRAYS:
                count, *values = text.split(",")
                if int(count) != len(values):
                    raise ValueError(word)
                found[_ARRAYS - number] = [float(value) for value in values]
            elif text.startswith('"'):
                found[number] = text.strip('"')
            else:
                found[number] = float(text) if any(mark in text for mark in ".eEnN") else int(text)
        except (ValueError, OverflowError) as error:
            raise UserError(f"'{word[:60]}' is no parameter", where=where) from error
    return found


class _Binary:
    """The binary form: numbers alone, blobs by their numbers."""

    def __init__(self, content: bytes, where: str) -> None:
        self.content, self.where, self.at = content, where, 4

    def _number(self) -> int:
        if self.at + 4 > len(self.content):
            raise UserError("the file ends within a layer", where=self.where, hint="download or export it again")
        self.at += 4
        return int(struct.unpack_from("<i", self.content, self.at - 4)[0])

    def layers(self) -> list[LayerSpec]:
        count, _ = self._number(), self._number()
        if not 0 <= count <= _MOST_LAYERS:
            raise UserError(f"a net of {count} layers", where=self.where)
        return [self._layer(number) for number in range(count)]

    def _names(self, count: int) -> list[str]:
        if not 0 <= count <= len(self.content):
            raise UserError(f"a layer of {count} blobs", where=self.where)
        return [str(self._number()) for _ in range(count)]

    def _layer(self, number: int) -> LayerSpec:
        kind, bottoms, tops = self._number(), self._number(), self._number()
        if not 0 <= kind < len(TYPES):
            raise UnsupportedError(f"layer {number} has the type number {kind}, which is not known", where=self.where)
        inputs, outputs = self._names(bottoms), self._names(tops)
        params: dict[int, Value] = {}
        key = self._number()
        while key != _END:
            if key <= _ARRAYS:
                length = self._number()
                if not 0 <= length <= len(self.content):
                    raise UserError(f"an array of {length} numbers", where=self.where)
                params[_ARRAYS - key] = [Bits(self._number()) for _ in range(length)]
            else:
                params[key] = Bits(self._number())
            key = self._number()
        return LayerSpec(TYPES[kind], f"{number}:{TYPES[kind]}", inputs, outputs, params)


class Numbers:
    """The weights of a .bin file, in the order in which layers take them."""

    def __init__(self, content: bytes, source: str) -> None:
        self.content, self.source, self.at = content, source, 0

    def _bytes(self, count: int) -> bytes:
        left = len(self.content) - self.at
        if count > left:
            raise UserError(
                f"{self.source} ends before the weights of a layer: {count} bytes are wanted, {left} are left",
                hint="is it the .bin file of this .param?",
            )
        self.at += count
        return self.content[self.at - count : self.at]

    def _aligned(self, count: int) -> bytes:
        return self._bytes(-(-count // 4) * 4)[:count]

    def floats(self, *shape: int) -> Array:
        """The next numbers, which have no mark before them."""
        self._check(shape)
        return np.frombuffer(self._bytes(4 * math.prod(shape)), "<f4").reshape(shape)

    def marked(self, *shape: int) -> Array:
        """The next numbers, with a mark before them that says how they are stored; integers of 8 bits stay integers."""
        self._check(shape)
        count = math.prod(shape)
        mark = int(struct.unpack("<I", self._bytes(4))[0])
        if mark == _HALVES:
            return np.frombuffer(self._aligned(2 * count), "<f2").astype(np.float32).reshape(shape)
        if mark == _BYTES:
            return np.frombuffer(self._aligned(count), np.int8).reshape(shape)
        if mark == _FLOATS or sum(mark.to_bytes(4, "little")) == 0:
            return self.floats(*shape)
        table = self.floats(256)
        return table[np.frombuffer(self._aligned(count), np.uint8)].reshape(shape)

    @staticmethod
    def _check(shape: Sequence[int]) -> None:
        if any(size < 0 for size in shape) or math.prod(shape) > 1 << 33:
            raise UserError(f"weights of shape {tuple(shape)}")

    def finish(self) -> None:
        """Refuse what no layer took: the files do not belong together."""
        if self.at != len(self.content):
            raise UserError(
                f"{self.source} has {len(self.content) - self.at} bytes more than the layers take",
                hint="is it the .bin file of this .param?",
            )
