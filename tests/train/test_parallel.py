"""Data-parallel training: two processes do what one does with the batch joined, and survive the loss of one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.requirements import need_module
from tests.train.models import batch, normalised, perceptron
from tests.train.parallel_run import EPOCHS, EXAMPLES, SIZE
from tilewright.support.errors import UserError
from tilewright.train import SGD, AdamW, Group, ParallelStep, Step, fit

need_module("torch")
SECONDS = 300


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def processes(folder: Path, *arguments: str) -> list[subprocess.Popen[str]]:
    """Two processes of a run, which know of each other as torchrun's do."""
    shared = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, "-m", "tests.train.parallel_run", str(folder), *arguments]
    return [
        subprocess.Popen(
            command, env={**shared, "RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for rank in range(2)
    ]


def ended(started: list[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    texts = [item.communicate(timeout=SECONDS)[0] for item in started]
    return [(item.returncode, text) for item, text in zip(started, texts, strict=True)]


@pytest.fixture(scope="module")
def alone() -> tuple[list[float], dict[str, np.ndarray]]:
    """Losses and parameters of one process that sees batches joined."""
    step = Step(perceptron(SIZE), "cross_entropy", AdamW(0.02), clip_norm=1.0, threads=1)
    losses: list[float] = []

    data = batch(5, EXAMPLES)
    for _ in range(EPOCHS):
        history = fit(step, data, epochs=step.position.get("epoch", 0) + 1, batch_size=SIZE)
        losses.append(history[-1].training["loss"])
    return losses, step.parameters()


def check(folder: Path, expected: dict[str, np.ndarray]) -> None:
    found = [dict(np.load(folder / f"rank{rank}.npz")) for rank in range(2)]
    for name, value in expected.items():
        np.testing.assert_array_equal(found[0][name], found[1][name])
        np.testing.assert_allclose(found[0][name], value, rtol=1e-4, atol=1e-5)


def test_two_processes_do_what_one_does(tmp_path: Path, alone) -> None:
    for code, text in ended(processes(tmp_path)):
        assert code == 0, text
    check(tmp_path, alone[1])
    losses = np.load(tmp_path / "rank0.npz")["losses"].reshape(EPOCHS, -1).mean(axis=1)
    np.testing.assert_allclose(losses, alone[0], rtol=1e-5)


@pytest.mark.fuzz
def test_a_process_is_killed_and_all_go_on_from_the_checkpoint(tmp_path: Path, alone) -> None:
    (survivor, said), (killed, _) = ended(processes(tmp_path, "7"))
    assert killed == -9
    assert survivor == 1 and "process 0 of 2 has lost another" in said
    for code, text in ended(processes(tmp_path, "7")):
        assert code == 0, text
    check(tmp_path, alone[1])


def test_a_process_alone_does_what_a_step_does() -> None:
    x, y = batch(0, 4, inputs=36, classes=3)
    x = x.reshape(4, 1, 6, 6)
    ours, plain = (
        make(normalised(), "cross_entropy", SGD(0.1, momentum=0.9), threads=1) for make in (ParallelStep, Step)
    )
    for _ in range(3):
        assert ours(x, y)["loss"] == pytest.approx(plain(x, y)["loss"], rel=1e-5)
    for name, value in {**plain.parameters(), **plain.buffers()}.items():
        found = {**ours.parameters(), **ours.buffers()}[name]
        np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-6)


def test_wrong_uses_are_refused() -> None:
    with pytest.raises(UserError, match="memory= is for a step in one process"):
        ParallelStep(perceptron(), "cross_entropy", SGD(0.1), memory="1GiB")
    step = ParallelStep(perceptron(), "cross_entropy", SGD(0.1), threads=1)
    step.group = Group()
    step.group.size = 3
    with pytest.raises(UserError, match="has 8 examples, which 3 processes cannot share evenly"):
        step(*batch(0))
