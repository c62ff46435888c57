"""Frames: what is written is read, what is damaged is refused before memory is taken for it."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.rpc import wire
from tilewright.rpc.wire import (
    MAGIC,
    MOST_HEADER_BYTES,
    PREFIX_BYTES,
    WIRE_VERSION,
    Channel,
    Disconnected,
    Frame,
    RemoteError,
    SessionDied,
    WireError,
    bytes_of,
    decode_header,
    decode_prefix,
    encode,
    error_header,
    raise_reported,
)
from tilewright.support.errors import UserError

scalars = st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.text(max_size=8)
headers = st.dictionaries(st.text(max_size=5), scalars | st.lists(scalars, max_size=3), max_size=5)


@given(headers, st.binary(max_size=100))
def test_frames_survive_the_way(header: dict[str, object], payload: bytes) -> None:
    left, right = socket.socketpair()
    with left, right:
        Channel(left, "right").send(header, payload)
        frame = Channel(right, "left").receive()
    assert frame.header == header
    assert bytes(frame.payload) == payload


@given(st.binary(min_size=PREFIX_BYTES, max_size=PREFIX_BYTES))
def test_random_prefixes_are_refused_or_within_the_limits(prefix: bytes) -> None:
    try:
        header_bytes, payload_bytes = decode_prefix(prefix, most_payload=1000)
    except WireError:
        return
    assert prefix[:4] == MAGIC
    assert header_bytes <= MOST_HEADER_BYTES
    assert payload_bytes <= 1000


@given(st.binary(max_size=40))
def test_random_headers_are_objects_or_refused(text: bytes) -> None:
    with contextlib.suppress(WireError):
        assert isinstance(decode_header(text), dict)


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        (struct.pack("<4sHHIQ", b"HTTP", WIRE_VERSION, 0, 2, 0), "does not speak"),
        (struct.pack("<4sHHIQ", MAGIC, WIRE_VERSION + 1, 0, 2, 0), "version"),
        (struct.pack("<4sHHIQ", MAGIC, WIRE_VERSION, 0, MOST_HEADER_BYTES + 1, 0), "lengths"),
        (struct.pack("<4sHHIQ", MAGIC, WIRE_VERSION, 0, 2, 1 << 60), "lengths"),
        (struct.pack("<4sHHIQ", MAGIC, WIRE_VERSION, 7, 2, 0), "lengths"),
        (struct.pack("<4sHHIQ", MAGIC, WIRE_VERSION, 0, 0, 0), "lengths"),
    ],
)
def test_damaged_prefixes(prefix: bytes, message: str) -> None:
    with pytest.raises(WireError, match=message):
        decode_prefix(prefix)


@pytest.mark.parametrize("text", [b"[1]", b"{", b"\xff\xfe", b"[" * 100_000, b"null"])
def test_damaged_headers(text: bytes) -> None:
    with pytest.raises(WireError, match="JSON object"):
        decode_header(text)


def test_too_long_a_header_is_not_sent() -> None:
    with pytest.raises(UserError, match="too long"):
        encode({"text": "x" * MOST_HEADER_BYTES})


def test_too_long_a_payload_is_not_sent() -> None:
    with pytest.raises(UserError, match="more than one message"):
        encode({}, 1 << 40)


def test_a_connection_that_ends_in_a_frame() -> None:
    left, right = socket.socketpair()
    left.sendall(encode({"a": 1}, 10)[:-3])
    left.close()
    with pytest.raises(Disconnected, match="closed the connection"):
        Channel(right, "left").receive()


def test_a_side_that_does_not_answer() -> None:
    left, right = socket.socketpair()
    with left, right:
        channel = Channel(right, "left")
        channel.settimeout(0.05)
        with pytest.raises(Disconnected, match="does not answer"):
            channel.receive()


def test_requests_from_several_threads_keep_their_answers() -> None:
    left, right = socket.socketpair()

    def echo() -> None:
        channel = Channel(right, "left")
        for _ in range(200):
            frame = channel.receive()
            channel.send({"status": "ok", **frame.header}, frame.payload)

    thread = threading.Thread(target=echo)
    thread.start()
    channel = Channel(left, "right")
    wrong: list[int] = []

    def ask(number: int) -> None:
        for turn in range(50):
            if channel.request({"number": number, "turn": turn}).header["number"] != number:
                wrong.append(number)

    askers = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    thread.join()
    assert not wrong


def test_reported_errors_have_kinds() -> None:
    with pytest.raises(SessionDied, match="gone"):
        raise_reported(Frame(error_header("gone", kind="died")), "peer")
    with pytest.raises(RemoteError, match="bad") as caught:
        raise_reported(Frame(error_header("bad", hint="mend it")), "peer")
    assert caught.value.hint == "mend it"
    with pytest.raises(WireError, match="unknown status"):
        raise_reported(Frame({"status": "what"}), "peer")


@pytest.mark.parametrize(
    "read",
    [
        lambda frame: frame.text("x"),
        lambda frame: frame.number("x"),
        lambda frame: frame.real("x"),
        lambda frame: frame.items("x"),
        lambda frame: frame.table("x"),
    ],
)
@pytest.mark.parametrize("header", [{}, {"x": None}, {"x": True}, {"x": -1}])
def test_fields_of_the_wrong_kind(read: object, header: dict[str, object]) -> None:
    with pytest.raises(WireError, match="no "):
        read(Frame(header))  # type: ignore[operator]


@pytest.mark.parametrize("value", [10**400, -(10**400), 1e300, "1", [1], {}])
def test_numbers_out_of_range(value: object) -> None:
    for read in (Frame({"x": value}).real, Frame({"x": value}).number):
        with pytest.raises(WireError, match="no number 'x'"):
            read("x")


@pytest.mark.parametrize(
    ("value", "message"),
    [("\ud800", "is damaged"), ("a\ud800b", "is damaged"), ("x" * 5000, "at most 4096"), (b"x", "no text")],
)
def test_texts_that_cannot_be_written(value: object, message: str) -> None:
    with pytest.raises(WireError, match=message):
        Frame({"x": value}).text("x")


@pytest.mark.parametrize("value", ["", "a\nb", "\x1b[2J", "\u202e", "x" * 201])
def test_names_stand_in_a_line(value: str) -> None:
    with pytest.raises(WireError, match=r"is no name|at most 200"):
        Frame({"x": value}).name("x")
    assert Frame({"x": "küche 7"}).name("x") == "küche 7"


def test_a_message_without_memory_for_it_is_dropped_and_the_next_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    class Small(bytearray):
        def __iadd__(self, part: object) -> Small:  # type: ignore[override,misc]
            if len(self) + len(bytes(part)) > 1000:  # type: ignore[call-overload]
                raise MemoryError
            self.extend(bytes(part))  # type: ignore[call-overload]
            return self

    monkeypatch.setattr(wire, "bytearray", Small, raising=False)
    left, right = socket.socketpair()
    with left, right:
        Channel(left, "right").send({"a": 1}, bytes(5000))
        Channel(left, "right").send({"b": 2}, b"small")
        with pytest.raises(MemoryError, match="no memory for a message of"):
            Channel(right, "left").receive()
        assert Channel(right, "left").receive().header == {"b": 2}


def test_bytes_of_arrays() -> None:
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    assert bytes(bytes_of(array)) == array.tobytes()
    assert bytes(bytes_of(array.T)) == array.T.tobytes()
    assert bytes(bytes_of(np.empty((0, 3)))) == b""
