"""Ten thousand random and mutated messages, wrong tokens, slow and half-open connections: honest clients are served on,
strangers learn nothing, and nothing is left behind."""

from __future__ import annotations

import gc
import json
import os
import random
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

from tilewright import rpc
from tilewright.rpc import security
from tilewright.rpc.background import serve_in_background
from tilewright.rpc.connect import open_channel
from tilewright.rpc.security import Credentials
from tilewright.rpc.server import Server, ServerOptions
from tilewright.rpc.tracker import Tracker, TrackerOptions
from tilewright.rpc.wire import PREFIX_BYTES, Channel, WireError, decode_header, decode_prefix, encode
from tilewright.support.errors import UserError

TOKEN = "a token of some length"
HOST = "127.0.0.1"
KEY = "board"
HONEST = Credentials(TOKEN, False)

_STRANGERS, _SESSION, _POOL = 3000, 6000, 1000
"""Messages of those who do not know the token, of clients in sessions, and of clients and devices of the tracker."""

_REQUESTS = (
    ({"request": "array", "shape": [4], "dtype": "float32"}, b"\0" * 16),
    ({"request": "call", "module": 0, "function": "double", "arguments": [{"array": 1}]}, b""),
    ({"request": "load", "name": "double.so"}, b""),
    ({"request": "upload", "name": "file.bin"}, b"contents"),
    ({"request": "write", "array": 1}, b"\1" * 16),
    ({"request": "read", "array": 1}, b""),
    ({"request": "free", "arrays": [1]}, b""),
    ({"request": "time", "module": 0, "function": "f", "arguments": [], "number": 1, "repeat": 1}, b""),
    ({"request": "run", "module": 0, "arguments": []}, b""),
)
_EVENTS = (
    {"role": "device", "key": KEY + "?", "host": HOST, "port": 1, "info": {}},
    {"role": "lease", "key": KEY + "?", "client": "x", "priority": 0, "wait": 0.0, "seconds": 1.0},
    {"role": "query"},
    {"role": "session"},
    {"event": "heartbeat"},
)


@contextmanager
def _pool() -> Iterator[tuple[Tracker, Server]]:
    """A tracker and a server that it manages, both in this process."""
    with serve_in_background(Tracker(TrackerOptions(port=0, token=TOKEN))) as tracker:
        address = f"{HOST}:{tracker.port}"
        options = ServerOptions(port=0, token=TOKEN, tracker=address, key=KEY, request_seconds=20, memory_bytes=4 << 30)
        with serve_in_background(Server(options)) as server:
            client = rpc.connect_tracker(HOST, tracker.port, token=TOKEN)
            deadline = time.monotonic() + 30
            while not client.query()["devices"]:
                assert time.monotonic() < deadline, "the server did not register"
                time.sleep(0.02)
            yield tracker, server


def _mutated(rng: random.Random, message: bytes, first: int = 0) -> bytes:
    """A message with a few bytes changed, cut out, put in or cut off, from byte `first` on."""
    data = bytearray(message)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(first, max(first + 1, len(data)))
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


def _header_mutated(rng: random.Random, header: dict[str, object]) -> dict[str, object]:
    """A header with a field dropped, doubled under another name, or of another kind."""
    made = dict(header)
    name = rng.choice(list(made))
    odd = (None, -1, 1 << 70, 1e300, "", "../x", "\0", [], [[[]]], {"a": []}, True, "x" * 2000, 0.5)
    action = rng.randrange(3)
    if action == 0:
        del made[name]
    elif action == 1:
        made[name] = rng.choice(odd)
    else:
        made[rng.choice(("", "x", name + " "))] = rng.choice(odd)
    return made


def _frames(data: bytes) -> list[dict[str, object]]:
    """The headers of the frames in some bytes; whatever came must be whole frames."""
    headers = []
    while data:
        header_bytes, payload_bytes = decode_prefix(data[:PREFIX_BYTES])
        end = PREFIX_BYTES + header_bytes
        headers.append(decode_header(data[PREFIX_BYTES:end]))
        data = data[end + payload_bytes :]
    return headers


def _strange(rng: random.Random, port: int) -> None:
    """One stranger: says something wrong, hears nothing but a random number and a refusal."""
    hello = encode({"hello": 1, "nonce": "00" * 32})
    proof = encode({"proof": rng.randbytes(32).hex()})
    words = rng.choice((rng.randbytes(rng.randrange(1, 200)), _mutated(rng, hello), hello + _mutated(rng, proof)))
    if rng.random() < 0.2:
        words = hello + proof
    with socket.create_connection((HOST, port), 10) as connection:
        connection.sendall(words)
        connection.shutdown(socket.SHUT_WR)
        heard = bytearray()
        with_reset = False
        while not with_reset:
            try:
                part = connection.recv(4096)
            except ConnectionError:
                with_reset = True
                continue
            if not part:
                break
            heard += part
    for header in _frames(bytes(heard)):
        if set(header) == {"nonce"}:
            assert len(bytes.fromhex(str(header["nonce"]))) == security.NONCE_BYTES
        else:
            assert header == {
                "status": "refused",
                "message": "the connection was refused",
                "hint": "is the token right?",
            }


