"""What an exported library adds around compiled code: its public functions, under the name of the library.

The code inside keeps the names that the compiler gave it, and is hidden. What others see begins with the library's own
name, so that one program may use many libraries. The runtime finds hidden symbols in a table.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from tilewright.backends.llvm.cache import compile_cached
from tilewright.backends.llvm.globals import c_string
from tilewright.backends.llvm.interface import interface_ir, refusal_of
from tilewright.backends.llvm.levels import CHOICE, level_name
from tilewright.backends.llvm.link_coff import START
from tilewright.backends.llvm.object_format import is_windows
from tilewright.backends.llvm.objects import defined_symbols
from tilewright.backends.llvm.pool import EXPORTED
from tilewright.backends.llvm.toolchain import plain_features
from tilewright.runtime.core.artifact import Artifact, ModelInfo
from tilewright.runtime.core.checks import code_messages
from tilewright.runtime.core.header import INTERFACE_SUFFIX, TABLE_SUFFIX
from tilewright.support.errors import CompilerBug, UserError


def exported_symbols(artifact: Artifact, name: str) -> list[str]:
    """What can be seen of a library from outside; a UserError where its name makes a symbol that is there already."""
    own = [f"{name}_set_num_threads", f"{name}_metadata", f"{name}{TABLE_SUFFIX}"]
    functions = [symbol for info in artifact.functions for symbol in (info.symbol, info.packed_symbol)]
    model = artifact.model
    if model is not None:
        own += [f"{name}_constants", f"{name}{INTERFACE_SUFFIX}"]
        if _has_run(artifact, model):
            own += [f"{name}_run", f"{name}_message", *(f"{name}_{suffix}" for suffix in _forwarded(model))]
            own += [] if model.symbols else [f"{name}_workspace_bytes"]
    inside = set().union(EXPORTED, *map(defined_symbols, artifact.objects))
    if model is not None and model.name == name:
        # Under the library's own name these are what others are to see, not in its way.
        inside -= {f"{name}_{suffix}" for suffix in _forwarded(model)}
    taken = sorted(inside & set(own))
    if taken:
        raise UserError(
            f"a library named '{name}' would have two symbols '{taken[0]}'",
            hint="give it another name: export_library(path, name='...'), or --name",
        )
    return [*own, *functions]


def _has_run(artifact: Artifact, model: ModelInfo) -> bool:
    """Whether the model can be run from C: not if it needs the virtual machine, or a device."""
    return not refusal_of(artifact, model) and artifact.device is None


def _forwarded(model: ModelInfo) -> dict[str, int]:
    """The model's own functions that others may call, by what follows the name, with how many pointers they take."""
    return {"entry": 5, "shapes": 4, "plan": 3} if model.symbols else {"entry": 4}


def _called(model: ModelInfo) -> dict[str, int]:
    """The functions inside that the wrapper calls, with how many pointers they take."""
    own = {f"{model.name}_{suffix}": count for suffix, count in _forwarded(model).items()}
    return own | {variant.entry: 4 for variant in model.variants}


def wrapper_object(artifact: Artifact, name: str, levels: Sequence[Artifact] = ()) -> bytes:
    """The compiled form of `wrapper_ir`."""
    triple = artifact.triple
    return compile_cached(
        wrapper_ir(artifact, name, levels), triple=triple, features=plain_features(triple), opt_level=0
    )


def wrapper_ir(artifact: Artifact, name: str, levels: Sequence[Artifact] = ()) -> str:
    """The functions an exported library adds around its code: its own description, threads, and the model's run.

    With code for several processors, `levels` describe the model where each of them runs.
    """
    if not (name.isidentifier() and name.isascii()):
        raise CompilerBug(f"the library's name {name!r} is not a C identifier")
    parts = [_COMMON.format(name=name), _descriptions(levels or [artifact], name)]
    defined = {symbol: symbol for image in artifact.objects for symbol in sorted(defined_symbols(image))}
    model = artifact.model
    called = {} if model is None or not _has_run(artifact, model) else _called(model)
    parts += [f'declare i32 @"{symbol}"({", ".join(["ptr"] * called.get(symbol, 0))})' for symbol in defined]
    inside = "tilewright" if model is None else model.name
    table = {**defined, f"{inside}_set_num_threads": f"{name}_set_num_threads"}
    if model is not None:
        table[f"{model.name}_constants"] = f"{name}_constants"
        parts.append(_CONSTANTS.format(name=name, inside=model.name))
        if _has_run(artifact, model):
            parts.append(_symbolic_run(model, name) if model.symbols else _static_run(model, name))
            parts.append(_message(model, name))
            if name != model.name:
                parts += [_forward(name, model.name, *each) for each in _forwarded(model).items()]
        parts.append(interface_ir(artifact, model, name, "tilewright.text"))
        if starts_threads(artifact):
            system = _WINDOWS_START if is_windows(artifact.triple) else _CONSTRUCTOR
            parts.append(_START.format(threads=model.threads) + system)
    if is_windows(artifact.triple):
        parts.append(_WINDOWS_FLOATS)
    parts.append(_table(f"{name}{TABLE_SUFFIX}", table))
    return "\n".join(parts)


