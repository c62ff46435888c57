"""Floor 5: graphs written as ONNX models: `to_onnx`."""

from tilewright.onnx_writer import rules  # noqa: F401  (registers how operators are written)
from tilewright.onnx_writer.writer import to_onnx

__all__ = ["to_onnx"]
