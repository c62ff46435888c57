"""Tokens, TLS and the proofs that bind them."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from pathlib import Path

import pytest

from tilewright.rpc.certificate import self_signed
from tilewright.rpc.security import RPC_TOKEN, Credentials, client_tls, is_loopback, new_token, nonce, server_tls
from tilewright.support.errors import UserError

TOKEN = "a token of some length"


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
    try:
        command = ["openssl", "verify", "-CAfile", str(path), str(path)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    assert "OK" in result.stdout, result.stderr


def test_certificates_differ() -> None:
    assert self_signed().der != self_signed().der


def test_loopback() -> None:
    assert is_loopback("127.0.0.1") and is_loopback("localhost") and is_loopback("::1")
    assert not is_loopback("0.0.0.0") and not is_loopback("192.0.2.1") and not is_loopback("no-such-host.invalid")


def test_off_loopback_needs_a_token_and_speaks_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RPC_TOKEN.name, raising=False)
    for serving in (True, False):
        with pytest.raises(UserError, match="needs a token"):
            Credentials.resolve("0.0.0.0", None, None, serving=serving)
    assert Credentials.resolve("0.0.0.0", TOKEN, None, serving=True) == Credentials(TOKEN, True)
    assert Credentials.resolve("0.0.0.0", TOKEN, False, serving=True) == Credentials(TOKEN, False)
    assert Credentials.resolve("127.0.0.1", None, None, serving=True) == Credentials("", False)
    monkeypatch.setenv(RPC_TOKEN.name, TOKEN)
    assert Credentials.resolve("0.0.0.0", None, None, serving=True) == Credentials(TOKEN, True)


def test_short_tokens_are_refused() -> None:
    with pytest.raises(UserError, match="16 are the least"):
        Credentials.resolve("127.0.0.1", "short", None, serving=True)
    assert len(new_token()) > 40


def test_proofs_are_bound_to_everything() -> None:
    right = Credentials(TOKEN, True)
    exchanged = (nonce(), nonce(), b"certificate")
    proof = right.proof("client", *exchanged)
    assert right.check(proof, "client", *exchanged)
    assert not right.check(proof, "server", *exchanged)
    assert not right.check(proof, "client", exchanged[1], exchanged[0], exchanged[2])
    assert not right.check(proof, "client", exchanged[0], exchanged[1], b"another certificate")
    assert not Credentials(TOKEN + "!", True).check(proof, "client", *exchanged)
    for damaged in (None, 7, "", "é", proof.upper()):
        assert not right.check(damaged, "client", *exchanged)
