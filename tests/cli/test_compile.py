"""`tilewright compile`: the library and header it writes, what it prints, and what it refuses before the work."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import tilewright as tw
from tests.integration import small_models
from tests.requirements import need
from tilewright.cli.main import main
from tilewright.support import settings

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "small.onnx"
    onnx.save(small_models.classifier(), path)
    return path


def fails(arguments: list[str], capsys: Captured) -> str:
    assert main(["compile", *arguments]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_it_writes_a_library_that_runs(model: Path, tmp_path: Path, capsys: Captured) -> None:
    output = tmp_path / "build.so"
    assert main(["compile", str(model), "-o", str(output), "--threads", "1"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{output}: ")
    assert "distinct kernels in" in text
    assert f"header {tmp_path / 'build.h'}" in text
    assert "image: float32[1, 3, 32, 32]" in text
    assert "logits: float32[1, 10]" in text
    loaded = tw.load(output)
    assert isinstance(loaded, tw.Executable)
    assert loaded.threads == 1
    x = small_models.image()
    np.testing.assert_array_equal(loaded(x), tw.compile(model, threads=1)(x))


def test_the_library_is_named_after_the_model(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "elsewhere"
    work.mkdir()
    monkeypatch.chdir(work)
    assert main(["compile", str(model), "--threads", "1"]) == 0
    assert sorted(path.name for path in work.iterdir()) == ["small.h", "small.so"]


def test_open_dimensions_are_given_on_the_command_line(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "open.onnx"
    onnx.save(small_models.one_node("Relu", {"x:0": (small_models.FLOAT, ["n", 3])}), path)
    output = ["-o", str(tmp_path / "open.so"), "--threads", "1"]
    assert main(["compile", str(path), "--shape", "x:0=4,3", *output]) == 0
    assert "x:0: float32[4, 3]" in capsys.readouterr().out
    for wrong in ("x:0", "x:0=a,b", "=4,3", "4,3"):
        message = fails([str(path), "--shape", wrong, *output], capsys)
        assert f"'{wrong}' is not a shape" in message
        assert "INPUT=1,3,224,224" in message
    assert "'x:0' is given twice" in fails([str(path), "--shape", "x:0=4,3", "--shape", "x:0=5,3", *output], capsys)


def test_places_that_cannot_be_written_are_refused_before_the_work(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr("tilewright.cli.compile.open_compilation", lambda options: pytest.fail("it compiled first"))
    assert f"{tmp_path} is a folder" in fails([str(model), "-o", str(tmp_path)], capsys)
    message = fails([str(model), "-o", str(tmp_path / "no" / "x.so")], capsys)
    assert f"the folder {tmp_path / 'no'} does not exist" in message
    assert f"{model} is the model itself" in fails([str(model), "-o", str(model)], capsys)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert f"the folder {tmp_path} cannot be written" in fails([str(model), "-o", str(tmp_path / "x.so")], capsys)
    monkeypatch.undo()
    monkeypatch.setattr("tilewright.cli.compile.open_compilation", lambda options: pytest.fail("it compiled first"))
    with settings.LINKER.override("no-such-linker"):
        assert "the linker 'no-such-linker' is not there" in fails([str(model), "-o", str(tmp_path / "x.so")], capsys)


def test_models_and_targets_that_are_none(model: Path, tmp_path: Path, capsys: Captured) -> None:
    assert "there is no file" in fails([str(tmp_path / "absent.onnx")], capsys)
    assert "unknown kind of target 'gameboy'" in fails([str(model), "--target", "gameboy"], capsys)
    library = tmp_path / "model.so"
    assert main(["compile", str(model), "-o", str(library), "--threads", "1"]) == 0
    capsys.readouterr()
    assert "is a compiled library" in fails([str(library), "-o", str(tmp_path / "again.so")], capsys)


def test_another_architecture(model: Path, tmp_path: Path, capsys: Captured) -> None:
    need("linker")
    output = tmp_path / "arm.so"
    target = "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a72"
    code = main(["compile", str(model), "-o", str(output), "--target", target])
    captured = capsys.readouterr()
    assert code == 0
    assert "aarch64" in captured.out
    assert int.from_bytes(output.read_bytes()[18:20], "little") == 183
    assert main(["run", str(output)]) == (0 if tw.Target("native").triple.startswith("aarch64") else 1)


def test_a_library_gets_the_name_that_is_asked_for(model: Path, tmp_path: Path, capsys: Captured) -> None:
    output = tmp_path / "build.so"
    assert main(["compile", str(model), "-o", str(output), "--threads", "1", "--name", "my net"]) == 0
    assert "C functions my_net_*\n" in capsys.readouterr().out
    assert "int32_t my_net_run(" in (tmp_path / "build.h").read_text()


def test_signed_for_release_and_checked_before_it_runs(
    model: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["key", "generate", "release.key"]) == 0
    assert main(["compile", str(model), "-o", "signed.so", "--threads", "1", "--sign", "release.key"]) == 0
    assert ", signed" in capsys.readouterr().out
    assert main(["run", "signed.so", "--require", "signed", "--trust", "release.pub"]) == 0
    assert main(["key", "generate", "other.key"]) == 0
    assert main(["run", "signed.so", "--require", "signed", "--trust", "other.pub"]) == 1
    assert "which is not trusted" in capsys.readouterr().err
    assert main(["run", "signed.so", "--trust", "other.pub", "--trust", "release.pub"]) == 0
    assert main(["run", str(model), "--require", "sealed"]) == 1
    assert "is a model, not a library: it has no seal" in capsys.readouterr().err
    assert "cannot read the key" in fails([str(model), "-o", "x.so", "--sign", "absent.key"], capsys)
    assert not (tmp_path / "x.so").exists()
    for words, message in [
        (["release.key"], "release.pub is there already"),
        (["release.pub"], "release.pub is the name of the public key"),
        (["nowhere/release.key"], "cannot write release.key"),
    ]:
        assert main(["key", "generate", *words]) == 1
        assert message in capsys.readouterr().err
    (tmp_path / "release.pub").unlink()
    assert main(["key", "generate", "release.key"]) == 1
    assert "release.key is there already, and may be a key" in capsys.readouterr().err
