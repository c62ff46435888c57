"""Streams with a token dropped, added or moved: what any execution can tell from the original, the checker finds.

    python -m tests.fuzz.accel_mutations --count 20

Of each compiled or random stream some of the mutations are made that change one token. Those that the checker passes
are executed in many orders that their tokens allow; every one must give the original's results.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

import numpy as np

from tests.accel.configs import CONFIGS
from tests.accel.interleaved import outcome
from tests.accel.mutations import MOVED, mutations
from tests.accel.programs import random_program
from tests.backends.accel_layers import random_layer
from tests.fuzz import accel_compiled, pieces
from tilewright.accel.checker import find_faults
from tilewright.accel.functional import FunctionalMachine
from tilewright.accel.instructions import Instruction
from tilewright.accel.program import Program
from tilewright.support.errors import UnsupportedError, UserError

COMPILED: Final = ("small", "wide", "rows", "few_tokens", "few_micro_ops")
RANDOM: Final = ("batch2", "narrow", "tiny", "usual")
ORDERS: Final = 12
"""Executions of a mutant that the checker passes."""
WATCHED: Final = 0.05
"""Of those that it finds, the share that is executed too, to see how many an execution shows."""
MOST_MUTATIONS: Final = 150
"""Mutations of one stream, of which there are some eight for each instruction."""


def stream(subject: str, seed: int) -> Program | None:
    """The stream of a seed; None for a layer that is refused."""
    if subject in RANDOM:
        return random_program(np.random.default_rng(seed), CONFIGS[subject])
    config, layer = accel_compiled.SUBJECTS[subject], random_layer(seed)
    try:
        kernel = accel_compiled.compiled(layer, config, seed)
    except (UnsupportedError, UserError):
        return None
    return accel_compiled.placed(kernel, layer.arrays(config, seed), np.random.default_rng(seed))


def run_stream(program: Program, seed: int, tally: pieces.Tally) -> list[str]:
    """Mutate one stream; the mutations that the checker passes though an execution shows them."""
    config, random = program.config, np.random.default_rng(seed)
    _, expected = program.run_on(FunctionalMachine(config, program.dram_bytes))
    content, missed = b"".join(expected), []

    def shows(mutant: Sequence[Instruction]) -> bool:
        runs = (outcome(mutant, config, program.segments, program.results, random) for _ in range(ORDERS))
        return any(run != content for run in runs)

    tally.counts.update(streams=1)
    mutants = list(mutations(program.instructions))
    for what, mutant in (mutants[number] for number in random.permutation(len(mutants))[:MOST_MUTATIONS]):
        tally.counts["moved" if MOVED in what else "flipped"] += 1
        if find_faults(mutant, config, program.read):
            tally.counts["found"] += 1
            if random.random() < WATCHED:
                tally.counts.update(watched=1, shown=int(shows(mutant)))
            continue
        tally.counts["passed"] += 1
        if shows(mutant):
            missed.append(what)
    return missed


def work(piece: pieces.Piece) -> pieces.Tally:
    """Streams of one kind."""
    tally = pieces.Tally()
    for seed in piece.seeds:
        program = stream(piece.subject, seed)
        if program is not None:
            tally.failures += [f"seed {seed}: {what} is not found" for what in run_stream(program, seed, tally)]
    return tally


if __name__ == "__main__":
    subjects = [*COMPILED, *RANDOM]
    sys.exit(pieces.run(pieces.parser(__doc__, 20, subjects, "streams").parse_args(), work, ("accel",)))
