"""The importer of TensorFlow models."""

from tilewright.frontend.tensorflow.importer import from_tensorflow
from tilewright.frontend.tensorflow.registry import converter

__all__ = ["converter", "from_tensorflow"]
