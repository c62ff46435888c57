"""Blocks of GGUF files: the bytes of each type, and the float32 numbers that they stand for, to the bit.

A nibble type keeps its first half in the low nibbles, its second in the high ones. The types named K have 256 elements
with scales of groups that are of few bits themselves.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.frontend.weights.weight import BlockType

Array = npt.NDArray[Any]
_NONLINEAR = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
_MXFP4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
"""Twice the numbers of float4_e2m1."""


def _bits(amounts: Any) -> Array:
    """Places of bits, by which bytes are shifted."""
    return np.array(amounts, np.uint8)


def _halves(data: Array) -> Array:
    """Pairs of bytes as float16, as float32."""
    return np.ascontiguousarray(data).view(np.float16).astype(np.float32)


def _nibbles(data: Array) -> Array:
    """(blocks, bytes) -> (blocks, 2 * bytes): the low nibbles, then the high ones."""
    return np.concatenate([data & 15, data >> 4], axis=1)


def _fifth_bits(data: Array) -> Array:
    """A bit for each of 32 elements, from 4 bytes."""
    return np.unpackbits(np.ascontiguousarray(data), axis=1, bitorder="little")


def _codes_4_0(data: Array) -> tuple[Array, Array]:
    return (_nibbles(data[:, 2:]).astype(np.int8) - np.int8(8))[:, None], _halves(data[:, :2])


def _codes_5_0(data: Array) -> tuple[Array, Array]:
    codes = _nibbles(data[:, 6:]) | (_fifth_bits(data[:, 2:6]) << 4)
    return (codes.astype(np.int8) - np.int8(16))[:, None], _halves(data[:, :2])


def _codes_8_0(data: Array) -> tuple[Array, Array]:
    return np.ascontiguousarray(data[:, 2:]).view(np.int8)[:, None], _halves(data[:, :2])


def _codes_3_k(data: Array) -> tuple[Array, Array]:
    """Two bits and a third, which is inverted; 6-bit scales of 16 groups."""
    blocks = len(data)
    high, low, scales, step = data[:, :32], data[:, 32:96], data[:, 96:108], _halves(data[:, 108:])
    packed = scales[:, :8].reshape(blocks, 1, 8) >> _bits([[0], [4]])
    upper = scales[:, 8:].reshape(blocks, 1, 4) >> _bits([[0], [2], [4], [6]])
    parts = (packed.reshape(blocks, 16) & 15) | ((upper.reshape(blocks, 16) & 3) << 4)
    factors = step * (parts.astype(np.int8) - np.int8(32)).astype(np.float32)
    twos = (low.reshape(blocks, 2, 1, 32) >> _bits([[0], [2], [4], [6]]).reshape(1, 1, 4, 1)) & 3
    thirds = (high.reshape(blocks, 1, 32) >> np.arange(8, dtype=np.uint8).reshape(1, 8, 1)) & 1
    codes = twos.reshape(blocks, 16, 16).astype(np.int8) - ((thirds.reshape(blocks, 16, 16) ^ 1) << 2).astype(np.int8)
    return codes, factors


def _codes_6_k(data: Array) -> tuple[Array, Array]:
    blocks = len(data)
    low, high = data[:, :128], data[:, 128:192]
    scales, step = np.ascontiguousarray(data[:, 192:208]).view(np.int8), _halves(data[:, 208:])
    fours = (low.reshape(blocks, 2, 1, 64) >> _bits([[0], [4]]).reshape(1, 1, 2, 1)) & 15
    twos = (high.reshape(blocks, 2, 1, 32) >> _bits([0, 2, 4, 6]).reshape(1, 1, 4, 1)) & 3
    codes = fours.reshape(blocks, 8, 32) | (twos.reshape(blocks, 8, 32) << 4)
    return (codes.astype(np.int8) - np.int8(32)).reshape(blocks, 16, 16), step * scales.astype(np.float32)


def _scaled(codes_of: Any) -> Any:
    """The numbers of a type whose groups have a scale each."""

    def numbers(data: Array) -> Array:
        codes, scales = codes_of(data)
        found: Array = scales.reshape(len(data), -1, 1) * codes.astype(np.float32)
        return found.reshape(len(data), -1)

    return numbers


def _numbers_4_1(data: Array) -> Array:
    return _halves(data[:, :2]) * _nibbles(data[:, 4:]).astype(np.float32) + _halves(data[:, 2:4])


def _numbers_5_1(data: Array) -> Array:
    codes = _nibbles(data[:, 8:]) | (_fifth_bits(data[:, 4:8]) << 4)
    found: Array = _halves(data[:, :2]) * codes.astype(np.float32) + _halves(data[:, 2:4])
    return found


def _numbers_2_k(data: Array) -> Array:
    blocks = len(data)
    scales, low, step, least = data[:, :16], data[:, 16:80], _halves(data[:, 80:82]), _halves(data[:, 82:])
    factors = (step * (scales & 15).astype(np.float32)).reshape(blocks, 16, 1)
    shifts = (least * (scales >> 4).astype(np.float32)).reshape(blocks, 16, 1)
    codes = (low.reshape(blocks, 2, 1, 32) >> _bits([0, 2, 4, 6]).reshape(1, 1, 4, 1)) & 3
    found: Array = factors * codes.reshape(blocks, 16, 16).astype(np.float32) - shifts
    return found.reshape(blocks, 256)


def _six_bits(scales: Array) -> tuple[Array, Array]:
    """Scales and shifts of 8 groups, of 6 bits each, in 12 bytes."""
    first, second, rest = scales[:, :4], scales[:, 4:8], scales[:, 8:]
    factors = np.concatenate([first & 63, (rest & 15) | ((first >> 2) & 48)], axis=1)
    shifts = np.concatenate([second & 63, (rest >> 4) | ((second >> 2) & 48)], axis=1)
    return factors, shifts


def _numbers_4_k(data: Array) -> Array:
    blocks = len(data)
    codes = (data[:, 16:].reshape(blocks, 4, 1, 32) >> _bits([0, 4]).reshape(1, 1, 2, 1)) & 15
    return _affine(data, codes.reshape(blocks, 8, 32))


def _numbers_5_k(data: Array) -> Array:
    blocks = len(data)
    codes = (data[:, 48:].reshape(blocks, 4, 1, 32) >> _bits([0, 4]).reshape(1, 1, 2, 1)) & 15
    fifths = (data[:, 16:48].reshape(blocks, 1, 32) >> np.arange(8, dtype=np.uint8).reshape(1, 8, 1)) & 1
    return _affine(data, codes.reshape(blocks, 8, 32) | (fifths << 4))


def _affine(data: Array, codes: Array) -> Array:
    blocks = len(data)
    factors, shifts = _six_bits(data[:, 4:16])
    scale = (_halves(data[:, :2]) * factors.astype(np.float32)).reshape(blocks, 8, 1)
    least = (_halves(data[:, 2:4]) * shifts.astype(np.float32)).reshape(blocks, 8, 1)
    found: Array = scale * codes.astype(np.float32) - least
    return found.reshape(blocks, 256)


def _numbers_8_k(data: Array) -> Array:
    step = np.ascontiguousarray(data[:, :4]).view(np.float32)
    return step * np.ascontiguousarray(data[:, 4:260]).view(np.int8).astype(np.float32)


def _codes_iq4_nl(data: Array) -> tuple[Array, Array]:
    return _NONLINEAR[_nibbles(data[:, 2:])][:, None], _halves(data[:, :2])


def _codes_iq4_xs(data: Array) -> tuple[Array, Array]:
    blocks = len(data)
    high = np.ascontiguousarray(data[:, 2:4]).view(np.uint16)
    low = (data[:, 4:8].reshape(blocks, 4, 1) >> _bits([0, 4])).reshape(blocks, 8) & 15
    upper = ((high >> np.arange(0, 16, 2, dtype=np.uint16)) & 3).astype(np.uint8)
    scales = (low | (upper << 4)).astype(np.int8) - np.int8(32)
    codes = (data[:, 8:].reshape(blocks, 8, 1, 16) >> _bits([0, 4]).reshape(1, 1, 2, 1)) & 15
    return _NONLINEAR[codes.reshape(blocks, 8, 32)], _halves(data[:, :2]) * scales.astype(np.float32)


def _codes_tq2_0(data: Array) -> tuple[Array, Array]:
    blocks = len(data)
    codes = (data[:, :64].reshape(blocks, 2, 1, 32) >> _bits([0, 2, 4, 6]).reshape(1, 1, 4, 1)) & 3
    return (codes.reshape(blocks, 1, 256).astype(np.int8) - np.int8(1)), _halves(data[:, 64:])


def _codes_mxfp4(data: Array) -> tuple[Array, Array]:
    exponent = data[:, :1].astype(np.int32)
    # Half of 2 ** (e - 127): the codes are doubled. The two least exponents are denormal.
    bits = np.where(exponent < 2, 0x200000 << exponent.clip(0, 1), (exponent - 1) << 23)
    return _MXFP4[_nibbles(data[:, 1:])][:, None], bits.astype(np.uint32).view(np.float32)


def _group(name: str, elements: int, size: int, codes: Any, kind: str = "int8") -> BlockType:
    return BlockType(name, elements, size, _scaled(codes), codes, kind)


BLOCKS: dict[int, BlockType] = {
    2: _group("Q4_0", 32, 18, _codes_4_0, "int4"),
    3: BlockType("Q4_1", 32, 20, _numbers_4_1),
    6: _group("Q5_0", 32, 22, _codes_5_0),
    7: BlockType("Q5_1", 32, 24, _numbers_5_1),
    8: _group("Q8_0", 32, 34, _codes_8_0),
    9: BlockType("Q8_1", 32, 36, None),
    10: BlockType("Q2_K", 256, 84, _numbers_2_k),
    11: _group("Q3_K", 256, 110, _codes_3_k, "int4"),
    12: BlockType("Q4_K", 256, 144, _numbers_4_k),
    13: BlockType("Q5_K", 256, 176, _numbers_5_k),
    14: _group("Q6_K", 256, 210, _codes_6_k),
    15: BlockType("Q8_K", 256, 292, _numbers_8_k),
    16: BlockType("IQ2_XXS", 256, 66, None),
    17: BlockType("IQ2_XS", 256, 74, None),
    18: BlockType("IQ3_XXS", 256, 98, None),
    19: BlockType("IQ1_S", 256, 50, None),
    20: _group("IQ4_NL", 32, 18, _codes_iq4_nl),
    21: BlockType("IQ3_S", 256, 110, None),
    22: BlockType("IQ2_S", 256, 82, None),
    23: _group("IQ4_XS", 256, 136, _codes_iq4_xs),
    29: BlockType("IQ1_M", 256, 56, None),
    34: BlockType("TQ1_0", 256, 54, None),
    35: _group("TQ2_0", 256, 66, _codes_tq2_0, "int2"),
    39: _group("MXFP4", 32, 17, _codes_mxfp4),
}
"""Types of blocks by their number in files."""
