"""Epochs, checkpoints and logs: a run that is killed goes on as if it had not been."""

from __future__ import annotations

import csv
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.train.killed_run import run
from tests.train.models import batch, perceptron
from tilewright.graph.ops.random_bits import key_of
from tilewright.ir.expr import Var as Symbol
from tilewright.support.errors import UserError
from tilewright.train import (
    SGD,
    AdamW,
    Cosine,
    Step,
    fit,
    initialize,
    kaiming_normal,
    normal,
    xavier_normal,
    xavier_uniform,
)
from tilewright.train.fit import epoch_order
from tilewright.train.log import crc32c

PROJECT = Path(__file__).resolve().parents[2]


def make(**options) -> Step:
    return Step(perceptron(), "cross_entropy", options.pop("optimizer", AdamW(0.01)), threads=1, **options)


def assert_same(one: Step, other: Step) -> None:
    assert (one.steps, one.calls, one.position) == (other.steps, other.calls, other.position)
    for name in one.executable.state:
        np.testing.assert_array_equal(one.executable.state[name], other.executable.state[name], err_msg=name)


def test_epochs_see_every_example_once_in_an_order_of_their_own() -> None:
    orders = [epoch_order(3, epoch, 100) for epoch in range(3)]
    for order in orders:
        assert sorted(order) == list(range(100))
    assert not np.array_equal(orders[0], orders[1])
    np.testing.assert_array_equal(orders[1], epoch_order(3, 1, 100))
    assert not np.array_equal(orders[0], epoch_order(4, 0, 100))


def test_fit_validates_and_logs(tmp_path: Path) -> None:
    step = make()
    logs = [tmp_path / "run.csv", tmp_path / "events"]
    history = fit(step, batch(0, 50), epochs=3, validation=batch(1, 16), log=logs)
    assert [epoch.number for epoch in history] == [0, 1, 2] and step.calls == 18
    assert history[2].training["loss"] < history[0].training["loss"]
    assert set(history[2].validation) == {"loss", "accuracy"}
    rows = list(csv.DictReader((tmp_path / "run.csv").open()))
    assert [int(row["step"]) for row in rows if row["loss"]] == list(range(1, 19))
    measured = [float(row["validation_loss"]) for row in rows if row["validation_loss"]]
    assert measured == [epoch.validation["loss"] for epoch in history]
    (events,) = (tmp_path / "events").iterdir()
    assert_events(events.read_bytes(), 1 + 18 + 3, b"validation_accuracy")


def assert_events(data: bytes, count: int, tag: bytes) -> None:
    """The records of an event file, each with right checksums."""
    assert crc32c(b"123456789") == 0xE3069283
    records = []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        for part, at in ((data[:8], 8), (data[12 : 12 + length], 12 + length)):
            checksum = crc32c(part)
            rotated = (checksum >> 15 | checksum << 17) + 0xA282EAD8 & 0xFFFFFFFF
            assert struct.unpack("<I", data[at : at + 4]) == (rotated,)
        records.append(data[12 : 12 + length])
        data = data[16 + length :]
    assert len(records) == count and b"brain.Event:2" in records[0] and tag in records[-1]


def test_batches_that_are_left_over() -> None:
    step = Step(perceptron(Symbol("n")), "cross_entropy", SGD(0.1), threads=1)
    fit(step, batch(0, 11), epochs=1, batch_size=4, shuffle=False)
    assert step.calls == 3
    x, y = batch(1, 9)
    step = Step(perceptron(), "cross_entropy", SGD(0.1), threads=1)
    fit(step, {"x": x, "target": y}, epochs=2)
    assert step.calls == 2


def test_a_checkpoint_has_everything(tmp_path: Path) -> None:
    whole = make(average=0.9, accumulate=2, optimizer=AdamW(Cosine(0.02, 20)))
    first = make(average=0.9, accumulate=2, optimizer=AdamW(Cosine(0.02, 20)))
    for number in range(5):
        whole(*batch(number))
        first(*batch(number))
    first.save(tmp_path / "step.npz")
    second = make(average=0.9, accumulate=2, optimizer=AdamW(Cosine(0.02, 20)))
    second.restore(tmp_path / "step.npz")
    for number in range(5, 9):
        assert whole(*batch(number)) == second(*batch(number))
    assert_same(whole, second)
    assert [item.name for item in tmp_path.iterdir()] == ["step.npz"]


