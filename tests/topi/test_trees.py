"""Forests: the loop program against the reference, NaN included, whatever the number of trees."""

from __future__ import annotations

import numpy as np
import pytest

from tests.topi.differential import check
from tests.topi.samples import forest_tables
from tilewright.graph.ir.op import get_operator
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
