"""The documentation names every operator that has a converter."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.frontend.onnx.importer import FAMILIES
from tilewright.frontend.onnx.registry import NEWEST_OPSET, OLDEST_OPSET, converted_operators, converter, find_converter
from tilewright.support.errors import UserError

PAGE = Path(__file__).parents[3] / "docs" / "frontend_onnx.md"


def test_the_page_names_every_operator():
    text = PAGE.read_text()
    table = text[text.index("## Operators") : text.index("Expanded from")]
    named = {
        word.strip() for row in table.splitlines() if row.startswith("| `") for word in row.split("|")[2].split(",")
    }
    assert named == {op_type for _, op_type in converted_operators()}
    assert f"Opsets {OLDEST_OPSET} to {NEWEST_OPSET}" in text


def test_converters_of_one_operator_do_not_overlap():
    assert FAMILIES
    assert find_converter("", "Clip", 10) is not find_converter("", "Clip", 11)
    assert find_converter("", "Magic", 10) is None
    with pytest.raises(UserError, match="there is a converter for Clip"):
        converter("Clip", since=13)(lambda node: node.input(0))
