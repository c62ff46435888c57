"""Gradients of torch's operator database: imported, differentiated by `tw.vjp`, and compared with torch.autograd.

    python -m bench.torch_gradients                             # every operator that torch differentiates
    python -m bench.torch_gradients --filter softmax --details  # some operators, all listed
    python -m bench.torch_gradients --samples 3                 # quick: the first samples of each
    python -m bench.torch_gradients --samples 3 --filter linalg --update    # some operators of a record again

Samples are in double precision and run in the graph interpreter. Counted are samples whose forward program comes in:
*passed* (all gradients are torch's), *refused* (an error that says why), *wrong*, and *torch differs*: torch's
gradient is another one, and central differences say that ours is the derivative. Ends with one line of JSON;
figures go to bench/results/torch-gradients.json.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

import tilewright as tw
from bench import harness
from bench.torch_cases import Program, operators
from tilewright.frontend import from_torch
from tilewright.graph.interpreter import evaluate
from tilewright.ir.function import IRModule
from tilewright.support.errors import TilewrightError, UserError
from tilewright.support.text import table

RESULTS = harness.RESULTS_FOLDER / "torch-gradients.json"
VERDICTS = ("passed", "refused", "wrong", "torch differs", "forward unsupported", "not differentiable in torch")
RELATIVE, ABSOLUTE = 1e-5, 1e-7
STEP = 1e-5
"""Of central differences."""
SYMMETRIC = frozenset({"cholesky", "linalg.cholesky", "linalg.cholesky_ex"})
"""Operators of symmetric matrices, of which one triangle is read."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code says whether a gradient is wrong."""
    parser = argparse.ArgumentParser(prog="python -m bench.torch_gradients", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--filter",
        default="",
        type=harness.regular_expression,
        metavar="REGEX",
        help="only operators whose name has this",
    )
    parser.add_argument("--samples", type=int, metavar="N", help="only the first samples of each operator")
    parser.add_argument("--timeout", type=int, default=120, metavar="SECONDS", help="time limit of one operator")
    parser.add_argument("--details", action="store_true", help="list every operator, not only those with trouble")
    parser.add_argument("--update", action="store_true", help="put the operators of --filter into the record")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the figures go (default: bench/results)")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found: dict[str, tuple[Counter[str], str]] = {}
    for name, operator in operators().items():
        if re.search(options.filter, name) and operator.supports_autograd:
            found[name] = run_operator(operator, options.samples, options.timeout)
            counts, reason = found[name]
            harness.say(f"{len(found)}: {name} {dict(counts)} {reason[:120]}")
    print(render(found, options.details))
    record = options.json or RESULTS
    if options.update:
        found = _recorded(record, options.samples) | found
    figures = summarize(found)
    if options.update or options.json is not None or not (options.filter or options.samples):
        listed = {name: {**counts, "reason": reason} for name, (counts, reason) in sorted(found.items())}
        samples = {"samples_of_each_operator": options.samples}
        harness.write_json(record, {**figures, **samples, "operators": listed, "machine": harness.machine()})
    print(json.dumps(figures))
    return 1 if figures["wrong"] else 0


def _recorded(path: Path, samples: int | None) -> dict[str, tuple[Counter[str], str]]:
    """The operators of a record that was made with as many samples."""
    known = json.loads(path.read_text(encoding="utf-8"))
    if known.get("samples_of_each_operator") != samples:
        raise UserError(
            f"the record has {known.get('samples_of_each_operator')} samples of each operator",
            where=str(path),
            hint="say as many with --samples",
        )
    return {
        name: (Counter({verdict: row[verdict] for verdict in VERDICTS if verdict in row}), row["reason"])
        for name, row in known["operators"].items()
    }


def summarize(found: dict[str, tuple[Counter[str], str]]) -> dict[str, float]:
    """The counts of samples, and the part of those whose forward program comes in that passed."""
    total: Counter[str] = Counter()
    for counts, _ in found.values():
        total += counts
    tried = sum(total[verdict] for verdict in VERDICTS[:4])
    named = {verdict.replace(" ", "_"): total[verdict] for verdict in VERDICTS}
    return {**named, "operators": len(found), "passed_percent": round(100 * total["passed"] / max(tried, 1), 1)}


def render(found: dict[str, tuple[Counter[str], str]], details: bool) -> str:
    """A table by operator."""
    rows = [
        [name, *(str(counts[verdict] or "") for verdict in VERDICTS), reason[:140]]
        for name, (counts, reason) in found.items()
        if details or counts["refused"] or counts["wrong"]
    ]
    return table(["operator", *VERDICTS, "reason"], rows)


