"""Tables of what torch takes apart: made once, and anew where operators or converters are added."""

from __future__ import annotations

import pytest

from tests.requirements import need_module
from tilewright.frontend.torch import decompositions, registry

torch = need_module("torch")

TABLES = [decompositions.decomposition_table, decompositions.graph_decompositions]


@pytest.mark.parametrize("table", TABLES)
def test_a_table_is_made_once_and_is_the_callers_own(table):
    first = table()
    operator = next(iter(first))
    del first[operator]
    assert operator in table()
    assert next(iter(table().values())) is next(iter(table().values()))


@pytest.mark.parametrize("table", TABLES)
def test_what_is_converted_from_now_on_stays_whole(table, monkeypatch):
    operator = torch.ops.aten.addcmul.default
    with monkeypatch.context() as patch:
        patch.delitem(registry._TABLE, "addcmul", raising=False)
        assert operator in table()
    with monkeypatch.context() as patch:
        patch.setitem(registry._TABLE, "addcmul", lambda builder: None)
        assert operator not in table()


def test_composite_operators_registered_later_are_taken_apart(check):
    decompositions.decomposition_table()
    with torch.library._scoped_library("tilewright_tests", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x + x, "CompositeImplicitAutograd")
        check(lambda x: torch.ops.tilewright_tests.twice(x) * 3, torch.randn(2, 3))
