"""Products of bytes whose second operand is words of four bytes, as GPUs multiply them: four products an instruction.

Neighbours along the reduction share a word, the lowest first. Sums are in int32, as in `graph/ops/quantize.py`.
"""

from __future__ import annotations

import numpy as np

from tilewright.graph.ir.op import Array, FusionKind, NoAttributes, Types, operator
from tilewright.graph.ops.common import agree, constant_dim, floor_divide, multiply, require_rank, tensors
from tilewright.graph.ops.quantize import IntegerConv2dAttributes, byte_product, sums_of_windows, windowed_product
from tilewright.ir.dtype import INT8, INT32, UINT8
from tilewright.ir.types import TensorType, Type, tensor_type
from tilewright.support.errors import UserError

WORD = 4
"""Bytes of a word."""


def byte_words(data: Array) -> Array:
    """Bytes (..., 4 n) as words (..., n)."""
    return np.ascontiguousarray(data).view("<i4").astype(np.int32, copy=False)


def word_bytes(words: Array) -> Array:
    """The signed bytes of words."""
    return np.ascontiguousarray(words.astype("<i4", copy=False)).view(np.int8)


def _words(args: list[Array], attributes: NoAttributes) -> Array:
    return byte_words(args[0])


@operator("qnn.words", inputs=("data",), kind=FusionKind.INJECTIVE, reference=_words)
def words(types: Types, attributes: NoAttributes) -> Type:
    """Bytes (..., 4 n) as words (..., n) of 32 bits."""
    (data,) = tensors(types, ("data",))
    if data.dtype not in (INT8, UINT8):
        raise UserError(f"words are of bytes, not of {data.dtype}")
    if data.shape is None:
        return TensorType(None, INT32)
    if not data.shape:
        raise UserError("words are of neighbours along the last dimension: the data has none")
    count = constant_dim(data.shape[-1])
    if count is not None and count % WORD:
        raise UserError(f"{count} bytes are not whole words of {WORD} bytes")
    return tensor_type((*data.shape[:-1], floor_divide(data.shape[-1], WORD)), INT32)


def _matmul(args: list[Array], attributes: NoAttributes) -> Array:
    return byte_product(args[0], np.swapaxes(word_bytes(args[1]), -1, -2))


@operator("qnn.word_matmul", inputs=("a", "b"), kind=FusionKind.OUT_FUSABLE, reference=_matmul)
def matmul(types: Types, attributes: NoAttributes) -> Type:
    """The product of matrices (..., m, 4 k) of signed bytes with the transposed of matrices (..., n, k) of words."""
    a, b = tensors(types, ("a", "b"))
    if a.dtype is not INT8 or b.dtype is not INT32:
        raise UserError(f"a must be int8 and b words of int32, they are {a.dtype} and {b.dtype}")
    if a.shape is None or b.shape is None:
        return TensorType(None, INT32)
    if len(a.shape) < 2 or len(b.shape) not in (2, len(a.shape)):
        raise UserError(f"a has {len(a.shape)} dimensions and b {len(b.shape)}: b is one matrix, or one for each of a")
    agree(a.shape[-1], multiply(b.shape[-1], WORD), "the inner dimensions of a and b, in bytes")
    for one, other in zip(a.shape[:-2], b.shape[:-2], strict=False):
        agree(one, other, "the outer dimensions of a and b")
    return TensorType((*a.shape[:-1], b.shape[-2]), INT32)


def _conv2d(args: list[Array], attributes: IntegerConv2dAttributes) -> Array:
    data, weight, zero = args
    height, width, count, outputs = weight.shape
    # (..., words, outputs) -> (..., words, 4, outputs)
    split = np.moveaxis(word_bytes(weight).reshape(height, width, count, outputs, WORD), -1, -2)
    return windowed_product(data, split.reshape(height, width, count * WORD, outputs), zero, attributes)


@operator(
    "qnn.word_conv2d",
    inputs=("data", "weight", "zero"),
    kind=FusionKind.OUT_FUSABLE,
    reference=_conv2d,
    attributes=IntegerConv2dAttributes,
)
def conv2d(types: Types, attributes: IntegerConv2dAttributes) -> Type:
    """Convolution of NHWC signed bytes with HWIO weights whose inputs are words; the border is `zero`, one byte."""
    data, weight, zero = tensors(types, ("data", "weight", "zero"))
    if data.dtype is not INT8 or weight.dtype is not INT32:
        raise UserError(f"data must be int8 and weight words of int32, they are {data.dtype} and {weight.dtype}")
    if zero.dtype is not data.dtype or zero.static_shape not in ((), (1,)):
        raise UserError(f"zero must be a single {data.dtype}, it is {zero}")
    if data.shape is not None and weight.shape is not None:
        require_rank(data.shape, 4, "data")
        require_rank(weight.shape, 4, "weight")
        agree(data.shape[3], multiply(weight.shape[2], WORD), "channels of the data, and inputs of the weight in bytes")
    return sums_of_windows(data, weight, attributes, INT32)