def _descriptions(levels: Sequence[Artifact], name: str) -> str:
    """`<name>_metadata`: what the library says of itself where one of the levels runs."""
    shared = {"library": name, **({"levels": [level_name(level) for level in levels]} if len(levels) > 1 else {})}
    texts = [json.dumps({**level.metadata(), **shared}, separators=(",", ":")) for level in levels]
    lines = [f"@tilewright.text{number or ''} = private constant {c_string(text)}" for number, text in enumerate(texts)]
    if len(texts) == 1:
        return "\n".join([*lines, f"define ptr @{name}_metadata() {{", "  ret ptr @tilewright.text", "}"])
    cases = " ".join(f"i32 {number}, label %level{number}" for number in range(1, len(texts)))
    lines += [f"define ptr @{name}_metadata() {{", f"  %level = call i32 @{CHOICE}()"]
    lines += [f"  switch i32 %level, label %first [ {cases} ]", "first:", "  ret ptr @tilewright.text"]
    for number in range(1, len(texts)):
        lines += [f"level{number}:", f"  ret ptr @tilewright.text{number}"]
    return "\n".join([*lines, "}"])


def starts_threads(artifact: Artifact) -> bool:
    """Whether a library says how many threads it runs on when it is loaded."""
    return artifact.model is not None and artifact.model.threads is not None


def _table(symbol: str, addresses: dict[str, str]) -> str:
    """Pairs of a name and the address of a symbol, up to a pair of nulls."""
    names = [f"@name{number} = private constant {c_string(name)}" for number, name in enumerate(addresses)]
    pairs = [f'%pair {{ ptr @name{number}, ptr @"{inside}" }}' for number, inside in enumerate(addresses.values())]
    content = ", ".join([*pairs, "%pair zeroinitializer"])
    return "\n".join(
        ["%pair = type { ptr, ptr }", *names, f"@{symbol} = constant [{len(pairs) + 1} x %pair] [{content}]"]
    )


def _message(model: ModelInfo, name: str) -> str:
    """`<name>_message`: what a code of `<name>_run` means."""
    texts = code_messages(model)
    lines = [f"@message{code} = private constant {c_string(text)}" for code, text in texts.items()]
    lines.append(f"@message.other = private constant {c_string('an unknown code')}")
    lines.append(f"define ptr @{name}_message(i32 %code) {{")
    cases = " ".join(f"i32 {code}, label %code{code}" for code in texts)
    lines.append(f"  switch i32 %code, label %other [ {cases} ]")
    for code in texts:
        lines.append(f"code{code}:\n  ret ptr @message{code}")
    return "\n".join([*lines, "other:", "  ret ptr @message.other", "}"])


def _forward(name: str, inside: str, suffix: str, count: int) -> str:
    """A function of the model under the library's name."""
    types = ", ".join(["ptr"] * count)
    given = ", ".join(f"ptr %{number}" for number in range(count))
    return (
        f"define i32 @{name}_{suffix}({types}) {{\n"
        f"  %code = call i32 @{inside}_{suffix}({given})\n  ret i32 %code\n}}\n"
    )


def _static_run(model: ModelInfo, name: str) -> str:
    return _STATIC.format(name=name, entry=model.entry, workspace_bytes=max(model.workspace_bytes, 0))


def _symbolic_run(model: ModelInfo, name: str) -> str:
    """`<model>_run` of a symbolic model: the variant for these sizes where there is one, else the general entry."""
    lines = []
    for number in range(len(model.symbols)):
        lines.append(f"  %at{number} = getelementptr i64, ptr %symbols, i64 {number}")
        lines.append(f"  %symbol{number} = load i64, ptr %at{number}, align 8")
    lines.append("  br label %try0")
    for place, variant in enumerate(model.variants):
        lines.append(f"try{place}:")
        same = "true"
        for number, value in enumerate(variant.fixed):
            lines.append(f"  %is{place}_{number} = icmp eq i64 %symbol{number}, {value}")
            lines.append(f"  %so_far{place}_{number} = and i1 {same}, %is{place}_{number}")
            same = f"%so_far{place}_{number}"
        lines.append(f"  br i1 {same}, label %take{place}, label %try{place + 1}")
        lines.append(f"take{place}:")
        call = f"@{variant.entry}(ptr %inputs, ptr %outputs, ptr %workspace, ptr %constants)"
        lines += [f"  %taken{place} = call i32 {call}", f"  ret i32 %taken{place}"]
    lines.append(f"try{len(model.variants)}:")
    dims = max(sum(len(info.shape) for info in model.outputs), 1)
    return _SYMBOLIC.format(name=name, entry=model.entry, dims=dims, planner=model.planner, choose="\n".join(lines))


