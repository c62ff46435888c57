"""A SPIR-V module in the making: types, constants, capabilities and decorations, each declared once, before functions.

Integers have no sign here: a 32-bit integer is `%u32` whatever its data type, and instructions say how they read it.
"""

from __future__ import annotations

from typing import Final

_BASE: Final = {
    "%void": "OpTypeVoid",
    "%bool": "OpTypeBool",
    "%u8": "OpTypeInt 8 0",
    "%u16": "OpTypeInt 16 0",
    "%u32": "OpTypeInt 32 0",
    "%u64": "OpTypeInt 64 0",
    "%f16": "OpTypeFloat 16",
    "%f32": "OpTypeFloat 32",
    "%f64": "OpTypeFloat 64",
    "%u32x2": "OpTypeVector %u32 2",
    "%u32x3": "OpTypeVector %u32 3",
    "%f32x2": "OpTypeVector %f32 2",
}
_CAPABILITIES: Final = {
    "%u8": "StorageBuffer8BitAccess",
    "%u16": "StorageBuffer16BitAccess",
    "%f16": "StorageBuffer16BitAccess",
    "%u64": "Int64",
    "%f64": "Float64",
}
SIZES: Final = {"%u8": 1, "%u16": 2, "%f16": 2, "%bool": 4, "%u32": 4, "%f32": 4, "%u64": 8, "%f64": 8}
"""Bytes of an element, a bool of a workgroup being a word."""


class SpirvModule:
    """Declarations that functions of a module refer to."""

    def __init__(self) -> None:
        self._capabilities: dict[str, None] = {"Shader": None}
        self._declared: dict[str, str] = {}
        self._decorations: list[str] = []
        self._lines: list[str] = []
        self.entries: list[str] = []
        self.modes: list[str] = []
        self.functions: list[str] = []

    def _declare(self, key: str, text: str) -> str:
        """An id for a declaration, made once."""
        found = self._declared.get(key)
        if found is None:
            found = key if key.startswith("%") else f"%g{len(self._declared)}"
            self._declared[key] = found
            self._lines.append(f"{found} = {text}")
        return found

    def decorate(self, text: str) -> None:
        """A decoration."""
        self._decorations.append(text)

    def need(self, *capabilities: str) -> None:
        """What instructions need beyond the ordinary."""
        for name in capabilities:
            self._capabilities.setdefault(name)

    def type(self, name: str) -> str:
        """A scalar or vector type by its own name (`%f32`)."""
        if "x" in name:
            self.type(name.partition("x")[0])
        if name in _CAPABILITIES:
            self._capabilities.setdefault(_CAPABILITIES[name])
        return self._declare(name, _BASE[name])

    def constant(self, kind: str, *words: int) -> str:
        """A constant by the words of its bits."""
        self.type(kind)
        if kind == "%bool":
            return self._declare(f"bool {words[0]}", f"OpConstant{'True' if words[0] else 'False'} %bool")
        text = " ".join(str(word & 0xFFFFFFFF) for word in words)
        return self._declare(f"constant {kind} {text}", f"OpConstant {kind} {text}")

    def integer(self, kind: str, value: int) -> str:
        """An integer constant."""
        return self.constant(kind, *((value, value >> 32) if kind == "%u64" else (value,)))

    def pointer(self, storage: str, pointee: str) -> str:
        """A pointer type."""
        return self._declare(f"pointer {storage} {pointee}", f"OpTypePointer {storage} {pointee}")

    def array(self, element: str, count: int) -> str:
        """An array type of a constant size, as memory of workgroups and threads has it."""
        self.type(element)
        return self._declare(f"array {element} {count}", f"OpTypeArray {element} {self.integer('%u32', count)}")

    def storage_block(self, element: str) -> str:
        """The type of a storage buffer: a structure of one array without an end."""
        self.type(element)
        key = f"block {element}"
        if key not in self._declared:
            array = self._declare(f"runtime {element}", f"OpTypeRuntimeArray {element}")
            self.decorate(f"OpDecorate {array} ArrayStride {SIZES[element]}")
            block = self._declare(key, f"OpTypeStruct {array}")
            self.decorate(f"OpDecorate {block} Block")
            self.decorate(f"OpMemberDecorate {block} 0 Offset 0")
        return self._declared[key]

    def constant_block(self, words: int) -> str:
        """The type of push constants: a structure of one array of words."""
        key = f"push {words}"
        if key not in self._declared:
            count = self.integer("%u32", words)
            array = self._declare(f"words {words}", f"OpTypeArray %u32 {count}")
            self.decorate(f"OpDecorate {array} ArrayStride 4")
            block = self._declare(key, f"OpTypeStruct {array}")
            self.decorate(f"OpDecorate {block} Block")
            self.decorate(f"OpMemberDecorate {block} 0 Offset 0")
        return self._declared[key]

    def variable(self, name: str, storage: str, kind: str) -> str:
        """A variable outside functions."""
        return self._declare(name, f"OpVariable {self.pointer(storage, kind)} {storage}")

    def builtin(self, name: str) -> str:
        """A variable that says where a thread is."""
        key = f"%{name}"
        if key not in self._declared:
            self.decorate(f"OpDecorate {key} BuiltIn {name}")
        return self.variable(key, "Input", self.type("%u32x3"))

    def function_type(self) -> str:
        """The type of kernels."""
        self.type("%void")
        return self._declare("%kernel", "OpTypeFunction %void")

    def text(self) -> str:
        """The whole module."""
        head = [f"OpCapability {name}" for name in self._capabilities]
        if "StorageBuffer8BitAccess" in self._capabilities:
            head.append('OpExtension "SPV_KHR_8bit_storage"')
        if "DotProduct" in self._capabilities:
            head.append('OpExtension "SPV_KHR_integer_dot_product"')
        head += ['%glsl = OpExtInstImport "GLSL.std.450"', "OpMemoryModel Logical GLSL450"]
        parts = [head, self.entries, self.modes, self._decorations, self._lines, self.functions]
        return "\n".join(line for part in parts for line in part) + "\n"
