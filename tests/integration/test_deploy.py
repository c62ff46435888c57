"""A model compiled from ONNX and exported: in C, in C++, in a new Python process, on another architecture."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import tilewright as tw
from bench import zoo
from tests.integration import small_models
from tests.requirements import CPP_COMPILERS, need, need_tool
from tilewright.support.errors import UserError

MODEL = "dqn"

# Reads the input from a file, runs twice (once in a workspace of its own, once in one that it was given), and prints.
PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "dqn.h"

int main(int argc, char** argv) {
  static float frames[DQN_INPUT_0_COUNT], first[DQN_OUTPUT_0_COUNT], second[DQN_OUTPUT_0_COUNT];
  FILE* file = argc > 1 ? fopen(argv[1], "rb") : 0;
  if (!file || fread(frames, 1, DQN_INPUT_0_BYTES, file) != DQN_INPUT_0_BYTES) return 10;
  fclose(file);
  void* inputs[DQN_NUM_INPUTS] = {frames};
  void* outputs[DQN_NUM_OUTPUTS] = {first};
  int32_t code = dqn_run(inputs, outputs, 0);
  if (code) return code;
  void* workspace = aligned_alloc(64, (dqn_workspace_bytes() + 63) / 64 * 64);
  outputs[0] = second;
  dqn_set_num_threads(1);
  code = dqn_run(inputs, outputs, workspace);
  free(workspace);
  if (code) return code;
  if (memcmp(first, second, sizeof first)) return 11;
  for (int i = 0; i < DQN_OUTPUT_0_COUNT; ++i) printf("%.9g\n", first[i]);
  return 0;
}
"""

LOADER = """
import sys, numpy as np, tilewright as tw
executable = tw.load(sys.argv[1])
assert not any(name.split(".")[0] in ("llvmlite", "onnx") for name in sys.modules), "the compiler was loaded"
assert not any(name.startswith(("tilewright.tir", "tilewright.graph", "tilewright.codegen")) for name in sys.modules)
np.savez(sys.argv[3], *executable.run(dict(np.load(sys.argv[2]))))
"""


@pytest.fixture(scope="module")
def executable() -> tw.Executable:
    return tw.compile(zoo.path(MODEL), threads=2)


