"""The binding for C: its own tests and its example, in a folder of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.bindings.languages import BINDINGS, LANGUAGES, check_binding, check_example, make
from tests.integration import small_models
from tests.requirements import need, need_tool
from tilewright.compiler import Compilation
from tilewright.target import Target

need("make", *LANGUAGES["c"].needs)


def test_every_part_works(models: Path, build: Path) -> None:
    check_binding("c", models, build)


def test_the_thread_sanitizer_finds_nothing(models: Path, tmp_path: Path) -> None:
    check_binding("c", models, tmp_path, "SANITIZE=-g1 -O1 -fsanitize=thread")


def test_the_example_classifies(models: Path, build: Path) -> None:
    check_example("c", models, build)


@pytest.mark.parametrize("count", [100, pytest.param(2000, marks=pytest.mark.fuzz)])
def test_damaged_libraries_are_refused(models: Path, build: Path, count: int) -> None:
    make("c", "all", models, build)
    command = [sys.executable, "-m", "tests.bindings.damage", str(build / "libtilewright.so"), str(models)]
    done = subprocess.run([*command, str(count), "0"], capture_output=True, text=True, check=False)
    assert done.stdout == f"{count} libraries refused\n", done.stderr


def _declared() -> set[str]:
    """The functions of the header."""
    header = (BINDINGS / "c" / "include" / "tilewright.h").read_text(encoding="utf-8")
    return set(re.findall(r"\b(tilewright_\w+)\(", header))


def test_the_runtime_is_built_for_windows(models: Path, build: Path) -> None:
    """Its DLL gives what the header declares, and needs nothing but the system; programs link with it."""
    compiler = need_tool("mingw", "x86_64-w64-mingw32-gcc", "x86_64-w64-mingw32-gcc-win32")
    make("c", "windows", models, build, f"WINDOWS_CC={compiler}")
    dump = compiler.replace("-gcc-win32", "-objdump").replace("-gcc", "-objdump")
    said = subprocess.run(
        [dump, "-p", str(build / "tilewright.dll")], capture_output=True, text=True, check=True
    ).stdout
    exported = set(re.findall(r"\[ *\d+\].*?(tilewright_\w+)", said.split("[Ordinal/Name Pointer] Table")[1]))
    assert exported == _declared()
    assert set(re.findall(r"DLL Name: (\S+)", said)) <= {"KERNEL32.dll", "msvcrt.dll", "ucrtbase.dll"}
    program = build / "linked.exe"
    libraries = [str(build / "libtilewright.dll.a"), "-o", str(program)]
    example = str(BINDINGS / "c" / "example" / "classify.c")
    subprocess.run([compiler, "-std=c11", f"-I{BINDINGS / 'c' / 'include'}", example, *libraries], check=True)


_READER = r"""
#include "seal.c"
#include "pe.c"
int main(int count, char** names) {
  image image = {-1, NULL, 0, 0};
  static unsigned char bytes[1 << 22];
  FILE* file = fopen(names[1], "rb");
  tilewright_error error = {0};
  uint64_t content, layout;
  size_t length;
  image.bytes = bytes;
  image.size = fread(bytes, 1, sizeof bytes, file);
  if (check_identity(&image, "it", &error) || check_seal(&image, &content, "it", &error) ||
      check_layout(&image, &layout, "it", &error))
    return puts(error.message), 1;
  if (content < layout || (content > layout && content == image.size)) return puts("the seal is damaged"), 1;
  const char* name = find_symbol(&image, NULL, "__tilewright", &length);
  if (name == NULL) return puts("no name"), 1;
  const char* interface = find_symbol(&image, name, "__interface", &length);
  printf("%.*s %s %d\n", (int)length, name, interface, content == layout && count == 2);
  return 0;
}
"""


def test_dlls_are_read_as_windows_reads_them(tmp_path: Path, build: Path) -> None:
    """What the runtime makes of a DLL before it is loaded, here: its names, and every kind of damage refused."""
    need("lld-link")
    target = "windows-arm64" if Target("native").arch == "aarch64" else "windows-x86-64"
    library = tmp_path / "small.dll"
    Compilation(
        bytes(small_models.classifier(channels=4).SerializeToString()), target=target, threads=1
    ).export_library(library)
    (tmp_path / "reader.c").write_text(_READER, encoding="utf-8")
    folder = BINDINGS / "c" / "src"
    flags = ["-std=c11", "-w", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", f"-I{folder}"]
    reader = str(tmp_path / "reader")
    subprocess.run(["cc", *flags, str(tmp_path / "reader.c"), "-o", reader], check=True)

    def read(content: bytes) -> tuple[int, str]:
        (tmp_path / "some.dll").write_bytes(content)
        command = [reader, str(tmp_path / "some.dll")]
        # Looking for leaks at the end takes longer than all the rest.
        quick = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=quick)
        assert done.returncode in (0, 1), done.stderr
        return done.returncode, done.stdout

    good = library.read_bytes()
    assert read(good) == (0, "small small__interface 1\n")
    for size in (0, 2, 63, 200, len(good) // 2, len(good) - 1):
        assert read(good[:size])[0] == 1
    random = np.random.default_rng(0)
    for _ in range(20):
        damaged = bytearray(good)
        damaged[int(random.integers(600))] ^= 1 << int(random.integers(8))
        assert read(bytes(damaged))[0] == 1, "the checksum covers all of it"
        # Without a seal nothing but the parts themselves tells: never a crash.
        read(bytes(damaged[:-12]))
