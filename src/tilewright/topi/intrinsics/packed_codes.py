"""Products of packed codes with a few rows of halves on tensor cores: codes become halves in registers.

    c[i, j] += sum over k of float(rows[i, k]) * (code k of column j - zero)      8 rows, 16 columns, 16 words of steps

The columns of codes are the 16 rows of the instruction, the rows its 8 columns. A thread has two columns, eight
apart, and four neighbouring words of each: all threads together read lines of memory where tiles of 16 columns and 16
words lie side by side.
"""

from __future__ import annotations

from functools import cache

from tilewright import te
from tilewright.graph.ops.packed import HALVES, WORD_BITS
from tilewright.ir.build import cast
from tilewright.ir.dtype import FLOAT32, INT32
from tilewright.ir.expr import PrimExpr, Var
from tilewright.te import reduction
from tilewright.tir.machine import machine_call
from tilewright.tir.stmt import Evaluate, Stmt
from tilewright.tir.tensor_intrin import Operand, TensorIntrin
from tilewright.tir.warp_instructions import CODE_PRODUCTS
from tilewright.topi.intrinsics.tensor_core import declared, each_lane, own_registers
from tilewright.topi.packed_products import PRODUCT_ROWS, shifted_in_place

COLUMNS = 16
_OWN = 4
"""Words of a thread; four threads share the columns."""


def steps_of(bits: int) -> int:
    """Steps of the product with codes of some bits."""
    return 4 * _OWN * (WORD_BITS // bits)


def words_tiles(word: PrimExpr, j: PrimExpr) -> tuple[PrimExpr, ...]:
    """Words [word, j] by tiles: [tile of columns, tile of words, column, word]."""
    words = 4 * _OWN
    return j // COLUMNS, word // words, j % COLUMNS, word % words


def words_layout(*index: PrimExpr) -> tuple[PrimExpr, ...]:
    """Words [..., column, word] of tiles as [..., thread, half of the columns, word]."""
    *outer, j, word = index
    return (*outer, j % 8 * 4 + word // _OWN, j // 8, word % _OWN)


def rows_layout(bits: int, *index: PrimExpr) -> tuple[PrimExpr, ...]:
    """Rows [..., i, k] as [..., tile of steps, tile of rows, thread, step]."""
    *outer, i, k = index
    steps, own = steps_of(bits), steps_of(bits) // 4
    return (*outer, k // steps, i // PRODUCT_ROWS, i % PRODUCT_ROWS * 4 + k % steps // own, k % own)


def sums_layout(*index: PrimExpr) -> tuple[PrimExpr, ...]:
    """Sums [..., i, j] as [..., tile of rows, tile of columns, thread, half of the columns, row]."""
    *outer, i, j = index
    thread = j % 8 * 4 + i % PRODUCT_ROWS // 2
    return (*outer, i // PRODUCT_ROWS, j // COLUMNS, thread, j % COLUMNS // 8, i % 2)


@cache
def multiply_codes(bits: int) -> TensorIntrin:
    """The intrinsic that adds products with codes of some bits to a fragment of sums."""
    codes, steps = WORD_BITS // bits, steps_of(bits)
    words = te.placeholder((steps // codes, COLUMNS), "uint32", name="words")
    rows = te.placeholder((PRODUCT_ROWS, steps), "float16", name="rows")
    zero = te.placeholder((1, 1), "uint8", name="zero")
    word, number = te.reduce_axis((0, steps // codes), name="word"), te.reduce_axis((0, codes), name="number")

    def element(i: PrimExpr, j: PrimExpr) -> PrimExpr:
        value = shifted_in_place(words[word, j], number, zero[0, 0], bits, HALVES)
        return reduction.sum(cast(rows[i, word * codes + number], FLOAT32) * value, [word, number])

    sums = te.compute((PRODUCT_ROWS, COLUMNS), element, name="sums")
    name = CODE_PRODUCTS[bits]

    def rule(inputs: list[Operand], outputs: list[Operand]) -> tuple[Stmt | None, ...]:
        operands = {item.name: item for item in inputs}

        def product(lane: Var) -> Stmt:
            registers = [own_registers(operands[text], "r", lane, 0) for text in ("words", "rows")]
            point = cast(operands["zero"][0, 0], INT32)
            return Evaluate(machine_call(name, own_registers(outputs[0], "rw", lane, 0), *registers, point))

        return None, None, each_lane(product)

    layouts = [
        ("words", lambda word, j: words_layout(j, word)),
        ("rows", lambda i, k: rows_layout(bits, i, k)[2:]),
        ("sums", lambda i, j: sums_layout(i, j)[2:]),
    ]
    return declared(sums, rule, name, layouts)
