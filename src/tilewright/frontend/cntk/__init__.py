"""The importer of CNTK models: `from_cntk`."""

from tilewright.frontend.cntk.importer import from_cntk

__all__ = ["from_cntk"]
