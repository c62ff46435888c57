"""`bench.frontends` counts what passes, what is refused and what fails."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from onnx import helper

from bench import frontend_mxnet, frontend_suites, frontends
from bench.frontend_case import Case, LeftOut, Trial, run_case
from bench.frontend_environments import HOMES
from tests.integration import small_models
from tilewright.support.errors import UserError

Captured = pytest.CaptureFixture[str]


def relu() -> bytes:
    shape = (small_models.FLOAT, [2])
    node = helper.make_node("Relu", ["x"], ["y"])
    return bytes(small_models.model([node], {"x": shape}, {"y": shape}).SerializeToString())


def case(name: str, source: bytes, expected: float) -> Case:
    return Case(name, lambda: (source, {"x": np.float32([-1, 2])}, [np.float32([0, expected])]))


def test_verdicts() -> None:
    assert run_case(case("right", relu(), 2)).verdict == "passed"
    assert run_case(case("wrong", relu(), 3)).verdict == "failed"
    assert run_case(case("damaged", b"nothing", 2)).verdict == "refused"
    assert run_case(Case("broken", lambda: [][0])).verdict == "failed"  # type: ignore[arg-type, return-value]


def _suite(*trials: Trial) -> dict[str, Callable[[], Iterator[Trial]]]:
    return {"good": lambda: iter(trials)}


def test_a_process_says_what_became_of_each_case(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trials = (case("right", relu(), 2), case("damaged", b"nothing", 2), LeftOut("unsaved", "it has no inputs"))
    monkeypatch.setattr(frontend_suites, "SUITES", _suite(*trials))
    assert frontend_suites.main(["good"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line]
    assert [line["begins"] for line in lines[::2]] == ["right", "damaged", "unsaved"]
    assert [line["result"]["verdict"] for line in lines[1::2]] == ["passed", "refused", "left out"]
    assert frontend_suites.main(["good", "--part", "1/2"]) == 0
    assert "damaged" in (shown := capsys.readouterr().out) and "right" not in shown and "unsaved" not in shown
    journal = tmp_path / "journal"
    journal.write_text('{"number": 0, "name": "right"}\n{"number": 1, "name": "another"}\n')
    assert frontend_suites.main(["good", "--journal", str(journal)]) == 0
    assert "unsaved" in (shown := capsys.readouterr().out) and "damaged" in shown and "right" not in shown
    assert frontend_suites.main(["good", "--until", "0"]) == 0
    assert capsys.readouterr().out.count('"verdict": "not run"') == len(trials)


_CHILD = """
import json, sys
with open(sys.argv[sys.argv.index("--journal") + 1]) as journal:
    done = {json.loads(line)["number"] for line in journal}
for number, (name, verdict) in enumerate([("right", "passed"), ("crash", ""), ("odd", "refused"), ("no case", None)]):
    if number in done:
        continue
    print(json.dumps({"begins": name, "number": number}), flush=True)
    if verdict == "":
        sys.exit(3)
    result = verdict and {"name": name, "verdict": verdict, "reason": "why", "samples": [1, 2]}
    line = json.dumps({"number": number, "name": name, "result": result, "seconds": 2})
    print("noise", line, sep=chr(10), flush=True)
"""


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One suite, whose process passes a case, dies of another, refuses a third and does not count a fourth."""

    class Here:
        distributions = ("numpy",)
        variables: ClassVar[dict[str, str]] = {}

        def python(self) -> str:
            return sys.executable

    class Absent(Here):
        def python(self) -> str:
            raise UserError("NOWHERE names no interpreter")

    popen = subprocess.Popen

    def start(command: list[str], **options: Any) -> Any:
        return popen([sys.executable, "-c", _CHILD, *command[3:]], **options)

    monkeypatch.setattr(frontends, "HOMES", {"good": Here(), "absent": Absent()})
    monkeypatch.setattr(frontends.subprocess, "Popen", start)
    monkeypatch.setattr(frontends, "JOURNALS", tmp_path / "journals")
    monkeypatch.setattr(frontends, "_versions", lambda *_: {"numpy": "2"})


@pytest.mark.usefixtures("home")
def test_the_table_and_the_record(capsys: Captured, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    assert frontends.main(["--only", "good,absent", "--details", "--json", str(path)]) == 1
    shown = capsys.readouterr().out
    assert "not run: NOWHERE names no interpreter" in shown and "good: refused odd: why" in shown
    counts = {"passed": 1, "refused": 1, "failed": 1, "left out": 0, "not run": 0}
    assert json.loads(shown.splitlines()[-1]) == {"good": counts, "absent": {}}
    kept = json.loads(path.read_text())["suites"]
    assert kept["good"]["counts"] == counts and kept["good"]["note"] == "2 of 4 samples"
    assert kept["good"]["failed"] == {"crash": "the process ended: 3"} and kept["good"]["refused"] == {"odd": "why"}
    assert kept["good"]["seconds"] == 6
    assert frontends.main(["--show", "--json", str(path)]) == 1
    assert "2 of 4 samples; numpy 2" in capsys.readouterr().out


@pytest.mark.usefixtures("home")
def test_a_run_is_gone_on_with_where_cases_have_not_passed(
    capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["--only", "good", "--json", str(tmp_path / "record.json")]
    assert frontends.main(command) == 1
    mended = _CHILD.replace('"crash", ""', '"crash", "passed"').replace("refused", "passed")
    monkeypatch.setattr(sys.modules[__name__], "_CHILD", mended)
    capsys.readouterr()
    assert frontends.main([*command, "--resume"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["good"]["passed"] == 3
    journal = (tmp_path / "journals" / "good.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["number"] for line in journal) == [0, 1, 2, 3]


@pytest.mark.usefixtures("home")
def test_unknown_suites_are_named(capsys: Captured) -> None:
    with pytest.raises(SystemExit):
        frontends.main(["--only", "good,bad"])
    assert "there is no suite bad" in capsys.readouterr().err


def test_every_suite_has_a_home() -> None:
    assert set(HOMES) == set(frontend_suites.SUITES)


def test_models_of_mxnet_are_made_by_the_interpreter_that_is_named_or_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MXNET_PYTHON", raising=False)
    assert next(frontend_mxnet.cases()).run().verdict == "passed"
    assert "as the tests keep it" in frontend_mxnet.note()
    monkeypatch.setenv("MXNET_PYTHON", sys.executable)  # it has no MXNet
    assert "MXNET_PYTHON" in frontend_mxnet.note()
    with pytest.raises(subprocess.CalledProcessError):
        next(frontend_mxnet.cases())
