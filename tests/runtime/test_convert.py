"""Taking arrays of every kind: shared where possible, copied where needed, refused with a reason."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.requirements import need_module
from tilewright.runtime.core import convert
from tilewright.runtime.core.dtypes import C_TYPES, dtype_name, dtype_of, storage_dtype
from tilewright.support.errors import UnsupportedError, UserError


class Exporter:
    """A DLPack exporter that is no numpy array, like torch's and jax's."""

    def __init__(self, array: np.ndarray, device: tuple[int, int] = (1, 0)) -> None:
        self.array = array
        self.device = device

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


def test_aligned_memory() -> None:
    for shape in ((), (0,), (3, 0, 2), (7,), (2, 3)):
        array = convert.aligned_empty(shape, np.dtype(np.float32))
        assert array.shape == shape
        assert array.size == 0 or convert.address_of(array) % 64 == 0


@pytest.mark.parametrize("size", [0, 1, 1000, 1 << 19, (1 << 21) - 1, 1 << 21, (1 << 22) + 5])
def test_lasting_memory(size: int) -> None:
    array = convert.lasting_empty(size)
    assert (array.shape, array.dtype) == ((size,), np.uint8)
    assert size == 0 or convert.address_of(array) % (1 << 21 if size >= 1 << 19 else 64) == 0
    array[...] = 7
    assert not size or (array[0], array[-1]) == (7, 7)


def test_arrays_together() -> None:
    kinds = [
        ((3, 5), np.dtype(np.float32)),
        ((0, 4), np.dtype(np.int8)),
        ((), np.dtype(np.int64)),
        ((7,), np.dtype(np.uint8)),
    ]
    arrays = convert.together_empty(kinds)
    assert [(array.shape, array.dtype) for array in arrays] == kinds
    for number, array in enumerate(arrays):
        array[...] = number
    assert [set(array.ravel().tolist()) for array in arrays] == [{0}, set(), {2}, {3}]
    places = [convert.address_of(array) for array in arrays if array.size]
    assert [place - places[0] for place in places] == [0, 64, 128]


@given(hnp.arrays(np.float32, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)), st.booleans())
def test_addresses(array: np.ndarray, writable: bool) -> None:
    array.flags.writeable = writable
    assert convert.address_of(array) == array.ctypes.data


def test_numpy_and_dlpack_share_memory() -> None:
    array = np.arange(6, dtype=np.float32)
    assert convert.to_storage(array, None, "it")[0] is array
    taken, name = convert.to_storage(Exporter(array), None, "it")
    assert name == "float32"
    assert np.shares_memory(taken, array)


@pytest.mark.parametrize(
    "make",
    [
        lambda a: a[::2],
        lambda a: a.reshape(2, 10).T,
        lambda a: a[::-1],
        lambda a: a.astype(">f4"),
        lambda a: np.frombuffer(b"\0" + a.tobytes(), np.uint8)[1:].view(np.float32),
    ],
)
def test_what_code_cannot_read_is_copied(make: Any) -> None:
    strange = make(np.arange(20, dtype=np.float32))
    assert not convert.is_direct(strange)
    plain = convert.direct(strange)
    assert convert.is_direct(plain)
    np.testing.assert_array_equal(plain, strange)


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        ([1, 2], "float32", [1.0, 2.0]),
        (3, "int8", 3),
        ([1, 0], "uint8", [1, 0]),
        (True, "bool", True),
        ([[1.5]], "float16", [[1.5]]),
        ([], "int64", []),
        ([1.0, -2.0], "bfloat16", [0x3F80, 0xC000]),
    ],
)
def test_lists_and_scalars_take_the_expected_type(value: object, dtype: str, expected: object) -> None:
    array, name = convert.to_storage(value, dtype, "it")
    assert name == dtype
    assert array.dtype == storage_dtype(dtype)
    np.testing.assert_array_equal(array, np.asarray(expected))


@pytest.mark.parametrize(
    ("value", "dtype", "message"),
    [
        ([1.5], "int32", "float64 values, which do not convert to int32"),
        ([300], "int8", "outside the range of int8"),
        ([-1], "uint8", "do not convert to uint8"),
        ([[1], [2, 3]], "float32", "not a rectangular array"),
        ("text", "float32", "not numbers"),
        ([None], "float32", "not numbers"),
        (np.array([1 + 2j]), "float32", "complex128 elements, not numbers"),
    ],
)
def test_refused_values(value: object, dtype: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        convert.to_storage(value, dtype, "the input 'x'")


def test_other_devices_are_refused() -> None:
    with pytest.raises(UserError, match=r"the input 'x' lives on the DLPack device \(type 2, index 1\)"):
        convert.to_storage(Exporter(np.zeros(3), (2, 1)), None, "the input 'x'")


@given(hnp.arrays(np.float32, 5, elements=st.floats(width=32)))
def test_bfloat16_rounds_to_nearest(values: np.ndarray) -> None:
    ours = convert._round_to_bfloat16(values)
    theirs = values.astype(ml_dtypes.bfloat16)
    same = ours == theirs.view(np.uint16)
    assert (same | (np.isnan(values) & np.isnan(ours.view(ml_dtypes.bfloat16).astype(np.float32)))).all()


def test_bfloat16_of_other_packages() -> None:
    array = np.array([1.0, 2.0], ml_dtypes.bfloat16)
    bits, name = convert.to_storage(array, None, "it")
    assert name == "bfloat16"
    assert bits.tolist() == [0x3F80, 0x4000]
    assert convert.to_storage(bits, "bfloat16", "it")[1] == "bfloat16"
    assert convert.to_storage(bits, "uint16", "it")[1] == "uint16"


def test_torch_tensors() -> None:
    torch = need_module("torch")
    tensor = torch.arange(6, dtype=torch.float32, requires_grad=True)
    array, name = convert.to_storage(tensor, None, "it")
    assert name == "float32"
    assert convert.address_of(array) == tensor.data_ptr()
    bits, name = convert.to_storage(torch.tensor([1.0], dtype=torch.bfloat16), None, "it")
    assert (name, bits.tolist()) == ("bfloat16", [0x3F80])
    with pytest.raises(UserError, match="sparse"):
        convert.to_storage(torch.eye(2).to_sparse(), None, "it")
    with pytest.raises(UserError, match=r"on 'meta'"):
        convert.to_storage(torch.empty(2, device="meta"), None, "it")


def test_jax_arrays() -> None:
    jax = need_module("jax")
    with jax.default_device(jax.devices("cpu")[0]):
        array, name = convert.to_storage(jax.numpy.arange(3, dtype="float32"), None, "it")
    assert name == "float32"
    assert array.tolist() == [0, 1, 2]


def test_type_names() -> None:
    assert dtype_name(np.dtype(">i4")) == "int32"
    assert dtype_of(np.float64) == "float64"
    assert dtype_of("bfloat16") == "bfloat16"
    assert set(C_TYPES) == {name for name in C_TYPES if storage_dtype(name)}
    with pytest.raises(UnsupportedError, match="no data type 'complex64'"):
        dtype_name(np.dtype(np.complex64))
    with pytest.raises(UnsupportedError, match="no data type 'float3'"):
        storage_dtype("float3")
