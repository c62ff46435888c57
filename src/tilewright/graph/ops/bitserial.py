"""Bit-serial products: integers of a few bits as bit planes, multiplied by counting ones.

An unsigned integer of A bits is A bits, one in each plane; a plane holds eight channels a byte. With planes a_i and w_j

    sum_k a[k] * w[k] = sum_ij 2^(i + j) * popcount(a_i & w_j)

exactly, in 32 bits. `docs/quantization.md` says which numbers planes stand for: unsigned, signed and bipolar ones.
"""

from __future__ import annotations

import numpy as np

from tilewright.graph.ir.expr import Attributes
from tilewright.graph.ir.op import Array, FusionKind, Types, operator
from tilewright.graph.ops.common import (
    Dim,
    add,
    agree,
    constant_dim,
    floor_divide,
    multiply,
    require_length,
    require_not_negative,
    require_positive,
    require_rank,
    tensors,
    window_dim,
)
from tilewright.graph.ops.convolution import windows
from tilewright.ir.dtype import INT32, UINT8, DataType
from tilewright.ir.node import node
from tilewright.ir.types import TensorType, Type, tensor_type
from tilewright.support.errors import UserError

MOST_BITS = 8
WORD_BYTES = 4
"""Planes are whole words of this many bytes, filled up with zeros: processors spread a word over a vector at once."""
_WORD_BITS = 8 * WORD_BYTES
_MODES = ("and", "xor")


