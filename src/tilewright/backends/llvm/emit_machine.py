"""Calls of processor instructions (`tir/machine.py`) as LLVM intrinsics, and the matrix tile registers of x86.

Values (dot products) are ordinary vectors. Tiles are registers with fixed numbers: a tile of a buffer of scope `tile`
gets the next free register when it is first met, and the function that uses any configures them all when it starts and
gives them up when it leaves. A process must ask the kernel for tiles once; the first call does.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.backends.llvm.context import FunctionContext
from tilewright.backends.llvm.emit_memory import element_address, neighbours, run_around
from tilewright.backends.llvm.types import register_type
from tilewright.ir.dtype import INT32, DataType
from tilewright.ir.expr import Call, IntImm, PrimExpr, Ramp, const_value
from tilewright.support.errors import CompilerBug, UnsupportedError
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.machine import TILE_SCOPE, Instruction, find_instruction

TILES_REFUSED = 3
"""The code a kernel returns when the operating system does not let the process use matrix tiles."""
_REGISTERS = 8
_ARM_BYTES = 16
_SYMMETRIC = ("arm.sdot", "arm.udot")
"""Dot products whose factors may change places."""
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18


def emit_machine(c: FunctionContext, expr: Call) -> str:
    """The value of an instruction's call."""
    instruction = find_instruction(expr.name)
    instruction.require(c.target)
    if instruction.name.startswith("amx."):
        return _tile_instruction(c, instruction, expr)
    if instruction.name.startswith("arm.interleave4"):
        return _interleaved(c, [c.value(arg) for arg in expr.args], expr.args[0].dtype.lanes)
    width = expr.dtype.lanes * expr.dtype.bits
    values = [_argument(c, arg, width) for arg in expr.args]
    if instruction.name in _SYMMETRIC:
        # The second factor may be one lane of a register.
        values[1], values[2] = values[2], values[1]
    types = ", ".join(value.rpartition(" ")[0] for value in values)
    result = _value_type(expr.dtype)
    function = c.module.declare(instruction.llvm, result, types, "")
    return c.op(f"call {result} {function}({', '.join(values)})")


def _interleaved(c: FunctionContext, rows: list[str], lanes: int) -> str:
    """Bytes of four vectors in turn: of two and two, then pairs of bytes of both."""
    pairs = (_in_turn(c, rows[n], rows[n + 1], f"<{lanes} x i8>", lanes) for n in (0, 2))
    first, second = (c.op(f"bitcast <{2 * lanes} x i8> {item} to <{lanes} x i16>") for item in pairs)
    runs = _in_turn(c, first, second, f"<{lanes} x i16>", lanes)
    return c.op(f"bitcast <{2 * lanes} x i16> {runs} to <{4 * lanes} x i8>")


def _in_turn(c: FunctionContext, first: str, second: str, kind: str, lanes: int) -> str:
    order = ", ".join(f"i32 {lane}, i32 {lane + lanes}" for lane in range(lanes))
    return c.op(f"shufflevector {kind} {first}, {kind} {second}, <{2 * lanes} x i32> <{order}>")


def _value_type(dtype: DataType) -> str:
    """The type an LLVM intrinsic gives a value: bfloat16 is a type there, and bits elsewhere in this code generator."""
    return f"<{dtype.lanes} x bfloat>" if dtype.code == "bfloat" else register_type(dtype)


def _argument(c: FunctionContext, expr: PrimExpr, width: int) -> str:
    """An argument with its type; 32 bits of several values are repeated over a register of `width` bits."""
    dtype, given = expr.dtype, register_type(expr.dtype)
    if dtype.lanes == 1 or dtype.lanes * dtype.bits != 32:
        value = c.value(expr)
    else:
        count = width // 32
        value = _lane_of_load(c, expr) if c.target.arch == "aarch64" else ""
        if not value:
            value = c.broadcast(c.op(f"bitcast {given} {c.value(expr)} to i32"), INT32, count)
        given, dtype = f"<{count} x i32>", dtype.with_lanes(dtype.lanes * count)
    expected = _value_type(dtype)
    if expected != given:
        value = c.op(f"bitcast {given} {value} to {expected}")
    return f"{expected} {value}"


def _lane_of_load(c: FunctionContext, expr: PrimExpr) -> str:
    """32 bits that are read from memory, as one lane of the 16 bytes around them, repeated; nothing if they are not.

    Arm multiplies by a lane of a register as it is. Four neighbours of a row are then one load, where spreading each
    takes a load and a step of the vector unit.
    """
    if not isinstance(expr, BufferLoad) or c.mask is not None or len(expr.indices) != 1:
        return ""
    (index,) = expr.indices
    if not isinstance(index, Ramp) or const_value(index.stride) != 1:
        return ""
    count, group = _ARM_BYTES // expr.dtype.element.itemsize, expr.dtype.lanes
    found = neighbours(c, expr.buffer, index.base, count)
    if found is None or found[1] % group:
        found = run_around(c, expr.buffer, index.base, count, group)
    if found is None:
        return ""
    address, inside = found
    loaded = c.op(f"load <4 x i32>, ptr {address}, align {expr.dtype.element.itemsize}")
    lane = inside // group
    order = ", ".join([f"i32 {lane}"] * 4)
    return c.op(f"shufflevector <4 x i32> {loaded}, <4 x i32> poison, <4 x i32> <{order}>")


# Tiles


