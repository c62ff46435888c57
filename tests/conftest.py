"""Shared test settings: a repeatable hypothesis profile and a cache folder that tests share but users do not see."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from tests.grids import leave_out_of_grids
from tests.requirements import C_COMPILERS, need, need_tool, required

# The same examples in every run: a red suite means a change broke something. `make test-all` has `more` of them, and
# `HYPOTHESIS_PROFILE=random` looks for new ones.
for _name, _derandomize, _examples in (("tilewright", True, 30), ("more", True, 50), ("random", False, 50)):
    settings.register_profile(
        _name,
        deadline=None,
        max_examples=_examples,
        derandomize=_derandomize,
        # The machine is shared: generation that is slow for a moment is not a defect of the test.
        suppress_health_check=[HealthCheck.too_slow],
        print_blob=True,
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "tilewright"))
# Hypothesis reads the sources of all modules that are loaded for constants to try: ten seconds of each process,
# and a test's examples would depend on which other tests its process has loaded.
if hasattr(providers, "_get_local_constants"):
    providers._get_local_constants = lambda: providers._local_constants


def pytest_configure(config: pytest.Config) -> None:
    """Keep compiled objects of the tests inside the repository unless the user chose a folder."""
    required()
    # Container images often set this; the suite starts hundreds of processes, and each would parse the package anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    # Every pass of every test is held to the contract of its stage.
    os.environ.setdefault("TILEWRIGHT_VERIFY", "1")
    # A template that fails is a red test, not a slow kernel.
    os.environ.setdefault("TILEWRIGHT_STRICT_TEMPLATES", "1")
    # What the user has tuned or measured is no business of the tests.
    os.environ["TILEWRIGHT_DATABASE"] = "none"
    os.environ["TILEWRIGHT_MACHINES"] = "none"
    # The processes of the suite have the cores already; each helper of a compilation would only load the compiler anew.
    os.environ.setdefault("TILEWRIGHT_COMPILE_PROCESSES", "1")
    # Nor are there cores for threads of the libraries that tests compare with.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Devices made of the CPU (PoCL, lavapipe) need not optimise what they are given: it is that which is tested.
    os.environ.setdefault("POCL_EXTRA_BUILD_FLAGS", "-cl-opt-disable")
    os.environ.setdefault("GALLIVM_PERF", "nopt")
    os.environ.setdefault("TILEWRIGHT_CACHE_DIR", str(Path(config.rootpath) / ".cache" / "tests"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first: what is left for the end is short, so that no process waits long for the other."""
    leave_out_of_grids(items)
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish() -> None:
    """Look for cyclic garbage less often: programs are trees without cycles, and what was collected stays."""
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests marked with `@needs(...)` run where these are, and are skipped (or fail, by REQUIRE) elsewhere."""
    for mark in item.iter_markers("needs"):
        need(*mark.args)


@pytest.fixture(scope="session")
def c_compiler() -> str:
    """The path of a C compiler."""
    return need_tool("c-compiler", *C_COMPILERS)


@pytest.fixture(scope="session")
def arm_tools() -> tuple[str, str]:
    """A cross compiler and an emulator for aarch64."""
    return need_tool("emulator", "aarch64-linux-gnu-gcc"), need_tool("emulator", "qemu-aarch64")
