"""`tilewright tune` and `tilewright database`: a small model tuned for real, resumed, asked and exported."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from argparse import ArgumentTypeError
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.small_models import classifier
from tilewright.cli import main as cli
from tilewright.cli.tune import duration, summary
from tilewright.compiler import Compilation
from tilewright.graph.choices import GraphQuestion, stored_answer
from tilewright.lower.database import Database
from tilewright.lower.records import Record, Selection
from tilewright.support.errors import UserError
from tilewright.support.fingerprint import compiler_name
from tilewright.tune.algorithms import AlgorithmChoice, Algorithms, measured_answers
from tilewright.tune.in_graph import InGraph
from tilewright.tune.report import report_html
from tilewright.tune.tuner import Report

WORDS = ["--threads", "1", "--trials", "4", "--seed", "3"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "classifier.onnx"
    path.write_bytes(classifier().SerializeToString())
    return path


@pytest.mark.slow
def test_a_model_is_tuned_and_tuned_on(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, page = tmp_path / "tuned.db", tmp_path / "report.html"
    words = ["tune", str(model), *WORDS, "--database", str(path)]
    assert cli.main([*words, "--report", str(page)]) == 0
    said = capsys.readouterr().out
    assert "choosing algorithms" in said and "algorithms: " in said
    assert "tuning " in said and "4 trials in" in said and str(path) in said
    assert "<svg" in page.read_text()
    with Database(path) as database:
        assert database.count() == 4
        known = {record.task for record in database.records()}
    assert known <= {kernel.symbol for kernel in Compilation(model, threads=1).kernels}
    assert cli.main(words) == 0
    assert "algorithms" not in capsys.readouterr().out, "they are known"
    with Database(path) as database:
        assert database.count() == 8


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    path = tmp_path / "filled.db"
    with Database(path) as database:
        database.add_task("tw_conv_1", "conv", 2e9)
        answers = [{"tile_rows": rows} for rows in (1, 2, 4)]
        database.add([Record("tw_conv_1", "llvm", item, 1.0 / (n + 1), None, 1.0) for n, item in enumerate(answers)])
    return path


def test_what_is_not_there_is_not_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    absent = tmp_path / "absent.db"
    for words in (["query"], ["prune"], ["export", str(tmp_path / "out.jsonl")]):
        assert cli.main(["database", *words, "--database", str(absent)]) == 1
        assert "there is no such database" in capsys.readouterr().err
    assert cli.main(["database", "import", str(tmp_path / "none.jsonl"), "--database", str(absent)]) == 1
    assert "there is no file" in capsys.readouterr().err
    assert not absent.exists()


def test_query_export_import_merge_prune(filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*words: str) -> str:
        assert cli.main(["database", *words]) == 0
        return capsys.readouterr().out

    shown = run("query", "--database", str(filled))
    assert "tw_conv_1" in shown and "3.00x" in shown and "6 GFLOP/s" in shown.replace(".00", "")
    assert "not known" in shown and "1 line of another compiler" in shown
    assert "no records" in run("query", "--database", str(filled), "--kernel", "matmul")
    lines, other = tmp_path / "records.jsonl", str(tmp_path / "other.db")
    assert "3 records" in run("export", str(lines), "--database", str(filled))
    assert len([json.loads(line) for line in lines.read_text().splitlines()]) == 3
    assert "3 new records" in run("import", str(lines), "--database", other)
    assert "0 new records" in run("merge", str(filled), "--database", other)
    assert "2 records removed, 1 kept" in run("prune", "--keep", "1", "--database", other)


def test_query_says_whose_code_was_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mixed.db"
    with Database(path) as database:
        for task, compiler in (("tw_a", compiler_name()), ("tw_b", "0.0.9+abc")):
            database.add([Record(task, "llvm", {}, 1.0, None, 1.0, compiler=compiler)])
    assert cli.main(["database", "query", "--database", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("tw_a" in line and "this one" in line for line in lines)
    assert any("tw_b" in line and "0.0.9+abc" in line for line in lines)
    assert lines[-1] == "1 line of another compiler: used until `tilewright tune` measures anew"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tune", "missing.onnx", "--tracker", "farm:9190"], "--tracker and --key go together"),
        (["tune", "missing.onnx", "--tracker", "a:1", "--key", "k", "--cluster", "local"], "are places to measure"),
        (["tune", "missing.onnx", "--report", "no/such/folder/x.html"], "does not exist"),
        (["tune", "library.so"], "is a compiled library"),
        (["tune", "missing.onnx", "--trials", "0"], "say how long to tune"),
        (["database", "merge"], "needs a file"),
        (["database", "query", "x"], "takes no file"),
        (["database", "query", "--database", "none.db"], "no such database"),
        (["database", "query"], "TILEWRIGHT_DATABASE says none"),
    ],
)
def test_messages(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words if "--database" in words or words[0] != "tune" else [*words, "--database", "x.db"]) == 1
    assert message in capsys.readouterr().err


def test_the_summary_says_what_the_whole_model_takes() -> None:
    chosen = InGraph(3e-4, 2.5e-4, 2e-4, 120, 9.0, 4)
    report = Report((), 40, 60.0, 50.0, False, chosen)
    text = summary(report)
    assert "whole model: 300.00 us -> 250.00 us -> 200.00 us" in text and "4 kernels exchanged, 120 trials in 9" in text
    assert "300.00 us &rarr; 250.00 us &rarr; 200.00 us" in report_html("x", report)
    left_out = Report((), 40, 60.0, 50.0, False, None, "it has control flow")
    assert "not tried in the whole model: it has control flow" in summary(left_out)
    assert "it has control flow" in report_html("x", left_out)


def _algorithms() -> Algorithms:
    conv = GraphQuestion("graph:nn.conv2d 1x8x8x16 data_layout=NHWC", ("direct", "winograd2"), "direct", ("<c1>", "c2"))
    join = GraphQuestion("graph:transpose -> nn.conv2d", ("apart", "together"), "together", ("c0",))
    choices = (
        AlgorithmChoice(conv, {"direct": 4e-3, "winograd2": 2e-3}, "winograd2"),
        AlgorithmChoice(join, {"together": 1e-3, "apart": 2e-3}, "together"),
    )
    return Algorithms(choices, 9e-3, 7e-3, 120, 8.0)


def test_the_summary_says_which_algorithms_were_chosen() -> None:
    report = Report((), 40, 60.0, 50.0, False, algorithms=_algorithms())
    lines = summary(report).splitlines()
    (row,) = [line for line in lines if "nn.conv2d" in line]
    assert row.split() == "nn.conv2d 1x8x8x16 direct -> winograd2 4.00 ms 2.00 ms 2.00x".split()
    assert "algorithms: 9.00 ms -> 7.00 ms (1 of 2 choices changed, 120 trials in 8.00 s)" in lines
    page = report_html("x", report)
    assert "9.00 ms &rarr; 7.00 ms" in page and "<td>&lt;c1&gt;, c2</td><td>direct</td><td>winograd2</td>" in page
    assert "<td>together 1.00 ms, apart 2.00 ms</td>" in page
    same = replace(_algorithms(), choices=_algorithms().choices[1:])
    text = summary(replace(report, algorithms=same))
    assert "algorithms: as estimated (0 of 1 choice changed" in text and "nn.conv2d" not in text
    assert "lgorithms" not in summary(replace(report, algorithms=None))
    assert "lgorithms" not in report_html("x", replace(report, algorithms=None))


def test_chosen_algorithms_are_rows_of_the_database(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*words: str) -> str:
        assert cli.main(["database", *words]) == 0
        return capsys.readouterr().out

    def rows(path: Path) -> list[list[str]]:
        return [line.split() for line in run("query", "--database", str(path)).splitlines() if "nn." in line]

    first, second, third = (tmp_path / f"{name}.db" for name in ("first", "second", "third"))
    with Database(first) as database:
        winograd = {**stored_answer("winograd4"), "compiler": "x"}
        database.select([Selection("graph:nn.conv2d 1x8x8x16 data_layout=NHWC", "llvm", winograd)])
        database.select([Selection("graph:nn.dense 4x4", "llvm", {"compiler": "x"})])
    shown = rows(first)
    assert shown == [["nn.conv2d", "1x8x8x16", "winograd4", "llvm"], ["nn.dense", "4x4", "as", "estimated", "llvm"]]
    assert "nn.conv2d" not in run("query", "--database", str(first), "--kernel", "dense")
    run("prune", "--keep", "0", "--database", str(first))
    run("export", str(tmp_path / "lines.jsonl"), "--database", str(first))
    run("import", str(tmp_path / "lines.jsonl"), "--database", str(second))
    run("merge", str(second), "--database", str(third))
    assert rows(third) == shown
    with Database(third) as database:
        assert database.answers("llvm")["graph:nn.conv2d 1x8x8x16 data_layout=NHWC"] == winograd
        assert measured_answers(database.answers("llvm")).keys() == {"graph:nn.conv2d 1x8x8x16 data_layout=NHWC"}


def test_durations() -> None:
    assert [duration(text) for text in ("90", "90s", "20m", "1.5h")] == [90, 90, 1200, 5400]
    for text in ("", "0", "m", "-1", "5d"):
        with pytest.raises(ArgumentTypeError):
            duration(text)


@pytest.mark.slow
def test_an_interrupt_keeps_what_was_measured(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "tuned.db"
    words = ["tune", str(model), "--threads", "1", "--time", "10m", "--database", str(path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tilewright", *words],
        stdout=subprocess.PIPE,
        text=True,
        # Whoever runs the tests in the background may ignore interrupts, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
    )
    try:
        # On a machine under load even the first record takes its time.
        deadline = time.monotonic() + 300
        while not (path.exists() and _count(path)):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == cli.INTERRUPTED
    assert _count(path) > 0
    assert "the same command goes on from here" in said


def _count(path: Path) -> int:
    try:
        with Database(path, read_only=True) as database:
            return database.count()
    except UserError:
        # It is being made.
        return 0
