"""A model as C: its header, and the file with its kernels and the function that calls them in order."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tilewright.backends.micro.functions import PREAMBLE
from tilewright.backends.micro.weights import weight_bytes, weight_place
from tilewright.runtime.core.artifact import ArgKind, ArgRef, Artifact, ModelInfo, TensorInfo
from tilewright.runtime.core.checks import FIRST_CODE, code_messages
from tilewright.runtime.core.dtypes import C_TYPES
from tilewright.runtime.core.header import c_name
from tilewright.runtime.core.library import ERROR_ASSERT
from tilewright.runtime.core.shapes import show_shape
from tilewright.support.errors import CompilerBug
from tilewright.support.version import VERSION

_KEYWORDS: Final = frozenset(
    """auto bool break case char code const continue default do double else enum extern false float for goto if inline
    int long register restrict return short signed sizeof static struct switch true typedef union unsigned void volatile
    while class delete new private public protected template this throw try catch operator namespace using""".split()
)
"""Words of C and C++, and names of ours: no parameter is called so."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """An input or output of a model as a parameter of its function."""

    name: str
    info: TensorInfo
    is_output: bool

    @property
    def element(self) -> str:
        """The C type of an element."""
        return C_TYPES[self.info.dtype]

    @property
    def count(self) -> int:
        """How many elements it has."""
        count = 1
        for extent in self.info.static_shape:
            count *= extent
        return count

    @property
    def declaration(self) -> str:
        """The parameter in C."""
        return f"{'' if self.is_output else 'const '}{self.element}* {self.name}"


def parameters_of(model: ModelInfo) -> list[Parameter]:
    """The parameters of a model's function: inputs, then outputs."""
    infos = [*((info, False) for info in model.inputs), *((info, True) for info in model.outputs)]
    names = _distinct(info.name for info, _ in infos)
    return [Parameter(name, info, is_output) for name, (info, is_output) in zip(names, infos, strict=True)]


def _distinct(names: Iterable[str]) -> list[str]:
    """Names as identifiers of C, each once. Those that begin with `tw_` or `constant_` are ours."""
    found: list[str] = []
    for name in map(c_name, names):
        base = f"{name}_" if name in _KEYWORDS else name
        base = f"p_{base}" if re.match(r"tw_|constant_|_", base) else base
        unique, number = base, 1
        while unique in found:
            number += 1
            unique = f"{base}_{number}"
        found.append(unique)
    return found


def signature(model: ModelInfo, name: str) -> str:
    """The head of a model's function."""
    return f"int32_t {name}_run({', '.join(item.declaration for item in parameters_of(model)) or 'void'})"


def header_text(artifact: Artifact, name: str) -> str:
    """The header of a model."""
    model = artifact.model
    assert model is not None
    macro, parameters = name.upper(), parameters_of(model)
    tensors = [
        f"   {item.name}: {item.info.dtype} {show_shape(item.info.shape)}{' (written)' if item.is_output else ''}"
        for item in parameters
    ]
    counts = [f"#define {macro}_{item.name.upper()}_ELEMENTS {item.count}" for item in parameters]
    codes = [f"   {code}: {_comment(text)}" for code, text in _codes(model).items()]
    return "\n".join(
        [
            f"/* {name}, compiled by Tilewright {VERSION} for {artifact.cpu} ({artifact.triple}). */",
            f"#ifndef {macro}_H",
            f"#define {macro}_H",
            "#include <stdint.h>",
            "",
            "/* Memory: all of it is static. The weights are const (flash), the arena is not (RAM). */",
            f"#define {macro}_ARENA_BYTES {arena_bytes(model)}",
            f"#define {macro}_WEIGHT_BYTES {weight_bytes(model)}",
            *counts,
            "",
            "#ifdef __cplusplus",
            'extern "C" {',
            "#endif",
            "/* Run the model once. Not for two threads at once: they would share the arena.",
            *tensors,
            "   It returns:",
            *codes,
            "*/",
            f"{signature(model, name)};",
            "#ifdef __cplusplus",
            "}",
            "#endif",
            "#endif",
            "",
        ]
    )


