"""The plan of a model's run on a GPU as webgpu.js executes it: plain data for model.json, and the kernels' text.

It is what `runtime/device/model.py` executes in Python: kernels with their launches, parts (the model itself, then its
variants for fixed sizes) with slots of memory and steps. Sizes may be arithmetic over the symbols of a call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from tilewright.backends.wasm.extents import describe_extent
from tilewright.runtime.core.artifact import ArgKind, ArgRef, Artifact, DeviceInfo, DeviceKernelInfo, ModelInfo, Step
from tilewright.runtime.core.checks import FIRST_CODE
from tilewright.support.errors import CompilerBug
from tilewright.target.target import Target

_LANGUAGE_FEATURES: Final = {"dot4I8Packed": "packed_4x8_integer_dot_product"}
"""Functions of WGSL that only some implementations have, with the feature that these name."""
_LARGEST: Final = 1 << 53
"""Numbers of JavaScript are exact below this."""


@dataclass(frozen=True)
class GpuPlan:
    """What a package holds of a model for WebGPU."""

    code: bytes
    """The texts of all kernels, one after the other."""
    description: dict[str, Any]


def refusal(artifact: Artifact) -> str:
    """Why a package cannot run a model through WebGPU; empty if it can. It is then run by WebAssembly."""
    model, device = artifact.model, artifact.device
    assert model is not None and device is not None
    if model.program:
        return "the model is a program (loops, branches on data, sizes that a run decides)"
    nodes = {item.symbol: item.nodes for part in model.parts for item in part.kernels}
    for kernel in device.kernels:
        if kernel.on_host:
            return f"{', '.join(nodes[kernel.symbol]) or kernel.symbol}: {kernel.on_host.splitlines()[0]}"
    return ""


def gpu_plan(artifact: Artifact) -> GpuPlan:
    """The plan of a model that WebGPU runs whole."""
    model, device = artifact.model, artifact.device
    assert model is not None and device is not None
    constants: dict[int, int] = {}
    parts = list(model.parts)
    infos = {kernel.symbol: kernel for kernel in device.kernels}
    for part in parts:
        for offset, size in _constants(part, infos):
            constants[offset] = max(size, constants.get(offset, 0))
    numbers = {kernel.symbol: number for number, kernel in enumerate(device.kernels)}
    regions = {offset: number for number, offset in enumerate(constants)}
    code = b"".join(artifact.device_code)
    description = {
        "bytes": len(code),
        "constants": [[offset, size] for offset, size in constants.items()],
        "kernels": _kernels(artifact, device),
        "parts": [_part(part, numbers, regions) for part in parts],
        **_needs(artifact, device),
    }
    return GpuPlan(code, description)


def _needs(artifact: Artifact, device: DeviceInfo) -> dict[str, Any]:
    """What an adapter must have."""
    target = Target(device.target)
    texts = [code.decode() for code in artifact.device_code]
    launches = [launch for kernel in device.kernels for launch in kernel.launches]
    blocks = [launch.block for launch in launches] or [(1, 1, 1)]
    limits = {
        "maxStorageBuffersPerShaderStage": max((_most_buffers(text) for text in texts), default=0),
        "maxComputeInvocationsPerWorkgroup": max(x * y * z for x, y, z in blocks),
        **{f"maxComputeWorkgroupSize{axis}": max(block[n] for block in blocks) for n, axis in enumerate("XYZ")},
        "maxComputeWorkgroupStorageSize": target.shared_bytes if any(item.shared_bytes for item in launches) else 0,
    }
    named = [feature for name, feature in _LANGUAGE_FEATURES.items() if any(name in text for text in texts)]
    return {"limits": limits, "language_features": named, "counts_steps": target.most_steps is not None}


def _most_buffers(text: str) -> int:
    """The storage buffers of the kernel with most of them: kernels declare theirs before they begin."""
    return max(part.count("var<storage") for part in text.split("@compute"))


def _kernels(artifact: Artifact, device: DeviceInfo) -> list[dict[str, Any]]:
    found, begin = [], 0
    for kernel, code in zip(device.kernels, artifact.device_code, strict=True):
        found.append({**_kernel(kernel), "code": [begin, begin + len(code)]})
        begin += len(code)
    return found


def _kernel(kernel: DeviceKernelInfo) -> dict[str, Any]:
    return {
        "symbol": kernel.symbol,
        "symbols": list(kernel.symbols),
        "sizes": list(map(describe_extent, kernel.sizes)),
        "written": list(kernel.written),
        "workspaces": list(map(describe_extent, kernel.workspaces)),
        "launches": [
            {
                "symbol": launch.symbol,
                "grid": list(map(describe_extent, launch.grid)),
                "args": list(launch.args),
                "values": list(map(_exact, launch.values)),
            }
            for launch in kernel.launches
        ],
    }


def _constants(part: ModelInfo, infos: dict[str, DeviceKernelInfo]) -> Iterator[tuple[int, int]]:
    """Where constants of a part's steps lie, and their bytes."""
    for step in part.steps:
        sizes = infos[part.kernels[step.kernel].symbol].sizes
        for arg, size in zip(_buffers(step), sizes, strict=True):
            if arg.kind is ArgKind.CONSTANT:
                if not isinstance(size, int):
                    raise CompilerBug(f"a constant of {size} bytes")
                yield arg.offset, size


def _buffers(step: Step) -> list[ArgRef]:
    return [arg for arg in step.args if arg.kind not in (ArgKind.SYMBOL, ArgKind.SCALAR)]


def _part(part: ModelInfo, kernels: dict[str, int], regions: dict[int, int]) -> dict[str, Any]:
    return {
        "fixed": list(part.fixed),
        "symbols": list(part.symbols),
        "sizes": list(map(describe_extent, part.sizes)),
        "inputs": [list(map(describe_extent, info.shape)) for info in part.inputs],
        "outputs": [list(map(describe_extent, info.shape)) for info in part.outputs],
        "slots": list(map(describe_extent, part.slots)) if part.slots else [part.workspace_bytes],
        "requires": [[describe_extent(left), describe_extent(right)] for left, right in part.requires],
        "checks": [
            {"step": check.step, "code": FIRST_CODE + part.first_check + number}
            for number, check in enumerate(part.checks)
        ],
        "steps": [
            {
                "kernel": kernels[part.kernels[step.kernel].symbol],
                "nodes": list(part.kernels[step.kernel].nodes),
                "args": [_argument(arg, regions) for arg in step.args],
            }
            for step in part.steps
        ],
    }


def _argument(arg: ArgRef, regions: dict[int, int]) -> list[Any]:
    """[kind, number, offset]: of a constant the number of its region, of a scalar its value."""
    if arg.kind is ArgKind.CONSTANT:
        return [arg.kind.value, regions[arg.offset], 0]
    return [arg.kind.value, _exact(arg.index), arg.offset]


def _exact(number: int) -> int:
    if abs(number) >= _LARGEST:
        raise CompilerBug(f"the number {number} of a launch is not exact in JavaScript")
    return number
