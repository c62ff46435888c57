"""`tilewright micro`, programs for boards, and the protocol of debuggers."""

from __future__ import annotations

import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

import tilewright as tw
from bench.micro_models import QuantizedGraph, tiny
from bench.micro_planner import Layer, Life, greedy_arena, lives
from tests.requirements import need
from tilewright.backends.micro.board import board_of, processor_of
from tilewright.backends.micro.build import build_program, find_tool
from tilewright.backends.micro.gdb import GdbRemote
from tilewright.backends.micro.program import read_program
from tilewright.backends.micro.remote import emulator, load_program, run_remotely
from tilewright.cli.main import main
from tilewright.compiler import Compilation
from tilewright.support.errors import UserError
from tilewright.target.target import Target

M4 = board_of("thumbv7em-none-eabi", "cortex-m4")
RUNTIME_BYTES = 8 << 10
"""What a program may have of code beside kernels and weights."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("boards") / "tiny.onnx"
    onnx.save(tiny().proto, path)
    return path


@pytest.mark.parametrize("board", ["mps2-an386", "mps3-an547", "virt"])
def test_the_command_runs_a_model(model: Path, board: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    need("riscv-none-elf" if board == "virt" else "arm-none-eabi")
    image = np.random.default_rng(1).integers(-128, 128, (1, 3, 9, 9), np.int8)
    np.savez(tmp_path / "given.npz", input=image)
    saved = tmp_path / "saved.npz"
    command = ["micro", str(model), "--board", board, "--run", str(tmp_path / "given.npz"), "--profile"]
    assert main([*command, "--output-file", str(saved), "-o", str(tmp_path / "kept")]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^flash +\d", said, re.MULTILINE) and re.search(r"^RAM +\d", said, re.MULTILINE)
    assert re.search(r"^ +[\d,]+ +[\d.]+% +Conv:v2", said, re.MULTILINE)
    assert re.search(r"^[\d,]+ instructions in 7 steps$", said, re.MULTILINE)
    assert (tmp_path / "kept" / "example" / "remote.elf").exists()
    np.testing.assert_array_equal(np.load(saved)["output"], tw.compile(model, threads=1)(image))


def test_a_program_is_loaded_through_a_debugger(model: Path, tmp_path: Path) -> None:
    """The board holds another program before."""
    need("arm-none-eabi")
    graph = QuantizedGraph("other", (1, 3))
    onnx.save(graph.finish(graph.dense("input", 2)).proto, tmp_path / "other.onnx")
    paths = {}
    for name, source in (("tiny", model), ("other", tmp_path / "other.onnx")):
        compilation = Compilation(source, target="cortex-m4")
        compilation.export_library(tmp_path / name)
        paths[name] = build_program(tmp_path / name / "example", name, M4, "remote.c")
    compilation = Compilation(model, target="cortex-m4")
    info = compilation.artifact().model
    assert info is not None
    program = read_program(paths["tiny"])
    image = np.random.default_rng(2).integers(-128, 128, (1, 3, 9, 9), np.int8)
    with emulator(M4, paths["other"]) as link:
        load_program(link, program, M4)
        run = run_remotely(link, program, M4, info, {"input": image})
        # There is no memory.
        link.set_register(15, 0xF0000000)
        with pytest.raises(UserError, match=r"went away|did not stop"):
            link.resume()
    np.testing.assert_array_equal(run.outputs["output"], tw.compile(model, threads=1)(image))
    assert run.unit == "instructions" and len(run.counts) == 7 and all(run.counts)


def test_the_runtime_is_small(model: Path, tmp_path: Path) -> None:
    """Start-up, clock and the function that calls the kernels; kernels and weights aside."""
    need("arm-none-eabi")
    Compilation(model, target="cortex-m4").export_library(tmp_path / "tiny")
    path = build_program(tmp_path / "tiny" / "example", "tiny", M4, "remote.c")
    listed = subprocess.run(["arm-none-eabi-nm", "-S", str(path)], check=True, capture_output=True, text=True).stdout
    sizes = {
        name: int(size, 16) for size, kind, name in re.findall(r"^\w+ (\w+) (\w) (\S+)$", listed, re.MULTILINE)
        if kind in "tTrR"
    }  # fmt: skip
    kernels = sum(size for name, size in sizes.items() if re.match(r"tw_\w+_[0-9a-f]{16}|constant_", name))
    assert 1000 < kernels < read_program(path).flash_bytes
    assert read_program(path).flash_bytes - kernels <= RUNTIME_BYTES


def test_processors_are_targets() -> None:
    assert Target("cortex-m4") == Target("micro -mcpu=cortex-m4")
    assert Target("cortex-m55").vector_bits == 128 and Target("cortex-m55 -mattr=-mve").vector_bits == 32
    assert not Target("cortex-m55 -mattr=-mve").has_feature("mve.fp")
    assert Target("rv32imac") == Target("micro -mtriple=riscv32-unknown-elf")
    assert "rv32imc " in board_of("riscv32-unknown-elf", "generic", Target("rv32imc").features).flags
    with pytest.raises(UserError, match="did you mean 'cortex-m4'"):
        Target("cortex-m44")


@pytest.mark.parametrize("target", ["cortex-m3", "cortex-m55", "rv32imc"])
def test_static_libraries(model: Path, target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    need("riscv-none-elf" if target.startswith("rv") else "arm-none-eabi")
    assert main(["compile", str(model), "--target", target, "-o", str(tmp_path / "libtiny.a")]) == 0
    assert 'tiny.h"' in capsys.readouterr().out
    assert {file.name for file in tmp_path.iterdir()} == {"libtiny.a", "tiny.h"}
    tools = "riscv64-unknown-elf-" if target.startswith("rv") else "arm-none-eabi-"
    names = subprocess.run([f"{tools}nm", str(tmp_path / "libtiny.a")], check=True, capture_output=True, text=True)
    assert re.findall(r" T (\S+)$", names.stdout, re.MULTILINE) == ["tiny_run"]


def test_what_is_missing_is_said(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"no arm-none-eabi-gcc(.|\n)*apt-get install gcc-arm-none-eabi"):
        find_tool(M4, "gcc")
    with pytest.raises(UserError, match="no qemu-system-arm"), emulator(M4, tmp_path / "x.elf"):
        pass
    with pytest.raises(UserError, match=r"no board 'mps2-an387'(.|\n)*mps2-an386"):
        processor_of("mps2-an387")
    (tmp_path / "text.elf").write_text("no program", encoding="utf-8")
    with pytest.raises(UserError, match="is no program"):
        read_program(tmp_path / "text.elf")


def test_only_microcontrollers_have_boards(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["micro", str(model), "--target", "c"]) == 1
    assert "is no microcontroller" in capsys.readouterr().err


def test_compilers_that_fail_are_quoted(model: Path, tmp_path: Path) -> None:
    need("arm-none-eabi")
    Compilation(model, target="cortex-m4").export_library(tmp_path / "tiny")
    (tmp_path / "tiny" / "tiny.c").write_text("#error broken\n", encoding="utf-8")
    with pytest.raises(UserError, match="error broken"):
        build_program(tmp_path / "tiny" / "example", "tiny", M4, "remote.c")
    nothing = "int tiny_run(const void* a, void* b) { (void)a; (void)b; return 0; }\n"
    (tmp_path / "tiny" / "tiny.c").write_text(nothing, encoding="utf-8")
    program = read_program(build_program(tmp_path / "tiny" / "example", "tiny", M4, "remote.c"))
    with pytest.raises(UserError, match="has no 'tw_nowhere'"):
        program.symbol("tw_nowhere")


@pytest.fixture
def server() -> Iterator[tuple[str, dict[bytes, bytes]]]:
    """A debugger's server that gives answers by packet, as they are on the line, and stays silent else."""
    answers = {b"QStartNoAckMode": b"+$#00", b"qXfer:features:read:target.xml:0,400": b"+$#00"}
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            data = b""
            while part := connection.recv(4096):
                data += part
                while found := re.search(rb"\$([^#]*)#..", data):
                    data = data[found.end() :]
                    connection.sendall(answers.get(found[1], b""))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"127.0.0.1:{listener.getsockname()[1]}", answers
    listener.close()
    thread.join(5)


