"""Tokens, TLS and the proofs that bind them."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.requirements import need_tool
from tilewright.rpc.certificate import self_signed
from tilewright.rpc.handshake import ClientHandshake, Gate
from tilewright.rpc.security import (
    CLIENT,
    DEVICE,
    LEASE,
    RPC_DEVICE_TOKEN,
    RPC_TOKEN,
    Credentials,
    Exchange,
    client_tls,
    given_token,
    is_loopback,
    lease_key,
    lease_name,
    new_token,
    nonce,
    read_token_file,
    server_tls,
    token_key,
)
from tilewright.rpc.server import Server, ServerOptions
from tilewright.rpc.tracker import Tracker, TrackerOptions
from tilewright.rpc.wire import Frame, WireError
from tilewright.support.errors import UserError

TOKEN = "a token of some length"
OTHER = "another token of length"


def _connect(context: ssl.SSLContext) -> bytes:
    """The certificate a client sees when it connects to a server of this context."""
    left, right = socket.socketpair()

    def serve() -> None:
        with context.wrap_socket(left, server_side=True) as server:
            server.sendall(b"hello")

    thread = threading.Thread(target=serve)
    thread.start()
    with client_tls().wrap_socket(right) as client:
        assert client.recv(10) == b"hello"
        certificate = client.getpeercert(binary_form=True)
    thread.join()
    assert certificate is not None
    return certificate


def test_the_made_certificate_serves_tls() -> None:
    made = server_tls()
    assert _connect(made.context) == made.certificate


def test_a_certificate_from_files(tmp_path: Path) -> None:
    made = self_signed("device")
    (tmp_path / "c.pem").write_text(made.certificate)
    (tmp_path / "k.pem").write_text(made.key)
    server = server_tls(tmp_path / "c.pem", tmp_path / "k.pem")
    assert _connect(server.context) == made.der


def test_a_certificate_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "c.pem").write_text("no certificate")
    for name in ("c.pem", "missing.pem"):
        with pytest.raises(UserError, match="cannot use the certificate"):
            server_tls(tmp_path / name)


def test_openssl_agrees_with_the_certificate(tmp_path: Path) -> None:
    made = self_signed("device")
    path = tmp_path / "c.pem"
    path.write_text(made.certificate)
    command = [need_tool("openssl"), "verify", "-CAfile", str(path), str(path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "OK" in result.stdout, result.stderr


def test_certificates_differ() -> None:
    assert self_signed().der != self_signed().der


def test_loopback() -> None:
    assert is_loopback("127.0.0.1") and is_loopback("localhost") and is_loopback("::1")
    assert not is_loopback("0.0.0.0") and not is_loopback("192.0.2.1") and not is_loopback("no-such-host.invalid")


def test_off_loopback_needs_a_token_and_speaks_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in (RPC_TOKEN, RPC_DEVICE_TOKEN):
        monkeypatch.delenv(setting.name, raising=False)
    for role, option in ((CLIENT, "--token"), (DEVICE, "--device-token")):
        with pytest.raises(UserError, match=r"connecting to 0.0.0.0.*needs a token") as caught:
            Credentials.resolve("0.0.0.0", None, None, role=role)
        assert option in str(caught.value.hint)
    assert Credentials.resolve("0.0.0.0", TOKEN, None) == Credentials(TOKEN, True)
    assert Credentials.resolve("0.0.0.0", TOKEN, False) == Credentials(TOKEN, False)
    assert Credentials.resolve("127.0.0.1", None, None) == Credentials("", False)
    monkeypatch.setenv(RPC_TOKEN.name, TOKEN)
    assert Credentials.resolve("0.0.0.0", None, None) == Credentials(TOKEN, True)
    with pytest.raises(UserError, match="needs a token"):
        Credentials.resolve("0.0.0.0", None, None, role=DEVICE)
    monkeypatch.setenv(RPC_DEVICE_TOKEN.name, OTHER)
    assert Credentials.resolve("0.0.0.0", None, None, role=DEVICE) == Credentials(OTHER, True, DEVICE)
    assert TOKEN not in repr(Credentials(TOKEN, True))


def test_what_listens_off_loopback_needs_its_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in (RPC_TOKEN, RPC_DEVICE_TOKEN):
        monkeypatch.delenv(setting.name, raising=False)
    with pytest.raises(UserError, match=r"listening on 0.0.0.0.*needs a token"):
        Server(ServerOptions(host="0.0.0.0"))
    # A server of a tracker admits leases; what it needs is the token of devices, to join.
    assert Server(ServerOptions(host="0.0.0.0", tracker="farm")).tls
    for given in ({}, {"token": TOKEN}, {"device_token": TOKEN}):
        with pytest.raises(UserError, match=r"listening on 0.0.0.0.*needs a token"):
            Tracker(TrackerOptions(host="0.0.0.0", **given))
    with pytest.raises(UserError, match="a token for clients and another for devices, or none"):
        Tracker(TrackerOptions(token=TOKEN))
    with pytest.raises(UserError, match="clients and devices have the same token"):
        Tracker(TrackerOptions(token=TOKEN, device_token=TOKEN))


def test_short_tokens_are_refused() -> None:
    with pytest.raises(UserError, match="16 are the least"):
        Credentials.resolve("127.0.0.1", "short", None)
    with pytest.raises(UserError, match="16 are the least"):
        Tracker(TrackerOptions(token=TOKEN, device_token="short"))
    assert len(new_token()) > 40


def test_tokens_from_files(tmp_path: Path) -> None:
    path = tmp_path / "token"
    with pytest.raises(UserError, match="cannot read the token"):
        read_token_file(path)
    path.write_text(f"{TOKEN}\n")
    for mode, why in ((0o644, "others may use .mode 0644"), (0o622, "others may write")):
        path.chmod(mode)
        with pytest.raises(UserError, match=why) as caught:
            read_token_file(path)
        assert "chmod 600" in str(caught.value.hint)
    path.chmod(0o600)
    assert read_token_file(path) == TOKEN == given_token(None, path, "token")
    assert given_token(TOKEN, None, "token") == TOKEN and given_token(None, None, "token") is None
    with pytest.raises(UserError, match="--token and --token-file are both given"):
        given_token(TOKEN, path, "token")
    path.write_text(f"{TOKEN}\n{TOKEN}\n")
    with pytest.raises(UserError, match="has 2 lines"):
        read_token_file(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="cannot read the token"):
        read_token_file(path)


def test_keys_are_slow_to_make_and_differ_by_salt() -> None:
    """A guess costs memory and time: no hash of a token alone is ever sent."""
    began = time.process_time()
    first = token_key(TOKEN, b"0" * 16)
    assert time.process_time() - began > 0.01
    assert len({first, token_key(TOKEN, b"1" * 16), token_key(OTHER, b"0" * 16)}) == 3
    assert token_key("", b"0" * 16) == b""


def test_proofs_are_bound_to_everything() -> None:
    key = token_key(TOKEN, b"0" * 16)
    exchange = Exchange(CLIENT, nonce(), nonce(), b"0" * 16, b"certificate")
    proof = exchange.proof("client", key)
    assert exchange.check(proof, "client", key)
    assert not exchange.check(proof, "server", key)
    for change in (
        {"role": DEVICE},
        {"client_nonce": exchange.server_nonce},
        {"server_nonce": nonce()},
        {"salt": b"1" * 16},
        {"certificate": b"another certificate"},
    ):
        assert not replace(exchange, **change).check(proof, "client", key)  # type: ignore[arg-type]
    assert not exchange.check(proof, "client", token_key(TOKEN + "!", b"0" * 16))
    for damaged in (None, 7, "", "é", "\ud800" * 64, proof.upper(), [proof], proof + "0"):
        assert not exchange.check(damaged, "client", key)


def test_the_name_of_a_lease_does_not_tell_its_key() -> None:
    lease = new_token()
    assert lease not in lease_name(lease) and lease_key(lease).hex()[:32] != lease_name(lease)
    hello = Credentials(lease, False, LEASE).hello(nonce())
    assert hello["lease"] == lease_name(lease) and lease not in str(hello)


def _shake(gate: Gate, credentials: Credentials) -> str:
    """The role that a gate lets someone in for."""
    client = ClientHandshake(credentials)
    visitor = gate.knock(Frame(client.hello()), b"")
    client.confirm(Frame(visitor.admit(Frame(client.prove(Frame(visitor.challenge()), b"")))))
    return visitor.role


def test_a_token_opens_its_own_role_only() -> None:
    gate = Gate({CLIENT: TOKEN, DEVICE: OTHER}, {lease_name("the secret of a lease"): "the secret of a lease"}.get)
    gate.prepare()
    assert _shake(gate, Credentials(TOKEN, False, CLIENT)) == CLIENT
    assert _shake(gate, Credentials(OTHER, False, DEVICE)) == DEVICE
    assert _shake(gate, Credentials("the secret of a lease", False, LEASE)) == LEASE
    for token, role in ((OTHER, CLIENT), (TOKEN, DEVICE), (TOKEN, LEASE), ("another lease", LEASE), (TOKEN, "admin")):
        with pytest.raises(WireError, match="a wrong token"):
            _shake(gate, Credentials(token, False, role))


@pytest.mark.parametrize(
    "hello",
    [
        {},
        {"role": CLIENT},
        {"role": CLIENT, "nonce": "00"},
        {"role": CLIENT, "nonce": "zz" * 32},
        {"role": CLIENT, "nonce": "\ud800" * 64},
        {"role": 7, "nonce": "00" * 32},
        {"role": "\ud800", "nonce": "00" * 32},
        {"role": "x" * 99, "nonce": "00" * 32},
        {"role": LEASE, "nonce": "00" * 32},
        {"role": LEASE, "nonce": "00" * 32, "lease": ["x"]},
    ],
)
def test_damaged_greetings(hello: dict[str, object]) -> None:
    gate = Gate({CLIENT: TOKEN}, lambda name: None)
    with pytest.raises(UserError):
        gate.knock(Frame(hello), b"")
