"""Quantised models give the same integers wherever they run: processors, devices, C, and the interpreter."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tests.codegen.on_device import require_device
from tests.fuzz.quantized_maker import make
from tests.grids import rare
from tests.quantization.networks import images, residual_network
from tests.requirements import need
from tilewright.frontend import from_onnx
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Function
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.options import GraphOptions
from tilewright.graph.pipeline import optimize
from tilewright.ir.function import IRModule
from tilewright.onnx_writer import to_onnx
from tilewright.quantization.layers import is_operator, visible, with_more_results
from tilewright.target import Target

GRAPHS = (5, 17, 23, 38, 40)
"""Seeds of random graphs with products of every form: see `tests/fuzz/quantized_maker.py`."""
PROCESSORS = {
    "vnni": "llvm -mtriple=x86_64-linux-gnu -mcpu=icelake-server",
    "avx2": "llvm -mtriple=x86_64-linux-gnu -mcpu=haswell",
    "dotprod": "llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1",
    "riscv": "llvm -mtriple=riscv64-linux-gnu -mcpu=generic-rv64",
}
ALWAYS = (17, 23)
"""The rest takes minutes: `pytest -m fuzz` has it."""
Arrays = list[np.ndarray]
Sizes = tuple[int, ...]


def arrays(results: object) -> Arrays:
    return [np.asarray(item) for item in (results if isinstance(results, tuple | list) else (results,))]


@functools.cache
def native(seed: int) -> Arrays:
    graph = make(seed)
    return arrays(tw.compile(graph.model(), threads=1).run(graph.inputs))


def check(found: Arrays, seed: int) -> None:
    for ours, expected in zip(found, native(seed), strict=True):
        np.testing.assert_array_equal(ours, expected)


@pytest.mark.grid
@pytest.mark.parametrize("target", ["opencl", "vulkan", "webgpu", "c"])
@pytest.mark.parametrize("seed", [*ALWAYS, *rare(*(seed for seed in GRAPHS if seed not in ALWAYS))])
def test_devices(seed: int, target: str) -> None:
    if target == "c":
        need("c-compiler")
    else:
        require_device(Target(target))
    graph = make(seed)
    check(arrays(tw.compile(graph.model(), target=target).run(graph.inputs)), seed)


@pytest.mark.grid
@pytest.mark.parametrize("processor", [None, *PROCESSORS])
@pytest.mark.parametrize("seed", GRAPHS)
def test_graphs_as_they_are_compiled_for_processors(seed: int, processor: str | None) -> None:
    """The model itself, and what the graph passes make of it for processors that are not here."""
    graph = make(seed)
    module = from_onnx(graph.model())
    if processor is not None:
        module = optimize(module, GraphOptions(target=Target(PROCESSORS[processor])))
    check(arrays(evaluate(module, *graph.inputs.values())), seed)


@functools.cache
def quantized_network() -> IRModule:
    """The residual network in 8 bits, with the integers of every activation as further results."""
    main = tw.quantize(residual_network().SerializeToString(), images(), threads=1).module["main"]
    assert isinstance(main, Function)
    stored = [item for item in visible(main) if is_operator(item, "qnn.quantize")]
    assert len(stored) == 8
    return infer_types(IRModule({"main": with_more_results(main, stored)}))


@pytest.mark.parametrize("target", ["interpreter", "webgpu", *rare("opencl", "vulkan", "c")])
def test_a_network_that_was_quantised_here(target: str) -> None:
    module, x = quantized_network(), images(1, seed=8)
    expected = arrays(tw.compile(module, threads=1)(x))
    if target == "interpreter":
        found = arrays(evaluate(module, x))
    else:
        if target != "c":
            require_device(Target(target))
        found = arrays(tw.compile(module, target=target)(x))
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(found[1:], expected[1:], strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weight_bits": 4, "rounding": "learned", "activations": "int8"},
        {"scheme": "weights", "weight_bits": 4},
        *rare({"activations": "int8"}, {"per_channel": False}, {"observer": "percentile", "equalize": True}),
    ],
)
def test_a_file_has_the_same_integers(options: dict[str, object]) -> None:
    """Written as ONNX and read again, a quantised model computes the same to the bit; onnxruntime agrees."""
    need("onnxruntime")
    import onnxruntime

    module = tw.quantize(residual_network().SerializeToString(), images(), threads=1, **options).module  # type: ignore[arg-type]
    file, x = to_onnx(module), images(1, seed=8)
    result = np.asarray(tw.compile(module, threads=1)(x))
    np.testing.assert_array_equal(np.asarray(tw.compile(file, threads=1)(x)), result)
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    # On x86 onnxruntime 1.31 turns int8 into uint8 and forgets an attribute that it made itself (docs/quantization.md).
    settings.add_session_config_entry("session.qdqisint8allowed", "1")
    (theirs,) = onnxruntime.InferenceSession(file, settings).run(None, {"image": x})
    # Onnxruntime requantises in an order of its own: a number between two steps may go the other way.
    np.testing.assert_allclose(result, theirs, atol=0.02 * np.abs(theirs).max())


def between_steps(operator: str, weight: np.ndarray, shapes: tuple[Sizes, Sizes], **attributes: object) -> bytes:
    """A layer whose step is two units of its sums: every odd sum lies between two steps, where any rounding shows."""
    scale, step = np.float32(0.1), np.float32(0.1) * np.float32(0.2)
    zeros = {"zx": np.uint8(131), "zw": np.int8(0), "zy": np.int8(3)}
    constants = {"w": weight, "sx": scale, "sw": scale, "sy": step, **zeros}
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "sx", "zx"], ["a"]),
        helper.make_node("DequantizeLinear", ["w", "sw", "zw"], ["b"]),
        helper.make_node(operator, ["a", "b"], ["c"], **attributes),
        helper.make_node("QuantizeLinear", ["c", "sy", "zy"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.UINT8, shapes[0])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.INT8, shapes[1])]
    stored = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, operator, inputs, outputs, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=10).SerializeToString()


def small_bytes(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(-3, 4, shape).astype(np.int8)


BETWEEN_STEPS = {
    "product": lambda: between_steps("MatMul", small_bytes(300, 20) // 3, ((9, 300), (9, 20))),
    "grouped": lambda: between_steps("Conv", small_bytes(8, 4, 3, 3), ((1, 8, 6, 6), (1, 8, 4, 4)), group=2),
    "transposed": lambda: between_steps("ConvTranspose", small_bytes(8, 6, 3, 3), ((1, 8, 4, 4), (1, 6, 6, 6))),
}


@pytest.mark.grid
@pytest.mark.parametrize("layer", BETWEEN_STEPS)
@pytest.mark.parametrize("target", ["opencl", "vulkan", "webgpu"])
def test_sums_are_of_integers(target: str, layer: str) -> None:
    require_device(Target(target))
    model = BETWEEN_STEPS[layer]()
    exe = tw.compile(model, target=target)
    data = np.random.default_rng(1).integers(128, 135, exe.input_info[0].shape).astype(np.uint8)
    (expected,) = arrays(tw.compile(model, threads=1)(data))
    (result,) = arrays(exe(data))
    np.testing.assert_array_equal(result, expected)
    assert 10 < np.unique(result).size