def packet(text: bytes) -> bytes:
    return b"+$" + text + b"#" + f"{sum(text) % 256:02x}".encode()


def test_packets(server: tuple[str, dict[bytes, bytes]]) -> None:
    address, answers = server
    answers[b"m20,4"] = packet(b"0* ab")
    answers[b"m30,4"] = packet(b"E01")
    answers[b"m40,4"] = b"+$00#99"
    answers[b"Z1,10,2"] = packet(b"")
    answers[b"Z0,10,2"] = packet(b"OK")
    answers[b"c"] = packet(b"O6869") + packet(b"T05thread:01;")
    answers[b"s"] = packet(b"W00")
    link = GdbRemote.connect(address, 2.0)
    assert link.read(0x20, 4) == bytes.fromhex("0000ab"), "a digit that is repeated three times more"
    with pytest.raises(UserError, match="refused reading memory at 0x30"):
        link.read(0x30, 4)
    with pytest.raises(UserError, match="wrong sum"):
        link.read(0x40, 4)
    link.set_breakpoint(0x10)
    link.resume()
    with pytest.raises(UserError, match="did not stop where it should"):
        link.step()
    with pytest.raises(UserError, match="does not answer"):
        link.read(0x50, 4)
    link.close()


def test_addresses_of_debuggers() -> None:
    with pytest.raises(UserError, match="no address of a debugger"):
        GdbRemote.connect("localhost")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(UserError, match="no debugger answers"):
        GdbRemote.connect(f"127.0.0.1:{port}", 1.0)


def test_the_plan_of_others() -> None:
    """A value that lives through the middle keeps its place; sizes are multiples of 16."""
    layers = [Layer(("input",), "a"), Layer(("a",), "b"), Layer(("a", "b"), "c")]
    assert greedy_arena(lives(layers, {"input": 10, "a": 33, "b": 16, "c": 16}, "c")) == 48 + 16 + 16
    assert greedy_arena(lives(layers[:1], {"input": 100, "a": 1}, "a")) == 112 + 16
    equal = [Life(32, 2, 2), Life(32, 2, 3), Life(16, 3, 6), Life(32, 4, 4)]
    assert (greedy_arena(equal), greedy_arena(equal[::-1])) == (64, 80), "of equal values the last comes first"
