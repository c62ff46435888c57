"""The importer of Core ML models: `from_coreml`."""

from tilewright.frontend.coreml.importer import from_coreml

__all__ = ["from_coreml"]
