"""What the user names on the command line, opened: a model to compile, or an exported library to load.

The compiler is not loaded for a library, nor for a model that the cache has.
"""

from __future__ import annotations

import argparse
import functools
from pathlib import Path

from tilewright.cli.input_ranges import ranges_in_file
from tilewright.cli.options import FLAGS, Array, compile_options, compile_target, load_inputs, parse_sizes
from tilewright.front import compile
from tilewright.frontend.formats import identify
from tilewright.options import CompileOptions
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


def is_onnx(path: Path) -> bool:
    """Whether a file is an ONNX model, whatever its name."""
    return not is_library(path) and identify(path).key == "onnx"


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
        return compile(options.model, compile_target(options), options=compile_options(options))
    _refuse_compile_options(options)
    loaded = load(options.model, require=require, trust=trust)
    if not isinstance(loaded, Executable):
        raise UserError(f"{options.model} holds functions, not a model", hint="load it in Python with tw.load")
    if options.threads is not None:
        loaded.set_num_threads(options.threads)
    return loaded


def _refuse_compile_options(options: argparse.Namespace) -> None:
    """A library is compiled: what would change its code is an error; on how many threads it runs may still be said."""
    chosen, usual = compile_options(options), CompileOptions()
    given = {flag: getattr(chosen, name) != getattr(usual, name) for name, flag in FLAGS.items() if name != "threads"}
    for option, is_given in {"--target": options.target is not None, **given}.items():
        if is_given:
            raise UserError(
                f"{options.model} is compiled already: {option} changes nothing any more",
                where=option,
                hint="give the model it was made from, or leave the option out",
            )


def chosen_inputs(executable: Executable, options: argparse.Namespace) -> dict[str, Array]:
    """Arrays for all inputs, as the options say; what an ONNX model does with whole numbers says which suit it."""
    sizes = parse_sizes(options.size)
    if not is_onnx(options.model):
        return load_inputs(executable.input_info, options.input, options.seed, sizes)
    ranges_of = functools.partial(ranges_in_file, options.model)
    return load_inputs(executable.input_info, options.input, options.seed, sizes, ranges_of)
