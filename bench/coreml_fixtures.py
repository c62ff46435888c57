"""Small Core ML models with expected results, for the tests: `python -m bench.coreml_fixtures FOLDER`.

Written by coremltools itself, from PyTorch modules, XGBoost and its own builders; what is expected is computed by
PyTorch, XGBoost or numpy. The folder of the tests is `tests/fixtures/coreml`.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench.coreml_writer import use_writer


def _save(folder: Path, name: str, model: Any, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
    target = folder / name
    if target.is_dir():
        shutil.rmtree(target)
    model.save(str(target))
    arrays = {f"in_{key}": value for key, value in inputs.items()} | {
        f"out_{key}": value for key, value in outputs.items()
    }
    np.savez(folder / f"{target.stem}.npz", **arrays)


def _modules() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    import torch
    from torch import nn

    torch.manual_seed(0)

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(4, 6, bidirectional=True, batch_first=True)
            self.gru = nn.GRU(12, 5, batch_first=True)
            self.last = nn.Linear(5, 3)

        def forward(self, x: Any) -> Any:
            return self.last(self.gru(self.lstm(x)[0])[0])

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(11, 8)
            self.parts = nn.Linear(8, 24)
            self.norm = nn.LayerNorm(8)

        def forward(self, x: Any) -> Any:
            value = self.table(x)
            heads = self.parts(value).reshape(1, 6, 3, 2, 4).permute(2, 0, 3, 1, 4)
            mixed = nn.functional.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
            return self.norm(value + nn.functional.gelu(mixed.transpose(1, 2).reshape(1, 6, 8)))

    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1),
        nn.BatchNorm2d(8),
        nn.Hardswish(),
        nn.Conv2d(8, 8, 3, padding=1, groups=8),
        nn.MaxPool2d(3, 2, 1, ceil_mode=True),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.ConvTranspose2d(8, 4, 3, 2, 1, output_padding=1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 5),
        nn.Softmax(1),
    )
    return {
        "convolutions": (network, (torch.randn(1, 3, 16, 16),)),
        "recurrent": (Recurrent(), (torch.randn(2, 5, 4),)),
        "attention": (Attention(), (torch.randint(0, 11, (1, 6)),)),
    }


def programs(folder: Path) -> None:
    """Packages of programs from PyTorch modules, in both precisions, one with compressed weights."""
    import coremltools as ct
    import coremltools.optimize.coreml as compression
    import torch

    for name, (module, values) in _modules().items():
        module.eval()
        with torch.no_grad():
            expected = module(*values).numpy()
            traced = torch.jit.trace(module, values)
        dtype = np.int32 if values[0].dtype == torch.int64 else np.float32
        data = values[0].numpy().astype(dtype)
        precisions = ("FLOAT32", "FLOAT16") if name == "convolutions" else ("FLOAT32",)
        for precision in precisions:
            model = ct.convert(
                traced,
                inputs=[ct.TensorType(name="x", shape=data.shape, dtype=dtype)],
                outputs=[ct.TensorType(name="y")],
                compute_precision=getattr(ct.precision, precision),
                minimum_deployment_target=ct.target.iOS16,
                skip_model_load=True,
            )
            end = "_half" if precision == "FLOAT16" else ""
            _save(folder, f"{name}{end}.mlpackage", model, {"x": data}, {"y": expected})
            if name == "recurrent":
                config = compression.OptimizationConfig(
                    compression.OpPalettizerConfig(mode="uniform", nbits=6, weight_threshold=16)
                )
                small = compression.palettize_weights(model, config)
                small.save(str(folder / "palettes.mlpackage"))


def small(folder: Path) -> None:
    """A program whose values all stand in it: a file without weights beside it."""
    import coremltools as ct
    import torch
    from torch import nn

    torch.manual_seed(1)
    module = nn.Sequential(
        nn.Conv2d(1, 1, 3, padding=1), nn.GELU(), nn.AvgPool2d(2), nn.Upsample(scale_factor=3), nn.Softmax(3)
    )
    data = torch.randn(1, 1, 6, 6)
    with torch.no_grad():
        expected = module.eval()(data).numpy()
        traced = torch.jit.trace(module, data)
    model = ct.convert(
        traced,
        inputs=[ct.TensorType(name="x", shape=data.shape)],
        outputs=[ct.TensorType(name="y")],
        compute_precision=ct.precision.FLOAT32,
        minimum_deployment_target=ct.target.iOS16,
        skip_model_load=True,
    )
    (folder / "small.mlmodel").write_bytes(model.get_spec().SerializeToString())
    np.savez(folder / "small.npz", in_x=data.numpy(), out_y=expected)


def trees(folder: Path) -> None:
    """Trees of XGBoost, which coremltools writes as a tree ensemble."""
    import coremltools as ct
    import xgboost

    random = np.random.default_rng(0)
    rows = random.standard_normal((200, 4))
    booster = xgboost.train(
        {"max_depth": 3, "objective": "reg:squarederror", "base_score": 0.5},
        xgboost.DMatrix(rows, rows[:, 0] * rows[:, 1]),
        4,
    )
    booster.feature_names = [f"f{place}" for place in range(4)]
    model = ct.converters.xgboost.convert(
        booster, feature_names=booster.feature_names, target="y", force_32bit_float=False
    )
    shown = rows[:10]
    expected = booster.predict(xgboost.DMatrix(shown, feature_names=booster.feature_names))
    _save(folder, "trees.mlmodel", model, {f"f{place}": shown[:, place] for place in range(4)}, {"y": expected})


def networks(folder: Path) -> None:
    """A network of the first version, with an image, preprocessing and classes."""
    import coremltools as ct
    from coremltools.models import datatypes
    from coremltools.models.neural_network import NeuralNetworkBuilder

    random = np.random.default_rng(1)
    weights = random.standard_normal((3, 3, 3, 4)).astype(np.float32)
    dense = random.standard_normal((3, 4 * 4 * 4)).astype(np.float32)
    builder = NeuralNetworkBuilder([("image", datatypes.Array(3, 8, 8))], [("scores", None)], mode="classifier")
    builder.set_pre_processing_parameters(
        image_input_names=["image"], is_bgr=True, red_bias=-1.0, green_bias=-2.0, blue_bias=-3.0, image_scale=1 / 64
    )
    builder.add_convolution(
        "conv", 3, 4, 3, 3, 2, 2, "same", 1, weights, None, False, input_name="image", output_name="a"
    )
    builder.add_activation("leaky", "LEAKYRELU", "a", "b", params=[0.1])
    builder.add_flatten("flat", 0, "b", "c")
    builder.add_inner_product("dense", dense, None, 64, 3, False, "c", "d")
    builder.add_softmax("softmax", "d", "scores")
    builder.set_class_labels(["cat", "dog", "owl"], "label", "scores")
    pixels = random.integers(0, 256, (1, 3, 8, 8), np.uint8)
    _save(
        folder,
        "classifier.mlmodel",
        ct.models.MLModel(builder.spec, skip_model_load=True),
        {"image": pixels},
        _classified(pixels, weights, dense),
    )


def _classified(pixels: Any, weights: Any, dense: Any) -> dict[str, Any]:
    """The network of `networks` by numpy."""
    image = pixels[0].astype(np.float32) / 64 + np.array([-3.0, -2.0, -1.0], np.float32).reshape(3, 1, 1)
    padded = np.pad(image, ((0, 0), (0, 1), (0, 1)))
    result = np.zeros((4, 4, 4), np.float32)
    for row in range(4):
        for column in range(4):
            window = padded[:, 2 * row : 2 * row + 3, 2 * column : 2 * column + 3]
            result[:, row, column] = np.einsum("chw,hwco->o", window, weights)
    result = np.where(result < 0, 0.1 * result, result)
    logits = dense @ result.ravel()
    chances = np.exp(logits - logits.max())
    chances /= chances.sum()
    return {"label": np.array(["cat", "dog", "owl"][int(chances.argmax())]), "scores": chances}


def write(folder: Path) -> None:
    """All models and what they should give, in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    programs(folder)
    small(folder)
    trees(folder)
    networks(folder)


def main(arguments: list[str]) -> None:
    """Write all fixtures into a folder."""
    use_writer()
    write(Path(arguments[0]))


if __name__ == "__main__":
    main(sys.argv[1:])
