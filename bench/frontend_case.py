"""One case of `bench.frontends`: a model of some format, inputs, and what its own runtime gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import tilewright as tw
from tilewright.cli.trial import difference
from tilewright.graph.interpreter import evaluate
from tilewright.support.errors import UserError


@dataclass(frozen=True)
class Result:
    """How a case went, and why: `passed`, `refused`, `failed`, or `left out` where the framework itself fails."""

    name: str
    verdict: str
    reason: str = ""
    samples: tuple[int, int] = (0, 0)
    """Of cases with several samples: how many passed, and how many there are."""


@dataclass(frozen=True)
class LeftOut:
    """What cannot be tried: the framework itself does not save it."""

    name: str
    reason: str

    def run(self) -> Result:
        """Nothing is run."""
        return Result(self.name, "left out", self.reason)


class Trial(Protocol):
    """What a suite is made of: something by a name that is tried when it is asked to."""

    @property
    def name(self) -> str:
        """What messages call it."""

    def run(self) -> Result | None:
        """How it went; None if it does not count."""


@dataclass(frozen=True)
class Case:
    """A model, made when it is run: its source or its module, inputs by name, expected outputs."""

    name: str
    make: Callable[[], tuple[bytes | Path | tw.IRModule, Mapping[str, Any], Sequence[Any]]]
    tolerance: float = 1e-5
    reference: bool = False
    """Whether the graph interpreter runs it, where a suite has too many models to compile all of them."""

    narrowed: bool = False
    """Whether the framework gives integers of 32 bits in the place of 64: either is right."""

    def run(self) -> Result:
        """Import, compile, run and compare."""
        return run_case(self)


def _interpreted(source: bytes | Path, inputs: Mapping[str, Any]) -> Sequence[Any]:
    module = tw.load_model(source)
    result = evaluate(module, *(inputs[param.name] for param in module["main"].params))
    return result if isinstance(result, tuple) else (result,)


def _of_one_width(ours: Any, theirs: Any) -> Any:
    kinds = np.asarray(ours).dtype, np.asarray(theirs).dtype
    return theirs.astype(kinds[0]) if all(kind.kind == "i" and kind.itemsize >= 4 for kind in kinds) else theirs


def _how_far(worst: float, outputs: Sequence[Any], expected: Sequence[Any]) -> str:
    """The largest error, or the kinds of results where they differ."""
    ours, theirs = (
        ", ".join(f"{np.asarray(item).dtype}{list(np.shape(item))}" for item in results)
        for results in (outputs, expected)
    )
    return f"the error is {worst:.2g}" if ours == theirs else f"{ours} instead of {theirs}"


def run_case(case: Case) -> Result:
    """Import, compile, run and compare."""
    try:
        source, inputs, expected = case.make()
        outputs = _interpreted(source, inputs) if case.reference else tw.compile(source, threads=1).run(inputs)
        if case.narrowed:
            expected = [_of_one_width(ours, theirs) for ours, theirs in zip(outputs, expected, strict=True)]
        worst = max(difference(ours, theirs) for ours, theirs in zip(outputs, expected, strict=True))
        if worst > case.tolerance:
            return Result(case.name, "failed", _how_far(worst, outputs, expected))
        return Result(case.name, "passed")
    except UserError as error:
        return Result(case.name, "refused", error.message)
    except Exception as error:  # whatever goes wrong in a case is that case's failure
        return Result(case.name, "failed", f"{type(error).__name__}: {str(error)[:300]}")
