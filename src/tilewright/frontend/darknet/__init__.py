"""The importer of Darknet models: `from_darknet`."""

from tilewright.frontend.darknet.importer import from_darknet

__all__ = ["from_darknet"]
