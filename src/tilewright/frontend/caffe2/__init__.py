"""The importer of Caffe2 models: `from_caffe2`."""

from tilewright.frontend.caffe2.importer import from_caffe2

__all__ = ["from_caffe2"]
