"""Loading objects into the process."""

from __future__ import annotations

import ctypes
import gc
import math

import pytest

from tilewright.backends.llvm import jit, toolchain
from tilewright.runtime.core.library import bind
from tilewright.support.errors import CompilerBug

TEXT = """
declare i32 @imported(i32)
declare float @expf(float)
declare i32 @other(i32)
@counter = internal global i32 5
define i32 @f(i32 %x) {
  %more = load i32, ptr @counter
  %y = call i32 @imported(i32 %x)
  %z = call i32 @other(i32 %y)
  %r = add i32 %z, %more
  ret i32 %r
}
define float @exponential(float %x) {
  %y = call float @expf(float %x)
  ret float %y
}
"""
OTHER = "define i32 @other(i32 %x) {\n %y = mul i32 %x, 10\n ret i32 %y\n}"


def _object(text: str) -> bytes:
    return toolchain.compile_ir(text, triple=toolchain.host_triple())


def test_objects_imports_and_process_symbols() -> None:
    callback = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32)(lambda x: x + 1)
    address = ctypes.cast(callback, ctypes.c_void_p).value or 0
    library = jit.JitLibrary([_object(TEXT), _object(OTHER)], {"imported": address})
    function = bind(library, "f", ctypes.c_int32, ctypes.c_int32)
    assert function(3) == 45
    assert bind(library, "exponential", ctypes.c_float, ctypes.c_float)(1.0) == pytest.approx(math.e, rel=1e-6)
    assert library.find("imported") == address


def test_functions_keep_the_library_alive() -> None:
    function = bind(jit.JitLibrary([_object(OTHER)]), "other", ctypes.c_int32, ctypes.c_int32)
    for _ in range(20):
        jit.JitLibrary([_object(OTHER)]).symbol("other")
    gc.collect()
    assert function(7) == 70


def test_missing_symbol() -> None:
    library = jit.JitLibrary([_object(OTHER)])
    assert library.find("nothing") is None
    with pytest.raises(CompilerBug, match="no symbol 'nothing'"):
        library.symbol("nothing")


def test_undefined_symbol_is_named() -> None:
    library = jit.JitLibrary(
        [_object("declare i32 @nowhere()\ndefine i32 @g() { %x = call i32 @nowhere()\n ret i32 %x }")]
    )
    with pytest.raises(CompilerBug, match="nowhere"):
        library.symbol("g")


def test_libraries_may_define_the_same_names() -> None:
    one = jit.JitLibrary([_object("define i32 @same() { ret i32 1 }")])
    two = jit.JitLibrary([_object("define i32 @same() { ret i32 2 }")])
    assert bind(one, "same", ctypes.c_int32)() == 1
    assert bind(two, "same", ctypes.c_int32)() == 2


def test_broken_object() -> None:
    with pytest.raises(CompilerBug, match="JIT linker rejected"):
        jit.JitLibrary([b"this is no object"])
