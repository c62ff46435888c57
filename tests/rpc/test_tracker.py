"""The pool: leases, priorities, fairness, lost devices and lost clients."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.rpc.waiting import until
from tilewright import rpc
from tilewright.rpc import tracker_link
from tilewright.rpc.background import serve_in_background
from tilewright.rpc.connect import open_channel
from tilewright.rpc.pool import TrackerClient
from tilewright.rpc.security import CLIENT, DEVICE, Credentials
from tilewright.rpc.server import Server, ServerOptions
from tilewright.rpc.tracker import Tracker, TrackerOptions
from tilewright.rpc.tracker_link import split_address
from tilewright.rpc.wire import raise_reported
from tilewright.support.errors import UserError

HOST = "127.0.0.1"
TOKEN = "a token of some length"
DEVICE_TOKEN = "another token, of devices"


@pytest.fixture
def tracker() -> Iterator[Tracker]:
    with serve_in_background(Tracker(TrackerOptions(port=0))) as running:
        yield running


def _server(tracker: Tracker, key: str = "cpu") -> Server:
    return Server(ServerOptions(port=0, tracker=f"{HOST}:{tracker.port}", key=key))


def _client(tracker: Tracker) -> TrackerClient:
    return rpc.connect_tracker(HOST, tracker.port)


def test_a_lease_is_a_session_and_comes_back(tracker: Tracker) -> None:
    client = _client(tracker)
    with serve_in_background(_server(tracker)):
        with client.request("cpu", wait_seconds=20) as session:
            session.ping()
            [device] = client.query()["devices"]
            assert device["busy"]
            with pytest.raises(UserError, match="no device of the key 'cpu' became free"):
                client.request("cpu", wait_seconds=0.1)
        until(lambda: not client.query()["devices"][0]["busy"])
        assert client.query()["devices"][0]["served"] == 1
        assert "1 devices, 0 clients waiting" in client.text_summary()
    until(lambda: not client.query()["devices"])


def test_tls_that_is_asked_for_holds_between_all_three() -> None:
    """Server, tracker and client choose TLS by the address alone only where nobody chose."""
    with ExitStack() as running:
        options = TrackerOptions(port=0, token=TOKEN, device_token=DEVICE_TOKEN, tls=True)
        tracker = running.enter_context(serve_in_background(Tracker(options)))
        served = ServerOptions(port=0, device_token=DEVICE_TOKEN, tls=True, tracker=f"{HOST}:{tracker.port}", key="cpu")
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
            until(lambda: len(client.query()["waiting"]) > before)
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
        until(lambda: not client.query()["devices"][0]["busy"])
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
        until(lambda: not client.query()["devices"][0]["busy"])


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
        until(lambda: len(client.query()["devices"]) == 2, 60)
        session = client.request("cpu", wait_seconds=20, timeout=20)
        port = int(session._channel.peer.rpartition(":")[2])
        holder = next(item for item in processes if _port_of(item) == port)
        os.kill(holder.pid, signal.SIGKILL)
        with pytest.raises(UserError):
            session.ping()
        session.close()
        until(lambda: len(client.query()["devices"]) == 1)
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
        until(lambda: len(_client(first).query()["devices"]) == 1)
    try:
        with serve_in_background(Tracker(TrackerOptions(port=port))) as second:
            until(lambda: len(_client(second).query()["devices"]) == 1)
            with _client(second).request("cpu", wait_seconds=20) as session:
                session.ping()
    finally:
        running.__exit__(None, None, None)


def test_a_pool_with_tokens() -> None:
    with serve_in_background(Tracker(TrackerOptions(port=0, token=TOKEN, device_token=DEVICE_TOKEN))) as tracker:
        address = f"{HOST}:{tracker.port}"
        with serve_in_background(Server(ServerOptions(port=0, tracker=address, key="cpu", device_token=DEVICE_TOKEN))):
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


def test_a_tracker_that_is_started_again_does_not_lend_a_busy_device() -> None:
    """The device says when it registers which lease it serves; it is free when that session ends, and not before."""
    with ExitStack() as running:
        first = serve_in_background(Tracker(TrackerOptions(port=0)))
        port = first.__enter__().port
        server = running.enter_context(serve_in_background(_server_at(port)))
        client = rpc.connect_tracker(HOST, port)
        session = client.request("cpu", wait_seconds=20)
        first.__exit__(None, None, None)
        running.enter_context(serve_in_background(Tracker(TrackerOptions(port=port))))
        until(lambda: len(client.query()["devices"]) == 1)
        assert client.query()["devices"][0]["busy"]
        with pytest.raises(UserError, match="no device of the key 'cpu' became free"):
            client.request("cpu", wait_seconds=0.3)
        session.ping()
        session.close()
        until(lambda: not client.query()["devices"][0]["busy"])
        client.request("cpu", wait_seconds=20).close()
        assert server.log.bugs == 0


def _server_at(port: int) -> Server:
    return Server(ServerOptions(port=0, tracker=f"{HOST}:{port}", key="cpu"))


def test_a_device_that_registers_again_is_one_device_and_its_lease_can_be_ended(tracker: Tracker) -> None:
    """Its connection broke and the tracker has not noticed: the new entry takes the place and the lease of the old."""
    client = _client(tracker)
    lines: list[str] = []
    options = ServerOptions(port=0, tracker=f"{HOST}:{tracker.port}", key="cpu", say=lines.append)
    with serve_in_background(Server(options)) as server:
        session = client.request("cpu", wait_seconds=20, lease_seconds=4)
        link = server._link
        assert link is not None
        served = len(client.query()["devices"])
        loop = link._task.get_loop()  # type: ignore[union-attr]
        # A second registration of the same device, while the first still stands.
        loop.call_soon_threadsafe(lambda: loop.create_task(link._stay()))
        until(lambda: sum("registered with" in line for line in lines) == 2)
        devices = client.query()["devices"]
        assert served == len(devices) == 1 and devices[0]["busy"]
        # The lease's time still ends it, through the new connection.
        until(lambda: not client.query()["devices"][0]["busy"])
        with pytest.raises(UserError):
            session.ping()
        session.close()


def test_a_lease_ends_in_time_without_its_tracker() -> None:
    with ExitStack() as running:
        first = serve_in_background(Tracker(TrackerOptions(port=0)))
        port = first.__enter__().port
        server = running.enter_context(serve_in_background(_server_at(port)))
        session = rpc.connect_tracker(HOST, port).request("cpu", wait_seconds=20, lease_seconds=600)
        first.__exit__(None, None, None)
        session.ping()
        link = server._link
        assert link is not None and link._task is not None
        loop = link._task.get_loop()
        [(lease, deadline)] = link._deadlines.items()
        assert 500 < deadline.when() - loop.time() <= 600 + tracker_link._GRACE_SECONDS
        # What the loop does at that time.
        loop.call_soon_threadsafe(link._revoke, lease)
        until(lambda: server.running_lease() is None)
        with pytest.raises(UserError):
            session.ping()
        session.close()


def test_the_token_of_a_role_is_good_for_that_role_only() -> None:
    with ExitStack() as running:
        lines: list[str] = []
        options = TrackerOptions(port=0, token=TOKEN, device_token=DEVICE_TOKEN, say=lines.append)
        tracker = running.enter_context(serve_in_background(Tracker(options)))
        registration = {"role": "device", "key": "k", "host": HOST, "port": 1, "info": {}, "lease": None}
        lease = {"role": "lease", "key": "k", "client": "me", "priority": 0, "seconds": 1.0, "wait": 0.1}
        for token, role, first in (
            (TOKEN, CLIENT, registration),
            (DEVICE_TOKEN, DEVICE, lease),
            (DEVICE_TOKEN, DEVICE, {"role": "query"}),
        ):
            channel = open_channel(HOST, tracker.port, Credentials(token, False, role), first)
            with pytest.raises(UserError, match=f"the token of a {role} is not for this"):
                raise_reported(channel.receive(), channel.peer)
            channel.close()
        for token, role, first in ((TOKEN, DEVICE, registration), (DEVICE_TOKEN, CLIENT, lease)):
            with pytest.raises(UserError, match="the connection was refused"):
                open_channel(HOST, tracker.port, Credentials(token, False, role), first)
        assert rpc.connect_tracker(HOST, tracker.port, token=TOKEN).query()["devices"] == []
        assert any("has the token of a client and asked for a device" in line for line in lines)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"port": 70000}, "no number 'port'"),
        ({"port": True}, "no number 'port'"),
        ({"key": "a\nb"}, "'key' of the message is no name"),
        ({"key": "\ud800"}, "'key' of the message is damaged"),
        ({"host": "x" * 300}, "no text 'host'"),
        ({"info": []}, "no object 'info'"),
        ({"lease": 7}, "no text 'lease'"),
    ],
)
def test_registrations_are_checked(tracker: Tracker, change: dict[str, object], message: str) -> None:
    first = {"role": "device", "key": "k", "host": HOST, "port": 1, "info": {}, "lease": None, **change}
    lines: list[str] = []
    tracker.log._say = lines.append
    channel = open_channel(HOST, tracker.port, Credentials("", False, DEVICE), first)
    with pytest.raises(UserError, match="closed the connection"):
        channel.receive()
    channel.close()
    until(lambda: any(message in line for line in lines))
    assert tracker.log.bugs == 0 and _client(tracker).query()["devices"] == []


@pytest.mark.parametrize(
    "change",
    [{"wait": 10**400}, {"seconds": -1}, {"seconds": "1"}, {"priority": 1 << 70}, {"priority": None}, {"client": [1]}],
)
def test_requests_for_leases_are_checked(tracker: Tracker, change: dict[str, object]) -> None:
    first = {"role": "lease", "key": "k", "client": "me", "priority": 0, "seconds": 1.0, "wait": 0.1, **change}
    channel = open_channel(HOST, tracker.port, Credentials("", False), first)
    with pytest.raises(UserError, match="closed the connection"):
        channel.receive()
    channel.close()
    assert tracker.log.bugs == 0 and _client(tracker).query()["waiting"] == []
