"""Files that `load` refuses, each with its reason."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.runtime import mini
from tilewright.backends.llvm import deploy, link, objects, toolchain
from tilewright.backends.llvm.pool import pool_object
from tilewright.runtime import SigningKey, load
from tilewright.runtime.core.seal import SEAL_BYTES, SIGNATURE_BYTES, seal
from tilewright.support.errors import UserError


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("load") / "mini.so"
    deploy.executable(mini.model_artifact()).export_library(path)
    return path


def test_absent_and_foreign_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read the library: No such file"):
        load(tmp_path / "absent.so")
    with pytest.raises(UserError, match="cannot read the library: Is a directory"):
        load(tmp_path)
    with pytest.raises(UserError, match="load takes the path or the bytes of a library, not"):
        load(None)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="not a shared library") as caught:
        load(b"")
    assert caught.value.where == "the bytes given"
    (tmp_path / "text.so").write_text("hello")
    with pytest.raises(UserError, match="not a shared library"):
        load(tmp_path / "text.so")
    (tmp_path / "empty.so").write_bytes(b"")
    with pytest.raises(UserError, match="not a shared library"):
        load(tmp_path / "empty.so")
    (tmp_path / "object.so").write_bytes(mini.model_artifact().objects[0])
    with pytest.raises(UserError, match="an ELF file but not a shared library"):
        load(tmp_path / "object.so")


def test_truncated_library(library: Path, tmp_path: Path) -> None:
    content = library.read_bytes()
    for keep in (len(content) - SEAL_BYTES - 1, len(content) // 2, 70):
        (tmp_path / "cut.so").write_bytes(content[:keep])
        with pytest.raises(UserError, match="truncated"):
            load(tmp_path / "cut.so")


def test_every_damage_to_the_content_is_found(library: Path, tmp_path: Path) -> None:
    """One bit of code, of constants, of tables: nothing of it reaches the system's loader."""
    content = library.read_bytes()
    for place in range(64, len(content) - SEAL_BYTES, 61):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        (tmp_path / "damaged.so").write_bytes(damaged)
        with pytest.raises(UserError, match="does not fit its checksum"):
            load(tmp_path / "damaged.so")
    for place in range(64):
        damaged = bytearray(content)
        damaged[place] ^= 1
        (tmp_path / "damaged.so").write_bytes(damaged)
        with pytest.raises(UserError):
            load(tmp_path / "damaged.so")


def test_a_library_without_a_seal_is_taken_as_it_is(library: Path, tmp_path: Path) -> None:
    """Older ones have none, and tools that rewrite a library drop it; who needs one can say so."""
    content = library.read_bytes()
    x = np.ones((mini.ROWS, mini.DEPTH), np.float32)
    wanted = np.asarray(load(library, require="sealed")(x))
    (tmp_path / "bare.so").write_bytes(content[:-SEAL_BYTES])
    np.testing.assert_array_equal(np.asarray(load(tmp_path / "bare.so")(x)), wanted)
    with pytest.raises(UserError, match="the library is not sealed"):
        load(tmp_path / "bare.so", require="sealed")
    with pytest.raises(UserError, match="cannot be required to be 'perfect'"):
        load(library, require="perfect")


def test_a_damaged_seal_is_damage(library: Path, tmp_path: Path) -> None:
    content = library.read_bytes()
    damaged = [content[:-keep] for keep in range(1, SEAL_BYTES)]
    damaged += [content + b"\0", content[:-SEAL_BYTES] + bytes(SEAL_BYTES)]
    for place in range(1, SEAL_BYTES + 1):
        changed = bytearray(content)
        changed[-place] ^= 1
        damaged.append(bytes(changed))
    for piece in damaged:
        (tmp_path / "damaged.so").write_bytes(piece)
        with pytest.raises(UserError, match=r"the seal of the library is damaged|does not fit its checksum"):
            load(tmp_path / "damaged.so")


def test_other_architecture(library: Path, tmp_path: Path) -> None:
    content = bytearray(library.read_bytes())
    content[18] = {62: 183, 183: 62}.get(content[18], 62)
    (tmp_path / "other.so").write_bytes(bytes(content))
    with pytest.raises(UserError, match=r"the library is for (aarch64|x86-64), this machine is"):
        load(tmp_path / "other.so")


def _library_with(tmp_path: Path, text: str) -> Path:
    triple = toolchain.host_triple()
    image = tmp_path / "code.o"
    image.write_bytes(toolchain.compile_ir(text, triple=triple))
    link.link_shared([image], tmp_path / "made.so", triple=triple, data_objects={}, work_folder=tmp_path)
    return tmp_path / "made.so"


def _metadata_ir(text: str) -> str:
    escaped = "".join(f"\\{byte:02X}" for byte in text.encode() + b"\0")
    count = len(text.encode()) + 1
    return (
        f'@text = private constant [{count} x i8] c"{escaped}"\ndefine ptr @tilewright_metadata() {{ ret ptr @text }}'
    )


def test_library_of_somebody_else(tmp_path: Path) -> None:
    path = _library_with(tmp_path, "define i32 @f() { ret i32 0 }")
    with pytest.raises(UserError, match="not exported by Tilewright"):
        load(path)


