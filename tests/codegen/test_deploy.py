"""Exported libraries: loaded here, in a new process, from C and C++, for other machines, and on a full disk."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.requirements import CPP_COMPILERS, need, need_tool
from tests.runtime import mini
from tilewright.backends.llvm import deploy, elf, wrapper
from tilewright.runtime import Executable, Module, load
from tilewright.support.errors import CompilerBug, UserError

PROGRAM = r"""
#include <stdio.h>
#include "mini.h"

int main(int argc, char** argv) {
  static float x[MINI_INPUT_0_COUNT], logits[MINI_OUTPUT_0_COUNT], doubled[MINI_OUTPUT_1_COUNT];
  FILE* file = fopen(argv[1], "rb");
  if (!file || fread(x, 1, MINI_INPUT_0_BYTES, file) != MINI_INPUT_0_BYTES) return 3;
  fclose(file);
  void* inputs[MINI_NUM_INPUTS] = {x};
  void* outputs[MINI_NUM_OUTPUTS] = {logits, doubled};
  mini_set_num_threads(argc > 2 ? 1 : 3);
  for (int turn = 0; turn < 100; ++turn) {
    int32_t code = mini_run(inputs, outputs, 0);
    if (code) return code;
  }
  if (mini_workspace_bytes() != MINI_WORKSPACE_BYTES || mini_metadata()[0] != '{') return 4;
  for (int i = 0; i < MINI_OUTPUT_1_COUNT; ++i) printf("%.9g\n", doubled[i]);
  return 0;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("export") / "mini.so"
    deploy.executable(mini.model_artifact()).export_library(path)
    return path


def _check(outputs: object, x: np.ndarray) -> None:
    assert isinstance(outputs, (tuple, list))
    for got, want in zip(outputs, mini.expected(x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_export_leaves_library_and_header_only(library: Path) -> None:
    assert sorted(path.name for path in library.parent.iterdir()) == ["mini.h", "mini.so"]


def test_load_and_run(library: Path) -> None:
    exe = load(library)
    assert isinstance(exe, Executable)
    assert exe.threads == 2
    x = mini.sample_input(3)
    _check(exe(x), x)
    assert len(exe.profile(x, repeat=2).rows) == 2


def test_load_in_a_new_process(library: Path, tmp_path: Path) -> None:
    x = mini.sample_input(4)
    np.save(tmp_path / "x.npy", x)
    code = (
        "import sys, numpy as np\n"
        "from tilewright.runtime import load\n"
        "outputs = load(sys.argv[1])(np.load(sys.argv[2]))\n"
        "assert not any(name.split('.')[0] == 'llvmlite' for name in sys.modules)\n"
        "np.savez(sys.argv[3], *outputs)\n"
    )
    command = [sys.executable, "-c", code, str(library), str(tmp_path / "x.npy"), str(tmp_path / "y.npz")]
    subprocess.run(command, check=True)
    _check(list(np.load(tmp_path / "y.npz").values()), x)


def test_export_of_a_loaded_library_copies_it(library: Path, tmp_path: Path) -> None:
    exe = load(library)
    exe.export_library(tmp_path / "copy.so")
    x = mini.sample_input()
    _check(load(tmp_path / "copy.so")(x), x)
    assert "mini_run" in (tmp_path / "copy.h").read_text()


def test_functions_library(tmp_path: Path) -> None:
    deploy.module(mini.functions_artifact()).export_library(tmp_path / "ops.so")
    module = load(tmp_path / "ops.so")
    assert isinstance(module, Module)
    source, result = np.arange(5, dtype=np.float32), np.empty(5, np.float32)
    module["scale"](source, result, 3.0)
    np.testing.assert_array_equal(result, 3 * source)
    assert (
        "int32_t scale(const float* source, float* result, float factor, int64_t n);"
        in (tmp_path / "ops.h").read_text()
    )


@pytest.mark.parametrize("language", ["c", "c++"])
def test_called_from_c(library: Path, tmp_path: Path, c_compiler: str, language: str) -> None:
    compiler = need_tool("c++-compiler", *CPP_COMPILERS) if language == "c++" else c_compiler
    source = tmp_path / ("main.c" if language == "c" else "main.cpp")
    source.write_text(PROGRAM)
    program = tmp_path / "main"
    command = [compiler, "-Wall", "-Wextra", "-Werror", str(source), str(library), f"-I{library.parent}"]
    subprocess.run([*command, f"-Wl,-rpath,{library.parent}", "-o", str(program)], check=True)
    x = mini.sample_input(5)
    x.tofile(tmp_path / "x.bin")
    for extra in ([], ["one thread"]):
        done = subprocess.run([program, tmp_path / "x.bin", *extra], capture_output=True, text=True, check=True)
        printed = np.array(done.stdout.split(), np.float32).reshape(16, 4)
        np.testing.assert_allclose(printed, mini.expected(x)[1], rtol=1e-5, atol=1e-6)


def test_opened_with_dlopen_and_closed(library: Path, tmp_path: Path, c_compiler: str) -> None:
    source = tmp_path / "main.c"
    source.write_text(
        r"""
        #include <dlfcn.h>
        #include <stdint.h>
        #include <unistd.h>
        int main(int argc, char** argv) {
          void* library = dlopen(argv[argc - 1], RTLD_NOW | RTLD_LOCAL);
          if (!library) return 1;
          int32_t (*run)(void**, void**, void*) = (int32_t (*)(void**, void**, void*))dlsym(library, "mini_run");
          static float x[128], y[64], z[64];
          void* inputs[] = {x};
          void* outputs[] = {y, z};
          if (!run || run(inputs, outputs, 0)) return 2;
          dlclose(library);  /* the pool's threads are still there */
          usleep(20000);
          return 0;
        }
        """
    )
    subprocess.run([c_compiler, str(source), "-o", str(tmp_path / "main"), "-ldl"], check=True)
    subprocess.run([tmp_path / "main", library], check=True)


@pytest.mark.parametrize("triple", ["x86_64-linux-gnu", "aarch64-linux-gnu", "riscv64-linux-gnu"])
def test_export_for_other_machines(tmp_path: Path, triple: str) -> None:
    need("linker")
    path = tmp_path / "mini.so"
    deploy.export_library(mini.model_artifact(triple), path)
    assert int.from_bytes(path.read_bytes()[18:20], "little") == elf.machine_code(triple)


def test_aarch64_library_runs_under_emulation(arm_tools: tuple[str, str], tmp_path: Path) -> None:
    """The whole road for another architecture, where its compiler and an emulator are there."""
    compiler, emulator = arm_tools
    deploy.export_library(mini.model_artifact("aarch64-linux-gnu"), tmp_path / "mini.so")
    (tmp_path / "main.c").write_text(PROGRAM)
    command = [compiler, str(tmp_path / "main.c"), str(tmp_path / "mini.so"), "-o", str(tmp_path / "main")]
    subprocess.run([*command, f"-Wl,-rpath,{tmp_path}"], check=True)
    x = mini.sample_input(6)
    x.tofile(tmp_path / "x.bin")
    run = [emulator, "-L", "/usr/aarch64-linux-gnu", str(tmp_path / "main"), str(tmp_path / "x.bin")]
    done = subprocess.run(run, capture_output=True, text=True, check=True, timeout=60)
    printed = np.array(done.stdout.split(), np.float32).reshape(16, 4)
    np.testing.assert_allclose(printed, mini.expected(x)[1], rtol=1e-5, atol=1e-6)


def test_export_into_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the folder does not exist"):
        deploy.executable(mini.model_artifact()).export_library(tmp_path / "no" / "mini.so")


def _export_within(path: Path, limit: int) -> None:
    """In a child: export with a limit on file size, the portable stand-in for a disk that fills up."""
    artifact = mini.model_artifact()
    artifact.constants = np.zeros(1 << 20, np.uint8)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        deploy.executable(artifact).export_library(path)
    except UserError as error:
        os.write(1, str(error).encode())
        os._exit(0)
    os._exit(1)


@pytest.mark.parametrize("limit", [100_000, 1_050_000])
def test_disk_that_fills_up_loses_nothing(tmp_path: Path, limit: int) -> None:
    """The smaller limit stops our own writing of the constants, the larger one the linker's writing of the library."""
    path = tmp_path / "mini.so"
    path.write_bytes(b"what was there before")
    code = (
        "from pathlib import Path\n"
        "from tests.codegen.test_deploy import _export_within\n"
        f"_export_within(Path({str(path)!r}), {limit})"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=False)
    assert done.returncode == 0, done.stderr
    assert "mini.so" in done.stdout
    assert path.read_bytes() == b"what was there before"
    assert [file.name for file in tmp_path.iterdir()] == ["mini.so"]


def test_names_that_are_no_identifiers_are_our_bug() -> None:
    with pytest.raises(CompilerBug, match="not a C identifier"):
        wrapper.wrapper_ir(mini.model_artifact(), "my-model")
