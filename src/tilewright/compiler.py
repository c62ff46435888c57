"""The compiler: `Compilation` of a model with all its stages, and `build` for loop programs."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TypeVar

from tilewright.backends.device import device_kernels, device_module, device_source
from tilewright.backends.host import compile_functions, lower_planned
from tilewright.backends.llvm import deploy, toolchain
from tilewright.backends.llvm.compiler import OPT_LEVEL
from tilewright.backends.llvm.emit import emit_module
from tilewright.frontend import from_onnx
from tilewright.graph.choices import GraphChoices, GraphQuestion, graph_answers
from tilewright.graph.ir.expr import Function
from tilewright.graph.passes.bind_symbols import bind_symbols
from tilewright.graph.pipeline import GraphOptions, optimize
from tilewright.ir.dtype import DataType
from tilewright.ir.expr import PrimExpr, Var, const_value
from tilewright.ir.function import IRModule
from tilewright.ir.passes import watch_overrides
from tilewright.ir.visit import find_all
from tilewright.lower.kernel import Kernel
from tilewright.lower.loop_calls import resolve_loop_calls
from tilewright.lower.model import ENTRY, LoweredModel, input_symbols, lower_model
from tilewright.lower.model_cache import load_model, store_model
from tilewright.lower.schedules import use_schedule
from tilewright.request import CompileRequest, DatabaseLike, ModelLike, TargetLike, any_target, cpu_target, request
from tilewright.runtime.core.artifact import Artifact, FunctionInfo, ParamInfo
from tilewright.runtime.core.executor import Executable
from tilewright.runtime.core.keys import SigningKey
from tilewright.runtime.core.module import Module, export
from tilewright.runtime.device.devices import choosing, find_device, split_index
from tilewright.runtime.device.program import DeviceModule
from tilewright.support import trace
from tilewright.support.errors import UserError
from tilewright.target import Target
from tilewright.te.schedule import Schedule as TensorSchedule
from tilewright.te.tensor import Tensor
from tilewright.tir.admission import require_right_schedule, right_program
from tilewright.tir.buffer import Buffer
from tilewright.tir.function import PrimFunc
from tilewright.tir.schedule.schedule import Schedule
from tilewright.tir.script import to_script
from tilewright.tir.stmt import BufferStore
from tilewright.topi.schedule.choices import Answer

T = TypeVar("T")


class Compilation:
    """The compilation of one model with all its stages: what `compile` does, step by step.

    `imported` and `optimized` are graph modules, `questions` what graph passes decided for speed alone; `lowered` holds
    the kernels, the memory plan and the steps; `scheduled`, `lowered_kernel`, `llvm_ir` and `assembly` show one kernel
    at each stage; `artifact()` compiles; `failed_templates` says which kernels have a plainer schedule, and why.
    """

    def __init__(
        self,
        model: ModelLike,
        target: TargetLike = "native",
        threads: int | None = None,
        *,
        shapes: Mapping[str, Sequence[int]] | None = None,
        winograd: bool = True,
        infinities: bool = False,
        specialize: Sequence[Mapping[str, int]] = (),
        database: DatabaseLike = None,
        precision: str = "float32",
        unchecked: bool = False,
    ) -> None:
        self._start(
            request(model, target, threads, shapes, winograd, infinities, specialize, database, precision, unchecked)
        )

    @classmethod
    def of(cls, wanted: CompileRequest) -> Compilation:
        """The compilation that a request asks for."""
        made = cls.__new__(cls)
        made._start(wanted)
        return made

    def _start(self, wanted: CompileRequest) -> None:
        if isinstance(wanted.model, IRModule) and wanted.shapes is not None:
            raise UserError("shapes are given when a model is imported", hint="from_onnx(path, shapes={...})")
        self.request = wanted
        self.target = wanted.target
        self.host = wanted.host
        self.threads = wanted.threads
        self._choices = GraphChoices(graph_answers(wanted.answers))
        self._artifact: Artifact | None = None

    def __repr__(self) -> str:
        """The model and the target; its stages are properties."""
        model = self.request.model
        name = repr(model) if isinstance(model, (IRModule, str, os.PathLike)) else type(model).__name__
        return f"Compilation({name} for {self.target.describe()})"

    @cached_property
    def imported(self) -> IRModule:
        """The graph as the model has it."""
        if isinstance(self.request.model, IRModule):
            return resolve_loop_calls(self.request.model)
        with trace.span("import"):
            return from_onnx(self.request.model, shapes=self.request.shapes)

    @cached_property
    def optimized(self) -> IRModule:
        """The graph after all graph passes."""
        return self._optimized(self.imported)

    def _optimized(self, module: IRModule) -> IRModule:
        with trace.span("optimize"):
            # Winograd's algorithm pays where arithmetic is what takes time, which on a GPU it is not.
            winograd = self.request.winograd and self.target.is_cpu
            half = DataType.of(self.request.precision) if self.request.precision in ("float16", "bfloat16") else None
            options = GraphOptions(
                "NHWC",
                target=self.target,
                half=half,
                winograd=winograd,
                infinities=self.request.infinities,
                unchecked=self.request.unchecked,
                choices=self._choices,
            )
            return optimize(module, options)

    @property
    def questions(self) -> tuple[GraphQuestion, ...]:
        """What graph passes decided for speed alone, by estimates or by what the database says."""
        # Passes ask while they run.
        _ = self.optimized
        return tuple(self._choices.asked.values())

    @cached_property
    def lowered(self) -> LoweredModel:
        """Kernels, memory plan and steps."""
        variants = [self._variant(sizes) for sizes in self.request.specialize]
        with trace.span("lower_model"):
            return lower_model(self.optimized, self.target, variants, self._answers, self.host)

    def _answers(self, symbol: str) -> Mapping[str, Answer]:
        """What the database says about a kernel's schedule."""
        return self.request.answers.get(symbol, {})

    def _variant(self, sizes: Mapping[str, int]) -> tuple[tuple[int, ...], IRModule]:
        """The model for fixed sizes of its symbols, optimised."""
        main = self.imported[ENTRY]
        symbols = input_symbols(main) if isinstance(main, Function) else ()
        names = [symbol.name for symbol in symbols]
        if set(sizes) != set(names) or any(not isinstance(size, int) or size < 0 for size in sizes.values()):
            raise UserError(
                f"specialize needs a size of every symbolic dimension, not {dict(sizes)}",
                hint=f"the model has: {', '.join(names) or 'none'}",
            )
        fixed = tuple(sizes[name] for name in names)
        bound = bind_symbols(self.imported, dict(zip(symbols, fixed, strict=True)))
        return fixed, self._optimized(bound)

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The distinct kernels of the model."""
        return self.lowered.kernels

    def scheduled(self, kernel: Kernel) -> PrimFunc:
        """A kernel's loop program with its schedule applied: the template's, or where that fails a plainer one."""
        return self._with_schedule(kernel, lambda func: func)

    def _with_schedule(self, kernel: Kernel, use: Callable[[PrimFunc], T]) -> T:
        return use_schedule(kernel.func, self.target, kernel.answers, use).result

    @property
    def failed_templates(self) -> Mapping[str, str]:
        """Why a kernel's schedule template failed, by its symbol: such kernels have a plainer schedule, and are slow.

        There should be none; one is worth a report. It takes compiled kernels to know it.
        """
        return self.lowered.failed_templates

    def lowered_kernel(self, kernel: Kernel) -> PrimFunc:
        """A kernel's program as the code generator takes it."""
        if self.target.is_cpu:
            return self._with_schedule(kernel, lambda func: lower_planned(func, self.target))
        return self._with_schedule(kernel, lambda func: device_kernels(func, self.target).func)

    def source(self, kernel: Kernel) -> str:
        """The text of a kernel for a device, as the device's compiler takes it."""
        if self.target.is_cpu:
            raise UserError("kernels for a CPU have no text in another language", hint="see llvm_ir(kernel)")
        return self._with_schedule(
            kernel, lambda func: device_source(device_kernels(func, self.target).kernels, self.target)
        )

    def llvm_ir(self, kernel: Kernel) -> str:
        """A kernel's LLVM IR, before LLVM optimises it."""
        if not self.target.is_cpu:
            raise UserError(
                f"kernels for the target kind '{self.target.kind}' have no LLVM IR", hint="see source(kernel)"
            )
        return emit_module([self.lowered_kernel(kernel)], self.target)

    def assembly(self, kernel: Kernel) -> str:
        """A kernel's machine code as assembly text. Labels of two kernels differ, so that texts can be put together."""
        target = self.target
        text = toolchain.emit_assembly(
            self.llvm_ir(kernel), triple=target.triple, cpu=target.cpu, features=target.features, opt_level=OPT_LEVEL
        )
        return re.sub(r"(?<![\w.$])\.L(?=\w)", f".L{self.kernels.index(kernel)}_", text)

    def artifact(self) -> Artifact:
        """The compiled model: code, constants and tables."""
        if self._artifact is None:
            # Stages that were looked at stay those of the result.
            key = None if "lowered" in self.__dict__ else self.request.key
            self._artifact = None if key is None else load_model(key)
            if self._artifact is None:
                watch_overrides()
                self._artifact = self.lowered.compile(self.threads)
                if key is not None:
                    store_model(key, self._artifact)
        return self._artifact

    def executable(self) -> Executable:
        """The compiled model, ready to run here."""
        if not self.request.runs_here:
            raise UserError(
                f"the target {self.host} is not this machine, so the model cannot run here",
                hint="use Compilation(...).export_library(path) (or `tilewright compile -o`) to deploy it there",
            )
        with choosing(self.target.kind, self.request.device_index):
            if not self.target.is_cpu and not self.request.names_device:
                # Before the work, so that a missing device is said at once.
                find_device(self.target.kind)
            return deploy.executable(self.artifact(), self.threads, may_be_absent=self.request.names_device)

    def export_library(
        self,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        sign: SigningKey | str | os.PathLike[str] | None = None,
    ) -> None:
        """Write the compiled model as a shared library, for this machine or another.

        `name` is what its symbols begin with (default: the file's name without its suffix), `sign` a key that signs it.
        """
        export(deploy.export_library, self.artifact(), path, name, sign)


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
            return device_module(functions, [_function_info(function) for function in functions], resolved)
    resolved = cpu_target(resolved)
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
