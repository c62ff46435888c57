"""Functions of JAX through export, import and `tw.compile`, compared with JAX itself: a suite of `bench.frontends`.

    python -m bench.frontends --only stablehlo                          # every function
    python -m bench.frontends --only stablehlo --filter 'scan|cond'     # some of them
    python -m bench.frontends --only stablehlo --interpreter            # quick: through the graph interpreter

Needs jax. A function passes when all its samples do (`bench/stablehlo_cases.py`); what JAX cannot export with any of
the templates is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bench.frontend_case import Result


@dataclass(frozen=True)
class FunctionTrial:
    """A function of JAX by its name."""

    name: str
    interpreted: bool

    def run(self) -> Result | None:
        """All its samples; None if none can be exported."""
        from bench.stablehlo_cases import run_compiled, run_function, run_interpreted

        outcome = run_function(self.name, run_interpreted if self.interpreted else run_compiled)
        if not outcome.total:
            return None
        return Result(self.name, outcome.verdict, outcome.reason, (outcome.passed, outcome.total))


def trials(interpreted: bool = False) -> Iterator[FunctionTrial]:
    """Every function that there are samples of."""
    from bench.stablehlo_cases import functions

    for name in functions():
        yield FunctionTrial(name, interpreted)
