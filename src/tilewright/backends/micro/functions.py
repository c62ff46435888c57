"""Lowered kernels as C for microcontrollers: `static` functions that ask nobody for memory.

The texts of several kernels may stand in one file, one after the other: what they share is guarded.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar, Final

from tilewright.backends.c.dialect import BIT_COUNTS, INCLUDES, CSource
from tilewright.backends.c.functions import CFunction, is_lane_by_lane, overlapping_parameters
from tilewright.backends.micro.dialect import WORDS, MicroC
from tilewright.backends.micro.vectors import FUNCTIONS, VectorStores
from tilewright.backends.micro.vectors import TEXT as VECTORS
from tilewright.codegen.c.helpers import Helpers
from tilewright.codegen.captures import Capture
from tilewright.codegen.symbols import check_symbols
from tilewright.ir.expr import Broadcast, Call, IntImm, PrimExpr, Ramp, StringImm, is_const_int
from tilewright.ir.visit import pre_order
from tilewright.support.errors import CompilerBug
from tilewright.target.target import Target
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.function import PrimFunc
from tilewright.tir.stmt import Allocate, BufferStore, Evaluate

_WORD: Final = 4
"""Bytes that are copied at once at least."""
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
    has_vectors = target.has_feature("mve.fp")
    if has_vectors:
        helpers.texts[FUNCTIONS] = VECTORS
    kernels = [_kernel(func, helpers, has_vectors) for func in funcs]
    guarded = [
        f"#ifndef {name.upper()}_DEFINED\n#define {name.upper()}_DEFINED\n{text}\n#endif"
        for name, text in helpers.texts.items()
    ]
    return "\n".join([PREAMBLE, *guarded, *kernels])


def _kernel(func: PrimFunc, helpers: Helpers, has_vectors: bool) -> str:
    function = _Kernel(func, helpers, has_vectors)
    parameters = ", ".join(function.parameter(param) for param in func.params)
    head = f"TW_KERNEL int32_t {func.name}({parameters or 'void'})"
    return function.text(head, func.body, partial(function.statement, func.body))


class _Kernel(CFunction):
    dialect: ClassVar[type[CSource]] = MicroC
    alignment: ClassVar[int] = 8

    def __init__(self, func: PrimFunc, helpers: Helpers, has_vectors: bool) -> None:
        super().__init__(func.name, helpers, [], overlapping_parameters(func))
        self._written = _written_buffers(func)
        self._vectors = VectorStores(self.values, self.lanes) if has_vectors else None

    def parameter(self, param: Capture) -> str:
        """The declaration of a parameter; memory that is only read may be flash."""
        text = super().parameter(param)
        return f"const {text}" if isinstance(param, Buffer) and param not in self._written else text

    def store(self, stmt: BufferStore, mask: PrimExpr | None) -> None:
        """Emit a store; vectors are copied and filled at once, and computed in registers where there are some."""
        if (
            mask is not None
            or stmt.value.dtype.lanes == 1
            or not is_lane_by_lane(stmt, mask)
            or (not self._copy(stmt) and (self._vectors is None or not self._vectors.store(stmt)))
        ):
            super().store(stmt, mask)

    def _copy(self, stmt: BufferStore) -> bool:
        """Copy a run of elements, or fill it with a byte, by a function that compilers know; False for other stores."""
        c, value, index = self.values, stmt.value, stmt.indices[0]
        size = value.dtype.lanes * stmt.buffer.dtype.itemsize
        if not isinstance(index, Ramp) or not is_const_int(index.stride, 1) or size % _WORD:
            return False
        if isinstance(value, Broadcast) and isinstance(value.value, IntImm) and stmt.buffer.dtype.bits == 8:
            c.start(index.base)
            c.line(f"memset({c.name(stmt.buffer)} + {c.value(index.base)}, {value.value.value}, {size});")
            return True
        if not isinstance(value, BufferLoad) or value.buffer.dtype is not stmt.buffer.dtype:
            return False
        place = value.indices[0]
        if not isinstance(place, Ramp) or not is_const_int(place.stride, 1) or value.buffer is stmt.buffer:
            return False
        if self.may_overlap(value.buffer, stmt.buffer):
            return False
        c.start(index.base, place.base)
        source = f"{c.name(value.buffer)} + {c.value(place.base)}"
        c.line(f"memcpy({c.name(stmt.buffer)} + {c.value(index.base)}, {source}, {size});")
        return True

    def evaluate(self, stmt: Evaluate) -> None:
        """A function of ours is called as it is: it cannot fail."""
        value = stmt.value
        if isinstance(value, Call) and value.name == "call_extern" and isinstance(value.args[0], StringImm):
            function = self.values.helpers.instruction(value.args[0].value)
            if function is not None:
                self.values.line(f"{function}({', '.join(self.arguments(value.args[1:]))});")
                return
        super().evaluate(stmt)

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
            written.update(_given_to_write(item.value))
    return written


def _given_to_write(call: PrimExpr) -> set[Buffer]:
    """The buffers whose addresses a call gets, but for those that it says it only reads."""
    pointers = [part for part in pre_order(call) if isinstance(part, Call) and part.name == "access_ptr"]
    only_read = {
        part.args[1].buffer for part in pointers if _is_only_read(part) and isinstance(part.args[1], BufferLoad)
    }
    return {part.buffer for part in pre_order(call) if isinstance(part, BufferLoad)} - only_read


def _is_only_read(pointer: Call) -> bool:
    mode = pointer.args[0]
    return isinstance(mode, StringImm) and mode.value == "r"
