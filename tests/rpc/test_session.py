"""Sessions on a server: what works, and that a crash, a hang or a greedy program costs that session only."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tests.integration import small_models
from tests.rpc import remote_programs as programs
from tests.rpc.waiting import until
from tilewright import rpc
from tilewright.rpc.background import serve_in_background
from tilewright.rpc.security import client_tls, server_tls
from tilewright.rpc.server import Server, ServerOptions
from tilewright.rpc.wire import Channel
from tilewright.runtime.core.module import Module
from tilewright.support.errors import UserError

TOKEN = "a token of some length"
HOST = "127.0.0.1"
X = np.arange(8, dtype=np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("programs")
    for make in (programs.double, programs.crash, programs.hang):
        make(made)
    return made


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    options = ServerOptions(port=0, token=TOKEN, tls=True, memory_bytes=4 << 30, request_seconds=20, target="llvm")
    with serve_in_background(Server(options)) as running:
        yield running


@pytest.fixture
def remote(server: Server) -> Iterator[rpc.RemoteSession]:
    with rpc.connect(HOST, server.port, token=TOKEN, tls=True) as session:
        yield session


def _module(remote: rpc.RemoteSession, path: Path) -> rpc.RemoteModule:
    remote.upload(path)
    module = remote.load_module(path.name)
    assert isinstance(module, rpc.RemoteModule)
    return module


def test_upload_load_call_and_time(remote: rpc.RemoteSession, folder: Path) -> None:
    module = _module(remote, folder / "double.so")
    a, b = remote.array(X), remote.empty((8,))
    module["double"](a, b)
    np.testing.assert_array_equal(b.numpy(), 2 * X)
    a.copy_from(X + 1)
    module(a, b)
    np.testing.assert_array_equal(b.numpy(), 2 * X + 2)
    result = module.time_evaluator("double", number=5, repeat=4)(a, b)
    assert len(result.results) == 4 and min(result.results) > 0


def test_a_file_that_is_uploaded_again_is_loaded_anew(remote: rpc.RemoteSession, folder: Path, tmp_path: Path) -> None:
    """Under the same name, while the first is in use: each module keeps the library that it was loaded from."""
    modules = []
    for factor in (2.0, 5.0):
        modules.append(_module(remote, programs.scale(tmp_path, factor)))
        a, b = remote.array(X), remote.empty((8,))
        for module, expected in zip(modules, (2.0, 5.0), strict=False):
            module["scale"](a, b)
            np.testing.assert_array_equal(b.numpy(), expected * X)


def test_arrays_of_all_kinds(remote: rpc.RemoteSession) -> None:
    for value in (
        np.float64(3),
        np.arange(6, dtype=np.uint8).reshape(2, 3).T,
        np.empty((0, 4), np.int32),
        [True, False],
    ):
        there = remote.array(value)
        back = there.numpy()
        np.testing.assert_array_equal(back, np.asarray(value))
        assert back.flags.writeable
    assert remote.empty((2, 2), "int16").numpy().tolist() == [[0, 0], [0, 0]]


def test_a_model_runs_on_the_device(remote: rpc.RemoteSession) -> None:
    executable = tw.compile(small_models.classifier().SerializeToString(), threads=1)
    feeds = {executable.input_info[0].name: small_models.image()}
    there = remote.send(executable)
    assert isinstance(there, rpc.RemoteExecutable)
    expected = executable.run(feeds)
    for got, want in zip(there.run(feeds), expected, strict=True):
        np.testing.assert_array_equal(got.numpy(), want)
    positional = there(*[feeds[item] for item in there.input_names])
    np.testing.assert_array_equal(positional[0] if isinstance(positional, tuple) else positional, expected[0])
    assert there.time_evaluator(number=1, repeat=2)(feeds).mean > 0


def test_dropped_arrays_are_freed(remote: rpc.RemoteSession) -> None:
    numbers = {remote.array(X).number for _ in range(5)}
    kept = remote.array(X)
    assert kept.number not in numbers
    with pytest.raises(rpc.RemoteError, match="no array number"):
        remote.request("read", array=min(numbers))


def test_errors_come_back_with_their_hints(remote: rpc.RemoteSession, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(rpc.RemoteError, match=r"no file 'nothing\.so'") as caught:
        remote.load_module("nothing.so")
    assert caught.value.hint == "upload it first"
    junk = tmp_path / "junk.so"
    junk.write_bytes(b"junk")
    remote.upload(junk)
    with pytest.raises(rpc.RemoteError, match="not a shared library"):
        remote.load_module("junk.so")
    with pytest.raises(UserError, match="cannot read the file"):
        remote.upload(tmp_path / "missing.so")
    module = _module(remote, folder / "double.so")
    with pytest.raises(UserError, match="no function 'triple'"):
        module["triple"]
    with pytest.raises(rpc.RemoteError, match="takes 2 arguments"):
        module["double"](remote.array(X))
    with pytest.raises(UserError, match="takes remote arrays and numbers"):
        module["double"](X, X)
    with pytest.raises(rpc.RemoteError, match="unknown request"):
        remote.request("format")
    remote.ping()


@pytest.mark.parametrize("name", ["../evil", "a/b", "", "..", "a\\b", "x" * 300])
def test_files_stay_in_the_sessions_folder(remote: rpc.RemoteSession, name: str) -> None:
    with pytest.raises(rpc.RemoteError, match="cannot be a file's name"):
        remote.request("upload", b"x", name=name)


def test_arrays_of_another_session(server: Server, remote: rpc.RemoteSession, folder: Path) -> None:
    with rpc.connect(HOST, server.port, token=TOKEN, tls=True) as other:
        module = _module(remote, folder / "double.so")
        with pytest.raises(UserError, match="another session"):
            module["double"](other.array(X), remote.empty((8,)))


def test_a_crash_ends_its_session_only(server: Server, remote: rpc.RemoteSession, folder: Path) -> None:
    with rpc.connect(HOST, server.port, token=TOKEN, tls=True) as doomed:
        module = _module(doomed, folder / "crash.so")
        index = doomed.array(np.full(8, 1 << 50))
        with pytest.raises(rpc.SessionDied, match="SIGSEGV"):
            module["crash"](index, doomed.array(X), doomed.empty((8,)))
        with pytest.raises(UserError):
            doomed.ping()
    remote.ping()


def test_a_hang_is_cut_off(server: Server, remote: rpc.RemoteSession, folder: Path) -> None:
    with rpc.connect(HOST, server.port, token=TOKEN, tls=True, timeout=2) as doomed:
        module = _module(doomed, folder / "hang.so")
        start = time.monotonic()
        with pytest.raises(rpc.SessionDied, match=r"took more than 2 s"):
            module["hang"](1 << 60, doomed.array(np.ones(8, np.int64)), doomed.empty((8,), "int64"))
        assert time.monotonic() - start < 15
    remote.ping()


def test_memory_has_a_limit(remote: rpc.RemoteSession) -> None:
    with pytest.raises(rpc.RemoteError, match="memory"):
        remote.empty((1 << 33,), "float32")
    remote.ping()


def test_a_client_that_leaves_takes_its_process_along(server: Server, folder: Path) -> None:
    session = rpc.connect(HOST, server.port, token=TOKEN, tls=True)
    assert server._sessions >= 1
    session.close()
    until(lambda: server._sessions == 0)


def test_wrong_tokens_learn_nothing(server: Server) -> None:
    with pytest.raises(UserError, match="refused") as caught:
        rpc.connect(HOST, server.port, token="another token altogether", tls=True)
    assert TOKEN not in str(caught.value)
    with pytest.raises(UserError, match="refused"):
        rpc.connect(HOST, server.port, tls=True)


def test_plain_clients_of_a_tls_server_and_the_other_way(server: Server) -> None:
    with pytest.raises(UserError):
        rpc.connect(HOST, server.port, token=TOKEN, tls=False)
    with serve_in_background(Server(ServerOptions(port=0))) as plain, pytest.raises(UserError):
        rpc.connect(HOST, plain.port, tls=True)


def test_nobody_there() -> None:
    with socket.socket() as unused:
        unused.bind((HOST, 0))
        with pytest.raises(UserError, match="cannot connect"):
            rpc.connect(HOST, unused.getsockname()[1])


def test_a_man_in_the_middle_is_noticed(server: Server) -> None:
    """Someone without the token passes the server's messages on, over TLS with a certificate of its own."""
    middle = server_tls()
    with socket.create_server((HOST, 0)) as listener:

        def relay() -> None:
            incoming, _ = listener.accept()
            with middle.context.wrap_socket(incoming, server_side=True) as near:
                far = client_tls().wrap_socket(socket.create_connection((HOST, server.port)))
                client, upstream = Channel(near, "client"), Channel(far, "server")
                upstream.send(client.receive().header)
                client.send(upstream.receive().header)
                upstream.send(client.receive().header)
                client.send(upstream.receive().header)
                far.close()

        thread = threading.Thread(target=relay)
        thread.start()
        with pytest.raises(UserError, match="refused"):
            rpc.connect(HOST, listener.getsockname()[1], token=TOKEN, tls=True)
        thread.join()


def test_a_server_needs_only_the_runtime() -> None:
    """The process of a session imports neither the compiler nor LLVM."""
    code = (
        "import sys, tilewright.rpc.session, tilewright.rpc.server\n"
        "heavy = [n for n in sys.modules if n.split('.')[0] in ('llvmlite', 'onnx', 'torch')"
        " or n.startswith(('tilewright.graph', 'tilewright.tir', 'tilewright.codegen'))]\n"
        "print(heavy)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_targets_of_devices(server: Server, remote: rpc.RemoteSession) -> None:
    assert remote.target == "llvm"
    with (
        serve_in_background(Server(ServerOptions(port=0))) as unknown,
        rpc.connect(HOST, unknown.port) as session,
        pytest.raises(UserError, match="does not know its target"),
    ):
        assert session.target


def test_modules_are_sent(remote: rpc.RemoteSession, folder: Path) -> None:
    module = tw.load(folder / "double.so")
    assert isinstance(module, Module)
    there = remote.send(module)
    assert isinstance(there, rpc.RemoteModule)
    assert list(there.functions) == ["double"]
