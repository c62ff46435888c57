"""How quantisation runs models: by a function that compiles them, which the compiler above gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from tilewright.ir.function import IRModule

CompileModule: TypeAlias = Callable[[IRModule], Callable[..., Any]]
"""A module in, something that is called with the inputs and gives the outputs."""
