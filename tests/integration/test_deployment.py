"""Libraries for other machines: run by emulators where there are any, else read as their loaders would."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

import tilewright as tw
from tests.integration import small_models
from tests.integration.emulation import build_program, emulated, need_emulator, run_exported
from tests.requirements import CLANGS, find_wine, need, need_tool
from tilewright.backends.llvm import macho
from tilewright.backends.llvm.levels import join_levels
from tilewright.backends.llvm.link import find_linker
from tilewright.cli.main import main
from tilewright.runtime.core.keys import SigningKey
from tilewright.support.errors import UnsupportedError, UserError

FLOAT = TensorProto.FLOAT
RUNTIME = Path(__file__).parents[2] / "bindings" / "c"
EXPORTS = ["interface", "tilewright", "constants", "entry", "message", "metadata", "run", "set_num_threads"]
EMULATED = [
    ("armv7", "arm-cortex-a7"),
    ("riscv64", "riscv64-rv64"),
    ("riscv64-v", "riscv64-rv64,v=true,vlen=128,vext_spec=v1.0"),
    ("x86-64", "x86_64-qemu64"),
    ("x86-64-v3", "x86_64-Haswell"),
]


@pytest.fixture(scope="module")
def model() -> bytes:
    return bytes(small_models.classifier().SerializeToString())


def rows_model() -> bytes:
    """Numbers, in any number of rows, doubled."""
    doubled = small_models.one_node("Mul", {"x": (FLOAT, ("rows", 3))}, weights={"two": np.array([2.0], np.float32)})
    return bytes(doubled.SerializeToString())


@pytest.fixture(scope="module")
def expected(model: bytes) -> np.ndarray:
    return np.asarray(tw.compile(model, threads=1)(small_models.image()))


@pytest.mark.parametrize(("target", "cpu"), EMULATED)
def test_libraries_run_on_other_processors(
    model: bytes, expected: np.ndarray, tmp_path: Path, target: str, cpu: str
) -> None:
    need_emulator(cpu)
    tw.Compilation(model, target, threads=2).export_library(tmp_path / "model.so")
    (result,) = run_exported([small_models.image()], [expected], tmp_path, cpu)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


ROWS_PROGRAM = r"""
#include <stdio.h>
#include <string.h>
#include "tilewright.h"

