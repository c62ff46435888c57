"""A fused graph -> one deployable model: kernels, constants, memory plans and the entries that join them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from tilewright.backends.backend import backend_of
from tilewright.backends.code_stages import compile_source
from tilewright.backends.host import HostBackend
from tilewright.backends.llvm.compiler import llvm_compiler
from tilewright.backends.llvm.entry import emit_entry
from tilewright.graph.ir.expr import Function
from tilewright.graph.passes.plan_memory import MemoryPlan, PlannedStep
from tilewright.graph.state import state_pairs
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.function import IRModule
from tilewright.ir.stage_files import StageFiles
from tilewright.ir.types import TupleType
from tilewright.lower.constants import ConstantStore
from tilewright.lower.device_kernel import kernel_on_host
from tilewright.lower.far_kernels import FarKernel, find_far_kernels, warn_of_far_kernels
from tilewright.lower.kernel import CompiledKernel, Kernel
from tilewright.lower.parallel import compile_kernels
from tilewright.lower.segment import KernelSet, Segment, lower_segment, tensor_dims
from tilewright.lower.symbols import SymbolTable
from tilewright.lower.vm.program import LoweredProgram, lower_program, needs_machine
from tilewright.runtime.core.artifact import ArgKind, ArgRef, Artifact, DeviceInfo, ModelInfo, StateInfo, Step
from tilewright.support import settings, trace
from tilewright.support.errors import UnsupportedError
from tilewright.support.progress import Progress
from tilewright.support.text import plural
from tilewright.target import Target, detect_host
from tilewright.topi.schedule.choices import Answer

ENTRY = "main"
PLACED = "the compilation says so (on_host)"
"""Why the host computes what the device could."""
_ENTRY_COMPILER = llvm_compiler(opt_level=0)
"""It is calls in a row: the optimiser takes a third of the time that it takes to compile, and finds nothing to do."""


@dataclass(slots=True)
class LoweredModel:
    """A model before its kernels are compiled.

    `kernels` are the distinct ones; `info.kernels` has one entry a step, under the names of the user's nodes.
    """

    target: Target
    host: Target
    """The CPU that runs what a device does not; the target itself where that is a CPU."""
    kernels: tuple[Kernel, ...]
    segments: tuple[Segment, ...]
    info: ModelInfo
    program: LoweredProgram | None = None
    variants: tuple[tuple[tuple[int, ...], Segment], ...] = ()
    """Segments for fixed values of the symbols, after the general one."""
    on_host: frozenset[str] = frozenset()
    """Kernels of a model for a device that the host is to compute, by their symbols."""

    def __repr__(self) -> str:
        """What there is, in short."""
        steps = sum(len(segment.info.steps) for segment in self.segments)
        return f"LoweredModel({self.info.name}: {plural(len(self.kernels), 'kernel')}, {plural(steps, 'step')})"

    @property
    def plans(self) -> tuple[MemoryPlan, ...]:
        """The final memory plan of each segment; most models are one segment. It takes compiled kernels to know it."""
        by_symbol = self.compiled()
        return tuple(segment.with_kernels(by_symbol).plan for segment in self.segments)

    def nodes_by_symbol(self) -> dict[str, tuple[str, ...]]:
        """For each kernel, the user's nodes that it computes somewhere in the model."""
        found: dict[str, dict[str, None]] = {kernel.symbol: {} for kernel in self.kernels}
        for segment in self.segments:
            for item in segment.info.kernels:
                found[item.symbol].update(dict.fromkeys(item.nodes))
        return {symbol: tuple(nodes) for symbol, nodes in found.items()}

    def uses_by_symbol(self) -> dict[str, int]:
        """How many steps call each kernel."""
        counts = dict.fromkeys((kernel.symbol for kernel in self.kernels), 0)
        for segment in self.segments:
            for step in segment.info.steps:
                counts[segment.info.kernels[step.kernel].symbol] += 1
        return counts

    def far_kernels(self, by_symbol: Mapping[str, CompiledKernel]) -> tuple[FarKernel, ...]:
        """The kernels that are far from what the processor can do and matter in the model, the worst first."""
        bounds = {symbol: kernel.bound for symbol, kernel in by_symbol.items()}
        return find_far_kernels(bounds, self.uses_by_symbol(), self.nodes_by_symbol())

    def assemble(self, by_symbol: Mapping[str, CompiledKernel], threads: int | None) -> Artifact:
        """The model of compiled kernels, by their symbols; it runs on `threads` threads by default."""
        artifact, constants = self.assemble_code(by_symbol, threads)
        artifact.constants = constants.blob()
        return artifact

    def assemble_code(
        self, by_symbol: Mapping[str, CompiledKernel], threads: int | None
    ) -> tuple[Artifact, ConstantStore]:
        """The same without its constants, and the store of these, for those who let go of this model first."""
        _warn_of_failures(by_symbol)
        warn_of_far_kernels(self.far_kernels(by_symbol))
        with trace.span("memory"):
            segments = [segment.with_kernels(by_symbol) for segment in self.segments]
            special = [(fixed, segment.with_kernels(by_symbol)) for fixed, segment in self.variants]
        for segment in (*segments, *(segment for _, segment in special)):
            _dump_plan(segment)
        with trace.span("constants"):
            store = ConstantStore(self.target.capabilities.memory_line)
            parts = [_with_constants(segment, by_symbol, store) for segment in segments]
            variants = tuple(
                replace(_with_constants(segment, by_symbol, store), fixed=fixed) for fixed, segment in special
            )
            info = parts[0] if self.program is None else self.program.model(store, parts)
            info = replace(info, constants=store.table(), variants=_numbered(info, variants))
        objects = [result.code for result in by_symbol.values() if result.device is None or result.device.on_host]
        if self.target.is_cpu and backend_of(self.target, HostBackend).has_entry:
            objects.append(self._entry(info))
        artifact = Artifact(
            self.host.triple,
            self.host.cpu,
            self.host.features,
            objects,
            model=info,
            requires=tuple(sorted(self.host.feature_set)) if objects else (),
        )
        if not self.target.is_cpu:
            infos = tuple(result.device for result in by_symbol.values() if result.device is not None)
            artifact.device_code = [
                b"" if info.on_host else result.code for info, result in zip(infos, by_symbol.values(), strict=True)
            ]
            sizes = tuple(len(code) for code in artifact.device_code)
            artifact.device = DeviceInfo(self.target.kind, str(self.target), infos, sizes)
        return artifact.with_threads(threads), store

    def _entry(self, info: ModelInfo) -> bytes:
        return compile_source(f"{info.name}_entry", emit_entry(info), ".ll", _ENTRY_COMPILER, self.target)

    def compiled(self) -> dict[str, CompiledKernel]:
        """The kernels compiled, by their symbols: for the target, and for the host those that the target refuses."""
        processes = settings.COMPILE_PROCESSES.get() or detect_host().cores
        with Progress("compiling kernels", total=len(self.kernels)) as line, trace.span("kernels"):
            wanted = [kernel for kernel in self.kernels if kernel.symbol not in self.on_host]
            compiled = compile_kernels(wanted, self.target, processes, lambda count: line.step())
            found = {kernel.symbol: result for kernel, result in zip(wanted, compiled, strict=True)}
            reasons = {symbol: result.refused for symbol, result in found.items() if result.refused}
            reasons.update(dict.fromkeys(self.on_host, PLACED))
            elsewhere = [kernel for kernel in self.kernels if kernel.symbol in reasons]
            for kernel, result in zip(elsewhere, compile_kernels(elsewhere, self.host, processes), strict=True):
                place = kernel_on_host(kernel.func, result.packing, result.scratch, reasons[kernel.symbol])
                found[kernel.symbol] = replace(result, device=place)
        # In their own order: that of the code in the artifact.
        return {kernel.symbol: found[kernel.symbol] for kernel in self.kernels}


