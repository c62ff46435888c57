"""`tilewright inspect`: print any stage of a compilation."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from tilewright.cli.compilations import open_compilation
from tilewright.cli.models import chosen_inputs
from tilewright.cli.options import add_inputs, add_model
from tilewright.compiler import Compilation
from tilewright.graph.text import to_text
from tilewright.ir.function import IRModule
from tilewright.lower.constants import ConstantStore
from tilewright.lower.kernel import Kernel
from tilewright.runtime.vm.disassemble import disassemble
from tilewright.support.errors import UserError
from tilewright.support.progress import Progress
from tilewright.support.text import human_bytes, human_count, human_seconds, table
from tilewright.tir.passes.partition_loops import OPEN_TILES
from tilewright.tir.script import to_script

Result = TypeVar("Result")

_SYMBOLS_AS = 1
"""What symbolic extents count as in the list of kernels."""
_KERNEL_STAGES = ("kernels", "compile", "bounds", "te", "templates", "tir", "lowered", "source", "llvm", "asm")

DESCRIPTION = """\
Print a stage of the compilation of a model.

  imported   the graph as the importer made it
  graph      the graph after all graph passes: fused groups, each one kernel
  kernels    a table of the kernels: symbol, uses, work, the model's own node names
  compile    what compiling each kernel took: time (unless it was in the cache), size of code, bodies of tiles
  bounds     how far each kernel is from what the processor can do, by an estimate, and why (CPUs)
  te         the loop program of each kernel before scheduling
  templates  which schedule templates each kernel has, and why others were passed over
  tir        the scheduled loop program of each kernel (parses back to the same IR), its templates in comments
  lowered    the flat loops that the code generator takes
  source     the text of kernels as their compiler takes it (LLVM IR, C, OpenCL C, CUDA C++)
  llvm       LLVM IR before LLVM's optimiser
  asm        assembly
  failures   kernels whose schedule template failed, and why: they have a plainer schedule
  memory     the memory plan: where every value lives, peak against the lower bound
  vm         the bytecode of a model with control flow, data or host functions
  profile    time per kernel, measured on this machine

  tilewright inspect resnet18.onnx
  tilewright inspect resnet18.onnx --stage tir --kernel /conv1/Conv > conv1.py
  tilewright inspect resnet18.onnx --stage asm --kernel tw_nn_conv2d --target 'llvm -mtriple=aarch64-linux-gnu'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_model(parser)
    parser.add_argument(
        "--stage", default="kernels", choices=list(_STAGES), metavar="STAGE", help="what to print (default: kernels)"
    )
    parser.add_argument(
        "--kernel",
        default="",
        metavar="TEXT",
        help=f"only kernels whose symbol or nodes contain TEXT (stages {', '.join(_KERNEL_STAGES)})",
    )
    add_inputs(parser)


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    if options.kernel and options.stage not in _KERNEL_STAGES:
        raise UserError(
            f"the stage {options.stage} is not about single kernels",
            where="--kernel",
            hint=f"it goes with {', '.join(_KERNEL_STAGES)}",
        )
    compilation = open_compilation(options)
    print(_STAGES[options.stage](compilation, options))
    return 0


def _chosen(compilation: Compilation, options: argparse.Namespace) -> list[Kernel]:
    nodes = compilation.lowered.nodes_by_symbol()
    text = options.kernel
    chosen = [k for k in compilation.kernels if text in k.symbol or any(text in node for node in nodes[k.symbol])]
    if not chosen:
        raise UserError(f"no kernel matches {text!r}", where="--kernel", hint="--stage kernels lists them")
    return chosen


def _alone(compilation: Compilation, options: argparse.Namespace) -> list[Kernel]:
    """The chosen kernels, and in the place of some that share launches each of them."""
    found = [part for kernel in _chosen(compilation, options) for part in kernel.alone]
    return list({kernel.symbol: kernel for kernel in found}.values())


def _kernels(compilation: Compilation, options: argparse.Namespace) -> str:
    nodes = compilation.lowered.nodes_by_symbol()
    uses = compilation.lowered.uses_by_symbol()
    rows = [
        [
            kernel.symbol,
            str(uses[kernel.symbol]),
            human_count(kernel.work.at(_SYMBOLS_AS)[0]),
            human_bytes(kernel.work.at(_SYMBOLS_AS)[1]),
            ", ".join(nodes[kernel.symbol][:4]) + (", ..." if len(nodes[kernel.symbol]) > 4 else ""),
        ]
        for kernel in _chosen(compilation, options)
    ]
    return table(["kernel", "uses", "FLOP", "bytes", "nodes"], rows)


