"""Any array a user passes, as a numpy array over the same memory where that is possible.

Taken without a copy: numpy arrays, `NDArray`s, torch CPU tensors, jax arrays and every other DLPack exporter whose
memory is C-contiguous and aligned to its elements. Everything else (strided views, unaligned or byte-swapped
memory, lists, scalars) is copied once.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import mmap
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from tilewright.runtime.core.dtypes import SMALL_FLOATS, SMALL_INTEGERS, bits_of, dtype_name, storage_dtype
from tilewright.runtime.core.packing import unpack
from tilewright.support.errors import UserError

Array = npt.NDArray[Any]

ALIGNMENT = 64
_LARGE_PAGE = 1 << 21
_FILLS_A_PAGE = _LARGE_PAGE // 4
_TORCH_BYTES = re.compile(r"float4_e2m1fn_x2|u?int[1-7]")
"""Types of torch that are bytes to it."""
_TORCH_PAIRS = "float4_e2m1fn_x2"
"""What torch calls bytes of two 4-bit floats."""
# DLPack device types whose memory the CPU reads: plain and pinned host memory.
HOST_DEVICES = (1, 3, 11)


@runtime_checkable
class HasStorage(Protocol):
    """An array of our own: its storage and the name of its data type."""

    @property
    def storage(self) -> Array:
        """The elements, as numpy stores them."""

    @property
    def dtype(self) -> str:
        """The name of the data type."""


addressof: Any = ctypes.addressof
from_buffer: Any = ctypes.c_char.from_buffer
"""`addressof(from_buffer(array))` is the address of an array that is writable, contiguous and not empty, and an error
of Python's for any other; four times quicker than numpy's own ways."""


def address_of(array: Array) -> int:
    """The address of an array's first element."""
    try:
        plain: int = addressof(from_buffer(array))
        return plain
    except (TypeError, ValueError, BufferError):
        address: int = array.__array_interface__["data"][0]
        return address


_BYTE = np.dtype(np.uint8)


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An uninitialised array whose first byte is 64-byte aligned."""
    return placed_empty(shape, dtype, math.prod(shape) * dtype.itemsize)[0]


def placed_empty(shape: tuple[int, ...], dtype: np.dtype[Any], size: int) -> tuple[Array, int]:
    """The same, of so many bytes, and its address."""
    raw = np.empty(size + ALIGNMENT, _BYTE)
    address = address_of(raw)
    offset = -address % ALIGNMENT
    return np.ndarray(shape, dtype, raw, offset), address + offset


def lasting_empty(size: int) -> Array:
    """Uninitialised bytes that are used over and over: in large pages, where they fill some and the system has them.

    A core finds its way to a few hundred kilobytes of small pages at a time without looking it up; MobileNet-v2 takes
    0.96 of the time.
    """
    if size < _FILLS_A_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return aligned_empty((size,), _BYTE)
    try:
        # Memory of its own: what an allocator gives again has its small pages already.
        mapped = mmap.mmap(-1, (-(-size // _LARGE_PAGE) + 1) * _LARGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as problem:
        raise MemoryError(f"{size} bytes") from problem
    with suppress(OSError):  # Some systems are built without them.
        mapped.madvise(mmap.MADV_HUGEPAGE)
    raw = np.frombuffer(mapped, _BYTE)
    return np.ndarray((size,), _BYTE, raw, -address_of(raw) % _LARGE_PAGE)


def together_empty(kinds: Sequence[tuple[tuple[int, ...], np.dtype[Any]]]) -> list[Array]:
    """Uninitialised arrays one after the other in large pages, as the values of a model lie in its workspace.

    Small pages lie anywhere: two copies of the same arrays then differ in which parts of them drive each other out of
    a cache, and the same kernel takes up to a tenth longer with one than with the other.
    """
    sizes = [-(-math.prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT for shape, dtype in kinds]
    memory = lasting_empty(max(sum(sizes), _FILLS_A_PAGE))
    starts = itertools.accumulate(sizes, initial=0)
    return [np.ndarray(shape, dtype, memory, start) for (shape, dtype), start in zip(kinds, starts, strict=False)]


def is_torch(value: object) -> bool:
    """Whether `value` is a torch tensor; torch is not imported for the question."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def view_of_torch(value: object) -> object:
    """A torch tensor as an array of numpy's in the same memory, where there is one; anything else as it is."""
    if not is_torch(value):
        return value
    tensor: Any = value
    try:
        return tensor.detach().numpy()
    except (TypeError, RuntimeError):
        return value  # on another device, sparse, conjugate or of a type that numpy lacks


