"""A process that compiles kernels for another: reads requests from stdin, writes compiled kernels to stdout.

LLVM calls are serialised inside a process, so compiling on several cores takes several processes. They are plain child
processes speaking length-prefixed pickles (not `multiprocessing`, whose start-up runs the user's main module again).
"""

from __future__ import annotations

import os
import pickle
import sys
import warnings
from collections.abc import Callable
from typing import IO

from tilewright.lower.kernel import compile_kernel
from tilewright.support.collecting import seldom_collecting
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


def serve(answer: Callable[[object], object], replies: IO[bytes]) -> None:
    """Answer the requests of stdin until it ends, an error of ours as itself.

    Whoever asked may be gone before its reply is written: then the process ends without a word.
    """
    while (request := receive(sys.stdin.buffer)) is not None:
        try:
            reply = answer(request)
        except TilewrightError as error:
            reply = error
        try:
            send(replies, reply)
        except BrokenPipeError:
            # Not through the interpreter's own end, which would complain that it cannot write the rest.
            os._exit(0)


def own_output() -> IO[bytes]:
    """The pipe of replies, out of the reach of whatever else prints, compiled code included."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return replies


def _compiled(request: object) -> object:
    assert isinstance(request, tuple)
    kernel, target = request
    return compile_kernel(kernel, target, planned=True)


def main() -> None:
    """Serve requests `(kernel, target)` until the stream ends; replies are the compiled kernel, or the error.

    Memory is planned around these kernels: their scratch is a parameter.
    """
    ignore_interrupts()
    # A cache that cannot be written is said once, by the process that asks, and not by each of its children.
    warnings.simplefilter("ignore", RuntimeWarning)
    with seldom_collecting():
        serve(_compiled, own_output())
    # Python would take all objects apart, one by one, before it ends: half a second for a compiler with its programs.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
