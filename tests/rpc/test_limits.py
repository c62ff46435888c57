"""What a service may be made to hold: strangers, memory, folders, lines of its log; and what it keeps to itself."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.rpc.remote_programs import crash, double
from tests.rpc.waiting import until
from tilewright import rpc
from tilewright.rpc import isolation
from tilewright.rpc.background import serve_in_background
from tilewright.rpc.log import Log
from tilewright.rpc.security import RPC_DEVICE_TOKEN, RPC_TOKEN, client_tls
from tilewright.rpc.server import Server, ServerOptions, _Process
from tilewright.rpc.session import Session
from tilewright.rpc.wire import (
    MAGIC,
    PREFIX_BYTES,
    Channel,
    DamagedHeader,
    Frame,
    VersionError,
    encode,
    encode_text,
    raise_reported,
)
from tilewright.support import settings
from tilewright.support.errors import UserError

HOST = "127.0.0.1"
TOKEN = "a token of some length"


@contextmanager
def _server(**options: object) -> Iterator[Server]:
    with serve_in_background(Server(ServerOptions(port=0, **options))) as server:  # type: ignore[arg-type]
        yield server


@pytest.fixture
def descriptors() -> Iterator[None]:
    """Room for a thousand connections."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, before[1]), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("tls", [True, False])
def test_stalled_strangers_do_not_lock_honest_clients_out(tls: bool, descriptors: None) -> None:
    """Five hundred connections that say nothing, or half of a TLS greeting: there is room for those who go on."""
    with _server(token=TOKEN, tls=tls) as server, ExitStack() as stack:
        for number in range(500):
            connection = stack.enter_context(socket.create_connection((HOST, server.port), 10))
            if number % 2:
                connection.sendall(b"\x16\x03\x01\x02\x00\x01" if tls else MAGIC)
        until(lambda: server._service.strangers >= 100)
        began = time.monotonic()
        with rpc.connect(HOST, server.port, token=TOKEN, tls=tls) as session:
            session.ping()
        # The strangers are there for ten seconds: who had to wait for them took longer.
        assert time.monotonic() - began < 9
        assert server._service.strangers <= 128
        assert server.log.bugs == 0


def test_strangers_are_closed_in_time() -> None:
    with _server(token=TOKEN, tls=True) as server:
        server._service._greeting_seconds = 0.3
        with socket.create_connection((HOST, server.port), 10) as silent:
            assert silent.recv(1) == b""
        with client_tls().wrap_socket(socket.create_connection((HOST, server.port), 10)) as half:
            half.sendall(encode({"hello": 2})[:7])
            assert half.recv(100) == b""
        until(lambda: server._service.strangers == 0)


def _resident(pid: int | str = "self") -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_payloads_pass_through_a_server_in_pieces() -> None:
    """What a client sends is held by its session's process, which has the limit, and not by the server."""
    with _server() as server, rpc.connect(HOST, server.port) as session:
        array = session.empty((8,), "float32")
        payload = bytearray(96 << 20)
        before = _resident()
        session._channel.send({"request": "write", "array": array.number}, payload)
        held = _resident() - before
        with pytest.raises(rpc.RemoteError, match="were sent"):
            raise_reported(session._channel.receive(), "server")
        assert max(held, _resident() - before) < 24 << 20
        session.ping()


def test_a_payload_larger_than_the_sessions_memory_is_an_error() -> None:
    """Wherever memory ends, in a buffer that grows or in a read: the rest is read, and is not taken for a message."""
    with _server() as server, rpc.connect(HOST, server.port) as session:
        [pid] = _sessions()
        taken = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        for more in range(9 << 20, 13 << 20, 1 << 18):
            resource.prlimit(pid, resource.RLIMIT_AS, (taken + more, resource.RLIM_INFINITY))
            with pytest.raises(rpc.RemoteError, match="the session ran out of memory"):
                session.request("upload", bytearray(24 << 20), name="large", seconds=20)
            session.ping()


def test_a_damaged_header_does_not_hide_where_the_next_message_begins() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = Channel(ours, "other side")
        theirs.sendall(encode_text(b"[]", 3) + b"abc" + encode({"status": "ok"}))
        with pytest.raises(DamagedHeader):
            channel.receive()
        assert channel.receive().header == {"status": "ok"}


def test_files_of_a_session_have_a_limit(tmp_path: Path) -> None:
    session = Session(tmp_path, 1000)
    frame = Frame
    for name in ("a", "b", "a"):
        session.answer(frame({"request": "upload", "name": name}, bytes(500)))
    with pytest.raises(UserError, match="the files of a session may hold"):
        session.answer(frame({"request": "upload", "name": "c"}, b"1"))


