"""One trial of a model: compiled, run and compared with the truth."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.front import compile
from tilewright.options import CompileOptions
from tilewright.support.errors import CompilerBug, UserError

Array = npt.NDArray[Any]
TOLERANCE = 1e-3
"""The largest difference that is rounding: of the largest expected value."""
_UNFORESEEN = (ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, OSError, RuntimeError,
               TypeError, ValueError)  # fmt: skip
"""What code that is wrong raises: just what is looked for."""
_PARTICULARS = re.compile(r"""("[^"]*"|'[^']*'|[0-9]+)""")
"""What differs between messages of one cause."""
ONE_THREAD = CompileOptions(threads=1)


@dataclass(frozen=True)
class Trial:
    """A model, inputs, and what it should give."""

    model: bytes
    inputs: Mapping[str, Array]
    expected: Sequence[Any]
    tolerance: float = TOLERANCE
    target: str = "native"
    options: CompileOptions = ONE_THREAD


@dataclass(frozen=True)
class Failure:
    """What went wrong: `mismatch`, `error` (a UserError), `bug`, `crash` or `hang`, and how it was said."""

    kind: str
    text: str

    @property
    def signature(self) -> str:
        """The same for failures of one cause: numbers and names are left out of what was said."""
        if self.kind in ("mismatch", "crash", "hang"):
            return self.kind
        first = self.text.splitlines()[0] if self.text else ""
        return f"{self.kind}: {_PARTICULARS.sub('#', first)}"

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def attempt(trial: Trial) -> Failure | None:
    """Run a trial in this process; None if all is well."""
    try:
        executable = compile(trial.model, trial.target, options=trial.options)
        results = executable.run(trial.inputs)
    except UserError as error:
        return Failure("error", error.message)
    except CompilerBug as error:
        return Failure("bug", str(error.args[0]) if error.args else "")
    except _UNFORESEEN as error:
        return Failure("bug", f"{type(error).__name__}: {error}")
    worst = difference(results, trial.expected)
    return Failure("mismatch", f"the error is {worst:.3g}") if worst > trial.tolerance else None


def difference(ours: Any, theirs: Any) -> float:
    """How far apart two results are: the largest difference, of the largest expected magnitude; infinity where they
    differ in kind, type, shape or in which elements are finite. Texts and whole numbers of more than 8 bits are exact;
    bytes are often quantised numbers, whose rounding may go either way.
    """
    if isinstance(theirs, (list, tuple)):
        if not isinstance(ours, (list, tuple)) or len(ours) != len(theirs):
            return float("inf")
        return max((difference(a, b) for a, b in zip(ours, theirs, strict=True)), default=0.0)
    if theirs is None or ours is None:
        return 0.0 if ours is theirs else float("inf")
    mine, other = np.asarray(ours), np.asarray(theirs)
    if mine.shape != other.shape or mine.dtype != other.dtype:
        return float("inf")
    if other.dtype.kind in "OUSb" or (other.dtype.kind in "iu" and other.dtype.itemsize > 1):
        return 0.0 if np.array_equal(mine, other) else float("inf")
    a, b = mine.astype(np.float64), other.astype(np.float64)
    if other.dtype.kind in "iu":
        return 0.0 if float(np.abs(a - b).max(initial=0.0)) <= 1 else float("inf")
    finite = np.isfinite(b)
    if not np.array_equal(np.isfinite(a), finite) or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return float("inf")
    scale = max(float(np.abs(b[finite]).max(initial=0.0)), 1e-30)
    return float(np.abs(a[finite] - b[finite]).max(initial=0.0)) / scale
