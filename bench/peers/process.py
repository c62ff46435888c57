"""Drives a peer's process: starts it in the environment that has the peer, asks it, stops it between its turns."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from bench import harness
from bench.peers import ITSELF, PEERS
from bench.peers.wire import receive, send
from tilewright.support.errors import UserError

REPOSITORY = Path(__file__).resolve().parents[2]
ENVIRONMENT = REPOSITORY / ".venv-peers"
SCRATCH = REPOSITORY / ".cache" / "peers"
_LOAD_SECONDS = 900.0
_TIME_SECONDS = 300.0
_LONGEST_REASON = 160

_PROBE = """
import importlib.util, json, sys
from importlib import metadata
found = {}
for name, packages, imports in json.loads(sys.argv[1]):
    if all(importlib.util.find_spec(item) for item in imports):
        try:
            found[name] = metadata.version(packages[0])
        except metadata.PackageNotFoundError:
            found[name] = "on the path"  # a working tree, which is not installed
print(json.dumps(found))
"""


class PeerError(Exception):
    """A peer could not do what was asked; the text says why."""


@functools.cache
def installed() -> dict[str, tuple[str, str]]:
    """For each peer that can run here: the interpreter that has it, and its version."""
    wanted = json.dumps([(peer.name, peer.packages, peer.imports) for peer in PEERS.values()])
    found: dict[str, tuple[str, str]] = {}
    for python in (str(ENVIRONMENT / "bin" / "python"), sys.executable):
        if not Path(python).exists():
            continue
        reply = subprocess.run([python, "-c", _PROBE, wanted], capture_output=True, text=True, check=False)
        if reply.returncode == 0:
            for name, version in json.loads(reply.stdout).items():
                found.setdefault(name, (python, version))
    return found


def parse_peers(text: str) -> list[str]:
    """The peers in a comma-separated list, or all that are installed; a `UserError` for others."""
    if text == "all":
        return [name for name in PEERS if name in installed() and name not in ITSELF]
    chosen = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in chosen:
        if name not in PEERS:
            raise UserError(f"unknown peer '{name}': the peers are {', '.join(PEERS)}, or 'all'", where="--against")
        if name not in installed():
            raise UserError(
                f"the peer '{name}' is not installed", where="--against", hint="`make bench` installs all of them"
            )
    return chosen


class PeerProcess:
    """One peer on one number of threads. It is started by the first request and again if it dies.

    `pause` is how many seconds pass before each timed call.
    """

    def __init__(self, name: str, threads: int, cores: Sequence[int], pause: float = 0.0) -> None:
        self.name, self._pause = name, pause
        self._command = [
            installed()[name][0],
            "-m",
            "bench.peers.worker",
            name,
            str(threads),
            ",".join(map(str, cores)),
        ]
        self._threads = threads
        self._process: subprocess.Popen[bytes] | None = None

    def load(self, path: Path, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Load a model and give its outputs; a `PeerError` says why it cannot."""
        scratch = _scratch_folder(path, self.name)
        outputs = self._ask(("load", str(path), inputs, str(scratch)), _LOAD_SECONDS)
        assert isinstance(outputs, list)
        return outputs

    def sample(self, count: int) -> list[float]:
        """Milliseconds of `count` calls of the loaded model."""
        samples = self._ask(("time", count, self._pause), _TIME_SECONDS)
        assert isinstance(samples, list)
        return samples

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None and process.stdout is not None
        with suppress(OSError):
            process.stdin.close()
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def _ask(self, request: object, seconds: float) -> object:
        process = self._started()
        assert process.stdin is not None and process.stdout is not None
        process.send_signal(signal.SIGCONT)
        try:
            send(process.stdin, request)
            ready, _, _ = select.select([process.stdout], [], [], seconds)
            reply = receive(process.stdout) if ready else ("late", "")
        except OSError:
            reply = None
        # Stopped between its turns, so that threads of its pool that still spin do not disturb others.
        process.send_signal(signal.SIGSTOP)
        match reply:
            case ("ok", value):
                return value
            case ("error", str(text)):
                raise PeerError(_one_line(text))
            case ("late", _):
                process.kill()
                self.close()
                raise PeerError(f"no answer within {seconds:.0f} s")
            case _:
                self.close()
                code = process.returncode
                raise PeerError(f"its process ended with code {code}")

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            log = SCRATCH / f"{self.name}-{self._threads}t.log"
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("ab") as stream:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=stream,
                    cwd=REPOSITORY,
                    env={**os.environ, **_environment(self._threads)},
                )
        return self._process


def start(names: Sequence[str], threads: int, pause: float = 0.0) -> dict[str, PeerProcess]:
    """A process for each peer, all pinned to the same cores: only one of them runs at a time."""
    return {name: PeerProcess(name, threads, harness.cores_for(threads), pause) for name in names}


def _scratch_folder(path: Path, name: str) -> Path:
    """Where a peer keeps what it converted, under a name that changes with its version and with this package."""
    digest = hashlib.sha256(installed()[name][1].encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    folder = SCRATCH / path.stem / f"{name}-{digest.hexdigest()[:12]}"
    if not folder.exists():
        for stale in folder.parent.glob(f"{name}-????????????"):
            shutil.rmtree(stale)
        folder.mkdir(parents=True)
    return folder


def _environment(threads: int) -> dict[str, str]:
    """Thread counts that some libraries read once, when they are loaded."""
    return {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "PYTHONPATH": str(REPOSITORY)}


def _one_line(text: str) -> str:
    """The beginning of a peer's message, for a note below a table; the whole is in its log."""
    words = " ".join(text.split())
    return words if len(words) <= _LONGEST_REASON else f"{words[:_LONGEST_REASON]}..."
