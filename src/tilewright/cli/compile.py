"""`tilewright compile`: a model in, a shared library out, or a package for browsers."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from tilewright.backends.deployment import deployment_of
from tilewright.cli.compilations import open_compilation
from tilewright.cli.options import add_model, check_output, export_target
from tilewright.compiler import Compilation
from tilewright.lower.compile_times import slowest_kernels
from tilewright.lower.model import failed_templates
from tilewright.request import model_targets
from tilewright.runtime.core.artifact import ModelInfo
from tilewright.runtime.core.keys import signing_key
from tilewright.runtime.core.module import ExportOptions
from tilewright.support.text import human_bytes, human_seconds, plural
from tilewright.target.processors import processor_name, with_processor

DESCRIPTION = """\
Compile a model to a shared library with a C interface, and write its header beside it.

The library holds code, weights and the thread pool; it needs libc alone. Load it with tw.load(path), with
`tilewright run`, or from C and C++ through the header.

  tilewright compile resnet18.onnx
  tilewright compile resnet18.onnx -o build/resnet18.so --threads 1
  tilewright compile bert.onnx --shape input_ids=1,128 --shape attention_mask=1,128
  tilewright compile resnet18.onnx --target 'llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1'
  tilewright compile resnet18.onnx --target x86-64 --cpus x86-64-v2,x86-64-v3,x86-64-v4
  tilewright compile resnet18.onnx --target windows-x86-64 -o resnet18.dll
  tilewright compile resnet18.onnx --target android-arm64 -o app/src/main
  tilewright compile resnet18.onnx --target cuda
  tilewright compile resnet18.onnx --name classifier --sign release.key

For the target wasm it is a folder: a package of ES modules for browsers and Node (docs/web.md). So it is for the target
webgpu where the output has no suffix: the package then runs on a GPU, and by WebAssembly where there is none.

  tilewright compile resnet18.onnx --target wasm -o web/resnet18
  tilewright compile resnet18.onnx --target webgpu -o web/resnet18

For microcontrollers it is a folder of C sources, or a static library (docs/micro.md).

  tilewright compile keywords.onnx --target cortex-m4 -o firmware/keywords
  tilewright compile keywords.onnx --target cortex-m55 -o firmware/libkeywords.a

Compiled kernels are kept in a cache: compiling the same model again takes a fraction of the time.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_model(parser)
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE.so",
        help="the library to write, or the folder of a package (default: the model's name with the suffix .so, or "
        "without one, in the current folder)",
    )
    parser.add_argument(
        "--name",
        metavar="NAME",
        help="what the library's symbols begin with (default: its file's name without the suffix)",
    )
    parser.add_argument("--sign", type=Path, metavar="KEY", help="sign it with this key (see `tilewright key`)")


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    target = export_target(options)
    host = model_targets(target)[1]
    deployment = deployment_of(host)
    output: Path = options.output or Path(options.model.with_suffix(deployment.suffix).name)
    check_output(output, options.model, f"model{deployment.suffix}", is_folder=deployment.is_folder)
    if options.model.exists():
        deployment.check_tools(host)
    # Before the work, so that a key that is none is said at once.
    key = None if options.sign is None else signing_key(options.sign)
    start = time.perf_counter()
    # A model and what the passes have made of it are let go before the library is put together.
    compilation = open_compilation(options, target).in_order()
    model, kernels, remarks = _kernels(compilation)
    compilation.export_library(output, name=options.name, sign=key)
    seconds = human_seconds(time.perf_counter() - start)
    files = output.rglob("*") if output.is_dir() else [output]
    size = human_bytes(sum(file.stat().st_size for file in files if file.is_file()))
    print(f"{output}: {size}, compiled for {compilation.target.describe()} in {seconds}")
    print(f"  {kernels}")
    workspace = human_bytes(model.workspace_bytes)
    if model.symbols:
        workspace = f"of {plural(len(model.slots), 'slot')}, sized by {', '.join(model.symbols)}"
    print(f"  workspace {workspace}")
    for line in deployment.details(output, ExportOptions(options.name, key)):
        print(f"  {line}")
    levels = [compilation.host, *(with_processor(compilation.host, cpu) for cpu in options.cpus[1:])]
    if options.cpus:
        print(f"  code for {', '.join(processor_name(level.cpu, level.features) for level in levels)}")
    device = compilation.artifact().device
    on_host = [kernel for kernel in device.kernels if kernel.on_host] if device is not None else []
    for kernel in on_host:
        print(f"  on the host: {kernel.symbol} ({kernel.on_host.splitlines()[0]})")
    for remark in remarks:
        print(f"  {remark}")
    for label, infos in (("input", model.inputs), ("output", model.outputs)):
        for info in infos:
            print(f"  {label:6} {info}")
    return 0


def _kernels(compilation: Compilation) -> tuple[ModelInfo, str, list[str]]:
    """The tables of the model, how many kernels it has, and what is to be said of single ones."""
    lowered, compiled = compilation.lowered, compilation.compiled_kernels
    count = (
        f"{plural(len(lowered.kernels), 'distinct kernel')} in {plural(sum(lowered.uses_by_symbol().values()), 'step')}"
    )
    remarks = [f"a plainer schedule: {symbol} ({reason})" for symbol, reason in failed_templates(compiled).items()]
    remarks += [f"slow to compile: {slow}" for slow in slowest_kernels(compiled, lowered.nodes_by_symbol())]
    remarks += [f"far from its bound: {far}" for far in lowered.far_kernels(compiled)]
    return lowered.info, count, remarks
