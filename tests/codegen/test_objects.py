"""Objects of all formats: data becomes one, symbols get other names; and 64-bit arithmetic of 32-bit Arm."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.integration.emulation import build_program, emulated, need_emulator
from tests.requirements import need
from tilewright.backends.llvm import link, toolchain
from tilewright.backends.llvm.arm_arithmetic import arithmetic_objects
from tilewright.backends.llvm.objects import defined_symbols, renamed_symbols, undefined_symbols, write_data_object
from tilewright.backends.llvm.pool import has_threads, pool_object

TRIPLES = [
    "x86_64-linux-gnu",
    "aarch64-linux-android28",
    "armv7-linux-gnueabihf",
    "riscv64-linux-musl",
    "x86_64-pc-windows-msvc",
    "aarch64-pc-windows-msvc",
    "arm64-apple-macosx11.0",
    "x86_64-apple-macosx11.0",
]
CODE = """
declare i32 @a_function_from_elsewhere(i32)
@short = global i32 3
define internal i32 @inside(i32 %x) noinline { ret i32 %x }
define i32 @kernel_with_a_long_name(i32 %x) {
  %a = call i32 @inside(i32 %x)
  %b = call i32 @a_function_from_elsewhere(i32 %a)
  ret i32 %b
}
"""


def compiled(text: str, triple: str) -> bytes:
    return toolchain.compile_ir(text, triple=triple, features=toolchain.plain_features(triple), opt_level=0)


@pytest.mark.parametrize("triple", TRIPLES)
def test_symbols_are_read_and_renamed(triple: str) -> None:
    image = compiled(CODE, triple)
    unwinding = {"__aeabi_unwind_cpp_pr0"}
    assert {"short", "kernel_with_a_long_name"} <= defined_symbols(image)
    assert "inside" not in defined_symbols(image)
    assert undefined_symbols(image) - unwinding == {"a_function_from_elsewhere"}
    names = {"short": "no_longer_short", "kernel_with_a_long_name": "k", "a_function_from_elsewhere": "elsewhere"}
    changed = renamed_symbols(image, names)
    assert {"no_longer_short", "k"} <= defined_symbols(changed)
    assert not {"short", "kernel_with_a_long_name"} & defined_symbols(changed)
    assert undefined_symbols(changed) - unwinding == {"elsewhere"}
    assert renamed_symbols(image, {}) != b"" and defined_symbols(renamed_symbols(image, {})) == defined_symbols(image)


@pytest.mark.parametrize("triple", TRIPLES)
def test_data_is_linked_with_code(triple: str, tmp_path: Path) -> None:
    data = np.random.default_rng(0).integers(0, 256, 1000, dtype=np.uint8)
    write_data_object(tmp_path / "data.o", "the_data", data, triple=triple)
    image = (tmp_path / "data.o").read_bytes()
    assert defined_symbols(image) == {"the_data"} and not undefined_symbols(image)
    assert renamed_symbols(image, {"the_data": "d"}) != image
    code = "@the_data = external hidden global i8\ndefine ptr @where() { ret ptr @the_data }"
    (tmp_path / "code.o").write_bytes(compiled(code, triple))
    extra = [tmp_path / f"{number}.o" for number, _ in enumerate(arithmetic_objects(triple))]
    for path, content in zip(extra, arithmetic_objects(triple), strict=True):
        path.write_bytes(content)
    need("linker", "lld-link", "ld64")
    link.link_shared(
        [tmp_path / "code.o", *extra],
        tmp_path / "library",
        triple=triple,
        data_objects={"the_data": tmp_path / "data.o"},
        work_folder=tmp_path,
        exports=["where"],
    )
    linked = (tmp_path / "library").read_bytes()
    assert data.tobytes() in linked
    if linked.startswith(b"\x7fELF"):
        assert b"the_data" not in linked, "hidden names are not carried along"


@pytest.mark.parametrize("triple", TRIPLES)
def test_the_pool_has_threads_on_every_system(triple: str) -> None:
    assert has_threads(triple)
    assert {"tw_parallel", "tw_alloc", "tw_free"} <= defined_symbols(pool_object(triple, hidden=True))


def test_a_pool_without_a_system_is_serial() -> None:
    assert not has_threads("thumbv7em-none-eabi")


OPERATIONS = {
    "udivide": ("i64", "i64", "udiv i64 %a, %b"),
    "uremainder": ("i64", "i64", "urem i64 %a, %b"),
    "divide": ("i64", "i64", "sdiv i64 %a, %b"),
    "remainder": ("i64", "i64", "srem i64 %a, %b"),
    "to_float": ("float", "i64", "sitofp i64 %a to float"),
    "to_ufloat": ("float", "i64", "uitofp i64 %a to float"),
    "to_double": ("double", "i64", "sitofp i64 %a to double"),
    "to_udouble": ("double", "i64", "uitofp i64 %a to double"),
    "from_double": ("i64", "double", "fptosi double %a to i64"),
    "from_float": ("i64", "float", "fptosi float %a to i64"),
    "from_udouble": ("i64", "double", "fptoui double %a to i64"),
}

# The compiler of C has functions of its own for all of these: they must agree, bit for bit.
COMPARING = r"""
#include <math.h>
#include <stdint.h>
uint64_t udivide(uint64_t, uint64_t), uremainder(uint64_t, uint64_t), from_udouble(double);
int64_t divide(int64_t, int64_t), remainder_(int64_t, int64_t) __asm__("remainder");
int64_t from_double(double), from_float(float);
float to_float(int64_t), to_ufloat(uint64_t);
double to_double(int64_t), to_udouble(uint64_t);
static uint64_t state = 88172645463325252ull;
static uint64_t random_number(void) {
  state ^= state << 13; state ^= state >> 7; state ^= state << 17;
  return state >> (state >> 40 & 63);
}
int main(void) {
  for (int i = 0; i < 100000; ++i) {
    uint64_t a = random_number(), b = random_number() | !(i & 1023);
    if (!b) b = 1;
    if (udivide(a, b) != a / b || uremainder(a, b) != a % b) return 1;
    int64_t x = (int64_t)(i & 1 ? 0 - a : a), y = (int64_t)(i & 2 ? 0 - b : b);
    if (y == -1 || !y) continue;
    if (divide(x, y) != x / y || remainder_(x, y) != x % y) return 2;
    if (to_float(x) != (float)x || to_ufloat(a) != (float)a) return 3;
    if (to_double(x) != (double)x || to_udouble(a) != (double)a) return 4;
    double d = (double)x * 0.37;
    if (from_double(d) != (int64_t)d || from_float((float)d) != (int64_t)(float)d) return 5;
    if (from_udouble(fabs(d)) != (uint64_t)fabs(d)) return 6;
  }
  return 0;
}
"""


def test_arithmetic_of_64_bits_on_32_bit_arm(tmp_path: Path) -> None:
    need_emulator("arm")
    triple = "armv7-linux-gnueabihf"
    functions = [
        f"define {result} @{name}({kind} %a, {kind} %b) {{ %r = {text}\n ret {result} %r }}"
        for name, (result, kind, text) in OPERATIONS.items()
    ]
    (tmp_path / "code.o").write_bytes(compiled("\n".join(functions), triple))
    [arithmetic] = arithmetic_objects(triple)
    (tmp_path / "arithmetic.o").write_bytes(arithmetic)
    objects = [tmp_path / "code.o", tmp_path / "arithmetic.o"]
    library = tmp_path / "operations.so"
    link.link_shared(objects, library, triple=triple, data_objects={}, work_folder=tmp_path, exports=list(OPERATIONS))
    (tmp_path / "main.c").write_text(COMPARING)
    program = build_program(tmp_path / "main.c", "arm", str(library), f"-Wl,-rpath,{tmp_path}", "-lm")
    assert emulated("arm", program).returncode == 0
