"""Winograd's algorithm in whole models: used where it pays, exact enough, and switched off when asked."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import tilewright as tw
from bench import zoo
from tests.requirements import need
from tilewright.cli.measure import max_relative_error
from tilewright.cli.peers import onnxruntime
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Function, Var, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import call
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type

need("onnxruntime")

AVX512 = "llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512"


def winograd_kernels(compilation: tw.Compilation) -> int:
    return sum("winograd" in kernel.symbol for kernel in compilation.kernels)


def test_resnet_uses_it_unless_told_otherwise() -> None:
    assert winograd_kernels(tw.Compilation(zoo.path("resnet18"), AVX512)) >= 4
    assert winograd_kernels(tw.Compilation(zoo.path("resnet18"), AVX512, winograd=False)) == 0


@pytest.mark.slow
def test_resnet_is_as_exact_on_two_threads_as_with_direct_convolutions() -> None:
    inputs = zoo.inputs("resnet18")
    expected = onnxruntime(zoo.path("resnet18"), 1, inputs)()
    executable = tw.compile(zoo.path("resnet18"), threads=2)
    outputs = executable.run(inputs)
    assert max_relative_error(outputs, expected) <= 5e-6
    for first, second in zip(outputs, executable.run(inputs), strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.fixture(scope="module")
def any_batch(tmp_path_factory: pytest.TempPathFactory) -> str:
    """ResNet-18 as exporters leave it where the batch is open."""
    model = onnx.load(zoo.path("resnet18"))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    path = tmp_path_factory.mktemp("models") / "resnet18.onnx"
    onnx.save(model, path)
    return str(path)


def test_an_open_batch_is_computed_as_one_image_is(any_batch: str) -> None:
    def by_winograd(path: str) -> list[str]:
        symbols = [kernel.symbol for kernel in tw.Compilation(path, AVX512).kernels if "winograd" in kernel.symbol]
        return sorted(symbol.rsplit("_", 1)[0] for symbol in symbols)

    assert by_winograd(any_batch) == by_winograd(str(zoo.path("resnet18")))


@pytest.mark.slow
def test_resnet_of_an_open_batch(any_batch: str) -> None:
    executable = tw.compile(any_batch, threads=2)
    (image,) = zoo.inputs("resnet18").values()
    noise = np.random.default_rng(0).standard_normal((3, *image.shape[1:]), np.float32)
    for batch in (1, 3):
        inputs = {"input": image + noise[:batch] * np.float32(0.1)}
        assert max_relative_error(executable.run(inputs), onnxruntime(any_batch, 1, inputs)()) <= 5e-6
    (none,) = executable.run({"input": noise[:0]})
    assert none.shape == (0, 1000)


@pytest.mark.parametrize("threads", [1, 2])
def test_frames_of_clips(threads: int) -> None:
    """The number of images is an expression of the symbol: two frames a clip."""
    clips = tw.te.var("clips")
    x = Var("x", tensor_type((clips, 2, 14, 14, 32), "float32"))
    rng = np.random.default_rng(0)
    w = constant((rng.standard_normal((3, 3, 32, 32)) / 17).astype(np.float32))
    images = call("reshape", x, shape=(2 * clips, 14, 14, 32))
    body = call("nn.conv2d", images, w, padding=(1, 1, 1, 1), data_layout="NHWC", kernel_layout="HWIO")
    module = IRModule([Function("main", (x,), call("nn.relu", body))])
    assert winograd_kernels(tw.Compilation(module, AVX512)) == 1
    executable = tw.compile(module, threads=threads)
    for count in (0, 1, 3):
        data = rng.standard_normal((count, 2, 14, 14, 32)).astype(np.float32)
        np.testing.assert_allclose(executable(data), evaluate(infer_types(module), data), rtol=0, atol=2e-5)
