"""PyTorch's own files: exported programs (`torch.export.save`) and TorchScript archives (`torch.jit.save`)."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.frontend.torch.importer import from_torch, load_torch
from tilewright.ir.function import IRModule
from tilewright.support.errors import UserError

Shapes = Mapping[str, Sequence[int | str | None]]


def from_exported_file(source: str | os.PathLike[str] | bytes, shapes: Shapes | None = None) -> IRModule:
    """Import an exported program, which has the sizes that it was exported with."""
    torch = load_torch()
    if shapes:
        raise UserError(
            "an exported PyTorch program has its sizes already",
            hint="leave sizes open when it is exported: torch.export.export(..., dynamic_shapes=...)",
        )
    return from_torch(_read(source, torch.export.load, "an exported PyTorch program"))


def from_script_file(source: str | os.PathLike[str] | bytes, shapes: Shapes | None = None) -> IRModule:
    """Import a TorchScript archive, for the sizes of its inputs that `shapes` says; they are of float32."""
    torch = load_torch()
    script = _read(source, lambda stream: torch.jit.load(stream), "a TorchScript archive").eval()
    names = [argument.name for argument in script.forward.schema.arguments[1:]]
    given = dict(shapes or {})
    unknown = given.keys() - set(names)
    if unknown:
        raise UserError(f"the model has no input '{min(unknown)}'", hint=f"it has: {', '.join(names)}")
    examples = []
    for name in names:
        sizes = [size for size in given.get(name, ()) if isinstance(size, int)]
        if name not in given or len(sizes) != len(given[name]):
            raise UserError(
                f"a TorchScript archive does not say the sizes of its input '{name}'",
                hint=f"give the sizes of all inputs ({', '.join(names)}) as numbers: shapes={{{name!r}: (1, 3, 224, "
                f"224)}}, --shape {name}=1,3,224,224; or from_torch(torch.jit.load(path), examples) for other types",
            )
        examples.append(torch.zeros(sizes))
    return from_torch(script, tuple(examples))


def _read(source: str | os.PathLike[str] | bytes, load: Callable[[Any], Any], what: str) -> Any:
    try:
        # Not by its name: torch looks at the end of that.
        return load(io.BytesIO(source if isinstance(source, bytes) else Path(source).read_bytes()))
    except OSError as error:
        raise UserError(f"cannot read {source!r}: {error.strerror or error}") from error
    except Exception as error:
        # Torch raises errors of many kinds for archives that are damaged, or of another version.
        reason = str(error).strip().split("\n")[0]
        where = "the bytes" if isinstance(source, bytes) else os.fspath(source)
        raise UserError(
            f"torch cannot read {where} as {what}: {type(error).__name__}: {reason}",
            hint="save it again with the version of torch that is installed",
        ) from error
