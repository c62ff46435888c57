"""`tilewright train`."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.train.models import batch, perceptron
from tilewright.cli.main import main
from tilewright.onnx_writer import to_onnx


@pytest.fixture
def files(tmp_path):
    (tmp_path / "model.onnx").write_bytes(to_onnx(perceptron()))
    for name, seed in (("train", 0), ("test", 1)):
        x, y = batch(seed, 32)
        np.savez(tmp_path / f"{name}.npz", x=x, target=y)
    return tmp_path


def test_a_model_is_trained(files, capsys) -> None:
    words = ["train", str(files / "model.onnx"), "--data", str(files / "train.npz"), "-o", str(files / "trained.onnx")]
    more = ["--epochs", "4", "--rate", "0.05", "--threads", "1", "--log", str(files / "run.csv"), "--batch-size", "8"]
    more += ["--validation", str(files / "test.npz"), "--schedule", "cosine", "--warm-up", "3"]
    assert main([*words, *more]) == 0
    printed = capsys.readouterr().out
    assert "epoch 4: loss" in printed and "validation accuracy" in printed and "after 16 steps" in printed
    x, y = batch(0, 32)
    before, after = (
        [np.asarray(tw.compile(files / name, threads=1)(x[at : at + 8])) for at in range(0, 32, 8)]
        for name in ("model.onnx", "trained.onnx")
    )
    right = [(np.concatenate(found).argmax(axis=1) == y).mean() for found in (before, after)]
    assert right[1] > right[0] and right[1] > 0.7
    assert (files / "run.csv").read_text().startswith("step,loss,accuracy,validation_loss,validation_accuracy")


def test_a_run_goes_on_and_weights_are_drawn_anew(files, capsys) -> None:
    words = ["train", str(files / "model.onnx"), "--data", str(files / "train.npz"), "-o", str(files / "out.onnx")]
    words += ["--threads", "1", "--checkpoint", str(files / "run.npz"), "--every", "2", "--initialize", "--seed", "3"]
    assert main([*words, "--epochs", "1", "--optimizer", "sgd"]) == 0
    assert main([*words, "--epochs", "2", "--optimizer", "sgd"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("epoch 1:") == 1 and printed.count("epoch 2:") == 1 and "after 8 steps" in printed


def test_a_schedule_needs_the_number_of_steps(files, capsys) -> None:
    words = ["train", str(files / "model.onnx"), "--data", str(files / "train.npz"), "--schedule", "one_cycle"]
    assert main([*words, "-o", str(files / "out.onnx")]) == 1
    assert "a schedule needs to know the number of steps" in capsys.readouterr().err