def is_jax(value: object) -> bool:
    """Whether `value` is an array of jax's; jax is not imported for the question."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.Array)


def to_jax(array: Any) -> Any:
    """A result as an array of jax's."""
    return sys.modules["jax"].numpy.asarray(array)


def _from_torch(tensor: Any, dtype: str | None, where: str, is_written: bool) -> tuple[Array, str]:
    torch = sys.modules["torch"]
    if tensor.device.type != "cpu":
        raise UserError(f"{where} is a torch tensor on '{tensor.device}'", hint="move it to the CPU: tensor.cpu()")
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.layout is not torch.strided:
        raise UserError(f"{where} is a sparse torch tensor", hint="make it dense: tensor.to_dense()")
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(np.uint16), "bfloat16"
    name = str(tensor.dtype).removeprefix("torch.")
    if dtype == "uint8" and _TORCH_BYTES.fullmatch(name):
        return tensor.view(torch.uint8).numpy(), dtype
    if name == _TORCH_PAIRS and is_written:
        raise UserError(
            f"{where} is a torch tensor of pairs of 4-bit floats: results take a byte each",
            hint="pass an array of ml_dtypes.float4_e2m1fn or uint8",
        )
    if name == _TORCH_PAIRS:
        codes = tensor.view(torch.uint8).numpy()
        return unpack(codes, (*codes.shape[:-1], 2 * codes.shape[-1]), "float4_e2m1fn"), "float4_e2m1fn"
    if _is_small(name):
        return tensor.view(torch.uint8).numpy().view(storage_dtype(name)), name
    return _storage_of(tensor.numpy(), where)


def _from_dlpack(value: Any, where: str) -> tuple[Array, str]:
    kind, index = value.__dlpack_device__()
    if kind not in HOST_DEVICES:
        raise UserError(
            f"{where} lives on the DLPack device (type {int(kind)}, index {index}), not on the CPU",
            hint="copy it to the CPU first",
        )
    try:
        array: Array = np.from_dlpack(value)
    except (BufferError, TypeError, RuntimeError):
        # numpy's DLPack has no bfloat16; exporters that have it (jax) also convert to numpy themselves.
        array = np.asarray(value)
    return _storage_of(array, where)


def _is_small(name: str) -> bool:
    return name in SMALL_FLOATS or name in SMALL_INTEGERS


def to_user(array: Any, name: str) -> Any:
    """A result as users take it: types that numpy lacks as those of the package ml_dtypes (without it, as stored)."""
    if name != "bfloat16" and not _is_small(name):
        return array
    try:
        import ml_dtypes
    except ImportError:
        return array
    wanted = np.dtype(getattr(ml_dtypes, name))
    return array.astype(wanted) if name in SMALL_INTEGERS else array.view(wanted)


def _storage_of(array: Array, where: str) -> tuple[Array, str]:
    """An array of numbers and its type's name; arrays of the package ml_dtypes become their bits."""
    stored = _name_and_bits(array.dtype)
    if stored is None:
        raise UserError(f"{where} holds {array.dtype} elements, not numbers", hint="pass an array of a numeric dtype")
    name, bits = stored
    return array if bits is None else array.view(bits), name


@lru_cache(maxsize=64)
def _name_and_bits(dtype: np.dtype[Any]) -> tuple[str, np.dtype[Any] | None] | None:
    """A type's name, and what it is stored in where that is another type; None for what is no number.

    It is kept for each type: numpy makes the name anew whenever it is asked, which takes longer than a small kernel.
    """
    name = dtype.name
    if _is_small(name):
        return name, storage_dtype(name)
    if dtype.kind in "SUVMmcO" and name != "bfloat16":
        return None
    name = dtype_name(dtype)
    return name, np.dtype(np.uint16) if name == "bfloat16" else None


