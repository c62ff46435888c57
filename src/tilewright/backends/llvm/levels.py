"""One library with code for several processors: which is taken is decided when the library first runs.

Each level is a model compiled for one processor. Its kernels get the level's name behind their own, constants
that levels have alike are stored once, and the model's entry becomes a function that calls the entry of the last level
that the processor can run, or of the one that the environment variable TILEWRIGHT_CPU names.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tilewright.backends.llvm.cache import compile_cached
from tilewright.backends.llvm.entry import ALIGNMENT, emit_entry
from tilewright.backends.llvm.globals import c_string
from tilewright.backends.llvm.object_format import rounded_up
from tilewright.backends.llvm.objects import defined_symbols, renamed_symbols
from tilewright.backends.llvm.processor_features import WORDS, feature_questions
from tilewright.backends.llvm.toolchain import plain_features
from tilewright.runtime.core.artifact import PACKED_SUFFIX, ArgKind, Artifact, ModelInfo, Step
from tilewright.runtime.core.header import c_name
from tilewright.runtime.core.library import ERROR_LEVEL, NO_LEVEL_SHAPES
from tilewright.support.errors import CompilerBug, UnsupportedError, UserError
from tilewright.target.processors import processor_name

CHOICE = "tw_level"
"""The function of a library that gives the number of the level that runs; their number where none does."""


@dataclass(frozen=True, slots=True)
class JoinedLevels:
    """Several levels as one model."""

    artifact: Artifact
    """The model with the code of all levels, as whoever calls it sees it."""
    levels: tuple[Artifact, ...]
    """What describes the model where a level runs."""


def level_name(artifact: Artifact) -> str:
    """What a level is called: its processor, and the features that it has beside."""
    return processor_name(artifact.cpu, artifact.features)


def join_levels(artifacts: Sequence[Artifact]) -> JoinedLevels:
    """The levels of one model as one; the last that a machine can run is what runs there."""
    names = [level_name(artifact) for artifact in artifacts]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise UserError(f"the processor '{name}' is given twice", where="cpus")
    models = [_checked(artifact) for artifact in artifacts]
    store = _SharedConstants()
    models = [store.placed(model, artifact.constants) for model, artifact in zip(models, artifacts, strict=True)]
    constants = store.blob()
    objects: list[bytes] = []
    described: list[Artifact] = []
    for name, artifact, model in zip(names, artifacts, models, strict=True):
        renamed = _with_labels(model, c_name(name))
        objects += _code(artifact, model, c_name(name))
        described.append(replace(artifact, model=renamed, constants=constants, objects=[]))
    first = artifacts[0]
    dispatcher = _dispatcher(first.triple, models[0], names, [artifact.requires for artifact in artifacts])
    features = plain_features(first.triple)
    objects.append(compile_cached(dispatcher, triple=first.triple, features=features, opt_level=1))
    workspace = max(model.workspace_bytes for model in models)
    common = set(first.requires).intersection(*(artifact.requires for artifact in artifacts))
    whole = replace(
        described[0],
        model=replace(models[0], workspace_bytes=workspace),
        objects=objects,
        requires=tuple(sorted(common)),
    )
    return JoinedLevels(whole, tuple(described))


def _checked(artifact: Artifact) -> ModelInfo:
    model = artifact.model
    if model is None:
        raise CompilerBug("a library for several processors holds a model")
    if model.program or artifact.device is not None:
        what = "a program of the virtual machine" if model.program else f"for a device ({artifact.device!r})"
        raise UnsupportedError(
            f"the model '{model.name}' is {what}: such libraries have code for one processor",
            where="cpus",
            hint="export a library for each processor",
        )
    return model


class _SharedConstants:
    """The constants of several levels, each of equal ones once."""

    def __init__(self) -> None:
        self._places: dict[bytes, int] = {}
        self._pieces: list[npt.NDArray[np.uint8]] = []
        self._size = 0

    def placed(self, model: ModelInfo, blob: npt.NDArray[np.uint8]) -> ModelInfo:
        """The model of a level over the constants of all."""
        starts = sorted({0, *(constant.offset for constant in model.constants)})
        ends = [*starts[1:], blob.nbytes]
        moved = [self._place(blob[start:end]) for start, end in zip(starts, ends, strict=True)]

        def at(offset: int) -> int:
            piece = bisect_right(starts, offset) - 1
            return moved[piece] + offset - starts[piece]

        def step(old: Step) -> Step:
            args = [replace(arg, offset=at(arg.offset)) if arg.kind is ArgKind.CONSTANT else arg for arg in old.args]
            return replace(old, args=tuple(args))

        variants = [replace(variant, steps=tuple(map(step, variant.steps))) for variant in model.variants]
        return replace(
            model,
            constants=tuple(replace(constant, offset=at(constant.offset)) for constant in model.constants),
            steps=tuple(map(step, model.steps)),
            variants=tuple(variants),
        )

    def _place(self, piece: npt.NDArray[np.uint8]) -> int:
        key = hashlib.sha256(np.ascontiguousarray(piece).data).digest()
        if key not in self._places:
            self._places[key] = self._size
            padded = np.zeros(rounded_up(piece.nbytes, ALIGNMENT), np.uint8)
            padded[: piece.nbytes] = piece
            self._pieces.append(padded)
            self._size += padded.nbytes
        return self._places[key]

    def blob(self) -> npt.NDArray[np.uint8]:
        return np.concatenate(self._pieces) if self._pieces else np.zeros(0, np.uint8)


def _labelled(symbol: str, label: str) -> str:
    """A symbol with the name of a level; the packed form of a function keeps its ending."""
    stem = symbol.removesuffix(PACKED_SUFFIX)
    return f"{stem}__{label}{symbol[len(stem) :]}"


def _with_labels(model: ModelInfo, label: str) -> ModelInfo:
    """The model with the level's name behind those of its kernels."""

    def part(old: ModelInfo) -> ModelInfo:
        kernels = tuple(replace(kernel, symbol=_labelled(kernel.symbol, label)) for kernel in old.kernels)
        return replace(old, kernels=kernels)

    return replace(part(model), variants=tuple(map(part, model.variants)))


