"""Files that are not what was expected: each kind is named, with what to do."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

import tilewright as tw
from tests.requirements import need_module
from tilewright.support.errors import UserError
from tilewright.support.file_kinds import looks_like


def archive(*names: str) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        for name in names:
            file.writestr(name, b"x")
    return stream.getvalue()


CASES = [
    (b"\x89PNG\r\n\x1a\n", "x.png", "a PNG image"),
    (b"\x1c\0\0\0TFL3" + bytes(20), "x.tflite", "a TensorFlow Lite model"),
    (b"\x7fELF" + bytes(60), "x.so", "a compiled library or program"),
    (b"\x93NUMPY\x01\0", "x.npy", "a numpy array"),
    (b"\x89HDF\r\n\x1a\n", "x.h5", "an HDF5 file"),
    (archive("model/data.pkl", "model/data/0"), "x.bin", "a PyTorch checkpoint"),
    (archive("archive/code.py"), "x.pt2", "an exported PyTorch program"),
    (archive("a.npy", "b.npy"), "x.npz", "an archive of numpy arrays"),
    (archive("readme.txt"), "x.zip", "a ZIP archive"),
    (b"PK\x03\x04 cut short", "x.zip", "a ZIP archive"),
    (b"\x80\x02}q\x00.", "x.pt", "a Python pickle, such as an old PyTorch checkpoint"),
    (b"version https://git-lfs.example/spec/v1\n", "x.onnx", "a Git LFS pointer, not the file itself"),
    (b"<!DOCTYPE html><html><body>404</body></html>", "x.onnx", "a web page, not the file behind it"),
    ("grüße".encode() * 1000, "x.onnx", "a text"),
]


@pytest.mark.parametrize(("data", "name", "kind"), CASES, ids=[kind for _, _, kind in CASES])
def test_a_file_that_is_no_model_is_named_for_what_it_is(tmp_path: Path, data: bytes, name: str, kind: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(UserError, match="is not an ONNX model") as found:
        tw.frontend.from_onnx(path)
    assert f"it looks like {kind}" in found.value.message and found.value.hint


def test_what_cannot_be_told_is_not_guessed() -> None:
    assert looks_like(b"\x00\x01\x02\xff\xfe") is None
    assert looks_like(b"") is None


def test_objects_of_other_packages_say_how_they_come_in() -> None:
    torch = need_module("torch")
    with pytest.raises(UserError, match="a Linear") as found:
        tw.compile(torch.nn.Linear(2, 2))
    assert found.value.hint is not None and "from_torch(module" in found.value.hint
    program = torch.export.export(torch.nn.Linear(2, 2), (torch.zeros(1, 2),))
    with pytest.raises(UserError, match="ExportedProgram") as found:
        tw.compile(program)
    assert found.value.hint is not None and "from_torch(program)" in found.value.hint
