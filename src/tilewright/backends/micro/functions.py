"""Lowered kernels as C for microcontrollers: `static` functions that ask nobody for memory.

The texts of several kernels may stand in one file, one after the other: what they share is guarded.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar, Final

from tilewright.backends.c.dialect import BIT_COUNTS, INCLUDES, CSource
from tilewright.backends.c.functions import CFunction, overlapping_parameters
from tilewright.backends.micro.dialect import WORDS, MicroC
from tilewright.codegen.c.helpers import Helpers
from tilewright.codegen.captures import Capture
from tilewright.codegen.symbols import check_symbols
from tilewright.ir.visit import pre_order
from tilewright.support.errors import CompilerBug
from tilewright.target.target import Target
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.function import PrimFunc
from tilewright.tir.stmt import Allocate, BufferStore, Evaluate

PREAMBLE: Final = f"""\
{INCLUDES}#include <string.h>
#ifndef TW_KERNEL
#if defined(__GNUC__)
#define TW_KERNEL static __attribute__((noinline))
#else
#define TW_KERNEL static
#endif
{BIT_COUNTS}{WORDS}#endif
"""
"""Kernels stay functions of their own: the stack is that of the hungriest one, and a profile has their names."""


def emit_kernels(funcs: Sequence[PrimFunc], target: Target) -> str:
    """The C text of lowered functions."""
    check_symbols(func.name for func in funcs)
    helpers = Helpers(MicroC())
    kernels = [_kernel(func, helpers) for func in funcs]
    guarded = [
        f"#ifndef {name.upper()}_DEFINED\n#define {name.upper()}_DEFINED\n{text}\n#endif"
        for name, text in helpers.texts.items()
    ]
    return "\n".join([PREAMBLE, *guarded, *kernels])


def _kernel(func: PrimFunc, helpers: Helpers) -> str:
    function = _Kernel(func, helpers)
    parameters = ", ".join(function.parameter(param) for param in func.params)
    head = f"TW_KERNEL int32_t {func.name}({parameters or 'void'})"
    return function.text(head, func.body, partial(function.statement, func.body))


class _Kernel(CFunction):
    dialect: ClassVar[type[CSource]] = MicroC
    alignment: ClassVar[int] = 8

    def __init__(self, func: PrimFunc, helpers: Helpers) -> None:
        super().__init__(func.name, helpers, [], overlapping_parameters(func))
        self._written = _written_buffers(func)

    def parameter(self, param: Capture) -> str:
        """The declaration of a parameter; memory that is only read may be flash."""
        text = super().parameter(param)
        return f"const {text}" if isinstance(param, Buffer) and param not in self._written else text

    def allocate_on_heap(self, stmt: Allocate) -> None:
        """There is no heap: sizes are constant, and scratch memory is the arena's."""
        raise CompilerBug(f"the buffer {stmt.buffer.name} of a kernel for a microcontroller is no part of its arena")


def _written_buffers(func: PrimFunc) -> set[Buffer]:
    """What a function writes, or gives to functions that may."""
    written: set[Buffer] = set()
    for item in pre_order(func.body):
        if isinstance(item, BufferStore):
            written.add(item.buffer)
        elif isinstance(item, Evaluate):
            written.update(part.buffer for part in pre_order(item.value) if isinstance(part, BufferLoad))
    return written
