"""Tiles of open sizes: two bodies whatever the loops, right at every size, and small code."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tir.passes.programs import script
from tilewright.ir.expr import Select, const_value
from tilewright.ir.visit import find_all
from tilewright.tir.annotations import ROLLED
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.passes.partition_loops import OPEN_TILES, partition_loops
from tilewright.tir.passes.roll_epilogues import roll_epilogues
from tilewright.tir.rewrite.statements import all_statements
from tilewright.tir.script import to_script
from tilewright.tir.stmt import Allocate, BufferStore, For, IfThenElse, LoopKind

PRODUCT = """
@script.function
def product(A: Buffer[(m, 4), "float32"], W: Buffer[(4, 8), "float32"], B: Buffer[(m, 8), "float32"]):
    for io in range((m + 5) // 6):
        acc = allocate((6, 8), "float32", scope="local")
        for i in unroll(6):
            for j in vectorized(8):
                if io * 6 + i < m:
                    acc[i, j] = 0.0
        for k in unroll(4, annotations={"reduction": True}):
            for i in unroll(6):
                for j in vectorized(8):
                    if io * 6 + i < m:
                        acc[i, j] = acc[i, j] + A[io * 6 + i, k] * W[k, j]
        for i in unroll(6):
            for h in unroll(2):
                for j in vectorized(4):
                    if io * 6 + i < m:
                        B[io * 6 + i, h * 4 + j] = acc[i, h * 4 + j]
"""

WINDOWS = """
@script.function
def windows(A: Buffer[(h, w), "float32"], W: Buffer[(3, 3), "float32"], B: Buffer[(h, w), "float32"]):
    for y, xo in grid(h, (w + 7) // 8):
        acc = allocate((8,), "float32", scope="local")
        for i in unroll(8):
            if xo * 8 + i < w:
                acc[i] = 0.0
        for kh in serial(3, annotations={"reduction": True}):
            for kw in unroll(3, annotations={"reduction": True}):
                for i in unroll(8):
                    if xo * 8 + i < w:
                        acc[i] = acc[i] + (A[y + kh - 1, xo * 8 + i + kw - 1] * W[kh, kw] if INSIDE else 0.0)
        for i in unroll(8):
            if xo * 8 + i < w:
                B[y, xo * 8 + i] = acc[i]
""".replace("INSIDE", "1 <= y + kh and y + kh <= h and 1 <= xo * 8 + i + kw and xo * 8 + i + kw <= w")


SMOOTHED = """
@script.function
def smoothed(A: Buffer[(h, 4), "float32"], B: Buffer[(h + 1, 6, 3), "float32"]):
    for y in range(h + 1):
        window = allocate((6, 3), "float32", scope="local")
        smooth = allocate((6, 3), "float32", scope="local")
        for u in unroll(6):
            for v in unroll(3):
                window[u, v] = A[y + u - 2, v] if 2 <= y + u and y + u < h + 2 else 0.0
        for u in unroll(6):
            for v in unroll(3):
                smooth[u, v] = window[u, v] * 2.0
        for u in unroll(6):
            for v in unroll(3):
                smooth[u, v] = smooth[u, v] + window[u, v] * 2.0
        for u in unroll(6):
            for v in unroll(3):
                B[y, u, v] = smooth[u, v]
"""


def _stores(func: PrimFunc) -> list[BufferStore]:
    return [item for item in all_statements(func.body) if isinstance(item, BufferStore)]


def _guarded_sums(func: PrimFunc) -> list[IfThenElse]:
    """Conditions around stores to a tile."""
    guards = [item for item in all_statements(func.body) if isinstance(item, IfThenElse)]
    leaves = [(item, item.then_body) for item in guards if item.else_body is None]
    return [item for item, body in leaves if isinstance(body, BufferStore) and body.buffer.scope == "local"]


class TestOpenTiles:
    @pytest.mark.parametrize("rows", [0, 1, 5, 6, 7, 12, 17])
    def test_rows_of_a_product(self, rows: int) -> None:
        func = script(PRODUCT)
        after = partition_loops(func)
        assert after.attributes[OPEN_TILES] == 1
        stores = [item for item in all_statements(after.body) if isinstance(item, BufferStore)]
        assert len(stores) == 6, "two bodies"
        random = np.random.default_rng(rows)
        a, w = random.random((rows, 4), np.float32), random.random((4, 8), np.float32)
        result = np.full((rows, 8), np.nan, np.float32)
        interpret(after, a, w, result)
        np.testing.assert_allclose(result, a @ w, rtol=1e-6)

    @pytest.mark.parametrize("rows", [0, 1, 3, 4, 12, 13, 14, 25, 27])
    def test_edges_of_tall_tiles_are_computed_in_pieces(self, rows: int) -> None:
        """A few rows at a time, in a loop; rows past the end are computed in vain, and only their results dropped."""
        text = PRODUCT.replace("6", "13").replace("(m + 5)", "(m + 12)")
        after = partition_loops(script(text))
        pieces = [item for item in all_statements(after.body) if isinstance(item, For) and item.var.name == "piece"]
        assert len(pieces) == 1 and ROLLED.is_on(pieces[0])
        tiles = [item.buffer.shape for item in all_statements(pieces[0]) if isinstance(item, Allocate)]
        assert [const_value(size) for size in tiles[0]] == [4, 8] and len(_stores(after)) == 6
        assert not _guarded_sums(after)
        random = np.random.default_rng(rows)
        a, w = random.random((rows, 4), np.float32), random.random((4, 8), np.float32)
        result = np.full((rows, 8), np.nan, np.float32)
        interpret(after, a, w, result)
        np.testing.assert_allclose(result, a @ w, rtol=1e-6)

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("= acc[i, h * 4 + j]", "= acc[12 - i, h * 4 + j]"),
            ("= acc[i, h * 4 + j]", "= acc[i, h * 4 + j] + B[0, h * 4 + j]"),
        ],
        ids=["another row of the tile", "what it writes"],
    )
    def test_tiles_whose_rows_know_of_each_other_stay_whole(self, old: str, new: str) -> None:
        text = PRODUCT.replace("6", "13").replace("(m + 5)", "(m + 12)").replace(old, new)
        after = partition_loops(script(text))
        assert not any(isinstance(item, For) and item.var.name == "piece" for item in all_statements(after.body))

    def test_columns_may_end_too(self) -> None:
        """A guard that is of columns alone does not keep tiles past the last row from being left out."""
        text = PRODUCT.replace("6", "13").replace("range((m + 5) // 13)", "range(3)").replace("8", "12")
        text = text.replace(
            "if io * 13 + i < m:\n                        B[",
            "if h < 2 and io * 13 + i < m:\n                        B[",
        )
        text = text.replace("unroll(2)", "unroll(3)").replace("B: Buffer[(m, 12)", "B: Buffer[(m, 8)")
        after = partition_loops(script(text))
        assert "if io * 13 + piece * 3 < m:" in to_script(after) and "if io * 13 < m:" in to_script(after)
        a, w = np.ones((17, 4), np.float32), np.ones((4, 12), np.float32)
        result = np.full((17, 8), np.nan, np.float32)
        interpret(after, a, w, result)
        np.testing.assert_array_equal(result, 4)

    @pytest.mark.parametrize("shape", [(1, 1), (2, 9), (3, 8), (5, 17), (4, 26), (0, 5), (5, 0)])
    def test_windows_of_an_image(self, shape: tuple[int, int]) -> None:
        func = script(WINDOWS)
        after = partition_loops(func)
        stores = [item for item in all_statements(after.body) if isinstance(item, BufferStore)]
        # Nine parts of an image would be 27 stores.
        assert len(stores) == 6
        random = np.random.default_rng(7)
        a, w = random.random(shape, np.float32), random.random((3, 3), np.float32)
        padded = np.pad(a, 1)
        expected = np.zeros(shape, np.float32)
        for kh in range(3):
            for kw in range(3):
                expected += padded[kh : kh + shape[0], kw : kw + shape[1]] * w[kh, kw]
        result = np.full(shape, np.nan, np.float32)
        interpret(after, a, w, result)
        np.testing.assert_allclose(result, expected, rtol=1e-5)

    def test_rows_of_taps_past_the_image_are_left_out(self) -> None:
        after = partition_loops(script(WINDOWS))
        selections = {str(item.condition) for item in find_all(after.body, Select)}
        assert selections and not any("kh" in text for text in selections)

    def test_an_image_that_is_all_padding(self) -> None:
        """The nearest element of nothing is not read."""
        text = WINDOWS.replace('B: Buffer[(h, w), "float32"]', 'B: Buffer[(h + 2, w), "float32"]')
        text = text.replace("grid(h, (w + 7) // 8)", "grid(h + 2, (w + 7) // 8)")
        text = text.replace("y + kh - 1", "y + kh - 2").replace(
            "1 <= y + kh and y + kh <= h", "2 <= y + kh and y + kh <= h + 1"
        )
        after = partition_loops(script(text))
        result = np.full((2, 9), np.nan, np.float32)
        interpret(after, np.zeros((0, 9), np.float32), np.ones((3, 3), np.float32), result)
        np.testing.assert_array_equal(result, 0)

    def test_tiles_past_the_end_are_not_computed(self) -> None:
        text = PRODUCT.replace("for io in range((m + 5) // 6):", "for io in range(25):")
        after = partition_loops(script(text))
        (loop,) = [item for item in all_statements(after.body) if isinstance(item, For) and item.var.name == "io"]
        assert isinstance(loop.body, IfThenElse) and isinstance(loop.body.else_body, IfThenElse)
        assert "if io * 6 < m:" in to_script(after)

    def test_what_is_guarded_as_a_whole_is_asked_once(self) -> None:
        """Blocks of rows are there or not: they have one body, and nothing in it is guarded."""
        text = PRODUCT.replace("(m, ", "(m * 6, ").replace("range((m + 5) // 6)", "range(9)")
        after = partition_loops(script(text.replace("io * 6 + i < m", "io < m")))
        assert OPEN_TILES not in after.attributes
        assert len([item for item in all_statements(after.body) if isinstance(item, BufferStore)]) == 3
        (guard,) = [item for item in all_statements(after.body) if isinstance(item, IfThenElse)]
        assert "if io < m:" in to_script(after) and guard.else_body is None
        for rows in (0, 1, 4):
            random = np.random.default_rng(rows)
            a, w = random.random((rows * 6, 4), np.float32), random.random((4, 8), np.float32)
            result = np.full((rows * 6, 8), np.nan, np.float32)
            interpret(after, a, w, result, rows)
            np.testing.assert_allclose(result, a @ w, rtol=1e-6)

    @pytest.mark.parametrize("size", [0, 1, 5, 6, 7, 30])
    def test_a_small_guarded_part_is_chosen_where_it_is(self, size: int) -> None:
        """What is computed of a window is written once; the window has a body for the inside, and loops for edges."""
        after = partition_loops(script(SMOOTHED))
        assert after.attributes[OPEN_TILES] == 1
        computed = [store for store in _stores(after) if store.buffer.name == "smooth"]
        assert len(computed) == 2, "both stages once"
        assert len([store for store in _stores(after) if store.buffer.name == "window"]) == 3, "the last for no image"
        rolled = [item for item in all_statements(after.body) if isinstance(item, For) and ROLLED.of(item)]
        assert {loop.var.name for loop in rolled} == {"u", "v"} and len(rolled) == 3
        a = np.random.default_rng(size).random((size, 4), np.float32)
        result = np.full((size + 1, 6, 3), np.nan, np.float32)
        interpret(after, a, result)
        padded = np.pad(a, ((2, 4), (1, 1)))
        windows = np.stack([np.stack([padded[y : y + 6, x : x + 3] for x in [1]])[0] for y in range(size + 1)])
        np.testing.assert_allclose(result, windows * 2 + windows * 2, rtol=1e-6)

    def test_a_small_body_is_still_split(self) -> None:
        func = script(
            """
@script.function
def copy(A: Buffer[(n,), "float32"], B: Buffer[(n,), "float32"]):
    for i in range((n + 7) // 8):
        for j in vectorized(8):
            if i * 8 + j < n:
                B[i * 8 + j] = A[i * 8 + j]
"""
        )
        after = partition_loops(func)
        assert OPEN_TILES not in after.attributes
        outer = [item for item in all_statements(after.body) if isinstance(item, For) and item.kind is LoopKind.SERIAL]
        assert len(outer) == 2, "a main loop without guards, and a tail"

    def test_a_window_at_an_index_from_memory_stays_guarded(self) -> None:
        """What is read in vain is read where it exists; of an index that memory holds nobody knows where that is."""
        text = WINDOWS.replace("A[y + kh - 1, ", "A[P[y + kh - 1], ")
        text = text.replace('W: Buffer[(3, 3), "float32"]', 'P: Buffer[(h,), "int64"], W: Buffer[(3, 3), "float32"]')
        assert _guarded_sums(partition_loops(script(text)))
        assert not _guarded_sums(partition_loops(script(WINDOWS)))


class TestRollEpilogues:
    def test_functions_are_written_once_a_row(self) -> None:
        func = script(PRODUCT.replace("= acc[i, h * 4 + j]\n", "= exp(acc[i, h * 4 + j])\n"))
        after = roll_epilogues(partition_loops(func))
        rolled = [item for item in all_statements(after.body) if isinstance(item, For) and "rolled" in item.annotations]
        assert len(rolled) == 2, "in either body of the tile"
        random = np.random.default_rng(3)
        a, w = random.random((9, 4), np.float32), random.random((4, 8), np.float32)
        result = np.full((9, 8), np.nan, np.float32)
        interpret(after, a, w, result)
        np.testing.assert_allclose(result, np.exp(a @ w), rtol=1e-5)

    def test_plain_arithmetic_stays_in_registers(self) -> None:
        func = partition_loops(script(PRODUCT))
        assert roll_epilogues(func).body is func.body
