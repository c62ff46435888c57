"""Run a function on another machine: connect, upload, load, call. Here the other machine is a server on loopback."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import tilewright as tw
from tilewright import te
from tilewright.rpc.background import serve_in_background
from tilewright.rpc.server import Server, ServerOptions


def main() -> None:
    n = 1024
    A = te.placeholder((n,), "float32", "A")
    B = te.compute((n,), lambda i: A[i] + 1.0, "B")
    schedule = te.create_schedule(B.op)

    with tempfile.TemporaryDirectory() as folder, serve_in_background(Server(ServerOptions(port=0))) as board:
        library = Path(folder) / "mylib.so"
        tw.build(schedule, [A, B], name="npufunction0").export_library(library)

        remote = tw.rpc.connect("127.0.0.1", board.port)
        remote.upload(library)
        remote_mod = remote.load_module("mylib.so")
        func = remote_mod["npufunction0"]
        remote_a = remote.array(np.arange(n, dtype=np.float32))
        remote_b = remote.empty((n,))
        func(remote_a, remote_b)

        np.testing.assert_array_equal(remote_b.numpy(), np.arange(n) + 1)
        timing = remote_mod.time_evaluator("npufunction0", number=100)(remote_a, remote_b)
        print(f"ran on {remote.info['machine']}: {timing}")
        remote.close()


if __name__ == "__main__":
    main()
