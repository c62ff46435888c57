"""Whole models on the tensor processor: the same integers as on the CPU, on every machine that runs its programs."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.graph.fixed_layers import RandomLayers
from tilewright.graph.ir.expr import Function, Var
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import call
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type

SMALL = (
    "accel -config=block_in:8,block_out:8,inp_bytes:8192,wgt_bytes:16384,acc_bytes:16384,out_bytes:4096,uop_bytes:4096"
)


def _network() -> IRModule:
    """A residual block, a layer of stride 2, one of groups, pooling on the host, and a product of matrices."""
    x = Var("x", tensor_type((1, 16, 8, 8), "int8"))
    make = RandomLayers(5)
    first = make.layer(x, 16, 16, (3, 3), padding=(1, 1, 1, 1))
    block = make.layer(first, 16, 16, (3, 3), x, padding=(1, 1, 1, 1))
    half = make.layer(block, 32, 16, (1, 1), strides=(2, 2))
    grouped = make.layer(half, 32, 1, (3, 3), groups=32, padding=(1, 1, 1, 1))
    pooled = call("nn.max_pool2d", grouped, kernel=(2, 2), strides=(2, 2))
    rows = call("reshape", pooled, shape=(4, 32))
    return infer_types(IRModule([Function("main", (x,), make.layer(rows, 24, 32, ()))]))


def _data() -> np.ndarray:
    return np.random.default_rng(0).integers(-128, 128, (1, 16, 8, 8)).astype(np.int8)


@pytest.mark.parametrize("target", ["accel", SMALL])
def test_the_same_integers_as_on_the_cpu(target: str) -> None:
    module, x = _network(), _data()
    exe = tw.compile(module, target=target)
    on_chip = [kernel for kernel in exe.artifact.device.kernels if not kernel.on_host]
    assert len(on_chip) == 5
    np.testing.assert_array_equal(exe(x), tw.compile(module)(x))
