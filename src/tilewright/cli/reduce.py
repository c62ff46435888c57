"""`tilewright reduce`: shrink a model that fails to a small one that fails in the same way."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from tilewright.cli.models import is_onnx
from tilewright.cli.onnx_models import (
    Proto,
    Values,
    copy_model,
    cut_out,
    fix_shapes,
    load_model,
    make_inputs,
    model_inputs,
    parse_sizes,
    record_values,
    run_reference,
    size_choices,
)
from tilewright.cli.options import (
    add_model,
    check_output,
    compile_options,
    compile_target,
    natural_int,
    positive_number,
)
from tilewright.cli.trial import TOLERANCE, Failure, Trial, attempt
from tilewright.cli.trial_process import TrialProcess
from tilewright.options import CompileOptions
from tilewright.support.errors import UserError
from tilewright.support.files import replacing
from tilewright.support.progress import Progress
from tilewright.support.text import plural

DESCRIPTION = """\
Shrink an ONNX model that fails in Tilewright (it crashes, does not compile, or gives other values than onnxruntime)
to a small one that fails in the same way. Nodes are taken out while the failure stays; what they gave becomes inputs.

  tilewright reduce model.onnx -o small.onnx

The inputs of the small model are written beside it (small.npz), with the values that make it fail. Every try runs in a
process of its own, which may crash, unless --in-process is given.
"""
Attempt = Callable[[Trial], Failure | None]
_T = TypeVar("_T")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_model(parser, "an ONNX model that fails", threads=1)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.onnx", help="the small model")
    add_run_arguments(parser)
    parser.add_argument(
        "--in-process", action="store_true", help="try in this process: quicker, but a crash of the model ends it"
    )


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the tools that run a model against onnxruntime."""
    parser.add_argument(
        "--sizes",
        action="append",
        default=[],
        metavar="DIMENSION=1,4,32",
        help="the sizes that an open dimension takes (repeat for several dimensions)",
    )
    parser.add_argument(
        "--tolerance",
        type=positive_number,
        default=TOLERANCE,
        metavar="X",
        help=f"the largest error that is rounding, of the largest expected value (default: {TOLERANCE:g})",
    )
    parser.add_argument(
        "--seed", type=natural_int, default=0, metavar="N", help="seed of the random inputs (default: 0)"
    )


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    check_output(options.output, options.model, "small.onnx")
    model, chosen = open_model(options)
    if options.in_process:
        found = reduce_model(model, options, chosen, attempt)
    else:
        process = TrialProcess()
        try:
            found = reduce_model(model, options, chosen, process.attempt)
        finally:
            process.stop()
    small, inputs, failure = found
    with replacing(options.output) as temporary:
        temporary.write_bytes(small.SerializeToString())
    with replacing(options.output.with_suffix(".npz")) as temporary, temporary.open("wb") as stream:
        np.savez(stream, **inputs)  # type: ignore[arg-type]
    print(f"{options.model}: {failure}")
    before, after = len(model.graph.node), len(small.graph.node)
    print(f"{options.output}: {plural(after, 'node')} of {before}, fails in the same way")
    for node in small.graph.node:
        print(f"  {node.op_type}({', '.join(node.input)}) -> {', '.join(node.output)}")
    return 0


def open_model(options: argparse.Namespace) -> tuple[Proto, CompileOptions]:
    """The model with the shapes that were asked for, and the other options that it is compiled with."""
    if not is_onnx(options.model):
        raise UserError(
            f"{options.model} is no ONNX model: only those are taken apart",
            hint="convert it first: tilewright convert MODEL -o model.onnx",
        )
    chosen = compile_options(options)
    model = fix_shapes(load_model(options.model), chosen.shapes or {})
    return model, replace(chosen, shapes=None)


