"""DLPack capsules made and read by hand, against numpy's."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from tilewright.runtime.core import dlpack
from tilewright.runtime.core.convert import address_of
from tilewright.support.errors import UnsupportedError


class Exporter:
    """An array that exports its memory through our capsules."""

    def __init__(self, array: np.ndarray, dtype: str) -> None:
        self.array, self.dtype = array, dtype

    def __dlpack__(self, **options: Any) -> Any:
        return dlpack.make_capsule(address_of(self.array), self.array.shape, self.dtype, (1, 0), self.array)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "uint16", "int64", "bool"])
@pytest.mark.parametrize("shape", [(2, 3), (5,), (), (2, 0, 3)])
def test_capsules_go_to_numpy_and_come_from_it(dtype: str, shape: tuple[int, ...]) -> None:
    array = (np.arange(np.prod(shape, dtype=int)) % 2).astype(dtype).reshape(shape)
    there = np.from_dlpack(Exporter(array, dtype))
    assert there.dtype == array.dtype and there.shape == shape
    np.testing.assert_array_equal(there, array)
    back = dlpack.read_capsule(array.__dlpack__())
    assert (back.shape, back.dtype, back.device, back.contiguous) == (shape, dtype, (1, 0), True)
    assert not array.size or back.address == address_of(array)


def test_strides_are_seen() -> None:
    array = np.zeros((4, 6), np.float32)
    assert not dlpack.read_capsule(array.T.__dlpack__()).contiguous
    assert not dlpack.read_capsule(array[:, ::2].__dlpack__()).contiguous
    part = dlpack.read_capsule(array[2:].__dlpack__())
    assert part.contiguous and part.address == address_of(array) + 2 * 6 * 4


def test_memory_lives_as_long_as_its_consumers() -> None:
    before = len(dlpack._living)
    taken = np.from_dlpack(Exporter(np.ones(3, np.float32), "float32"))
    untaken = Exporter(np.ones(3, np.float32), "float32").__dlpack__()
    gc.collect()
    assert len(dlpack._living) == before + 2 and taken.sum() == 3
    del taken, untaken
    gc.collect()
    assert len(dlpack._living) == before


def test_a_used_capsule_and_odd_types_are_refused() -> None:
    array = np.ones(3, np.complex64)
    with pytest.raises(UnsupportedError, match="data type"):
        dlpack.read_capsule(array.__dlpack__())
    exporter = Exporter(np.ones(2, np.float32), "float32")
    capsule = exporter.__dlpack__()

    class Once(Exporter):
        def __dlpack__(self, **options: Any) -> Any:
            return capsule

    np.from_dlpack(Once(exporter.array, "float32"))
    with pytest.raises(UnsupportedError, match="version"):
        dlpack.read_capsule(capsule)
