"""Gradients of operators against torch and JAX: `python -m tests.fuzz.operator_gradients --peer jax --count 500`.

Calls have random shapes and attributes, in float64. Compared are the gradients for all inputs, and the gradients of a
random sum of those; with `--peer differences` central differences are what they are compared with.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.fuzz.gradient_peers import Peer, jax_peers, torch_peers
from tests.fuzz.operator_calls import random_case
from tests.graph.gradient.cases import CASES, Case
from tests.graph.gradient.checks import check_reverse, cotangents_for, floats
from tilewright.graph.gradient import vjp
from tilewright.graph.interpreter import evaluate

Arrays = list[np.ndarray]
TOLERANCE = 1e-8


def _listed(results: Any) -> list[Any]:
    return list(results) if isinstance(results, tuple) else [results]


def torch_gradients(peer: Peer, case: Case, values: Arrays, given: Arrays, weights: Arrays) -> tuple[Arrays, Arrays]:
    """The gradients by torch, and those of their sum with weights."""
    import torch

    moving = [n for n, value in enumerate(values) if value.dtype.kind == "f"]
    leaves = [torch.from_numpy(v.copy()).requires_grad_(n in moving) for n, v in enumerate(values)]
    wrt = [leaves[n] for n in moving]
    results = _listed(peer(*leaves, **case.attributes))
    cotangents = [torch.from_numpy(item) for item in given]
    first = torch.autograd.grad(results, wrt, cotangents, create_graph=True, allow_unused=True)
    first = [torch.zeros_like(item) if found is None else found for item, found in zip(wrt, first, strict=True)]
    total = sum((g * torch.from_numpy(w)).sum() for g, w in zip(first, weights, strict=True))
    second: Sequence[Any] = [None] * len(wrt)
    if isinstance(total, torch.Tensor) and total.requires_grad:
        second = torch.autograd.grad(total, wrt, allow_unused=True)
    zeros = [torch.zeros_like(item) if found is None else found for item, found in zip(wrt, second, strict=True)]
    return [item.detach().numpy(force=True) for item in first], [item.numpy(force=True) for item in zeros]


def jax_gradients(peer: Peer, case: Case, values: Arrays, given: Arrays, weights: Arrays) -> tuple[Arrays, Arrays]:
    """The same by JAX."""
    import jax

    moving = [n for n, value in enumerate(values) if value.dtype.kind == "f"]
    places = tuple(range(len(moving)))

    def gradients(*floats_: Any) -> Any:
        def scalar(*inside: Any) -> Any:
            whole: list[Any] = list(values)
            for place, item in zip(moving, inside, strict=True):
                whole[place] = item
            results = _listed(peer(*whole, **case.attributes))
            return sum((result * item).sum() for result, item in zip(results, given, strict=True))

        return jax.grad(scalar, argnums=places)(*floats_)

    def weighed(*floats_: Any) -> Any:
        return sum((g * w).sum() for g, w in zip(gradients(*floats_), weights, strict=True))

    chosen = [values[n] for n in moving]
    both = jax.jit(lambda *floats_: (gradients(*floats_), jax.grad(weighed, argnums=places)(*floats_)))
    first, second = both(*chosen)  # compiled once: one by one, its operations take far longer
    return [np.asarray(item) for item in first], [np.asarray(item) for item in second]


def drawn(case: Case, seed: int) -> tuple[Arrays, Arrays, Arrays]:
    """Inputs of a call, cotangents of its results, and the weights of its gradients in a sum."""
    values = case.values(seed)
    given = cotangents_for(case.function(), values, seed)
    rng = np.random.default_rng(seed + 1)
    return values, given, [rng.standard_normal(value.shape) for value in values if value.dtype.kind == "f"]


def check(case: Case, seed: int, peer: Peer, theirs: Callable[..., tuple[Arrays, Arrays]]) -> None:
    """Compare first and second derivatives of one call with a peer's."""
    compare(case, seed, theirs(peer, case, *drawn(case, seed)))


def compare(case: Case, seed: int, expected: tuple[Arrays, Arrays]) -> None:
    """Compare first and second derivatives of one call."""
    function, (values, given, weights) = case.function(), drawn(case, seed)
    moving = [n for n, value in enumerate(values) if value.dtype.kind == "f"]
    backward = vjp(function, moving)
    first = floats(evaluate(backward, *values, *given))[-len(moving) :]
    zeros = [np.zeros_like(item) for item in floats(evaluate(function, *values))]
    second = floats(evaluate(vjp(backward, moving), *values, *given, *zeros, *weights))[-len(moving) :]
    for order, (mine, wanted) in enumerate(zip((first, second), expected, strict=True), 1):
        for place, (found, right) in enumerate(zip(mine, wanted, strict=True)):
            scale = max(1.0, float(np.abs(right).max(initial=0)))
            np.testing.assert_allclose(
                found, right, rtol=TOLERANCE, atol=TOLERANCE * scale, err_msg=f"derivative {order} for input {place}"
            )


def record(path: Path, seeds: Sequence[int]) -> None:
    """Write what JAX says of some random calls: tests compare with it where there is no JAX."""
    peers, rows = jax_peers(), []
    for seed in seeds:
        case = random_case(seed)
        both = jax_gradients(peers[case.operator], case, *drawn(case, seed))
        first, second = ([item.tolist() for item in arrays] for arrays in both)
        rows.append({"seed": seed, "call": str(case), "first": first, "second": second})
    path.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Check many calls; the exit status says whether all are right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", choices=["torch", "jax", "differences"], default="torch")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, metavar="FILE", help="write JAX's derivatives of the random calls")
    chosen = parser.parse_args(arguments)
    if chosen.record is not None:
        record(chosen.record, range(chosen.seed, chosen.seed + chosen.count))
        return 0
    tables = {"torch": torch_peers, "jax": jax_peers, "differences": dict}
    peers, theirs = tables[chosen.peer](), jax_gradients if chosen.peer == "jax" else torch_gradients
    random = [random_case(seed) for seed in range(chosen.seed, chosen.seed + chosen.count)]
    used: Counter[str] = Counter()
    wrong: list[str] = []
    for seed, case in enumerate([*CASES, *random], chosen.seed):
        if chosen.peer != "differences" and case.operator not in peers:
            continue
        used[case.operator] += 1
        try:
            if chosen.peer == "differences":
                check_reverse(case.function(), case.values(seed), seed)
            else:
                check(case, seed, peers[case.operator], theirs)
        except Exception as error:
            wrong.append(str(case))
            print(f"{case} with seed {seed}: {type(error).__name__}: {str(error).strip()[:600]}", flush=True)
    figures = {"peer": chosen.peer, "calls": used.total(), "operators": len(used), "wrong": len(wrong)}
    print(json.dumps(figures))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
