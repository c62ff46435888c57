"""Keys: as the standard says, as OpenSSL reads and writes them, and files that are none."""

from __future__ import annotations

import hashlib
import pickle
import stat
import subprocess
from pathlib import Path

import pytest

from tests.requirements import need_tool
from tilewright.runtime.core.keys import PublicKey, SigningKey, signing_key, trusted_keys
from tilewright.support import p256
from tilewright.support.der import integer, pem, sequence
from tilewright.support.errors import UserError

# RFC 6979, appendix A.2.5: P-256 with SHA-256.
STANDARD = SigningKey(0xC9AFA9D845BA75166B5C215767B1D6934E50C3DB36E89B127B8A622B120F6721)


@pytest.mark.parametrize(
    ("message", "signature"),
    [
        (
            b"sample",
            (
                "EFD48B2AACB6A8FD1140DD9CD45E81D69D2C877B56AAF991C34D0EA84EAF3716"
                "F7CB1C942D657C41D436C7A1B6E29F65F3E900DBB9AFF4064DC4AB2F843ACDA8"
            ),
        ),
        (
            b"test",
            (
                "F1ABB023518351CD71D881567B1EA663ED3EFCF6C5132B354F28D3B0B7D38367"
                "019F4113742A2B14BD25926B49C649155F267E60D3814B4C0CC84250E46F0083"
            ),
        ),
    ],
)
def test_signatures_are_those_of_the_standard(message: bytes, signature: str) -> None:
    digest = hashlib.sha256(message).digest()
    assert STANDARD.sign(digest).hex().upper() == signature
    assert STANDARD.public.signed(digest, bytes.fromhex(signature))
    assert not STANDARD.public.signed(hashlib.sha256(b"other").digest(), bytes.fromhex(signature))


def test_numbers_that_no_signature_has_are_refused() -> None:
    """Zeros would satisfy the equations of a careless check."""
    digest = bytes(32)
    for r, s in ((0, 0), (0, 1), (1, 0), (p256.N, 1), (1, p256.N)):
        assert not p256.is_signed(STANDARD.public.point, digest, (r, s))
    assert not p256.is_signed((1, 1), digest, (1, 1)), "no point of the curve"


def test_files_come_back_and_secrets_are_private(tmp_path: Path) -> None:
    key = SigningKey.new()
    key.save(tmp_path / "release.key")
    key.public.save(tmp_path / "release.pub")
    assert signing_key(tmp_path / "release.key") == key
    assert trusted_keys(tmp_path / "release.pub") == [key.public]
    assert trusted_keys([str(tmp_path / "release.pub"), STANDARD.public]) == [key.public, STANDARD.public]
    assert stat.S_IMODE((tmp_path / "release.key").stat().st_mode) == 0o600
    assert str(key.secret) not in repr(key)
    with pytest.raises(UserError, match=r"release\.key is there already, and may be a key"):
        key.save(tmp_path / "release.key")
    with pytest.raises(UserError, match=r"cannot write a\.key: No such file or directory"):
        key.save(tmp_path / "absent" / "a.key")
    assert pickle.loads(pickle.dumps(key.public)) == key.public


def test_openssl_reads_and_writes_the_same(tmp_path: Path) -> None:
    tool = need_tool("openssl")

    def openssl(*words: str) -> None:
        subprocess.run([tool, *words], cwd=tmp_path, check=True, capture_output=True)

    openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "its.key")
    openssl("pkcs8", "-topk8", "-nocrypt", "-in", "its.key", "-out", "its.p8")
    openssl("ec", "-in", "its.key", "-pubout", "-out", "its.pub")
    key = signing_key(tmp_path / "its.key")
    assert signing_key(tmp_path / "its.p8") == key
    assert trusted_keys(tmp_path / "its.pub") == [key.public]
    STANDARD.save(tmp_path / "our.key")
    STANDARD.public.save(tmp_path / "our.pub")
    openssl("ec", "-in", "our.key", "-check", "-noout")
    (tmp_path / "message").write_bytes(b"hello")
    signature = STANDARD.sign(hashlib.sha256(b"hello").digest())
    parts = (int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big"))
    (tmp_path / "signature").write_bytes(sequence(*map(integer, parts)))
    openssl("dgst", "-sha256", "-verify", "our.pub", "-signature", "signature", "message")


def test_files_that_are_no_keys(tmp_path: Path) -> None:
    file = tmp_path / "some.pem"
    for text, message in [
        ("hello", "holds no P-256 key in PEM"),
        (pem("PUBLIC KEY", STANDARD.public.der()), "holds a public key, which cannot sign"),
        (pem("EC PRIVATE KEY", b"\x30\x05\x02\x01"), "the key is damaged: a value is cut off"),
        (pem("EC PRIVATE KEY", sequence(integer(1))), "the key is damaged: not enough values"),
        (pem("EC PRIVATE KEY", sequence(integer(2), integer(2))), "the key is damaged: it is not on the curve P-256"),
        (pem("PRIVATE KEY", sequence(integer(0), sequence(), integer(1))), "it is not on the curve P-256"),
        (STANDARD.pem().replace("M", "!"), "the key is damaged: a block of it is not base 64"),
    ]:
        file.write_text(text)
        with pytest.raises(UserError, match=message):
            signing_key(file)
    for text, message in [
        (STANDARD.pem(), "holds no public key in PEM"),
        (pem("PUBLIC KEY", PublicKey(bytes(64)).der()), "the key is damaged: it is no point of the curve"),
        (pem("PUBLIC KEY", sequence(sequence(), integer(1))), "it is not on the curve P-256"),
    ]:
        file.write_text(text)
        with pytest.raises(UserError, match=message):
            trusted_keys(file)
    with pytest.raises(UserError, match="cannot read the key: No such file"):
        signing_key(tmp_path / "absent")
    with pytest.raises(UserError, match="a key or the path of its file is needed, not"):
        signing_key(b"secret")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="trusted keys are public keys or files of them"):
        trusted_keys(7)  # type: ignore[arg-type]
