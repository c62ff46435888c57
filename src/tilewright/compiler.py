"""The compiler: `compile_model` from top to bottom, `Compilation` with its stages, and `build` for loop programs."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, Unpack

from tilewright.backends.backend import Backend, backend_of
from tilewright.backends.code_stages import staged_assembly
from tilewright.backends.compiler import compiler_of
from tilewright.backends.deployment import deployment_of
from tilewright.backends.device import device_kernels, device_module, shown_source
from tilewright.backends.host import HostBackend, compile_functions, lower_planned, staged_function
from tilewright.backends.llvm import deploy
from tilewright.backends.llvm.emit import emit_module
from tilewright.frontend import from_file
from tilewright.graph.choices import GraphChoices, GraphQuestion, graph_answers
from tilewright.graph.ir.expr import Function
from tilewright.graph.likely_sizes import likely_sizes, with_likely_sizes
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.bind_symbols import bind_symbols
from tilewright.graph.pipeline import optimize
from tilewright.graph.state import with_state
from tilewright.ir.dtype import DataType
from tilewright.ir.expr import PrimExpr, Var, const_value
from tilewright.ir.function import IRModule
from tilewright.ir.stage_files import watch_overrides
from tilewright.ir.visit import find_all
from tilewright.lower.bounds import Bound, bound_of
from tilewright.lower.compile_times import SlowKernel, slowest_kernels
from tilewright.lower.far_kernels import FarKernel
from tilewright.lower.horizontal import source_of
from tilewright.lower.kernel import CompiledKernel, Kernel
from tilewright.lower.loop_calls import resolve_loop_calls
from tilewright.lower.model import ENTRY, LoweredModel, failed_templates, input_symbols, lower_model
from tilewright.lower.model_cache import load_model, store_model
from tilewright.lower.schedules import Used, use_schedule
from tilewright.options import HALVES, LOW_PRECISIONS, CompileOptions, OptionFields, make_options
from tilewright.quantization.precision import in_precision
from tilewright.quantization.running import CompileModule
from tilewright.request import (
    CompileRequest,
    ModelLike,
    TargetLike,
    any_target,
    cpu_target,
    make_request,
    of_this_machine,
)
from tilewright.runtime.core.artifact import Artifact, FunctionInfo, ParamInfo
from tilewright.runtime.core.executor import Executable
from tilewright.runtime.core.module import Exportable, Exporter, Module
from tilewright.runtime.device.devices import choosing, find_device, split_index
from tilewright.runtime.device.program import DeviceModule
from tilewright.support import trace
from tilewright.support.collecting import return_freed_memory, seldom_collecting
from tilewright.support.errors import UserError
from tilewright.target import Target
from tilewright.target.processors import with_processor
from tilewright.te.schedule import Schedule as TensorSchedule
from tilewright.te.tensor import Tensor
from tilewright.tir.admission import require_right_schedule, right_program
from tilewright.tir.buffer import Buffer
from tilewright.tir.function import PrimFunc
from tilewright.tir.schedule.schedule import Schedule
from tilewright.tir.script import to_script
from tilewright.tir.stmt import BufferStore
from tilewright.topi.schedule.template import TemplateChoice

T = TypeVar("T")
S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Imported:
    """The graph as the model has it."""

    module: IRModule


@dataclass(frozen=True, slots=True)
class Optimized:
    """The graph after all graph passes, and likewise for each set of sizes that it is specialized for."""

    module: IRModule
    variants: tuple[tuple[tuple[int, ...], IRModule], ...]
    questions: tuple[GraphQuestion, ...]
    """What graph passes decided for speed alone, by estimates or by what the database says."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """The machine code of each kernel, by its symbol."""

    kernels: Mapping[str, CompiledKernel]


def compile_model(request: CompileRequest) -> Iterator[Imported | Optimized | LoweredModel | Compiled | Artifact]:
    """Compile a model: the whole compiler from top to bottom, stage by stage. Whoever is new here starts reading here.

    It pauses after each stage, so that `Compilation` goes only as far as somebody asks; the last one is the artifact.
    """
    # Import: a model file becomes a graph of operators (`frontend`).
    imported = import_model(request)
    yield imported
    # Optimise: the passes of `graph/pipeline.py`, the last of which groups operators; each group becomes a kernel.
    optimized = optimize_model(imported, request)
    # Here and below: what a stage has used is let go, because weights are in it that the next one has arranged anew.
    del imported
    # Passes have computed with weights, several times their size.
    return_freed_memory()
    yield optimized
    # Plan: a loop program for each group (`topi`, `te`), equal ones shared; where values live, and which kernel when.
    planned = plan_model(optimized, request)
    del optimized
    yield planned
    # Schedule, lower, emit: `lower/kernel.py` does all three for a kernel, in several processes and through the cache.
    compiled = compile_kernels(planned)
    yield compiled
    # Assemble: memory planned around what kernels need, constants arranged for them, the entry that calls them.
    artifact, constants = planned.assemble_code(compiled.kernels, request.options.threads)
    del planned
    artifact.constants = constants.blob()
    yield artifact


def import_model(request: CompileRequest) -> Imported:
    """The graph of a model file (a module is one already), quantised where a precision asks for it."""
    if isinstance(request.model, IRModule):
        module = resolve_loop_calls(request.model)
    else:
        with trace.span("import"):
            module = from_file(request.model, shapes=request.options.shapes)
    if request.options.state is not None:
        module = with_state(module, request.options.state)
    if request.options.likely is not None:
        module = with_likely_sizes(module, _known_sizes(module, request.options.likely))
    if request.options.precision not in LOW_PRECISIONS:
        return Imported(module)
    with trace.span("quantize"):
        return Imported(
            in_precision(module, request.options.precision, request.options.calibration, _runnable(request))
        )


def _known_sizes(module: IRModule, likely: Mapping[str, int]) -> Mapping[str, int]:
    """Likely sizes, of dimensions that the model has."""
    main = module[ENTRY]
    names = [symbol.name for symbol in input_symbols(main)] if isinstance(main, Function) else []
    if unknown := sorted(set(likely) - set(names)):
        raise UserError(
            f"the model has no symbolic dimension '{unknown[0]}'",
            where="likely",
            hint=f"the model has: {', '.join(names) or 'none'}",
        )
    return likely


def _runnable(request: CompileRequest) -> CompileModule:
    """What compiles the float32 models that calibration runs: for this machine, whatever the model is for."""

    def compiled(module: IRModule) -> Executable:
        return Compilation(module, threads=request.options.threads, database=request.options.database).executable()

    return compiled


def optimize_model(imported: Imported, request: CompileRequest) -> Optimized:
    """The graph after the passes of `graph_pipeline`, for all sizes and for those that it is specialized for."""
    half = HALVES.get(request.options.precision)
    options = GraphOptions(
        "NHWC",
        target=request.target,
        host=request.host,
        half=None if half is None else DataType.of(half),
        float8=request.options.precision == "float8",
        # Winograd's algorithm pays where arithmetic is what takes time, which on a GPU it is not.
        winograd=request.options.winograd and request.target.is_cpu,
        infinities=request.options.infinities,
        unchecked=request.options.unchecked,
        choices=GraphChoices(graph_answers(request.answers), likely=likely_sizes(imported.module)),
    )
    with trace.span("optimize"):
        module = optimize(imported.module, options)
        questions = tuple(options.choices.asked.values())
        sizes = [_variant_sizes(imported.module, wanted) for wanted in request.options.specialize]
        variants = [(tuple(fixed.values()), optimize(bind_symbols(imported.module, fixed), options)) for fixed in sizes]
    return Optimized(module, tuple(variants), questions)


def _variant_sizes(module: IRModule, sizes: Mapping[str, int]) -> dict[Var, int]:
    """The values of a model's symbols, in their order, by the names that the user knows."""
    main = module[ENTRY]
    symbols = input_symbols(main) if isinstance(main, Function) else ()
    names = [symbol.name for symbol in symbols]
    if set(sizes) != set(names) or any(not isinstance(size, int) or size < 0 for size in sizes.values()):
        raise UserError(
            f"specialize needs a size of every symbolic dimension, not {dict(sizes)}",
            hint=f"the model has: {', '.join(names) or 'none'}",
        )
    return {symbol: sizes[symbol.name] for symbol in symbols}


