"""The text of a program and its assembly, which are files like the stages before them (`ir/stage_files.py`).

code.<program>/00_source.ll        LLVM IR, or the text of kernels in the language of a device (.cu, .cl, .wgsl, ...)
code.<program>/01_assembly.s       where the compiler has one
"""

from __future__ import annotations

from tilewright.backends.compiler import Compiler
from tilewright.ir.stage_files import StageFiles, StageText
from tilewright.support import settings, trace
from tilewright.target.target import Target


def compile_source(name: str, text: str, suffix: str, compiler: Compiler, target: Target) -> bytes:
    """The code of a program's text, or of the files in its place and in that of its assembly."""
    source = staged_source(name, text, suffix, compiler)
    with trace.span("compile"), source.blamed():
        code = compiler.compile(source.text, target)
    if compiler.assembly is None or not settings.stages_are_files():
        return code
    assembly = staged_assembly(name, source, compiler, target)
    with assembly.blamed():
        return code if assembly.place is None else compiler.assembly.assemble(assembly.text, target)


def staged_source(name: str, text: str, suffix: str, compiler: Compiler) -> StageText:
    """A program's text as it goes on to the compiler: what was emitted, or the file in its place."""
    return _files(name, compiler).text(0, suffix, lambda: text)


def staged_assembly(name: str, source: StageText, compiler: Compiler, target: Target) -> StageText:
    """The assembly of a program: what its compiler, which has one, makes of the text, or the file in its place."""

    def emit() -> str:
        assert compiler.assembly is not None
        with source.blamed():
            return compiler.assembly.emit(source.text, target)

    return _files(name, compiler).text(1, ".s", emit)


def _files(name: str, compiler: Compiler) -> StageFiles:
    return StageFiles("code", name, ("source",) if compiler.assembly is None else ("source", "assembly"))
