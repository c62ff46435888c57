"""The runtime for C through ctypes: arrays of numpy in and out."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np

from tilewright.runtime.core.dtypes import DTYPE_CODES


class Tensor(ctypes.Structure):
    """`tilewright_tensor`."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_int64),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("rank", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
    )


class Error(ctypes.Structure):
    """`tilewright_error`."""

    _fields_ = (("status", ctypes.c_int32), ("message", ctypes.c_char * 1020))


class RuntimeForC:
    """`libtilewright.so`; what goes wrong is a ValueError."""

    def __init__(self, library: Path) -> None:
        self.path = library
        self._library = ctypes.CDLL(str(library))

    def _call(self, name: str, *arguments: object) -> None:
        error = Error()
        if getattr(self._library, name)(*arguments, ctypes.byref(error)):
            raise ValueError(error.message.decode())

    def run(self, library: Path, inputs: list[np.ndarray], outputs: list[np.ndarray]) -> None:
        """Open a model, run it once into `outputs`, and close it."""
        model = ctypes.c_int64()
        self._call("tilewright_open", str(library).encode(), ctypes.byref(model))
        try:
            self._call("tilewright_run", model, tensors(inputs), len(inputs), tensors(outputs), len(outputs))
        finally:
            self._call("tilewright_close", model)


def tensors(arrays: list[np.ndarray]) -> ctypes.Array[Tensor]:
    """Descriptions of arrays, which must stay."""
    shapes = [(ctypes.c_int64 * array.ndim)(*array.shape) for array in arrays]
    described = [
        Tensor(array.ctypes.data, array.nbytes, shape, array.ndim, DTYPE_CODES[array.dtype.name])
        for array, shape in zip(arrays, shapes, strict=True)
    ]
    return (Tensor * len(described))(*described)
