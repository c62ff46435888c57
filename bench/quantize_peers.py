"""Models quantised by other tools on the same calibration data: onnxruntime's quantiser and PyTorch's (pt2e)."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

CALIBRATED = 150
"""Images that the other tools calibrate on: more of them take minutes and change nothing."""
Feed = Mapping[str, np.ndarray]


def onnxruntime_static(model: bytes, feeds: Sequence[Feed], folder: Path) -> bytes:
    """A model quantised by onnxruntime: uint8 activations, int8 weights by channel, ranges by minimum and maximum."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        """The feeds, one after another."""

        def __init__(self) -> None:
            self._feeds = iter(feeds)

        def get_next(self) -> Feed | None:
            """The next feed."""
            return next(self._feeds, None)

    paths = [folder / name for name in ("model.onnx", "prepared.onnx", "quantized.onnx")]
    paths[0].write_bytes(model)
    logging.getLogger().setLevel(logging.ERROR)
    quant_pre_process(str(paths[0]), str(paths[1]), skip_symbolic_shape=True)
    quantize_static(
        str(paths[1]),
        str(paths[2]),
        Reader(),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )
    return paths[2].read_bytes()


def torch_pt2e(network: Any, data: np.ndarray) -> tuple[Any, Any]:
    """A network quantised by torch's export quantisation: the module that torch runs, and the exported program."""
    import torch
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as inductor

    batch = torch.export.Dim("batch", min=1, max=1 << 20)
    example = (torch.from_numpy(data[:4]),)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = torch.export.export(network, example, dynamic_shapes=({0: batch},)).module()
        config = inductor.get_default_x86_inductor_quantization_config()
        prepared = prepare_pt2e(exported, inductor.X86InductorQuantizer().set_global(config))
        with torch.no_grad():
            for part in np.split(data, 10):
                prepared(torch.from_numpy(part))
        converted = convert_pt2e(prepared)
        return converted, torch.export.export(converted, example, dynamic_shapes=({0: batch},))
