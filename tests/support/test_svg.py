"""Plots as SVG: well-formed, every point inside the frame, labels escaped."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from tilewright.support.svg import Axis, Series, plot


@pytest.mark.parametrize("logarithmic", [False, True])
def test_points_lie_inside_and_in_order(logarithmic: bool) -> None:
    points = [(1.0, 10.0), (8.0, 500.0), (64.0, 90.0)]
    text = plot("t", Axis("x", logarithmic), Axis("y", logarithmic), [Series("s", points, ["a", "b", "c"], line=True)])
    ElementTree.fromstring(text)
    # The last mark is the legend's.
    places = [(float(x), float(y)) for x, y in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', text)][:3]
    assert all(78 < x < 696 and 34 < y < 386 for x, y in places)
    assert [x for x, _ in places] == sorted(x for x, _ in places)
    assert places[1][1] < places[2][1] < places[0][1], "more is higher"
    assert text.count("<polyline") == 1


def test_words_are_escaped_and_one_point_is_enough() -> None:
    text = plot("a < b", Axis("x & y"), Axis("y"), [Series("<s>", [(3.0, 4.0)], ["<p>"])])
    ElementTree.fromstring(text)
    assert "a &lt; b" in text and "&lt;p&gt;" in text and "x &amp; y" in text


def test_a_line_without_marks_has_none() -> None:
    text = plot("t", Axis("x"), Axis("y"), [Series("roof", [(0.0, 0.0), (1.0, 1.0)], line=True, marks=False)])
    assert text.count("<circle") == 1, "the legend's"
