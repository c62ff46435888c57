"""The table of operators in the documentation is what the registry says."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_page_is_up_to_date():
    made = runpy.run_path(str(ROOT / "docs" / "generate_operators.py"))
    text = made["PAGE"].read_text()
    assert text == made["page"](), "run: python docs/generate_operators.py"
    assert "`nn.conv2d(data, weight)`" in text
