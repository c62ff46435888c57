"""The bindings, what each needs of the machine, and how its test program is built and read.

`make -C bindings/<folder> test` is what users run. Each prints one line a test, as its language does; the names say
what part of the language matrix (docs/languages.md) a test is about.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.requirements import missing

BINDINGS: Final = Path(__file__).resolve().parents[2] / "bindings"

PAGE: Final = BINDINGS.parent / "docs" / "languages.md"
"""Has the language matrix."""

FEATURES: Final = ("load", "run", "async", "dynamic shapes", "errors", "gpu")
"""The columns of the matrix: a test's name begins with one of them."""
ERRORS: Final = ("errors arguments", "errors libraries", "errors closed", "errors threads")
"""What every language must turn into errors of its own."""
TESTS: Final = ("load", "run", "async", "dynamic shapes", *ERRORS, "gpu refused", "leaks")
"""What the names of tests begin with, in every language."""


@dataclass(frozen=True)
class Language:
    """A binding: its name for people, the requirements of its tests, and what a passed test looks like."""

    name: str
    needs: tuple[str, ...]
    passed: str = r"^ok (?P<name>.+)$"


LANGUAGES: Final = {
    "c": Language("C", ("c-compiler",)),
    "cpp": Language("C++", ("c-compiler", "c++-compiler")),
    "rust": Language("Rust", ("c-compiler", "rust"), r"^test (?P<name>\w+) \.\.\. ok$"),
    "go": Language("Go", ("c-compiler", "go"), r"^--- PASS: (?P<name>\w+) "),
    "java": Language("Java", ("c-compiler", "java")),
    "node": Language("JavaScript (Node)", ("c-compiler", "node-headers"), r"^ok \d+ - (?P<name>.+)$"),
    "csharp": Language("C#", ("c-compiler", "mono")),
}
"""By the folder in `bindings/`."""


def make(folder: str, goal: str, models: Path, build: Path, *variables: str) -> str:
    """What a goal of a binding's makefile prints; the whole output is in the error if it fails."""
    settings = (f"MODELS={models}", f"BUILD={build}", f"PYTHON={sys.executable}", *variables)
    command = ["make", "--no-print-directory", "-C", str(BINDINGS / folder), goal, *settings]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=_environment(), timeout=600)
    if done.returncode:
        raise AssertionError(f"make {goal} in bindings/{folder} failed:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done.stdout + done.stderr


def _environment() -> dict[str, str]:
    # A make above this one would hand its flags down.
    inherited = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    return inherited if missing("opencl") else {**inherited, "TILEWRIGHT_GPU": "opencl"}


def passed_tests(folder: str, output: str) -> set[str]:
    """The names of the tests that passed, as words: TestErrorsClosed and errors_closed are "errors closed"."""
    found = re.finditer(LANGUAGES[folder].passed, output, re.MULTILINE)
    return {_words(match["name"]) for match in found}


def _words(name: str) -> str:
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name.strip())
    return re.sub(r"[\W_]+", " ", spaced).strip().lower().removeprefix("test ")


def check_binding(folder: str, models: Path, build: Path, *variables: str) -> None:
    """Run a binding's own tests: all that every language has must pass."""
    output = make(folder, "test", models, build, *variables)
    passed = passed_tests(folder, output)
    absent = [name for name in TESTS if not any(item.startswith(name) for item in passed)]
    assert not absent, f"bindings/{folder} lacks tests: {absent}\n{output[-4000:]}"
    line = row(folder, passed)
    if missing("opencl"):
        line = line.rsplit("|", 2)[0]
    assert line in PAGE.read_text(encoding="utf-8"), f"{PAGE.name} lacks {line!r}: run python -m tests.bindings.matrix"


def row(folder: str, passed: set[str]) -> str:
    """A language's line of the matrix, by the tests that passed."""
    cells = [f"[{LANGUAGES[folder].name}](../bindings/{folder}/README.md)"]
    for feature in FEATURES:
        tests = sorted(name for name in passed if name.startswith(feature))
        is_refused = bool(tests) and all(name.endswith("refused") for name in tests)
        cells.append("an error" if is_refused else "yes" if tests else "no")
    return f"| {' | '.join(cells)} |"


def check_example(folder: str, models: Path, build: Path) -> None:
    """The example sees a seven."""
    assert re.search(r"^a 7 \(99\.\d%\)$", make(folder, "example", models, build), re.MULTILINE)
