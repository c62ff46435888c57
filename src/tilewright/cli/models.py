"""What the user names on the command line, opened: an ONNX model to compile, or an exported library to load.

The compiler is not loaded for a library, nor for a model that the cache has.
"""

from __future__ import annotations

import argparse
import functools
from pathlib import Path
from typing import Any

from tilewright.cli.input_ranges import ranges_in_file
from tilewright.cli.options import Array, load_inputs, parse_shapes, parse_sizes
from tilewright.front import compile
from tilewright.runtime.core.executor import Executable
from tilewright.runtime.core.load import load
from tilewright.support.errors import UserError

_ELF_MAGIC = b"\x7fELF"


def is_library(path: Path) -> bool:
    """Whether a file is a shared library (whatever its name), or would be by its name if it were there."""
    try:
        with path.open("rb") as stream:
            return stream.read(len(_ELF_MAGIC)) == _ELF_MAGIC
    except OSError:
        return path.suffix == ".so"


def as_asked(options: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `compile` that the options are."""
    return {
        "model": options.model,
        "target": options.target or "native",
        "threads": options.threads,
        "shapes": parse_shapes(options.shape),
        "winograd": options.winograd,
        "infinities": options.infinities,
        "unchecked": options.unchecked,
        "database": options.database,
        "precision": options.precision,
    }


def open_executable(options: argparse.Namespace) -> Executable:
    """The executable of a model file, compiled now, or of an exported library."""
    require, trust = getattr(options, "require", None), getattr(options, "trust", None)
    if not is_library(options.model):
        if require is not None or trust is not None:
            raise UserError(
                f"{options.model} is a model, not a library: it has no seal",
                where="--require" if require is not None else "--trust",
                hint="compile it with `tilewright compile --sign`",
            )
        return compile(**as_asked(options))
    given = {
        "--target": options.target,
        "--shape": options.shape,
        "--database": options.database,
        "--precision": options.precision != "float32",
        "--no-winograd": not options.winograd,
        "--infinities": options.infinities,
        "--unchecked": options.unchecked,
    }
    for option, value in given.items():
        if value:
            raise UserError(
                f"{options.model} is compiled already: {option} changes nothing any more",
                where=option,
                hint="give the model it was made from, or leave the option out",
            )
    loaded = load(options.model, require=require, trust=trust)
    if not isinstance(loaded, Executable):
        raise UserError(f"{options.model} holds functions, not a model", hint="load it in Python with tw.load")
    if options.threads is not None:
        loaded.set_num_threads(options.threads)
    return loaded


def chosen_inputs(executable: Executable, options: argparse.Namespace) -> dict[str, Array]:
    """Arrays for all inputs, as the options say; what an ONNX model does with whole numbers says which suit it."""
    sizes = parse_sizes(options.size)
    if is_library(options.model):
        return load_inputs(executable.input_info, options.input, options.seed, sizes)
    ranges_of = functools.partial(ranges_in_file, options.model)
    return load_inputs(executable.input_info, options.input, options.seed, sizes, ranges_of)