def plan_model(optimized: Optimized, request: CompileRequest) -> LoweredModel:
    """Kernels, memory plan and steps of an optimised model."""
    with trace.span("lower_model"):
        planned = lower_model(optimized.module, request.target, optimized.variants, request.answers, request.host)
    planned.on_host = _on_host(planned, request)
    return planned


def _on_host(planned: LoweredModel, request: CompileRequest) -> frozenset[str]:
    """The kernels that the host is to compute beside a device."""
    wanted = frozenset(request.options.on_host)
    if wanted and request.target.is_cpu:
        raise UserError("on_host says what the host computes beside a device, and the target has none", where="on_host")
    unknown = sorted(wanted - {kernel.symbol for kernel in planned.kernels})
    if unknown:
        raise UserError(
            f"the model has no kernel '{unknown[0]}' for this target",
            where="on_host",
            hint="tw.place(model, inputs, target) says which there are, and which the host is quicker at",
        )
    return wanted


def compile_kernels(planned: LoweredModel) -> Compiled:
    """The machine code of all kernels."""
    watch_overrides()
    return Compiled(planned.compiled())


class Compilation(Exportable):
    """The compilation of one model with all its stages: `compile_model`, as far as somebody asks.

    `imported` and `optimized` are graph modules, `questions` what graph passes decided for speed alone; `lowered` holds
    the kernels, the memory plan and the steps; `scheduled`, `lowered_kernel`, `llvm_ir` and `assembly` show one kernel
    at each stage; `artifact()` compiles; `failed_templates` says which kernels have a plainer schedule, and why,
    `far_kernels` which are far from what the processor can do.
    """

    def __init__(
        self,
        model: ModelLike,
        target: TargetLike = "native",
        threads: int | None = None,
        *,
        options: CompileOptions | None = None,
        **changes: Unpack[OptionFields],
    ) -> None:
        self._start(make_request(model, target, make_options(options, threads, changes)))

    @classmethod
    def of(cls, wanted: CompileRequest) -> Compilation:
        """The compilation that a request asks for."""
        made = cls.__new__(cls)
        made._start(wanted)
        return made

    @classmethod
    def compiled(cls, wanted: CompileRequest) -> Executable:
        """What a request asks for, ready to run here. Nobody looks at the stages."""
        return cls.of(wanted).in_order().executable()

    def in_order(self) -> Compilation:
        """This compilation for whoever asks for its stages in their order alone: each is let go after the next."""
        self._keeps_stages = False
        return self

    def _start(self, wanted: CompileRequest) -> None:
        self._keeps_stages = True
        self.request = wanted
        self.target = wanted.target
        self.host = wanted.host
        self.threads = wanted.options.threads
        self._stages = compile_model(wanted)
        self._done: dict[type, object] = {}
        self._artifact: Artifact | None = None

    def __repr__(self) -> str:
        """The model and the target; its stages are properties."""
        model = self.request.model
        name = repr(model) if isinstance(model, (IRModule, str, os.PathLike)) else type(model).__name__
        return f"Compilation({name} for {self.target.describe()})"

    def _stage(self, kind: type[S]) -> S:
        """What a stage gives; the compilation goes on until there."""
        try:
            while kind not in self._done:
                with seldom_collecting():
                    stage = next(self._stages)
                self._done = {**(self._done if self._keeps_stages else {}), type(stage): stage}
        except BaseException:
            # Whoever asks again gets the same error, or a result where it was interrupted.
            self._stages, self._done = compile_model(self.request), {}
            raise
        found = self._done[kind]
        assert isinstance(found, kind)
        return found

    @property
    def imported(self) -> IRModule:
        """The graph as the model has it."""
        return self._stage(Imported).module

    @property
    def optimized(self) -> IRModule:
        """The graph after all graph passes."""
        return self._stage(Optimized).module

    @property
    def questions(self) -> tuple[GraphQuestion, ...]:
        """What graph passes decided for speed alone, by estimates or by what the database says."""
        return self._stage(Optimized).questions

    @property
    def lowered(self) -> LoweredModel:
        """Kernels, memory plan and steps."""
        return self._stage(LoweredModel)

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The distinct kernels of the model."""
        return self.lowered.kernels

    def scheduled(self, kernel: Kernel) -> PrimFunc:
        """A kernel's loop program with its schedule applied: the template's, or where that fails a plainer one."""
        return self._with_schedule(kernel, lambda func: func)

    def templates_of(self, kernel: Kernel) -> tuple[TemplateChoice, ...]:
        """The templates of a kernel's schedule (one for all of it, or one for each stage), and those passed over."""
        return self._used(kernel, lambda func: func).templates

    def _with_schedule(self, kernel: Kernel, use: Callable[[PrimFunc], T]) -> T:
        return self._used(kernel, use).result

    def _used(self, kernel: Kernel, use: Callable[[PrimFunc], T]) -> Used[T]:
        if kernel.parts:
            raise UserError(
                f"{kernel.symbol} is {len(kernel.parts)} kernels that share launches, each with a schedule of its own",
                hint="ask for each of kernel.alone",
            )
        return use_schedule(kernel.func, self.target, kernel.answers, use)

    @property
    def failed_templates(self) -> Mapping[str, str]:
        """Why a kernel's schedule template failed, by its symbol: such kernels have a plainer schedule, and are slow.

        There should be none; one is worth a report. It takes compiled kernels to know it.
        """
        return failed_templates(self._stage(Compiled).kernels)

    @property
    def compiled_kernels(self) -> Mapping[str, CompiledKernel]:
        """The code of each kernel by its symbol, with what compiling it took."""
        return self._stage(Compiled).kernels

    @property
    def slowest_kernels(self) -> tuple[SlowKernel, ...]:
        """The kernels that took longest to compile, where that was long in all."""
        return slowest_kernels(self.compiled_kernels, self.lowered.nodes_by_symbol())

    @property
    def far_kernels(self) -> tuple[FarKernel, ...]:
        """Kernels that are estimated to be far from what the processor can do and matter in the model, the worst first.

        It takes compiled kernels to know it.
        """
        return self.lowered.far_kernels(self._stage(Compiled).kernels)

    def bound_of(self, kernel: Kernel) -> Bound:
        """The least cycles that a kernel takes on one core, and those that it is estimated to take."""
        used = self._used(kernel, lambda func: func)
        return bound_of(kernel.func, used.result, used.templates, self.target)

    def lowered_kernel(self, kernel: Kernel) -> PrimFunc:
        """A kernel's program as the code generator takes it."""
        if self.target.is_cpu:
            return self._with_schedule(kernel, lambda func: lower_planned(func, self.target))
        return self._with_schedule(kernel, lambda func: device_kernels(func, self.target).func)

    def source(self, kernel: Kernel) -> str:
        """The text of a kernel as the compiler of its back end takes it: LLVM IR, C, OpenCL C, CUDA C++, ..."""
        if self.target.is_cpu:
            return staged_function(self.lowered_kernel(kernel), self.target).text
        if kernel.parts:
            return source_of(kernel.func, kernel.parts, self.target)
        return self._with_schedule(
            kernel, lambda func: shown_source(kernel.symbol, device_kernels(func, self.target).kernels, self.target)
        )

    def llvm_ir(self, kernel: Kernel) -> str:
        """A kernel's LLVM IR, before LLVM optimises it."""
        backend = backend_of(self.target, Backend)
        if not isinstance(backend, HostBackend) or backend.emit is not emit_module:
            raise UserError(
                f"kernels for the target kind '{self.target.kind}' have no LLVM IR", hint="see source(kernel)"
            )
        return self.source(kernel)

    def assembly(self, kernel: Kernel) -> str:
        """A kernel's machine code as assembly text. Labels of two kernels differ, so that texts can be put together."""
        compiler = compiler_of(self.target.kind)
        if compiler.assembly is None:
            raise UserError(
                f"kernels for the target kind '{self.target.kind}' have no assembly", hint="see source(kernel)"
            )
        source = staged_function(self.lowered_kernel(kernel), self.target)
        text = staged_assembly(kernel.symbol, source, compiler, self.target).text
        return re.sub(r"(?<![\w.$])\.L(?=\w)", f".L{self.kernels.index(kernel)}_", text)

    def artifact(self) -> Artifact:
        """The compiled model: code, constants and tables."""
        if self._artifact is None:
            # Kernels that were looked at stay those of the result.
            key = None if LoweredModel in self._done else self.request.key
            self._artifact = None if key is None else load_model(key)
            if self._artifact is None:
                self._artifact = self._stage(Artifact)
                if key is not None:
                    store_model(key, self._artifact)
        return self._artifact

    def executable(self) -> Executable:
        """The compiled model, ready to run here."""
        if self.request.options.cpus:
            raise UserError(
                "code for several processors is for libraries",
                where="cpus",
                hint="tw.Compilation(model, cpus=[...]).export_library(path), then tw.load(path)",
            )
        if not self.request.runs_here:
            raise UserError(
                f"the target {self.host} is not this machine, so the model cannot run here",
                hint="use Compilation(...).export_library(path) (or `tilewright compile -o`) to deploy it there",
            )
        with choosing(self.target.kind, self.request.device_index):
            if not self.target.is_cpu and not self.request.names_device:
                # Before the work, so that a missing device is said at once.
                find_device(self.target.kind)
            made = deploy.executable(self.artifact(), self.threads, may_be_absent=self.request.names_device)
        model = self.request.model
        buffers = model.attributes.get("buffers", {}) if isinstance(model, IRModule) else {}
        assert isinstance(buffers, Mapping)
        made.state.assign({name: value for name, value in buffers.items() if name in made.state})
        return made

    def _exported(self) -> tuple[Exporter, Artifact]:
        deployment = deployment_of(self.host)
        own = self.artifact()
        options = self.request.options
        whole = () if self.target.is_cpu or not deployment.runs_without_device else (self.host,)
        levels = [with_processor(self.host, cpu) for cpu in options.cpus[1:]]
        further = [
            Compilation.of(make_request(self.request.model, level, replace(options, cpus=()))).artifact()
            for level in (*whole, *deployment.levels(self.host), *levels)
        ]
        return lambda artifact, path, options: deployment.write([artifact, *further], path, options), own


