"""Walks of graphs: children first, each item once."""

from __future__ import annotations

from tilewright.support.order import children_first


def test_everything_comes_after_what_is_below_it() -> None:
    below = {"a": ["b", "c"], "b": ["d"], "c": ["d", "e"], "d": [], "e": []}
    names = {name: name for name in below}
    order = children_first([names["a"]], lambda name: [names[child] for child in below[name]])
    assert order == ["d", "b", "e", "c", "a"]


def test_a_cycle_is_cut_where_it_closes() -> None:
    first, second = ["first"], ["second"]
    other = {"first": second, "second": first}
    assert children_first([first, second], lambda item: [other[item[0]]]) == [second, first]
