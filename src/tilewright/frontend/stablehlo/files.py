"""Files of StableHLO as the door of all formats reads them: text or portable bytecode, with their own sizes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tilewright.frontend.stablehlo.importer import from_stablehlo
from tilewright.ir.function import IRModule
from tilewright.support.errors import UserError


def from_stablehlo_file(
    source: str | os.PathLike[str] | bytes, shapes: Mapping[str, Sequence[int | str | None]] | None = None
) -> IRModule:
    """Import a file by its path, or by its bytes."""
    if shapes:
        raise UserError(
            "a StableHLO program has its sizes already",
            hint="export it for other sizes, or with symbolic ones: jax.export.symbolic_shape",
        )
    return from_stablehlo(source if isinstance(source, bytes) else Path(source))
