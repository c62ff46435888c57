"""`tilewright accel`: programs from text to file and back, runs and their traces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tilewright as tw
from tests.graph.fixed_layers import RandomLayers
from tilewright.cli.main import main
from tilewright.graph.ir.expr import Function, Var
from tilewright.graph.ir.infer import infer_types
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type

TEXT = """\
config
buffer data0 0x40
bytes 01 02
load inp dram=data0 y_size=1 x_size=4 push_next
gemm pop_prev push_next
finish pop_prev
"""


def test_programs_are_assembled_printed_and_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, file, trace = tmp_path / "a.s", tmp_path / "a.twa", tmp_path / "a.json"
    source.write_text(TEXT)
    assert main(["accel", "asm", str(source), "-o", str(file)]) == 0
    assert "3 instructions" in capsys.readouterr().out
    assert main(["accel", "disasm", str(file)]) == 0
    assert capsys.readouterr().out == TEXT
    assert main(["accel", "run", str(file), "--listing", "--trace", str(trace)]) == 0
    printed = capsys.readouterr().out
    assert "gemm pop_prev push_next" in printed and "64 bytes read, 0 written" in printed
    assert main(["accel", "run", str(file), "--machine", "registers"]) == 0
    assert "64 bytes read, 0 written" in capsys.readouterr().out
    assert main(["accel", "run", str(file), "--machine", "registers", "--listing"]) == 1
    assert "only the functional simulator is traced" in capsys.readouterr().err
    events = json.loads(trace.read_text())["traceEvents"]
    assert [(item["name"], item["ts"], item["dur"]) for item in events if item["ph"] == "X"] == [
        ("LOAD", 0, 8),
        ("GEMM", 8, 1),
        ("FINISH", 9, 1),
    ]
    assert [item["name"] for item in events if item["ph"] == "s"] == ["load -> compute", "compute -> store"]


def test_header_and_configuration_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine.json"
    mine.write_text('{"batch": 2}')
    assert main(["accel", "header", "--config", str(mine)]) == 0
    printed = capsys.readouterr().out
    assert "#define TW_ACCEL_BATCH 2\n" in printed and "tw_accel_driver;" in printed
    assert main(["accel", "config", "--config", str(mine)]) == 0
    assert "512 multipliers" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe", "neither a program file nor"),
        (b"TWACCEL\0cut", "no program of the accelerator"),
        (b"nothing", "cannot begin with 'nothing'"),
        (b"finish pop_prev", "deadlocks"),
    ],
)
def test_bad_programs_are_errors(
    content: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a"
    path.write_bytes(content)
    assert main(["accel", "run", str(path)]) == 1
    assert message in capsys.readouterr().err
    assert main(["accel", "run", str(tmp_path / "missing")]) == 1


def test_a_timeline_of_processor_and_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = Var("x", tensor_type((1, 16, 4, 4), "int8"))
    module = infer_types(IRModule([Function("main", (x,), RandomLayers(0).layer(x, 16, 16, (3, 3)))]))
    library, timeline = tmp_path / "a.so", tmp_path / "both.json"
    tw.compile(module, target={"accel": "", "host": "native"}).export_library(library)
    assert main(["run", str(library), "--timeline", str(timeline)]) == 0
    printed = capsys.readouterr().out
    assert "functional simulator" in printed and f"timeline written to {timeline}" in printed
    assert len(json.loads(timeline.read_text())["traceEvents"]) > 3
    tw.compile(module).export_library(library)
    assert main(["run", str(library), "--timeline", str(timeline)]) == 1
    assert "only models on devices have a timeline" in capsys.readouterr().err
