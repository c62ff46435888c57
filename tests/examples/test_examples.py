"""Every example runs to its end in a process of its own (each checks its own results)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((REPOSITORY / "examples").rglob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: str(path.relative_to(REPOSITORY / "examples")))
def test_example_runs(example: Path, tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, str(example)], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
    )
    assert result.returncode == 0, result.stderr
    # Examples leave nothing behind where they run.
    assert list(tmp_path.iterdir()) == []


def test_there_are_examples() -> None:
    names = {path.stem for path in EXAMPLES}
    assert {"tensor_expression", "schedule_matmul", "hybrid_script", "mixed_module", "export_and_load"} <= names
