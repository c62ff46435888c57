"""`<name>__interface`, which every binding reads: what is in it, and that Python and the C header agree about it."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest

from tests.bindings.languages import BINDINGS
from tilewright.backends.llvm import interface
from tilewright.runtime.core.dtypes import DTYPE_CODES, storage_dtype

HEADER = (BINDINGS / "c" / "include" / "tilewright.h").read_text(encoding="utf-8")
MODEL_C = (BINDINGS / "c" / "src" / "model.c").read_text(encoding="utf-8")


class Value(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("symbolic", ctypes.POINTER(ctypes.c_char_p)),
    )


class Interface(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        *((name, ctypes.c_char_p) for name in ("name", "refusal", "cpu_flags", "metadata")),
        *((name, ctypes.c_int32) for name in ("input_count", "output_count", "symbol_count", "reserved")),
        ("inputs", ctypes.POINTER(Value)),
        ("outputs", ctypes.POINTER(Value)),
        ("symbols", ctypes.POINTER(ctypes.c_char_p)),
        ("workspace_bytes", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("run", "shapes", "message", "set_num_threads", "device")),
    )


def described(models: Path, name: str) -> Interface:
    return Interface.in_dll(ctypes.CDLL(str(models / f"{name}.so")), f"{name}__interface")


def test_fields_are_those_of_the_header() -> None:
    body = HEADER.partition("struct tilewright_interface {")[2].partition("\n};")[0]
    body = re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL)
    names = re.findall(r"(?:\(\*(\w+)\)\([^)]*\)|(\w+));", body)
    assert [a or b for a, b in names] == [name for name, _ in Interface._fields_]


def test_codes_of_data_types_are_those_of_the_header() -> None:
    enumerated = dict(re.findall(r"TILEWRIGHT_(\w+) = (\d+)", HEADER.partition("typedef int32_t tilewright_dtype;")[2]))
    assert {name.upper(): str(code) for name, code in DTYPE_CODES.items()} == {
        name: code for name, code in enumerated.items() if name not in ("INPUT", "OUTPUT")
    }
    table = MODEL_C.partition("} dtypes[] = {")[2].partition("};")[0]
    rows = re.findall(r'\{"(\w+)", (\d)\}', table)
    assert [(name, int(size)) for name, size in rows] == [
        (name, storage_dtype(name).itemsize) for name, _ in sorted(DTYPE_CODES.items(), key=lambda item: item[1])
    ]


def test_symbolic_model(models: Path) -> None:
    digits = described(models, "digits")
    assert (digits.version, digits.size) == (interface.INTERFACE_VERSION, ctypes.sizeof(Interface))
    assert (digits.name, digits.refusal, digits.workspace_bytes) == (b"digits", None, -1)
    assert (digits.input_count, digits.output_count, digits.symbol_count) == (1, 2, 1)
    image = digits.inputs[0]
    assert (image.name, image.dtype, image.rank) == (b"image", DTYPE_CODES["float32"], 3)
    assert [(image.shape[axis], image.symbolic[axis]) for axis in range(3)] == [(-1, b"batch"), (7, None), (5, None)]
    assert digits.outputs[1].dtype == DTYPE_CODES["int64"]
    assert digits.run
    assert digits.shapes
    assert digits.symbols[0] == b"batch"


def test_static_model(models: Path) -> None:
    rows = described(models, "rows")
    assert rows.workspace_bytes >= 0
    assert rows.shapes is None
    assert [rows.outputs[0].shape[axis] for axis in range(2)] == [3, 4]


def test_arithmetic_over_symbols_is_text(models: Path) -> None:
    joined = described(models, "join").outputs[0]
    assert joined.shape[0] == -1
    assert set(re.findall(r"\w+", joined.symbolic[0].decode())) == {"n", "m"}


@pytest.mark.parametrize(("name", "why"), [("loop", b"virtual machine"), ("device_open", b"device (opencl)")])
def test_models_that_c_cannot_run_say_why(models: Path, name: str, why: bytes) -> None:
    refused = described(models, name)
    assert why in refused.refusal
    assert refused.run is None


def test_functions_have_no_interface(models: Path) -> None:
    with pytest.raises(ValueError, match="functions__interface"):
        described(models, "functions")


@pytest.mark.parametrize(
    ("file", "start", "end", "name"),
    [
        ("rust/src/tensor.rs", "const ALL", "];", r"DType::(\w+)"),
        ("go/tensor.go", "const (", ")", r"^\t([A-Z]\w+)"),
        ("java/src/main/java/dev/tilewright/DType.java", "enum DType {", ";", r"([A-Z]\w+)\(\d\)"),
        ("node/lib/dtypes.js", "const DTYPES = {", "};", r"(\w+): \w+Array"),
        ("csharp/src/Tensor.cs", "names say it", "#pragma", r"\b([A-Z]\w+)"),
    ],
)
def test_languages_number_data_types_alike(file: str, start: str, end: str, name: str) -> None:
    text = (BINDINGS / file).read_text(encoding="utf-8").partition(start)[2].partition(end)[0]
    names = [item.lower().replace("_", "") for item in re.findall(name, text, re.MULTILINE)]
    codes = sorted(DTYPE_CODES, key=lambda item: DTYPE_CODES[item])
    assert names == [item.replace("_", "") for item in codes]
