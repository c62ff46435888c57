"""Results over arguments on devices: where the most memory is taken, and nowhere else."""

from __future__ import annotations

from tests.graph.passes.checking import program
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.passes.plan_memory import plan_memory
from tilewright.lower.peak_sharing import sharing_at_the_peak
from tilewright.lower.segment import KernelSet, lower_segment
from tilewright.lower.symbols import SymbolTable
from tilewright.tir.analysis.in_place import in_place_pairs

TEXT = """
small = matmul(tanh(matmul(x, a)), b)
scores = exp(tanh(matmul(small, wide)))
softened = nn.softmax(scores, axis=1)
spread = multiply(softened, sum(softened, axes=(1,), keepdims=True))
return matmul(exp(matmul(spread, wide, transpose_b=True)), b)
"""
SHAPES = {"x": "f32[8, 8]", "a": "f32[8, 8]", "b": "f32[8, 8]", "wide": "f32[8, 64]"}


def main():
    return fuse(program(TEXT, **SHAPES), GraphOptions())


def test_steps_at_the_peak_share():
    plan = plan_memory(main())
    names = [str(step.function.notes["name"]) for step in plan.steps]
    asked = []

    def can_share(step, pair):
        asked.append(str(step.function.notes["name"]))
        return asked[-1] == "multiply"

    found = sharing_at_the_peak(plan, can_share)
    # The other step at the peak says no, and with that the search ends.
    assert set(asked) <= {"multiply", "nn_softmax"}
    assert all(pairs == [(0, 0)] and names[step] == "multiply" for step, pairs in found.items())
    assert not sharing_at_the_peak(plan, lambda step, pair: False)


def test_kernels_of_devices_are_told():
    """A multiplication at the peak may write over what it reads; smaller ones, and what is no elementwise, may not."""
    text = """
    scores = matmul(x, wide)
    spread = multiply(scores, sum(scores, axes=(1,), keepdims=True))
    small = matmul(spread, wide, transpose_b=True)
    return matmul(multiply(small, sum(small, axes=(1,), keepdims=True)), x)
    """
    function = fuse(program(text, x="f32[8, 8]", wide="f32[8, 64]"), GraphOptions())["main"]
    kernels = KernelSet(on_cpu=False, in_place=True)
    lower_segment(function, "model", ["y"], kernels, SymbolTable())
    shared = {kernel.symbol: in_place_pairs(kernel.func) for kernel in kernels.kernels}
    large = [pairs for symbol, pairs in shared.items() if "multiply" in symbol]
    assert sorted(large) == [(), ((0, 2),)]
    assert all(not pairs for symbol, pairs in shared.items() if "multiply" not in symbol)
