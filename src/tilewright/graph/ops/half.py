"""Products in half precision that add up blocks of products in half precision, and the blocks in float32."""

from __future__ import annotations

import numpy as np

from tilewright.graph.ir.expr import Attributes
from tilewright.graph.ir.op import Array, FusionKind, Types, get_operator, operator
from tilewright.graph.ops.common import agree, constant_dim, require_positive, require_rank, same_dtype, tensors
from tilewright.graph.ops.convolution import Conv2dAttributes
from tilewright.graph.ops.convolution import conv2d as plain_conv2d
from tilewright.ir.node import node
from tilewright.ir.types import TensorType, Type
from tilewright.support.errors import UserError


@node()
class HalfMatmulAttributes(Attributes):
    """How many products are added up in half precision before they go to the float32 sum: an even number."""

    block: int = 256


def _matmul(args: list[Array], attributes: HalfMatmulAttributes) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(np.matmul(args[0].astype(np.float32), args[1].astype(np.float32)), np.float16)


@operator(
    "half.matmul",
    inputs=("a", "b"),
    kind=FusionKind.OUT_FUSABLE,
    reference=_matmul,
    attributes=HalfMatmulAttributes,
)
def matmul(types: Types, attributes: HalfMatmulAttributes) -> Type:
    """The product of a matrix (its last two dimensions) with a matrix, with blocks of float16 sums.

    The reference adds in float32. A block of 2n products is a sum of n even and one of n odd steps, each of which
    rounds n times to 11 bits: relative to the sum of magnitudes the error is at most n * 2^-11, and about
    sqrt(n) * 2^-11 for random signs.
    """
    a, b = tensors(types, ("a", "b"))
    dtype = same_dtype([a, b], ("a", "b"))
    if dtype.name != "float16":
        raise UserError(f"the inputs must be float16, they are {dtype}")
    _require_pairs(attributes.block)
    if a.shape is None or b.shape is None:
        return TensorType(None, dtype)
    require_rank(b.shape, 2, "b")
    if len(a.shape) < 2:
        raise UserError(f"a must have at least 2 dimensions, it has {len(a.shape)}")
    agree(a.shape[-1], b.shape[0], "the inner dimensions of a and b")
    return TensorType((*a.shape[:-1], b.shape[1]), dtype)


@node()
class HalfConv2dAttributes(Attributes):
    """Steps, padding (top, left, bottom, right) and spacing of the window, and the products of a half-precision sum.

    `block` is even and divides the channels, or is so many products of all taps in a row of the window.
    """

    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    block: int = 256

    def plain(self) -> Conv2dAttributes:
        """What a convolution without blocks is asked for."""
        return Conv2dAttributes(
            strides=self.strides,
            padding=self.padding,
            dilation=self.dilation,
            data_layout="NHWC",
            kernel_layout="HWIO",
        )


def _conv2d(args: list[Array], attributes: HalfConv2dAttributes) -> Array:
    with np.errstate(all="ignore"):
        result = get_operator("nn.conv2d").reference([array.astype(np.float32) for array in args], attributes.plain())
        return np.asarray(result, np.float16)


@operator(
    "half.conv2d",
    inputs=("data", "weight"),
    kind=FusionKind.OUT_FUSABLE,
    reference=_conv2d,
    attributes=HalfConv2dAttributes,
)
def conv2d(types: Types, attributes: HalfConv2dAttributes) -> Type:
    """Convolution of NHWC data with HWIO weights, with blocks of float16 sums; errors are as of half.matmul."""
    data, weight = tensors(types, ("data", "weight"))
    result = plain_conv2d(types, attributes.plain())
    if same_dtype([data, weight], ("data", "weight")).name != "float16":
        raise UserError(f"the inputs must be float16, they are {data.dtype}")
    _require_pairs(attributes.block)
    if weight.shape is not None:
        width, channels = (constant_dim(dim) for dim in weight.shape[1:3])
        if width is not None and channels is not None and not _divides(attributes.block, width, channels):
            raise UserError(f"blocks of {attributes.block} products do not divide {channels} channels")
    return result


def _divides(block: int, width: int, channels: int) -> bool:
    """Whether blocks are of some channels of one tap, or of an even number of channels of a row of taps."""
    return channels % block == 0 or (block % (2 * width) == 0 and channels % (block // width) == 0)


def _require_pairs(block: int) -> None:
    require_positive((block,), "block")
    if block % 2:
        raise UserError(f"a block has an even number of products, not {block}")
