"""Compiling ahead: what is compiled, in which order, and what becomes of failures and of time that is over."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from bench import gpu_ahead
from bench.gpu_ahead import OURS, Program


def test_programs_of_a_configuration() -> None:
    found = gpu_ahead.programs(
        {
            (1, "fp32", "dqn"): ["autotune"],
            (1, "fp32", "resnet50"): ["autotune"],
            (16, "fp16", "bert_base"): ["autotune"],
            (16, "fp16", "dqn"): [],
        }
    )
    assert found == [
        Program("resnet50", 1, "fp32", OURS),
        Program("bert_base", 16, "fp16", OURS),
        Program("dqn", 1, "fp32", OURS),
        Program("dqn", 16, "fp16", OURS),
        Program("resnet50", 1, "fp32", "autotune"),
        Program("bert_base", 16, "fp16", "autotune"),
        Program("dqn", 1, "fp32", "autotune"),
    ]
    assert gpu_ahead.layouts("resnet50") == ("", "channels_last") and gpu_ahead.layouts("bert_base") == ("",)
    laid_out = Program("resnet50", 1, "fp32", "graph", "channels_last")
    assert laid_out.peer == "graph channels_last" and str(laid_out) == "resnet50 1 fp32 graph channels_last"


def _start_script(program: Program, log: Path, helpers: int) -> subprocess.Popen[bytes]:
    assert helpers >= 1
    scripts = {
        "good": "pass",
        "bad": "print('lines before'); raise ValueError('no such kernel')",
        "slow": "import time; time.sleep(60)",
    }
    with log.open("wb") as file:
        command = [sys.executable, "-c", scripts[program.model]]
        return subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)


def test_failures_and_lost_time_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_ahead, "_start", _start_script)
    good, bad, slow, late = (Program(name, 1, "fp32", "compile") for name in ("good", "bad", "slow", "late"))
    started = time.perf_counter()
    failed = gpu_ahead.prepare_all([slow, good, bad], 3, 2.0)
    assert failed == {bad: "ValueError: no such kernel", slow: "no time left to compile it"}
    failed = gpu_ahead.prepare_all([slow, late], 1, 0.5)
    assert failed == {late: "no time left to compile it", slow: "no time left to compile it"}
    assert time.perf_counter() - started < 30


def test_the_lock_is_held_by_one_and_entered_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpu_ahead, "_LOCK", tmp_path / "lock")
    inside = most = 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(5):
            with gpu_ahead.alone(), gpu_ahead.alone():
                inside += 1
                most = max(most, inside)
                time.sleep(0.002)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
