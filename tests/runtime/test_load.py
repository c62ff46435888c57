"""Files that `load` refuses, each with its reason."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.runtime import mini
from tilewright.codegen.llvm import deploy, link, toolchain
from tilewright.runtime import load
from tilewright.runtime.seal import SEAL_BYTES, seal
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
    """Older ones have none, tools that rewrite a library drop it, and a damaged seal is no damage to the library."""
    content = library.read_bytes()
    x = np.ones((mini.ROWS, mini.DEPTH), np.float32)
    wanted = np.asarray(load(library)(x))
    for number, kept in enumerate((content[:-SEAL_BYTES], content[:-1], content[:-SEAL_BYTES] + bytes(SEAL_BYTES))):
        path = tmp_path / f"bare{number}.so"
        path.write_bytes(kept)
        np.testing.assert_array_equal(np.asarray(load(path)(x)), wanted)


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