def _tile_instruction(c: FunctionContext, instruction: Instruction, expr: Call) -> str:
    arguments: list[str]
    if ".tdp" in instruction.name:
        total, _, left, right = expr.args[:4]
        rows, width = _number(expr.args[4]), _number(expr.args[5])
        registers = [
            _register(c, total, rows, 64),
            _register(c, left, rows, width),
            _register(c, right, width // 4, 64),
        ]
        arguments, types = [f"i8 {number}" for number in registers], "i8, i8, i8"
    else:
        tile = _register(c, expr.args[0], _number(expr.args[2]), _number(expr.args[3]))
        arguments, types = [f"i8 {tile}"], "i8"
        if len(expr.args) > 4:
            arguments += [f"ptr {_pointer(c, expr.args[4])}", f"i64 {c.value(expr.args[5])}"]
            types = "i8, ptr, i64"
    function = c.module.declare(instruction.llvm, "void", types, "")
    c.do(f"call void {function}({', '.join(arguments)})")
    return "0"


def _number(expr: PrimExpr) -> int:
    if not isinstance(expr, IntImm):
        raise CompilerBug("the shape of a tile register is not constant")
    return expr.value


def _pointer(c: FunctionContext, expr: PrimExpr) -> str:
    first = _first_element(expr)
    return element_address(c, first.buffer, first.indices)


def _first_element(expr: PrimExpr) -> BufferLoad:
    if not (isinstance(expr, Call) and expr.name == "access_ptr" and isinstance(expr.args[1], BufferLoad)):
        raise CompilerBug("a tile instruction takes addresses of elements")
    return expr.args[1]


def _register(c: FunctionContext, expr: PrimExpr, rows: int, row_bytes: int) -> int:
    """The register of a tile; its shape is noted for the configuration."""
    first = _first_element(expr)
    if first.buffer.scope != TILE_SCOPE:
        raise CompilerBug(f"{first.buffer.name} is not a buffer of tile registers")
    place = first.indices[0] if len(first.indices) == 1 else None
    if not isinstance(place, IntImm):
        raise UnsupportedError(
            f"the tile of {first.buffer.name} that an instruction uses changes from iteration to iteration",
            hint="unroll the loops over tiles: registers have fixed numbers",
        )
    key: tuple[Buffer, int] = (first.buffer, place.value)
    number = c.tiles.setdefault(key, len(c.tiles))
    if number >= _REGISTERS:
        raise UnsupportedError(
            f"the program uses more than {_REGISTERS} matrix tiles", hint="compute fewer tiles at a time"
        )
    known = c.tile_shapes.setdefault(number, (rows, row_bytes))
    if known != (rows, row_bytes):
        raise CompilerBug(f"a tile of {first.buffer.name} is used with shapes {known} and {(rows, row_bytes)}")
    return number


@dataclass(frozen=True, slots=True)
class TileFrame:
    """What a function that uses tiles does around its body: `ask` before its first block, `start` in it, `end`."""

    ask: list[str]
    start: list[str]
    end: list[str]


def tile_frame(c: FunctionContext, name: str) -> TileFrame | None:
    """The frame of a function that uses tiles, once its body is emitted; None if it uses none."""
    if not c.tiles:
        return None
    content = [0] * 64
    content[0] = 1
    for number, (rows, row_bytes) in c.tile_shapes.items():
        content[16 + 2 * number] = row_bytes
        content[48 + number] = rows
    text = ", ".join(f"i8 {value}" for value in content)
    c.module.functions.append(f"@{name}.tiles = private unnamed_addr constant [64 x i8] [{text}], align 64")
    _declare_permission(c)
    configure = c.module.declare("llvm.x86.ldtilecfg", "void", "ptr", "")
    release = c.module.declare("llvm.x86.tilerelease", "void", "", "")
    ask = [
        "  %tiles = call i32 @tw_ask_for_tiles()",
        "  %has_tiles = icmp eq i32 %tiles, 0",
        "  br i1 %has_tiles, label %entry, label %refused",
        "refused:",
        "  ret i32 %tiles",
    ]
    return TileFrame(ask, [f"  call void {configure}(ptr @{name}.tiles)"], [f"  call void {release}()"])


def _declare_permission(c: FunctionContext) -> None:
    """A function that asks the kernel once for the use of tiles; 0 or a code."""
    if "tw_ask_for_tiles" in c.module.helpers:
        return
    if "linux" not in c.target.triple:
        raise UnsupportedError("matrix tiles need the Linux kernel's permission", hint="leave out -mattr=+amx-tile")
    c.module.helpers.add("tw_ask_for_tiles")
    c.module.declare("syscall", "i64", "i64, ...")
    c.module.functions.append(f"""@tw_tiles_asked = internal global i32 0, align 4
define internal i32 @tw_ask_for_tiles() nounwind {{
entry:
  %known = load atomic i32, ptr @tw_tiles_asked monotonic, align 4
  %granted = icmp eq i32 %known, 1
  br i1 %granted, label %yes, label %ask
ask:
  %failed = call i64 (i64, ...) @syscall(i64 {_ARCH_PRCTL}, i64 {_REQUEST_PERMISSION}, i64 {_TILE_DATA})
  %refused = icmp ne i64 %failed, 0
  br i1 %refused, label %no, label %remember
remember:
  store atomic i32 1, ptr @tw_tiles_asked monotonic, align 4
  br label %yes
yes:
  ret i32 0
no:
  ret i32 {TILES_REFUSED}
}}""")
