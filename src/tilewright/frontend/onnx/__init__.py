"""The ONNX importer: `from_onnx`."""

from tilewright.frontend.onnx.importer import from_onnx

__all__ = ["from_onnx"]
