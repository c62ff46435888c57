"""A fused graph -> one deployable model: kernels, constants, the memory plan and the entry that joins them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tilewright.codegen.llvm.cache import compile_cached
from tilewright.codegen.llvm.entry import emit_entry
from tilewright.graph.expr import Function, Var
from tilewright.graph.passes.plan_memory import MemoryPlan, Place, PlannedStep, plan_memory
from tilewright.ir.function import IRModule
from tilewright.ir.types import TensorType, TupleType, Type
from tilewright.lower.kernel import Kernel, make_kernel
from tilewright.lower.parallel import compile_kernels
from tilewright.lower.primitive import lower_primitive
from tilewright.runtime.artifact import (
    ArgKind,
    ArgRef,
    Artifact,
    ConstantInfo,
    KernelInfo,
    ModelInfo,
    Step,
    TensorInfo,
)
from tilewright.support import trace
from tilewright.support.errors import CompilerBug, UnsupportedError
from tilewright.support.progress import Progress
from tilewright.target import Target, detect_host

ENTRY = "main"
_ENTRY_OPT_LEVEL = 1


@dataclass(slots=True)
class LoweredModel:
    """A model before its kernels are compiled.

    `kernels` are the distinct ones; `info.kernels` has one entry a step, under the names of the user's nodes.
    """

    target: Target
    kernels: tuple[Kernel, ...]
    plan: MemoryPlan
    info: ModelInfo

    def nodes_by_symbol(self) -> dict[str, tuple[str, ...]]:
        """For each kernel, the user's nodes that it computes somewhere in the model."""
        found: dict[str, dict[str, None]] = {kernel.symbol: {} for kernel in self.kernels}
        for item in self.info.kernels:
            found[item.symbol].update(dict.fromkeys(item.nodes))
        return {symbol: tuple(nodes) for symbol, nodes in found.items()}

    def uses_by_symbol(self) -> dict[str, int]:
        """How many steps call each kernel."""
        counts = dict.fromkeys((kernel.symbol for kernel in self.kernels), 0)
        for step in self.info.steps:
            counts[self.info.kernels[step.kernel].symbol] += 1
        return counts

    def compile(self, threads: int | None) -> Artifact:
        """Compile kernels and entry; the result runs on `threads` threads by default."""
        with Progress("compiling kernels", total=len(self.kernels)) as line, trace.span("kernels"):
            objects = compile_kernels(self.kernels, self.target, detect_host().cores, lambda count: line.step())
        entry = compile_cached(
            emit_entry(self.info),
            triple=self.target.triple,
            cpu=self.target.cpu,
            features=self.target.features,
            opt_level=_ENTRY_OPT_LEVEL,
        )
        artifact = Artifact(
            self.target.triple,
            self.target.cpu,
            self.target.features,
            [*objects, entry],
            constants=_constants(self.plan),
            model=self.info,
            requires=tuple(sorted(self.target.feature_set)),
        )
        return artifact.with_threads(threads)


def lower_model(module: IRModule, target: Target) -> LoweredModel:
    """Kernels, memory plan and steps of an optimised and fused module."""
    main = module[ENTRY]
    if not isinstance(main, Function):
        raise UnsupportedError(f"the module's {ENTRY!r} is not a graph function")
    plan = plan_memory(module)
    kernels: dict[str, Kernel] = {}
    made: dict[int, Kernel] = {}
    infos: list[KernelInfo] = []
    steps: list[Step] = []
    for number, step in enumerate(plan.steps):
        function = step.function
        kernel = made.get(id(function))
        if kernel is None:
            label = str(function.notes.get("name", "kernel"))
            with trace.span("tensor expressions"):
                kernel = make_kernel(lower_primitive(function, "kernel"), label.removeprefix("fused_"))
            kernel = made[id(function)] = kernels.setdefault(kernel.symbol, kernel)
        infos.append(_kernel_info(kernel, step))
        steps.append(Step(number, tuple(_reference(place) for place in (*step.arguments, *step.results))))
    constants = tuple(
        ConstantInfo(f"constant_{n}", tuple(int(d) for d in item.data.shape), str(item.dtype), offset)
        for n, (item, offset) in enumerate(zip(plan.constants, plan.constant_offsets, strict=True))
    )
    info = ModelInfo(
        name=_identifier(str(module.attributes.get("model_name", "model"))),
        inputs=tuple(_input_info(param) for param in main.params),
        outputs=_output_infos(module, main),
        workspace_bytes=plan.workspace_bytes,
        constants=constants,
        kernels=tuple(infos),
        steps=tuple(steps),
    )
    return LoweredModel(target, tuple(kernels.values()), plan, info)


def _kernel_info(kernel: Kernel, step: PlannedStep) -> KernelInfo:
    nodes = step.function.notes.get("nodes", ())
    assert isinstance(nodes, Iterable)
    label = str(step.function.notes.get("name", kernel.symbol))
    return KernelInfo(kernel.symbol, tuple(str(n) for n in nodes), kernel.work.flops, kernel.work.bytes, label)


def _reference(place: Place) -> ArgRef:
    return ArgRef(ArgKind(place.kind), place.index if place.kind in ("input", "output") else 0, place.offset)


def _input_info(param: Var) -> TensorInfo:
    return _tensor_info(param.name, param.type)


def _output_infos(module: IRModule, main: Function) -> tuple[TensorInfo, ...]:
    result = main.body.type
    types = result.items if isinstance(result, TupleType) else (result,)
    names = module.attributes.get("output_names")
    labels = [str(name) for name in names] if isinstance(names, (tuple, list)) else []
    if len(labels) != len(types):
        labels = [f"output_{n}" for n in range(len(types))]
    return tuple(_tensor_info(label, kind) for label, kind in zip(labels, types, strict=True))


def _tensor_info(name: str, kind: Type | None) -> TensorInfo:
    if not isinstance(kind, TensorType):
        raise UnsupportedError(f"{name}: inputs and outputs of a compiled model are tensors")
    shape = kind.static_shape
    if shape is None:
        raise UnsupportedError(
            f"the shape of {name} is not known at compile time", hint='give shapes={"input": (1, 3, 224, 224)}'
        )
    return TensorInfo(name, shape, str(kind.dtype))


def _identifier(text: str) -> str:
    """A name usable in C and as part of a symbol."""
    cleaned = "".join(c if c.isalnum() and c.isascii() else "_" for c in text).strip("_")
    if not cleaned:
        return "model"
    return f"model_{cleaned}" if cleaned[0].isdigit() else cleaned


def _constants(plan: MemoryPlan) -> npt.NDArray[np.uint8]:
    """All constants in one block of bytes, each at its offset."""
    for (one, other), item in zip(pairwise(plan.constant_offsets), plan.constants, strict=False):
        if other - one < item.data.nbytes:
            raise CompilerBug("constants overlap in the plan")
    blob = np.zeros(plan.constant_bytes, np.uint8)
    for item, offset in zip(plan.constants, plan.constant_offsets, strict=True):
        data = np.ascontiguousarray(item.data)
        blob[offset : offset + data.nbytes] = data.reshape(-1).view(np.uint8)
    return blob
