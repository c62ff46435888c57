"""On a machine of many cores no kernel leaves most of its work to one of them, and results stay what they are."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.topi.differential import run_reference
from tilewright.graph.ir.expr import Function, Tuple, Var
from tilewright.graph.ir.op import call
from tilewright.ir.expr import const_value
from tilewright.ir.function import IRModule
from tilewright.ir.node import Node
from tilewright.ir.types import tensor_type
from tilewright.tir.stmt import Block, For, LoopKind

CORES = 16
LARGE = 1 << 19
"""Steps of a stage that are worth all cores' work."""
LAST = {"data_layout": "NHWC", "kernel_layout": "HWIO", "dilation": (1, 1)}
THREE = {**LAST, "kernel": (3, 3), "padding": (1, 1, 1, 1)}
ONE = {**LAST, "kernel": (1, 1), "padding": (0, 0, 0, 0), "strides": (1, 1), "groups": 1}
GRADIENT = "nn.conv2d_weight_gradient"
SUMS = [
    ("moments", [(8, 56, 56, 24)], {"axes": (0, 1, 2)}),
    ("moments", [(8, 14, 14, 576)], {"axes": (0, 1, 2)}),
    ("nn.batch_norm_sums", [(8, 28, 28, 144), (144,), (8, 28, 28, 144)], {"axis": 3}),
    ("sum", [(4096, 40)], {"axes": (0,)}),
    ("sum", [(64, 8192)], {"axes": (1,)}),
    ("nn.softmax", [(128, 4096)], {"axis": 1}),
    ("clip", [(8, 64, 1000)], {"minimum": 0.0, "maximum": 6.0}),
    ("transpose", [(1024, 768)], {"axes": (1, 0)}),
]
"""Operators, the shapes of their inputs and their attributes."""
GRADIENTS = [
    (GRADIENT, [(8, 30, 30, 96), (8, 30, 30, 96)], {**THREE, "strides": (1, 1), "groups": 96}),
    (GRADIENT, [(8, 28, 28, 48), (8, 14, 14, 48)], {**THREE, "strides": (2, 2), "groups": 48}),
    (GRADIENT, [(8, 56, 56, 3), (8, 28, 28, 64)], {**THREE, "strides": (2, 2), "groups": 1}),
    (GRADIENT, [(8, 14, 14, 64), (8, 14, 14, 64)], {**THREE, "strides": (1, 1), "groups": 1}),
    (GRADIENT, [(8, 28, 28, 16), (8, 28, 28, 96)], ONE),
    (GRADIENT, [(8, 14, 14, 160), (8, 14, 14, 96)], ONE),
]


def _program(name: str, shapes: list[tuple[int, ...]], attributes: dict[str, Any]) -> IRModule:
    params = tuple(Var(f"x{n}", tensor_type(shape, "float32")) for n, shape in enumerate(shapes))
    return IRModule([Function("main", params, call(name, *params, **attributes))])


def _stages(node: Node, steps: int, shared: int) -> Iterator[tuple[str, int, int]]:
    """Blocks by name, with how often each is run, and over how many pieces that is divided."""
    if isinstance(node, For):
        extent = const_value(node.extent) or LARGE
        steps *= extent
        if node.kind is LoopKind.PARALLEL:
            shared *= extent
    if isinstance(node, Block) and not any(isinstance(item, Block) for item in _below(node)):
        yield node.name, steps, shared
    for child in node.children():
        yield from _stages(child, steps, shared)


def _below(node: Node) -> Iterator[Node]:
    for child in node.children():
        yield child
        yield from _below(child)


@pytest.mark.parametrize(("name", "shapes", "attributes"), SUMS + GRADIENTS)
@pytest.mark.parametrize("processor", ["x86_64-unknown-linux-gnu -mcpu=emeraldrapids", "aarch64-linux-gnu"])
def test_work_is_shared(name: str, shapes: list[tuple[int, ...]], attributes: dict[str, Any], processor: str) -> None:
    target = f"llvm -mtriple={processor} -num-cores={CORES}"
    compilation = tw.Compilation(_program(name, shapes, attributes), target)
    for kernel in compilation.kernels:
        for stage, steps, shared in _stages(compilation.scheduled(kernel).body, 1, 1):
            assert steps < LARGE or shared >= CORES // 2, f"{kernel.symbol}: {stage} is divided into {shared} pieces"


@pytest.mark.parametrize(("name", "shapes", "attributes"), [*SUMS[:3], *GRADIENTS])
def test_results_of_many_cores(name: str, shapes: list[tuple[int, ...]], attributes: dict[str, Any]) -> None:
    rng = np.random.default_rng(prod(shapes[0]))
    inputs = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    executable = tw.compile(_program(name, shapes, attributes), f"native -num-cores={CORES}")
    found, again = executable(*inputs), executable(*inputs)
    expected = run_reference(name, inputs, **attributes)
    lists = (list(item) if isinstance(item, (tuple, list)) else [item] for item in (found, again, expected))
    for ours, second, right in zip(*lists, strict=True):
        np.testing.assert_array_equal(ours, second)
        np.testing.assert_allclose(ours, right, rtol=2e-4, atol=2e-4 * float(np.abs(right).max()))


def test_rows_of_an_open_size_are_shared() -> None:
    """Updates of parameters of many sizes have one kernel: it wakes other cores where a size is worth it."""
    params = [Var(f"x{n}", tensor_type((1000 + 4099 * n,), "float32")) for n in range(20)]
    body = [call("clip", call("multiply", item, item), minimum=0.0, maximum=6.0) for item in params]
    module = IRModule([Function("main", tuple(params), Tuple(tuple(body)))])
    compilation = tw.Compilation(module, f"native -num-cores={CORES}")
    assert len(compilation.kernels) < len(params)
    inputs = [np.linspace(-3, 3, item.tensor_type.shape[0].value, dtype=np.float32) for item in params]
    for given, found in zip(inputs, compilation.executable()(*inputs), strict=True):
        np.testing.assert_array_equal(found, np.clip(given * given, 0, 6))
    (shared,) = [kernel for kernel in compilation.kernels if "elements" in str(kernel.func)]
    assert "parallel(" in str(compilation.scheduled(shared))
    assert not compilation.far_kernels
