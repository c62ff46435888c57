"""Small models that show what machine parameters do: a kernel or two each, of sizes at which schedules differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tilewright.graph.ir.expr import Function, GraphExpr, Var, constant
from tilewright.graph.ir.op import call
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type


@dataclass(frozen=True, slots=True)
class MachineCase:
    """A model to time."""

    name: str
    module: Callable[[], IRModule]


def _module(name: str, x: Var, body: GraphExpr) -> IRModule:
    return IRModule([Function("main", (x,), body)], attributes={"model_name": name})


def _weights(*shape: int) -> GraphExpr:
    random = np.random.default_rng(0)
    return constant((random.standard_normal(shape) / np.sqrt(np.prod(shape[:-1]))).astype(np.float32))


def _input(*shape: int) -> Var:
    return Var("x", tensor_type(shape, "float32"))


def _elementwise(elements: int) -> MachineCase:
    def module() -> IRModule:
        x = _input(elements // 64, 64)
        return _module(name, x, call("nn.relu", call("add", call("multiply", x, _weights(64)), _weights(64))))

    name = f"elementwise_{elements}"
    return MachineCase(name, module)


def _softmax(rows: int, columns: int) -> MachineCase:
    def module() -> IRModule:
        x = _input(rows, columns)
        return _module(name, x, call("nn.softmax", x, axis=1))

    name = f"softmax_{rows}x{columns}"
    return MachineCase(name, module)


def _product(rows: int, depth: int, columns: int) -> MachineCase:
    def module() -> IRModule:
        x = _input(rows, depth)
        product = call("matmul", x, _weights(depth, columns))
        return _module(name, x, call("nn.relu", call("add", product, _weights(columns))))

    name = f"product_{rows}x{depth}x{columns}"
    return MachineCase(name, module)


def _convolution(size: int, channels: int, outputs: int, kernel: int) -> MachineCase:
    def module() -> IRModule:
        x, pad = _input(1, size, size, channels), kernel // 2
        weight = _weights(kernel, kernel, channels, outputs)
        padding = (pad, pad, pad, pad)
        found = call("nn.conv2d", x, weight, padding=padding, data_layout="NHWC", kernel_layout="HWIO")
        return _module(name, x, call("nn.relu", call("add", found, _weights(outputs))))

    name = f"convolution_{size}x{size}x{channels}x{outputs}_{kernel}x{kernel}"
    return MachineCase(name, module)


SMALL = (
    *(_elementwise(1 << power) for power in (12, 13, 14, 15, 16, 17)),
    *(_softmax(rows, 64) for rows in (32, 128, 512)),
    *(_product(rows, 32, 32) for rows in (4, 16, 64)),
)
"""Work around that for which other cores are woken."""
ROWS = (_product(1, 512, 512), _product(1, 1024, 1024), _product(1, 1024, 4096), _product(1, 4096, 4096))
"""Vectors times matrices, from the near caches to memory."""
PRODUCTS = (
    _product(16, 768, 768),
    _product(64, 256, 1024),
    _product(128, 768, 768),
    _product(196, 256, 256),
    _convolution(14, 256, 512, 1),
    _convolution(56, 64, 128, 1),
)
"""Products and 1 x 1 convolutions."""
CONVOLUTIONS = tuple(
    _convolution(size, channels, channels, 3) for size, channels in ((56, 32), (28, 64), (14, 128), (14, 256), (7, 256))
)
"""3 x 3 convolutions of stride 1, with few and many tiles of Winograd's algorithm."""