@contextmanager
def _limited(seconds: int) -> Iterator[None]:
    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def run_operator(operator: Any, limit: int | None, timeout: int) -> tuple[Counter[str], str]:
    """The verdicts of an operator's samples, and the first thing that went wrong."""
    counts: Counter[str] = Counter()
    first = ""
    torch.manual_seed(0)
    try:
        with _limited(timeout):
            samples = list(operator.sample_inputs("cpu", torch.float64, requires_grad=True))[:limit]
            for sample in samples:
                verdict, reason = check(operator, sample)
                counts[verdict] += 1
                first = first or reason
    except TimeoutError as error:
        counts["refused"] += 1
        first = first or str(error)
    return counts, first


def check(operator: Any, sample: Any) -> tuple[str, str]:
    """The verdict on one sample."""
    program = Program(operator.op, [sample])
    try:
        tensors = [item.detach().clone().requires_grad_(item.is_floating_point()) for item in program.tensors]
        outputs = [item for item in program(*tensors) if isinstance(item, torch.Tensor)]
        moving = [item for item in outputs if item.requires_grad and item.is_floating_point()]
        wrt = [place for place, item in enumerate(tensors) if item.is_floating_point()]
        if not moving or not wrt:
            return VERDICTS[5], ""
        given = [torch.randn_like(item) for item in moving]
        expected = torch.autograd.grad(moving, [tensors[place] for place in wrt], given, allow_unused=True)
    except Exception:  # what torch itself does not differentiate
        return VERDICTS[5], ""
    try:
        module = from_torch(program, program.tensors)
    except Exception as error:  # the forward suite counts these
        return VERDICTS[4], f"{type(error).__name__}: {error}"
    try:
        found = _gradients(module, program, outputs, moving, given, wrt)
    except TimeoutError:
        raise
    except TilewrightError as error:
        return "refused", f"{type(error).__name__}: {' '.join(str(error).split())}"
    except Exception as error:  # anything else is ours to mend
        return "wrong", f"{type(error).__name__}: {' '.join(str(error).split())}"
    pairs = list(zip(expected, found, strict=True))
    references = [np.zeros_like(mine) if wanted is None else wanted.numpy(force=True) for wanted, mine in pairs]
    for reference, mine in zip(references, found, strict=True):
        if operator.name in SYMMETRIC:
            # The factorisation reads one triangle; torch shares its gradient between both.
            mine = (mine + np.swapaxes(mine, -1, -2)) / 2
        scale = max(1.0, float(np.abs(reference[np.isfinite(reference)]).max(initial=0)))
        if not np.allclose(mine, reference, rtol=RELATIVE, atol=ABSOLUTE * scale, equal_nan=True):
            off = f"a gradient is off by {np.nanmax(np.abs(mine - reference)):.3g}"
            if _is_derivative(program, tensors, given, wrt, found) and not _is_derivative(
                program, tensors, given, wrt, references
            ):
                return "torch differs", off
            return "wrong", off
    return "passed", ""


def _is_derivative(
    program: Any, tensors: Sequence[Any], given: Sequence[Any], wrt: Sequence[int], gradients: Sequence[np.ndarray]
) -> bool:
    """Whether gradients are what torch's own program says by central differences in a random direction."""
    directions = {place: torch.randn_like(tensors[place]) for place in wrt}

    def value(step: float) -> float:
        with torch.no_grad():
            moved = [
                item + step * directions[place] if place in directions else item for place, item in enumerate(tensors)
            ]
            outputs = [item for item in program(*moved) if isinstance(item, torch.Tensor) and item.is_floating_point()]
        return sum(float((item * weight).sum()) for item, weight in zip(outputs, given, strict=True))

    slope = (value(STEP) - value(-STEP)) / (2 * STEP)
    found = sum(float((directions[place].numpy() * mine).sum()) for place, mine in zip(wrt, gradients, strict=True))
    return bool(np.isclose(slope, found, rtol=1e-4, atol=1e-5))


def _gradients(
    module: IRModule,
    program: Any,
    outputs: Sequence[Any],
    moving: Sequence[Any],
    given: Sequence[Any],
    wrt: Sequence[int],
) -> list[np.ndarray]:
    """Ours, for the inputs that are floats."""
    backward = tw.vjp(module, list(wrt))
    by_output = {id(item): value for item, value in zip(moving, given, strict=True)}
    cotangents = [
        _array(by_output[id(item)] if id(item) in by_output else torch.zeros_like(item))
        for item in outputs
        if item.is_floating_point()
    ]
    inputs = [_array(item) for item in program.tensors]
    results = evaluate(backward, *inputs, *cotangents)
    assert isinstance(results, tuple)
    return [np.asarray(item) for item in results[len(results) - len(wrt) :]]


def _array(value: Any) -> np.ndarray:
    plain = value.detach().contiguous()
    return np.asarray((plain.view(torch.uint16) if plain.dtype is torch.bfloat16 else plain).numpy())


if __name__ == "__main__":
    sys.exit(main())
