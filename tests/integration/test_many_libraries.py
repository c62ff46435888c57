"""Several libraries in one program: models of one graph name, in C, in C++ and in Python, each with its own weights."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest

import tilewright as tw
from tests.integration import small_models
from tests.requirements import CPP_COMPILERS, need_tool
from tilewright import te
from tilewright.support.errors import UserError

MAIN = r"""
#include <stdio.h>
#include "encoder.h"
#include "my-decoder.h"
#include "sizes.h"
#include "ops.h"
#ifdef __cplusplus
extern "C" {
#endif
int32_t encoder_entry(void* const* inputs, void* const* outputs, uint8_t* workspace, const uint8_t* constants);
const void* encoder_constants(void);
#ifdef __cplusplus
}
#endif

int main(void) {
  static float x[ENCODER_INPUT_0_COUNT], y[ENCODER_OUTPUT_0_COUNT];
  for (int i = 0; i < ENCODER_INPUT_0_COUNT; ++i) x[i] = (float)i;
  void* inputs[ENCODER_NUM_INPUTS] = {x};
  void* outputs[ENCODER_NUM_OUTPUTS] = {y};
  encoder_set_num_threads(1);
  my_decoder_set_num_threads(2);
  if (encoder_run(inputs, outputs, 0)) return 1;
  printf("%g ", y[1]);
  if (my_decoder_run(inputs, outputs, 0)) return 2;
  printf("%g ", y[1]);
  if (encoder_workspace_bytes() < 0 || my_decoder_workspace_bytes() < 0) return 3;
  if (encoder_entry(inputs, outputs, 0, (const uint8_t*)encoder_constants())) return 4;
  printf("%g ", y[1]);
  int64_t shape[] = {1, 4}, symbols[SIZES_NUM_SYMBOLS], out[2], bytes;
  if (sizes_shapes(shape, symbols, out, &bytes) || out[0] != 1) return 5;
  if (sizes_run(inputs, outputs, 0, symbols)) return 6;
  printf("%g ", y[1]);
  if (twice(x, y)) return 7;
  printf("%g", y[1]);
  return encoder_metadata()[0] == '{' && ops_metadata()[0] == '{' ? 0 : 8;
}
"""


def scaling(factor: float, dims: list[int | str]) -> bytes:
    """A model whose graph has one name whatever it computes, as exporters make them."""
    node = onnx.helper.make_node("Mul", ["x", "w"], ["y"])
    shape = (small_models.FLOAT, dims)
    model = small_models.model(
        [node], {"x": shape}, {"y": shape}, {"w": np.array([factor], np.float32)}, name="main_graph"
    )
    return bytes(model.SerializeToString())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four libraries: two models of one shape, one with symbolic shapes, and one of functions."""
    folder = tmp_path_factory.mktemp("many")
    tw.compile(scaling(10, [1, 4]), threads=1).export_library(folder / "encoder.so")
    tw.compile(scaling(20, [1, 4])).export_library(folder / "my-decoder.so")
    tw.compile(scaling(30, ["n", 4]), threads=1).export_library(folder / "three.so", name="sizes")
    shutil.move(folder / "three.h", folder / "sizes.h")
    a = te.placeholder((4,), name="a")
    b = te.compute((4,), lambda i: a[i] * 2.0, name="b")
    tw.build(te.create_schedule(b.op), [a, b], name="twice").export_library(folder / "ops.so")
    return folder


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("language", ["c", "c++"])
def test_each_runs_its_own_weights(folder: Path, tmp_path: Path, c_compiler: str, language: str, order: int) -> None:
    compiler = c_compiler if language == "c" else need_tool("c++-compiler", *CPP_COMPILERS)
    source = tmp_path / ("main.c" if language == "c" else "main.cpp")
    source.write_text(MAIN)
    libraries = [str(folder / name) for name in ("encoder.so", "my-decoder.so", "three.so", "ops.so")][::order]
    flags = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-std=c++17" if language == "c++" else "-std=c11"]
    command = [compiler, *flags, str(source), *libraries, f"-I{folder}", f"-Wl,-rpath,{folder}"]
    subprocess.run([*command, "-o", str(tmp_path / "main")], check=True)
    done = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["10", "20", "10", "30", "2"]


