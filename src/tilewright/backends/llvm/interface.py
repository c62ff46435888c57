"""`<name>__interface` of an exported model: what programs in other languages need to know, as a C structure.

The layout is `struct tilewright_interface` in `bindings/c/include/tilewright.h`. Fields are only
appended, and its own size says which are there; any other change raises the version. Nobody has to read JSON to call a
model.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.runtime.core.artifact import Artifact, ModelInfo, TensorInfo
from tilewright.runtime.core.dtypes import DTYPE_CODES
from tilewright.runtime.core.header import INTERFACE_SUFFIX
from tilewright.runtime.core.load import cpuinfo_flags

INTERFACE_VERSION = 1
_SYMBOLIC = -1
"""The extent of a dimension that a call decides."""

_FIELDS = "i32 i32 ptr ptr ptr ptr i32 i32 i32 i32 ptr ptr ptr i64 ptr ptr ptr ptr".split()
_TYPES = f"""
%tilewright.value = type {{ ptr, i32, i32, ptr, ptr }}
%tilewright.interface = type {{ {", ".join(_FIELDS)} }}
"""
_SIZE = "ptrtoint (ptr getelementptr (%tilewright.interface, ptr null, i32 1) to i32)"


def interface_ir(artifact: Artifact, model: ModelInfo, name: str, metadata: str) -> str:
    """The structure as LLVM IR, beside the wrapper's functions; `metadata` is the global of the description."""
    texts = _Texts()
    refusal = refusal_of(artifact, model)
    inputs, outputs = (_values(infos, texts) for infos in (model.inputs, model.outputs))
    symbols = _pointers([texts.pointer(symbol) for symbol in model.symbols], texts)
    symbolic = bool(model.symbols)
    functions = {
        "run": not refusal,
        "shapes": symbolic and not refusal,
        "message": not refusal,
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
    ]
    structure = f"@{name}{INTERFACE_SUFFIX} = constant %tilewright.interface {{ {', '.join(fields)} }}"
    return "\n".join([_TYPES, *texts.lines, structure])


def refusal_of(artifact: Artifact, model: ModelInfo) -> str:
    """Why C programs cannot run a model; empty if they can."""
    if model.program:
        return "the model is a program of the virtual machine, which needs Tilewright's runtime (tw.load in Python)"
    if artifact.device is not None:
        return f"the kernels of the model run on a device ({artifact.device.kind}): open it with tw.load in Python"
    return ""


def c_string(text: str) -> str:
    """A text and the zero that ends it, as an LLVM constant with its type."""
    content = text.encode() + b"\0"
    # Only what would end an LLVM string, or is no plain letter, is escaped.
    escaped = "".join(chr(byte) if 32 <= byte < 127 and byte not in (34, 92) else f"\\{byte:02X}" for byte in content)
    return f'[{len(content)} x i8] c"{escaped}"'


class _Texts:
    """Private globals: texts, and rows of what others point to."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def pointer(self, text: str) -> str:
        """The address of a text that a zero ends."""
        return self.place(c_string(text))

    def place(self, content: str) -> str:
        """The address of a constant, given with its type."""
        symbol = f"@interface.{len(self.lines)}"
        self.lines.append(f"{symbol} = private constant {content}")
        return f"ptr {symbol}"


def _pointers(pointers: Sequence[str], texts: _Texts) -> str:
    if not pointers:
        return "ptr null"
    return texts.place(f"[{len(pointers)} x ptr] [{', '.join(pointers)}]")


def _values(infos: Sequence[TensorInfo], texts: _Texts) -> str:
    """A row of `struct tilewright_value`."""
    rows = []
    for info in infos:
        extents = [extent if isinstance(extent, int) else _SYMBOLIC for extent in info.shape]
        shape = texts.place(f"[{len(extents)} x i64] [{', '.join(f'i64 {extent}' for extent in extents)}]")
        spelt = [texts.pointer(extent) if isinstance(extent, str) else "ptr null" for extent in info.shape]
        code = 0 if info.value else DTYPE_CODES[info.dtype]
        fields = [texts.pointer(info.name), f"i32 {code}", f"i32 {len(extents)}", shape, _pointers(spelt, texts)]
        rows.append(f"%tilewright.value {{ {', '.join(fields)} }}")
    return texts.place(f"[{len(rows)} x %tilewright.value] [{', '.join(rows)}]") if rows else "ptr null"
