"""Matrix tiles of x86 (AMX): blocks of tiles multiplied at once, and written to memory.

    c[i, j] += sum over k of wide(a[i, k]) * wide(b[j // 16, k // group, j % 16 * group + k % group])

`a` lies in memory in rows, any distance apart; `b` is packed in panels of 16 columns with `group` steps of the
reduction side by side; `c` is a buffer of tile registers. One call loads each tile of a and b once for all products
that they take part in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from tilewright import te
from tilewright.ir.build import cast, const
from tilewright.ir.dtype import HANDLE, DataType
from tilewright.ir.expr import Call, ExprLike, PrimExpr, StringImm
from tilewright.target import Target
from tilewright.te import reduction
from tilewright.tir.buffer import Buffer, BufferLoad, make_buffer
from tilewright.tir.machine import TILE_SCOPE, find_instruction, machine_call
from tilewright.tir.stmt import Allocate, Evaluate, Stmt, seq
from tilewright.tir.tensor_intrin import Operand, TensorIntrin

COLUMNS = 16
"""Columns of a tile of results: 64 bytes of 32 bits."""
ROW_BYTES = 64
MOST_ROWS = 16
REGISTERS = 8

_PRODUCTS = {
    ("uint8", "int8"): ("amx.tdpbusd", "int32"),
    ("int8", "int8"): ("amx.tdpbssd", "int32"),
    ("uint8", "uint8"): ("amx.tdpbuud", "int32"),
    ("int8", "uint8"): ("amx.tdpbsud", "int32"),
    ("bfloat16", "bfloat16"): ("amx.tdpbf16ps", "float32"),
}


@dataclass(frozen=True, slots=True)
class TileProduct:
    """A block of tiles: `down` x `across` tiles of results, each `rows` x 16, over `depth` steps of the reduction."""

    row: DataType
    column: DataType
    rows: int
    depth: int
    down: int
    across: int

    @property
    def group(self) -> int:
        """Steps of the reduction that lie side by side for each column: as many as fill 32 bits."""
        return 32 // self.row.bits

    @property
    def total(self) -> DataType:
        """The type of the results."""
        return DataType.of(_PRODUCTS[self.row.name, self.column.name][1])

    @property
    def multiply(self) -> TensorIntrin:
        """The intrinsic that adds the products of a block."""
        return _multiply(self)

    @property
    def store(self) -> TensorIntrin:
        """The intrinsic that writes a block of results to memory."""
        return _store(self)


def has_tile_product(target: Target, row: DataType, column: DataType) -> bool:
    """Whether a processor multiplies tiles of these types."""
    found = _PRODUCTS.get((row.name, column.name))
    return found is not None and find_instruction(found[0]).is_on(target)


def _pointer(operand: Operand, mode: str, first: tuple[ExprLike, ...], last: tuple[ExprLike, ...]) -> PrimExpr:
    return Call("access_ptr", (StringImm(mode), operand[first], operand[last]), HANDLE)


def _register(buffer: Buffer, number: int, mode: str) -> PrimExpr:
    """A tile of a buffer whose first dimension counts tiles."""
    shape = buffer.static_shape
    assert shape is not None
    first = BufferLoad(buffer, tuple(const(item) for item in (number, 0, 0)))
    last = BufferLoad(buffer, tuple(const(item) for item in (number, shape[1] - 1, shape[2] - 1)))
    return Call("access_ptr", (StringImm(mode), first, last), HANDLE)


def _blocks(item: TileProduct) -> Iterator[tuple[int, int]]:
    return ((i, j) for i in range(item.down) for j in range(item.across))


def _result(item: TileProduct, total: Operand, place: tuple[int, int], mode: str) -> tuple[PrimExpr, PrimExpr]:
    """A tile of results and the distance of its rows."""
    i, j = place[0] * item.rows, place[1] * COLUMNS
    return _pointer(total, mode, (i, j), (i + item.rows - 1, j + COLUMNS - 1)), total.strides[0]


@cache
def _multiply(item: TileProduct) -> TensorIntrin:
    height, group = item.rows * item.down, item.group
    a = te.placeholder((height, item.depth), str(item.row), name="a")
    b = te.placeholder((item.across, item.depth // group, COLUMNS * group), str(item.column), name="b")
    k = te.reduce_axis((0, item.depth), name="k")

    def element(i: PrimExpr, j: PrimExpr) -> PrimExpr:
        right = b[j // COLUMNS, k // group, j % COLUMNS * group + k % group]
        return reduction.sum(cast(a[i, k], item.total) * cast(right, item.total), [k])

    c = te.compute((height, item.across * COLUMNS), element, name="c")
    product = _PRODUCTS[item.row.name, item.column.name][0]
    size = item.row.itemsize
    load = f"amx.load.{item.row.bits}"
    rows, row_bytes, lines = const(item.rows), const(item.depth * size), const(item.depth // group)
    line_bytes = const(COLUMNS * group * size)

    def rule(inputs: list[Operand], outputs: list[Operand]) -> tuple[Stmt | None, ...]:
        left, right = inputs
        total = outputs[0]
        a_tiles = make_buffer("a_tiles", (item.down, item.rows, item.depth), item.row, scope=TILE_SCOPE)
        b_shape = (item.across, item.depth // group, COLUMNS * group)
        b_tiles = make_buffer("b_tiles", b_shape, item.column, scope=TILE_SCOPE)

        def load_columns(j: int) -> Stmt:
            source = _pointer(right, "r", (j, 0, 0), (j, item.depth // group - 1, COLUMNS * group - 1))
            tile = _register(b_tiles, j, "w")
            distance = right.strides[1] * size
            return Evaluate(machine_call(load, tile, const(COLUMNS * group), lines, line_bytes, source, distance))

        def load_rows(i: int) -> Stmt:
            source = _pointer(left, "r", (i * item.rows, 0), (i * item.rows + item.rows - 1, item.depth - 1))
            tile = _register(a_tiles, i, "w")
            distance = left.strides[0] * size
            return Evaluate(machine_call(load, tile, const(item.depth), rows, row_bytes, source, distance))

        # All tiles are loaded before the first product: whatever that waits for, the others come meanwhile.
        steps = [load_rows(0), *map(load_columns, range(item.across)), *map(load_rows, range(1, item.down))]
        for i, j in _blocks(item):
            result, pitch = _result(item, total, (i, j), "rw")
            operands = (_register(a_tiles, i, "r"), _register(b_tiles, j, "r"))
            steps.append(Evaluate(machine_call(product, result, pitch, *operands, rows, row_bytes)))
        update = Allocate(a_tiles, Allocate(b_tiles, seq(*steps)))
        zeros: list[Stmt] = []
        for place in _blocks(item):
            result, pitch = _result(item, total, place, "w")
            zeros.append(Evaluate(machine_call("amx.zero", result, pitch, rows, const(ROW_BYTES))))
        reset = seq(*zeros)
        return seq(reset, update), reset, update

    name = f"amx.{item.row}.{item.column}.{item.down}x{item.rows}.{item.across}x{COLUMNS}.{item.depth}"
    return te.decl_tensor_intrin(c.op, rule, name=name)


@cache
def _store(item: TileProduct) -> TensorIntrin:
    shape = (item.rows * item.down, COLUMNS * item.across)
    tiles = te.placeholder(shape, str(item.total), name="tiles")
    memory = te.compute(shape, lambda i, j: tiles[i, j], name="memory")

    def rule(inputs: list[Operand], outputs: list[Operand]) -> Stmt:
        steps: list[Stmt] = []
        # The first tile comes last and stands for the whole block: what follows knows by it that all is written.
        for place in reversed(list(_blocks(item))):
            tile, pitch = _result(item, inputs[0], place, "r")
            target, distance = _result(item, outputs[0], place, "w")
            if place == (0, 0):
                target = _pointer(outputs[0], "w", (0, 0), (shape[0] - 1, shape[1] - 1))
            arguments = (tile, pitch, const(item.rows), const(ROW_BYTES), target, distance * 4)
            steps.append(Evaluate(machine_call("amx.store", *arguments)))
        return seq(*steps)

    name = f"amx.store.{item.total}.{item.down}x{item.rows}.{item.across}x{COLUMNS}"
    return te.decl_tensor_intrin(memory.op, rule, name=name)