def _dump_plan(segment: Segment) -> None:
    """The memory plan is a stage to look at: it follows from the graph and the kernels."""
    StageFiles("plan", segment.info.name, ("memory",)).show(0, ".txt", lambda: f"{segment.plan}\n")


def failed_templates(compiled: Mapping[str, CompiledKernel]) -> dict[str, str]:
    """Why a kernel's template failed, by its symbol, for those that have a plainer schedule than they should."""
    return {symbol: kernel.failed_template for symbol, kernel in compiled.items() if kernel.failed_template}


def _warn_of_failures(compiled: Mapping[str, CompiledKernel]) -> None:
    """Say once a model which kernels are slower than they should be: nothing is wrong with what they compute."""
    failed = failed_templates(compiled)
    for symbol, reason in failed.items():
        trace.LOGGER.warning("kernel %s: %s", symbol, reason)
    if failed:
        symbol, reason = next(iter(failed.items()))
        warnings.warn(
            f"the schedule template of {plural(len(failed), 'kernel')} failed: slower code took its place. This is a "
            f"defect of Tilewright, please report it: {symbol}: {reason} (all: Compilation.failed_templates, or "
            "`tilewright inspect --stage failures`)",
            RuntimeWarning,
            stacklevel=2,
        )


def _numbered(info: ModelInfo, variants: Sequence[ModelInfo]) -> tuple[ModelInfo, ...]:
    """Variants whose checks have codes of their own."""
    count = len(info.checks)
    found: list[ModelInfo] = []
    for variant in variants:
        found.append(replace(variant, first_check=count))
        count += len(variant.checks)
    return tuple(found)


