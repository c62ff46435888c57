"""torch's types of 8 bits and fewer: conversions to the bit, parameters, inputs and results."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.requirements import need_module
from tilewright.frontend import from_torch
from tilewright.support.errors import UserError

torch = need_module("torch")

FLOATS = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")


def finite(name: str) -> torch.Tensor:
    """All halves that a type has values for (beyond them torch and ml_dtypes give NaN of different bits)."""
    halves = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.float16).to(torch.float32)
    return halves[halves.abs() <= torch.finfo(getattr(torch, name)).max].contiguous()


@pytest.mark.parametrize("name", FLOATS)
def test_conversions(wrap, name: str) -> None:
    kind, x = getattr(torch, name), finite(name)
    program = wrap(lambda x: (x.to(kind), x.to(kind).to(torch.float32)))
    codes, values = tw.compile(from_torch(program, (x,)), threads=1)(x)
    assert codes.dtype is kind
    expected, numbers = program(x)
    assert torch.equal(codes.view(torch.uint8), expected.view(torch.uint8))
    assert torch.equal(values, numbers)


def test_powers_of_two(wrap) -> None:
    x = torch.tensor([1.0, 1.25, 2.0, 3.1, 1e-30, 1e30])
    program = wrap(lambda x: x.to(torch.float8_e8m0fnu).to(torch.float32))
    assert torch.equal(tw.compile(from_torch(program, (x,)), threads=1)(x), program(x))


@pytest.mark.parametrize("name", FLOATS)
def test_parameters_and_inputs(name: str) -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", torch.linspace(-2, 2, 35).reshape(5, 7).to(getattr(torch, name)))

        def forward(self, x):
            return x.to(torch.float32) @ self.weight.to(torch.float32).T

    x = torch.linspace(-1, 1, 21).reshape(3, 7).to(getattr(torch, name))
    module = Scaled()
    torch.testing.assert_close(tw.compile(from_torch(module, (x,)), threads=1)(x), module(x))


def test_pairs_of_4_bit_floats_are_bytes(wrap) -> None:
    codes = torch.tensor([[0x21, 0x43, 0xF7]], dtype=torch.uint8)
    pairs = codes.view(torch.float4_e2m1fn_x2)
    program = wrap(lambda x: x.view(torch.uint8) & 15)
    exe = tw.compile(from_torch(program, (pairs,)), threads=1)
    assert torch.equal(exe(pairs), codes & 15)


def test_pairs_are_given_to_models_of_4_bit_floats() -> None:
    """A model of another source takes torch's packed elements, and unpacks them."""
    from onnx import TensorProto, helper

    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)
    graph = helper.make_graph(
        [node],
        "values",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT4E2M1, (2, 4))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, 4))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    pairs = torch.tensor([[0x21, 0x43], [0xA9, 0x7F]], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    exe = tw.compile(model, threads=1)
    np.testing.assert_array_equal(exe(pairs), [[0.5, 1, 1.5, 2], [-0.5, -1, -6, 6]])
    moved = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "moved",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT4E2M1, (2, 4))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT4E2M1, (2, 4))],
    )
    same = tw.compile(helper.make_model(moved, opset_imports=[helper.make_opsetid("", 23)], ir_version=11), threads=1)
    with pytest.raises(UserError, match="pairs of 4-bit floats: results take a byte each"):
        same(pairs, out=pairs)


@pytest.mark.parametrize("name", ["uint4", "int4", "uint2", "int2", "uint1", "int1"])
def test_integers_of_few_bits(wrap, name: str) -> None:
    """Torch holds them in bytes and computes nothing with them: they are read as bytes."""
    kind = getattr(torch, name)
    given = torch.tensor([0, 1, 0, 1, 1], dtype=torch.uint8).view(kind)
    program = wrap(lambda x: x.view(torch.uint8) + 1)
    exe = tw.compile(from_torch(program, (given,)), threads=1)
    assert torch.equal(exe(given), program(given))


@pytest.mark.parametrize("shapes", [((), ()), ((6, 1), (1, 16))], ids=["of tensors", "of rows and columns"])
@pytest.mark.parametrize("out", ["float32", "bfloat16"])
def test_products_with_scales(wrap, shapes, out: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(n, 32, generator=generator).to(torch.float8_e4m3fn) for n in (6, 16))
    scales = [torch.rand(shape, generator=generator) + 0.5 for shape in shapes]
    program = wrap(lambda x, s: torch._scaled_mm(x, weight.t(), s, scales[1], out_dtype=getattr(torch, out)))
    found = tw.compile(from_torch(program, (x, scales[0])), threads=1)(x, scales[0])
    torch.testing.assert_close(found, program(x, scales[0]), rtol=1e-5 if out == "float32" else 1e-2, atol=1e-5)