def arena_bytes(model: ModelInfo) -> int:
    """The size of the arena; C has no array of nothing."""
    return max(model.workspace_bytes, 1)


def _comment(text: str) -> str:
    return text.replace("*/", "* /").replace("\n", " ")


def _codes(model: ModelInfo) -> dict[int, str]:
    """What a model's function may return: nothing here allocates, or needs permission."""
    return {
        code: text for code, text in code_messages(model).items() if code in (0, ERROR_ASSERT) or code >= FIRST_CODE
    }


def source_text(artifact: Artifact, name: str) -> str:
    """The kernels of a model, and the function that calls them."""
    model = artifact.model
    assert model is not None
    macro = name.upper()
    lines = [
        f"/* {name}, compiled by Tilewright {VERSION} for {artifact.cpu} ({artifact.triple}). */",
        f'#include "{name}.h"',
        f'#include "{name}_weights.h"',
        "",
        "/* Where the arena lies is for whoever builds the firmware to say: a section of fast memory, for instance. */",
        f"#ifndef {macro}_ARENA_ATTRIBUTE",
        f"#define {macro}_ARENA_ATTRIBUTE",
        "#endif",
        f"static _Alignas(16) {macro}_ARENA_ATTRIBUTE uint8_t tw_arena[{macro}_ARENA_BYTES];",
        "/* What is done before each step, for profiles. */",
        f"#ifndef {macro}_STEP",
        f"#define {macro}_STEP(number)",
        "#endif",
        "",
        PREAMBLE,
        *(code.decode().removeprefix(PREAMBLE) for code in artifact.objects),
        f"{signature(model, name)} {{",
        "  int32_t tw_code;",
        *_steps(model, macro),
        "  return 0;",
        "}",
        "",
    ]
    return "\n".join(lines)


def _steps(model: ModelInfo, macro: str) -> list[str]:
    parameters = parameters_of(model)
    places = {ArgKind.INPUT: parameters[: len(model.inputs)], ArgKind.OUTPUT: parameters[len(model.inputs) :]}
    checks = {check.step: FIRST_CODE + model.first_check + number for number, check in enumerate(model.checks)}
    lines: list[str] = []
    for number, step in enumerate(model.steps):
        kernel = model.kernels[step.kernel]
        arguments = ", ".join(_argument(arg, model, places) for arg in step.args)
        failed = "tw_code" if number not in checks else f"tw_code == {ERROR_ASSERT} ? {checks[number]} : tw_code"
        nodes = _comment(", ".join(kernel.nodes))
        lines += [
            f"  {macro}_STEP({number}); /* {nodes} */",
            f"  tw_code = {kernel.symbol}({arguments});",
            f"  if (tw_code) return {failed};",
        ]
    return lines


def _argument(arg: ArgRef, model: ModelInfo, places: dict[ArgKind, list[Parameter]]) -> str:
    """An argument of a kernel. Types are those of the kernel: memory has none of its own."""
    if arg.kind is ArgKind.SCALAR:
        return str(arg.index)
    if arg.kind is ArgKind.WORKSPACE:
        return f"(void*)(tw_arena + {arg.offset})"
    if arg.kind is ArgKind.CONSTANT:
        name, inside = weight_place(model.constants, arg.offset)
        return _pointer(name, inside, "const ")
    if arg.kind in places:
        parameter = places[arg.kind][arg.index]
        return _pointer(parameter.name, arg.offset, "" if parameter.is_output else "const ")
    raise CompilerBug(f"a model of constant sizes passes a {arg.kind}")


def _pointer(name: str, offset: int, qualifier: str) -> str:
    return f"({qualifier}void*)(({qualifier}uint8_t*){name} + {offset})" if offset else f"({qualifier}void*){name}"
