"""The importer of MXNet models: `from_mxnet`."""

from tilewright.frontend.mxnet.importer import from_mxnet

__all__ = ["from_mxnet"]
