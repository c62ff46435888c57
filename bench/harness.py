"""What the benchmarks share besides measuring (`tilewright.cli.versus`): the machine's description, result files."""

from __future__ import annotations

import argparse
import compileall
import datetime
import json
import os
import platform
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import tilewright
from tilewright.target import detect_host

RESULTS_FOLDER = Path(__file__).resolve().parent / "results"


def say(text: str) -> None:
    """Progress goes to stderr: stdout holds the table and the JSON."""
    print(text, file=sys.stderr, flush=True)


def cores_for(threads: int) -> list[int]:
    """The processors that a measurement on `threads` threads is pinned to: the last ones this process may use.

    Interrupts and other people's work tend to land on the first. Empty where the system cannot pin.
    """
    if not hasattr(os, "sched_getaffinity"):
        return []
    return sorted(os.sched_getaffinity(0))[-threads:]


def write_bytecode(folder: Path = Path(tilewright.__file__).parent) -> None:
    """Have the bytecode of the package (or of another folder) beside its sources, as whoever installs it has.

    Where Python may not write it (PYTHONDONTWRITEBYTECODE), each new process translates the sources again: on a
    Neoverse-N1 two processes that compile a model took 4.5 s for that, more than for many a model.
    """
    compileall.compile_dir(folder, quiet=2)


@contextmanager
def pinned(threads: int) -> Iterator[None]:
    """Keep this process on the processors of `cores_for` for the length of the `with` body."""
    cores = cores_for(threads)
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def all_threads() -> int:
    """The number of cores this process may use: what `--threads all` means."""
    return detect_host().cores


def machine() -> dict[str, str | int]:
    """What was measured on, for the record beside the figures."""
    host = detect_host()
    return {
        "cpu": host.description,
        "llvm_cpu": host.cpu,
        "arch": host.arch or "",
        "cores": host.cores,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "load": f"{os.getloadavg()[0]:.2f}",
    }


def versions(packages: Sequence[str]) -> dict[str, str]:
    """The installed versions of packages, leaving out those that are not installed."""
    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def machine_line() -> str:
    """The machine in one line."""
    facts = machine()
    return f"{facts['cpu']} ({facts['llvm_cpu']}), {facts['cores']} cores, load {facts['load']}, {facts['date']}"


def write_json(path: Path, data: object) -> None:
    """Write a result file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, aside = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(data, stream, indent=2)
            stream.write("\n")
        os.chmod(aside, 0o644)
        os.replace(aside, path)
    finally:
        Path(aside).unlink(missing_ok=True)


def regular_expression(text: str) -> str:
    """An argument of a command that is a regular expression."""
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from error
    return text
