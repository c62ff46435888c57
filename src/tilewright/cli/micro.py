"""`tilewright micro`: a model on a board: built, loaded, run and profiled, on an emulator or through a debugger."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.backends.micro.board import Board, board_of, processor_of
from tilewright.backends.micro.build import build_program
from tilewright.backends.micro.gdb import GdbRemote
from tilewright.backends.micro.program import Program, read_program
from tilewright.backends.micro.remote import RemoteRun, emulator, load_program, run_remotely
from tilewright.backends.micro.weights import weight_bytes
from tilewright.cli.compilations import open_compilation
from tilewright.cli.options import add_model, load_inputs, natural_int
from tilewright.compiler import Compilation
from tilewright.runtime.core.artifact import ModelInfo
from tilewright.runtime.core.header import library_name
from tilewright.support.errors import UserError
from tilewright.support.files import replacing
from tilewright.support.text import human_bytes, table

Array = npt.NDArray[Any]

DESCRIPTION = """\
Build a model for a board with a microcontroller and say what memory it takes; run it there and profile its steps.

  tilewright micro keywords.tflite --board mps2-an386
  tilewright micro keywords.tflite --board mps2-an386 --run input.npz --profile
  tilewright micro keywords.tflite --board mps3-an547 --run --gdb localhost:3333

Boards are those that QEMU has (docs/micro.md); --target names another processor of the same family. Without --gdb the
program runs in QEMU, which counts instructions. With it, it is loaded through a debugger's server (OpenOCD, pyOCD,
J-Link, QEMU), and cycles are counted where the processor has a counter.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_model(parser)
    parser.add_argument("--board", metavar="NAME", default="mps2-an386", help="the board (default: mps2-an386)")
    parser.add_argument(
        "--run",
        nargs="?",
        const="",
        metavar="FILE.npz",
        help="run it once, on the arrays of a file by the names of inputs, else on random values",
    )
    parser.add_argument("--seed", type=natural_int, default=0, metavar="N", help="seed of random values (default: 0)")
    parser.add_argument("--profile", action="store_true", help="show what each step took (runs it)")
    parser.add_argument("--gdb", metavar="HOST:PORT", help="load and run it through this debugger's server")
    parser.add_argument("--output-file", type=Path, metavar="FILE.npz", help="save the outputs, by name (runs it)")
    parser.add_argument("-o", "--output", type=Path, metavar="FOLDER", help="keep the sources and the program here")


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    if options.target is None:
        options.target = processor_of(options.board)
    compilation = open_compilation(options)
    runs = options.run is not None or options.profile or options.output_file is not None
    with ExitStack() as around:
        work = around.enter_context(tempfile.TemporaryDirectory(prefix="tilewright-"))
        folder: Path = options.output or Path(work) / library_name(options.model)
        path, program, board = _built(compilation, folder)
        print(_sizes(compilation, program, path if options.output else None))
        if runs:
            model = compilation.lowered.info
            inputs = load_inputs(model.inputs, [options.run] if options.run else [], options.seed, {})
            _report(options, model, _run(options, path, program, board, model, inputs))
    return 0


def _built(compilation: Compilation, folder: Path) -> tuple[Path, Program, Board]:
    """The program of a model, built in a folder."""
    if compilation.target.kind != "micro":
        raise UserError(
            f"the target {compilation.target} is no microcontroller", where="--target", hint="cortex-m4, rv32imac, ..."
        )
    compilation.export_library(folder)
    artifact = compilation.artifact()
    board = board_of(artifact.triple, artifact.cpu, artifact.features)
    path = build_program(folder / "example", library_name(folder), board, "remote.c")
    return path, read_program(path), board


def _sizes(compilation: Compilation, program: Program, path: Path | None) -> str:
    """The table of flash and RAM."""
    model = compilation.artifact().model
    assert model is not None
    weights = weight_bytes(model)
    ports = sum(info.nbytes for info in (*model.inputs, *model.outputs))
    of_ram = f"arena {human_bytes(model.workspace_bytes)}, inputs and outputs {human_bytes(ports)}; without the stack"
    rows = [
        ["flash", human_bytes(program.flash_bytes), f"weights {human_bytes(weights)}, the rest is code"],
        ["RAM", human_bytes(program.ram_bytes), of_ram],
    ]
    where = f"{path}: " if path is not None else ""
    return f"{where}built for {compilation.target.describe()}\n{table(['memory', 'bytes', 'of them'], rows)}"


def _run(
    options: argparse.Namespace,
    path: Path,
    program: Program,
    board: Board,
    model: ModelInfo,
    inputs: Mapping[str, Array],
) -> RemoteRun:
    if options.gdb is None:
        with emulator(board, path) as link:
            return run_remotely(link, program, board, model, inputs)
    link = GdbRemote.connect(options.gdb)
    try:
        load_program(link, program, board)
        return run_remotely(link, program, board, model, inputs)
    finally:
        link.close()


def _report(options: argparse.Namespace, model: ModelInfo, run: RemoteRun) -> None:
    for info in model.outputs:
        flat = run.outputs[info.name].reshape(-1)
        print(f"{info}\n  {np.array2string(flat, precision=5, separator=', ', threshold=8, edgeitems=4)}")
    total = sum(run.counts)
    if options.profile:
        rows = []
        for step, count in zip(model.steps, run.counts, strict=True):
            kernel = model.kernels[step.kernel]
            rows.append([f"{count:,}", f"{100 * count / max(total, 1):.1f}%", ", ".join(kernel.nodes) or kernel.symbol])
        print(table([run.unit, "share", "nodes"], rows))
    print(f"{total:,} {run.unit} in {len(run.counts)} steps")
    if options.output_file is not None:
        with replacing(options.output_file) as temporary, temporary.open("wb") as stream:
            np.savez(stream, **run.outputs)  # type: ignore[arg-type]
        print(f"outputs written to {options.output_file}")
