"""The ten benchmark models: `build(name)` gives the ONNX model, `inputs(name)` arrays to feed it.

Everything is built in code from a seed (nothing is downloaded, torch is not needed) and kept in a cache folder,
under a name that changes with this package's own source, so that a stale model is never measured.
"""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from bench.zoo import bert, lstm, mobilenet, resnet, small_vision

CACHE_FOLDER = Path(__file__).resolve().parents[2] / ".cache" / "models"

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A benchmark model: how to build it and feed it, and what is known about it.

    `parameters` counts trained weights (no running statistics), `gflop` the arithmetic of one inference.
    """

    name: str
    title: str
    make: Callable[[int], onnx.ModelProto]
    make_inputs: Callable[[np.random.Generator], Arrays]
    parameters: int
    gflop: float


def _image(random: np.random.Generator) -> Arrays:
    # Patches with noise on them: global pooling would leave little of pure noise in the logits.
    patches = random.standard_normal((1, 3, 7, 7), dtype=np.float32)
    noise = random.standard_normal((1, 3, 224, 224), dtype=np.float32)
    return {"input": patches.repeat(32, axis=2).repeat(32, axis=3) + noise * np.float32(0.5)}


def _frames(random: np.random.Generator) -> Arrays:
    return {"frames": random.random((1, 4, 84, 84), dtype=np.float32)}


def _noise(random: np.random.Generator) -> Arrays:
    return {"noise": random.standard_normal((1, 100, 1, 1), dtype=np.float32)}


def _words(steps: int, random: np.random.Generator) -> Arrays:
    state = (lstm.LAYERS, 1, lstm.HIDDEN)
    return {
        "tokens": random.integers(0, lstm.VOCABULARY, (steps, 1), dtype=np.int64),
        "h0": np.tanh(random.standard_normal(state, dtype=np.float32)) * np.float32(0.5),
        "c0": random.standard_normal(state, dtype=np.float32),
    }


def _sentence(random: np.random.Generator) -> Arrays:
    # A padded pair of sentences: the last tokens are masked, the middle starts the second segment.
    mask = np.ones((1, bert.TOKENS), np.int64)
    mask[:, bert.TOKENS - 16 :] = 0
    segments = np.zeros((1, bert.TOKENS), np.int64)
    segments[:, bert.TOKENS // 2 :] = 1
    return {
        "input_ids": random.integers(0, bert.VOCABULARY, (1, bert.TOKENS), dtype=np.int64),
        "attention_mask": mask,
        "token_type_ids": segments,
    }


SPECS: dict[str, ModelSpec] = {
    spec.name: spec
    for spec in (
        ModelSpec("resnet18", "ResNet-18", resnet.resnet18, _image, 11_689_512, 3.63),
        ModelSpec("resnet50", "ResNet-50", resnet.resnet50, _image, 25_557_032, 8.18),
        ModelSpec("mobilenet_v1", "MobileNet-v1", mobilenet.mobilenet_v1, _image, 4_231_976, 1.14),
        ModelSpec("mobilenet_v2", "MobileNet-v2", mobilenet.mobilenet_v2, _image, 3_504_872, 0.60),
        ModelSpec("dqn", "DQN", small_vision.dqn, _frames, 1_693_362, 0.019),
        ModelSpec("dcgan", "DCGAN generator", small_vision.dcgan, _noise, 3_576_704, 0.21),
        ModelSpec("lstm_lm_1", "LSTM-LM, 1 step", lstm.lstm_lm_1, functools.partial(_words, 1), 19_780_400, 0.027),
        ModelSpec("lstm_lm_35", "LSTM-LM, 35 steps", lstm.lstm_lm_35, functools.partial(_words, 35), 19_780_400, 0.93),
        ModelSpec("bert_base", "BERT-base, 128", bert.bert_base, _sentence, 109_482_240, 22.3),
        ModelSpec("bert_small", "BERT-small, 128", bert.bert_small, _sentence, 22_713_216, 2.87),
    )
}


def names() -> list[str]:
    """The names of the ten models, in the order of the tables."""
    return list(SPECS)


def inputs(name: str, seed: int = 0) -> Arrays:
    """Seeded random inputs of a model, by input name."""
    return SPECS[name].make_inputs(np.random.default_rng(seed))


def build(name: str, seed: int = 0) -> onnx.ModelProto:
    """The ONNX model called `name`, from the cache folder if it was built before."""
    return onnx.load(path(name, seed))


def path(name: str, seed: int = 0) -> Path:
    """The file of a model in the cache folder, built first if it is not there."""
    file = CACHE_FOLDER / f"{name}-{seed}-{_source_key()}.onnx"
    if not file.exists():
        CACHE_FOLDER.mkdir(parents=True, exist_ok=True)
        model = SPECS[name].make(seed)
        # Written aside and renamed: another process never sees half a model.
        handle, aside = tempfile.mkstemp(dir=CACHE_FOLDER, suffix=".tmp")
        os.close(handle)
        try:
            onnx.save(model, aside)
            for stale in CACHE_FOLDER.glob(f"{name}-{seed}-*.onnx"):
                if stale != file:
                    stale.unlink(missing_ok=True)
            os.replace(aside, file)
        finally:
            Path(aside).unlink(missing_ok=True)
    return file


@functools.cache
def _source_key() -> str:
    """A short hash of the files that define the models."""
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:12]