def _bounds(compilation: Compilation, options: argparse.Namespace) -> str:
    nodes, uses = compilation.lowered.nodes_by_symbol(), Counter(compilation.lowered.uses_by_symbol())
    pairs = list(zip(_alone(compilation, options), _each(compilation, options, compilation.bound_of), strict=True))
    total = sum(bound.estimate * uses[kernel.symbol] for kernel, bound in pairs) or 1.0
    rows = [
        [
            kernel.symbol,
            human_count(int(bound.least)),
            f"{bound.factor:.1f}",
            f"{bound.estimate * uses[kernel.symbol] / total:.1%}",
            ", ".join(choice.name for choice in compilation.templates_of(kernel)),
            ", ".join(nodes.get(kernel.symbol, ())[:2]),
            bound.reason,
        ]
        for kernel, bound in sorted(pairs, key=lambda pair: -pair[1].estimate * uses[pair[0].symbol])
    ]
    return table(["kernel", "cycles at least", "times slower", "share", "templates", "nodes", "why"], rows)


def _each(compilation: Compilation, options: argparse.Namespace, step: Callable[[Kernel], Result]) -> list[Result]:
    """`step` for each chosen kernel, with a progress line when that takes long."""
    chosen = (_chosen if options.stage == "source" else _alone)(compilation, options)
    results = []
    with Progress(f"kernels to the stage {options.stage}", total=len(chosen)) as line:
        for kernel in chosen:
            results.append(step(kernel))
            line.step(kernel.symbol)
    return results


def _compile(compilation: Compilation, options: argparse.Namespace) -> str:
    nodes, compiled = compilation.lowered.nodes_by_symbol(), compilation.compiled_kernels
    chosen = sorted(_chosen(compilation, options), key=lambda kernel: -compiled[kernel.symbol].seconds)
    rows = []
    for kernel in chosen:
        result = compiled[kernel.symbol]
        tiles = None if kernel.parts else compilation.lowered_kernel(kernel).attributes.get(OPEN_TILES)
        rows.append(
            [
                kernel.symbol,
                human_seconds(result.seconds) if result.seconds else "cached",
                human_bytes(len(result.code)),
                "" if not tiles else "sizes are open: a body without guards, and one for all edges",
                ", ".join(nodes[kernel.symbol][:2]),
            ]
        )
    return table(["kernel", "time", "code", "tiles", "nodes"], rows)


def _te(compilation: Compilation, options: argparse.Namespace) -> str:
    return to_script(IRModule([kernel.func for kernel in _alone(compilation, options)]))


def _tir(compilation: Compilation, options: argparse.Namespace) -> str:
    programs = to_script(IRModule(_each(compilation, options, compilation.scheduled)))
    comments = (f"# {line}" for line in _templates(compilation, options).splitlines())
    return "\n".join([*comments, programs])


def _templates(compilation: Compilation, options: argparse.Namespace) -> str:
    lines = []
    for kernel in _alone(compilation, options):
        lines.append(kernel.symbol)
        lines += (f"  {line}" for choice in compilation.templates_of(kernel) for line in choice.describe().splitlines())
    return "\n".join(lines)


def _lowered(compilation: Compilation, options: argparse.Namespace) -> str:
    return to_script(IRModule(_each(compilation, options, compilation.lowered_kernel)))


def _source(compilation: Compilation, options: argparse.Namespace) -> str:
    return "\n".join(_each(compilation, options, compilation.source))


def _llvm(compilation: Compilation, options: argparse.Namespace) -> str:
    return "\n".join(_each(compilation, options, compilation.llvm_ir))


def _asm(compilation: Compilation, options: argparse.Namespace) -> str:
    return "\n".join(_each(compilation, options, compilation.assembly))


def _failures(compilation: Compilation, options: argparse.Namespace) -> str:
    failed, nodes = compilation.failed_templates, compilation.lowered.nodes_by_symbol()
    if not failed:
        return "no schedule template failed"
    rows = [[symbol, reason, ", ".join(nodes[symbol][:4])] for symbol, reason in failed.items()]
    return table(["kernel", "why", "nodes"], rows)


def _memory(compilation: Compilation, options: argparse.Namespace) -> str:
    plans = compilation.lowered.plans
    if len(plans) == 1:
        return str(plans[0])
    named = zip(compilation.lowered.segments, plans, strict=True)
    return "\n\n".join(f"{segment.info.name}\n{plan}" for segment, plan in named)


def _vm(compilation: Compilation, options: argparse.Namespace) -> str:
    program = compilation.lowered.program
    if program is None:
        return "the model is one straight run of kernels: no virtual machine is involved"
    return disassemble(program.program(ConstantStore()))


def _profile(compilation: Compilation, options: argparse.Namespace) -> str:
    executable = compilation.executable()
    inputs = chosen_inputs(executable, options)
    return executable.profile(*[inputs[info.name] for info in executable.input_info]).text()


_STAGES: dict[str, Callable[[Compilation, argparse.Namespace], str]] = {
    "imported": lambda compilation, options: str(to_text(compilation.imported)),
    "graph": lambda compilation, options: str(to_text(compilation.optimized)),
    "kernels": _kernels,
    "compile": _compile,
    "bounds": _bounds,
    "te": _te,
    "templates": _templates,
    "tir": _tir,
    "lowered": _lowered,
    "source": _source,
    "llvm": _llvm,
    "asm": _asm,
    "failures": _failures,
    "memory": _memory,
    "vm": _vm,
    "profile": _profile,
}
