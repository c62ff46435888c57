"""Mutated programs of the virtual machine: `python -m tests.fuzz.vm_programs --count 10000 --seed 0`.

A program that the verifier lets pass may compute anything or never end; it may raise a `UserError` alone, and must not
bring the process down.
"""

from __future__ import annotations

import resource
import signal
import sys
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tests.fuzz import vm_victims
from tests.fuzz.children import run_campaign
from tests.fuzz.vm_mutations import mutated
from tilewright.runtime.core.executor import Executable
from tilewright.runtime.vm.runner import ProgramRunner
from tilewright.support.errors import UserError

LONGEST = 60.0
"""Seconds that one program may take, with its being stopped."""
ENDLESS = 2.0
"""Seconds after which a program is taken for one that never ends."""
MEMORY = 8 << 30
"""Bytes that the child may map."""


class _Endless(BaseException):
    """A program was stopped."""


def _stop(number: int, frame: object) -> None:
    raise _Endless


def run_one(victim: Executable, inputs: tuple[Any, ...], bytecode: bytes) -> str:
    """Load and run a program: how it went. Errors that are not ours are raised."""
    model = replace(victim.model, program=b64encode(bytecode).decode())
    try:
        exe = Executable(replace(victim.artifact, model=model), victim.library)
    except UserError:
        return "refused"
    signal.setitimer(signal.ITIMER_REAL, ENDLESS)
    try:
        exe(*inputs)
    except UserError:
        return "errors"
    except _Endless:
        return "endless"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return "ran"


def prepare(quick: bool = False) -> Callable[[int], str]:
    """The function that runs the program of a seed."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGALRM, _stop)
    victims = vm_victims.small() if quick else vm_victims.all_kinds()

    def run(seed: int) -> str:
        random = np.random.default_rng(seed)
        exe, inputs = victims[random.integers(len(victims))]
        runner = exe.runner
        assert isinstance(runner, ProgramRunner)
        return run_one(exe, inputs, mutated(runner.machine.program, random))

    return run


if __name__ == "__main__":
    sys.exit(run_campaign("tests.fuzz.vm_programs", "programs", 10_000, prepare, LONGEST))
