"""`tilewright compile`: a model in, a shared library out."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from tilewright.cli.options import add_model, parse_shapes
from tilewright.compiler import Compilation
from tilewright.support.text import human_bytes, human_seconds

_DESCRIPTION = """\
Compile a model to a shared library with a C interface, and write its header beside it.

The library holds code, weights and the thread pool; it needs libc alone. Load it with tw.load(path), with
`tilewright run`, or from C and C++ through the header.
"""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "compile",
        help="compile a model to a shared library",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model(parser)
    parser.add_argument("-o", "--output", type=Path, help="the library to write (default: MODEL with the suffix .so)")
    parser.set_defaults(command=_compile)


def _compile(options: argparse.Namespace) -> int:
    output = options.output or options.model.with_suffix(".so").name
    start = time.perf_counter()
    compilation = Compilation(options.model, options.target, options.threads, shapes=parse_shapes(options.shape))
    compilation.export_library(output)
    seconds = human_seconds(time.perf_counter() - start)
    model = compilation.lowered.info
    size = human_bytes(Path(output).stat().st_size)
    print(f"{output}: {size}, compiled for {compilation.target.describe()} in {seconds}")
    print(f"  {len(compilation.kernels)} distinct kernels in {len(model.steps)} steps")
    print(f"  workspace {human_bytes(model.workspace_bytes)}, header {Path(output).with_suffix('.h')}")
    for label, infos in (("input", model.inputs), ("output", model.outputs)):
        for info in infos:
            print(f"  {label:6} {info}")
    return 0
