"""The importer of ncnn models: `from_ncnn`."""

from tilewright.frontend.ncnn.importer import from_ncnn

__all__ = ["from_ncnn"]
