"""DLPack by hand: capsules over memory of devices, written and read, for arrays that numpy cannot hold."""

from __future__ import annotations

import ctypes
import itertools
from dataclasses import dataclass
from typing import Any

from tilewright.support.errors import UnsupportedError

_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6}
_NAMES = {code: name for name, code in _CODES.items()}
_CAPSULE = b"dltensor"


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("index", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))

_Destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, _Destructor)
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)
_is_valid_at = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_pointer_at = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


@dataclass(frozen=True, slots=True)
class Described:
    """What a capsule says: an address, and how its elements lie. `owner` keeps the memory alive."""

    address: int
    shape: tuple[int, ...]
    dtype: str
    device: tuple[int, int]
    contiguous: bool
    owner: Any


def read_capsule(capsule: Any) -> Described:
    """What an unused capsule describes. The memory lives as long as the capsule is kept."""
    if not _is_valid(capsule, _CAPSULE):
        raise UnsupportedError("the array's DLPack capsule is of a version that the runtime does not read")
    tensor = ctypes.cast(_pointer(capsule, _CAPSULE), ctypes.POINTER(_Managed)).contents.tensor
    shape = tuple(tensor.shape[: tensor.ndim])
    kind = tensor.dtype
    base = _NAMES.get(kind.code)
    if base is None or kind.lanes != 1:
        raise UnsupportedError(f"the array has a data type that the runtime does not have (DLPack code {kind.code})")
    contiguous = True
    if tensor.strides and 0 not in shape:
        expected = 1
        for extent, stride in zip(reversed(shape), reversed(tensor.strides[: tensor.ndim]), strict=True):
            contiguous = contiguous and (extent == 1 or stride == expected)
            expected *= extent
    name = "bool" if base == "bool" else f"{base}{kind.bits}"
    address = (tensor.data or 0) + tensor.byte_offset
    return Described(address, shape, name, (tensor.device.kind, tensor.device.index), contiguous, capsule)


_living: dict[int, tuple[Any, ...]] = {}
"""What capsules that were given away refer to, until their consumers are done."""
_numbers = itertools.count(1)


def _delete(managed: Any) -> None:
    _living.pop(managed.contents.context, None)


def _destroy(capsule: int) -> None:
    # A consumer renames the capsule and calls the deleter itself; one that nobody took is given back here.
    if _is_valid_at(capsule, _CAPSULE):
        managed = ctypes.cast(_pointer_at(capsule, _CAPSULE), ctypes.POINTER(_Managed))
        managed.contents.deleter(managed)


# C calls these: they live as long as the module.
_deleter = _Deleter(_delete)
_destructor = _Destructor(_destroy)


def make_capsule(address: int, shape: tuple[int, ...], dtype: str, device: tuple[int, int], owner: object) -> Any:
    """A capsule over contiguous memory; `owner` lives until its consumer is done with it."""
    base = dtype.rstrip("0123456789")
    bits = 8 if dtype == "bool" else int(dtype[len(base) :])
    extents = (ctypes.c_int64 * max(len(shape), 1))(*shape)
    strides = (ctypes.c_int64 * max(len(shape), 1))()
    step = 1
    for axis in reversed(range(len(shape))):
        strides[axis] = step
        step *= shape[axis]
    number = next(_numbers)
    tensor = _Tensor(address, _Device(*device), len(shape), _DataType(_CODES[base], bits, 1), extents, strides, 0)
    managed = _Managed(tensor, number, _deleter)
    _living[number] = (managed, extents, strides, owner)
    return _new(ctypes.addressof(managed), _CAPSULE, _destructor)
