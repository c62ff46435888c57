"""The importer of Caffe models: `from_caffe`."""

from tilewright.frontend.caffe.importer import from_caffe

__all__ = ["from_caffe"]
