"""The import of torchvision where its compiled extension cannot be loaded: without its operators.

The wheels of torchvision on registries are linked against CUDA; beside a torch without CUDA their extension is missing,
and then not even the package can be imported, because it describes an operator that nobody has declared.
"""

from __future__ import annotations

from typing import Any

_DECLARED: list[Any] = []
"""The library that holds the declarations, as long as the process lives."""


def import_torchvision() -> Any:
    """The torchvision package, with its operators declared if its extension cannot be loaded."""
    import torch

    if not _DECLARED and not _extension_loads():
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _DECLARED.append(library)
    import torchvision

    return torchvision


def _extension_loads() -> bool:
    import importlib.util
    from pathlib import Path

    import torch

    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        return True  # importing it says what is missing
    try:
        for library in Path(found.origin).parent.glob("_C*.so"):
            torch.ops.load_library(str(library))
    except OSError:
        return False
    return True
