"""SPIR-V text to words, as Vulkan drivers take them.

The text is that of SPIR-V's own tools, with two liberties: literals are numbers of 32 bits (a 64-bit constant has two,
the low one first; floats are written as their bits), and only instructions and names that programs here use are known.

    %3 = OpIAdd %uint %1 %2
"""

from __future__ import annotations

import re
import struct
from typing import Final

from tilewright.support.errors import CompilerBug

VERSION: Final = 0x00010300
"""SPIR-V 1.3, which Vulkan 1.1 takes."""
_MAGIC: Final = 0x07230203
_OPCODES: Final = {
    "OpName": 5,
    "OpExtension": 10,
    "OpExtInstImport": 11,
    "OpExtInst": 12,
    "OpMemoryModel": 14,
    "OpEntryPoint": 15,
    "OpExecutionMode": 16,
    "OpCapability": 17,
    "OpTypeVoid": 19,
    "OpTypeBool": 20,
    "OpTypeInt": 21,
    "OpTypeFloat": 22,
    "OpTypeVector": 23,
    "OpTypeArray": 28,
    "OpTypeRuntimeArray": 29,
    "OpTypeStruct": 30,
    "OpTypePointer": 32,
    "OpTypeFunction": 33,
    "OpConstantTrue": 41,
    "OpConstantFalse": 42,
    "OpConstant": 43,
    "OpFunction": 54,
    "OpFunctionEnd": 56,
    "OpVariable": 59,
    "OpLoad": 61,
    "OpStore": 62,
    "OpAccessChain": 65,
    "OpDecorate": 71,
    "OpMemberDecorate": 72,
    "OpCompositeConstruct": 80,
    "OpCompositeExtract": 81,
    "OpConvertFToU": 109,
    "OpConvertFToS": 110,
    "OpConvertSToF": 111,
    "OpConvertUToF": 112,
    "OpUConvert": 113,
    "OpSConvert": 114,
    "OpFConvert": 115,
    "OpBitcast": 124,
    "OpSNegate": 126,
    "OpFNegate": 127,
    "OpIAdd": 128,
    "OpFAdd": 129,
    "OpISub": 130,
    "OpFSub": 131,
    "OpIMul": 132,
    "OpFMul": 133,
    "OpUDiv": 134,
    "OpSDiv": 135,
    "OpFDiv": 136,
    "OpUMod": 137,
    "OpSRem": 138,
    "OpLogicalEqual": 164,
    "OpLogicalNotEqual": 165,
    "OpLogicalOr": 166,
    "OpLogicalAnd": 167,
    "OpLogicalNot": 168,
    "OpSelect": 169,
    "OpIEqual": 170,
    "OpINotEqual": 171,
    "OpULessThan": 176,
    "OpSLessThan": 177,
    "OpULessThanEqual": 178,
    "OpSLessThanEqual": 179,
    "OpFOrdEqual": 180,
    "OpFUnordNotEqual": 183,
    "OpFOrdLessThan": 184,
    "OpFOrdLessThanEqual": 188,
    "OpShiftRightLogical": 194,
    "OpShiftRightArithmetic": 195,
    "OpShiftLeftLogical": 196,
    "OpBitwiseOr": 197,
    "OpBitwiseXor": 198,
    "OpBitwiseAnd": 199,
    "OpNot": 200,
    "OpBitCount": 205,
    "OpControlBarrier": 224,
    "OpPhi": 245,
    "OpLoopMerge": 246,
    "OpSelectionMerge": 247,
    "OpLabel": 248,
    "OpBranch": 249,
    "OpBranchConditional": 250,
    "OpReturn": 253,
    "OpSDot": 4450,
}
_NAMES: Final = {
    "None": 0,
    "Shader": 1,
    "Float64": 10,
    "Int64": 11,
    "StorageBuffer16BitAccess": 4433,
    "StorageBuffer8BitAccess": 4448,
    "DotProductInput4x8BitPacked": 6018,
    "DotProduct": 6019,
    "PackedVectorFormat4x8Bit": 0,
    "Logical": 0,
    "GLSL450": 1,
    "GLCompute": 5,
    "LocalSize": 17,
    "Input": 1,
    "Workgroup": 4,
    "Function": 7,
    "PushConstant": 9,
    "StorageBuffer": 12,
    "Block": 2,
    "ArrayStride": 6,
    "BuiltIn": 11,
    "WorkgroupId": 26,
    "LocalInvocationId": 27,
    "NonWritable": 24,
    "Binding": 33,
    "DescriptorSet": 34,
    "Offset": 35,
}
_WITHOUT_TYPE: Final = ("OpLabel", "OpExtInstImport")
_TOKEN: Final = re.compile(r'"[^"]*"|\S+')


def assemble(text: str) -> bytes:
    """The binary of a module's text."""
    numbers: dict[str, int] = {}
    words: list[int] = []
    for line in text.splitlines():
        tokens = _TOKEN.findall(line.partition(";")[0])
        if not tokens:
            continue
        result = None
        if len(tokens) > 2 and tokens[1] == "=":
            result, tokens = tokens[0], tokens[2:]
        name, *operands = tokens
        if result is not None:
            # The type of a result comes before it.
            place = 0 if name.startswith("OpType") or name in _WITHOUT_TYPE else 1
            operands.insert(place, result)
        encoded = [word for operand in operands for word in _encode(operand, numbers, line)]
        if name not in _OPCODES:
            raise CompilerBug(f"the SPIR-V assembler does not know {name}")
        words += [(len(encoded) + 1) << 16 | _OPCODES[name], *encoded]
    header = [_MAGIC, VERSION, 0, len(numbers) + 1, 0]
    return struct.pack(f"<{len(header) + len(words)}I", *header, *words)


def _encode(operand: str, numbers: dict[str, int], line: str) -> list[int]:
    if operand[0] == "%":
        return [numbers.setdefault(operand, len(numbers) + 1)]
    if operand[0] == '"':
        raw = operand[1:-1].encode() + b"\0"
        raw += b"\0" * (-len(raw) % 4)
        return list(struct.unpack(f"<{len(raw) // 4}I", raw))
    if operand in _NAMES:
        return [_NAMES[operand]]
    try:
        return [int(operand, 0) & 0xFFFFFFFF]
    except ValueError:
        raise CompilerBug(f"the SPIR-V assembler does not understand '{operand}' in: {line.strip()}") from None
