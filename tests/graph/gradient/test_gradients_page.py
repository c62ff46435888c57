"""The table of gradients in the documentation is what the registry says."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_page_is_up_to_date() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "generate_gradients.py"))
    text = made["PAGE"].read_text()
    assert text == made["page"](), "run: python docs/generate_gradients.py"
    assert "no rule yet" not in text