def test_checkpoints_of_something_else_are_refused(tmp_path: Path) -> None:
    step = make()
    step.save(tmp_path / "step.npz")
    with pytest.raises(UserError, match=r"the checkpoint has no '\w:velocity'"):
        make(optimizer=SGD(0.1, momentum=0.5)).restore(tmp_path / "step.npz")
    with pytest.raises(UserError, match=r"the step has no '\w:\w+'"):
        make(optimizer=SGD(0.1)).restore(tmp_path / "step.npz")
    step.executable.state.save(tmp_path / "state.npz")
    with pytest.raises(UserError, match="no checkpoint of training"):
        step.restore(tmp_path / "state.npz")
    with pytest.raises(UserError, match="there is no such file"):
        step.restore(tmp_path / "none.npz")
    whole = (tmp_path / "step.npz").read_bytes()
    for size in range(0, len(whole), 997):
        (tmp_path / "part.npz").write_bytes(whole[:size])
        with pytest.raises(UserError):
            step.restore(tmp_path / "part.npz")


def test_a_run_that_is_killed_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    (tmp_path / "killed").mkdir()
    (tmp_path / "whole").mkdir()
    environment = {**os.environ, "PYTHONPATH": f"{PROJECT / 'src'}{os.pathsep}{PROJECT}"}
    command = [sys.executable, "-m", "tests.train.killed_run", str(tmp_path / "killed")]
    process = subprocess.Popen(command, env=environment, cwd=PROJECT)
    try:
        deadline = time.monotonic() + 120
        log = tmp_path / "killed" / "run.csv"
        while not log.exists() or len(log.read_text().splitlines()) < 14:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    reached = Step(perceptron(), "cross_entropy", AdamW(Cosine(0.02, 40)), average=0.9, threads=1)
    reached.restore(tmp_path / "killed" / "run.npz")
    epochs = reached.position["epoch"] + 2
    assert reached.calls >= 3
    assert_same(run(tmp_path / "killed", epochs), run(tmp_path / "whole", epochs))
    texts = [(tmp_path / name / "run.csv").read_text() for name in ("killed", "whole")]
    assert texts[0] == texts[1]


def test_wrong_data_is_refused(tmp_path: Path) -> None:
    step = make()
    x, y = batch(0, 16)
    for call, message in (
        (lambda: fit(step, (x,), epochs=1), "the training data has 1 arrays, a step takes 2: x, target"),
        (lambda: fit(step, (x, y[:5]), epochs=1), "different numbers of examples"),
        (lambda: fit(step, (x[:0], y[:0]), epochs=1), "different numbers of examples, or none"),
        (lambda: fit(step, {"x": x}, epochs=1), "the training data has no 'target'"),
        (lambda: fit(step, 3, epochs=1), "the training data is arrays, a mapping of them or a .npz file"),
        (lambda: fit(step, (x, y), epochs=1, batch_size=4), "the model takes batches of 8, not 4"),
        (lambda: fit(step, (x[:5], y[:5]), epochs=1), "there are 5 examples, fewer than one batch of 8"),
        (lambda: fit(step, (x, y), epochs=1, every=0), "every is a number of batches"),
        (lambda: fit(step, (x, y), epochs=1, validation=(x,)), "the data to validate on has 1 arrays"),
        (lambda: fit(step, tmp_path / "none.npz", epochs=1), "there is no such file"),
        (lambda: fit(step, (x, y), epochs=1, log=tmp_path / "no" / "run.csv"), "cannot write"),
    ):
        with pytest.raises(UserError, match=message):
            call()
    (tmp_path / "taken").write_text("")
    with pytest.raises(UserError, match="is no folder for event files"):
        fit(step, (x, y), epochs=1, log=tmp_path / "taken")


def test_data_of_a_file(tmp_path: Path) -> None:
    x, y = batch(0, 16)
    np.savez(tmp_path / "train.npz", x=x, target=y)
    one, other = make(), make()
    fit(one, tmp_path / "train.npz", epochs=1)
    fit(other, (x, y), epochs=1)
    assert_same(one, other)


def test_first_values_of_weights() -> None:
    step = make()
    values = initialize(step.parameters(), seed=1, weights=kaiming_normal)
    again = initialize(step.parameters(), seed=1, weights=kaiming_normal)
    other = initialize(step.parameters(), seed=2, weights=kaiming_normal)
    np.testing.assert_array_equal(values["a"], again["a"])
    assert not np.array_equal(values["a"], other["a"]) and np.array_equal(values["b"], other["b"])
    step.assign(values)
    np.testing.assert_array_equal(step.parameters()["c"], values["c"])
    shape = (64, 32, 3, 3)
    for draw, deviation in (
        (kaiming_normal, (2 / 288) ** 0.5),
        (xavier_normal, (2 / (288 + 576)) ** 0.5),
        (xavier_uniform, (2 / (288 + 576)) ** 0.5),
    ):
        drawn = draw(key_of(0), shape)
        assert drawn.dtype == np.float32 and drawn.std() == pytest.approx(deviation, rel=0.03)
        assert abs(drawn.mean()) < 5 * deviation / drawn.size**0.5
    assert normal(key_of(0), (1000,), 3.0).std() == pytest.approx(3, rel=0.1)
    with pytest.raises(UserError, match="have no inputs and outputs"):
        kaiming_normal(key_of(0), (5,))