int main(int argc, char** argv) {
  tilewright_error error;
  tilewright_model model;
  float x[6] = {1, 2, 3, 4, 5, 6}, y[6];
  int64_t shape[2] = {2, 3};
  tilewright_tensor input = {x, sizeof x, shape, 2, TILEWRIGHT_FLOAT32};
  tilewright_tensor output = {y, sizeof y, shape, 2, TILEWRIGHT_FLOAT32};
  if (tilewright_open(argv[2], &model, &error) != TILEWRIGHT_BAD_LIBRARY) return 30;
  if (tilewright_open(argv[1], &model, &error)) return puts(error.message), 31;
  if (tilewright_run(model, &input, 1, &output, 1, &error)) return puts(error.message), 32;
  for (int i = 0; i < 6; ++i) if (y[i] != x[i] + x[i]) return 33;
  shape[1] = 2;
  if (tilewright_run(model, &input, 1, &output, 1, &error) != TILEWRIGHT_BAD_SHAPE) return 34;
  return tilewright_close(model, &error);
}
"""


def test_the_runtime_for_c_on_32_bit_arm(tmp_path: Path) -> None:
    need_emulator("arm")
    rows = rows_model()
    tw.Compilation(rows, "armv7", threads=2).export_library(tmp_path / "rows.so")
    (tmp_path / "short.so").write_bytes((tmp_path / "rows.so").read_bytes()[:-100])
    (tmp_path / "main.c").write_text(ROWS_PROGRAM)
    options = [str(RUNTIME / "src" / "tilewright.c"), f"-I{RUNTIME / 'include'}", "-ldl", "-lpthread"]
    program = build_program(tmp_path / "main.c", "arm", *options)
    done = emulated("arm", program, str(tmp_path / "rows.so"), str(tmp_path / "short.so"))
    assert done.returncode == 0, done.stdout


def test_musl(model: bytes, expected: np.ndarray, tmp_path: Path) -> None:
    need("musl", "linker")
    target = {"x86_64": "musl-x86-64", "aarch64": "musl-aarch64"}[tw.Target("native").arch]
    tw.Compilation(model, target, threads=2).export_library(tmp_path / "model.so")
    (tmp_path / "main.c").write_text(
        '#include <stdio.h>\n#include "model.h"\nint main(void) { static float x[MODEL_INPUT_0_COUNT], '
        'y[MODEL_OUTPUT_0_COUNT]; void *in[] = {x}, *out[] = {y}; FILE* f = fopen("x", "rb");'
        "if (fread(x, sizeof x, 1, f) != 1 || model_run(in, out, 0)) return 1;"
        "return fwrite(y, sizeof y, 1, stdout) != 1; }"
    )
    small_models.image().tofile(tmp_path / "x")
    command = ["musl-gcc", "main.c", "model.so", "-Wl,-rpath,$ORIGIN", "-o", "program"]
    subprocess.run(command, cwd=tmp_path, check=True)
    done = subprocess.run(["./program"], cwd=tmp_path, capture_output=True, check=True)
    result = np.frombuffer(done.stdout, np.float32).reshape(expected.shape)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------- Windows

WINDOWS_PROGRAM = r"""
typedef void FILE;
FILE* fopen(const char*, const char*);
unsigned long long fread(void*, unsigned long long, unsigned long long, FILE*);
unsigned long long fwrite(const void*, unsigned long long, unsigned long long, FILE*);
int fclose(FILE*);
void ExitProcess(unsigned);
#include "model.h"
static float x[MODEL_INPUT_0_COUNT], y[MODEL_OUTPUT_0_COUNT];
int start(void) {
  FILE* file = fopen("x", "rb");
  if (!file || fread(x, sizeof x, 1, file) != 1) ExitProcess(20);
  void *inputs[] = {x}, *outputs[] = {y};
  for (int i = 0; i < 20; ++i) if (model_run(inputs, outputs, 0)) ExitProcess(21);
  file = fopen("y", "wb");
  ExitProcess(fwrite(y, sizeof y, 1, file) != 1 || fclose(file));
  return 0;
}
"""


def test_a_dll_runs_where_windows_is_emulated(model: bytes, expected: np.ndarray, tmp_path: Path) -> None:
    need("wine")
    arch = tw.Target("native").arch
    target, machine = {"x86_64": ("windows-x86-64", "x64"), "aarch64": ("windows-arm64", "arm64")}[arch]
    tw.Compilation(model, target, threads=2).export_library(tmp_path / "model.dll")
    clang, link = need_tool("clang", *CLANGS), need_tool("lld-link", "lld-link", "lld-link-19")
    libraries = {"msvcrt": "fopen fread fwrite fclose", "kernel32": "ExitProcess"}
    for name, symbols in libraries.items():
        (tmp_path / f"{name}.def").write_text(f"LIBRARY {name}.dll\nEXPORTS\n" + "\n".join(symbols.split()))
        command = [link, "/lib", f"/machine:{machine}", f"/def:{name}.def", f"/out:{name}.lib"]
        subprocess.run(command, cwd=tmp_path, check=True)
    (tmp_path / "main.c").write_text(WINDOWS_PROGRAM)
    triple = tw.Target(target).triple
    command = [clang, f"--target={triple}", "-c", "-O1", "-ffreestanding", "main.c", "-o", "main.obj"]
    subprocess.run(command, cwd=tmp_path, check=True)
    files = ["main.obj", "model.lib", "msvcrt.lib", "kernel32.lib"]
    command = [link, "/entry:start", "/subsystem:console", "/nodefaultlib", *files, "/out:program.exe"]
    subprocess.run(command, cwd=tmp_path, check=True)
    small_models.image().tofile(tmp_path / "x")
    wine = find_wine()
    assert wine is not None
    environment = {**os.environ, "WINEPREFIX": str(tmp_path / "wine"), "WINEDEBUG": "-all"}
    subprocess.run([wine, "program.exe"], cwd=tmp_path, env=environment, check=True, timeout=120, capture_output=True)
    result = np.fromfile(tmp_path / "y", np.float32).reshape(expected.shape)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def test_a_dll_has_what_windows_and_its_compilers_ask_for(model: bytes, tmp_path: Path) -> None:
    need("lld-link")
    tw.Compilation(model, "windows-x86-64", threads=2).export_library(tmp_path / "model.dll")
    image = (tmp_path / "model.dll").read_bytes()
    (header,) = struct.unpack_from("<I", image, 60)
    assert image[:2] == b"MZ" and image[header : header + 4] == b"PE\0\0"
    assert struct.unpack_from("<H", image, header + 4) == (0x8664,)
    for library in (b"ucrtbase.dll", b"kernel32.dll", b"api-ms-win-core-synch-l1-2-0.dll"):
        assert library in image
    assert b"vcruntime" not in image.lower() and b"msvcp" not in image.lower()
    compiler = need_tool("mingw", "x86_64-w64-mingw32-gcc", "x86_64-w64-mingw32-gcc-win32")
    (tmp_path / "main.c").write_text(
        '#include "model.h"\nint main(void) { model_set_num_threads(1); '
        "return model_run(0, 0, 0) + !model_metadata(); }"
    )
    command = [compiler, "main.c", "model.lib", "-o", "program.exe"]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert b"model.dll" in (tmp_path / "program.exe").read_bytes()


# ---------------------------------------------------------------- macOS and Android


@pytest.mark.parametrize("target", ["macos-arm64", "macos-x86-64"])
def test_a_dylib_has_what_macos_asks_for(model: bytes, tmp_path: Path, target: str) -> None:
    need("ld64")
    compilation = tw.Compilation(model, target, threads=2)
    compilation.export_library(tmp_path / "model.dylib")
    image = (tmp_path / "model.dylib").read_bytes()
    magic, processor, _, kind = struct.unpack_from("<IIII", image)
    assert (magic, kind) == (0xFEEDFACF, 6)
    assert processor == {"macos-arm64": 0x0100000C, "macos-x86-64": 0x01000007}[target]
    symbols = list(macho.MACH_O.symbols(image))
    exported = {symbol.name for symbol in symbols if symbol.is_defined and not symbol.is_local}
    assert exported >= {f"model{'__' if name in EXPORTS[:2] else '_'}{name}" for name in EXPORTS}
    assert all(name.startswith("model") for name in exported)
    assert b"/usr/lib/libSystem.B.dylib" in image and b"@rpath/model.dylib" in image
    assert (0x1D).to_bytes(4, "little") in image, "it has a signature"
    with pytest.raises(UserError, match="the signature of its system") as caught:
        compilation.export_library(tmp_path / "signed.dylib", sign=SigningKey.new())
    assert "codesign" in str(caught.value.hint)
    assert not (tmp_path / "signed.dylib").exists()


def test_android_folders_take_several_architectures(model: bytes, tmp_path: Path) -> None:
    need("linker")
    (tmp_path / "net.onnx").write_bytes(model)
    for target in ("android-arm64", "android-x86-64"):
        command = [
            "compile",
            str(tmp_path / "net.onnx"),
            "--target",
            target,
            "-o",
            str(tmp_path / "app"),
            "--name",
            "net",
        ]
        assert main(command) == 0
    for interface in ("arm64-v8a", "x86_64"):
        image = (tmp_path / "app" / "jniLibs" / interface / "libnet.so").read_bytes()
        (segments,) = struct.unpack_from("<Q", image, 32)
        size, count = struct.unpack_from("<HH", image, 54)
        records = [struct.unpack_from("<IIQQQQQQ", image, segments + size * index) for index in range(count)]
        loaded = [record for record in records if record[0] == 1]
        assert loaded and all(record[7] >= 16384 and record[2] % 16384 == record[3] % 16384 for record in loaded)
        assert b"\0libc.so\0" in image and b"libc.so.6" not in image
        assert "net_run" in (tmp_path / "app" / "include" / interface / "net.h").read_text()
    with pytest.raises(UnsupportedError, match="Android on 'arm'"):
        tw.Compilation(model, "llvm -mtriple=armv7-linux-androideabi28 -mcpu=cortex-a7").export_library(
            tmp_path / "app"
        )


# ---------------------------------------------------------------- several processors


def test_the_best_code_that_a_processor_runs_is_taken(model: bytes, expected: np.ndarray, tmp_path: Path) -> None:
    need_emulator("x86_64-max")
    compilation = tw.Compilation(model, "x86-64", threads=2, cpus=["x86-64-v2", "x86-64-v3", "x86-64-v4"])
    compilation.export_library(tmp_path / "model.so")
    x = small_models.image()
    (tmp_path / "which.c").write_text(
        '#include <stdio.h>\n#include <string.h>\n#include "model.h"\n'
        "int main(void) { float x[MODEL_INPUT_0_COUNT] = {0}, "
        "y[MODEL_OUTPUT_0_COUNT]; void *in[] = {x}, *out[] = {y}; int code = model_run(in, out, 0);"
        'printf("%d %.15s %s", code, strstr(model_metadata(), "cpu"), model_message(code)); return 0; }'
    )
    options = [str(tmp_path / "model.so"), f"-I{tmp_path}", f"-Wl,-rpath,{tmp_path}"]
    program = build_program(tmp_path / "which.c", "x86_64", *options)
    # QEMU's Haswell is the third level; its oldest 64-bit processor is none of them.
    assert "x86-64-v2" in emulated("x86_64-Nehalem", program).stdout
    assert "x86-64-v3" in emulated("x86_64-Haswell", program).stdout
    assert "x86-64-v2" in emulated("x86_64-Haswell", program, TILEWRIGHT_CPU="x86-64-v2").stdout
    for cpu, wanted in (("x86_64-Nehalem", "x86-64-v3"), ("x86_64-Haswell", "gameboy")):
        assert emulated(cpu, program, TILEWRIGHT_CPU=wanted).stdout.startswith("4 ")
    refused = emulated("x86_64-qemu64", program).stdout
    assert refused.startswith("4 ") and "no code that this processor can run" in refused
    for cpu in ("x86_64-Nehalem", "x86_64-Haswell"):
        (result,) = run_exported([x], [expected], tmp_path, cpu)
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


HOST_LEVELS = {"x86_64": ["x86-64", "x86-64-v2"], "aarch64": ["armv8-a", "armv8-a+lse"]}


def test_levels_of_this_machine_run_from_python(
    model: bytes, expected: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpus = HOST_LEVELS[tw.Target("native").arch]
    compilation = tw.Compilation(model, threads=1, cpus=cpus)
    compilation.export_library(tmp_path / "both.so", name="both")
    loaded = tw.load(tmp_path / "both.so")
    assert isinstance(loaded, tw.runtime.Executable)
    assert loaded.artifact.features or loaded.artifact.cpu == cpus[1], "the last that this machine can run"
    x = small_models.image()
    np.testing.assert_allclose(np.asarray(loaded(x)), expected, rtol=1e-4, atol=1e-5)
    assert "kernel calls" in str(loaded.profile(x)), "kernels are found under the level's names"
    script = "import sys, tilewright as tw; print(tw.load(sys.argv[1]).artifact.features or 'none')"
    monkeypatch.setenv("TILEWRIGHT_CPU", "gameboy")
    command = [sys.executable, "-c", script, str(tmp_path / "both.so")]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "not the one that TILEWRIGHT_CPU names" in refused.stderr
    first = "x86-64" if cpus[0] == "x86-64" else "generic"
    monkeypatch.setenv("TILEWRIGHT_CPU", first)
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "none\n"


def test_weights_that_levels_have_alike_are_stored_once(model: bytes) -> None:
    cpus = HOST_LEVELS[tw.Target("native").arch]
    first, second = (tw.Compilation(model, threads=1, cpus=[cpu]).artifact() for cpu in cpus)
    assert first.model is not None and np.array_equal(first.constants, second.constants)
    joined = join_levels([first, second]).artifact
    padding = 64 * (len(first.model.constants) + 1)
    assert first.constants.nbytes <= joined.constants.nbytes <= first.constants.nbytes + padding
    second.constants = second.constants.copy()
    second.constants[:] += 1
    apart = join_levels([first, second])
    assert apart.artifact.constants.nbytes >= 2 * first.constants.nbytes
    for level, source in zip(apart.levels, (first, second), strict=True):
        assert level.model is not None and source.model is not None
        for moved, old in zip(level.model.constants, source.model.constants, strict=True):
            kept = apart.artifact.constants[moved.offset : moved.offset + 4]
            assert np.array_equal(kept, source.constants[old.offset : old.offset + 4])


def test_levels_of_a_model_whose_sizes_a_call_decides(tmp_path: Path) -> None:
    rows = rows_model()
    cpus = HOST_LEVELS[tw.Target("native").arch]
    compilation = tw.Compilation(rows, threads=1, cpus=cpus, specialize=[{"rows": 4}])
    compilation.export_library(tmp_path / "rows.so")
    loaded = tw.load(tmp_path / "rows.so")
    assert isinstance(loaded, tw.runtime.Executable)
    for count in (1, 4, 7):
        x = np.random.default_rng(count).random((count, 3), np.float32)
        np.testing.assert_array_equal(np.asarray(loaded(x)), x + x)


def test_wrong_processors_are_errors(model: bytes, tmp_path: Path) -> None:
    host = HOST_LEVELS[tw.Target("native").arch]
    with pytest.raises(UserError, match="is given twice"):
        tw.Compilation(model, cpus=[host[0], host[0]]).export_library(tmp_path / "x.so")
    with pytest.raises(UserError, match="code for several processors is for libraries") as caught:
        tw.compile(model, cpus=host)
    assert "tw.load" in str(caught.value.hint)
    with pytest.raises(UserError, match="cpus are texts in a list"):
        tw.Compilation(model, cpus="x86-64-v2")
    with pytest.raises(UserError, match="'x86-64-v2\\+' is not a processor"):
        tw.Compilation(model, "x86-64", cpus=["x86-64-v2+"])
    with pytest.raises(UserError, match="the target kind 'wasm' has no libraries"):
        tw.Compilation(model, "wasm", cpus=["mvp"])
    with pytest.raises(UserError, match="unknown processor 'x86-64-v9'"):
        tw.Compilation(model, "x86-64", cpus=["x86-64-v9"])
    with pytest.raises(UnsupportedError, match="whether it has the feature 'xop'"):
        tw.Compilation(model, "x86-64", cpus=["x86-64", "x86-64+xop"]).export_library(tmp_path / "x.so")
    with pytest.raises(UnsupportedError, match="several processors of arm64-apple-macosx"):
        tw.Compilation(model, "macos-arm64", cpus=["apple-m1", "apple-m2"]).export_library(tmp_path / "x.dylib")
    assert not list(tmp_path.iterdir())


def test_a_linker_without_import_libraries_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of LLVM 14: it takes `/def:` for the name of a file."""
    need("lld-link")
    old = tmp_path / "lld-link"
    old.write_text('#!/bin/sh\necho "$1: no such file or directory" >&2\nexit 1\n')
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert find_linker("x86_64-pc-windows-msvc").command != (str(old),)
