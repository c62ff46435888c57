"""Models on an NVIDIA GPU together with torch: tensors go in and out where they are, and torch's compiler uses them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.requirements import absent, need, need_module
from tests.topi.test_recurrent import FUNCTIONS, operands
from tilewright.backends.cuda.driver import CudaDevice, cuda_device
from tilewright.frontend.torch.importer import from_torch
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Function, Var, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import call
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type
from tilewright.runtime.device.array import DeviceArray
from tilewright.torch_backend import tilewright_backend

torch = need_module("torch")
nn = torch.nn


@pytest.fixture(autouse=True)
def gpu() -> CudaDevice:
    """The GPU, or a skip with the reason; products are true float32."""
    need("cuda")
    device = cuda_device()
    if not torch.cuda.is_available():
        absent("cuda", "this torch has no CUDA")
    torch._dynamo.reset()
    torch.manual_seed(1)
    torch.backends.cudnn.allow_tf32 = False
    return device


def _network() -> Any:
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 5))


def _compiled(model: Any, *inputs: Any) -> tw.Executable:
    return tw.compile(from_torch(model.cpu().eval(), tuple(item.cpu() for item in inputs)), target="cuda")


def _close(got: Any, wanted: Any) -> None:
    assert got.is_cuda
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def test_tensors_go_in_and_out_without_copies(gpu: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = _network(), torch.randn(2, 3, 4, 4, device="cuda")
    exe = _compiled(model, x)
    model.cuda()
    with torch.no_grad():
        _close(exe(x), model(x))
        copies: list[str] = []
        for name in ("copy", "write", "download"):
            monkeypatch.setattr(gpu, name, lambda *args, name=name: copies.append(name))
        first, second = exe(x), exe(x * 2)
        assert not copies
        _close(first, model(x))
        _close(second, model(x * 2))


def test_arrays_of_the_device_and_of_torch_share_memory(gpu: CudaDevice) -> None:
    model, x = nn.Linear(16, 4), torch.randn(3, 16, device="cuda")
    exe = _compiled(model, x)
    there = exe(exe.to_device(x.cpu().numpy()))
    assert isinstance(there, DeviceArray)
    tensor = torch.from_dlpack(there)
    assert tensor.data_ptr() == there.memory.address
    with torch.no_grad():
        _close(tensor, model.cuda()(x))
    tensor.zero_()
    torch.cuda.synchronize()
    np.testing.assert_array_equal(there.numpy(), np.zeros((3, 4), np.float32))


def test_work_of_other_streams_is_waited_for() -> None:
    model = nn.Linear(512, 512)
    exe = _compiled(model, torch.zeros(1, 512))
    model.cuda()
    stream = torch.cuda.Stream()
    large = torch.randn(4096, 4096, device="cuda")
    with torch.no_grad(), torch.cuda.stream(stream):
        for turn in range(5):
            # The input is long in coming, and its memory is used again at once.
            x = (large @ large)[turn : turn + 1, :512] * 1e-3
            x = x.contiguous()
            got = exe(x)
            wanted = model(x)
            _close(got, wanted)


def test_torch_compiles_for_the_gpu() -> None:
    model, x = _network().cuda().eval(), torch.randn(2, 3, 4, 4, device="cuda")
    compiled = torch.compile(model, backend=tilewright_backend)
    with torch.no_grad():
        _close(compiled(x), model(x))
        model[4].weight.mul_(2)
        _close(compiled(x), model(x))


def test_gradients_on_the_gpu() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).cuda()
    x = torch.randn(3, 4, device="cuda")
    model(x).sum().backward()
    wanted = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    torch.compile(model, backend=tilewright_backend)(x).sum().backward()
    for parameter, expected in zip(model.parameters(), wanted, strict=True):
        _close(parameter.grad, expected)


def test_sizes_that_vary_on_the_gpu() -> None:
    compiled = torch.compile(lambda x: x.relu().sum(0), backend=tilewright_backend, dynamic=True)
    for size in (3, 5, 300):
        x = torch.randn(size, 64, device="cuda")
        _close(compiled(x), x.relu().sum(0))


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])
def test_recurrent_layers_of_torch(layer: Any) -> None:
    model, x = layer(48, 130, num_layers=2), torch.randn(3, 2, 48, device="cuda")
    exe = _compiled(model, x)
    with torch.no_grad():
        wanted, _ = model.cuda().double()(x.double())
    _close(exe(x)[0].double(), wanted)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize(("steps", "batch", "size"), [(1, 1, 650), (7, 1, 96), (5, 16, 130), (3, 40, 64), (70, 2, 16)])
def test_recurrent_operators(kind: str, steps: int, batch: int, size: int) -> None:
    arrays = operands(kind, steps, batch, size)
    arrays[1] *= 3 / size**0.5
    names = [f"p{number}" for number in range(len(arrays))]
    kinds = [tensor_type(array.shape, "float32") for array in arrays]
    params = {number: Var(names[number], kinds[number]) for number in range(len(arrays)) if number != 1}
    args = [params.get(number, constant(array)) for number, array in enumerate(arrays)]
    body = call(f"nn.{kind}", *args, activations=FUNCTIONS[kind])
    module = IRModule([Function("main", tuple(params.values()), body)])
    given = [array for number, array in enumerate(arrays) if number != 1]
    got, wanted = tw.compile(module, target="cuda")(*given), evaluate(infer_types(module), *given)
    pairs = zip(*(item if isinstance(item, tuple) else (item,) for item in (got, wanted)), strict=True)
    for one, other in pairs:
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)
