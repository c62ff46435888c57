"""The language matrix from test results: `python -m tests.bindings.matrix` tests every binding.

It writes the table in docs/languages.md. Every language must be installed here. Tests compare the page with what passes
(`check_binding`).
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Final

from bindings import models as exporter
from tests.bindings.languages import FEATURES, LANGUAGES, PAGE, make, passed_tests, row
from tests.requirements import missing

TABLE: Final = re.compile(r"^\| language \|.*?(?=^$)", re.MULTILINE | re.DOTALL)


def table(results: dict[str, set[str]]) -> str:
    """The matrix of the tests that passed, by the folders of the bindings."""
    head = ["language", *FEATURES]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return "\n".join([*lines, *(row(folder, passed) for folder, passed in results.items())]) + "\n"


def main() -> int:
    """Test, and write; returns the exit code."""
    absent = {name: reason for item in LANGUAGES.values() for name in item.needs if (reason := missing(name))}
    if absent:
        print("\n".join(f"error: {name}: {reason}" for name, reason in absent.items()), file=sys.stderr)
        return 1
    results: dict[str, set[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder) / "models"
        exporter.main([str(models)])
        for name in LANGUAGES:
            results[name] = passed_tests(name, make(name, "test", models, Path(folder) / name))
            print(row(name, results[name]), flush=True)
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(TABLE.sub(lambda match: table(results), text, count=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
