"""`<name>__interface` of an exported model: what programs in other languages need to know, as a C structure.

The layout is `struct tilewright_interface` in `bindings/c/include/tilewright.h`. Fields are only
appended, and its own size says which are there; any other change raises the version. Nobody has to read JSON to call a
model.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.backends.llvm.device_plan import DEVICE_TYPES, device_plan, device_refusal
from tilewright.backends.llvm.globals import Globals
from tilewright.runtime.core.artifact import Artifact, ModelInfo, TensorInfo
from tilewright.runtime.core.dtypes import DTYPE_CODES
from tilewright.runtime.core.header import INTERFACE_SUFFIX
from tilewright.runtime.core.load import cpuinfo_flags

INTERFACE_VERSION = 1
_SYMBOLIC = -1
"""The extent of a dimension that a call decides."""

_FIELDS = "i32 i32 ptr ptr ptr ptr i32 i32 i32 i32 ptr ptr ptr i64 ptr ptr ptr ptr ptr".split()
_TYPES = f"""
%tilewright.value = type {{ ptr, i32, i32, ptr, ptr }}
%tilewright.interface = type {{ {", ".join(_FIELDS)} }}
{DEVICE_TYPES}"""
_SIZE = "ptrtoint (ptr getelementptr (%tilewright.interface, ptr null, i32 1) to i32)"


def interface_ir(artifact: Artifact, model: ModelInfo, name: str, metadata: str) -> str:
    """The structure as LLVM IR, beside the wrapper's functions; `metadata` is the global of the description."""
    texts = Globals()
    refusal = refusal_of(artifact, model)
    inputs, outputs = (_values(infos, texts) for infos in (model.inputs, model.outputs))
    symbols = texts.row("ptr", [texts.pointer(symbol) for symbol in model.symbols])
    runs_here = not refusal and artifact.device is None
    on_device = device_plan(artifact, model, name, texts) if artifact.device is not None and not refusal else "ptr null"
    symbolic = bool(model.symbols)
    functions = {
        "run": runs_here,
        "shapes": symbolic and runs_here,
        "message": runs_here,
        "set_num_threads": True,
    }
    fields = [
        f"i32 {INTERFACE_VERSION}",
        f"i32 {_SIZE}",
        texts.pointer(name),
        texts.pointer(refusal) if refusal else "ptr null",
        texts.pointer(" ".join(cpuinfo_flags(artifact.requires))),
        f"ptr @{metadata}",
        f"i32 {len(model.inputs)}",
        f"i32 {len(model.outputs)}",
        f"i32 {len(model.symbols)}",
        "i32 0",
        inputs,
        outputs,
        symbols,
        f"i64 {_SYMBOLIC if symbolic else max(model.workspace_bytes, 0)}",
        *(f"ptr @{name}_{suffix}" if is_there else "ptr null" for suffix, is_there in functions.items()),
        on_device,
    ]
    structure = f"@{name}{INTERFACE_SUFFIX} = constant %tilewright.interface {{ {', '.join(fields)} }}"
    return "\n".join([_TYPES, *texts.lines, structure])


def refusal_of(artifact: Artifact, model: ModelInfo) -> str:
    """Why C programs cannot run a model; empty if they can."""
    if model.program:
        return "the model is a program of the virtual machine, which needs Tilewright's runtime (tw.load in Python)"
    return "" if artifact.device is None else device_refusal(artifact.device, model)


def _values(infos: Sequence[TensorInfo], texts: Globals) -> str:
    """A row of `struct tilewright_value`."""
    rows = []
    for info in infos:
        extents = [extent if isinstance(extent, int) else _SYMBOLIC for extent in info.shape]
        shape = texts.row("i64", [f"i64 {extent}" for extent in extents])
        spelt = [texts.pointer(extent) if isinstance(extent, str) else "ptr null" for extent in info.shape]
        code = 0 if info.value else DTYPE_CODES[info.dtype]
        fields = [texts.pointer(info.name), f"i32 {code}", f"i32 {len(extents)}", shape, texts.row("ptr", spelt)]
        rows.append(f"%tilewright.value {{ {', '.join(fields)} }}")
    return texts.row("%tilewright.value", rows)