def test_damaged_metadata(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="damaged: it is not JSON"):
        load(_library_with(tmp_path, _metadata_ir("{ not json")))


def test_newer_format(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="newer Tilewright"):
        load(_library_with(tmp_path, _metadata_ir(json.dumps({"format": 1000}))))


def test_processor_without_the_features(tmp_path: Path) -> None:
    artifact = mini.model_artifact()
    foreign = "sve2" if artifact.triple.startswith("x86_64") else "avx512f"
    artifact.requires = (foreign, "some-feature-nobody-checks")
    deploy.export_library(artifact, tmp_path / "mini.so")
    with pytest.raises(UserError, match=f"processor features that this machine lacks: {foreign}"):
        load(tmp_path / "mini.so")


def test_unloadable_library(library: Path, tmp_path: Path) -> None:
    """The system's loader has the last word: here about a dependency that is nowhere."""
    path = tmp_path / "needs.so"
    shutil.copy(library, path)
    content = path.read_bytes().replace(b"libc.so.6\0", b"libq.so.6\0")
    path.write_bytes(content[:-SEAL_BYTES])
    seal(path)
    with pytest.raises(UserError, match=r"cannot load the library: libq\.so\.6"):
        load(path)


def test_libraries_of_the_format_before_still_load(tmp_path: Path) -> None:
    """Format 3: nothing is hidden, the model's own name is the library's, and the description has a fixed name."""
    artifact = mini.model_artifact()
    text = json.dumps({**artifact.metadata(), "format": 3})
    wrapper = (
        _metadata_ir(text)
        + """
@mini__constants = external hidden global i8
define ptr @mini_constants() { ret ptr @mini__constants }
"""
    )
    triple = artifact.triple
    pool = pool_object(triple, hidden=True)
    images = [*artifact.objects, toolchain.compile_ir(wrapper, triple=triple), pool]
    files = [tmp_path / f"{number}.o" for number in range(len(images))]
    for file, image in zip(files, images, strict=True):
        file.write_bytes(image)
    data = tmp_path / "constants.o"
    objects.write_data_object(data, "mini__constants", artifact.constants, triple=triple)
    path = tmp_path / "old.so"
    link.link_shared(files, path, triple=triple, data_objects={"mini__constants": data}, work_folder=tmp_path)
    model = load(path)
    x = mini.sample_input()
    for got, want in zip(model(x), mini.expected(x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert len(model.profile(x, repeat=1).rows) == 2
    model.export_library(tmp_path / "copy.so")
    assert "mini_run" in (tmp_path / "copy.h").read_text()


@pytest.fixture(scope="module")
def key() -> SigningKey:
    return SigningKey.new()


def test_signed_libraries(tmp_path: Path, key: SigningKey) -> None:
    executable = deploy.executable(mini.model_artifact())
    key.save(tmp_path / "release.key")
    key.public.save(tmp_path / "release.pub")
    executable.export_library(tmp_path / "signed.so", sign=tmp_path / "release.key")
    x = mini.sample_input()
    wanted = executable(x)[0]
    for options in (
        {"require": "signed", "trust": tmp_path / "release.pub"},
        {"trust": key.public},
        {"require": "sealed"},
        {},
    ):
        np.testing.assert_array_equal(load(tmp_path / "signed.so", **options)(x)[0], wanted)
    with pytest.raises(UserError, match=f"signed by the key {key.public.fingerprint()}, which is not trusted"):
        load(tmp_path / "signed.so", trust=SigningKey(7).public)
    with pytest.raises(UserError, match="a signature is required, but not whose"):
        load(tmp_path / "signed.so", require="signed")
    # Whoever changes it can seal it again, but not sign it.
    content = bytearray((tmp_path / "signed.so").read_bytes()[:-SEAL_BYTES])
    place = content.index(b"libc.so.6\0")
    content[place] ^= 1
    (tmp_path / "forged.so").write_bytes(content)
    seal(tmp_path / "forged.so")
    with pytest.raises(UserError, match="the signature of the library is forged"):
        load(tmp_path / "forged.so", trust=key.public)


def test_unsigned_libraries_where_a_signature_is_required(library: Path, tmp_path: Path, key: SigningKey) -> None:
    with pytest.raises(UserError, match="the library is not signed"):
        load(library, require="signed", trust=key.public)
    bare = library.read_bytes()[:-SEAL_BYTES]
    with pytest.raises(UserError, match="the library is not sealed"):
        load(bare, require="signed", trust=key.public)
    # A loaded library may be signed by whoever has checked it.
    load(library).export_library(tmp_path / "signed.so", sign=key)
    load(tmp_path / "signed.so").export_library(tmp_path / "again.so", sign=SigningKey(7))
    assert len((tmp_path / "again.so").read_bytes()) == len(bare) + SIGNATURE_BYTES + SEAL_BYTES
    load(tmp_path / "again.so", require="signed", trust=[key.public, SigningKey(7).public])
    with pytest.raises(UserError, match="which is not trusted"):
        load(tmp_path / "again.so", require="signed", trust=key.public)
