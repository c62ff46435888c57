"""The benchmark models: `build(name)` gives the ONNX model, `inputs(name)` arrays to feed it.

Ten are the set that all figures are about (`names`); sixteen more (`more_names`) keep the compiler honest about models
that were not looked at while it was made. Everything is built in code from a seed (nothing is downloaded, torch is not
needed) and kept in a cache folder, under a name that changes with the source of the model's family, so that a stale
model is never measured.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from bench.zoo import (
    bert,
    builder,
    dense_prediction,
    layers,
    lstm,
    mobilenet,
    quantized,
    resnet,
    sequences,
    small_vision,
    swin,
    transformers,
    vision,
)

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


def _pixels(name: str, size: int, random: np.random.Generator) -> Arrays:
    patches = random.standard_normal((1, 3, size // 16, size // 16), dtype=np.float32)
    noise = random.standard_normal((1, 3, size, size), dtype=np.float32)
    return {name: patches.repeat(16, axis=2).repeat(16, axis=3) + noise * np.float32(0.5)}


def _prompt(tokens: int, past: int, random: np.random.Generator) -> Arrays:
    head = transformers.GPT_WIDTH // transformers.GPT_HEADS
    return {
        "input_ids": random.integers(0, transformers.GPT_VOCABULARY, (1, tokens), dtype=np.int64),
        "position_ids": np.arange(past, past + tokens)[np.newaxis],
        **_cache(transformers.GPT_LAYERS, (1, transformers.GPT_HEADS, past, head), random),
    }


def _embedded(tokens: int, past: int, random: np.random.Generator) -> Arrays:
    head = transformers.LLAMA_WIDTH // transformers.LLAMA_HEADS
    return {
        "embeddings": random.standard_normal((1, tokens, transformers.LLAMA_WIDTH), dtype=np.float32),
        "position_ids": np.arange(past, past + tokens)[np.newaxis],
        **_cache(transformers.LLAMA_LAYERS, (1, transformers.LLAMA_GROUPS, past, head), random),
    }


def _cache(layers: int, shape: tuple[int, int, int, int], random: np.random.Generator) -> Arrays:
    """Keys and values of tokens before; none if there were none."""
    kinds = [f"past_{kind}_{layer}" for layer in range(layers) for kind in "kv"] if shape[2] else []
    return {kind: random.standard_normal(shape, dtype=np.float32) for kind in kinds}


def _text(random: np.random.Generator) -> Arrays:
    shape = (1, sequences.TEXT_TOKENS)
    return {"tokens": random.integers(0, sequences.TEXT_VOCABULARY, shape, dtype=np.int64)}


def _sound(random: np.random.Generator) -> Arrays:
    return {"sound": random.standard_normal((1, 1, sequences.SAMPLES), dtype=np.float32)}


MORE_SPECS: dict[str, ModelSpec] = {
    spec.name: spec
    for spec in (
        ModelSpec("vit_s", "ViT-S/16", transformers.vit_s, _image, 22_050_664, 9.20),
        ModelSpec(
            "gpt_prompt",
            "GPT-2 (6x512), 64",
            transformers.gpt_prompt,
            functools.partial(_prompt, 64, 0),
            27_631_616,
            2.99,
        ),
        ModelSpec(
            "gpt_step",
            "GPT-2 (6x512), step",
            transformers.gpt_step,
            functools.partial(_prompt, 1, 64),
            27_631_616,
            0.047,
        ),
        ModelSpec(
            "llama_prompt",
            "Llama (6x512), 64",
            transformers.llama_prompt,
            functools.partial(_embedded, 64, 0),
            16_620_032,
            2.18,
        ),
        ModelSpec(
            "llama_step",
            "Llama (6x512), step",
            transformers.llama_step,
            functools.partial(_embedded, 1, 64),
            16_620_032,
            0.034,
        ),
        ModelSpec("swin", "Swin (2, 2, 2, 2)", swin.swin, _image, 21_383_266, 6.15),
        ModelSpec("efficientnet_b0", "EfficientNet-B0", vision.efficientnet_b0, _image, 5_288_548, 0.77),
        ModelSpec("convnext", "ConvNeXt pico", vision.convnext, _image, 9_045_672, 2.73),
        ModelSpec("densenet121", "DenseNet-121", vision.densenet121, _image, 7_978_856, 5.67),
        ModelSpec("shufflenet_v2", "ShuffleNet-v2", vision.shufflenet_v2, _image, 2_278_604, 0.29),
        ModelSpec("resnext50", "ResNeXt-50", resnet.resnext50, _image, 25_028_904, 8.46),
        ModelSpec(
            "unet", "U-Net, 128x128", dense_prediction.unet, functools.partial(_pixels, "image", 128), 7_763_074, 6.04
        ),
        ModelSpec(
            "detector",
            "YOLOv8n-like, 320x320",
            dense_prediction.detector,
            functools.partial(_pixels, "images", 320),
            3_157_184,
            2.19,
        ),
        ModelSpec("text_encoder", "text CNN and GRU", sequences.text_encoder, _text, 4_070_848, 0.19),
        ModelSpec("tasnet", "Conv-TasNet-like", sequences.tasnet, _sound, 1_318_041, 2.60),
        ModelSpec("resnet18_int8", "ResNet-18, int8", quantized.resnet18_int8, _image, 11_684_712, 3.63),
    )
}


SERVER_SPECS: dict[str, ModelSpec] = {
    spec.name: spec
    for spec in (
        ModelSpec("vit_b", "ViT-B/16", transformers.vit_b, _image, 86_567_656, 35.1),
        ModelSpec("swin_t", "Swin-T", swin.swin_t, _image, 28_596_370, 8.98),
        ModelSpec("convnext_t", "ConvNeXt-T", vision.convnext_t, _image, 28_589_128, 8.91),
        ModelSpec("regnet_y", "RegNet-Y 1.6GF", vision.regnet_y, _image, 11_202_430, 3.24),
    )
}
"""Models of the sizes that servers run, measured in batches on GPUs and many cores, beside models of the other sets."""


def names() -> list[str]:
    """The names of the ten models, in the order of the tables."""
    return list(SPECS)


def more_names() -> list[str]:
    """The names of the second set, in the order of its table."""
    return list(MORE_SPECS)


def server_names() -> list[str]:
    """The names of the models of servers' sizes."""
    return list(SERVER_SPECS)


def known() -> list[str]:
    """The names of all sets."""
    return [*names(), *more_names(), *server_names()]


def spec(name: str) -> ModelSpec:
    """What is known about a model of any set."""
    return (SPECS | MORE_SPECS | SERVER_SPECS)[name]


def inputs(name: str, seed: int = 0) -> Arrays:
    """Seeded random inputs of a model, by input name."""
    return spec(name).make_inputs(np.random.default_rng(seed))


def build(name: str, seed: int = 0) -> onnx.ModelProto:
    """The ONNX model called `name`, from the cache folder if it was built before."""
    return onnx.load(path(name, seed))


def path(name: str, seed: int = 0) -> Path:
    """The file of a model in the cache folder, built first if it is not there."""
    file = CACHE_FOLDER / f"{name}-{seed}-{_source_key(spec(name).make.__module__)}.onnx"
    if not file.exists():
        CACHE_FOLDER.mkdir(parents=True, exist_ok=True)
        model = spec(name).make(seed)
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
def _source_key(family: str) -> str:
    """A short hash of the files that define a family of models."""
    digest = hashlib.sha256()
    for module in (builder, layers, sys.modules[family]):
        digest.update(Path(str(module.__file__)).read_bytes())
    return digest.hexdigest()[:12]
