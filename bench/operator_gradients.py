"""Gradients of every differentiable operator against central differences, torch and JAX, in double precision.

    python -m bench.operator_gradients                        # 500 random calls for each peer, and the tests' own calls
    python -m bench.operator_gradients --peer jax --count 100

Each peer is a run of `tests.fuzz.operator_gradients`. Those of torch and JAX compare second derivatives too; JAX comes
from an environment of its own (`.venv-frontend-jax`, made the first time). Counts of calls and operators go to
bench/results/operator-gradients.json. The exit status says whether a gradient is wrong.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from bench import harness
from bench.environments import REPOSITORY, variables
from bench.frontend_environments import HOMES
from tilewright.cli.options import positive_int
from tilewright.support.errors import UserError
from tilewright.support.text import table

RESULTS = harness.RESULTS_FOLDER / "operator-gradients.json"
PEERS = ("differences", "torch", "jax")
# Every call is compiled for one run.
_QUICK = {"XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"}


def figures(peer: str, count: int, seed: int) -> dict[str, Any]:
    """What the run of a peer counts; it says itself which calls are wrong."""
    python = HOMES["stablehlo"].python() if peer == "jax" else sys.executable
    command = [python, "-m", "tests.fuzz.operator_gradients", "--peer", peer]
    reply = subprocess.run(
        [*command, "--count", str(count), "--seed", str(seed)],
        cwd=REPOSITORY,
        env=variables(_QUICK),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    lines = reply.stdout.splitlines()
    print(*lines[:-1], sep="\n", end="")
    if not lines or not lines[-1].startswith("{"):
        raise UserError(f"the gradients of {peer} cannot be had: its process ended with {reply.returncode}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m bench.operator_gradients", description=__doc__.splitlines()[0])
    parser.add_argument("--peer", choices=PEERS, action="append", help="one of the peers (default: all)")
    parser.add_argument("--count", type=positive_int, default=500, help="random calls (default: 500)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    known = json.loads(RESULTS.read_text(encoding="utf-8"))["peers"] if RESULTS.exists() else {}
    for peer in options.peer or PEERS:
        known[peer] = figures(peer, options.count, options.seed)
        harness.write_json(RESULTS, {"machine": harness.machine(), "peers": known})
    rows = [[peer, *(str(known[peer][key]) for key in ("operators", "calls", "wrong"))] for peer in known]
    print(table(["peer", "operators", "calls", "wrong"], rows))
    return 1 if any(known[peer]["wrong"] for peer in known) else 0


if __name__ == "__main__":
    sys.exit(main())
