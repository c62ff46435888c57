"""Large products of computed matrices, whichever way round these lie: compiled against numpy, and what is copied."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.graph.helpers import function, op, var
from tilewright.graph.ir.infer import infer_types
from tilewright.ir.function import IRModule
from tilewright.ir.visit import find_all
from tilewright.tir.stmt import Block

TURNED = [(False, False), (True, False), (False, True), (True, True)]


def product(rows, columns, depth, turned_a, turned_b, batch=()):
    """A module of one product, and matrices for it."""
    first = (depth, rows) if turned_a else (rows, depth)
    second = (columns, depth) if turned_b else (depth, columns)
    a, b = var("a", *batch, *first), var("b", *batch, *second)
    body = op("matmul", a, b, transpose_a=turned_a, transpose_b=turned_b)
    generator = np.random.default_rng(rows + columns)
    arrays = [generator.standard_normal((*batch, *shape), np.float32) for shape in (first, second)]
    return infer_types(IRModule([function([a, b], body)])), arrays


def copies(module):
    """The blocks of a kernel beside its sums."""
    compilation = tw.Compilation(module, "llvm -mcpu=neoverse-n1", options=tw.CompileOptions(threads=1))
    (kernel,) = compilation.kernels
    names = [block.name for block in find_all(compilation.scheduled(kernel).body, Block)]
    return [name for name in names if name not in ("root", "matmul", "matmul_init", "matmul_local")]


@pytest.mark.parametrize(("turned_a", "turned_b"), TURNED)
def test_large_products(turned_a, turned_b):
    module, (a, b) = product(150, 133, 170, turned_a, turned_b)
    wanted = (a.T if turned_a else a) @ (b.T if turned_b else b)
    np.testing.assert_allclose(tw.compile(module, threads=1)(a, b), wanted, rtol=1e-3, atol=1e-3)


def test_products_of_many_matrices():
    module, (a, b) = product(140, 144, 130, True, True, batch=(2,))
    wanted = a.transpose(0, 2, 1) @ b.transpose(0, 2, 1)
    np.testing.assert_allclose(tw.compile(module, threads=2)(a, b), wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("turned_a", "turned_b"), TURNED)
def test_what_lies_the_other_way_round_is_copied_once_more(turned_a, turned_b):
    # Columns are copied to panels in any case.
    assert len(copies(product(160, 160, 160, turned_a, turned_b)[0])) == 1 + turned_a + turned_b


def test_small_products_are_not_copied():
    assert copies(product(32, 32, 32, True, True)[0]) == []
