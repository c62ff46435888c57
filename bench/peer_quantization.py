"""Benchmark models in eight bits as onnxruntime's own tool quantises them: what the peers of int8 models run.

QuantizeLinear and DequantizeLinear pairs (QDQ), unsigned bytes for activations, signed bytes by channel for weights,
ranges by their ends on the calibration data. OpenVINO reads the same file: it computes such pairs in integers.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import onnx

from bench import zoo

EXAMPLES = 4
"""Runs that ranges are taken from, ours and the peers'."""


def calibration(name: str, seed: int = 0) -> list[zoo.Arrays]:
    """The inputs that a model is calibrated on: none of them is the one that it is timed with."""
    return [zoo.inputs(name, seed + 1 + example) for example in range(EXAMPLES)]


def path(name: str, seed: int = 0) -> Path:
    """The file of a quantised benchmark model beside that of the float model, made first if it is not there."""
    source = zoo.path(name, seed)
    file = source.with_name(f"{source.stem}-qdq.onnx")
    if not file.exists():
        with tempfile.TemporaryDirectory(dir=source.parent) as folder:
            os.replace(_quantized(source, calibration(name, seed), Path(folder)), file)
    return file


class _Reader:
    """Calibration data one run at a time, None at the end."""

    def __init__(self, feeds: list[zoo.Arrays]) -> None:
        self._feeds = iter(feeds)

    def get_next(self) -> dict[str, np.ndarray] | None:
        """The inputs of the next run."""
        return next(self._feeds, None)


def _quantized(source: Path, feeds: list[zoo.Arrays], folder: Path) -> Path:
    from onnxruntime import quantization
    from onnxruntime.quantization import shape_inference

    prepared, result = folder / "prepared.onnx", folder / "quantized.onnx"
    # Batch normalisation goes into weights first: the tool quantises what it finds.
    shape_inference.quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
    quantization.quantize_static(
        onnx.load(prepared),
        result,
        _Reader(feeds),
        quant_format=quantization.QuantFormat.QDQ,
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
        per_channel=True,
    )
    return result
