"""Tasks that end others: no cancellation is lost, no failure hidden."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.rpc.waiting import until
from tilewright import rpc
from tilewright.rpc.background import serve_in_background
from tilewright.rpc.server import Server, ServerOptions
from tilewright.rpc.service import ended
from tilewright.rpc.tracker import Tracker, TrackerOptions
from tilewright.rpc.wire import Disconnected


async def _dies_slowly(seconds: float) -> None:
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(seconds)


def test_a_task_that_waits_for_the_end_of_another_can_be_cancelled() -> None:
    async def run() -> bool:
        inner = asyncio.create_task(_dies_slowly(0.3))
        await asyncio.sleep(0)
        waiting = asyncio.create_task(ended(inner))
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.wait([waiting])
        await asyncio.wait([inner])
        return waiting.cancelled()

    assert asyncio.run(run())


def test_only_expected_failures_are_dropped() -> None:
    async def fails(error: Exception) -> None:
        raise error

    async def run(error: Exception) -> None:
        task = asyncio.create_task(fails(error))
        await asyncio.sleep(0)
        await ended(task, expected=(Disconnected,))

    asyncio.run(run(Disconnected("gone")))
    with pytest.raises(ValueError, match="other"):
        asyncio.run(run(ValueError("other")))


def test_servers_end_at_any_moment_after_their_tracker() -> None:
    """A server that is closed while it is losing its tracker closes too."""
    for number in range(12):
        tracker = serve_in_background(Tracker(TrackerOptions(port=0)))
        port = tracker.__enter__().port
        running = serve_in_background(Server(ServerOptions(port=0, tracker=f"127.0.0.1:{port}", key="cpu")))
        running.__enter__()
        client = rpc.connect_tracker("127.0.0.1", port)
        until(lambda client=client: client.query()["devices"])
        tracker.__exit__(None, None, None)
        time.sleep(number * 0.0002)
        running.__exit__(None, None, None)
