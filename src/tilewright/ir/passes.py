"""Passes and pipelines: named transformations with contracts, timed, dumped, overridable and verified.

    @function_pass("unroll_loops", requires="blocks_lowered", leaves="blocks_lowered")
    def unroll_loops(func: PrimFunc, options: UnrollOptions = UnrollOptions()) -> PrimFunc: ...

    pipeline = Pipeline("cpu", [lower_blocks, unroll_loops.with_options(UnrollOptions(limit=8))])
    lowered = pipeline.run(func)

A pass is still a plain function of its input: `unroll_loops(func, UnrollOptions(limit=4))`. While a pipeline runs:

- `TILEWRIGHT_TRACE=time` times each pass;
- the program after each pass can be written to a file, and a changed file takes its place (`ir/stage_files.py`);
- `TILEWRIGHT_VERIFY=1` checks, after each pass that changes something, the contract of the stage that it leaves the
  program in;
- instruments (`with instrumented(...)`) see the program before and after each pass.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol, TypeVar, cast, get_type_hints

from tilewright.ir.codec import codec_for, to_text
from tilewright.ir.function import BaseFunction, IRModule
from tilewright.ir.stage_files import StageFiles, StageText
from tilewright.support import settings, trace
from tilewright.support.errors import CompilerBug, TilewrightError, UserError

F = TypeVar("F", bound=BaseFunction)
T = TypeVar("T")
P = ParamSpec("P")

Program = BaseFunction | IRModule


@dataclass(frozen=True, slots=True)
class Pass(Generic[T]):
    """A named transformation of functions or of modules.

    `requires` and `leaves` name the stage contracts it needs and establishes (None: any; the stage stays as it was).
    `options` is what the function takes besides the program, if it takes something: a frozen dataclass.
    """

    name: str
    function: Callable[..., T]
    on_modules: bool
    requires: str | None = None
    leaves: str | None = None
    options: object = None

    def __call__(self, value: T, options: object = None) -> T:
        """Run the pass on its own."""
        given = self.options if options is None else options
        return self.function(value) if given is None else self.function(value, given)

    def __str__(self) -> str:
        """The name, with the options that are not the usual ones: `unroll_loops(limit=8)`."""
        shown = (
            []
            if self.options is None
            else [
                f"{item.name}={getattr(self.options, item.name)!r}"
                for item in fields(self.options)  # type: ignore[arg-type]
                if item.repr and getattr(self.options, item.name) != item.default
            ]
        )
        return f"{self.name}({', '.join(shown)})" if shown else self.name

    def with_options(self, options: object) -> Pass[T]:
        """This pass with options of the type that its function takes."""
        taken = _option_types(self.function)
        if len(taken) != 1 or not isinstance(options, taken[0]):
            kinds = " and ".join(getattr(kind, "__name__", str(kind)) for kind in taken)
            raise UserError(
                f"the pass {self.name} takes no {type(options).__name__}",
                hint=f"it takes {kinds}" if taken else "it has no options",
            )
        return replace(self, options=options)


@cache
def _option_types(function: Callable[..., object]) -> list[type[object]]:
    """The types of what a pass takes besides the program."""
    _, *parameters = get_type_hints(function).items()
    return [kind for name, kind in parameters if name != "return"]


def function_pass(
    name: str, *, requires: str | None = None, leaves: str | None = None
) -> Callable[[Callable[Concatenate[F, P], F]], Pass[F]]:
    """Make a function from functions to functions a pass; in a pipeline over a module it runs on each function."""

    def make(function: Callable[Concatenate[F, P], F]) -> Pass[F]:
        return Pass(name, function, False, requires, leaves)

    return make


def module_pass(
    name: str, *, requires: str | None = None, leaves: str | None = None
) -> Callable[[Callable[Concatenate[IRModule, P], IRModule]], Pass[IRModule]]:
    """Make a function from modules to modules a pass."""

    def make(function: Callable[Concatenate[IRModule, P], IRModule]) -> Pass[IRModule]:
        return Pass(name, function, True, requires, leaves)

    return make


# -------------------------------------------------------------------- stages

Verifier = Callable[[Program], None]
_verifiers: Final[dict[str, Verifier]] = {}


def register_stage(stage: str, verifier: Verifier) -> None:
    """Name a stage contract and the function that checks it (it raises if the contract does not hold)."""
    _verifiers[stage] = verifier


def verify_stage(program: Program, stage: str) -> None:
    """Check that a function, or every function of a module, keeps the contract of a stage."""
    verifier = _verifiers.get(stage)
    if verifier is None:
        raise CompilerBug(f"the stage {stage!r} has no verifier (known: {', '.join(sorted(_verifiers)) or 'none'})")
    verifier(program)


# -------------------------------------------------------------------- instruments


class Instrument(Protocol):
    """Sees the program before and after each pass of every pipeline run inside `with instrumented(...)`."""

    def before(self, pipeline: str, name: str, program: Program) -> None:
        """Called before a pass runs."""

    def after(self, pipeline: str, name: str, program: Program) -> None:
        """Called with the result of a pass."""


_instruments: ContextVar[tuple[Instrument, ...]] = ContextVar("tilewright_pass_instruments", default=())


@contextmanager
def instrumented(*instruments: Instrument) -> Iterator[None]:
    """Let instruments watch the pipelines that run in the `with` body."""
    token = _instruments.set((*_instruments.get(), *instruments))
    try:
        yield
    finally:
        _instruments.reset(token)


class Recorder:
    """An instrument that keeps the printed program after each pass: `[(pass, text), ...]`."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, str]] = []

    def before(self, pipeline: str, name: str, program: Program) -> None:
        """Keep the input of the first pass."""
        if not self.stages:
            self.stages.append(("input", to_text(program)))

    def after(self, pipeline: str, name: str, program: Program) -> None:
        """Keep a result."""
        self.stages.append((name, to_text(program)))


