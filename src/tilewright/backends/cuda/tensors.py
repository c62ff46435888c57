"""Tensors of torch's on a GPU, read and made where they are: every call does this, so all is looked up once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from tilewright.runtime.device.program import TensorMaker, TensorReader

VECTOR_BYTES: Final = 16
"""The longest vectors that kernels read: what they are given begins at a multiple of it."""


def reader(torch: Any, dtypes: Sequence[str], ordinal: int, stream: int) -> TensorReader:
    """What gives the addresses of tensors of these types, where torch's stream is one that ours is ordered with.

    While torch captures a graph, the graph's own memory is to be used: nothing is read then.
    """
    tensor, count = torch.Tensor, len(dtypes)
    kinds = [getattr(torch, name, None) for name in dtypes]
    torch_stream = _stream_of(torch)
    is_captured = getattr(torch._C, "_cuda_isCurrentStreamCapturing", None) or torch.cuda.is_current_stream_capturing

    def read(values: Sequence[Any]) -> tuple[int, ...] | None:
        if len(values) != count:
            return None
        places = []
        for value, kind in zip(values, kinds, strict=True):
            if not isinstance(value, tensor) or value.dtype is not kind or not value.is_cuda:
                return None
            place = value.data_ptr()
            if place % VECTOR_BYTES or value.get_device() != ordinal or not value.is_contiguous():
                return None
            places.append(place)
        # The default stream is never captured.
        current = torch_stream(ordinal)
        if (current and (current != stream or is_captured())) or not count:
            return None
        return tuple(places)

    return read


def maker(torch: Any, types: Sequence[tuple[tuple[int, ...], str]], ordinal: int) -> TensorMaker | None:
    """What makes empty tensors of these shapes and types, and gives their addresses; None where torch lacks a type."""
    device, empty = torch.device("cuda", ordinal), torch.empty_strided
    plans = [(shape, _strides(shape), getattr(torch, name, None)) for shape, name in types]
    if any(kind is None for *_, kind in plans):
        return None

    def make() -> tuple[list[Any], tuple[int, ...]]:
        made = [empty(shape, strides, dtype=kind, device=device) for shape, strides, kind in plans]
        return made, tuple([tensor.data_ptr() for tensor in made])

    return make


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Those of rows one after the other, which torch reads more quickly than it finds them."""
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(1, extent)
    return tuple(reversed(strides))


def torch_stream(ordinal: int) -> int:
    """The stream of torch's work on a GPU in this thread."""
    return int(_stream_of(sys.modules["torch"])(ordinal))


def _stream_of(torch: Any) -> Callable[[int], int]:
    quick: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return quick or (lambda ordinal: int(torch.cuda.current_stream(ordinal).cuda_stream))
