"""One file of the corpus in a process of its own: `python -m bench.corpus_run NAME --list FILE --cache FOLDER`.

The file runs in its own runtime (onnxruntime in a process of its own, TorchScript in torch), is compiled, run and
compared, and both are timed in pairs of runs on one thread. Each step is told on stdout as a line of JSON before it
begins (`{"begins": "compile"}`) and with its figures after it: whoever started this process knows how far it came, if
it ends without a word.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

import tilewright as tw
from bench import corpus_answers, harness
from bench.corpus_files import Corpus, CorpusFile, Question, read_corpus
from bench.corpus_inputs import Arrays, Signature, make_inputs, onnx_signatures
from bench.neighbours import CoreWatch
from bench.peers import REFERENCE, clock_for
from bench.peers.process import PeerError, PeerProcess
from bench.process_memory import MemoryWatch
from tilewright.cli import measure, versus
from tilewright.runtime.core.executor import Executable
from tilewright.support.errors import UserError
from tilewright.target import Target
from tilewright.tune.turns import elsewhere

ROUNDS = 6
_LONG_RUN_MS = 500.0
"""A model whose run takes longer is timed in fewer rounds."""
_GIGABYTE = 1 << 30
_MEGABYTE = 1 << 20

_NUDGE = 1e-6
_NUDGES = 8
"""How far, relative to their values, and how often inputs are moved to see how far the runtime's own outputs jump."""
_JUMPS = 2.0
"""An output this many such jumps away from the runtime's is as right as the runtime's own."""

TORCHSCRIPT = (".jit", ".pt")
"""Suffixes of files that torch runs; all others are ONNX's."""

Tell = Callable[..., None]


class Reference(Protocol):
    """The runtime that a file was made for."""

    name: str

    def load(self, path: Path, inputs: Arrays) -> list[np.ndarray]:
        """Load a file and run it once."""

    def sample(self, count: int) -> list[float]:
        """Milliseconds of `count` runs."""

    def close(self) -> None:
        """Let go of it."""


class TorchReference:
    """A TorchScript file in torch, in this process."""

    name = "torch"

    def __init__(self, part: str) -> None:
        self._part = part

    def load(self, path: Path, inputs: Arrays) -> list[np.ndarray]:
        """Load a file and run it once, on one thread."""
        import torch

        torch.set_num_threads(1)
        module = _script(path, self._part)
        tensors = [torch.from_numpy(array) for array in inputs.values()]

        def call() -> Any:
            with torch.inference_mode():
                return module(*tensors)

        self._sampler = measure.LocalSampler(call, clock_for(1))
        result = call()
        return [item.numpy() for item in (result if isinstance(result, tuple | list) else [result])]

    def sample(self, count: int) -> list[float]:
        """Milliseconds of `count` runs."""
        return self._sampler.sample(count)

    def close(self) -> None:
        """Nothing is held outside this process."""


def _script(path: Path, part: str) -> Any:
    """The module of a TorchScript file, or a part of it."""
    import torch

    script = torch.jit.load(path, map_location="cpu").eval()
    return functools.reduce(getattr, part.split("."), script) if part else script


