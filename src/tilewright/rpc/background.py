"""Servers and trackers in a thread of this process: for notebooks, examples and tests.

with serve_in_background(Server(ServerOptions(port=0))) as server:
    remote = tw.rpc.connect("127.0.0.1", server.port)
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar


class Startable(Protocol):
    """A server or a tracker."""

    async def start(self) -> None:
        """Listen."""

    async def close(self) -> None:
        """Stop."""


S = TypeVar("S", bound=Startable)


@contextmanager
def serve_in_background(service: S) -> Iterator[S]:
    """Run a server or tracker in a thread while the `with` body runs."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="tilewright-rpc", daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(service.start(), loop).result()
        yield service
    finally:
        asyncio.run_coroutine_threadsafe(service.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
