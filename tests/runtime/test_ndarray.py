"""Arrays and devices."""

from __future__ import annotations

import numpy as np
import pytest

from tests.runtime.test_convert import Exporter
from tilewright.runtime import Device, array, cpu, empty, from_dlpack
from tilewright.runtime.core.convert import address_of
from tilewright.support.errors import UnsupportedError, UserError


def test_array_copies_and_is_aligned() -> None:
    source = np.arange(6, dtype=np.float32).reshape(2, 3)
    made = array(source)
    source[:] = 0
    assert made.numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (made.shape, made.dtype, made.device, made.nbytes, len(made)) == ((2, 3), "float32", cpu(0), 24, 2)
    assert address_of(made.numpy()) % 64 == 0
    assert "float32[2, 3] on cpu(0)" in repr(made)


def test_numpy_shares_and_converts() -> None:
    made = array([1, 2], "int32")
    made.numpy()[0] = 7
    assert np.asarray(made).tolist() == [7, 2]
    assert np.asarray(made, np.float64).dtype == np.float64
    assert np.array(made, copy=True) is not made.numpy()
    with pytest.raises(ValueError, match="without a copy"):
        made.__array__(np.dtype(np.float32), copy=False)


def test_dlpack_both_ways() -> None:
    made = array([1.0, 2.0], "float32")
    assert np.shares_memory(np.from_dlpack(made), made.numpy())
    assert made.__dlpack_device__() == (1, 0)
    source = np.arange(4, dtype=np.int64)
    assert np.shares_memory(from_dlpack(Exporter(source)).numpy(), source)
    with pytest.raises(UserError, match="a list does not export DLPack"):
        from_dlpack([1])


def test_bfloat16_keeps_its_name() -> None:
    made = array([1.0], "bfloat16")
    assert made.dtype == "bfloat16"
    assert made.numpy().tolist() == [0x3F80]
    with pytest.raises(UnsupportedError, match="DLPack export of bfloat16"):
        np.from_dlpack(made)


def test_empty_and_copy_from() -> None:
    made = empty((2, 2), np.int8)
    assert made.dtype == "int8"
    assert made.copy_from([[1, 2], [3, 4]]).numpy().tolist() == [[1, 2], [3, 4]]
    assert empty(3).shape == (3,)
    assert empty((0, 2)).nbytes == 0
    with pytest.raises(UserError, match=r"cannot copy float64\[2\] into an array of int8\[2, 2\]"):
        made.copy_from(np.zeros(2))
    with pytest.raises(UserError, match="an extent is negative"):
        empty((2, -1))
    with pytest.raises(UserError, match="the value has the data type int64, not float32"):
        array(np.arange(2), "float32")


def test_devices() -> None:
    assert str(cpu()) == "cpu(0)"
    with pytest.raises(UnsupportedError, match="devices of the kind 'cuda'"):
        Device("cuda")
    with pytest.raises(UnsupportedError, match=r"cpu\(3\) does not exist"):
        cpu(3)