_COMMON = """
declare void @tw_set_num_threads(i64)

define void @{name}_set_num_threads(i64 %threads) {{
  call void @tw_set_num_threads(i64 %threads)
  ret void
}}
"""

# The constants may lie further away than an instruction reaches, so their address is kept in a word of its own.
_CONSTANTS = """
@{inside}__constants = external hidden global i8
@constants.address = internal global ptr @{inside}__constants
declare ptr @tw_alloc(i64)
declare void @tw_free(ptr)

define ptr @{name}_constants() {{
  %address = load volatile ptr, ptr @constants.address
  ret ptr %address
}}
"""

_STATIC = """
define i64 @{name}_workspace_bytes() {{
  ret i64 {workspace_bytes}
}}

define i32 @{name}_run(ptr %inputs, ptr %outputs, ptr %workspace) {{
entry:
  %constants = load volatile ptr, ptr @constants.address
  %absent = icmp eq ptr %workspace, null
  br i1 %absent, label %allocate, label %given
given:
  %code = call i32 @{entry}(ptr %inputs, ptr %outputs, ptr %workspace, ptr %constants)
  ret i32 %code
allocate:
  %own = call ptr @tw_alloc(i64 {workspace_bytes})
  %failed = icmp eq ptr %own, null
  br i1 %failed, label %no.memory, label %run
no.memory:
  ret i32 2
run:
  %own.code = call i32 @{entry}(ptr %inputs, ptr %outputs, ptr %own, ptr %constants)
  call void @tw_free(ptr %own)
  ret i32 %own.code
}}
"""

_SYMBOLIC = """
define internal i32 @choose(ptr %inputs, ptr %outputs, ptr %workspace, ptr %constants, ptr %symbols) {{
{choose}
  %code = call i32 @{entry}(ptr %inputs, ptr %outputs, ptr %workspace, ptr %constants, ptr %symbols)
  ret i32 %code
}}

define i32 @{name}_run(ptr %inputs, ptr %outputs, ptr %workspace, ptr %symbols) {{
entry:
  %shapes = alloca i64, i64 {dims}, align 8
  %size = alloca i64, align 8
  %constants = load volatile ptr, ptr @constants.address
  %absent = icmp eq ptr %workspace, null
  br i1 %absent, label %allocate, label %given
given:
  %code = call i32 @choose(ptr %inputs, ptr %outputs, ptr %workspace, ptr %constants, ptr %symbols)
  ret i32 %code
allocate:
  %planned = call i32 @{planner}(ptr %symbols, ptr %shapes, ptr %size)
  %misfit = icmp ne i32 %planned, 0
  br i1 %misfit, label %refuse, label %take
refuse:
  ret i32 1
take:
  %bytes = load i64, ptr %size, align 8
  %own = call ptr @tw_alloc(i64 %bytes)
  %failed = icmp eq ptr %own, null
  br i1 %failed, label %no.memory, label %run
no.memory:
  ret i32 2
run:
  %own.code = call i32 @choose(ptr %inputs, ptr %outputs, ptr %own, ptr %constants, ptr %symbols)
  call void @tw_free(ptr %own)
  ret i32 %own.code
}}
"""

_START = """
define internal void @start() {{
  call void @tw_set_num_threads(i64 {threads})
  ret void
}}
"""

_CONSTRUCTOR = """
%constructor = type { i32, ptr, ptr }
@llvm.global_ctors = appending global [1 x %constructor] [%constructor { i32 65535, ptr @start, ptr null }]
"""

# Windows calls the function with the reason as its second argument: 1 when a process loads the library.
_WINDOWS_START = f"""
define i32 @{START}(ptr %module, i32 %reason, ptr %reserved) {{
  %is_load = icmp eq i32 %reason, 1
  br i1 %is_load, label %loaded, label %done
loaded:
  call void @start()
  br label %done
done:
  ret i32 1
}}
"""

# Code that computes with floats refers to this name, by which Microsoft's runtime would know it.
_WINDOWS_FLOATS = """
@_fltused = hidden constant i32 0
"""