def build(
    program: TensorSchedule | Schedule | PrimFunc | IRModule,
    args: Sequence[Tensor | Var] | None = None,
    target: Target | str = "native",
    name: str | None = None,
) -> Module | DeviceModule:
    """Compile loop programs: `f = tw.build(s, [A, B, C]); f(a, b, c)`.

    `program` is a tensor-expression schedule (with `args` in the order of the parameters), a loop schedule, a function,
    or a module of functions. Call the result, or pick a function of it by name. With `target="opencl"` or `"cuda"` the
    kernels run on the first such device ("cuda:1": the second); loops that are not bound to threads run in a single
    one.
    """
    watch_overrides()
    target, index = split_index(target) if isinstance(target, str) else (target, 0)
    resolved = any_target(target)
    functions = _functions(program, args, name)
    if not resolved.is_cpu:
        with choosing(resolved.kind, index):
            infos = [_function_info(function) for function in functions]
            return device_module(functions, infos, of_this_machine(target))
    resolved = cpu_target(resolved)
    if deployment_of(resolved).is_folder:
        raise UserError(
            f"functions are built to run here or to be libraries, and the target kind '{resolved.kind}' has neither",
            hint=f"compile a model: tw.Compilation(model, target='{resolved.kind}').export_library(folder)",
        )
    payload = compile_functions(functions, resolved)
    artifact = Artifact(
        resolved.triple,
        resolved.cpu,
        resolved.features,
        [payload],
        functions=[_function_info(function) for function in functions],
    )
    return deploy.module(artifact)