def _misbehave_in_sessions(rng: random.Random, tracker_port: int, count: int) -> None:
    """A client that knows the token and sends nonsense in its sessions: each message is answered."""
    done = 0
    client = rpc.connect_tracker(HOST, tracker_port, token=TOKEN)
    while done < count:
        with client.request(KEY, wait_seconds=30) as session:
            channel: Channel = session._channel
            try:
                for _ in range(1500):
                    header, payload = rng.choice(_REQUESTS)
                    done += 1
                    if rng.random() < 0.4:
                        message = encode(_header_mutated(rng, dict(header)), len(payload)) + payload
                    else:
                        # The lengths stay right: with wrong ones both sides would wait for each other.
                        text = bytearray(json.dumps(header).encode())
                        for _ in range(rng.randrange(3)):
                            text[rng.randrange(len(text))] = rng.randrange(256)
                        whole = encode(header, len(payload))
                        prefix = whole[:8] + len(text).to_bytes(4, "little") + whole[12:PREFIX_BYTES]
                        message = prefix + bytes(text) + payload
                    if rng.random() < 0.001:
                        channel._socket.sendall(_mutated(rng, message))
                        break
                    channel._socket.sendall(message)
                    answer = channel.receive().header
                    assert answer["status"] in ("ok", "error"), (answer, message)
                    if done >= count:
                        break
            except (UserError, OSError):
                pass


def _misbehave_at_the_tracker(rng: random.Random, port: int, count: int) -> None:
    for _ in range(count):
        first = _header_mutated(rng, dict(rng.choice(_EVENTS)))
        try:
            channel = open_channel(HOST, port, HONEST, first)
        except UserError:
            continue
        channel.settimeout(10)
        try:
            if rng.random() < 0.5:
                channel._socket.sendall(_mutated(rng, encode(dict(rng.choice(_EVENTS)))))
            channel._socket.shutdown(socket.SHUT_WR)
            while channel.receive():
                pass
        except (UserError, OSError, WireError):
            pass
        finally:
            channel.close()


def _descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def _memory() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_ten_thousand_hostile_messages() -> None:
    rng = random.Random(5)
    with _pool() as (tracker, server), ExitStack() as stack:
        ports = (tracker.port, server.port)
        before = _descriptors()
        memory = _memory()
        dawdlers = [stack.enter_context(socket.create_connection((HOST, ports[n % 2]))) for n in range(24)]
        for number, connection in enumerate(dawdlers):
            if number % 3:
                connection.sendall(encode({"hello": 1, "nonce": "00" * 32})[: rng.randrange(60)])
            if number % 3 == 2:
                connection.shutdown(socket.SHUT_WR)
        with ThreadPoolExecutor(2) as threads:
            others = (
                threads.submit(_misbehave_in_sessions, random.Random(6), tracker.port, _SESSION),
                threads.submit(_misbehave_at_the_tracker, random.Random(7), tracker.port, _POOL),
            )
            for number in range(_STRANGERS):
                _strange(rng, ports[number % 2])
            for other in others:
                other.result()
        client = rpc.connect_tracker(HOST, tracker.port, token=TOKEN)
        with client.request(KEY, wait_seconds=30) as session:
            kept = session.array(np.arange(8, dtype=np.float32))
            np.testing.assert_array_equal(kept.numpy(), np.arange(8, dtype=np.float32))
        assert [device["key"] for device in client.query()["devices"]] == [KEY]
        for connection in dawdlers:
            connection.close()
        deadline = time.monotonic() + 20
        while _descriptors() > before + 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert _descriptors() <= before + 2, "connections were left open"
        assert _memory() - memory < 200 << 20


@pytest.mark.parametrize("token", ["", "another token of the length", TOKEN + " "])
def test_wrong_tokens_learn_nothing_at_all(token: str) -> None:
    with _pool() as (tracker, server):
        for port in (tracker.port, server.port):
            for role in ({"role": "query"}, {"role": "session"}):
                with pytest.raises(UserError) as caught:
                    open_channel(HOST, port, Credentials(token, False), role)
                assert caught.value.message == "the connection was refused"
