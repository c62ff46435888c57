"""LLVM IR to machine code, and what broken IR and unknown targets say."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tilewright.backends.llvm import toolchain
from tilewright.backends.llvm.objects import defined_symbols, undefined_symbols
from tilewright.support.errors import CompilerBug, UserError

ADD_ONE = """
declare float @expf(float)
define i32 @add_one(ptr noalias %a, ptr noalias %b, i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %from = getelementptr float, ptr %a, i64 %i
  %value = load float, ptr %from
  %sum = fadd float %value, 1.0
  %to = getelementptr float, ptr %b, i64 %i
  store float %sum, ptr %to
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  ret i32 0
}
define float @exponential(float %x) {
  %y = call float @expf(float %x)
  ret float %y
}
"""


@pytest.mark.parametrize("triple", ["x86_64-linux-gnu", "aarch64-linux-gnu", "riscv64-linux-gnu"])
@pytest.mark.parametrize("opt_level", [0, 2])
def test_objects_for_every_architecture(triple: str, opt_level: int) -> None:
    features = "+m,+a,+f,+d,+c" if triple.startswith("riscv64") else ""
    image = toolchain.compile_ir(ADD_ONE, triple=triple, features=features, opt_level=opt_level)
    assert defined_symbols(image) == {"add_one", "exponential"}
    assert undefined_symbols(image) - {"_GLOBAL_OFFSET_TABLE_"} == {"expf"}


def test_optimizer_vectorizes_for_the_processor() -> None:
    assembly = toolchain.emit_assembly(ADD_ONE, triple="x86_64-linux-gnu", cpu="skylake-avx512")
    assert "ymm" in assembly or "zmm" in assembly
    plain = toolchain.emit_assembly(ADD_ONE, triple="x86_64-linux-gnu", cpu="skylake-avx512", opt_level=0)
    assert "ymm" not in plain


ADD_FOUR = """
define internal i32 @part(ptr noalias %a, ptr %kept, i64 %n) {
entry:
  store i64 %n, ptr %kept
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %from = getelementptr float, ptr %a, i64 %i
  %value = load <4 x float>, ptr %from, align 4
  %sum = fadd <4 x float> %value, splat (float 1.0)
  store <4 x float> %sum, ptr %from, align 4
  %next = add i64 %i, 4
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  ret i32 0
}
define i32 @whole(ptr noalias %a, i64 %n) {
  %kept = alloca i64
  %code = call i32 @part(ptr %a, ptr %kept, i64 %n)
  ret i32 %code
}
"""


def test_only_code_without_vectors_is_searched_for_them() -> None:
    """Modules that store vectors alone have functions simplified; a single store of an element, and all passes run."""
    scalar = ADD_FOUR.replace("  store <4 x float> %sum", "  store float 1.0, ptr %a\n  store <4 x float> %sum")
    assert toolchain.has_vectors_written_out(ADD_FOUR)
    assert not any(map(toolchain.has_vectors_written_out, (scalar, ADD_ONE, "define void @f() {\n  ret void\n}")))
    options = {"triple": "x86_64-linux-gnu", "cpu": "skylake-avx512"}
    written, searched = (toolchain.emit_assembly(text, **options) for text in (ADD_FOUR, scalar))
    # Simplified, not more: the function inside is called and not copied into its caller.
    assert "callq\tpart" in written and "callq\tpart" not in searched
    assert "vaddps" in written and "rbp" not in written


def test_ir_that_does_not_parse_shows_the_line() -> None:
    with pytest.raises(CompilerBug) as caught:
        toolchain.compile_ir("define i32 @f() {\n  %x = fadx float 1.0, 2.0\n  ret i32 0\n}", triple="x86_64-linux-gnu")
    text = str(caught.value)
    assert "expected instruction opcode" in text
    assert ">     2 |   %x = fadx float 1.0, 2.0" in text


def test_ir_that_does_not_verify() -> None:
    broken = (
        "define i32 @f() {\nentry:\n  br label %b\nb:\n  %x = phi i32 [ 1, %entry ], [ 2, %entry ]\n  ret i32 %x\n}"
    )
    with pytest.raises(CompilerBug, match="verifier"):
        toolchain.compile_ir(broken, triple="x86_64-linux-gnu")


def test_unknown_triple_and_level() -> None:
    with pytest.raises(UserError, match="no target for the triple 'pdp11-unix'"):
        toolchain.compile_ir(ADD_ONE, triple="pdp11-unix")
    with pytest.raises(UserError, match="expected 0, 1, 2 or 3"):
        toolchain.compile_ir(ADD_ONE, triple="x86_64-linux-gnu", opt_level=4)


def test_host_is_described() -> None:
    assert toolchain.host_triple()
    assert "llvmlite" in toolchain.llvm_version()


def test_importing_does_not_load_llvm() -> None:
    code = (
        "import sys, tilewright.backends.llvm.deploy, tilewright.runtime\n"
        "assert not any(name.startswith('llvmlite') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
