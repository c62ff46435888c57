"""The process of one peer: `python -m bench.peers.worker NAME THREADS CORES`, driven over stdin and stdout.

It runs in the peer's environment and imports nothing of Tilewright, unless that is the peer. Requests and replies:

    ("load", path, inputs, scratch) -> ("ok", outputs)         the model is ready and has run once
    ("time", count, pause)          -> ("ok", milliseconds)    one warm-up call, then `count` timed ones, each after as
                                                               many seconds
    anything that fails             -> ("error", text)
"""

from __future__ import annotations

import importlib
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO

import numpy as np

from bench.peers import PEERS, clock_for
from bench.peers.wire import receive, send

Call = Callable[[], list[np.ndarray]]


def main(arguments: list[str]) -> None:
    """Serve requests until the stream ends."""
    name, threads, cores = arguments[0], int(arguments[1]), [int(core) for core in arguments[2].split(",") if core]
    if cores:
        # Before the runtime is imported: its threads inherit this.
        os.sched_setaffinity(0, cores)
    replies = _private_stdout()
    call: Call | None = None
    while (request := receive(sys.stdin.buffer)) is not None:
        try:
            match request:
                case ("load", str(path), dict(inputs), str(scratch)):
                    # Let go of the last model first: two large ones need not fit.
                    call = None
                    module = importlib.import_module(PEERS[name].module)
                    call = module.load(Path(path), threads, inputs, Path(scratch))
                    send(replies, ("ok", [np.asarray(array, order="C") for array in call()]))
                case ("time", int(count), float(pause)) if call is not None:
                    send(replies, ("ok", time_calls(call, count, clock_for(threads), pause)))
                case _:
                    send(replies, ("error", f"unexpected request {request[0] if request else request!r}"))
        except Exception as error:  # whatever a peer raises is its answer to this model
            traceback.print_exc()
            text = str(error).strip() or type(error).__name__
            send(replies, ("error", text))


def time_calls(call: Call, count: int, clock: Callable[[], float], pause: float) -> list[float]:
    """Milliseconds of `count` calls, after one that warms up; so many seconds pass before each."""
    call()
    samples = []
    for _ in range(count):
        if pause:
            time.sleep(pause)
        start = clock()
        call()
        samples.append((clock() - start) * 1e3)
    return samples


def _private_stdout() -> IO[bytes]:
    """The real stdout for replies only; what runtimes print goes to stderr."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return replies


if __name__ == "__main__":
    main(sys.argv[1:])