def plane_bytes(channels: int) -> int:
    """Bytes of a plane of so many channels."""
    return WORD_BYTES * -(-channels // _WORD_BITS)


def bit_planes(levels: Array, bits: int) -> Array:
    """Unsigned integers (..., channels) as bit planes (..., bits, bytes).

    Channel c is bit `c // bytes` of byte `c % bytes`: the channels of neighbouring bytes are neighbours, so vectors of
    bytes are packed at once.
    """
    *outer, channels = levels.shape
    size = plane_bytes(channels)
    filled = np.zeros((*outer, 8 * size), np.uint8)
    filled[..., :channels] = levels
    digits = filled.reshape(*outer, 1, 8, size) >> np.arange(bits, dtype=np.uint8).reshape(-1, 1, 1) & 1
    return np.asarray(np.packbits(digits, axis=-2, bitorder="little").reshape(*outer, bits, size))


@node()
class BitpackAttributes(Attributes):
    """How many of the lowest bits are taken."""

    bits: int = 1


def _bitpack(args: list[Array], attributes: BitpackAttributes) -> Array:
    return bit_planes(args[0], attributes.bits)


@operator("nn.bitpack", inputs=("data",), kind=FusionKind.OPAQUE, reference=_bitpack, attributes=BitpackAttributes)
def bitpack(types: Types, attributes: BitpackAttributes) -> Type:
    """The lowest bits of bytes (..., channels) as planes (..., bits, bytes), a channel a bit."""
    (data,) = tensors(types, ("data",))
    if data.dtype is not UINT8:
        raise UserError(f"bit planes are of uint8, not of {data.dtype}", hint="move signed integers by their least one")
    _require_bits(attributes.bits)
    if data.shape is None:
        return TensorType(None, UINT8)
    if not data.shape:
        raise UserError("bit planes are of channels: the data has no dimension")
    words = floor_divide(add(data.shape[-1], _WORD_BITS - 1), _WORD_BITS)
    return tensor_type((*data.shape[:-1], attributes.bits, multiply(words, WORD_BYTES)), UINT8)


def _require_bits(bits: int) -> None:
    if not 1 <= bits <= MOST_BITS:
        raise UserError(f"planes are of 1 to {MOST_BITS} bits, not of {bits}")


@node()
class BitserialDenseAttributes(Attributes):
    """`mode` is how bits meet ("and", "xor"); the last plane of `signed` weights counts negative."""

    mode: str = "and"
    signed: bool = False


@node()
class BitserialConv2dAttributes(Attributes):
    """As of a product, and steps, padding (top, left, bottom, right) and spacing of the window.

    `border` is the unsigned integer that all `channels` outside of the image have (0 channels: every bit of a plane).
    """

    mode: str = "and"
    signed: bool = False
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    border: int = 0
    channels: int = 0


def _product(a: Array, b: Array, mode: str, signed: bool) -> Array:
    """Planes (rows, A, bytes) with planes (B, bytes, columns), in 32 bits; float64 sums are exact."""
    left = np.unpackbits(a, axis=-1).astype(np.float64)
    right = np.unpackbits(b, axis=1).astype(np.float64)
    total = np.zeros((a.shape[0], b.shape[2]))
    for i in range(a.shape[1]):
        for j in range(b.shape[0]):
            ones = left[:, i] @ right[j]
            if mode == "xor":
                ones = left[:, i].sum(axis=1, keepdims=True) + right[j].sum(axis=0) - 2 * ones
            total += ones * (2 ** (i + j) * (-1 if signed and j == b.shape[0] - 1 else 1))
    return total.astype(np.int64).astype(np.int32)


def words_of_planes(planes: Array) -> Array:
    """Planes (..., bytes, columns) as words (..., bytes / 4, columns)."""
    last = np.ascontiguousarray(np.swapaxes(planes, -1, -2)).view("<i4").astype(np.int32, copy=False)
    return np.ascontiguousarray(np.swapaxes(last, -1, -2))


def _planes_of(weight: Array) -> Array:
    """Weights as planes of bytes."""
    if weight.dtype == np.uint8:
        return weight
    last = np.ascontiguousarray(np.swapaxes(weight, -1, -2).astype("<i4", copy=False)).view(np.uint8)
    return np.ascontiguousarray(np.swapaxes(last, -1, -2))


def _dense(args: list[Array], attributes: BitserialDenseAttributes) -> Array:
    data, weight = args[0], _planes_of(args[1])
    flat = data.reshape(-1, *data.shape[-2:])
    return _product(flat, weight, attributes.mode, attributes.signed).reshape(*data.shape[:-2], weight.shape[2])


def _require_planes(dtype: DataType, what: str) -> None:
    if dtype is not UINT8:
        raise UserError(f"{what} must be bit planes of uint8, they are {dtype}", hint="nn.bitpack makes them")


def _check_planes(dim: Dim, what: str) -> None:
    bits = constant_dim(dim)
    if bits is not None and not 1 <= bits <= MOST_BITS:
        raise UserError(f"{what} has {bits} bit planes, 1 to {MOST_BITS} are possible")


def _plane_size(dim: Dim, dtype: DataType) -> Dim:
    """The bytes of a plane of the weights, which may be given in words."""
    if dtype is INT32:
        return multiply(dim, WORD_BYTES)
    _require_planes(dtype, "the weights")
    size = constant_dim(dim)
    if size is not None and size % WORD_BYTES:
        raise UserError(f"planes are whole words of {WORD_BYTES} bytes, these have {size} bytes")
    return dim


def _check_mode(mode: str) -> None:
    if mode not in _MODES:
        raise UserError(f"bits do not meet by {mode!r}", hint=f"one of {', '.join(_MODES)}")


@operator(
    "nn.bitserial_dense",
    inputs=("data", "weight"),
    kind=FusionKind.OUT_FUSABLE,
    reference=_dense,
    attributes=BitserialDenseAttributes,
)
def dense(types: Types, attributes: BitserialDenseAttributes) -> Type:
    """The product of planes (..., A, bytes) with planes (B, bytes, columns): (..., columns) in 32 bits.

    Planes of the weights may be words of int32 (B, bytes / 4, columns).
    """
    data, weight = tensors(types, ("data", "weight"))
    _require_planes(data.dtype, "the data")
    _check_mode(attributes.mode)
    if data.shape is None or weight.shape is None:
        return TensorType(None, INT32)
    require_rank(weight.shape, 3, "weight")
    if len(data.shape) < 2:
        raise UserError(f"data must have at least 2 dimensions (planes, bytes), it has {len(data.shape)}")
    size = _plane_size(weight.shape[1], weight.dtype)
    agree(data.shape[-1], size, "the bytes of planes of the data, and of the weight")
    _check_planes(data.shape[-2], "the data")
    _check_planes(weight.shape[0], "the weight")
    return TensorType((*data.shape[:-2], weight.shape[2]), INT32)


def _conv2d(args: list[Array], attributes: BitserialConv2dAttributes) -> Array:
    data, weight = args[0], _planes_of(args[1])
    _, height, width, planes, size = data.shape
    top, left, bottom, right = attributes.padding
    border = bit_planes(np.full(attributes.channels or 8 * size, attributes.border, np.uint8), planes)
    padded = np.empty((data.shape[0], height + top + bottom, width + left + right, planes, size), np.uint8)
    padded[:] = border
    padded[:, top : top + height, left : left + width] = data
    rows, columns, bits, _, outputs = weight.shape
    flat = padded.reshape(*padded.shape[:3], planes * size).transpose(0, 3, 1, 2)
    view = windows(flat, (rows, columns), attributes.strides, attributes.dilation)
    n, _, high, wide = view.shape[:4]
    gathered = view.reshape(n, planes, size, high, wide, rows, columns).transpose(0, 3, 4, 1, 5, 6, 2)
    matrix = weight.transpose(2, 0, 1, 3, 4).reshape(bits, rows * columns * size, outputs)
    product = _product(
        np.ascontiguousarray(gathered).reshape(n * high * wide, planes, -1), matrix, attributes.mode, attributes.signed
    )
    return product.reshape(n, high, wide, outputs)


@operator(
    "nn.bitserial_conv2d",
    inputs=("data", "weight"),
    kind=FusionKind.OUT_FUSABLE,
    reference=_conv2d,
    attributes=BitserialConv2dAttributes,
)
def conv2d(types: Types, attributes: BitserialConv2dAttributes) -> Type:
    """Convolution of planes (N, H, W, A, bytes) with planes (KH, KW, B, bytes, outputs): NHWC in 32 bits.

    Planes of the weights may be words of int32 (KH, KW, B, bytes / 4, outputs).
    """
    data, weight = tensors(types, ("data", "weight"))
    _require_planes(data.dtype, "the data")
    _check_mode(attributes.mode)
    require_length(attributes.strides, 2, "strides")
    require_length(attributes.padding, 4, "padding")
    require_length(attributes.dilation, 2, "dilation")
    require_positive(attributes.strides, "strides")
    require_positive(attributes.dilation, "dilation")
    require_not_negative((*attributes.padding, attributes.border, attributes.channels), "padding, border and channels")
    if data.shape is None or weight.shape is None:
        return TensorType((None,) * 4, INT32)
    require_rank(data.shape, 5, "data")
    require_rank(weight.shape, 5, "weight")
    batch, height, width, planes, size = data.shape
    kernel_height, kernel_width, bits, weight_size, outputs = weight.shape
    weight_size = _plane_size(weight_size, weight.dtype)
    agree(size, weight_size, "the bytes of planes of the data, and of the weight")
    _check_planes(planes, "the data")
    _check_planes(bits, "the weight")
    _check_border(attributes, constant_dim(planes), constant_dim(weight_size))
    top, left, bottom, right = attributes.padding
    (step_h, step_w), (space_h, space_w) = attributes.strides, attributes.dilation
    rows = window_dim(height, kernel_height, step_h, top, bottom, space_h, "height")
    columns = window_dim(width, kernel_width, step_w, left, right, space_w, "width")
    return TensorType((batch, rows, columns, outputs), INT32)


def _check_border(attributes: BitserialConv2dAttributes, planes: int | None, size: int | None) -> None:
    if planes is not None and attributes.border >> planes:
        raise UserError(f"the border is {attributes.border}, which {planes} bits do not hold")
    if size is None or attributes.channels == 0:
        return
    if plane_bytes(attributes.channels) != size:
        raise UserError(
            f"planes of {attributes.channels} channels have {plane_bytes(attributes.channels)} bytes, not {size}"
        )
