"""Sums of products of bytes are exact on every target, however long: float32 would lose bits past 2^24.

Sums climb to 10^8 and come back to some odd number, so that a sum that was rounded on the way shows in the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tests.codegen.on_device import require_device
from tests.grids import rare
from tests.integration.emulation import run_emulated
from tests.requirements import need
from tilewright.frontend import from_onnx
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Function, TupleGet, Var, constant
from tilewright.graph.ir.op import call
from tilewright.graph.ops.convolution import windows
from tilewright.graph.options import GraphOptions
from tilewright.graph.pipeline import optimize
from tilewright.ir.dtype import FLOAT32
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type
from tilewright.target import Target

DEPTH = 4096
HALF = DEPTH // 2


@dataclass(frozen=True)
class Layer:
    """A quantised layer, data for it, and the integers it must give."""

    model: bytes
    inputs: tuple[np.ndarray, ...]
    expected: np.ndarray


def rising_and_falling(*shape: int, outputs: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows of uint8 and columns of int8 whose sums of products climb past 2^26, fall again, and end small.

    The climb is of products of 255 and 127; those that take it back come later, with a few numbers between.
    """
    random = np.random.default_rng(seed)
    rows = np.full((*shape, DEPTH), 255, np.uint8)
    columns = np.empty((DEPTH, outputs), np.int8)
    columns[:HALF], columns[HALF:] = 127, -127
    # 1 * c here and there: odd numbers that a float of the climb's size cannot hold.
    places = random.choice(DEPTH, DEPTH // 8, replace=False)
    rows[..., places] = 1
    columns[places] = random.integers(-3, 4, (places.size, outputs))
    # What the places took off the climb on one side is taken off the fall.
    more = int((places < HALF).sum()) - int((places >= HALF).sum())
    side = np.setdiff1d(np.arange(HALF, DEPTH) if more > 0 else np.arange(HALF), places)
    rows[..., side[: abs(more)]] = 0
    return rows, columns


def quantized(sums: np.ndarray) -> np.ndarray:
    """The bytes of sums, a step of 2: every odd sum lies between two steps."""
    return np.clip(np.rint(sums / 2.0), -128, 127).astype(np.int8)


def model_of(
    nodes: list[tuple[str, list[str], str, dict[str, object]]],
    inputs: dict[str, np.ndarray],
    expected: np.ndarray,
    **constants: np.ndarray,
) -> bytes:
    """A model of nodes (operator, inputs, result, attributes) that ends in `y`."""
    common = {"one": np.float32(1), "two": np.float32(2), "u": np.uint8(0), "s": np.int8(0)}
    stored = [numpy_helper.from_array(np.asarray(value), name) for name, value in {**common, **constants}.items()]
    graph = helper.make_graph(
        [helper.make_node(kind, given, [result], **attributes) for kind, given, result, attributes in nodes],
        "sums",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in inputs.items()
        ],
        [helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(expected.dtype), expected.shape)],
        stored,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=10).SerializeToString()


def layer(kind: str, x: np.ndarray, w: np.ndarray, sums: np.ndarray, **attributes: object) -> Layer:
    """A layer of dequantised bytes whose result is quantised again; all scales but the last are 1."""
    zero = "u" if w.dtype == np.uint8 else "s"
    expected = quantized(sums)
    nodes: list[tuple[str, list[str], str, dict[str, object]]] = [
        ("DequantizeLinear", ["x", "one", "u"], "a", {}),
        ("DequantizeLinear", ["w", "one", zero], "b", {}),
        (kind, ["a", "b"], "c", attributes),
        ("QuantizeLinear", ["c", "two", "s"], "y", {}),
    ]
    return Layer(model_of(nodes, {"x": x}, expected, w=w), (x,), expected)


def product() -> Layer:
    x, w = rising_and_falling(3, outputs=20)
    return layer("MatMul", x, w, x.astype(np.int64) @ w.astype(np.int64))


def unsigned_weights() -> Layer:
    """Columns of uint8 that begin at zero, and rows whose zero point is 128: 255 * 127 for half of them, then back."""
    x, w = rising_and_falling(3, outputs=20)
    rows, columns = w.T.astype(np.int64) + 128, x[:1].T.astype(np.int64).repeat(5, axis=1)
    expected = quantized((rows - 128) @ columns)
    nodes: list[tuple[str, list[str], str, dict[str, object]]] = [
        ("DequantizeLinear", ["x", "one", "middle"], "a", {}),
        ("DequantizeLinear", ["w", "one", "u"], "b", {}),
        ("MatMul", ["a", "b"], "c", {}),
        ("QuantizeLinear", ["c", "two", "s"], "y", {}),
    ]
    given = {"x": rows.astype(np.uint8)}
    model = model_of(nodes, given, expected, w=columns.astype(np.uint8), middle=np.uint8(128))
    return Layer(model, (given["x"],), expected)


