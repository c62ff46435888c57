"""Scheduled functions as CUDA kernels on torch's tensors, timed by replaying graphs: what GPU benchmarks share."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.backends.cuda.compiler import compile_cuda
from tilewright.backends.device import device_kernels, device_source
from tilewright.codegen.c.program import launches_of, nbytes
from tilewright.ir.expr import PrimExpr, const_value
from tilewright.support.errors import CompilerBug, UserError
from tilewright.target import Target
from tilewright.tir.function import PrimFunc


class CudaFunction:
    """A scheduled function of constant shapes, compiled; call it with torch's CUDA tensors, outputs included.

    Where `early` is set its kernels start before those in front of them are done, as models may have it.
    """

    def __init__(self, func: PrimFunc, target: Target) -> None:
        self.early = False
        split = device_kernels(func, target)
        self.source = device_source(split.kernels, target)
        self.code = compile_cuda(self.source, target.arch)
        self.launches = launches_of(split, _known)
        self.workspaces = [_known(nbytes(buffer)) for buffer in split.workspaces]
        self._kernels: dict[str, Any] = {}
        self._scratch: list[Any] = []

    def load(self) -> None:
        """Put the code on the GPU."""
        import torch
        from cuda.bindings import driver

        torch.cuda.current_stream()
        module = _checked(driver.cuModuleLoadData(self.code))
        for launch in self.launches:
            kernel = _checked(driver.cuModuleGetFunction(module, launch.symbol.encode()))
            if launch.dynamic_bytes:
                most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                _checked(driver.cuFuncSetAttribute(kernel, most, launch.dynamic_bytes))
            self._kernels[launch.symbol] = kernel
        self._scratch = [torch.empty(max(1, size), dtype=torch.uint8, device="cuda") for size in self.workspaces]

    def __call__(self, *tensors: Any) -> None:
        """Launch the kernels on torch's current stream."""
        import torch
        from cuda.bindings import driver

        if not self._kernels:
            self.load()
        places = [tensor.data_ptr() for tensor in (*tensors, *self._scratch)]
        stream = torch.cuda.current_stream().cuda_stream
        for launch in self.launches:
            values = [ctypes.c_uint64(places[number]) for number in launch.args]
            values += [ctypes.c_uint64(value) for value in launch.values]
            addresses = (ctypes.c_void_p * max(1, len(values)))(*[ctypes.addressof(value) for value in values])
            config = driver.CUlaunchConfig()
            config.gridDimX, config.gridDimY, config.gridDimZ = (int(extent) for extent in launch.grid)
            config.blockDimX, config.blockDimY, config.blockDimZ = launch.block
            config.sharedMemBytes = launch.dynamic_bytes
            config.hStream = stream
            attributes = []
            if launch.cluster != (1, 1, 1):
                attribute = driver.CUlaunchAttribute()
                attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
                attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = (
                    launch.cluster
                )
                attributes.append(attribute)
            if self.early:
                attribute = driver.CUlaunchAttribute()
                attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
                attribute.value.programmaticStreamSerializationAllowed = 1
                attributes.append(attribute)
            config.numAttrs = len(attributes)
            config.attrs = attributes
            _checked(driver.cuLaunchKernelEx(config, self._kernels[launch.symbol], ctypes.addressof(addresses), 0))


def _known(extent: PrimExpr) -> int:
    value = const_value(extent)
    if value is None:
        raise CompilerBug(f"a size of a function of constant shapes is not constant: {extent}")
    return value


def _checked(result: Any) -> Any:
    error, *values = result
    if int(error) != 0:
        raise CompilerBug(f"the CUDA driver: {error.name}")
    return values[0] if values else None


def present_target() -> Target:
    """The target of the GPU that torch sees first."""
    import torch

    if not torch.cuda.is_available():
        raise UserError("this benchmark needs an NVIDIA GPU that torch can use", hint="see docs/gpu.md")
    capability = torch.cuda.get_device_capability()
    device: Any = torch.cuda.get_device_properties(0)
    sizes = f"-num-cores={device.multi_processor_count} -shared-bytes={device.shared_memory_per_block_optin}"
    number = f"{capability[0]}{capability[1]}"
    return Target(f"cuda -arch=sm_{number}{'a' if number == '90' else ''} {sizes}")


def seconds(call: Callable[[], object], repeats: int = 20, rounds: int = 5) -> float:
    """The least time of a call over some rounds, each a replayed graph of `repeats` calls, by the GPU's clock."""
    import torch

    torch_cuda: Any = torch.cuda
    side = torch_cuda.Stream()
    with torch.cuda.stream(side):
        call()
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            call()
    best = float("inf")
    for _ in range(rounds + 1):
        start, end = torch_cuda.Event(enable_timing=True), torch_cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        best = min(best, start.elapsed_time(end) / 1e3 / repeats)
    return best


def largest_error(got: Sequence[Any], wanted: Sequence[Any]) -> float:
    """The largest error of tensors, relative to the largest value of each (1 at least)."""
    worst = 0.0
    for one, other in zip(got, wanted, strict=True):
        difference = (one.double() - other.double()).abs().max().item() if one.numel() else 0.0
        scale = max(1.0, other.double().abs().max().item()) if one.numel() else 1.0
        worst = max(worst, float("nan") if difference != difference else difference / scale)
    return worst
