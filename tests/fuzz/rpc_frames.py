"""Random and damaged messages to an RPC server and a tracker, before and after the handshake, with TLS and without.

    python -m tests.fuzz.rpc_frames --count 10000 --seed 0

The services run in this process, on loopback. Meanwhile honest clients lease the device and use it. Whatever is sent,
services stay, answer honest clients, log no error that is their own (`Log.bugs`) and nothing that asyncio finds, and
keep neither connections nor memory.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import random
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

import numpy as np

from tilewright import rpc
from tilewright.rpc import security
from tilewright.rpc.background import serve_in_background
from tilewright.rpc.connect import open_channel
from tilewright.rpc.pool import TrackerClient
from tilewright.rpc.security import CLIENT, DEVICE, Credentials
from tilewright.rpc.server import Server, ServerOptions
from tilewright.rpc.tracker import Tracker, TrackerOptions
from tilewright.rpc.wire import PREFIX_BYTES, Channel, decode_header, decode_prefix, encode
from tilewright.support.errors import UserError

TOKEN, DEVICE_TOKEN = "a token of some length", "another token, of devices"
HOST, KEY = "127.0.0.1", "board"
_MOST_GROWTH = 200 << 20

_REQUESTS: tuple[tuple[dict[str, object], bytes], ...] = (
    ({"request": "array", "shape": [4], "dtype": "float32"}, b"\0" * 16),
    ({"request": "call", "module": 0, "function": "double", "arguments": [{"array": 1}]}, b""),
    ({"request": "load", "name": "double.so"}, b""),
    ({"request": "upload", "name": "file.bin"}, b"contents"),
    ({"request": "write", "array": 1}, b"\1" * 16),
    ({"request": "read", "array": 1}, b""),
    ({"request": "free", "arrays": [1]}, b""),
    ({"request": "time", "module": 0, "function": "f", "arguments": [], "number": 1, "repeat": 1}, b""),
    ({"request": "run", "module": 0, "inputs": {}}, b""),
    ({"request": "ping", "seconds": 1.0}, b""),
)
_FIRSTS: tuple[dict[str, object], ...] = (
    {"role": "device", "key": KEY + "?", "host": HOST, "port": 1, "info": {}, "lease": None},
    {"role": "device", "key": KEY + "?", "host": HOST, "port": 2, "info": {"a": 1}, "lease": "a lease"},
    {"role": "lease", "key": KEY + "?", "client": "x", "priority": 0, "wait": 0.0, "seconds": 1.0},
    {"role": "query"},
    {"role": "session"},
)
_EVENTS: tuple[dict[str, object], ...] = (
    {"event": "heartbeat"},
    {"event": "ready", "lease": "x"},
    {"event": "finished", "lease": "a lease"},
    {"event": "lease", "lease": "x", "seconds": 1.0},
)
_ODD: tuple[object, ...] = (
    *(None, -1, 1 << 70, 10**400, 1e300, -0.0, "", "../x", "\0", "\ud800", "\U0001f600", [], [[[]]], {"a": []}, True),
    *("x" * 2000, 0.5, [1 << 70], {"array": -1}, [{"array": 10**30}], "a\nb\x1b[2J", "é" * 100),
)
_HEADERS = (
    b"",
    b"[]",
    b"{",
    b'{"a":NaN}',
    b'{"a":1e999}',
    b"\xff\xfe{}",
    b"[" * 3000,
    b'{"request":"\\ud800"}',
    b"1" * 5000,
)


@dataclass
class Campaign:
    """What was sent and what became of it."""

    sent: Counter[str] = field(default_factory=Counter)
    honest: int = 0
    complaints: list[str] = field(default_factory=list)


class _Complaints(logging.Handler):
    """What asyncio logs: a task whose failure nobody took, a callback that failed."""

    def __init__(self, found: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._found = found

    def emit(self, record: logging.LogRecord) -> None:
        self._found.append(record.getMessage())


@contextmanager
def pool(tls: bool) -> Iterator[tuple[Tracker, Server]]:
    """A tracker and a server that it manages, both in this process."""
    options = TrackerOptions(port=0, token=TOKEN, device_token=DEVICE_TOKEN, tls=tls)
    with serve_in_background(Tracker(options)) as tracker:
        served = ServerOptions(
            port=0,
            device_token=DEVICE_TOKEN,
            tls=tls,
            tracker=f"{HOST}:{tracker.port}",
            key=KEY,
            request_seconds=20,
            memory_bytes=4 << 30,
        )
        with serve_in_background(Server(served)) as server:
            client = rpc.connect_tracker(HOST, tracker.port, token=TOKEN, tls=tls)
            deadline = time.monotonic() + 30
            while not client.query()["devices"]:
                if time.monotonic() > deadline:
                    raise TimeoutError("the server did not register")
                time.sleep(0.02)
            yield tracker, server


def mutated(rng: random.Random, message: bytes) -> bytes:
    """A message with a few bytes changed, cut out, put in or cut off."""
    data = bytearray(message)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(max(1, len(data)))
        kind = rng.randrange(4)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at : at + rng.randrange(1, 9)] = b""
        elif kind == 2:
            data[at:at] = rng.randbytes(rng.randrange(1, 9))
        else:
            del data[at:]
    return bytes(data)


def header_mutated(rng: random.Random, header: dict[str, object]) -> dict[str, object]:
    """A header with a field dropped, added under another name, or of another kind."""
    made = dict(header)
    name = rng.choice(list(made))
    action = rng.randrange(3)
    if action == 0:
        del made[name]
    elif action == 1:
        made[name] = rng.choice(_ODD)
    else:
        made[rng.choice(("", "x", name + " ", "seconds", "lease"))] = rng.choice(_ODD)
    return made


def _with_header(text: bytes, payload: bytes = b"") -> bytes:
    """A frame of any header text, with lengths that are right."""
    prefix = encode({"x": 1}, len(payload))[:PREFIX_BYTES]
    return prefix[:8] + len(text).to_bytes(4, "little") + prefix[12:] + text + payload


def _frames(data: bytes) -> list[dict[str, object]]:
    """The headers of the frames in some bytes; whatever came must be whole frames."""
    headers = []
    while data:
        header_bytes, payload_bytes = decode_prefix(data[:PREFIX_BYTES])
        end = PREFIX_BYTES + header_bytes
        headers.append(decode_header(data[PREFIX_BYTES:end]))
        data = data[end + payload_bytes :]
    return headers


def _words(rng: random.Random) -> bytes:
    """What a stranger says."""
    hello = encode({"hello": 2, "role": rng.choice((CLIENT, DEVICE, "lease", "x")), "nonce": "00" * 32, "lease": "x"})
    proof = encode({"proof": rng.choice((rng.randbytes(32).hex(), "\ud800" * 64, "é", 7, None))})
    odd = encode(header_mutated(rng, {"hello": 2, "role": CLIENT, "nonce": "00" * 32}))
    large = encode({"hello": 2}, 1 << 32)
    return rng.choice(
        (
            rng.randbytes(rng.randrange(1, 200)),
            mutated(rng, hello),
            hello + mutated(rng, proof),
            hello + proof,
            odd + proof,
            large,
            _with_header(rng.choice(_HEADERS)),
        )
    )


def strange(rng: random.Random, port: int, tls: bool) -> None:
    """One stranger: says something wrong, hears nothing but a random number and a refusal."""
    with socket.create_connection((HOST, port), 20) as plain, ExitStack() as stack:
        connection = plain
        if tls and rng.random() < 0.5:
            with suppress(OSError):
                connection = stack.enter_context(security.client_tls().wrap_socket(plain))
        heard = bytearray()
        with suppress(OSError):
            connection.sendall(_words(rng))
            if connection is plain:
                connection.shutdown(socket.SHUT_WR)
            else:
                connection.settimeout(0.2)
            while part := connection.recv(4096):
                heard += part
    if tls and connection is plain:
        return
    for header in _frames(bytes(heard)):
        if set(header) == {"nonce", "salt"}:
            assert len(bytes.fromhex(str(header["nonce"]))) == security.NONCE_BYTES
        else:
            message = str(header["message"])
            assert header["status"] == "refused", header
            assert message == "the connection was refused" or "of the protocol, this is" in message, header


def misbehave_in_sessions(rng: random.Random, client: TrackerClient, count: int) -> None:
    """A client that holds a lease and sends nonsense in its sessions: each message is answered."""
    done = 0
    while done < count:
        with client.request(KEY, wait_seconds=60, priority=1) as session, suppress(UserError, OSError):
            channel: Channel = session._channel
            for _ in range(1500):
                done += 1
                if not _one_in_session(rng, channel) or done >= count:
                    break


def _one_in_session(rng: random.Random, channel: Channel) -> bool:
    """Send one message; False if it was one after which the session cannot go on."""
    header, payload = rng.choice(_REQUESTS)
    kind = rng.random()
    if kind < 0.4:
        message = encode(header_mutated(rng, dict(header)), len(payload)) + payload
    elif kind < 0.5:
        message = _with_header(rng.choice(_HEADERS[1:]), payload)
    else:
        # The lengths stay right: with wrong ones both sides would wait for each other.
        text = bytearray(json.dumps(header).encode())
        for _ in range(rng.randrange(3)):
            text[rng.randrange(len(text))] = rng.randrange(256)
        message = _with_header(bytes(text), payload)
    if rng.random() < 0.002:
        channel._socket.sendall(mutated(rng, message))
        return False
    channel._socket.sendall(message)
    answer = channel.receive().header
    assert answer["status"] in ("ok", "error"), (answer, message)
    assert "internal error" not in str(answer.get("message")), (answer, message)
    return True


def misbehave_after_the_handshake(rng: random.Random, ports: tuple[int, int], tls: bool, count: int) -> None:
    """Clients and devices that know their tokens and send nonsense to the tracker, or to the server."""
    for _ in range(count):
        token, role = rng.choice(((TOKEN, CLIENT), (DEVICE_TOKEN, DEVICE)))
        first = header_mutated(rng, dict(rng.choice(_FIRSTS)))
        try:
            channel = open_channel(HOST, ports[rng.random() < 0.1], Credentials(token, tls, role), first)
        except UserError:
            continue
        channel.settimeout(0.5)
        with suppress(UserError, OSError):
            for _ in range(rng.randrange(3)):
                event = header_mutated(rng, dict(rng.choice(_EVENTS)))
                words = (encode(event), mutated(rng, encode(event)), _with_header(rng.choice(_HEADERS)))
                channel._socket.sendall(rng.choice(words))
            if not tls:
                channel._socket.shutdown(socket.SHUT_WR)
            while channel.receive():
                pass
        channel.close()


def _descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def _memory() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _honest(client: TrackerClient) -> None:
    with client.request(KEY, wait_seconds=60, priority=2) as session:
        kept = session.array(np.arange(8, dtype=np.float32))
        np.testing.assert_array_equal(kept.numpy(), np.arange(8, dtype=np.float32))


def campaign(count: int, seed: int, *, tls: bool) -> Campaign:
    """Send about `count` messages; raises an `AssertionError` where a promise is broken."""
    found = Campaign()
    shares = {"strangers": count * 3 // 10, "sessions": count * 5 // 10, "after the handshake": count * 2 // 10}
    watching = _Complaints(found.complaints)
    logging.getLogger("asyncio").addHandler(watching)
    try:
        with pool(tls) as (tracker, server), ExitStack() as stack:
            ports = (tracker.port, server.port)
            client = rpc.connect_tracker(HOST, tracker.port, token=TOKEN, tls=tls)
            _honest(client)
            before, memory = _descriptors(), _memory()
            rng = random.Random(seed)
            dawdlers = [stack.enter_context(socket.create_connection((HOST, ports[n % 2]))) for n in range(24)]
            for number, connection in enumerate(dawdlers):
                if number % 3:
                    connection.sendall(encode({"hello": 2, "nonce": "00" * 32})[: rng.randrange(60)])
            _all_at_once(rng, client, ports, tls, shares)
            _honest(client)
            found.honest += 2
            found.sent.update(shares)
            assert [device["key"] for device in client.query()["devices"] if device["key"] == KEY] == [KEY]
            for connection in dawdlers:
                connection.close()
            deadline = time.monotonic() + 30
            while _descriptors() > before + 2 and time.monotonic() < deadline:
                time.sleep(0.1)
            assert _descriptors() <= before + 2, "connections were left open"
            assert _memory() - memory < _MOST_GROWTH
            assert tracker.log.bugs == server.log.bugs == 0, "a service failed by itself"
    finally:
        logging.getLogger("asyncio").removeHandler(watching)
    assert not found.complaints, found.complaints
    return found


def _all_at_once(
    rng: random.Random, client: TrackerClient, ports: tuple[int, int], tls: bool, shares: dict[str, int]
) -> None:
    seeds = [random.Random(rng.random()) for _ in range(2)]
    with ThreadPoolExecutor(2) as threads:
        others = (
            threads.submit(misbehave_in_sessions, seeds[0], client, shares["sessions"]),
            threads.submit(misbehave_after_the_handshake, seeds[1], ports, tls, shares["after the handshake"]),
        )
        for number in range(shares["strangers"]):
            strange(rng, ports[number % 2], tls)
        for other in others:
            other.result()


def main() -> int:
    """Run the campaign; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10000, help="about how many messages (default: 10000)")
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers (default: 0)")
    options = parser.parse_args()
    show: Callable[[str], None] = lambda text: print(text, flush=True)  # noqa: E731
    for tls, share in ((False, options.count * 4 // 5), (True, options.count - options.count * 4 // 5)):
        began = time.monotonic()
        try:
            found = campaign(share, options.seed, tls=tls)
        except AssertionError as error:
            show(f"FAILED ({'TLS' if tls else 'plain'}, seed {options.seed}): {error}")
            return 1
        parts = ", ".join(f"{number} {kind}" for kind, number in found.sent.items())
        words = f"{sum(found.sent.values())} messages ({parts}), {found.honest} honest sessions served"
        show(f"{'TLS' if tls else 'plain'}: {words}, no error of ours, {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
