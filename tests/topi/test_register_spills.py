"""Sums of register tiles stay in registers, whatever tile is chosen and whatever the epilogue reads."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.graph.helpers import function, op
from tilewright.compiler import Compilation
from tilewright.graph.ir.expr import Var, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type
from tilewright.topi.schedule.cpu import contraction
from tilewright.topi.schedule.cpu.tiling import RegisterTile

SPILLS = {
    "llvm -mtriple=x86_64-linux-gnu -mcpu=cascadelake": r"vmovu?p?a?ps\s+%zmm\d+, -?\d*\(%rsp\)",
    "llvm -mtriple=x86_64-linux-gnu -mcpu=haswell": r"vmovu?p?a?ps\s+%ymm\d+, -?\d*\(%rsp\)",
    "llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1": r"st[pr]\s+q\d+.*\[sp",
}
TILES = [
    *[(spec, 16, rows, vectors) for spec in list(SPILLS)[:1] for rows, vectors in ((14, 2), (9, 3), (8, 3), (6, 4))],
    *[(spec, 8, rows, vectors) for spec in list(SPILLS)[1:2] for rows, vectors in ((6, 2), (4, 3))],
    *[(spec, 4, rows, vectors) for spec in list(SPILLS)[2:] for rows, vectors in ((8, 2), (4, 4))],
]


@pytest.mark.parametrize(("spec", "lanes", "rows", "vectors"), TILES, ids=str)
def test_nothing_spills(monkeypatch: pytest.MonkeyPatch, spec: str, lanes: int, rows: int, vectors: int) -> None:
    """With a bias and a residual: a tile of 14 x 32 with steps in pairs took 2.5 times as long as one of 12 x 32."""
    monkeypatch.setattr(contraction, "_tile", lambda *given, **named: RegisterTile(rows, vectors, lanes))
    # Large enough for what comes next to be fetched meanwhile.
    count, columns = 224 * rows, 8 * vectors * lanes
    x, r = (Var(name, tensor_type((count, width), "float32")) for name, width in (("x", 64), ("r", columns)))
    weights, bias = (constant(np.ones(shape, np.float32)) for shape in ((64, columns), (columns,)))
    body = op("nn.relu", op("add", op("add", op("matmul", x, weights), bias), r))
    compilation = Compilation(infer_types(IRModule([function([x, r], body)])), target=spec, threads=1)
    (kernel,) = compilation.kernels
    steps = [loop for loop in innermost(compilation.assembly(kernel)) if re.search(r"vfmadd|fmla", loop)]
    assert steps and all(len(re.findall(r"vfmadd|fmla", loop)) >= rows * vectors for loop in steps)
    assert not [spill for loop in steps for spill in re.findall(SPILLS[spec], loop)]


def innermost(assembly: str) -> list[str]:
    """The blocks of a program that jump back to their own beginning."""
    blocks = re.split(r"^(\.L\w+):", assembly, flags=re.MULTILINE)
    pairs = zip(blocks[1::2], blocks[2::2], strict=True)
    return [body for label, body in pairs if re.search(rf"\t(?:j\w+|b\.\w+|cbn?z\s+\w+,)\s+{re.escape(label)}\b", body)]
