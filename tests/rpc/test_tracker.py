"""The pool: leases, priorities, fairness, lost devices and lost clients."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tilewright import rpc
from tilewright.rpc.background import serve_in_background
from tilewright.rpc.pool import TrackerClient
from tilewright.rpc.server import Server, ServerOptions
from tilewright.rpc.tracker import Tracker, TrackerOptions
from tilewright.rpc.tracker_link import split_address
from tilewright.support.errors import UserError

HOST = "127.0.0.1"
TOKEN = "a token of some length"


@pytest.fixture
def tracker() -> Iterator[Tracker]:
    with serve_in_background(Tracker(TrackerOptions(port=0))) as running:
        yield running


def _server(tracker: Tracker, key: str = "cpu") -> Server:
    return Server(ServerOptions(port=0, tracker=f"{HOST}:{tracker.port}", key=key))


def _client(tracker: Tracker) -> TrackerClient:
    return rpc.connect_tracker(HOST, tracker.port)


def _until(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.02)


def test_a_lease_is_a_session_and_comes_back(tracker: Tracker) -> None:
    client = _client(tracker)
    with serve_in_background(_server(tracker)):
        with client.request("cpu", wait_seconds=20) as session:
            session.ping()
            [device] = client.query()["devices"]
            assert device["busy"]
            with pytest.raises(UserError, match="no device of the key 'cpu' became free"):
                client.request("cpu", wait_seconds=0.1)
        _until(lambda: not client.query()["devices"][0]["busy"])
        assert client.query()["devices"][0]["served"] == 1
        assert "1 devices, 0 clients waiting" in client.text_summary()
    _until(lambda: not client.query()["devices"])


def test_tls_that_is_asked_for_holds_between_all_three() -> None:
    """Server, tracker and client choose TLS by the address alone only where nobody chose."""
    with ExitStack() as running:
        options = TrackerOptions(port=0, token=TOKEN, tls=True)
        tracker = running.enter_context(serve_in_background(Tracker(options)))
        served = ServerOptions(port=0, token=TOKEN, tls=True, tracker=f"{HOST}:{tracker.port}", key="cpu")
        running.enter_context(serve_in_background(Server(served)))
        client = rpc.connect_tracker(HOST, tracker.port, token=TOKEN, tls=True)
        running.enter_context(client.request("cpu", wait_seconds=20)).ping()


def test_servers_of_a_tracker_admit_leases_only(tracker: Tracker) -> None:
    with serve_in_background(_server(tracker)) as server, pytest.raises(UserError, match="managed by a tracker"):
        rpc.connect(HOST, server.port)


def test_priorities_and_fairness(tracker: Tracker) -> None:
    """One device; while it is held others queue up: the urgent one first, then whoever holds least, then the oldest."""
    client = _client(tracker)
    order: list[str] = []
    with serve_in_background(_server(tracker)):
        first = client.request("cpu", wait_seconds=20, client="greedy")

        def wait(name: str, user: str, priority: int) -> threading.Thread:
            def lease() -> None:
                with client.request("cpu", wait_seconds=60, client=user, priority=priority):
                    order.append(name)

            thread = threading.Thread(target=lease)
            before = len(client.query()["waiting"])
            thread.start()
            _until(lambda: len(client.query()["waiting"]) > before)
            return thread

        threads = [wait("greedy again", "greedy", 0), wait("modest", "modest", 0), wait("urgent", "urgent", 5)]
        first.close()
        for thread in threads:
            thread.join(60)
    assert order[0] == "urgent"
    assert set(order) == {"greedy again", "modest", "urgent"}


def test_leases_end(tracker: Tracker) -> None:
    client = _client(tracker)
    with serve_in_background(_server(tracker)):
        session = client.request("cpu", wait_seconds=20, lease_seconds=3)
        _until(lambda: not client.query()["devices"][0]["busy"])
        with pytest.raises(UserError):
            session.ping()
        session.close()
        client.request("cpu", wait_seconds=20).close()


def test_a_client_that_dies_frees_its_device(tracker: Tracker) -> None:
    client = _client(tracker)
    with serve_in_background(_server(tracker)):
        code = (
            "import time\nfrom tilewright import rpc\n"
            f"session = rpc.connect_tracker({HOST!r}, {tracker.port}).request('cpu')\n"
            "print('ready', flush=True)\ntime.sleep(600)"
        )
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        assert client.query()["devices"][0]["busy"]
        process.kill()
        process.communicate()
        _until(lambda: not client.query()["devices"][0]["busy"])


def test_a_server_that_dies_leaves_the_pool_and_others_serve(tracker: Tracker) -> None:
    client = _client(tracker)
    words = ["rpc", "server", "--port", "0", "--tracker", f"{HOST}:{tracker.port}", "--key", "cpu"]
    with ExitStack() as stack:
        processes = []
        for _ in range(2):
            process = subprocess.Popen([sys.executable, "-m", "tilewright", *words], stdout=subprocess.PIPE, text=True)
            stack.callback(process.communicate)
            stack.callback(process.kill)
            processes.append(process)
        _until(lambda: len(client.query()["devices"]) == 2, 60)
        session = client.request("cpu", wait_seconds=20, timeout=20)
        port = int(session._channel.peer.rpartition(":")[2])
        holder = next(item for item in processes if _port_of(item) == port)
        os.kill(holder.pid, signal.SIGKILL)
        with pytest.raises(UserError):
            session.ping()
        session.close()
        _until(lambda: len(client.query()["devices"]) == 1)
        with client.request("cpu", wait_seconds=20) as other:
            other.ping()


def _port_of(process: subprocess.Popen[str]) -> int:
    """The port in the first line that a server prints."""
    known: int | None = getattr(process, "tilewright_port", None)
    if known is None:
        assert process.stdout is not None
        found = re.search(r":(\d+)", process.stdout.readline())
        assert found is not None
        known = int(found[1])
        process.tilewright_port = known  # type: ignore[attr-defined]
    return known


def test_servers_find_a_tracker_that_comes_back() -> None:
    with serve_in_background(Tracker(TrackerOptions(port=0))) as first:
        port = first.port
        server = _server(first)
        running = serve_in_background(server)
        running.__enter__()
        _until(lambda: len(_client(first).query()["devices"]) == 1)
    try:
        with serve_in_background(Tracker(TrackerOptions(port=port))) as second:
            _until(lambda: len(_client(second).query()["devices"]) == 1)
            with _client(second).request("cpu", wait_seconds=20) as session:
                session.ping()
    finally:
        running.__exit__(None, None, None)


def test_a_pool_with_tokens() -> None:
    with serve_in_background(Tracker(TrackerOptions(port=0, token=TOKEN))) as tracker:
        address = f"{HOST}:{tracker.port}"
        with serve_in_background(Server(ServerOptions(port=0, tracker=address, key="cpu", token=TOKEN))):
            client = rpc.connect_tracker(HOST, tracker.port, token=TOKEN)
            with client.request("cpu", wait_seconds=20) as session:
                session.ping()
            with pytest.raises(UserError, match="refused"):
                rpc.connect_tracker(HOST, tracker.port, token="some other token").query()


def test_sessions_are_not_for_trackers(tracker: Tracker) -> None:
    with pytest.raises(UserError, match="this is a tracker"):
        rpc.connect(HOST, tracker.port)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("farm", ("farm", 9)), ("farm:80", ("farm", 80)), ("[::1]:80", ("::1", 80)), ("::1", ("::1", 9))],
)
def test_addresses(text: str, expected: tuple[str, int]) -> None:
    assert split_address(text, 9) == expected


@pytest.mark.parametrize("text", ["", "farm:", "farm:0", "farm:99999", "farm:x", ":80"])
def test_bad_addresses(text: str) -> None:
    with pytest.raises(UserError, match="is no address"):
        split_address(text, 9)
