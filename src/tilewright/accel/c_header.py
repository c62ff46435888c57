"""The instruction set of a configuration as a C header: constants, a structure for each instruction, encoders."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from enum import IntEnum

from tilewright.accel.config import AccelConfig, Memory
from tilewright.accel.instructions import (
    INSTRUCTIONS,
    OPCODE_BITS,
    AluOp,
    Instruction,
    MicroOp,
    Opcode,
    Overwrite,
    Unit,
    check_formats,
    field_specs,
    layout,
)

PREFIX = "tw_accel"
_ENUMS: tuple[type[IntEnum], ...] = (Memory, Unit, Opcode, Overwrite, AluOp)
_HEAD = """\
/* The accelerator's instructions for one configuration, written by `tilewright accel header`: do not edit. */
#ifndef TW_ACCEL_H
#define TW_ACCEL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
"""
_PUT = """
/* An instruction: bits 0 to 63 and 64 to 127. */
typedef struct tw_accel_word {
    uint64_t bits[2];
} tw_accel_word;

static inline void tw_accel_put(tw_accel_word *word, unsigned low, unsigned width, int64_t value) {
    uint64_t mask = width == 64 ? ~UINT64_C(0) : (UINT64_C(1) << width) - 1;
    uint64_t bits = (uint64_t)value & mask;
    unsigned half = low / 64, shift = low % 64;
    word->bits[half] |= bits << shift;
    if (shift + width > 64) word->bits[half + 1] |= bits >> (64 - shift);
}
"""
_TAIL = """
#ifdef __cplusplus
}
#endif

#endif
"""


def header(config: AccelConfig, more: str = "") -> str:
    """The text of the header; `more` is put before its end."""
    check_formats(config)
    lines = [_HEAD, "/* The configuration. */"]
    lines += [f"#define {_macro(name)} {value}" for name, value in asdict(config).items()]
    lines += [f"#define {_macro(memory.name, 'DEPTH')} {depth}" for memory, depth in config.depth.items()]
    for enum in _ENUMS:
        names = ", ".join(f"{_macro(enum.__name__, item.name)} = {item.value}" for item in enum)
        lines.append(f"\nenum {PREFIX}_{_snake(enum.__name__)} {{ {names} }};")
    for kind in (*INSTRUCTIONS.values(), MicroOp):
        lines += _places(kind, config)
    lines.append(_PUT)
    for opcode, kind in INSTRUCTIONS.items():
        lines += _encoder(kind, opcode)
    lines += _micro_op_encoder()
    return "\n".join([*lines, more, _TAIL])


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


def _macro(*parts: str) -> str:
    return "_".join([PREFIX, *(part if part.isupper() else _snake(part) for part in parts)]).upper()


def _places(kind: type[Instruction] | type[MicroOp], config: AccelConfig) -> Iterator[str]:
    yield f"\n/* {kind.__name__}: the lowest bit, the width and the mask (of the value) of each field. */"
    for name, (low, bits) in layout(kind, config).items():
        yield f"#define {_macro(kind.__name__, name, 'LOW')} {low}"
        yield f"#define {_macro(kind.__name__, name, 'BITS')} {bits}"
        yield f"#define {_macro(kind.__name__, name, 'MASK')} UINT64_C({(1 << bits) - 1:#x})"


def _structure(kind: type[Instruction] | type[MicroOp]) -> Iterator[str]:
    name = f"{PREFIX}_{_snake(kind.__name__)}"
    summary = (kind.__doc__ or "").strip().splitlines()[0]
    specs = field_specs(kind)
    yield f"\n/* {summary} */\ntypedef struct {name} {{"
    yield from (f"    int64_t {spec.name}; /* {spec.doc} */" for spec in specs)
    yield f"}} {name};\n"


def _encoder(kind: type[Instruction], opcode: Opcode) -> Iterator[str]:
    yield from _structure(kind)
    name = _snake(kind.__name__)
    yield f"static inline tw_accel_word tw_accel_encode_{name}(const {PREFIX}_{name} *item) {{"
    yield "    tw_accel_word word = {{0, 0}};"
    yield f"    tw_accel_put(&word, 0, {OPCODE_BITS}, {_macro('Opcode', opcode.name)});"
    for spec in field_specs(kind):
        low, bits = _macro(kind.__name__, spec.name, "LOW"), _macro(kind.__name__, spec.name, "BITS")
        yield f"    tw_accel_put(&word, {low}, {bits}, item->{spec.name});"
    yield "    return word;\n}"


def _micro_op_encoder() -> Iterator[str]:
    yield from _structure(MicroOp)
    yield f"static inline uint32_t tw_accel_encode_micro_op(const {PREFIX}_micro_op *item) {{"
    yield "    tw_accel_word word = {{0, 0}};"
    for spec in field_specs(MicroOp):
        low, bits = _macro("MicroOp", spec.name, "LOW"), _macro("MicroOp", spec.name, "BITS")
        yield f"    tw_accel_put(&word, {low}, {bits}, item->{spec.name});"
    yield "    return (uint32_t)word.bits[0];\n}"
