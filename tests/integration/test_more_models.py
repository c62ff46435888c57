"""Tiny variants of the second set of models, compiled and compared with onnxruntime: no surprise outside the ten."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import tilewright as tw
from bench.zoo import dense_prediction, quantized, resnet, sequences, swin, transformers, vision
from tests.grids import rare
from tilewright.cli import measure, peers

MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "vit": lambda: transformers.vit("vit", 0, layers=1, width=64, heads=2, size=64),
    "gpt_prompt": lambda: transformers.gpt("gpt_prompt", 0, tokens=6, past=0, layers=1, vocabulary=50),
    "gpt_step": lambda: transformers.gpt("gpt_step", 0, tokens=1, past=6, layers=1, vocabulary=50),
    "llama_prompt": lambda: transformers.llama("llama_prompt", 0, tokens=6, past=0, layers=1),
    "llama_step": lambda: transformers.llama("llama_step", 0, tokens=1, past=6, layers=1),
    "swin": lambda: swin.swin_of("swin", 0, size=56, width=32, depths=(2, 2)),
    "efficientnet": lambda: vision.efficientnet("efficientnet", 0, 32, ((1, 3, 16, 1, 1), (6, 5, 16, 1, 1))),
    "convnext": lambda: vision.convnext_of("convnext", 0, 32, (1, 1), (16, 32)),
    "densenet": lambda: vision.densenet("densenet", 0, 32, (2, 1)),
    "shufflenet": lambda: vision.shufflenet("shufflenet", 0, 32, ((12, 2),)),
    "resnext": lambda: resnet.resnext("resnext", 0, 32, (1, 1)),
    "unet": lambda: dense_prediction.unet_of("unet", 0, size=16, width=8, levels=2),
    "detector": lambda: dense_prediction.detector_of("detector", 0, size=64, width=4),
    "text_encoder": lambda: sequences.text_encoder_of("text_encoder", 0, tokens=6, width=16, vocabulary=20),
    "tasnet": lambda: sequences.tasnet_of("tasnet", 0, 160, width=8, inner=16, repeats=1, blocks=2),
    "resnet_int8": lambda: quantized.resnet_int8("resnet_int8", 0, size=32, blocks=(1, 1)),
}

HEAVY = ("vit", "unet", "resnet_int8", "densenet", "gpt_prompt")
"""Models whose operators others have too."""


def inputs_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}
    for item in model.graph.input:
        kind = item.type.tensor_type
        shape = tuple(dim.dim_value for dim in kind.shape.dim)
        whole = kind.elem_type == onnx.TensorProto.INT64
        arrays[item.name] = random.integers(0, 20, shape) if whole else random.standard_normal(shape, dtype=np.float32)
    return arrays


@pytest.mark.parametrize("name", [*(name for name in MODELS if name not in HEAVY), *rare(*HEAVY)])
def test_a_tiny_variant_agrees_with_onnxruntime(name: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    inputs = inputs_of(model)
    onnx.save(model, tmp_path / "model.onnx")
    expected = peers.onnxruntime(tmp_path / "model.onnx", 1, inputs)()
    executable = tw.compile(tw.frontend.from_onnx(model), target="native", threads=1)
    for actual, wanted in zip(executable.run(inputs), expected, strict=True):
        assert np.shape(actual) == wanted.shape
        if wanted.size:
            assert measure.max_relative_error([actual], [wanted]) <= 1e-4
