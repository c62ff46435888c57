"""The system's C compiler: C source to the bytes of an object file."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

from tilewright.backends.compiler import Assembly, Compiler
from tilewright.support.errors import CompilerBug, UserError
from tilewright.target.host import detect_host
from tilewright.target.target import Target

_COMMANDS: Final = ("cc", "gcc", "clang")
# Sums may be fused with products, as `docs/semantics.md` has it; mathematics neither traps nor sets `errno`.
_OPTIONS: Final = (
    *("-std=gnu11", "-O3", "-fPIC", "-w"),
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fno-stack-protector"),
)


@cache
def find_c_compiler() -> str:
    """The C compiler of this machine; a `UserError` where there is none."""
    command = next(filter(None, map(shutil.which, _COMMANDS)), None)
    if command is None:
        raise UserError(
            f"the target 'c' needs a C compiler, and none is installed (looked for {', '.join(_COMMANDS)})",
            hint="install gcc or clang, or use target='native', which needs none",
        )
    return command


@cache
def _version() -> str:
    done = subprocess.run([find_c_compiler(), "--version"], capture_output=True, text=True, check=False)
    return done.stdout.partition("\n")[0]


def compile_c(text: str, target: Target) -> bytes:
    """The object file of C source."""
    return _run(text, ".c", "-c", target)


def _run(text: str, suffix: str, action: str, target: Target) -> bytes:
    """What the compiler makes of a text: an object (`-c`) of C or of assembly, or assembly (`-S`)."""
    command = [find_c_compiler(), action, *_OPTIONS, *_processor(target)]
    with tempfile.TemporaryDirectory() as folder:
        source, written = Path(folder) / f"program{suffix}", Path(folder) / "program.out"
        source.write_text(text, encoding="utf-8")
        done = subprocess.run([*command, str(source), "-o", str(written)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise CompilerBug(f"{command[0]} refused generated source: {done.stderr.strip()}")
        return written.read_bytes()


def _processor(target: Target) -> list[str]:
    """The options for a target's processor; a `UserError` for one of another architecture."""
    host = detect_host()
    if target.arch != host.arch:
        raise UserError(
            f"the C compiler of this machine compiles for {host.arch}, not for {target.arch}",
            hint=f"target='llvm -mtriple={target.triple}' compiles for other machines",
        )
    name = "native" if target.cpu == host.cpu else target.cpu
    return [] if name == "generic" else [f"-march={name}" if target.arch == "x86_64" else f"-mcpu={name}"]


_ASSEMBLY: Final = Assembly(
    lambda text, target: _run(text, ".c", "-S", target).decode(), lambda text, target: _run(text, ".s", "-c", target)
)
COMPILER: Final = Compiler(compile_c, _version, _ASSEMBLY)
