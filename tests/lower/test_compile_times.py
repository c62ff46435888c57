"""Which kernels took longest to compile: said where that was long."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lower.test_open_convolutions import images
from tilewright.compiler import Compilation
from tilewright.lower.compile_times import slowest_kernels
from tilewright.lower.kernel import CompiledKernel


def _kernel(seconds: float) -> CompiledKernel:
    return CompiledKernel(bytes(2048), {}, seconds=seconds)


def test_the_slowest_come_first() -> None:
    compiled = {name: _kernel(seconds) for name, seconds in (("a", 0.5), ("b", 2.0), ("c", 1.0), ("d", 0.1))}
    slow = slowest_kernels(compiled, {"b": ("/conv1", "/bn1", "/relu1")})
    assert [item.symbol for item in slow] == ["b", "c", "a"]
    assert str(slow[0]) == "b 2.00 s, 2.00 KiB of code (/conv1, /bn1, ...)"


def test_nothing_is_said_of_a_quick_compilation() -> None:
    assert slowest_kernels({"a": _kernel(2.9)}, {}) == ()


def test_seconds_of_compiled_and_of_cached_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    compiled = Compilation(images("pointwise"), threads=1).compiled_kernels
    again = Compilation(images("pointwise"), threads=1).compiled_kernels
    assert all(kernel.seconds > 0 for kernel in compiled.values())
    assert all(kernel.seconds == 0 for kernel in again.values())
