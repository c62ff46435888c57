"""Import of Keras models: `.keras` archives and `.h5` files, read without Keras."""

from tilewright.frontend.keras.importer import from_keras
from tilewright.frontend.keras.registry import register_layer

__all__ = ["from_keras", "register_layer"]