def _with_constants(segment: Segment, compiled: Mapping[str, CompiledKernel], store: ConstantStore) -> ModelInfo:
    """A segment whose constants are in the store, arranged as its kernels want them."""
    steps = tuple(
        _stored_step(segment, step, planned, compiled, store)
        for step, planned in zip(segment.info.steps, segment.plan.steps, strict=True)
    )
    return replace(segment.info, steps=steps)


def _stored_step(
    segment: Segment, step: Step, planned: PlannedStep, compiled: Mapping[str, CompiledKernel], store: ConstantStore
) -> Step:
    packing = compiled[segment.info.kernels[step.kernel].symbol].packing
    args = list(step.args)
    for number, place in enumerate(planned.arguments):
        if place.kind == "constant":
            # A view of a constant starts inside it.
            shift = place.offset - segment.plan.constant_offsets[place.index]
            start = store.add(segment.plan.constants[place.index], packing.get(number))
            args[number] = ArgRef(ArgKind.CONSTANT, 0, start + shift)
    return Step(step.kernel, tuple(args))


def lower_model(
    module: IRModule,
    target: Target,
    variants: Sequence[tuple[Sequence[int], IRModule]] = (),
    answers: Mapping[str, Mapping[str, Answer]] = MappingProxyType({}),
    host: Target | None = None,
) -> LoweredModel:
    """Kernels, memory plan and steps of an optimised and fused module; a program where it is no straight run.

    `variants` are the same model for fixed values of its symbols (in the order of `input_symbols`), optimised likewise.
    `answers` are tuned choices of schedules, by the kernel's symbol. `host` is the CPU beside a target
    that is none.
    """
    host = target if host is None else host
    main = module[ENTRY]
    if not isinstance(main, Function):
        raise UnsupportedError(f"the module's {ENTRY!r} is not a graph function")
    on_cpu = target.is_cpu
    # What is no layer of a processor that has layers alone is the host's.
    forms = on_cpu or target.capabilities.block_layers
    can = target.capabilities
    in_slots, in_place = not on_cpu and not can.flat_memory, not on_cpu and can.overlapping_parameters
    shares_sizes = on_cpu and backend_of(target, HostBackend).has_entry
    kernels = KernelSet(on_cpu, in_slots, forms, in_place, shares_sizes, can.memory_line)
    name = _identifier(str(module.attributes.get("model_name", "model")))
    outputs = _output_names(module, main)
    state = state_pairs(module, ENTRY)
    if needs_machine(main):
        if variants:
            raise UnsupportedError("a model with control flow or sizes from data cannot be specialized")
        program = lower_program(module, ENTRY, name, outputs, kernels)
        kept = tuple(StateInfo(pair.parameter, pair.result) for pair in state)
        program = replace(program, info=replace(program.info, state=kept))
        return LoweredModel(target, host, _tuned(kernels, answers), program.segments, program.info, program)
    segment = lower_segment(main, name, outputs, kernels, SymbolTable(), input_symbols(main), state)
    special = []
    for number, (fixed, variant) in enumerate(variants):
        part = variant[ENTRY]
        assert isinstance(part, Function)
        made = lower_segment(part, f"{name}_variant{number}", outputs, kernels, SymbolTable(), (), state)
        special.append((tuple(fixed), made))
    return LoweredModel(target, host, _tuned(kernels, answers), (segment,), segment.info, None, tuple(special))


def _tuned(kernels: KernelSet, answers: Mapping[str, Mapping[str, Answer]]) -> tuple[Kernel, ...]:
    """Kernels with what a tuner has found for them, and for those that they are made of."""
    return tuple(
        replace(
            kernel,
            answers=answers.get(kernel.symbol, {}),
            parts=tuple(replace(part, answers=answers.get(part.symbol, {})) for part in kernel.parts),
        )
        for kernel in kernels.kernels
    )


def input_symbols(main: Function) -> tuple[Symbol, ...]:
    """The symbols that the shapes of the inputs bind."""
    found: dict[Symbol, None] = {}
    for param in main.params:
        found.update({dim: None for dim in tensor_dims(param.type) if isinstance(dim, Symbol)})
    return tuple(found)


def _output_names(module: IRModule, main: Function) -> list[str]:
    result = main.body.type
    count = len(result.items) if isinstance(result, TupleType) else 1
    names = module.attributes.get("output_names")
    labels = [str(name) for name in names] if isinstance(names, (tuple, list)) else []
    return labels if len(labels) == count else [f"output_{n}" for n in range(count)]


def _identifier(text: str) -> str:
    """A name usable in C and as part of a symbol."""
    cleaned = "".join(c if c.isalnum() and c.isascii() else "_" for c in text).strip("_")
    if not cleaned:
        return "model"
    return f"model_{cleaned}" if cleaned[0].isdigit() else cleaned