# -------------------------------------------------------------------- pipelines


@dataclass(frozen=True, slots=True)
class Exit:
    """The last stage of a pipeline, where a program leaves this IR: what comes out is dumped, but not read back."""

    name: str
    function: Callable[[Any], object]
    text: Callable[[Any], str]


class Pipeline:
    """Passes one after another, over a function or a module."""

    def __init__(
        self,
        name: str,
        passes: Sequence[Pass[BaseFunction] | Pass[IRModule] | Pass[F]],
        *,
        starts_at: str | None = None,
        ends_with: Exit | None = None,
    ) -> None:
        self.name = name
        self.passes: tuple[Pass[object], ...] = tuple(cast("Sequence[Pass[object]]", passes))
        self.starts_at = starts_at
        self.ends_with = ends_with
        stage = starts_at
        for item in self.passes:
            if item.requires is not None and stage is not None and item.requires != stage:
                raise CompilerBug(
                    f"pipeline {name}: the pass {item.name} needs stage {item.requires!r}, it comes at stage {stage!r}"
                )
            stage = item.leaves or item.requires or stage
        self.ends_at = stage

    def __str__(self) -> str:
        """The passes in order, a line each, with their options."""
        stages = [*map(str, self.passes), *([self.ends_with.name] if self.ends_with is not None else [])]
        return "\n".join(f"{number:02d} {stage}" for number, stage in enumerate(stages, start=1))

    def __iter__(self) -> Iterator[tuple[str, Callable[[Any], Any]]]:
        """Each pass with its name, to run them one at a time."""
        return iter([(item.name, item) for item in self.passes])

    def run(self, program: T) -> T:
        """The program after all passes."""
        if not isinstance(program, (BaseFunction, IRModule)):
            raise CompilerBug(f"a pipeline does not run on a {type(program).__name__}")
        stage = self.starts_at
        verify = settings.VERIFY.get()
        files = self._files(program)
        current = _through_files(files, 0, program)
        if verify and stage is not None:
            self._verify(current, stage, "the input")
        with trace.span(f"pipeline:{self.name}"):
            for number, item in enumerate(self.passes, start=1):
                for instrument in _instruments.get():
                    instrument.before(self.name, item.name, current)
                before = current
                with trace.span(f"pass:{item.name}"):
                    current = self._apply(item, before)
                current = _through_files(files, number, current)
                for instrument in _instruments.get():
                    instrument.after(self.name, item.name, current)
                reached, stage = stage, item.leaves or stage
                if verify and stage is not None and not (stage == reached and _is_same(before, current)):
                    self._verify(current, stage, f"the pass {item.name}")
        return cast(T, current)

    def finish(self, program: BaseFunction, kind: type[T]) -> T:
        """What comes out of the last stage for a program that has passed all others."""
        if self.ends_with is None:
            raise CompilerBug(f"the pipeline {self.name} ends in a program")
        with trace.span(f"pass:{self.ends_with.name}"):
            result = self.ends_with.function(program)
        if not isinstance(result, kind):
            raise CompilerBug(f"the pipeline {self.name} ends in a {type(result).__name__}, not in a {kind.__name__}")
        show, exit_text = self._files(program).show, self.ends_with.text
        show(1 + len(self.passes), ".txt", lambda: f"{exit_text(result)}\n")
        return result

    def _files(self, program: Program) -> StageFiles:
        last = [] if self.ends_with is None else [self.ends_with.name]
        return StageFiles(self.name, _name(program), ["input", *(item.name for item in self.passes), *last])

    def _apply(self, item: Pass[object], program: Program) -> Program:
        try:
            if item.on_modules:
                if not isinstance(program, IRModule):
                    raise CompilerBug(f"the module pass {item.name} is run on a single function")
                return cast(IRModule, item(program))
            if isinstance(program, IRModule):
                return _over_functions(item, program)
            return cast(BaseFunction, item(program))
        except CompilerBug as error:
            error.add_note(f"(in the pass {item.name} of the pipeline {self.name})")
            raise

    def _verify(self, program: Program, stage: str, after: str) -> None:
        try:
            verify_stage(program, stage)
        except TilewrightError as error:
            raise CompilerBug(
                f"after {after} of pipeline {self.name} the stage {stage!r} does not hold: {error}"
            ) from error


