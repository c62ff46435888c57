"""The cases of the torch operator benchmark: samples of torch's operator database, run and compared in programs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

import tilewright as tw
from tilewright.frontend import from_torch
from tilewright.graph.interpreter import evaluate
from tilewright.ir.function import IRModule
from tilewright.support.errors import UnsupportedError

TOGETHER = 24
"""The most samples in one program: exporting one by one costs more than compiling them."""
RELATIVE, ABSOLUTE = 1e-4, 1e-5
"""How far single-precision results may be from torch's: absolutely, of the largest element of a result."""
UNSET = frozenset(
    "empty empty_like new_empty empty_strided new_empty_strided empty_permuted resize_ resize_as_".split()
)
"""Operators whose results hold anything: only their shapes and types are compared."""
LEFT_OUT = ("jiterator_", "as_strided.partial_views")
"""Operators that torch has for other processors only, or whose inputs are parts of larger tensors."""
UNSIGNED = frozenset({"linalg.eigh", "linalg.svd", "svd"})
"""Operators whose vectors may point either way: only sizes are compared."""

Run = Callable[[IRModule, Sequence[np.ndarray]], Sequence[np.ndarray]]


@dataclass(frozen=True)
class Outcome:
    """What became of the samples of an operator."""

    name: str
    verdict: str
    """passed (all of them), failed (one gave something else, or broke), unsupported (one was refused)."""
    passed: int
    total: int
    reason: str = ""


def operators() -> dict[str, Any]:
    """The operators of the database that have single-precision samples, by name and variant."""
    found: dict[str, Any] = {}
    for operator in op_db:
        variant = operator.variant_test_name
        name = f"{operator.name}.{variant}" if variant else operator.name
        if torch.float32 in operator.supported_dtypes("cpu") and not name.startswith(LEFT_OUT):
            found[name] = operator
    return found


def run_compiled(module: IRModule, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    """Through the compiler."""
    result = tw.compile(module, threads=1)(*inputs)
    return [np.asarray(item) for item in (result if isinstance(result, (tuple, list)) else [result])]


def run_interpreted(module: IRModule, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    """Through the graph interpreter."""
    result = evaluate(module, *inputs)
    return list(result) if isinstance(result, tuple) else [result]  # type: ignore[list-item]


class Program(torch.nn.Module):
    """Several calls of an operator as one program of their tensors."""

    def __init__(self, function: Any, samples: Sequence[Any]) -> None:
        super().__init__()
        self.function, self.structures, self.fixed = function, [], []
        tensors: list[torch.Tensor] = []
        for sample in samples:
            leaves, structure = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
            self.structures.append(structure)
            self.fixed.append([None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves])
            places = [index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
            self.fixed[-1].append(places)
            tensors += [leaf.detach() for leaf in leaves if isinstance(leaf, torch.Tensor)]
        self.tensors = tuple(tensors)

    def forward(self, *tensors: torch.Tensor) -> list[Any]:
        """The results of all calls, in order."""
        results: list[Any] = []
        position = 0
        for structure, fixed in zip(self.structures, self.fixed, strict=True):
            leaves, places = list(fixed[:-1]), fixed[-1]
            for place in places:
                leaves[place] = tensors[position].clone()  # operators that write to an input write to a copy
                position += 1
            first, args, kwargs = pytree.tree_unflatten(leaves, structure)
            results += [item for item in pytree.tree_leaves(self.function(first, *args, **kwargs)) if item is not None]
        return results


def run_operator(name: str, run: Run, limit: int | None = None) -> Outcome:
    """All samples of an operator; together first, one by one where that fails."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    operator = operators()[name]
    samples = list(operator.sample_inputs("cpu", torch.float32, requires_grad=False))[:limit]
    passed = 0
    for start in range(0, len(samples), TOGETHER):
        part = samples[start : start + TOGETHER]
        try:
            _check(operator, part, run)
        except Exception as error:  # whatever goes wrong is a verdict
            alone, reason = _run_alone(operator, part, run, error)
            return Outcome(name, _verdict(reason), passed + alone, len(samples), _text(reason))
        passed += len(part)
    return Outcome(name, "passed", passed, len(samples))


def _run_alone(operator: Any, samples: Sequence[Any], run: Run, together: Exception) -> tuple[int, Exception]:
    """How many samples pass one by one until the first that does not, and what went wrong with that."""
    for index, sample in enumerate(samples):
        try:
            _check(operator, [sample], run)
        except Exception as error:  # whatever goes wrong is a verdict
            return index, error
    return len(samples), together


def _verdict(error: Exception) -> str:
    """What is refused is unsupported; everything else is a failure."""
    return "unsupported" if isinstance(error, UnsupportedError) else "failed"


def _text(error: Exception) -> str:
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message[:300]}"


def _check(operator: Any, samples: Sequence[Any], run: Run) -> None:
    program = Program(operator.op, samples)
    with torch.no_grad():
        expected = program(*(tensor.clone() for tensor in program.tensors))
    module = from_torch(program, program.tensors)
    inputs = [tensor.contiguous().numpy() for tensor in program.tensors]
    _compare(operator, expected, run(module, inputs))


def _compare(operator: Any, expected: Sequence[Any], found: Sequence[np.ndarray]) -> None:
    if len(expected) != len(found):
        raise AssertionError(f"{len(found)} results, not {len(expected)}")
    for wanted, given in zip(expected, found, strict=True):
        if not isinstance(wanted, torch.Tensor):
            # A number of Python's is a double, a whole number of 64 bits or a truth value.
            wanted = torch.as_tensor(np.asarray(wanted))
        bits = given.view(np.uint16) if given.dtype.name == "bfloat16" else given
        value = torch.from_numpy(np.array(bits, copy=True))
        if wanted.dtype is torch.bfloat16:
            value = value.view(torch.bfloat16) if value.dtype is torch.uint16 else value.to(torch.bfloat16)
        if operator.name in UNSIGNED:
            value, wanted = value.abs(), wanted.abs()
        if operator.name in UNSET:
            if wanted.shape != value.shape or wanted.dtype != value.dtype:
                raise AssertionError(f"{value.dtype}{tuple(value.shape)}, not {wanted.dtype}{tuple(wanted.shape)}")
            continue
        rough = 100 if wanted.dtype in (torch.bfloat16, torch.float16) else 1
        finite = wanted[torch.isfinite(wanted)] if wanted.is_floating_point() else wanted.new_zeros(0)
        largest = max(1.0, float(finite.abs().max())) if finite.numel() else 1.0
        torch.testing.assert_close(
            value, wanted, rtol=RELATIVE * rough, atol=ABSOLUTE * rough * largest, equal_nan=True
        )
