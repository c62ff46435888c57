"""A fused graph -> one deployable model: kernels, constants, the memory plan and the entry that joins them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tilewright.codegen.llvm.cache import compile_cached
from tilewright.codegen.llvm.entry import emit_entry
from tilewright.graph.expr import Function, Var
from tilewright.graph.passes.plan_memory import MemoryPlan, Place, PlannedStep, plan_memory
from tilewright.ir.function import IRModule
from tilewright.ir.types import TensorType, TupleType, Type
from tilewright.lower.constants import ConstantStore
from tilewright.lower.kernel import CompiledKernel, Kernel, make_kernel
from tilewright.lower.parallel import compile_kernels
from tilewright.lower.primitive import lower_primitive
from tilewright.runtime.artifact import (
    ArgKind,
    ArgRef,
    Artifact,
    KernelInfo,
    ModelInfo,
    Step,
    TensorInfo,
)
from tilewright.support import trace
from tilewright.support.errors import UnsupportedError
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
            compiled = compile_kernels(self.kernels, self.target, detect_host().cores, lambda count: line.step())
        by_symbol = {kernel.symbol: result for kernel, result in zip(self.kernels, compiled, strict=True)}
        with trace.span("constants"):
            store = ConstantStore()
            steps = tuple(
                self._stored_step(step, planned, by_symbol, store)
                for step, planned in zip(self.info.steps, self.plan.steps, strict=True)
            )
        info = replace(self.info, steps=steps, constants=store.table())
        entry = compile_cached(
            emit_entry(info),
            triple=self.target.triple,
            cpu=self.target.cpu,
            features=self.target.features,
            opt_level=_ENTRY_OPT_LEVEL,
        )
        artifact = Artifact(
            self.target.triple,
            self.target.cpu,
            self.target.features,
            [*(result.code for result in compiled), entry],
            constants=store.blob(),
            model=info,
            requires=tuple(sorted(self.target.feature_set)),
        )
        return artifact.with_threads(threads)

    def _stored_step(
        self, step: Step, planned: PlannedStep, compiled: Mapping[str, CompiledKernel], store: ConstantStore
    ) -> Step:
        """A step whose constants are in the store, arranged as its kernel wants them."""
        packing = compiled[self.info.kernels[step.kernel].symbol].packing
        places = (*planned.arguments, *planned.results)
        args = tuple(
            ArgRef(ArgKind.CONSTANT, 0, store.add(self.plan.constants[place.index], packing.get(number)))
            if place.kind == "constant"
            else ref
            for number, (ref, place) in enumerate(zip(step.args, places, strict=True))
        )
        return Step(step.kernel, args)


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
                constants = tuple(n for n, place in enumerate(step.arguments) if place.kind == "constant")
                kernel = make_kernel(lower_primitive(function, "kernel", constants), label.removeprefix("fused_"))
            kernel = made[id(function)] = kernels.setdefault(kernel.symbol, kernel)
        infos.append(_kernel_info(kernel, step))
        steps.append(Step(number, tuple(_reference(place) for place in (*step.arguments, *step.results))))
    info = ModelInfo(
        name=_identifier(str(module.attributes.get("model_name", "model"))),
        inputs=tuple(_input_info(param) for param in main.params),
        outputs=_output_infos(module, main),
        workspace_bytes=plan.workspace_bytes,
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