def reduce_model(
    model: Proto, options: argparse.Namespace, chosen: CompileOptions, run: Attempt
) -> tuple[Proto, Values, Failure]:
    """A small part of a model that fails as the whole does, the values of its inputs, and the failure."""
    run_whole = partial(run_trial, options=options, chosen=chosen, run=run, must_run=True)
    inputs, failure = _find_failure(model, options, run_whole)
    # The sizes of a part's inputs are those that were recorded: nothing is left to specialize.
    run_part = partial(run_trial, options=options, chosen=replace(chosen, specialize=()), run=run)
    values = record_values(model, inputs)
    signature = failure.signature

    def candidate(kept: Sequence[int]) -> tuple[Proto, Values] | None:
        return cut_out(model, kept, values) if kept else None

    def fails(made: tuple[Proto, Values] | None) -> bool:
        if made is None:
            return False
        found = run_part(made[0], made[1])
        return found is not None and found.signature == signature

    with Progress("reducing") as line:

        def fails_without_others(kept: Sequence[int]) -> bool:
            line.step()
            return fails(candidate(kept))

        nodes = list(range(len(model.graph.node)))
        if not fails_without_others(nodes):
            raise UserError(
                "the failure does not show any more when the model is taken apart",
                hint="the failure may depend on names or on constants that nothing reads",
            )
        kept = minimize(nodes, fails_without_others)
        best = candidate(kept)
        assert best is not None
        while True:
            smaller = next((made for made in _smaller(best[0]) if fails((made, best[1]))), None)
            line.step()
            if smaller is None:
                return best[0], best[1], failure
            best = (smaller, best[1])


def _find_failure(
    model: Proto, options: argparse.Namespace, run: Callable[[Proto, Values], Failure | None]
) -> tuple[Values, Failure]:
    """Inputs for which the model fails."""
    specs = model_inputs(model)
    generator = np.random.default_rng(options.seed)
    for sizes in size_choices(specs, parse_sizes(options.sizes)):
        inputs = make_inputs(model, specs, sizes, generator)
        failure = run(model, inputs)
        if failure is not None:
            return inputs, failure
    raise UserError(
        "the model does not fail: it compiles, and gives what onnxruntime gives",
        hint="try other sizes (--sizes) or another --seed",
    )


def run_trial(
    model: Proto,
    inputs: Values,
    *,
    options: argparse.Namespace,
    chosen: CompileOptions,
    run: Attempt,
    must_run: bool = False,
) -> Failure | None:
    """What becomes of a model; one that onnxruntime does not accept is no failure of ours."""
    try:
        expected = run_reference(model, inputs)
    except UserError:
        if must_run:
            raise
        return None
    return run(Trial(model.SerializeToString(), inputs, expected, options.tolerance, compile_target(options), chosen))


def minimize(items: Sequence[_T], fails: Callable[[Sequence[_T]], bool]) -> list[_T]:
    """A part of a failing list that fails, and from which no single item can be taken.

    Halves, then quarters and so on are tried alone and left out, in turn (delta debugging).
    """
    kept = list(items)
    parts = 2
    while len(kept) > 1:
        step = max(1, -(-len(kept) // parts))
        chunks = [kept[start : start + step] for start in range(0, len(kept), step)]
        alone = next((chunk for chunk in chunks if len(chunk) < len(kept) and fails(chunk)), None)
        if alone is not None:
            kept, parts = alone, 2
            continue
        for chunk in chunks if len(chunks) > 2 else ():
            rest = [item for item in kept if item not in chunk]
            if rest and fails(rest):
                kept, parts = rest, max(parts - 1, 2)
                break
        else:
            if step == 1:
                return kept
            parts *= 2
    return kept


def _smaller(model: Proto) -> Iterator[Proto]:
    """The model with one of its outputs alone, or without one attribute; trying will tell which of these are valid."""
    if len(model.graph.output) > 1:
        for info in model.graph.output:
            made = copy_model(model)
            del made.graph.output[:]
            made.graph.output.append(info)
            yield made
    for place, node in enumerate(model.graph.node):
        for index in range(len(node.attribute)):
            made = copy_model(model)
            del made.graph.node[place].attribute[index]
            yield made
