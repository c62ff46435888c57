"""The binding for Go: its own tests and its example, in a folder of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bindings.languages import LANGUAGES, check_binding, check_example
from tests.requirements import need

need("make", *LANGUAGES["go"].needs)


def test_every_part_works(models: Path, build: Path) -> None:
    check_binding("go", models, build, "RACE=")


@pytest.mark.fuzz
def test_the_race_detector_finds_nothing(models: Path, build: Path) -> None:
    # The first time, Go compiles its own library for the detector: 20 s of a processor.
    check_binding("go", models, build, "RACE=-race")


def test_the_example_classifies(models: Path, build: Path) -> None:
    check_example("go", models, build)
