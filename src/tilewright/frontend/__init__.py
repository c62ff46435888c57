"""Floor 5: importers of framework models into the graph IR."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilewright.frontend.onnx import from_onnx
    from tilewright.frontend.torch import from_torch

__all__ = ["from_onnx", "from_torch"]

_HOMES = {"from_onnx": "tilewright.frontend.onnx", "from_torch": "tilewright.frontend.torch"}
"""Where each importer lives: loaded at first use, so that importing the package stays quick."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