def _functions(
    program: TensorSchedule | Schedule | PrimFunc | IRModule,
    args: Sequence[Tensor | Var] | None,
    name: str | None,
) -> list[PrimFunc]:
    if isinstance(program, TensorSchedule):
        if args is None:
            raise UserError("building a tensor schedule needs its arguments", hint="tw.build(s, [A, B, C])")
        require_right_schedule(program.loops)
        function = program.func(args)
    elif isinstance(program, Schedule):
        require_right_schedule(program)
        function = program.func
    elif isinstance(program, PrimFunc):
        function = right_program(program)
    else:
        functions = [item for item in program.functions.values() if isinstance(item, PrimFunc)]
        if not functions:
            raise UserError(
                "the module has no loop-level function to build", hint="compile graph functions with tw.compile"
            )
        return [right_program(item) for item in functions]
    return [function if name is None else function.replace(name=name)]


def _function_info(function: PrimFunc) -> FunctionInfo:
    written = {id(item.buffer) for item in find_all(function.body, BufferStore)}
    params: list[ParamInfo] = []
    for param in function.params:
        if isinstance(param, Buffer):
            shape = tuple(_extent(dim) for dim in param.shape)
            params.append(ParamInfo(param.name, str(param.dtype), shape, id(param) in written))
        else:
            params.append(ParamInfo(param.name, str(param.dtype)))
    return FunctionInfo(function.name, tuple(params))


def _extent(dim: PrimExpr) -> int | str:
    value = const_value(dim)
    return to_script(dim) if value is None else value
