"""Arrays that a user gives for the results of a call (`out=`): checked, and written in place where that is possible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.runtime.core.artifact import TensorInfo
from tilewright.runtime.core.convert import Array, aligned_empty, is_direct, is_torch, to_storage
from tilewright.runtime.core.shapes import show_shape
from tilewright.support.errors import UserError
from tilewright.support.text import kind_of, plural


def as_list(out: object, infos: Sequence[TensorInfo]) -> list[object]:
    """What a user gives as `out`: one array for a model with one output, else a list with one for each."""
    given = list(out) if isinstance(out, (list, tuple)) else [out]
    if len(given) != len(infos):
        names = ", ".join(info.name for info in infos)
        raise UserError(
            f"'out' has {plural(len(given), 'array')}, the model has {plural(len(infos), 'output')} ({names})",
            hint="give a list with an array for each output" if len(infos) > 1 else "give one array",
        )
    return given


def user_arrays(given: Sequence[object], infos: Sequence[TensorInfo]) -> list[Array]:
    """The memory of the arrays that a user gives, as numpy arrays that share it."""
    return [_user_array(value, info) for value, info in zip(given, infos, strict=True)]


def _where(info: TensorInfo) -> str:
    return f"the array in 'out' for the output '{info.name}'"


def _user_array(value: object, info: TensorInfo) -> Array:
    where = _where(info)
    if info.value:
        raise UserError(f"the output '{info.name}' is {info.value}: no array can take it")
    if not isinstance(value, np.ndarray) and not hasattr(value, "__dlpack__"):
        raise UserError(f"{where} must be an array, not {kind_of(value)}")
    if is_torch(value) and getattr(value, "requires_grad", False):
        raise UserError(f"{where} is a torch tensor that records gradients", hint="pass tensor.detach()")
    array, name = to_storage(value, info.dtype, where, is_written=True)
    if name != info.dtype:
        raise UserError(f"{where} has the data type {name}, the model gives {info.dtype}")
    if not array.flags.writeable:
        raise UserError(f"{where} is read-only")
    return array


def written(
    arrays: Sequence[Array],
    types: Sequence[tuple[tuple[int, ...], np.dtype[Any]]],
    inputs: Sequence[Array],
    infos: Sequence[TensorInfo],
) -> list[Array]:
    """What compiled code is to write: the user's arrays, or others in the place of those that it cannot write.

    It writes contiguous, aligned memory, and takes for granted that no other array lies there: what is strided, or
    overlaps an input or another output, is written elsewhere and copied (`copy_into`).
    """
    chosen: list[Array] = []
    for array, (shape, dtype), info in zip(arrays, types, infos, strict=True):
        check_shape(array, shape, info)
        others = [*inputs, *(other for other in arrays if other is not array)]
        alone = is_direct(array) and not any(np.may_share_memory(array, other) for other in others)
        chosen.append(array if alone else aligned_empty(shape, dtype))
    return chosen


def check_shape(array: Array, shape: tuple[int, ...], info: TensorInfo) -> None:
    """The user's array must have the shape of what is computed."""
    if array.shape != shape:
        raise UserError(f"{_where(info)} has the shape {show_shape(array.shape)}, this call gives {show_shape(shape)}")


def copy_into(arrays: Sequence[Array], results: Sequence[Any], infos: Sequence[TensorInfo]) -> None:
    """Give the user's arrays results that were computed elsewhere."""
    for array, result, info in zip(arrays, results, infos, strict=True):
        if not isinstance(result, np.ndarray) or result.dtype == object:
            raise UserError(f"the output '{info.name}' is no tensor of numbers: no array can take it")
        check_shape(array, result.shape, info)
        if array is not result:
            array[...] = result
