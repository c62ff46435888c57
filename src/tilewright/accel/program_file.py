"""Programs in files: one that is cut off or damaged is refused, never run.

    8 bytes   magic
    4 bytes   version of the format
    8 bytes   length of the body
    32 bytes  SHA-256 of the body
    body:     4 bytes length of a JSON text; the text (configuration, number of instructions, address and size of
              segments and results); instructions; contents of segments, one after another

Numbers are little-endian.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import asdict
from pathlib import Path

from tilewright.accel.config import AccelConfig
from tilewright.accel.encoding import INSTRUCTION_BYTES, decode, encode
from tilewright.accel.instructions import check_formats
from tilewright.accel.program import Program, check_segments
from tilewright.support.errors import UserError
from tilewright.support.files import replacing

MAGIC = b"TWACCEL\0"
VERSION = 1
_HEAD = struct.Struct("<8sIQ32s")
_COUNT = struct.Struct("<I")


def program_bytes(program: Program) -> bytes:
    """A program as the contents of a file."""
    segments = sorted(program.segments.items())
    about = {
        "config": asdict(program.config),
        "instructions": len(program.instructions),
        "segments": [[address, len(data)] for address, data in segments],
        "results": [list(result) for result in program.results],
    }
    text = json.dumps(about, separators=(",", ":")).encode()
    code = encode(program.instructions, program.config)
    body = b"".join([_COUNT.pack(len(text)), text, code, *(data for _, data in segments)])
    return _HEAD.pack(MAGIC, VERSION, len(body), hashlib.sha256(body).digest()) + body


def parse_program_bytes(content: bytes, where: str) -> Program:
    """The program of a file's contents."""
    if len(content) < _HEAD.size or not content.startswith(MAGIC):
        raise UserError("accelerator: this is no program of the accelerator", where=where)
    _, version, length, digest = _HEAD.unpack_from(content)
    if version != VERSION:
        raise UserError(
            f"accelerator: the program has version {version} of the format, and version {VERSION} is known",
            where=where,
        )
    body = content[_HEAD.size :]
    if len(body) != length:
        raise UserError(
            f"accelerator: the program is {'cut off' if len(body) < length else 'too long'}: "
            f"its body has {len(body)} of {length} bytes",
            where=where,
        )
    if hashlib.sha256(body).digest() != digest:
        raise UserError("accelerator: the program is damaged: its digest does not agree", where=where)
    try:
        return _program(body)
    except UserError as error:
        raise UserError(error.message, where=where, hint=error.hint) from None


def save_program(program: Program, path: str | Path) -> None:
    """Write a program to a file."""
    with replacing(Path(path)) as temporary:
        temporary.write_bytes(program_bytes(program))


def is_program_file(content: bytes) -> bool:
    """Whether a file's contents begin as a program's do."""
    return content.startswith(MAGIC)


def _program(body: bytes) -> Program:
    try:
        (size,) = _COUNT.unpack_from(body)
        about = json.loads(body[_COUNT.size : _COUNT.size + size])
        config_text = json.dumps(about["config"])
        count = _whole(about["instructions"])
        places = [(_whole(address), _whole(length)) for address, length in about["segments"]]
        results = tuple((_whole(address), _whole(length)) for address, length in about["results"])
    except (struct.error, ValueError, KeyError, TypeError) as error:
        raise UserError(f"accelerator: what the program says of itself cannot be read: {error}") from None
    config = AccelConfig.from_json(config_text)
    check_formats(config)
    at = _COUNT.size + size
    end = at + count * INSTRUCTION_BYTES
    if end + sum(length for _, length in places) != len(body):
        raise UserError("accelerator: the parts of the program are not as long as it says")
    instructions = decode(body[at:end], config)
    segments: dict[int, bytes] = {}
    for address, length in places:
        if address in segments:
            raise UserError(f"accelerator: two parts of DRAM begin at byte {address:#x}")
        segments[address] = body[end : end + length]
        end += length
    check_segments(segments, "segments")
    return Program(config, tuple(instructions), segments, results)


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is no size")
    return value
