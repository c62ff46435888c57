"""Models of open sizes from ONNX, compiled once: against onnxruntime at several sizes, specialized, exported."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import tilewright as tw
from bench.zoo.bert import BertShape, dynamic_bert
from tilewright.support.errors import UserError


@pytest.fixture(scope="module")
def model() -> bytes:
    data: bytes = dynamic_bert("tiny", 0, BertShape(1, 32, 4, 64, True, vocabulary=50)).SerializeToString()
    return data


def sentence(batch: int, length: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(length)
    return {
        "input_ids": rng.integers(0, 50, (batch, length)),
        "attention_mask": (rng.random((batch, length)) < 0.9).astype(np.int64),
        "token_type_ids": rng.integers(0, 2, (batch, length)),
    }


def agree(exe: tw.Executable, session: onnxruntime.InferenceSession, batch: int, length: int) -> None:
    inputs = sentence(batch, length)
    for found, expected in zip(exe.run(inputs), session.run(None, inputs), strict=True):
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_bert_of_every_length(model: bytes, tmp_path: Path) -> None:
    session = onnxruntime.InferenceSession(model)
    exe = tw.compile(model, threads=1, specialize=[{"batch": 1, "sequence": 32}])
    # No virtual machine: one native entry for all sizes.
    assert exe.model.symbols == ("batch", "sequence")
    assert not exe.model.program
    for sizes in ((1, 1), (2, 7), (1, 32), (1, 128), (3, 33), (1, 512)):
        agree(exe, session, *sizes)
    exe.export_library(tmp_path / "bert.so")
    loaded = tw.load(tmp_path / "bert.so")
    assert isinstance(loaded, tw.Executable)
    agree(loaded, session, 2, 9)
    agree(loaded, session, 1, 32)
    mixed = {**sentence(2, 7), "attention_mask": np.ones((2, 8), np.int64)}
    with pytest.raises(UserError, match=r"the input 'attention_mask' .*axis 1 must be 7 \(sequence = 7 here\), not 8"):
        exe.run(mixed)
    with pytest.raises(UserError, match="the model needs"):
        exe.run(sentence(1, 600))
