"""The page names every operator that has a converter, and those that have none."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.frontend_tflite import coverage
from tilewright.frontend.tflite.registry import converted_operators, converter
from tilewright.support.errors import UserError

PAGE = Path(__file__).parents[3] / "docs" / "frontend_tflite.md"


def test_the_page_names_every_operator():
    text = PAGE.read_text()
    table = text[text.index("## Operators") : text.index("Without a converter")]
    rows = [row.split("|") for row in table.splitlines() if row.startswith("| `")]
    named = {word.strip() for row in rows for word in row[2].split(",")}
    ours = {
        name for (name, _), convert in converted_operators().items() if convert.__module__.startswith("tilewright.")
    }
    assert named == ours
    for name in coverage()[1]:
        assert name.removeprefix("STABLEHLO_") in text[text.index("Without a converter") :]


def test_a_second_converter_is_an_error():
    with pytest.raises(UserError, match="there is a converter for the operator CONV_2D"):
        converter("CONV_2D")(lambda node: node.input(0))
