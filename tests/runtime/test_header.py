"""Generated C headers: odd names, all types."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tilewright.runtime import Artifact, FunctionInfo, ModelInfo, ParamInfo, TensorInfo
from tilewright.runtime.core.dtypes import C_TYPES
from tilewright.runtime.core.header import c_name, header_text, library_name, write_header


def test_a_library_is_named_after_its_file_unless_told() -> None:
    assert library_name(Path("out/encoder.so")) == "encoder"
    assert library_name(Path("my-model.v2.so")) == "my_model_v2"
    assert library_name(Path("3 net.so"), "decoder") == "decoder"
    assert library_name(Path("3 net.so")) == "_3_net"


def test_c_names() -> None:
    assert c_name("a/b:0") == "a_b_0"
    assert c_name("0x") == "_0x"
    assert c_name("é") == "_"
    assert c_name("") == "_"


def test_odd_names_compile(tmp_path: Path, c_compiler: str) -> None:
    inputs = tuple(
        TensorInfo(name, (2, 0), "float32") for name in ('a"b', "back\\slash", "end */ of", "é??/", "new\nline")
    )
    model = ModelInfo("net", inputs, (TensorInfo("y", (), "bfloat16"),), 128)
    params = tuple(ParamInfo(f"p {name}", name, ("n", 2)) for name in C_TYPES) + tuple(
        ParamInfo(f"s.{name}", name) for name in C_TYPES
    )
    artifact = Artifact(
        "x86_64-linux-gnu", "", "", model=model, functions=[FunctionInfo("f", params), FunctionInfo("g", ())]
    )
    (tmp_path / "my-net.so").write_bytes(b"library")
    write_header(artifact, tmp_path / "my-net.so", "net")
    source = tmp_path / "main.c"
    source.write_text(
        '#include "my-net.h"\n#include "my-net.h"\nint main(void) { return sizeof(NET_INPUT_0_NAME) == 4 ? 0 : 1; }\n'
    )
    subprocess.run([c_compiler, "-Wall", "-Werror", "-pedantic", str(source), "-o", str(tmp_path / "main")], check=True)
    subprocess.run([tmp_path / "main"], check=True)
    assert "int32_t g(void);" in header_text(artifact, "my-net.so", "net", b"1234")
