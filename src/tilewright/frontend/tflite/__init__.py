"""The importer of TFLite models."""

from tilewright.frontend.tflite.importer import from_tflite
from tilewright.frontend.tflite.registry import converter

__all__ = ["converter", "from_tflite"]
