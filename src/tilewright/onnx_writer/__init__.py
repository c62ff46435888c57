"""Floor 5: graphs written as ONNX models: `to_onnx`."""

from tilewright.onnx_writer import (  # noqa: F401  (they register how operators are written)
    rules,
    rules_recurrent,
    rules_shape,
    rules_trees,
    rules_values,
)
from tilewright.onnx_writer.writer import to_onnx

__all__ = ["to_onnx"]