def _is_same(one: Program, other: Program) -> bool:
    """Whether a pass has changed nothing: the same program, a function of the same parts, a module of such ones."""
    if isinstance(one, IRModule) and isinstance(other, IRModule):
        same = list(one.functions) == list(other.functions) and one.types == other.types
        return same and all(map(_is_same, one.functions.values(), other.functions.values()))
    if one is other or not isinstance(one, BaseFunction) or type(one) is not type(other):
        return one is other
    return all(a is b for a, b in zip(one.field_values(), other.field_values(), strict=True))


def _over_functions(item: Pass[object], module: IRModule) -> IRModule:
    """A function pass on each function of the kind that it takes."""
    wanted = _parameter_kind(item.function)
    functions: dict[str, BaseFunction] = {}
    for name, function in module.functions.items():
        fits = type(function).__name__ == wanted or wanted in ("BaseFunction", "")
        functions[name] = cast(BaseFunction, item(function)) if fits else function
    return module.with_functions(functions)


def _parameter_kind(function: Callable[..., object]) -> str:
    """The name of the class of functions that a pass takes, from the annotation of its first parameter."""
    parameters = list(inspect.signature(function).parameters.values())
    annotation = parameters[0].annotation if parameters else inspect.Parameter.empty
    if annotation is inspect.Parameter.empty:
        return ""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return str(text).rsplit(".", 1)[-1]


def _name(program: Program) -> str:
    return program.name if isinstance(program, BaseFunction) else str(program.attributes.get("name", "module"))


def _through_files(files: StageFiles, number: int, program: Program) -> Program:
    """A program as it goes on: what a file gives in its place, if there is one; dumped if that is asked for."""
    codec = codec_for(program)
    suffix = codec.suffix if codec else ".txt"
    override = files.override(number, suffix)
    if override is not None:
        with override.blamed():
            program = _parsed(override, files.stages[number], program)
    current = program
    files.dump(number, suffix, lambda: to_text(current) + "\n")
    return current


def _parsed(override: StageText, stage: str, program: Program) -> Program:
    """The program in a file that takes the place of another one."""
    codec, where = codec_for(program), str(override.place)
    if codec is None:
        raise UserError(f"the stage {stage} has no text that can be read back", where=where)
    if codec.parse_beside is not None:
        result = codec.parse_beside(override.text, where, program)
    else:
        result = codec.parse(override.text, where)
    if type(result) is not type(program):
        raise UserError(
            f"the file holds a {type(result).__name__}, the stage is a {type(program).__name__}", where=where
        )
    if isinstance(result, BaseFunction) and isinstance(program, BaseFunction) and result.name != program.name:
        raise UserError(
            f"the file defines the function {result.name}, the stage's function is {program.name}", where=where
        )
    if isinstance(result, IRModule) and isinstance(program, IRModule) and set(result) != set(program):
        raise UserError("the functions in the file are not those of the stage", where=where)
    assert isinstance(result, (BaseFunction, IRModule))
    return result