def _code(artifact: Artifact, model: ModelInfo, label: str) -> list[bytes]:
    """The objects of a level, all symbols with its name behind them, and an entry over the constants of all levels."""
    kernels = [image for image in artifact.objects if model.entry not in defined_symbols(image)]
    images = [
        renamed_symbols(image, {symbol: _labelled(symbol, label) for symbol in defined_symbols(image)})
        for image in kernels
    ]
    own = _with_labels(model, label)
    variants = tuple(replace(variant, name=_labelled(variant.name, label)) for variant in own.variants)
    entry = emit_entry(replace(own, name=_labelled(model.name, label), variants=variants))
    compiled = compile_cached(entry, triple=artifact.triple, cpu=artifact.cpu, features=artifact.features, opt_level=1)
    return [*images, compiled]


def _dispatcher(triple: str, model: ModelInfo, names: Sequence[str], needs: Sequence[Sequence[str]]) -> str:
    """The functions of the model, which call those of the level that runs, and the choice of it."""
    labels = [c_name(name) for name in names]
    questions = feature_questions(triple, dict(zip(labels, needs, strict=True)))
    arguments = 5 if model.symbols else 4
    functions = [_forward(model.name, "entry", arguments, ERROR_LEVEL, labels)]
    if model.symbols:
        functions.append(_forward(model.name, "plan", 3, NO_LEVEL_SHAPES, labels))
        functions.append(_forward(model.name, "shapes", 4, NO_LEVEL_SHAPES, labels))
    functions += [_forward(variant.name, "entry", 4, ERROR_LEVEL, labels) for variant in model.variants]
    return "\n".join([questions, _choice(names, labels), *functions])


def _forward(name: str, suffix: str, count: int, none: int, labels: Sequence[str]) -> str:
    types = ", ".join(["ptr"] * count)
    given = ", ".join(f"ptr %{number}" for number in range(count))
    own = [f"{_labelled(name, label)}_{suffix}" for label in labels]
    cases = " ".join(f"i32 {number}, label %level{number}" for number in range(len(labels)))
    lines = [f"declare i32 @{symbol}({types})" for symbol in own]
    lines += [f"define i32 @{name}_{suffix}({types}) {{", f"  %level = call i32 @{CHOICE}()"]
    lines += [f"  switch i32 %level, label %none [ {cases} ]", "none:", f"  ret i32 {none}"]
    for number, symbol in enumerate(own):
        lines += [f"level{number}:", f"  %code{number} = call i32 @{symbol}({given})", f"  ret i32 %code{number}"]
    return "\n".join([*lines, "}"])


def _choice(names: Sequence[str], labels: Sequence[str]) -> str:
    """`tw_level`: asks once. Threads that ask at the same time find the same answer."""
    lines = [
        "declare ptr @getenv(ptr)",
        "declare i32 @strcmp(ptr, ptr)",
        "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)",
    ]
    lines += [f"@tw.level_name{number} = private constant {c_string(name)}" for number, name in enumerate(names)]
    lines += [_CHOICE, "define internal i32 @tw.choose() {", f"  %words = alloca [{WORDS} x i64], align 16"]
    lines.append(f"  call void @llvm.memset.p0.i64(ptr align 16 %words, i8 0, i64 {8 * WORDS}, i1 false)")
    lines.append("  call void @tw.read_processor(ptr %words)")
    lines.append("  %wanted = call ptr @getenv(ptr @tw.level_variable)")
    lines.append("  %free = icmp eq ptr %wanted, null")
    for number, label in reversed(list(enumerate(labels))):
        lines += [
            f"  br label %try{number}",
            f"try{number}:",
            f"  %has{number} = call i1 @tw.has_{label}(ptr %words)",
            f"  br i1 %has{number}, label %named{number}, label %next{number}",
            f"named{number}:",
            f"  br i1 %free, label %take{number}, label %compare{number}",
            f"compare{number}:",
            f"  %differs{number} = call i32 @strcmp(ptr %wanted, ptr @tw.level_name{number})",
            f"  %same{number} = icmp eq i32 %differs{number}, 0",
            f"  br i1 %same{number}, label %take{number}, label %next{number}",
            f"take{number}:",
            f"  ret i32 {number}",
            f"next{number}:",
        ]
    return "\n".join([*lines, f"  ret i32 {len(names)}", "}"])


_CHOICE = f"""
@tw.level_variable = private constant [15 x i8] c"TILEWRIGHT_CPU\\00"
@tw.level = internal global i32 -1, align 4

define hidden i32 @{CHOICE}() {{
  %known = load atomic i32, ptr @tw.level monotonic, align 4
  %is_known = icmp sge i32 %known, 0
  br i1 %is_known, label %answer, label %ask
answer:
  ret i32 %known
ask:
  %chosen = call i32 @tw.choose()
  store atomic i32 %chosen, ptr @tw.level monotonic, align 4
  ret i32 %chosen
}}
"""
