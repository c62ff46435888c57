"""The part of Vulkan's C interface that compute programs need, as ctypes structures and numbers."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Final

_TYPES: Final[dict[str, Any]] = {
    "u32": ctypes.c_uint32,
    "i32": ctypes.c_int32,
    "u64": ctypes.c_uint64,
    "size": ctypes.c_size_t,
    "float": ctypes.c_float,
    "ptr": ctypes.c_void_p,
    "text": ctypes.c_char_p,
}


def _structure(name: str, fields: str) -> type[ctypes.Structure]:
    """A structure from lines of `type name` (`type*4` is an array)."""
    members: list[tuple[str, Any]] = []
    for part in fields.split(","):
        kind, field = part.split()
        base, _, count = kind.partition("*")
        members.append((field, _TYPES[base] * int(count) if count else _TYPES[base]))
    structure = type(name, (ctypes.Structure,), {"_fields_": members})
    _TYPES[name] = structure
    return structure


def make(structure: Any, number: int, /, **fields: Any) -> Any:
    """A structure that says its own type."""
    return structure(sType=number, **fields)


ApplicationInfo = _structure(
    "ApplicationInfo", "u32 sType, ptr pNext, text name, u32 version, text engine, u32 engineVersion, u32 apiVersion"
)
InstanceCreateInfo = _structure(
    "InstanceCreateInfo",
    "u32 sType, ptr pNext, u32 flags, ptr application, u32 layerCount, ptr layers, u32 extensionCount, ptr extensions",
)
Features2 = _structure("Features2", "u32 sType, ptr pNext, u32*55 features")
Storage16 = _structure("Storage16", "u32 sType, ptr pNext, u32 storage, u32 uniform, u32 pushConstant, u32 inputOutput")
Storage8 = _structure("Storage8", "u32 sType, ptr pNext, u32 storage, u32 uniform, u32 pushConstant")
DotProduct = _structure("DotProduct", "u32 sType, ptr pNext, u32 products")
QueueFamily = _structure("QueueFamily", "u32 flags, u32 count, u32 timestampBits, u32*3 granularity")
MemoryType = _structure("MemoryType", "u32 flags, u32 heap")
MemoryHeap = _structure("MemoryHeap", "u64 size, u32 flags, u32 padding")
MemoryProperties = _structure(
    "MemoryProperties", "u32 typeCount, MemoryType*32 types, u32 heapCount, MemoryHeap*16 heaps"
)
QueueCreateInfo = _structure(
    "QueueCreateInfo", "u32 sType, ptr pNext, u32 flags, u32 family, u32 count, ptr priorities"
)
DeviceCreateInfo = _structure(
    "DeviceCreateInfo",
    "u32 sType, ptr pNext, u32 flags, u32 queueCount, ptr queues, u32 layerCount, ptr layers, u32 extensionCount, "
    "ptr extensions, ptr features",
)
BufferCreateInfo = _structure(
    "BufferCreateInfo",
    "u32 sType, ptr pNext, u32 flags, u64 size, u32 usage, u32 sharing, u32 familyCount, ptr families",
)
MemoryRequirements = _structure("MemoryRequirements", "u64 size, u64 alignment, u32 types")
MemoryAllocateInfo = _structure("MemoryAllocateInfo", "u32 sType, ptr pNext, u64 size, u32 type")
ShaderModuleCreateInfo = _structure("ShaderModuleCreateInfo", "u32 sType, ptr pNext, u32 flags, size size, ptr code")
SetLayoutBinding = _structure("SetLayoutBinding", "u32 binding, u32 kind, u32 count, u32 stages, ptr samplers")
SetLayoutCreateInfo = _structure("SetLayoutCreateInfo", "u32 sType, ptr pNext, u32 flags, u32 count, ptr bindings")
PushRange = _structure("PushRange", "u32 stages, u32 offset, u32 size")
PipelineLayoutCreateInfo = _structure(
    "PipelineLayoutCreateInfo", "u32 sType, ptr pNext, u32 flags, u32 setCount, ptr sets, u32 rangeCount, ptr ranges"
)
StageCreateInfo = _structure(
    "StageCreateInfo", "u32 sType, ptr pNext, u32 flags, u32 stage, u64 module, text name, ptr specialization"
)
ComputePipelineCreateInfo = _structure(
    "ComputePipelineCreateInfo",
    "u32 sType, ptr pNext, u32 flags, StageCreateInfo stage, u64 layout, u64 base, i32 number",
)
PoolSize = _structure("PoolSize", "u32 kind, u32 count")
DescriptorPoolCreateInfo = _structure(
    "DescriptorPoolCreateInfo", "u32 sType, ptr pNext, u32 flags, u32 sets, u32 sizeCount, ptr sizes"
)
SetAllocateInfo = _structure("SetAllocateInfo", "u32 sType, ptr pNext, u64 pool, u32 count, ptr layouts")
DescriptorBuffer = _structure("DescriptorBuffer", "u64 buffer, u64 offset, u64 range")
WriteSet = _structure(
    "WriteSet",
    "u32 sType, ptr pNext, u64 set, u32 binding, u32 element, u32 count, u32 kind, ptr images, ptr buffers, ptr texels",
)
CommandPoolCreateInfo = _structure("CommandPoolCreateInfo", "u32 sType, ptr pNext, u32 flags, u32 family")
CommandBufferAllocateInfo = _structure(
    "CommandBufferAllocateInfo", "u32 sType, ptr pNext, u64 pool, u32 level, u32 count"
)
CommandBufferBeginInfo = _structure("CommandBufferBeginInfo", "u32 sType, ptr pNext, u32 flags, ptr inheritance")
MemoryBarrier = _structure("MemoryBarrier", "u32 sType, ptr pNext, u32 before, u32 after")
BufferCopy = _structure("BufferCopy", "u64 source, u64 target, u64 size")
SubmitInfo = _structure(
    "SubmitInfo",
    "u32 sType, ptr pNext, u32 waitCount, ptr waits, ptr stages, u32 bufferCount, ptr buffers, u32 signalCount, "
    "ptr signals",
)
FenceCreateInfo = _structure("FenceCreateInfo", "u32 sType, ptr pNext, u32 flags")

COMPUTE_STAGE: Final = 0x20
STORAGE_DESCRIPTOR: Final = 7
HOST_VISIBLE, HOST_COHERENT, DEVICE_LOCAL = 2, 4, 1
SHADER_FLOAT64, SHADER_INT64, ROBUST_ACCESS = 39, 40, 0
"""Places of features among the 55."""


@dataclass(frozen=True, slots=True)
class Properties:
    """What matters of a device's properties."""

    name: str
    kind: int
    largest_buffer: int
    shared_bytes: int
    max_threads: int

    @classmethod
    def read(cls, raw: bytes) -> Properties:
        """Out of `VkPhysicalDeviceProperties`: type and name at 16 and 20, limits from 296 on."""

        def number(offset: int) -> int:
            return int.from_bytes(raw[offset : offset + 4], "little")

        name = raw[20:276].split(b"\0")[0].decode(errors="replace")
        return cls(name, number(16), number(296 + 28), number(296 + 216), number(296 + 232))
