"""Data objects: what the linker and the JIT make of them."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.backends.llvm import elf, jit, object_format, objects, toolchain
from tilewright.runtime.core.library import bind
from tilewright.support.errors import CompilerBug, UnsupportedError

READER = """
@blob = external hidden global i8
define ptr @where() { ret ptr @blob }
"""


@given(size=st.integers(1, 300))
def test_blob_arrives_aligned_and_whole(tmp_path_factory: pytest.TempPathFactory, size: int) -> None:
    path = tmp_path_factory.mktemp("elf") / "blob.o"
    data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    objects.write_data_object(path, "blob", data, triple=toolchain.host_triple())
    image = path.read_bytes()
    assert objects.defined_symbols(image) == {"blob"}
    assert objects.undefined_symbols(image) == set()
    library = jit.JitLibrary([toolchain.compile_ir(READER, triple=toolchain.host_triple()), image])
    address = bind(library, "where", ctypes.c_void_p)()
    assert address % object_format.DATA_ALIGNMENT == 0
    assert ctypes.string_at(address, size) == data.tobytes()


def test_memory_mapped_and_strided_blobs(tmp_path: Path) -> None:
    source = tmp_path / "weights.bin"
    np.arange(200, dtype=np.uint8).tofile(source)
    mapped = np.memmap(source, np.uint8, "r")
    objects.write_data_object(tmp_path / "a.o", "blob", mapped, triple="aarch64-linux-gnu")
    objects.write_data_object(tmp_path / "b.o", "blob", np.arange(200, dtype=np.uint8)[::2], triple="aarch64-linux-gnu")
    assert mapped.tobytes() in (tmp_path / "a.o").read_bytes()
    assert mapped[::2].tobytes() in (tmp_path / "b.o").read_bytes()


def test_machine_numbers() -> None:
    assert elf.machine_code("x86_64-linux-gnu") == 62
    assert elf.machine_code("arm64-linux-gnu") == 183
    assert elf.machine_code("riscv64-linux-gnu") == 243


def test_other_architectures_and_wrong_data(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="architecture 'wasm32'"):
        objects.write_data_object(tmp_path / "x.o", "blob", np.zeros(4, np.uint8), triple="wasm32-unknown-unknown")
    with pytest.raises(CompilerBug, match="flat, non-empty array of bytes"):
        objects.write_data_object(tmp_path / "x.o", "blob", np.zeros((2, 2), np.uint8), triple="x86_64-linux-gnu")
    with pytest.raises(CompilerBug, match="non-empty"):
        objects.write_data_object(tmp_path / "x.o", "blob", np.zeros(0, np.uint8), triple="x86_64-linux-gnu")
    with pytest.raises(CompilerBug, match="ELF64"):
        objects.undefined_symbols(b"??" + bytes(100))