def main(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    tell = teller(_private_stdout())
    if options.memory:
        resource.setrlimit(resource.RLIMIT_AS, (int(options.memory * _GIGABYTE), resource.RLIM_INFINITY))
    corpus = read_corpus(options.list)
    try:
        if options.question:
            answer(next(item for item in corpus.questions if item.name == options.name), corpus, options.cache, tell)
        else:
            examine(corpus.file(options.name), options.cache, options.rounds, tell)
    except Exception as error:  # whatever is raised is a row of the report, told apart by its type
        traceback.print_exc()
        tell(**failure(error))
    return 0


def teller(stream: IO[str]) -> Tell:
    """What writes a line of JSON for each thing that is told."""

    def tell(**facts: object) -> None:
        stream.write(json.dumps(facts) + "\n")
        stream.flush()

    return tell


def failure(error: Exception) -> dict[str, str]:
    """The row of an error: what the compiler refuses on purpose is no crash, nor is what the runtime refuses."""
    if isinstance(error, corpus_answers.NotAsked):
        return {"status": "not asked", "reason": str(error)}
    if isinstance(error, PeerError):
        return {"status": "no reference", "reason": str(error)}
    if isinstance(error, MemoryError):
        return {"status": "out of memory", "reason": "the process met its limit of memory"}
    status = "refused" if isinstance(error, UserError) else "crashed"
    return {"status": status, "reason": f"{type(error).__name__}: {error}", "at": _place(error)}


def _place(error: Exception) -> str:
    """Where an error comes from: the last line of the package that raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno} {frames[-1].name}" if frames else ""


def examine(item: CorpusFile, cache: Path, rounds: int, tell: Tell) -> None:
    """Compile, run, compare and time a file."""
    path = item.place(cache)
    is_torch = path.suffix in TORCHSCRIPT
    tell(begins="reference", bytes=path.stat().st_size)
    signatures = _recipe_signatures(item) if is_torch else onnx_signatures(path)
    inputs = make_inputs(signatures, item.inputs)

    def runtime() -> Reference:
        return TorchReference(item.part) if is_torch else PeerProcess(REFERENCE, 1, harness.cores_for(1))

    reference = runtime()
    try:
        expected = reference.load(path, inputs)
        tell(begins="compile", shapes={name: list(array.shape) for name, array in inputs.items()})
        executable = compile_file(path, item.part, inputs, tell)
        tell(begins="run")
        actual = list(executable.run(inputs))
        error = measure.max_relative_error(actual, expected)
        right = error <= item.tolerance or _all_within(actual, expected, item.absolute)
        if not right and np.isfinite(error):
            jump = _largest_jump(runtime, path, inputs, expected)
            tell(jump=jump)
            right = error <= _JUMPS * jump
        tell(
            error=error if np.isfinite(error) else None, tolerance=item.tolerance, status="right" if right else "wrong"
        )
        if not right:
            tell(reason=difference(actual, expected))
        elif rounds:
            tell(begins="time", status="right")
            tell(**timed(executable, inputs, reference, rounds))
    finally:
        reference.close()


def _largest_jump(runtime: Callable[[], Reference], path: Path, inputs: Arrays, expected: list[np.ndarray]) -> float:
    """How far the runtime's own outputs move when its inputs move by no more than rounding.

    A model that rounds activations to integers jumps where a value lies next to a tie: a difference of that size from
    another order of summation is the model's own.
    """
    generator = np.random.default_rng(0)
    jump = 0.0
    for _ in range(_NUDGES):
        nudged = {name: _nudged(array, generator) for name, array in inputs.items()}
        other = runtime()
        try:
            jump = max(jump, measure.max_relative_error(other.load(path, nudged), expected))
        finally:
            other.close()
    return jump


def _nudged(array: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    if array.dtype.kind != "f":
        return array
    return (array * (1 + _NUDGE * generator.standard_normal(array.shape))).astype(array.dtype)


def _all_within(actual: Sequence[np.ndarray], expected: Sequence[np.ndarray], absolute: float) -> bool:
    """Whether no number differs by more than this; of numbers that are none, whether they are the same."""
    return absolute > 0 and all(
        a.shape == b.shape and np.allclose(a, b, rtol=0, atol=absolute, equal_nan=True)
        for a, b in zip(actual, expected, strict=True)
    )


def _recipe_signatures(item: CorpusFile) -> dict[str, Signature]:
    """TorchScript does not say what its inputs are: the recipes do."""
    return {name: Signature(np.dtype(made.dtype or "float32"), made.shape or ()) for name, made in item.inputs.items()}


def compile_file(path: Path, part: str, inputs: Arrays, tell: Tell) -> Executable:
    """Compile a file as it is, and tell what that took: processor seconds and memory, of workers too."""
    before, start = cpu_seconds(), time.perf_counter()
    with MemoryWatch() as memory:
        if path.suffix in TORCHSCRIPT:
            import torch

            tensors = tuple(torch.from_numpy(array) for array in inputs.values())
            model: Any = tw.frontend.from_torch(_script(path, part), tensors)
        else:
            model = str(path)
        executable = tw.compile(model, target="native", threads=1)
    tell(
        compile_cpu_s=round(cpu_seconds() - before - memory.seconds, 2),
        compile_s=round(time.perf_counter() - start, 2),
        compile_mb=round(memory.bytes / _MEGABYTE, 1),
    )
    return executable


def cpu_seconds() -> float:
    """Processor seconds of this process and of those that it started and that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def difference(actual: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> str:
    """The first output that is off, in words."""
    if len(actual) != len(expected):
        return f"{len(actual)} outputs in the place of {len(expected)}"
    for number, (ours, theirs) in enumerate(zip(actual, expected, strict=True)):
        if ours.shape != theirs.shape:
            return f"output {number} has the shape {ours.shape}, not {theirs.shape}"
    errors = [measure.max_relative_error([ours], [theirs]) for ours, theirs in zip(actual, expected, strict=True)]
    worst = int(np.argmax(errors))
    return f"output {worst} is off by {errors[worst]:.1e} of its largest value"


def timed(executable: Executable, inputs: Arrays, reference: Reference, rounds: int) -> dict[str, object]:
    """Both on one thread, in pairs of runs."""

    def placed(place: int) -> measure.LocalSampler:
        model = executable if place == 0 else elsewhere(executable)
        return measure.LocalSampler(lambda: model.run(inputs), clock_for(1))

    with harness.pinned(1):
        if placed(0).sample(1)[0] > _LONG_RUN_MS:
            rounds = max(1, rounds // 3)
        standing = versus.against(placed, {reference.name: reference}, rounds, watch=CoreWatch(Target("native")))
    comparison = standing.peers[reference.name]
    return {
        "ours_ms": round(standing.median_ms, 4),
        "reference_ms": round(standing.peer_ms(reference.name), 4),
        "ratio": round(comparison.ratio, 4),
        "between": [round(bound, 4) for bound in comparison.bounds],
        "pairs": len(comparison.ratios),
    }


def answer(question: Question, corpus: Corpus, cache: Path, tell: Tell) -> None:
    """Ask a question whose answer is known: compile the files that answer it, and look at what they say."""
    asked = corpus_answers.ANSWERS.get(question.name)
    if asked is None:
        raise UserError(f"nobody knows how to ask '{question.name}'", where="corpus.toml")
    tell(begins="answer")
    places = {role: corpus.file(name).place(cache) for role, name in question.files.items()}
    models = {role: _runner(path) for role, path in places.items() if path.suffix == ".onnx"}
    found, expected = asked(models, places)
    tell(status="right" if found == expected else "wrong", found=found, expected=expected)


def _runner(path: Path) -> corpus_answers.Model:
    """A model to ask: compiled when it is first called."""

    @functools.cache
    def executable() -> Executable:
        return tw.compile(str(path), target="native", threads=1)

    def run(inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return list(executable().run(dict(inputs)))

    return run


def _private_stdout() -> IO[str]:
    """The real stdout for what is told; what libraries print goes to stderr."""
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return stream


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.corpus_run", description=__doc__.split("\n")[0])
    parser.add_argument("name", help="the file, or with --question the question")
    parser.add_argument("--list", type=Path, required=True, help="the list of the corpus")
    parser.add_argument("--cache", type=Path, required=True, help="where fetched files lie")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of pairs of runs; 0: no timing")
    parser.add_argument("--memory", type=float, default=0, help="gigabytes of address space at most; 0: no limit")
    parser.add_argument("--question", action="store_true", help="ask a question in the place of examining a file")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