def pointwise() -> Layer:
    x, w = rising_and_falling(1, 2, 3, outputs=8)
    sums = (x.astype(np.int64) @ w.astype(np.int64)).transpose(0, 3, 1, 2)
    return layer("Conv", np.ascontiguousarray(x.transpose(0, 3, 1, 2)), w.T[:, :, None, None].copy(), sums)


def grouped() -> Layer:
    parts = [rising_and_falling(1, 2, 2, outputs=4, seed=seed) for seed in range(2)]
    x = np.concatenate([rows for rows, _ in parts], axis=3).transpose(0, 3, 1, 2)
    w = np.concatenate([columns.T for _, columns in parts], axis=0)[:, :, None, None]
    sums = np.concatenate([rows.astype(np.int64) @ columns.astype(np.int64) for rows, columns in parts], axis=3)
    return layer("Conv", np.ascontiguousarray(x), w.copy(), sums.transpose(0, 3, 1, 2), group=2)


def depthwise() -> Layer:
    rows, columns = rising_and_falling(2, outputs=2)
    x, w = rows.reshape(1, 2, 64, 64), columns.T.reshape(2, 1, 64, 64).copy()
    view = windows(x.astype(np.int64), (64, 64), (1, 1), (1, 1))
    sums = (view * w[:, 0][None, :, None, None]).sum(axis=(4, 5))
    return layer("Conv", x, w, sums, group=2)


def transposed() -> Layer:
    x, w = rising_and_falling(1, 2, 2, outputs=12)
    sums = (x.astype(np.int64) @ w.astype(np.int64)).reshape(1, 2, 2, 3, 2, 2)
    # (n, y, x, o, ky, kx) -> (n, o, y * 2 + ky, x * 2 + kx)
    sums = sums.transpose(0, 3, 1, 4, 2, 5).reshape(1, 3, 4, 4)
    weight = w.reshape(DEPTH, 3, 2, 2)
    return layer("ConvTranspose", np.ascontiguousarray(x.transpose(0, 3, 1, 2)), weight, sums, strides=[2, 2])


def of_activations() -> Layer:
    """Both operands are computed; few rows, and enough of them to be worth packing."""
    x, w = rising_and_falling(2, 9, outputs=6)
    w = np.stack([w, -w])
    expected = quantized(x.astype(np.int64) @ w.astype(np.int64))
    nodes: list[tuple[str, list[str], str, dict[str, object]]] = [
        ("DequantizeLinear", ["x", "one", "u"], "a", {}),
        ("DequantizeLinear", ["w", "one", "s"], "b", {}),
        ("MatMul", ["a", "b"], "c", {}),
        ("QuantizeLinear", ["c", "two", "s"], "y", {}),
    ]
    return Layer(model_of(nodes, {"x": x, "w": w}, expected), (x, w), expected)


def dynamic() -> Layer:
    """As dynamic quantisation writes it: a product of integers, then the scale."""
    x, w = rising_and_falling(3, outputs=20)
    expected = ((x.astype(np.int64) - 1) @ w.astype(np.int64)).astype(np.float32) * np.float32(0.5)
    nodes: list[tuple[str, list[str], str, dict[str, object]]] = [
        ("MatMulInteger", ["x", "w", "zx"], "c", {}),
        ("Cast", ["c"], "f", {"to": TensorProto.FLOAT}),
        ("Mul", ["f", "half"], "y", {}),
    ]
    zero = np.uint8(1)
    model = model_of(nodes, {"x": x, "zx": zero}, expected, w=w, half=np.float32(0.5))
    return Layer(model, (x, np.asarray(zero)), expected)


LAYERS: dict[str, Callable[[], Layer]] = {
    "product": product,
    "unsigned_weights": unsigned_weights,
    "pointwise": pointwise,
    "grouped": grouped,
    "depthwise": depthwise,
    "transposed": transposed,
    "of_activations": of_activations,
    "dynamic": dynamic,
}
WITHOUT_BYTES = {"aarch64": "llvm -mattr=-dotprod", "x86_64": "llvm -mattr=-avx512vnni,-avxvnni"}
"""This processor without products of bytes."""
ELSEWHERE = {
    "vnni": "llvm -mtriple=x86_64-linux-gnu -mcpu=icelake-server",
    "avx512": "llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512",
    "avx2": "llvm -mtriple=x86_64-linux-gnu -mcpu=haswell",
    "dotprod": "llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1",
    "i8mm": "llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-v1",
    "riscv": "llvm -mtriple=riscv64-linux-gnu -mcpu=generic-rv64",
    "cuda": "cuda -arch=sm_90a",
}


