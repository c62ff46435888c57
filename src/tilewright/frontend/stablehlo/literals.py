"""Tensors that are spelled out in the text of a program: `dense<[[1, 2], [3, 4]]> : tensor<2x2xi32>`."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from tilewright.frontend.stablehlo.program import TensorSpec
from tilewright.ir.dtype import DataType
from tilewright.ir.small_floats import codes_of
from tilewright.support.errors import UserError

Array = np.ndarray[Any, Any]

_TOKEN = re.compile(r"[\[\](),]|[^\s\[\](),]+")
_HEX = re.compile(r"-?0[xX][0-9a-fA-F]+")


def storage_type(spec: TensorSpec) -> np.dtype[Any]:
    """What elements of a tensor (parts of complex ones) are stored in."""
    return spec.dtype.numpy()


def from_bytes(raw: bytes, spec: TensorSpec) -> Array:
    """Elements from their bytes in memory: all of them, or one that all are equal to."""
    shape = fixed_shape(spec)
    count = math.prod(shape)
    parts = 2 if spec.is_complex else 1
    dtype = spec.dtype
    if dtype.is_bool:
        return _from_bits(raw, shape)
    if dtype.is_sub_byte:
        data = np.frombuffer(raw, np.uint8)
        data = _signed(data, dtype).astype(storage_type(spec))
    else:
        width = storage_type(spec).itemsize
        if len(raw) % width:
            raise UserError(f"a constant of type {spec} has {len(raw)} bytes")
        data = np.frombuffer(raw, storage_type(spec).newbyteorder("<")).astype(storage_type(spec), copy=False)
    return _filled(data, shape, count, parts, spec)


def _filled(data: Array, shape: tuple[int, ...], count: int, parts: int, spec: TensorSpec) -> Array:
    """Elements in a shape, where one stands for all; complex numbers are pairs along a last axis."""
    wanted = (*shape, 2) if parts == 2 else shape
    if data.size == parts and count != 1:
        return np.broadcast_to(data.reshape((*(1,) * len(shape), 2) if parts == 2 else (1,) * len(shape)), wanted)
    if data.size != count * parts:
        raise UserError(f"a constant of type {spec} has {data.size // parts} elements")
    return data.reshape(wanted)


def _from_bits(raw: bytes, shape: tuple[int, ...]) -> Array:
    """Truth values: a byte each, a bit each, or one for all."""
    count = math.prod(shape)
    data = np.frombuffer(raw, np.uint8)
    if data.size == 1:
        if data[0] in (0, 255) or count == 1:
            return np.broadcast_to(np.array(bool(data[0])), shape)
        return np.unpackbits(data, bitorder="little")[:count].astype(bool).reshape(shape)
    if data.size == count:
        return data.astype(bool).reshape(shape)
    if data.size != -(-count // 8):
        raise UserError(f"a constant of {count} truth values has {data.size} bytes")
    return np.unpackbits(data, bitorder="little")[:count].astype(bool).reshape(shape)


def _signed(data: Array, dtype: DataType) -> Array:
    """Integers of few bits, a byte each, with their sign."""
    low = data & ((1 << dtype.bits) - 1)
    if not dtype.is_int:
        return low
    half = 1 << (dtype.bits - 1)
    return (low.astype(np.int16) ^ half) - half


def fixed_shape(spec: TensorSpec) -> tuple[int, ...]:
    """The shape of a constant."""
    if None in spec.shape:
        raise UserError(f"a constant of type {spec} must have a fixed shape")
    return tuple(size for size in spec.shape if size is not None)


def from_text(text: str, spec: TensorSpec) -> Array:
    """The elements that are written between `dense<` and `>`."""
    stripped = text.strip()
    shape = fixed_shape(spec)
    parts = 2 if spec.is_complex else 1
    if stripped.startswith('"'):
        digits = stripped.strip('"').removeprefix("0x").removeprefix("0X")
        try:
            return from_bytes(bytes.fromhex(digits), spec)
        except ValueError:
            raise UserError(f"the constant of type {spec} is no hexadecimal number") from None
    words = [word for word in _TOKEN.findall(stripped) if word not in "[](),"]
    dtype = spec.dtype
    if dtype.is_bool:
        wrong = [word for word in words if word not in ("true", "false", "0", "1", "-1")]
        if wrong:
            raise UserError(f"{wrong[0]!r} is no truth value")
        data: Array = np.array([word in ("true", "1", "-1") for word in words], bool)
    elif dtype.is_integer:
        data = np.array([_integer(word) for word in words], object)
        data = np.array([int(item) & ((1 << 64) - 1) for item in data], np.uint64).astype(storage_type(spec))
    else:
        data = _floats(words, dtype)
    return _filled(data, shape, math.prod(shape), parts, spec)


def _integer(word: str) -> int:
    try:
        return int(word, 0)
    except ValueError:
        raise UserError(f"{word!r} is no whole number") from None


def _floats(words: list[str], dtype: DataType) -> Array:
    """Decimal numbers, and bit patterns in hexadecimal."""
    bits = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}.get(dtype.bits, np.uint8)
    native = dtype.name in ("float16", "float32", "float64")
    if not any(_HEX.fullmatch(word) for word in words):
        try:
            numbers = np.array([float(word) for word in words], np.float64)
        except ValueError as error:
            raise UserError(f"no number in a constant: {error}") from None
        return numbers.astype(dtype.numpy()) if native else rounded(numbers, dtype)
    codes = [int(word, 16) if _HEX.fullmatch(word) else int(_floats([word], dtype).view(bits)[0]) for word in words]
    return np.array(codes, bits).view(dtype.numpy() if native else bits)


def rounded(numbers: Array, dtype: DataType) -> Array:
    """The codes of numbers in a type that numpy lacks."""
    if dtype.name == "bfloat16":
        raw = numbers.astype(np.float32).view(np.uint32)
        return ((raw + (0x7FFF + ((raw >> 16) & 1))) >> 16).astype(np.uint16)
    return codes_of(numbers, dtype.name)
