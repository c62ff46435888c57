"""Programs of torch's export quantisation (pt2e): integers to the bit as torch has them, products in integers."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.requirements import need_module
from tilewright.compiler import Compilation
from tilewright.frontend import from_torch
from tilewright.graph.interpreter import evaluate
from tilewright.support.errors import UnsupportedError

torch = need_module("torch")
need_module("torch.ao.quantization.fx._decomposed")  # it registers the operators
ops = torch.ops.quantized_decomposed


def between_steps(scale: float) -> torch.Tensor:
    """Numbers at and next to the middle between two steps: where multiplying by an inverse is not dividing."""
    middles = np.float32((np.arange(-140, 140) + 0.5) * scale)
    return torch.from_numpy(np.concatenate([np.nextafter(middles, np.float32(end)) for end in (-9, 9)] + [middles]))


def integers(program, *inputs) -> np.ndarray:
    return np.asarray(evaluate(from_torch(program, inputs), *(item.numpy() for item in inputs)))


@pytest.mark.parametrize("scale", [0.1, 0.0307, 1 / 3, 0.25])
@pytest.mark.parametrize(("dtype", "low", "high"), [("uint8", 0, 255), ("int8", -128, 127), ("int8", -2, 1)])
def test_numbers_between_two_steps_go_as_in_torch(wrap, scale: float, dtype: str, low: int, high: int) -> None:
    x = between_steps(scale)
    program = wrap(lambda x: ops.quantize_per_tensor(x, scale, low + 1, low, high, getattr(torch, dtype)))
    np.testing.assert_array_equal(integers(program, x), program(x).numpy())


def test_scales_by_channel(wrap) -> None:
    scales, zeros = torch.tensor([0.1, 0.02, 1.0]), torch.tensor([0, 3, -5])
    x = torch.stack([between_steps(float(scale)) for scale in scales], 1)

    def program(x):
        q = ops.quantize_per_channel(x, scales, zeros, 1, -128, 127, torch.int8)
        return q, ops.dequantize_per_channel(q, scales, zeros, 1, -128, 127, torch.int8)

    found = evaluate(from_torch(wrap(program), (x,)), x.numpy())
    for ours, theirs in zip(found, program(x), strict=True):
        np.testing.assert_array_equal(np.asarray(ours), theirs.numpy())


@pytest.mark.parametrize("name", ["choose_qparams", "choose_qparams_symmetric"])
@pytest.mark.parametrize("values", [(-1.5, 4.0), (0.0, 0.0), (2.0, 3.0), (-3.0, -1.0)])
def test_ranges_that_are_taken_when_the_program_runs(wrap, name: str, values: tuple[float, float]) -> None:
    choose = getattr(ops, name).tensor

    def program(x):
        scale, zero = choose(x, 0, 255, 1e-7, torch.uint8)
        q = ops.quantize_per_tensor.tensor(x, scale, zero, 0, 255, torch.uint8)
        return scale, zero, q, ops.dequantize_per_tensor.tensor(q, scale, zero, 0, 255, torch.uint8)

    x = torch.linspace(*values, 33).reshape(3, 11)
    exported = torch.export.export(wrap(program), (x,))
    for ours, theirs in zip(evaluate(from_torch(exported), x.numpy()), program(x), strict=True):
        np.testing.assert_array_equal(np.asarray(ours), theirs.numpy())


class Network(torch.nn.Module):
    """Two convolutions and pooling between quantised values, as a converted program has them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("first", torch.randint(-127, 128, (8, 3, 3, 3), dtype=torch.int8))
        self.register_buffer("second", torch.randint(-127, 128, (16, 8, 1, 1), dtype=torch.int8))
        self.register_buffer("steps", torch.rand(8) * 0.01 + 0.001)
        self.register_buffer("zeros", torch.zeros(8, dtype=torch.int64))

    def forward(self, x):
        x = self.rounded(x, 0.03, 128)
        weight = ops.dequantize_per_channel(self.first, self.steps, self.zeros, 0, -128, 127, torch.int8)
        x = self.rounded(torch.relu(torch.conv2d(x, weight, padding=1)), 0.05, 0)
        x = self.rounded(torch.max_pool2d(x, 2), 0.05, 0)
        weight = ops.dequantize_per_tensor(self.second, 0.004, 0, -128, 127, torch.int8)
        return ops.quantize_per_tensor(torch.conv2d(x, weight), 0.2, 100, 0, 255, torch.uint8)

    @staticmethod
    def rounded(x, scale: float, zero: int):
        """A value through integers."""
        q = ops.quantize_per_tensor(x, scale, zero, 0, 255, torch.uint8)
        return ops.dequantize_per_tensor(q, scale, zero, 0, 255, torch.uint8)


def test_a_network_is_computed_in_integers() -> None:
    network, x = Network(), torch.randn(2, 3, 10, 10)
    compilation = Compilation(from_torch(network, (x,)), threads=1)
    result = np.asarray(compilation.executable()(x.numpy()))
    # Torch adds products of floats: a sum next to the middle between two steps may go the other way.
    distance = np.abs(result.astype(int) - network(x).numpy().astype(int))
    assert distance.max() <= 1 and np.count_nonzero(distance) <= 2
    lines = str(compilation.optimized).splitlines()
    (pool,) = [line for line in lines if "= nn.max_pool2d(" in line]
    assert "uint8" in pool
    if compilation.target.has_vnni or compilation.target.has_dotprod:
        assert sum("= qnn.conv2d(" in line or "= qnn.line_conv2d(" in line for line in lines) == 2


def test_ranges_of_levels_are_known(wrap) -> None:
    def program(x, low):
        return ops.quantize_per_tensor.tensor2(
            x, torch.tensor(0.1), torch.tensor(0), low, torch.tensor(127), torch.int8
        )

    x = torch.randn(4)
    exported = torch.export.export(wrap(program), (x, torch.tensor(-128)))
    with pytest.raises(UnsupportedError, match="range that is computed"):
        from_torch(exported)


def test_compiled_code_rounds_alike(wrap) -> None:
    x = between_steps(0.1)
    program = wrap(lambda x: ops.quantize_per_tensor(x, 0.1, 3, 0, 255, torch.uint8))
    exe = tw.compile(from_torch(program, (x,)), threads=1)
    np.testing.assert_array_equal(np.asarray(exe(x.numpy())), program(x).numpy())