def test_the_data_climbs_past_what_floats_hold() -> None:
    x, w = rising_and_falling(1, outputs=3)
    steps = np.cumsum(x[0, :, None].astype(np.int64) * w, axis=0)
    assert np.abs(steps).max() > 1 << 25
    assert (np.abs(steps[-1]) < 512).all()
    in_floats = np.add.accumulate(x[0, :, None].astype(np.float32) * w, axis=0, dtype=np.float32)[-1]
    assert (in_floats != steps[-1]).all()


def check(name: str, target: str) -> None:
    item = LAYERS[name]()
    (result,) = [tw.compile(item.model, target=target, threads=1)(*item.inputs)]
    np.testing.assert_array_equal(np.asarray(result), item.expected)


@pytest.mark.parametrize("name", LAYERS)
def test_this_processor(name: str) -> None:
    check(name, "native")
    check(name, WITHOUT_BYTES[Target("native").arch])


@pytest.mark.parametrize("name", LAYERS)
def test_c(name: str) -> None:
    need("c-compiler")
    check(name, "c")


@pytest.mark.parametrize("target", ["vulkan", *rare("opencl", "webgpu")])
@pytest.mark.parametrize(
    "name",
    ["product", "of_activations", *rare(*(name for name in LAYERS if name not in ("product", "of_activations")))],
)
def test_devices(name: str, target: str) -> None:
    require_device(Target(target))
    check(name, target)


@pytest.mark.parametrize("processor", ELSEWHERE)
@pytest.mark.parametrize("name", LAYERS)
def test_graphs_for_processors_that_are_not_here(name: str, processor: str) -> None:
    item = LAYERS[name]()
    module = optimize(from_onnx(item.model), GraphOptions(layout="NHWC", target=Target(ELSEWHERE[processor])))
    np.testing.assert_array_equal(np.asarray(evaluate(module, *item.inputs)), item.expected)


@pytest.mark.parametrize("cpu", ["x86_64-max", "riscv64-rv64"])
@pytest.mark.parametrize("name", LAYERS)
def test_emulated_processors(name: str, cpu: str, tmp_path: Path) -> None:
    item = LAYERS[name]()
    target = ELSEWHERE["avx2" if cpu.startswith("x86") else "riscv"]
    (result,) = run_emulated(item.model, target, list(item.inputs), [item.expected], tmp_path, cpu)
    np.testing.assert_array_equal(result, item.expected)


def test_pairs_of_16_bits_are_one_instruction() -> None:
    compilation = tw.Compilation(product().model, ELSEWHERE["avx2"], threads=1)
    assert any("avx2.pmadd.wd" in compilation.llvm_ir(kernel) for kernel in compilation.kernels)


def test_the_state_of_a_recurrent_layer() -> None:
    """Weights of 0 and 255 are bytes less 128 with an offset: sums of 10^9 whose difference is some thousands."""
    size, random = 512, np.random.default_rng(0)
    state = random.uniform(0.9, 1, (1, size)).astype(np.float32)
    integers = constant(np.int32(255) * np.broadcast_to(np.eye(size, dtype=np.int32), (4, size, size)))
    weights = call("multiply", call("cast", integers, dtype=FLOAT32), constant(np.float32(0.02)))
    cell = constant(np.ones((1, size), np.float32))
    hidden = Var("hidden", tensor_type((1, size), "float32"))
    gates = (("sigmoid", 0.0, 0.0), ("tanh", 0.0, 0.0), ("tanh", 0.0, 0.0))
    # Gates are steep around zero.
    entered = constant(np.full((1, 1, 4, size), -0.95 * 255 * 0.02, np.float32))
    states = call("nn.lstm", entered, weights, hidden, cell, activations=gates)
    module = IRModule([Function("main", (hidden,), TupleGet(states, 0))])
    found = np.asarray(tw.compile(module, threads=1)(state))
    target = Target("native")
    expected = np.asarray(evaluate(optimize(module, GraphOptions(target=target)), state))
    # A float of the size of the sums has steps of 1e-4 in what enters a gate.
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
