"""Operators of backward passes on devices: kernels of many blocks, not one thread."""

from __future__ import annotations

import pytest

import tilewright as tw
from tilewright.graph.ir.expr import Function, Var
from tilewright.graph.ir.op import call
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type
from tilewright.ir.visit import find_all
from tilewright.lower.kernel import Kernel
from tilewright.tir.passes.split_host_device import buffer_bytes
from tilewright.tir.stmt import Allocate

LAST = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
CASES: dict[str, tuple[list[tuple[tuple[int, ...], str]], dict[str, object]]] = {
    "nn.conv2d_weight_gradient": (
        [((2, 16, 16, 32), "float32"), ((2, 16, 16, 64), "float32")],
        {"kernel": (3, 3), "padding": (1, 1, 1, 1), **LAST},
    ),
    "nn.layer_norm_gradient": (
        [((64, 256), "float32"), ((256,), "float32"), ((64, 256), "float32"), *([((64, 1), "float32")] * 2)],
        {"axis": 1},
    ),
    "segment_sum": ([((512, 64), "float32"), ((512,), "int64")], {"count": 3000, "inside": True}),
}


MOST_PRIVATE = 1024
"""Bytes that fit the registers of a thread; more is memory that every thread of the device is given."""


def private_bytes(compilation: tw.Compilation, kernel: Kernel) -> int:
    """The most that a thread of a kernel has for itself."""
    found = [item.buffer for item in find_all(compilation.lowered_kernel(kernel).body, Allocate)]
    return max((buffer_bytes(item) or 0 for item in found if item.scope == "local"), default=0)


@pytest.mark.parametrize("name", list(CASES))
def test_kernels_are_bound(name: str) -> None:
    inputs, attributes = CASES[name]
    params = tuple(Var(f"x{n}", tensor_type(shape, dtype)) for n, (shape, dtype) in enumerate(inputs))
    body = call(name, *params, **attributes)
    compilation = tw.Compilation(IRModule([Function("main", params, body)]), target="cuda -arch=sm_90")
    for kernel in compilation.kernels:
        text = str(compilation.scheduled(kernel))
        assert "blockIdx.x" in text and "threadIdx.x" in text, kernel
        assert private_bytes(compilation, kernel) <= MOST_PRIVATE, kernel


def test_a_sum_of_elements_at_places_that_are_data_has_a_block_of_threads() -> None:
    params = tuple(
        Var(name, tensor_type(*kind)) for name, kind in {"x": ((5000,), "float32"), "i": ((2048,), "int64")}.items()
    )
    body = call("sum", call("take", *params, axis=0), axes=(0,))
    compilation = tw.Compilation(IRModule([Function("main", params, body)]), target="cuda -arch=sm_90")
    (kernel,) = (item for item in compilation.kernels if "sum" in str(item))
    assert 'thread_binding("threadIdx.x", 256)' in str(compilation.scheduled(kernel))
    assert private_bytes(compilation, kernel) <= MOST_PRIVATE


@pytest.mark.parametrize(("channels", "results"), [(3, 16), (1, 10), (5, 33), (17, 1)])
def test_weight_gradients_of_few_channels_are_products(channels: int, results: int) -> None:
    """A tile may have fewer elements than the block that writes it has threads."""
    sizes = {"x": (8, 16, 16, channels), "g": (8, 16, 16, results)}
    params = tuple(Var(name, tensor_type(shape, "float32")) for name, shape in sizes.items())
    body = call("nn.conv2d_weight_gradient", *params, kernel=(3, 3), padding=(1, 1, 1, 1), **LAST)
    compilation = tw.Compilation(IRModule([Function("main", params, body)]), target="cuda -arch=sm_90a")
    assert not compilation.failed_templates
