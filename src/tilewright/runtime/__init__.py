"""Floor 2: arrays, artifacts, modules and executors. Sees only `support`: a deployed runtime has no compiler.

from tilewright import runtime
a = runtime.array([1.0, 2.0], "float32")
exe = runtime.load("resnet18.so")
module = runtime.create(exe, runtime.cpu())
"""

from __future__ import annotations

from tilewright.runtime.core.artifact import (
    ArgKind,
    ArgRef,
    Artifact,
    ConstantInfo,
    FunctionInfo,
    KernelInfo,
    ModelInfo,
    ParamInfo,
    Step,
    TensorInfo,
)
from tilewright.runtime.core.executor import Executable
from tilewright.runtime.core.graph_runtime import GraphModule, create
from tilewright.runtime.core.keys import PublicKey, SigningKey
from tilewright.runtime.core.load import load
from tilewright.runtime.core.module import CompiledFunction, Module, TimingResult
from tilewright.runtime.core.ndarray import NDArray, array, empty, from_dlpack
from tilewright.runtime.core.packing import pack, unpack
from tilewright.runtime.core.profiler import Profile, ProfileRow
from tilewright.runtime.device.device import Device, cpu
from tilewright.runtime.device.parts import PlacedModel
from tilewright.runtime.vm.values import DataValue

__all__ = [
    "ArgKind",
    "ArgRef",
    "Artifact",
    "CompiledFunction",
    "ConstantInfo",
    "DataValue",
    "Device",
    "Executable",
    "FunctionInfo",
    "GraphModule",
    "KernelInfo",
    "ModelInfo",
    "Module",
    "NDArray",
    "ParamInfo",
    "PlacedModel",
    "Profile",
    "ProfileRow",
    "PublicKey",
    "SigningKey",
    "Step",
    "TensorInfo",
    "TimingResult",
    "array",
    "cpu",
    "create",
    "empty",
    "from_dlpack",
    "load",
    "pack",
    "unpack",
]
