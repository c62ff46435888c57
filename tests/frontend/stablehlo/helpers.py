"""Programs in a few lines of StableHLO, run by the graph interpreter."""

from __future__ import annotations

from tilewright.frontend import from_stablehlo
from tilewright.graph.interpreter import evaluate


def run(text, *arrays):
    """What a program gives: an array, or a tuple of them."""
    return evaluate(from_stablehlo(text), *arrays)


def body(signature, *lines):
    """The text of a module of one function: `signature` is what stands between its name and its body."""
    return "module @m {\n  func.func public @main" + signature + " {\n    " + "\n    ".join(lines) + "\n  }\n}\n"