@pytest.fixture(scope="module")
def library(executable: tw.Executable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("deploy") / "dqn.so"
    executable.export_library(path)
    return path


@pytest.fixture(scope="module")
def logits(executable: tw.Executable) -> np.ndarray:
    return executable.run(zoo.inputs(MODEL))[0]


def build_and_run(compiler: list[str], source: Path, library: Path, emulator: tuple[str, ...] = ()) -> np.ndarray:
    """Compile a program against a library and its header, run it, and read the logits that it prints."""
    source.write_text(PROGRAM)
    frames = source.with_name("frames.bin")
    zoo.inputs(MODEL)["frames"].tofile(frames)
    program = source.with_name("program")
    command = [*compiler, "-Wall", "-Wextra", "-Werror", str(source), str(library), f"-I{library.parent}"]
    subprocess.run([*command, f"-Wl,-rpath,{library.parent}", "-o", str(program)], check=True)
    run = [*emulator, str(program), str(frames)]
    done = subprocess.run(run, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr}"
    return np.array(done.stdout.split(), np.float32).reshape(1, -1)


def test_a_c_program_prints_the_same_logits(library: Path, logits: np.ndarray, tmp_path: Path, c_compiler: str) -> None:
    printed = build_and_run([c_compiler, "-std=c11"], tmp_path / "main.c", library)
    np.testing.assert_array_equal(printed, logits)


def test_a_cpp_program_prints_the_same_logits(library: Path, logits: np.ndarray, tmp_path: Path) -> None:
    compiler = need_tool("c++-compiler", *CPP_COMPILERS)
    printed = build_and_run([compiler, "-std=c++17", "-pedantic"], tmp_path / "main.cpp", library)
    np.testing.assert_array_equal(printed, logits)


def test_a_new_process_loads_it_without_the_compiler(library: Path, logits: np.ndarray, tmp_path: Path) -> None:
    np.savez(tmp_path / "inputs.npz", **zoo.inputs(MODEL))
    command = [sys.executable, "-c", LOADER, str(library), str(tmp_path / "inputs.npz"), str(tmp_path / "out.npz")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "out.npz") as outputs:
        np.testing.assert_array_equal(outputs["arr_0"], logits)


def test_a_loaded_library_is_like_the_executable(library: Path, executable: tw.Executable, logits: np.ndarray) -> None:
    loaded = tw.load(library)
    assert isinstance(loaded, tw.Executable)
    assert (loaded.input_info, loaded.output_info) == (executable.input_info, executable.output_info)
    assert loaded.threads == 2
    np.testing.assert_array_equal(loaded(zoo.inputs(MODEL)["frames"]), logits)
    assert "/conv1/Conv" in loaded.profile(zoo.inputs(MODEL)["frames"], repeat=1).text()


def test_the_library_needs_libc_alone(library: Path) -> None:
    tool = need_tool("binutils", "readelf")
    text = subprocess.run([tool, "-d", str(library)], capture_output=True, text=True, check=True).stdout
    needed = [line.split("[")[1].rstrip("]") for line in text.splitlines() if "(NEEDED)" in line]
    assert set(needed) <= {"libc.so.6", "libm.so.6"}


def test_a_library_in_use_can_be_exported_over(executable: tw.Executable, logits: np.ndarray, tmp_path: Path) -> None:
    """The old file is replaced, not rewritten: a process that runs it keeps what it has."""
    path = tmp_path / "dqn.so"
    executable.export_library(path)
    loaded = tw.load(path)
    executable.export_library(path)
    np.testing.assert_array_equal(loaded.run(zoo.inputs(MODEL))[0], logits)


def test_names_in_a_model_need_not_be_c_names(tmp_path: Path, c_compiler: str) -> None:
    """Inputs with odd names, and a graph named in another script, still make a header that C reads."""
    node = onnx.helper.make_node("Relu", ["données/*:0"], ['*/ "y"'], name="a*/b")
    shape = (small_models.FLOAT, [2, 3])
    model = small_models.model([node], {"données/*:0": shape}, {'*/ "y"': shape}, name="3 модель-x")
    tw.compile(model.SerializeToString(), threads=1).export_library(tmp_path / "odd.so")
    (tmp_path / "main.c").write_text('#include "odd.h"\nint main(void) { return 0; }\n')
    subprocess.run(
        [c_compiler, "-Wall", "-Wextra", "-Werror", "-std=c99", "-o", str(tmp_path / "main"), str(tmp_path / "main.c")],
        check=True,
    )
    loaded = tw.load(tmp_path / "odd.so")
    x = np.array([[-1, 2, -3], [4, -5, 6]], np.float32)
    np.testing.assert_array_equal(loaded.run({"données/*:0": x})[0], np.maximum(x, 0))


def test_a_library_cannot_take_the_name_of_its_header(executable: tw.Executable, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the suffix \.h is the header's"):
        executable.export_library(tmp_path / "dqn.h")
    with pytest.raises(UserError, match="'' is no name of a file"):
        executable.export_library("")
    assert list(tmp_path.iterdir()) == []


AARCH64 = "llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1"


@pytest.fixture(scope="module")
def aarch64_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("aarch64") / "dqn.so"
    need("linker")
    tw.Compilation(zoo.path(MODEL), AARCH64, threads=2).export_library(path)
    return path


def test_export_for_aarch64(aarch64_library: Path) -> None:
    start = aarch64_library.read_bytes()[:20]
    assert start[:4] == b"\x7fELF"
    assert int.from_bytes(start[18:20], "little") == 183
    if os.uname().machine != "aarch64":
        with pytest.raises(UserError, match="the library is for aarch64"):
            tw.load(aarch64_library)


def test_the_aarch64_library_runs(
    arm_tools: tuple[str, str], aarch64_library: Path, logits: np.ndarray, tmp_path: Path
) -> None:
    compiler, emulator = arm_tools
    emulate = (emulator, "-L", "/usr/aarch64-linux-gnu")
    printed = build_and_run([compiler, "-std=c11"], tmp_path / "main.c", aarch64_library, emulate)
    # Another vector width sums in another order.
    np.testing.assert_allclose(printed, logits, rtol=1e-4, atol=1e-5)