def test_nothing_else_can_be_seen(folder: Path) -> None:
    tool = need_tool("binutils", "nm")

    def seen(name: str) -> set[str]:
        text = subprocess.run([tool, "-D", "--defined-only", folder / name], capture_output=True, text=True, check=True)
        return {line.split()[-1] for line in text.stdout.splitlines()}

    common = {"set_num_threads", "metadata", "_tilewright"}
    model = common | {"run", "message", "entry", "constants", "_interface"}
    assert seen("encoder.so") == {f"encoder_{name}" for name in model | {"workspace_bytes"}}
    assert seen("three.so") == {f"sizes_{name}" for name in model | {"shapes", "plan"}}
    assert seen("ops.so") == {"twice", "twice__packed", *(f"ops_{name}" for name in common)}


def test_they_load_side_by_side(folder: Path) -> None:
    x = np.arange(4, dtype=np.float32).reshape(1, 4)
    models = [tw.load(folder / name) for name in ("encoder.so", "my-decoder.so", "three.so")]
    for model, factor in zip(models, (10, 20, 30), strict=True):
        assert isinstance(model, tw.Executable)
        np.testing.assert_array_equal(model(x), factor * x)
        assert len(model.profile(x, repeat=1).rows) == 1, "hidden kernels are found"


@pytest.mark.parametrize(("first", "second"), [("a-b.so", "a_b.so"), ("net.so", "Net.so"), ("one/m.so", "two/m.so")])
def test_headers_of_one_name_in_one_program_are_said(tmp_path: Path, c_compiler: str, first: str, second: str) -> None:
    """`a-b.so` and `a_b.so` are both `a_b` in C, `net` and `Net` have the same macros."""
    exe = tw.compile(scaling(10, [1, 4]), threads=1)
    other = tw.compile(scaling(20, [1, 4]), threads=1)
    for executable, name in ((exe, first), (other, second)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        executable.export_library(tmp_path / name)
    includes = [f'#include "{Path(name).with_suffix(".h")}"\n' for name in (first, second)]

    def compiles(text: str) -> str:
        (tmp_path / "main.c").write_text(text + "int main(void) { return 0; }\n")
        command = [c_compiler, "-c", str(tmp_path / "main.c"), "-o", str(tmp_path / "main.o")]
        return subprocess.run(command, capture_output=True, text=True, check=False).stderr

    assert compiles(includes[0] * 2) == "", "one header may be included again"
    assert "two libraries of this program are named" in compiles("".join(includes))
    other.export_library(tmp_path / second, name="another")
    assert compiles("".join(includes)) == ""


def test_names_that_collide_inside_a_library_are_said(tmp_path: Path) -> None:
    exe = tw.compile(scaling(10, [1, 4]), threads=1)
    with pytest.raises(UserError, match="a library named 'tw' would have two symbols 'tw_set_num_threads'"):
        exe.export_library(tmp_path / "tw.so")
    exe.export_library(tmp_path / "tw.so", name="other")
    with pytest.raises(UserError, match=r"'  ' is no name of a library"):
        exe.export_library(tmp_path / "tw.so", name="  ")
    exe.export_library(tmp_path / "main.so", name="main_graph")
    loaded = tw.load(tmp_path / "main.so")
    x = np.ones((1, 4), np.float32)
    np.testing.assert_array_equal(loaded(x), 10 * x)
    a = te.placeholder((4,), name="a")
    b = te.compute((4,), lambda i: a[i] * 2.0, name="b")
    module = tw.build(te.create_schedule(b.op), [a, b], name="ops_metadata")
    with pytest.raises(UserError, match="two symbols 'ops_metadata'"):
        module.export_library(tmp_path / "ops.so")


def test_a_loaded_library_keeps_its_name(folder: Path, tmp_path: Path) -> None:
    loaded = tw.load(folder / "three.so")
    loaded.export_library(tmp_path / "copy.so")
    assert "sizes_run" in (tmp_path / "copy.h").read_text()
    loaded.export_library(tmp_path / "copy.so", name="sizes")
    with pytest.raises(UserError, match="a loaded library keeps its name, 'sizes': it cannot be exported as 'copy'"):
        loaded.export_library(tmp_path / "copy.so", name="copy")
