"""The binding for C: its own tests and its example, in a folder of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.bindings.languages import LANGUAGES, check_binding, check_example, make
from tests.requirements import need

need("make", *LANGUAGES["c"].needs)


def test_every_part_works(models: Path, build: Path) -> None:
    check_binding("c", models, build)


def test_the_thread_sanitizer_finds_nothing(models: Path, tmp_path: Path) -> None:
    check_binding("c", models, tmp_path, "SANITIZE=-g1 -O1 -fsanitize=thread")


def test_the_example_classifies(models: Path, build: Path) -> None:
    check_example("c", models, build)


@pytest.mark.parametrize("count", [100, pytest.param(2000, marks=pytest.mark.fuzz)])
def test_damaged_libraries_are_refused(models: Path, build: Path, count: int) -> None:
    make("c", "all", models, build)
    command = [sys.executable, "-m", "tests.bindings.damage", str(build / "libtilewright.so"), str(models)]
    done = subprocess.run([*command, str(count), "0"], capture_output=True, text=True, check=False)
    assert done.stdout == f"{count} libraries refused\n", done.stderr
