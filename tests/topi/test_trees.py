"""Forests: the loop program against the reference, NaN included, whatever the number of trees."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.topi.differential import check, run_reference
from tests.topi.samples import forest_tables
from tilewright.frontend.core.builder import Builder
from tilewright.frontend.core.functions import main_module, new_input
from tilewright.graph.ir.op import get_operator
from tilewright.ir.dtype import FLOAT32
from tilewright.ir.types import tensor_type
from tilewright.support.errors import UserError


@pytest.mark.parametrize("aggregate", ["sum", "min", "max"])
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("trees", [1, 8, 19])
def test_forests(trees, missing, aggregate):
    random = np.random.default_rng(trees)
    data = random.standard_normal((5, 3)).astype(np.float32)
    data[random.random((5, 3)) < 0.3] = np.nan
    check("trees.forest", data, *forest_tables(random, trees, 3, 2, missing=missing), aggregate=aggregate)


@pytest.mark.parametrize("aggregate", ["sum", "max"])
@pytest.mark.parametrize("rows", [15, 16, 19, 41])
def test_blocks_of_rows_the_last_of_which_has_fewer(rows, aggregate):
    random = np.random.default_rng(rows)
    data = random.standard_normal((rows, 3)).astype(np.float32)
    check("trees.forest", data, *forest_tables(random, 9, 3, 2, missing=True), aggregate=aggregate)


def test_compiled_forests_of_any_number_of_rows():
    random = np.random.default_rng(0)
    tables = forest_tables(random, 11, 3, 1, missing=True)
    builder = Builder()
    data = new_input(builder, "data", ("batch", 3), FLOAT32)
    sums = builder.call("trees.forest", data, *map(builder.constant, tables))
    exe = tw.compile(main_module(builder, [data], [sums], ["sums"], "forest"), threads=2)
    for rows in (0, 1, 63, 64, 65, 200):
        values = random.standard_normal((rows, 3)).astype(np.float32)
        (wanted,) = run_reference("trees.forest", [values, *tables], aggregate="sum")
        assert np.array_equal(exe(values), wanted)


@pytest.mark.parametrize(
    ("change", "aggregate", "message"),
    [
        ({}, "mean", "joined by sum, min, max, not mean"),
        ({1: ((7,), "float32")}, "sum", "features"),
        ({3: ((8, 2), "int32")}, "sum", "nodes of branches"),
        ({5: ((1, 1), "int32")}, "sum", "roots"),
    ],
)
def test_forests_refuse(change, aggregate, message):
    kinds = {0: ((2, 3), "float32"), 1: ((7,), "int32"), 2: ((7,), "float32"), 3: ((7, 2), "int32")}
    kinds |= {4: ((7, 1), "float32"), 5: ((1,), "int32"), 6: ((1,), "int32")} | change
    operator = get_operator("trees.forest")
    with pytest.raises(UserError, match=message):
        operator.infer([tensor_type(*kinds[n]) for n in range(7)], operator.attributes_class(aggregate=aggregate))
