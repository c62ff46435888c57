"""Shared test settings: a repeatable hypothesis profile and a cache folder that tests share but users do not see."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from bench import page_c

# The same examples in every run: a red suite means a change broke something. `HYPOTHESIS_PROFILE=random` (which
# `make fuzz` uses) looks for new ones.
for _name, _derandomize in (("tilewright", True), ("random", False)):
    settings.register_profile(
        _name,
        deadline=None,
        max_examples=50,
        derandomize=_derandomize,
        # The machine is shared: generation that is slow for a moment is not a defect of the test.
        suppress_health_check=[HealthCheck.too_slow],
        print_blob=True,
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "tilewright"))


def pytest_configure(config: pytest.Config) -> None:
    """Keep compiled objects of the tests inside the repository unless the user chose a folder."""
    # Every pass of every test is held to the contract of its stage.
    os.environ.setdefault("TILEWRIGHT_VERIFY", "1")
    # A template that fails is a red test, not a slow kernel.
    os.environ.setdefault("TILEWRIGHT_STRICT_TEMPLATES", "1")
    # What the user has tuned or measured is no business of the tests.
    os.environ["TILEWRIGHT_DATABASE"] = "none"
    os.environ["TILEWRIGHT_MACHINES"] = "none"
    # The processes of the suite have the cores already; each helper of a compilation would only load the compiler anew.
    os.environ.setdefault("TILEWRIGHT_COMPILE_PROCESSES", "1")
    os.environ.setdefault("TILEWRIGHT_CACHE_DIR", str(Path(config.rootpath) / ".cache" / "tests"))


@pytest.fixture(scope="session")
def c_compiler() -> str:
    """The path of a C compiler, or a skip with the reason."""
    return page_c.c_compiler() or pytest.skip("no C compiler (cc, gcc or clang) on this machine")


@pytest.fixture(scope="session")
def arm_tools() -> tuple[str, str]:
    """A cross compiler and an emulator for aarch64, or a skip with the reason."""
    compiler, emulator = shutil.which("aarch64-linux-gnu-gcc"), shutil.which("qemu-aarch64")
    if compiler is None or emulator is None:
        pytest.skip("no aarch64 cross compiler (aarch64-linux-gnu-gcc) or emulator (qemu-aarch64) on this machine")
    return compiler, emulator
