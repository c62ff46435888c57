"""Vulkan devices, through the loader's C interface. Memory is seen by the host; discrete GPUs without it are slow."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from tilewright.backends.vulkan import api as vk
from tilewright.runtime.core.artifact import LaunchInfo
from tilewright.runtime.core.convert import Array, address_of
from tilewright.runtime.device.devices import Driver
from tilewright.runtime.device.program import Device, Scalar, pick
from tilewright.runtime.device.software import driver_features
from tilewright.support.errors import CompilerBug, UserError

_HINT: Final = "install the loader and a driver (on Debian and Ubuntu without a GPU: libvulkan1, mesa-vulkan-drivers)"
_MOST_BLOCKS: Final = 65535
_LIBRARIES: Final = ("libvulkan.so.1", "libvulkan.1.dylib", "libMoltenVK.dylib", "vulkan-1.dll")
_SETS, _DESCRIPTORS = 512, 8192
_DOT_PRODUCT: Final = 6019
_CAPABILITIES: Final = {
    10: "float64",
    11: "64-bit integers",
    4433: "16-bit storage",
    4448: "8-bit storage",
    _DOT_PRODUCT: "dot products of bytes",
}


class VulkanDevice(Device):
    """One device and its queue. Launches are collected in a command buffer and sent when something waits for them."""

    def __init__(self, library: Any, physical: Any, properties: vk.Properties) -> None:
        super().__init__()
        self._vk = library
        self.name = properties.name
        self._properties = properties
        self._missing = self._create(physical)
        self._command = ctypes.c_void_p()
        pool = self._make("vkCreateCommandPool", vk.CommandPoolCreateInfo, 39, flags=2, family=self._family)
        info = vk.make(vk.CommandBufferAllocateInfo, 40, pool=pool.value, count=1)
        self._call("vkAllocateCommandBuffers", self._device, ctypes.byref(info), ctypes.byref(self._command))
        size = vk.PoolSize(kind=vk.STORAGE_DESCRIPTOR, count=_DESCRIPTORS)
        self._sets = self._make(
            "vkCreateDescriptorPool", vk.DescriptorPoolCreateInfo, 33, sets=_SETS, sizeCount=1, sizes=_address(size)
        )
        self._fence = self._make("vkCreateFence", vk.FenceCreateInfo, 8)
        self._recording = False
        self._used = [0, 0]
        self._alive: list[Any] = []

    def numbers(self) -> dict[str, str | int]:
        """The limits of blocks, as far as they are tighter than usual."""
        found = self._properties
        return {
            "max_threads": min(found.max_threads, 256),
            "shared_bytes": min(found.shared_bytes, 16384),
            "features": ",".join(
                [*([] if _DOT_PRODUCT in self._missing else ["+dot4"]), *driver_features(str(self.name))]
            ),
        }

    # ---------------------------------------------------------------- the driver

    def _call(self, name: str, *args: Any) -> None:
        status = getattr(self._vk, name)(*args)
        if status != 0:
            raise UserError(f"the Vulkan driver of {self.name} failed in {name}: error {status}")

    def _make(self, name: str, structure: Any, number: int, /, **fields: Any) -> ctypes.c_uint64:
        """An object of the device."""
        result = ctypes.c_uint64()
        info = vk.make(structure, number, **fields)
        self._call(name, self._device, ctypes.byref(info), None, ctypes.byref(result))
        return result

    def _create(self, physical: Any) -> set[int]:
        """Open the device with all the features that programs may use; gives the capabilities that it lacks."""
        small = vk.make(vk.Storage8, 1000177000)
        short = vk.make(vk.Storage16, 1000083000, pNext=_address(small))
        dot = vk.make(vk.DotProduct, 1000280000, pNext=_address(short))
        features = vk.make(vk.Features2, 1000059000, pNext=_address(dot))
        self._vk.vkGetPhysicalDeviceFeatures2(physical, ctypes.byref(features))
        found = {
            10: features.features[vk.SHADER_FLOAT64],
            11: features.features[vk.SHADER_INT64],
            4433: short.storage,
            4448: small.storage,
            _DOT_PRODUCT: dot.products,
        }
        # A device that does not know a structure must not be given it.
        wanted = vk.make(vk.Features2, 1000059000, pNext=_address(dot if dot.products else short))
        for place in (vk.SHADER_FLOAT64, vk.SHADER_INT64, vk.ROBUST_ACCESS):
            wanted.features[place] = features.features[place]
        count = ctypes.c_uint32(64)
        families = (vk.QueueFamily * 64)()
        self._vk.vkGetPhysicalDeviceQueueFamilyProperties(physical, ctypes.byref(count), families)
        self._family = next(number for number in range(count.value) if families[number].flags & 2)
        priority = ctypes.c_float(1.0)
        queue = vk.make(vk.QueueCreateInfo, 2, family=self._family, count=1, priorities=_address(priority))
        names = [b"VK_KHR_8bit_storage"] if small.storage else []
        names += [b"VK_KHR_shader_integer_dot_product"] if dot.products else []
        extensions = (ctypes.c_char_p * max(1, len(names)))(*names)
        info = vk.make(
            vk.DeviceCreateInfo,
            3,
            pNext=_address(wanted),
            queueCount=1,
            queues=_address(queue),
            extensionCount=len(names),
            extensions=_address(extensions),
        )
        self._device = ctypes.c_void_p()
        self._call("vkCreateDevice", physical, ctypes.byref(info), None, ctypes.byref(self._device))
        self._queue = ctypes.c_void_p()
        self._vk.vkGetDeviceQueue(self._device, self._family, 0, ctypes.byref(self._queue))
        memory = vk.MemoryProperties()
        self._vk.vkGetPhysicalDeviceMemoryProperties(physical, ctypes.byref(memory))
        seen = vk.HOST_VISIBLE | vk.HOST_COHERENT
        kinds = [number for number in range(memory.typeCount) if memory.types[number].flags & seen == seen]
        kinds.sort(key=lambda number: not memory.types[number].flags & vk.DEVICE_LOCAL)
        self._memory_type = kinds[0]
        return {capability for capability, present in found.items() if not present}

    # ---------------------------------------------------------------- kernels

    def load(self, code: bytes, launches: Sequence[LaunchInfo]) -> dict[str, Any]:
        """Compile the kernels of a SPIR-V module."""
        words = np.frombuffer(code, np.uint32)
        self._check_capabilities(words)
        module = self._make(
            "vkCreateShaderModule", vk.ShaderModuleCreateInfo, 16, size=len(code), code=words.ctypes.data
        )
        return {launch.symbol: self._pipeline(module, launch) for launch in launches}

    def _check_capabilities(self, words: np.ndarray[Any, np.dtype[np.uint32]]) -> None:
        place = 5
        while words[place] & 0xFFFF == 17:
            capability = int(words[place + 1])
            if capability in self._missing:
                raise UserError(
                    f"{self.name} has no {_CAPABILITIES[capability]}, which the program uses",
                    hint="use smaller types, or another device",
                )
            place += int(words[place]) >> 16

    def _pipeline(self, module: ctypes.c_uint64, launch: LaunchInfo) -> VulkanKernel:
        # Which arguments are buffers is known when they come: bindings that a kernel does not use are harmless.
        count = len(launch.args)
        bindings = (vk.SetLayoutBinding * max(1, count))(
            *[
                vk.SetLayoutBinding(binding=number, kind=vk.STORAGE_DESCRIPTOR, count=1, stages=vk.COMPUTE_STAGE)
                for number in range(count)
            ]
        )
        layout = self._make(
            "vkCreateDescriptorSetLayout", vk.SetLayoutCreateInfo, 32, count=count, bindings=_address(bindings)
        )
        pushed = vk.PushRange(stages=vk.COMPUTE_STAGE, size=128)
        pipeline_layout = self._make(
            "vkCreatePipelineLayout",
            vk.PipelineLayoutCreateInfo,
            30,
            setCount=1,
            sets=_address(layout),
            rangeCount=1,
            ranges=_address(pushed),
        )
        stage = vk.make(
            vk.StageCreateInfo, 18, stage=vk.COMPUTE_STAGE, module=module.value, name=launch.symbol.encode()
        )
        info = vk.make(vk.ComputePipelineCreateInfo, 29, stage=stage, layout=pipeline_layout.value, number=-1)
        pipeline = ctypes.c_uint64()
        status = self._vk.vkCreateComputePipelines(
            self._device, ctypes.c_uint64(0), 1, ctypes.byref(info), None, ctypes.byref(pipeline)
        )
        if status != 0:
            raise CompilerBug(f"the Vulkan driver of {self.name} refused the kernel {launch.symbol}: error {status}")
        return VulkanKernel(launch.symbol, pipeline, pipeline_layout, layout)

    # ---------------------------------------------------------------- memory

    def allocate(self, size: int) -> Any:
        """A storage buffer."""
        if size > self._properties.largest_buffer:
            raise UserError(
                f"{self.name} takes arrays of up to {self._properties.largest_buffer} bytes, not {size}",
                hint="divide the work into smaller arrays, or use another target",
            )
        return _Memory(self, max(8, -(-size // 8) * 8))

    def view(self, memory: Any, offset: int, size: int) -> Any | None:
        """A part of a buffer, where every device lets one start."""
        return memory.part(offset, size) if offset % 256 == 0 and size else None

    def write(self, memory: Any, array: Array) -> None:
        """Copy an array to a buffer; launches that were collected before come first."""
        self.wait()
        ctypes.memmove(memory.address, address_of(np.ascontiguousarray(array)), array.nbytes)

    def upload(self, array: Array) -> Any:
        """A buffer with the contents of an array."""
        memory = self.allocate(array.nbytes)
        source = np.ascontiguousarray(array)
        ctypes.memmove(memory.address, address_of(source), array.nbytes)
        return memory

    def download(self, memory: Any, array: Array) -> None:
        """Copy a buffer into an array."""
        self.wait()
        ctypes.memmove(address_of(array), memory.address, array.nbytes)

    def copy(self, source: Any, source_offset: int, target: Any, target_offset: int, size: int) -> None:
        """Copy from buffer to buffer, behind what was started before."""
        if not size:
            return
        self._begin()
        self._alive += [source, target]
        region = vk.BufferCopy(source=source.offset + source_offset, target=target.offset + target_offset, size=size)
        self._vk.vkCmdCopyBuffer(self._command, source.buffer, target.buffer, 1, ctypes.byref(region))
        self._order()

    # ---------------------------------------------------------------- launches

    def launch(self, kernel: Any, grid: tuple[int, int, int], block: tuple[int, int, int], args: list[Any]) -> None:
        """Put a kernel behind those that were started before."""
        buffers = [arg for arg in args if not isinstance(arg, Scalar)]
        if self._used[0] >= _SETS or self._used[1] + len(args) > _DESCRIPTORS:
            self.wait()
        self._begin()
        self._used = [self._used[0] + 1, self._used[1] + len(args)]
        command = self._command
        self._vk.vkCmdBindPipeline(command, 1, kernel.pipeline)
        if buffers:
            chosen = self._describe(kernel, buffers)
            self._vk.vkCmdBindDescriptorSets(command, 1, kernel.layout, 0, 1, ctypes.byref(chosen), 0, None)
        scalars = np.array([arg.bits for arg in args if isinstance(arg, Scalar)], np.int64)
        if scalars.size:
            self._vk.vkCmdPushConstants(
                command, kernel.layout, vk.COMPUTE_STAGE, 0, scalars.nbytes, ctypes.c_void_p(scalars.ctypes.data)
            )
        # Blocks stand in a row, folded: see backends/webgpu/kernels.py.
        total = grid[0] * grid[1] * grid[2]
        self._vk.vkCmdDispatch(command, min(total, _MOST_BLOCKS), -(-total // _MOST_BLOCKS), 1)
        self._order()

    def _describe(self, kernel: VulkanKernel, buffers: list[_Memory]) -> ctypes.c_uint64:
        """A set of descriptors of buffers."""
        chosen = ctypes.c_uint64()
        info = vk.make(vk.SetAllocateInfo, 34, pool=self._sets.value, count=1, layouts=_address(kernel.set_layout))
        self._call("vkAllocateDescriptorSets", self._device, ctypes.byref(info), ctypes.byref(chosen))
        places = (vk.DescriptorBuffer * len(buffers))(
            *[vk.DescriptorBuffer(buffer=one.buffer.value, offset=one.offset, range=one.size) for one in buffers]
        )
        write = vk.make(
            vk.WriteSet,
            35,
            set=chosen.value,
            count=len(buffers),
            kind=vk.STORAGE_DESCRIPTOR,
            buffers=_address(places),
        )
        self._vk.vkUpdateDescriptorSets(self._device, 1, ctypes.byref(write), 0, None)
        self._alive += buffers
        return chosen

    def _begin(self) -> None:
        if not self._recording:
            info = vk.make(vk.CommandBufferBeginInfo, 42, flags=1)
            self._call("vkBeginCommandBuffer", self._command, ctypes.byref(info))
            self._recording = True

    def _order(self) -> None:
        """What was written is seen by everything after."""
        # Writes of shaders and copies come before reads and writes of these and reads of the host.
        barrier = vk.make(vk.MemoryBarrier, 46, before=0x1040, after=0x3860)
        self._vk.vkCmdPipelineBarrier(self._command, 0x1800, 0x5800, 0, 1, ctypes.byref(barrier), 0, None, 0, None)

    def wait(self) -> None:
        """Send what was collected and wait until it is done."""
        if not self._recording:
            return
        self._call("vkEndCommandBuffer", self._command)
        info = vk.make(vk.SubmitInfo, 4, bufferCount=1, buffers=_address(self._command))
        self._call("vkQueueSubmit", self._queue, 1, ctypes.byref(info), self._fence)
        forever = ctypes.c_uint64(0xFFFFFFFFFFFFFFFF)
        self._call("vkWaitForFences", self._device, 1, ctypes.byref(self._fence), 1, forever)
        self._call("vkResetFences", self._device, 1, ctypes.byref(self._fence))
        self._call("vkResetDescriptorPool", self._device, self._sets, 0)
        self._recording = False
        self._used = [0, 0]
        self._alive.clear()

    # ---------------------------------------------------------------- what memory asks for

    def new_buffer(self, size: int) -> tuple[ctypes.c_uint64, ctypes.c_uint64, int]:
        """A buffer, its memory, and where the host sees it."""
        # Storage, and source and target of copies.
        buffer = self._make("vkCreateBuffer", vk.BufferCreateInfo, 12, size=size, usage=0x23)
        needs = vk.MemoryRequirements()
        self._vk.vkGetBufferMemoryRequirements(self._device, buffer, ctypes.byref(needs))
        memory = self._make("vkAllocateMemory", vk.MemoryAllocateInfo, 5, size=needs.size, type=self._memory_type)
        start = ctypes.c_uint64(0)
        self._call("vkBindBufferMemory", self._device, buffer, memory, start)
        address = ctypes.c_void_p()
        whole = ctypes.c_uint64(0xFFFFFFFFFFFFFFFF)
        self._call("vkMapMemory", self._device, memory, start, whole, 0, ctypes.byref(address))
        return buffer, memory, address.value or 0

    def drop_buffer(self, buffer: ctypes.c_uint64, memory: ctypes.c_uint64) -> None:
        """Give a buffer and its memory back."""
        self._vk.vkDestroyBuffer(self._device, buffer, None)
        self._vk.vkFreeMemory(self._device, memory, None)


class VulkanKernel:
    """A pipeline and the layouts of its arguments."""

    __slots__ = ("layout", "name", "pipeline", "set_layout")

    def __init__(
        self, name: str, pipeline: ctypes.c_uint64, layout: ctypes.c_uint64, set_layout: ctypes.c_uint64
    ) -> None:
        self.name = name
        self.pipeline = pipeline
        self.layout = layout
        self.set_layout = set_layout


class _Memory:
    """A buffer, or a part of another that it keeps alive."""

    def __init__(self, device: VulkanDevice, size: int) -> None:
        self.size = size
        self.offset = 0
        self._device = device
        self._owner: _Memory | None = None
        self.buffer, self._memory, self.address = device.new_buffer(size)

    def part(self, offset: int, size: int) -> _Memory:
        """A part that starts further on."""
        part = object.__new__(_Memory)
        part.size, part.offset, part.address = size, self.offset + offset, self.address + offset
        part.buffer, part._owner = self.buffer, self
        return part

    def __del__(self) -> None:
        if self._owner is None:
            self._device.drop_buffer(self.buffer, self._memory)


def _address(item: Any) -> int:
    return ctypes.addressof(item)


@functools.cache
def vulkan_device(index: int = 0) -> VulkanDevice:
    """The Vulkan device of a number, GPUs first. A `UserError` where there is none."""
    library = _loader()
    application = vk.make(vk.ApplicationInfo, 0, name=b"tilewright", apiVersion=1 << 22 | 1 << 12)
    info = vk.make(vk.InstanceCreateInfo, 1, application=_address(application))
    instance = ctypes.c_void_p()
    if library.vkCreateInstance(ctypes.byref(info), None, ctypes.byref(instance)) != 0:
        raise UserError("no Vulkan driver is installed here", hint=_HINT)
    count = ctypes.c_uint32()
    library.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), None)
    if count.value == 0:
        raise UserError("there is no Vulkan device here", hint=_HINT)
    devices = (ctypes.c_void_p * count.value)()
    library.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), devices)
    described = [(_describe_device(library, device or 0), device) for device in devices]
    # Discrete, integrated and virtual GPUs before processors.
    order = {2: 0, 1: 1, 3: 2, 4: 3}
    ranked = sorted(described, key=lambda item: order.get(item[0].kind, 4))
    properties, chosen = pick(ranked, index, "Vulkan")
    return VulkanDevice(library, ctypes.c_void_p(chosen), properties)


def _describe_device(library: Any, device: int) -> vk.Properties:
    raw = ctypes.create_string_buffer(4096)
    library.vkGetPhysicalDeviceProperties(ctypes.c_void_p(device), raw)
    return vk.Properties.read(raw.raw)


def _loader() -> Any:
    for name in _LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise UserError("Vulkan programs need its loader, libvulkan, which is not here", hint=_HINT)


DRIVER: Final = Driver(vulkan_device)
