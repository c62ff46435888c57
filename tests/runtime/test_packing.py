"""Elements of fewer than 8 bits packed into bytes: as onnx packs them, at odd sizes too, in Python and in C."""

from __future__ import annotations

import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest

from tilewright.runtime import Artifact, ModelInfo, TensorInfo, pack, unpack
from tilewright.runtime.core.header import header_text, write_header
from tilewright.runtime.core.packing import packed_size

NAMES = ("int4", "uint4", "int2", "uint2", "int1", "uint1", "float4_e2m1fn")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (3, 5), (2, 8)])
def test_there_and_back(name: str, shape: tuple[int, ...]) -> None:
    kind = np.dtype(getattr(ml_dtypes, name))
    codes = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    packed = pack(codes, name)
    assert packed.nbytes == packed_size(shape, name)
    bits = ml_dtypes.finfo(kind).bits if name.startswith("float") else ml_dtypes.iinfo(kind).bits
    elements = codes & np.uint8((1 << bits) - 1)
    stored = unpack(packed, shape, name)
    np.testing.assert_array_equal(stored.view(np.uint8) & ((1 << bits) - 1), elements)
    if not name.startswith("float"):
        np.testing.assert_array_equal(stored, elements.view(kind).astype(np.int8))
    if bits > 1:
        np.testing.assert_array_equal(packed.tobytes(), onnx.numpy_helper.from_array(elements.view(kind)).raw_data)


def test_packing_in_c(tmp_path: Path, c_compiler: str) -> None:
    model = ModelInfo("net", (TensorInfo("x", (7,), "int4"),), (TensorInfo("y", (7,), "float32"),), 0)
    artifact = Artifact("x86_64-linux-gnu", "", "", model=model)
    (tmp_path / "net.so").write_bytes(b"library")
    write_header(artifact, tmp_path / "net.so", "net")
    values = np.array([-8, 7, -1, 0, 3, -2, 5], np.int8)
    packed = ", ".join(str(byte) for byte in pack(values, "int4"))
    source = tmp_path / "main.c"
    source.write_text(f"""
#include "net.h"
#include <string.h>
int main(void) {{
  const uint8_t packed[] = {{{packed}}};
  const int8_t expected[] = {{{", ".join(map(str, values))}}};
  int8_t elements[NET_INPUT_0_COUNT];
  uint8_t again[sizeof packed];
  tilewright_unpack(packed, elements, NET_INPUT_0_COUNT, 4, 1);
  tilewright_pack(elements, again, NET_INPUT_0_COUNT, 4);
  return memcmp(elements, expected, sizeof expected) != 0 || memcmp(packed, again, sizeof packed) != 0;
}}
""")
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic"]
    subprocess.run([c_compiler, *flags, str(source), "-o", str(tmp_path / "main")], check=True)
    subprocess.run([tmp_path / "main"], check=True)


def test_headers_without_packed_elements_do_not_speak_of_them() -> None:
    model = ModelInfo("net", (TensorInfo("x", (7,), "float8_e5m2"),), (TensorInfo("y", (7,), "float32"),), 0)
    assert "unpack" not in header_text(Artifact("x86_64-linux-gnu", "", "", model=model), "net.so", "net", b"1234")
