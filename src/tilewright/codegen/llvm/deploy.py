"""Where artifacts go: into this process (JIT), or into a shared library that needs no compiler to run.

exe = deploy.executable(artifact)             # tilewright.runtime.Executable
mod = deploy.module(artifact)                 # tilewright.runtime.Module
deploy.export_library(artifact, Path("resnet18.so"))
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tilewright.codegen.llvm.cache import compile_cached
from tilewright.codegen.llvm.elf import architecture, write_data_object
from tilewright.codegen.llvm.jit import JitLibrary
from tilewright.codegen.llvm.link import find_linker, link_shared, work_folder_beside
from tilewright.codegen.llvm.pool import pool_object, runtime_imports
from tilewright.runtime.artifact import Artifact, ModelInfo
from tilewright.runtime.checks import code_messages
from tilewright.runtime.executor import Executable
from tilewright.runtime.header import header_path, write_header
from tilewright.runtime.module import Module
from tilewright.support import trace
from tilewright.support.errors import CompilerBug
from tilewright.support.files import cannot_write

_SMALLEST_BLOB = 64


def load_artifact(artifact: Artifact) -> JitLibrary:
    """The artifact's code in this process, on the shared thread pool."""
    return JitLibrary(artifact.objects, runtime_imports())


def executable(artifact: Artifact, threads: int | None = None) -> Executable:
    """A compiled model, ready to run here."""
    return Executable(artifact, load_artifact(artifact), export_library, threads)


def module(artifact: Artifact) -> Module:
    """Compiled functions, ready to run here."""
    return Module(artifact, load_artifact(artifact), export_library)


def export_library(artifact: Artifact, path: Path) -> None:
    """Write `artifact` as a shared library at `path`, and its C header beside it with the suffix `.h`.

    The library holds the code (also that for a device), the constants, the thread pool and a description of itself
    (see docs/abi.md).
    """
    path = Path(path)
    header_path(path)
    with trace.span("export"), work_folder_beside(path) as folder_name:
        folder = Path(folder_name)
        find_linker(artifact.triple)  # before the work, so that a missing one is said at once
        images = [*artifact.objects, wrapper_object(artifact), pool_object(artifact.triple, hidden=True)]
        objects = [folder / f"{index}.o" for index in range(len(images))]
        data_objects: dict[str, Path] = {}
        try:
            for file, image in zip(objects, images, strict=True):
                file.write_bytes(image)
            if artifact.model is not None:
                symbol = f"{artifact.model.name}__constants"
                data_objects[symbol] = folder / "constants.o"
                write_data_object(data_objects[symbol], symbol, _blob(artifact), triple=artifact.triple)
        except OSError as error:
            raise cannot_write(path, error) from None
        link_shared(objects, path, triple=artifact.triple, data_objects=data_objects, work_folder=folder)
        write_header(artifact, path)


def _blob(artifact: Artifact) -> npt.NDArray[np.uint8]:
    """The constants, and behind them the code for a device, piece by piece."""
    if not artifact.device_code:
        return artifact.constants if artifact.constants.nbytes else np.zeros(_SMALLEST_BLOB, np.uint8)
    code = np.frombuffer(b"".join(artifact.device_code), np.uint8)
    blob = np.concatenate([artifact.constants, code])
    return blob if blob.nbytes else np.zeros(_SMALLEST_BLOB, np.uint8)


def wrapper_object(artifact: Artifact) -> bytes:
    """The compiled form of `wrapper_ir`."""
    features = "+m,+a,+f,+d,+c" if architecture(artifact.triple) == "riscv64" else ""
    return compile_cached(wrapper_ir(artifact), triple=artifact.triple, features=features, opt_level=0)


def wrapper_ir(artifact: Artifact) -> str:
    """The functions an exported library adds around its code: its own description, threads, and the model's run."""
    text = json.dumps(artifact.metadata(), separators=(",", ":")).encode() + b"\0"
    escaped = _escaped(text)
    prefix = "tilewright" if artifact.model is None else artifact.model.name
    parts = [_COMMON.format(count=len(text), text=escaped, prefix=prefix)]
    if artifact.model is not None:
        if not (prefix.isidentifier() and prefix.isascii()):
            raise CompilerBug(f"the model's name {prefix!r} is not a C identifier")
        model = artifact.model
        parts.append(_CONSTANTS.format(name=model.name))
        if not model.program and artifact.device is None:
            parts.append(_symbolic_run(model) if model.symbols else _static_run(model))
            parts.append(_message(model))
        if model.threads is not None:
            parts.append(_THREADS.format(threads=model.threads))
    return "\n".join(parts)


def _escaped(text: bytes) -> str:
    """Bytes inside an LLVM string."""
    return "".join(chr(byte) if 32 <= byte < 127 and byte not in (34, 92) else f"\\{byte:02X}" for byte in text)


def _message(model: ModelInfo) -> str:
    """`<model>_message`: what a code of `<model>_run` means."""
    texts = code_messages(model)
    lines: list[str] = []
    for code, text in texts.items():
        held = text.encode() + b"\0"
        lines.append(f'@message{code} = private constant [{len(held)} x i8] c"{_escaped(held)}"')
    other = b"an unknown code\0"
    lines.append(f'@message.other = private constant [{len(other)} x i8] c"{_escaped(other)}"')
    lines.append(f"define ptr @{model.name}_message(i32 %code) {{")
    cases = " ".join(f"i32 {code}, label %code{code}" for code in texts)
    lines.append(f"  switch i32 %code, label %other [ {cases} ]")
    for code in texts:
        lines.append(f"code{code}:\n  ret ptr @message{code}")
    return "\n".join([*lines, "other:", "  ret ptr @message.other", "}"])


def _static_run(model: ModelInfo) -> str:
    return _STATIC.format(name=model.name, entry=model.entry, workspace_bytes=max(model.workspace_bytes, 0))


def _symbolic_run(model: ModelInfo) -> str:
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
    declared = [f"declare i32 @{variant.entry}(ptr, ptr, ptr, ptr)" for variant in model.variants]
    dims = max(sum(len(info.shape) for info in model.outputs), 1)
    text = _SYMBOLIC.format(
        name=model.name, entry=model.entry, dims=dims, planner=model.planner, choose="\n".join(lines)
    )
    return "\n".join([*declared, text])


_COMMON = """
@tilewright.text = private constant [{count} x i8] c"{text}"
declare void @tw_set_num_threads(i64)

define ptr @tilewright_metadata() {{
  ret ptr @tilewright.text
}}

define void @{prefix}_set_num_threads(i64 %threads) {{
  call void @tw_set_num_threads(i64 %threads)
  ret void
}}
"""

# The constants may lie further away than an instruction reaches, so their address is kept in a word of its own.
_CONSTANTS = """
@{name}__constants = external hidden global i8
@constants.address = internal global ptr @{name}__constants
declare ptr @tw_alloc(i64)
declare void @tw_free(ptr)

define ptr @{name}_constants() {{
  %address = load volatile ptr, ptr @constants.address
  ret ptr %address
}}
"""

_STATIC = """
declare i32 @{entry}(ptr, ptr, ptr, ptr)

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
declare i32 @{entry}(ptr, ptr, ptr, ptr, ptr)
declare i32 @{planner}(ptr, ptr, ptr)

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

_THREADS = """
%constructor = type {{ i32, ptr, ptr }}
@llvm.global_ctors = appending global [1 x %constructor] [%constructor {{ i32 65535, ptr @start, ptr null }}]

define internal void @start() {{
  call void @tw_set_num_threads(i64 {threads})
  ret void
}}
"""
