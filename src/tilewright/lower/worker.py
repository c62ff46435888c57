"""A process that compiles kernels for another: reads requests from stdin, writes compiled kernels to stdout.

LLVM calls are serialised inside a process, so compiling on several cores takes several processes. They are plain child
processes speaking length-prefixed pickles (not `multiprocessing`, whose start-up runs the user's main module again).
"""

from __future__ import annotations

import pickle
import sys
import warnings
from typing import IO

from tilewright.lower.kernel import compile_kernel
from tilewright.support.errors import TilewrightError
from tilewright.support.interrupts import ignore_interrupts

_LENGTH = 8


def send(stream: IO[bytes], value: object) -> None:
    """Write one value."""
    payload = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(len(payload).to_bytes(_LENGTH, "little"))
    stream.write(payload)
    stream.flush()


def receive(stream: IO[bytes]) -> object | None:
    """Read one value, or None at the end of the stream: also one in the middle of a value, whose writer died."""
    header = stream.read(_LENGTH)
    if len(header) < _LENGTH:
        return None
    size = int.from_bytes(header, "little")
    payload = stream.read(size)
    if len(payload) < size:
        return None
    result: object = pickle.loads(payload)
    return result


def main() -> None:
    """Serve requests `(kernel, target)` until the stream ends; replies are the compiled kernel, or the error.

    Memory is planned around these kernels: their scratch is a parameter.
    """
    ignore_interrupts()
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    # Whatever else prints must not mix with the replies.
    sys.stdout = sys.stderr
    # A cache that cannot be written is said once, by the process that asks, and not by each of its children.
    warnings.simplefilter("ignore", RuntimeWarning)
    while (request := receive(requests)) is not None:
        assert isinstance(request, tuple)
        kernel, target = request
        try:
            send(replies, compile_kernel(kernel, target, planned=True))
        except TilewrightError as error:
            send(replies, error)


if __name__ == "__main__":
    main()