def test_a_library_that_is_uploaded_again_is_the_new_one(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    first = double(tmp_path / "one")
    second = crash(tmp_path)
    with _server() as server, rpc.connect(HOST, server.port) as session:
        for path, name in ((first, "double"), (second, "crash"), (first, "double")):
            session.upload(path, "same.so")
            module = session.load_module("same.so")
            assert isinstance(module, rpc.RemoteModule) and list(module.functions) == [name]
        module["double"](session.array(np.ones(8, np.float32)), session.empty((8,)))


@pytest.mark.parametrize("seconds", [10**400, -1, 0, "1", True, None, 1e308])
def test_time_limits_of_requests_are_checked(seconds: object) -> None:
    with _server() as server, rpc.connect(HOST, server.port) as session:
        session._channel.send({"request": "ping", "seconds": seconds})
        answer = session._channel.receive().header
        assert answer["status"] == ("ok" if seconds is None else "error")
        session.ping()
    assert server.log.bugs == 0


@pytest.mark.parametrize("text", [b'{"a": NaN}', b'{"a": 1e999}', b'{"a": Infinity}', "{}".encode("utf-16"), b"[]"])
def test_headers_that_are_no_plain_json_are_answered(text: bytes) -> None:
    with _server() as server, rpc.connect(HOST, server.port) as session:
        prefix = encode({"x": 1}, 3)[:PREFIX_BYTES]
        session._channel._socket.sendall(prefix[:8] + len(text).to_bytes(4, "little") + prefix[12:] + text + b"abc")
        assert session._channel.receive().header["message"] == "a damaged message: its header is not a JSON object"
        session.ping()


def test_another_version_is_refused_with_a_word_about_it() -> None:
    with _server() as server, socket.create_connection((HOST, server.port), 10) as connection:
        hello = bytearray(encode({"hello": 1, "nonce": "00" * 32}))
        hello[4] = 1
        connection.sendall(hello)
        answer = Channel(connection, "server").receive().header
        assert answer["status"] == "refused"
        assert answer["message"] == "the other side speaks version 1 of the protocol, this is 2"
    left, right = socket.socketpair()
    with left, right:
        left.sendall(hello)
        with pytest.raises(VersionError, match="speaks version 1 of the protocol, this is 2") as caught:
            Channel(right, "old").receive()
        assert "same version" in str(caught.value.hint)


def test_sessions_and_other_children_do_not_see_the_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RPC_TOKEN.name, TOKEN)
    monkeypatch.setenv(RPC_DEVICE_TOKEN.name, TOKEN + "!")
    monkeypatch.setenv("TILEWRIGHT_OTHER_TOKEN", "of a part that is not loaded")
    with RPC_TOKEN.override(TOKEN + "?"):
        assert not [name for name in settings.child_environment() if name.endswith("TOKEN")]
    with _server(token=TOKEN) as server, rpc.connect(HOST, server.port, token=TOKEN):
        [pid] = _sessions()
        seen = _read(Path(f"/proc/{pid}/environ"))
        assert b"PYTHONPATH" in seen and TOKEN.encode() not in seen and b"TOKEN" not in seen


def _sessions() -> list[int]:
    """The processes of the sessions of servers in this process."""
    return [
        int(path.name)
        for path in Path("/proc").iterdir()
        if b"tilewright.rpc.session" in _read(path / "cmdline") and _parent(path) == os.getpid()
    ]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _parent(path: Path) -> int:
    found = _read(path / "stat").rpartition(b")")[2].split()
    return int(found[1]) if found else 0


def test_folders_that_a_killed_server_left_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    live = isolation.SessionFolder()
    left = isolation.SessionFolder()
    os.close(left._lock)  # as when its process is gone
    old, young, file = (tmp_path / f"tilewright-session-{name}" for name in ("old", "young", "file"))
    old.mkdir()
    young.mkdir()
    file.write_text("")
    os.utime(old, (1, 1))
    assert isolation.remove_left_folders() == 2
    assert live.files.is_dir() and young.is_dir() and file.exists()
    assert not left.path.exists() and not old.exists()
    live.remove()
    assert not live.path.exists()


def test_a_killed_server_takes_its_sessions_along_and_the_next_clears_up(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "tilewright", "rpc", "server", "--port", "0"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        port = int(first.stdout.readline().split(":")[1].split()[0])
        session = rpc.connect(HOST, port)
        [folder] = tmp_path.glob("tilewright-session-*")
        children = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
        first.kill()
        first.wait()
        session.close()
    until(lambda: not any(_read(Path(f"/proc/{pid}/cmdline")) for pid in children))
    assert folder.exists()
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as second:
        assert second.stdout is not None
        assert "1 folders of sessions that had been left were deleted" in second.stdout.readline()
        second.send_signal(signal.SIGTERM)
        assert second.wait(20) == 0
    assert not folder.exists()


def test_last_words_of_a_process_are_few(tmp_path: Path) -> None:
    """What compiled code prints before its process ends is not read as a whole, nor waited for."""

    async def obituary(code: str) -> str:
        async with _Process(0) as process:
            assert await process.ready()
            process.process.kill()
            await process.process.wait()
            process.process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stderr=process._errors)
            return await process.obituary()

    said = asyncio.run(obituary("import sys; sys.stderr.write('x' * 1000000 + chr(10) + 'last words'); sys.exit(3)"))
    assert said == "the session's process ended with the exit code 3: last words"
    said = asyncio.run(obituary("import sys; sys.stderr.write('x' * 1000000); sys.exit(3)"))
    assert len(said) < 2100


def test_logs_are_bounded() -> None:
    lines: list[str] = []
    now = [0.0]
    log = Log(lines.append, lambda: now[0])
    for number in range(1000):
        log.line("noise", f"line {number}")
    log.line("other", "a\nb\x1b[31mc" + "x" * 1000)
    assert len(lines) == 11
    assert lines[-1].startswith("a\\nb\\x1b[31mc") and len(lines[-1]) < 500
    now[0] = 11.0
    log.line("noise", "again")
    assert lines[-2:] == ["... 990 more lines were left out (noise)", "again"]
    for _ in range(12):
        log.line("noise", "again")
    log.close()
    assert lines[-1] == "... 3 more lines were left out (noise)"


def test_what_fails_unforeseen_is_said_and_costs_one_connection() -> None:
    lines: list[str] = []
    with _server(say=lines.append) as server:

        async def fails(*unused: object) -> None:
            raise ZeroDivisionError("oh")

        kept, server._service._handler = server._service._handler, fails
        with pytest.raises(UserError):
            rpc.connect(HOST, server.port)
        server._service._handler = kept
        rpc.connect(HOST, server.port).close()
        assert server.log.bugs == 1
    assert any("internal error in the connection of" in line and "ZeroDivisionError" in line for line in lines)
