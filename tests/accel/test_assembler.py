"""Programs as text and as files: what is written is read back, and what is wrong is shown where it stands."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from tests.accel.configs import CONFIGS
from tests.accel.programs import random_program
from tilewright.accel.assembler import instruction_text, micro_op_text
from tilewright.accel.config import AccelConfig, Memory
from tilewright.accel.instructions import Alu, AluOp, Epi, Finish, Gemm, Load, MicroOp, Overwrite, Store
from tilewright.accel.listing import parse_program, program_text
from tilewright.accel.program import Program
from tilewright.accel.program_file import parse_program_bytes, program_bytes, save_program
from tilewright.support.errors import UserError

SAMPLES = {
    "load inp sram=16 dram=0x40 y_size=4 x_size=16 y_stride=56 y_before=1 pad=-3 pop_next push_next": Load(
        sram=16, dram=64, y_size=4, x_size=16, y_stride=56, y_before=1, pad=-3, pop_next=True, push_next=True
    ),
    "store acc sram=3": Store(memory=Memory.ACC, sram=3),
    "gemm reset overwrite=outer uop_end=9 outer=14": Gemm(reset=True, overwrite=Overwrite.OUTER, uop_end=9, outer=14),
    "alu shr use_imm imm=-7 inner=2": Alu(op=AluOp.SHR, use_imm=True, imm=-7, inner=2),
    "epi scale residual low=-128 high=127": Epi(scale=True, residual=True, low=-128, high=127),
    "finish pop_prev": Finish(pop_prev=True),
}


@pytest.mark.parametrize("text", SAMPLES)
def test_instructions_have_a_text(text: str) -> None:
    assert instruction_text(SAMPLES[text]) == text
    assert parse_program(text).instructions == (SAMPLES[text],)


def test_micro_ops_have_a_text() -> None:
    assert micro_op_text(MicroOp(acc=3, wgt=2)) == "uop acc=3 wgt=2"


@pytest.mark.parametrize("name", CONFIGS)
def test_random_programs_come_back_from_text_and_file(name: str) -> None:
    program = random_program(np.random.default_rng(7), CONFIGS[name])
    text = program_text(program)
    assert "\nuop " in text and "dram=data0" in text
    assert parse_program(text) == program
    assert program_text(parse_program(text)) == text
    assert parse_program_bytes(program_bytes(program), "here") == program


def test_a_program_by_hand() -> None:
    program = parse_program(
        """
        config block_in=32 inp_bits=4      ; the rest is as usual
        buffer steps 0x0
        uop acc=1 inp=2
        uop
        buffer image 256
        bytes 0001 02
        zeros 5
        load uop dram=steps x_size=1 y_size=1
        load inp dram=image+2 x_size=1 y_size=1 push_next
        finish
        result sums 0x1000 64
        """
    )
    assert program.config == AccelConfig(block_in=32, inp_bits=4)
    assert program.segments[256] == b"\0\1\2\0\0\0\0\0" and len(program.segments[0]) == 8
    assert program.results == ((4096, 64),)
    assert program.instructions[1] == Load(dram=34, x_size=1, y_size=1, push_next=True)


WRONG = {
    "lod inp": (1, 1, "cannot begin with 'lod'"),
    "load": (1, 1, "load needs its memory"),
    "load int": (1, 6, "no memory 'int'"),
    "load inp memory=wgt": (1, 10, "memory is given already"),
    "load inp\n  load inp sram=1 sarm=2": (2, 19, "no field 'sarm'"),
    "load inp sram=1 sram=2": (1, 17, "sram is given twice"),
    "load inp sram": (1, 10, "sram needs a value"),
    "load inp sram=x": (1, 10, "sram is 'x'"),
    "load inp sram=99999": (1, 10, "its 13 bits cannot hold"),
    "load inp pad=200": (1, 10, "from -128 to 127"),
    "load inp pop_next=1": (1, 10, "pop_next is a bit"),
    "load inp dram=image": (1, 10, "no buffer 'image'"),
    "gemm overwrite=often": (1, 6, "no overwrite 'often'"),
    "bytes 00": (1, 1, "in no buffer"),
    "buffer a 0\nbytes 0": (2, 7, "no bytes"),
    "buffer a 0\nbuffer a 8": (2, 8, "given twice"),
    "buffer a 0\nbuffer b 0": (2, 10, "another buffer begins there"),
    "buffer a": (1, 1, "takes a name and an address"),
    "buffer 1 0": (1, 8, "is no name"),
    "buffer a -8": (1, 8, "the address is -8"),
    "result a 0 -1": (1, 12, "number of bytes is -1"),
    "buffer a 0\nzeros -1": (2, 7, "number of bytes is -1"),
    "finish\nconfig": (2, 1, "config comes first"),
    "config blocks=3": (1, 8, "no 'blocks' in a configuration"),
    "config batch": (1, 8, "no name=value"),
    "config batch=1 batch=1": (1, 16, "given twice"),
    "config batch=3": (1, 1, "batch is 3, which is no power of two"),
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_is_shown_where_it_stands(text: str) -> None:
    line, column, message = WRONG[text]
    with pytest.raises(UserError) as caught:
        parse_program(text, "a.s")
    assert message in str(caught.value)
    assert caught.value.where == f"a.s, line {line}, column {column}"


def test_buffers_must_not_overlap() -> None:
    with pytest.raises(UserError, match="overlap at byte 0x4"):
        parse_program("buffer a 0\nzeros 8\nbuffer b 4\nzeros 1\nfinish")


def _program() -> Program:
    return random_program(np.random.default_rng(1), CONFIGS["tiny"])


def test_a_file_that_is_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.twa"
    save_program(_program(), path)
    content = path.read_bytes()
    assert parse_program_bytes(content, str(path)) == _program()
    for size in (*range(0, 80, 7), len(content) // 2, len(content) - 1):
        with pytest.raises(UserError, match=r"no program|cut off"):
            parse_program_bytes(content[:size], "a")
    with pytest.raises(UserError, match="too long"):
        parse_program_bytes(content + b"\0", "a")


def test_a_file_with_any_byte_changed_is_refused() -> None:
    content = program_bytes(_program())
    rng = np.random.default_rng(0)
    for at in (0, 8, 12, 20, 52, 60, *rng.integers(0, len(content), 40)):
        damaged = bytearray(content)
        damaged[at] ^= 1 << int(rng.integers(8))
        with pytest.raises(UserError):
            parse_program_bytes(bytes(damaged), "a")


def _sealed(body: bytes) -> bytes:
    return struct.pack("<8sIQ32s", b"TWACCEL\0", 1, len(body), hashlib.sha256(body).digest()) + body


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({}, "cannot be read: 'config'"),
        ([], "cannot be read"),
        ({"config": {}, "instructions": -1, "segments": [], "results": []}, "-1 is no size"),
        ({"config": {}, "instructions": 1 << 60, "segments": [], "results": []}, "not as long as it says"),
        ({"config": {"batch": 3}, "instructions": 0, "segments": [], "results": []}, "no power of two"),
        ({"config": {}, "instructions": 0, "segments": [[0, 0], [0, 0]], "results": []}, "begin at byte 0x0"),
        ({"config": {}, "instructions": 0, "segments": [[1]], "results": []}, "cannot be read"),
    ],
)
def test_a_file_with_a_right_digest_is_still_checked(about: object, message: str) -> None:
    text = json.dumps(about).encode()
    with pytest.raises(UserError, match=message):
        parse_program_bytes(_sealed(struct.pack("<I", len(text)) + text), "a")


def test_every_field_can_be_written() -> None:
    for kind in (Load, Store, Gemm, Alu, Epi):
        for field in fields(kind):
            value = type(field.default)(1)
            instruction = kind(**{field.name: value})
            assert parse_program(instruction_text(instruction)).instructions == (instruction,)
