"""`tilewright run`: inputs from files and by chance, outputs, profiles, libraries, and the messages."""

from __future__ import annotations

import functools
import random
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tests.integration import small_models
from tilewright.cli.input_ranges import ranges_in_file
from tilewright.cli.main import main
from tilewright.cli.options import load_inputs, random_array
from tilewright.runtime.core.artifact import TensorInfo
from tilewright.support.errors import UserError

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, its exported library and an input."""
    folder = tmp_path_factory.mktemp("run")
    onnx.save(small_models.classifier(), folder / "small.onnx")
    tw.compile(folder / "small.onnx", threads=1).export_library(folder / "small.so")
    np.save(folder / "image.npy", small_models.image())
    return folder


@pytest.mark.parametrize("name", ["small.onnx", "small.so"])
def test_a_model_or_a_library_on_an_input_from_a_file(
    folder: Path, tmp_path: Path, name: str, capsys: Captured
) -> None:
    output = tmp_path / "out.npz"
    options = ["--input", f"image={folder / 'image.npy'}", "--output-file", str(output), "--threads", "1"]
    assert main(["run", str(folder / name), *options]) == 0
    text = capsys.readouterr().out
    assert "logits: float32[1, 10]" in text
    assert "mean" in text
    assert f"outputs written to {output}" in text
    [expected] = small_models.onnxruntime_outputs(small_models.classifier(), {"image": small_models.image()})
    with np.load(output) as outputs:
        np.testing.assert_allclose(outputs["logits"], expected, rtol=1e-4, atol=1e-5)


def test_a_library_is_known_by_its_content(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "model.bin").write_bytes((folder / "small.so").read_bytes())
    assert main(["run", str(tmp_path / "model.bin")]) == 0
    assert "logits" in capsys.readouterr().out


def test_random_inputs_follow_the_seed(folder: Path, capsys: Captured) -> None:
    texts = []
    for seed in ("1", "1", "2"):
        assert main(["run", str(folder / "small.so"), "--seed", seed]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]


def test_profiles(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    page = tmp_path / "profile.html"
    assert main(["run", str(folder / "small.so"), "--profile", "--html", str(page)]) == 0
    text = capsys.readouterr().out
    assert "GFLOP/s" in text
    assert "conv1" in text
    assert f"profile written to {page}" in text
    assert page.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--input", "picture=image.npy"], "the model has no input picture"),
        (["--input", "image=absent.npy"], "there is no file absent.npy"),
        (["--input", "image=small.onnx"], "is no .npy or .npz file"),
        (["--input", "image=empty.npy"], "is no .npy or .npz file"),
        (["--input", "image=cut.npz"], "is no .npy or .npz file"),
        (["--input", "image.npy"], "does not say which input it is"),
        (["--input", "image=all.npz"], "does not say which input it is"),
        (["--input", "image=flat.npy"], "the input 'image' has the shape [4]"),
        (["--target", "native"], "is compiled already: --target changes nothing"),
        (["--shape", "image=1,3,32,32"], "is compiled already: --shape changes nothing"),
        (["--no-winograd"], "is compiled already: --no-winograd changes nothing"),
        (["--infinities"], "is compiled already: --infinities changes nothing"),
        (["--precision", "float16"], "is compiled already: --precision changes nothing"),
        (["--output-file", "absent/out.npz"], "cannot write out.npz"),
        (["--html", "absent/profile.html"], "cannot write profile.html"),
    ],
)
def test_messages(
    folder: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], message: str, capsys: Captured
) -> None:
    monkeypatch.chdir(folder)
    Path("empty.npy").write_bytes(b"")
    Path("cut.npz").write_bytes(b"PK\x03\x04 and then nothing")
    np.savez("all.npz", image=small_models.image())
    np.save("flat.npy", np.zeros(4, np.float32))
    assert main(["run", "small.so", *options]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["plain.npy", "plain.npz", "packed.npz"])
def test_damaged_inputs_are_read_or_refused(tmp_path: Path, name: str) -> None:
    """Whatever is wrong with the bytes of a file, in its header above all: an array or an error for the user."""
    image = small_models.image()
    np.save(tmp_path / "plain.npy", image)
    np.savez(tmp_path / "plain.npz", image=image)
    np.savez_compressed(tmp_path / "packed.npz", image=image)
    content = (tmp_path / name).read_bytes()
    rng = random.Random(0)
    places = [*range(200), *range(len(content) - 120, len(content))]
    info = [TensorInfo("image", image.shape, "float32")]
    refused = 0
    for turn in range(400):
        changed = bytearray(content)
        for _ in range(1 + turn % 3):
            changed[rng.choice(places)] = rng.randrange(256)
        damaged = tmp_path / "damaged"
        damaged.write_bytes(changed[: rng.randrange(len(changed))] if turn % 10 == 0 else changed)
        try:
            load_inputs(info, [f"image={damaged}"], seed=0)
        except UserError:
            refused += 1
    assert refused > 100


def test_an_archive_with_all_inputs(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.chdir(folder)
    np.savez("all.npz", image=small_models.image())
    assert main(["run", "small.so", "--input", "all.npz"]) == 0
    first = capsys.readouterr().out
    assert main(["run", "small.so", "--input", "image=image.npy"]) == 0
    assert capsys.readouterr().out == first


def test_names_of_inputs_and_files_may_hold_equals_signs(tmp_path: Path) -> None:
    path = tmp_path / "a=b.npy"
    np.save(path, np.arange(3, dtype=np.float32))
    infos = [TensorInfo("x=1", (3,), "float32"), TensorInfo("x", (3,), "float32")]
    loaded = load_inputs(infos, [f"x=1={path}", f"x={path}"], 0)
    np.testing.assert_array_equal(loaded["x=1"], [0, 1, 2])
    np.testing.assert_array_equal(loaded["x"], [0, 1, 2])


def test_a_library_of_functions_is_not_a_model(tmp_path: Path, capsys: Captured) -> None:
    a = tw.te.placeholder((8,), name="A")
    b = tw.te.compute((8,), lambda i: a[i] + 1.0, name="B")
    tw.build(tw.te.create_schedule(b.op), [a, b]).export_library(tmp_path / "functions.so")
    assert main(["run", str(tmp_path / "functions.so")]) == 1
    assert "holds functions, not a model" in capsys.readouterr().err


def test_random_arrays_suit_their_types() -> None:
    generator = np.random.default_rng(0)
    for dtype in ("float32", "float16", "int64", "uint8", "bool", "bfloat16"):
        array = random_array(TensorInfo("x", (64,), dtype), generator)
        assert array.shape == (64,)
        if dtype == "bfloat16":
            values = (array.astype(np.uint32) << 16).view(np.float32)
            assert 0.5 < values.std() < 1.5
        else:
            assert array.dtype.name == dtype
    with pytest.raises(UserError):
        load_inputs([TensorInfo("x", (1,), "float32")], ["y=absent.npy"], 0)


def test_indices_stay_within_the_table_that_the_model_picks_from(tmp_path: Path, capsys: Captured) -> None:
    table = np.arange(6, dtype=np.float32).reshape(3, 2)
    node = helper.make_node("Gather", ["table", "ids"], ["y"])
    inputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])]
    graph = helper.make_graph([node], "pick", inputs, outputs, [numpy_helper.from_array(table, "table")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "pick.onnx")
    infos = [TensorInfo("ids", ("n",), "int64")]
    ranges_of = functools.partial(ranges_in_file, tmp_path / "pick.onnx")
    drawn = load_inputs(infos, [], 0, {"n": 200}, ranges_of)["ids"]
    assert set(drawn.tolist()) == {0, 1, 2}
    assert set(load_inputs(infos, [], 0, {"n": 200})["ids"].tolist()) == set(range(8))
    saved = tmp_path / "out.npz"
    assert main(["run", str(tmp_path / "pick.onnx"), "--size", "n=200", "--output-file", str(saved)]) == 0
    assert "float32" in capsys.readouterr().out
    # Of indices outside the last row would be taken: rows come about equally often.
    counts = np.unique(np.load(saved)["y"][:, 0], return_counts=True)[1]
    assert len(counts) == 3 and counts.max() < 2 * counts.min()
