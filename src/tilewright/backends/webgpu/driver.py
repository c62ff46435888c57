"""WebGPU devices, through the package wgpu."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from tilewright.runtime.core.artifact import LaunchInfo
from tilewright.runtime.core.convert import Array
from tilewright.runtime.device.devices import Driver
from tilewright.runtime.device.program import Device, Scalar, pick
from tilewright.runtime.device.software import driver_features
from tilewright.support.errors import CompilerBug, UserError

_HINT = "pip install 'tilewright[webgpu]', and a driver (on Debian and Ubuntu without a GPU: mesa-vulkan-drivers)"
_MOST_BLOCKS: Final = 65535
_DOT4_PROBE: Final = "@compute @workgroup_size(1) fn probe() { let x = dot4I8Packed(1u, 1u); }"
_LIMITS: Final = (
    "max-storage-buffers-per-shader-stage",
    "max-storage-buffer-binding-size",
    "max-buffer-size",
    "max-compute-workgroup-storage-size",
    "max-compute-invocations-per-workgroup",
    "max-compute-workgroup-size-x",
    "max-compute-workgroup-size-y",
    "max-compute-workgroup-size-z",
)
"""Limits that are asked for as high as the device has them."""


class WebGPUDevice(Device):
    """One device and its queue. Launches are collected and sent when something waits for them."""

    def __init__(self, adapter: Any, wgpu: Any) -> None:
        super().__init__()
        self._wgpu = wgpu
        limits = {name: adapter.limits[name] for name in _LIMITS if name in adapter.limits}
        self._device = adapter.request_device_sync(required_limits=limits)
        self._largest = min(limits[name] for name in ("max-storage-buffer-binding-size", "max-buffer-size"))
        self.most_buffers = limits["max-storage-buffers-per-shader-stage"]
        self.name = str(adapter.info["device"])
        self.max_threads = int(limits["max-compute-invocations-per-workgroup"])
        self.shared_bytes = int(limits["max-compute-workgroup-storage-size"])
        usage = wgpu.BufferUsage
        self._usage = usage.STORAGE | usage.COPY_SRC | usage.COPY_DST
        self._fence = self._device.create_buffer(size=8, usage=self._usage)
        self._encoder: Any = None
        self._pass: Any = None

    def load(self, code: bytes, launches: Sequence[LaunchInfo]) -> dict[str, Any]:
        """Compile the text; errors of the device's compiler are bugs of ours."""
        source = code.decode()
        self._check_buffers(source)
        try:
            module = self._device.create_shader_module(code=source)
            return {launch.symbol: self._pipeline(module, launch.symbol) for launch in launches}
        except self._wgpu.GPUError as error:
            raise CompilerBug(f"WebGPU refused a program on {self.name}: {error}") from error

    def _check_buffers(self, source: str) -> None:
        """Kernels declare their buffers before they begin."""
        parts = source.split("@compute")
        for declared, kernel in itertools.pairwise(parts):
            count = declared.count("var<storage")
            if count > self.most_buffers:
                name = kernel.partition("fn ")[2].partition("(")[0]
                raise UserError(
                    f"the kernel {name} uses {count} buffers, {self.name} allows {self.most_buffers} to WebGPU",
                    hint="divide it into smaller stages, or use another target",
                )

    def _pipeline(self, module: Any, symbol: str) -> Any:
        return self._device.create_compute_pipeline(
            label=symbol, layout="auto", compute={"module": module, "entry_point": symbol}
        )

    def numbers(self) -> dict[str, str | int]:
        """The limits of blocks, as far as they are tighter than every device's."""
        return {
            "max_threads": min(self.max_threads, 256),
            "shared_bytes": min(self.shared_bytes, 16384),
            "features": ",".join([*(["+dot4"] if self._has_dot4 else []), *driver_features(self.name)]),
        }

    @functools.cached_property
    def _has_dot4(self) -> bool:
        """Whether the language has dot products of bytes: its implementations that do need not say so."""
        try:
            self._device.create_shader_module(code=_DOT4_PROBE)
        except self._wgpu.GPUError:
            return False
        return True

    def allocate(self, size: int) -> Any:
        """A storage buffer, in whole words of 8 bytes."""
        whole = max(8, -(-size // 8) * 8)
        if whole > self._largest:
            raise UserError(
                f"{self.name} takes arrays of up to {self._largest} bytes in WebGPU programs, not {size}",
                hint="divide the work into smaller arrays, or use another target",
            )
        return self._device.create_buffer(size=whole, usage=self._usage)

    def write(self, memory: Any, array: Array) -> None:
        """Copy an array to a buffer; launches that were collected before come first."""
        if not array.nbytes:
            return
        self._submit()
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if raw.size % 4:
            raw = np.concatenate([raw, np.zeros(4 - raw.size % 4, np.uint8)])
        self._device.queue.write_buffer(memory, 0, raw)

    def copy(self, source: Any, source_offset: int, target: Any, target_offset: int, size: int) -> None:
        """Copy whole words from buffer to buffer, behind what was started before."""
        if not size:
            return
        self._end_pass()
        whole = -(-size // 4) * 4
        self._commands().copy_buffer_to_buffer(source, source_offset, target, target_offset, whole)

    def download(self, memory: Any, array: Array) -> None:
        """Copy a buffer into an array."""
        self._submit()
        size = -(-array.nbytes // 4) * 4
        data = np.frombuffer(self._device.queue.read_buffer(memory, 0, size), np.uint8)[: array.nbytes]
        array[...] = data.view(array.dtype).reshape(array.shape)

    def launch(self, kernel: Any, grid: tuple[int, int, int], block: tuple[int, int, int], args: list[Any]) -> None:
        """Put a kernel behind those that were started before."""
        bindings = [arg for arg in args if not isinstance(arg, Scalar)]
        scalars = [arg.bits for arg in args if isinstance(arg, Scalar)]
        if scalars:
            bindings.append(self._uniform(tuple(scalars)))
        entries = [
            {"binding": number, "resource": {"buffer": buffer, "offset": 0, "size": buffer.size}}
            for number, buffer in enumerate(bindings)
        ]
        group = self._device.create_bind_group(layout=kernel.get_bind_group_layout(0), entries=entries)
        if self._pass is None:
            self._pass = self._commands().begin_compute_pass()
        self._pass.set_pipeline(kernel)
        self._pass.set_bind_group(0, group)
        # Blocks stand in a row, folded: see backends/webgpu/kernels.py.
        total = grid[0] * grid[1] * grid[2]
        self._pass.dispatch_workgroups(min(total, _MOST_BLOCKS), -(-total // _MOST_BLOCKS), 1)

    @functools.lru_cache(maxsize=256)  # noqa: B019  (a device lives as long as the process)
    def _uniform(self, scalars: tuple[int, ...]) -> Any:
        data = np.array([*scalars, *([0] * (len(scalars) % 2))], np.int64)
        return self._device.create_buffer_with_data(data=data.view(np.uint8), usage=self._wgpu.BufferUsage.UNIFORM)

    def _commands(self) -> Any:
        if self._encoder is None:
            self._encoder = self._device.create_command_encoder()
        return self._encoder

    def _end_pass(self) -> None:
        if self._pass is not None:
            self._pass.end()
            self._pass = None

    def _submit(self) -> None:
        self._end_pass()
        if self._encoder is not None:
            self._device.queue.submit([self._encoder.finish()])
            self._encoder = None

    def wait(self) -> None:
        """Send what was collected and wait for the queue."""
        self._submit()
        # What was sent before is done when a later copy has arrived.
        self._device.queue.read_buffer(self._fence)


@functools.cache
def webgpu_device(index: int = 0) -> WebGPUDevice:
    """The WebGPU device of a number, GPUs first. A `UserError` where there is none."""
    try:
        import wgpu
        from wgpu.backends.wgpu_native.extras import set_instance_extras
    except ImportError as error:
        raise UserError("WebGPU programs need the package wgpu", hint=_HINT) from error
    # Not OpenGL, which has less of WebGPU: looking for it loads Mesa's drivers with an LLVM of their own, after which
    # `import triton`, as torch does it, ends the process. A program that uses wgpu itself has chosen already.
    with contextlib.suppress(RuntimeError):
        set_instance_extras(backends=["Primary"])
    order = ("DiscreteGPU", "IntegratedGPU", "VirtualGPU", "CPU")
    adapters = [one for one in wgpu.gpu.enumerate_adapters_sync() if one.info["adapter_type"] in order]
    adapters.sort(key=lambda one: (one.info["backend_type"] == "OpenGL", order.index(one.info["adapter_type"])))
    if not adapters:
        raise UserError("there is no WebGPU device here", hint=_HINT)
    return WebGPUDevice(pick(adapters, index, "WebGPU"), wgpu)


DRIVER: Final = Driver(webgpu_device)
