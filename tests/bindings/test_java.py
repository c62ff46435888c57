"""The binding for Java: its own tests and its example, in a folder of their own."""

from __future__ import annotations

from pathlib import Path

from tests.bindings.languages import LANGUAGES, check_binding, check_example
from tests.requirements import need

need("make", *LANGUAGES["java"].needs)


def test_every_part_works(models: Path, build: Path) -> None:
    check_binding("java", models, build)


def test_the_example_classifies(models: Path, build: Path) -> None:
    check_example("java", models, build)
