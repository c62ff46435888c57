"""Tilewright: an end-to-end optimizing compiler for deep learning.

    import tilewright as tw
    mod = tw.frontend.from_onnx("resnet18.onnx")
    exe = tw.compile(mod, target="native")
    y = exe(x)
    exe.export_library("resnet18.so")
    y = tw.load("resnet18.so")(x)

Names are loaded when first used, so importing the package is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from tilewright.support.version import VERSION as __version__

if TYPE_CHECKING:
    from tilewright import frontend, graph, rpc, runtime, te, tir, tune
    from tilewright.compiler import Compilation, build
    from tilewright.front import compile, quantize
    from tilewright.frontend.formats import load_model
    from tilewright.graph.gradient import grad, jvp, value_and_grad, vjp
    from tilewright.ir.function import IRModule
    from tilewright.options import CompileOptions
    from tilewright.runtime.core.executor import Executable
    from tilewright.runtime.core.load import load
    from tilewright.runtime.core.module import Module
    from tilewright.support.errors import CompilerBug, TilewrightError, UserError
    from tilewright.target import Target
    from tilewright.te.hybrid import hybrid
    from tilewright.tir.schedule.schedule import Schedule
    from tilewright.tir.script import script

_MODULES = ("frontend", "graph", "rpc", "runtime", "te", "tir", "tune")
_NAMES = {
    "Compilation": "tilewright.compiler",
    "CompileOptions": "tilewright.options",
    "CompilerBug": "tilewright.support.errors",
    "Executable": "tilewright.runtime.core.executor",
    "IRModule": "tilewright.ir.function",
    "Module": "tilewright.runtime.core.module",
    "Schedule": "tilewright.tir.schedule.schedule",
    "Target": "tilewright.target",
    "TilewrightError": "tilewright.support.errors",
    "UserError": "tilewright.support.errors",
    "build": "tilewright.compiler",
    "compile": "tilewright.front",
    "grad": "tilewright.graph.gradient",
    "hybrid": "tilewright.te.hybrid",
    "jvp": "tilewright.graph.gradient",
    "load": "tilewright.runtime.core.load",
    "load_model": "tilewright.frontend.formats",
    "quantize": "tilewright.front",
    "script": "tilewright.tir.script",
    "value_and_grad": "tilewright.graph.gradient",
    "vjp": "tilewright.graph.gradient",
}

__all__ = [
    "Compilation",
    "CompileOptions",
    "CompilerBug",
    "Executable",
    "IRModule",
    "Module",
    "Schedule",
    "Target",
    "TilewrightError",
    "UserError",
    "__version__",
    "build",
    "compile",
    "frontend",
    "grad",
    "graph",
    "hybrid",
    "jvp",
    "load",
    "load_model",
    "quantize",
    "rpc",
    "runtime",
    "script",
    "te",
    "tir",
    "tune",
    "value_and_grad",
    "vjp",
]


def __getattr__(name: str) -> object:
    if name in _NAMES:
        value: object = getattr(import_module(_NAMES[name]), name)
    elif name in _MODULES:
        value = import_module(f"tilewright.{name}")
    else:
        raise AttributeError(f"module 'tilewright' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