def _from_python(value: object, dtype: str | None, where: str) -> tuple[Array, str]:
    """Lists and scalars have no type of their own: they take the expected one where that loses nothing in kind."""
    try:
        natural = np.asarray(value)
    except ValueError as error:
        raise UserError(f"{where} is not a rectangular array: {error}") from None
    array, name = _storage_of(natural, where)
    if dtype is None or dtype == name or isinstance(value, np.generic):
        return array, name
    if dtype == "bfloat16":
        return _round_to_bfloat16(array.astype(np.float32)), dtype
    if dtype in SMALL_FLOATS:
        return _rounded(array, dtype, where), dtype
    target = storage_dtype(dtype)
    if array.size and not np.can_cast(array.dtype, target, "same_kind"):
        fits = array.dtype.kind == "i" and target.kind == "u" and int(array.min()) >= 0
        if not fits:
            raise UserError(f"{where} holds {name} values, which do not convert to {dtype}")
    if array.size and target.kind in "iu":
        _check_range(array, dtype, where)
    return array.astype(target), dtype


def _check_range(array: Array, dtype: str, where: str) -> None:
    bits, signed = bits_of(dtype), dtype[0] != "u"
    least, most = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    if array.size and (int(array.min()) < least or int(array.max()) > most):
        raise UserError(f"{where} holds values outside the range of {dtype} ({least} to {most})")


def _rounded(array: Array, dtype: str, where: str) -> Array:
    try:
        import ml_dtypes
    except ImportError:
        raise UserError(
            f"{where} holds numbers, and {dtype} is wanted",
            hint="install ml_dtypes, or pass the codes as an array of uint8",
        ) from None
    with np.errstate(over="ignore", invalid="ignore"):
        return array.astype(np.float32).astype(getattr(ml_dtypes, dtype)).view(np.uint8)


def _round_to_bfloat16(array: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """The bits of the nearest bfloat16, ties to even; NaN stays NaN."""
    bits = array.view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return np.where(np.isnan(array), np.uint32(0x7FC0), rounded).astype(np.uint16)


def to_storage(value: object, dtype: str | None, where: str, *, is_written: bool = False) -> tuple[Array, str]:
    """`value` as a numpy array of storage, and its data type's name. `where` names it in errors.

    `dtype` is the type that lists and Python scalars take; arrays keep their own. Arrays of what a type is stored in
    pass for it: uint16 for bfloat16, uint8 for the codes of small floats, int8 and uint8 for integers of fewer bits
    (whose values are looked at, unless the array is to be written).
    """
    if isinstance(value, np.ndarray):
        array, name = _storage_of(value, where)
    elif is_torch(value):
        array, name = _from_torch(value, dtype, where, is_written)
    elif isinstance(value, HasStorage) and isinstance(value.dtype, str):
        array, name = value.storage, value.dtype
    elif hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
        array, name = _from_dlpack(value, where)
    else:
        array, name = _from_python(value, dtype, where)
    if (dtype == "bfloat16" and name == "uint16") or (name == "uint8" and dtype in SMALL_FLOATS):
        return array, dtype
    if dtype in SMALL_INTEGERS and array.dtype == storage_dtype(dtype) and name != dtype and not _is_small(name):
        if not is_written:
            _check_range(array, dtype, where)
        return array, dtype
    return array, name


def is_direct(array: Array) -> bool:
    """Whether compiled code can read the array's memory as it is."""
    flags = array.flags
    return flags.c_contiguous and flags.aligned and array.dtype.isnative


def direct(array: Array) -> Array:
    """`array` itself where compiled code can read it, else an aligned copy in native byte order."""
    if is_direct(array):
        return array
    copy = aligned_empty(array.shape, array.dtype.newbyteorder("="))
    copy[...] = array
    return copy
