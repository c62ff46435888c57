"""Files of weights without a graph: `read_weights` gives named tensors of safetensors and GGUF files."""

from __future__ import annotations

import os

from tilewright.frontend.sample import Sample
from tilewright.frontend.weights.gguf import read_gguf
from tilewright.frontend.weights.safetensors import read_safetensors
from tilewright.frontend.weights.weight import Weight
from tilewright.ir.function import IRModule
from tilewright.support.errors import UserError

__all__ = ["Weight", "read_weights", "refuse_weights"]


def read_weights(source: str | os.PathLike[str] | bytes) -> dict[str, Weight]:
    """The named tensors of a safetensors or GGUF file (a path, or its bytes)."""
    sample = Sample(source)
    if sample.is_folder:
        raise UserError(f"{sample} is a folder, not a file of weights")
    return read_gguf(sample) if sample.head.startswith(b"GGUF") else read_safetensors(sample)


def refuse_weights(source: str | os.PathLike[str] | bytes, shapes: object = None) -> IRModule:
    """A file of weights is no model: says what can be done with it."""
    raise UserError(
        f"{Sample(source)} holds weights without a graph: it cannot be compiled by itself",
        hint="tw.frontend.read_weights(path) gives its tensors by name; import the model itself",
    )
