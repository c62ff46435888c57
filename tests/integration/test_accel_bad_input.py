"""What is wrong with a processor or its programs is an error that says what: from Python, and on the command line.

An illegal configuration, a tensor that does not fit, a stream that deadlocks, an instruction file that is cut off.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tests.accel.configs import CONFIGS
from tests.accel.tiled_product import OUT_AT, TiledProduct
from tests.graph.fixed_layers import RandomLayers
from tests.integration import small_models
from tests.requirements import need
from tilewright import te
from tilewright.accel.config import AccelConfig, Memory
from tilewright.accel.functional import FunctionalMachine
from tilewright.accel.instructions import Finish, Gemm, Instruction, Load
from tilewright.accel.listing import program_text
from tilewright.accel.machine import Machine
from tilewright.accel.program import Program
from tilewright.accel.program_file import parse_program_bytes, program_bytes, save_program
from tilewright.accel.registers import MockBoard, RegisterMachine
from tilewright.accel.verilated import VerilatedMachine
from tilewright.cli.main import main
from tilewright.graph.ir.expr import Function, Var
from tilewright.graph.ir.infer import infer_types
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type
from tilewright.support.errors import UserError
from tilewright.topi.intrinsics import accel

SMALL = CONFIGS["small"]
Run = Callable[..., str]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command that must fail, and gives what it says: an error, and no traceback."""

    def run(*arguments: object) -> str:
        capsys.readouterr()
        assert main([str(item) for item in arguments]) == 1
        said = capsys.readouterr().err
        assert said.startswith("error:") and "Traceback" not in said
        return said

    return run


# ------------------------------------------------------------------------ an illegal configuration

ILLEGAL = [
    ({"block_in": 12}, "block_in is 12, which is no power of two"),
    ({"acc_bits": 24}, "acc_bits is 24, not 16 or 32"),
    ({"bus_bytes": 128}, "bus_bytes is 128"),
    ({"inp_bytes": 100}, "INP holds 6 elements"),
    ({"memory_latency": 0}, "memory_latency is 0"),
    ({"token_queue": -1}, "token_queue is -1"),
    ({"wgt_bytes": 1 << 40}, "wgt_bytes is"),
    ({"uop_bytes": 1 << 24, "inp_bytes": 1 << 24}, "bits of (32|128) in this configuration"),
]


@pytest.mark.parametrize(("values", "message"), ILLEGAL)
def test_illegal_configurations(values: dict[str, int], message: str, refused: Run, tmp_path: Path) -> None:
    x = Var("x", tensor_type((1, 16, 4, 4), "int8"))
    module = infer_types(IRModule([Function("main", (x,), RandomLayers(0).layer(x, 16, 16, (1, 1)))]))
    text = ",".join(f"{name}:{value}" for name, value in values.items())
    if min(values.values()) >= 0:
        with pytest.raises(UserError, match=message):
            tw.compile(module, target={"accel": f"-config={text}", "host": "native"})
    with pytest.raises(UserError, match=message):
        FunctionalMachine(AccelConfig(**values), 1 << 20)
    config, model = tmp_path / "a.json", tmp_path / "a.onnx"
    config.write_text("{" + ", ".join(f'"{name}": {value}' for name, value in values.items()) + "}")
    model.write_bytes(small_models.classifier().SerializeToString())
    for command in (
        ("accel", "config", "--config", config),
        ("accel", "header", "--config", config),
        ("compile", model, "--target", f"accel -config={config}", "-o", tmp_path / "a.so"),
    ):
        assert message.split(" ")[0].strip("(") in refused(*command)
    assert not (tmp_path / "a.so").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [("[]", "no JSON object"), ("{", "is no JSON"), ('{"size": 3}', "no 'size'"), ('{"batch": "two"}', "batch is")],
)
def test_files_that_are_no_configuration(text: str, message: str, refused: Run, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        AccelConfig.read(path)
    assert message in refused("accel", "config", "--config", path)
    assert "cannot read the configuration" in refused("accel", "config", "--config", tmp_path / "none.json")


# ------------------------------------------------------------------------ a tensor that does not fit


def _whole_in_memory(size: int) -> te.Schedule:
    """A product whose operands are loaded whole, which takes `size` tensors."""
    config = AccelConfig()
    data = te.placeholder((size, 1, 16), "int8", name="data")
    weight = te.placeholder((16, 16), "int8", name="weight")
    k = te.reduce_axis((0, 16), name="k")
    result = te.compute(
        (size, 1, 16),
        lambda n, r, c: te.sum(data[n, r, k].astype("int32") * weight[c, k].astype("int32"), axis=k),
        name="result",
    )
    s = te.create_schedule(result.op)
    sums = s.cache_write(result, "accel.acc")
    s.cache_read(data, "accel.inp")
    s.cache_read(weight, "accel.wgt")
    s[sums].tensorize(s[sums].op.axis[1], accel.product(config))
    tw.build(s, [data, weight, result], target="accel")
    return s


def test_tensors_that_do_not_fit() -> None:
    _whole_in_memory(64)
    with pytest.raises(UserError, match="needs 4096 tensors of ACC, which has 2048") as raised:
        _whole_in_memory(4096)
    assert raised.value.hint == "use smaller tiles"


def test_models_whose_tiles_do_not_fit_run_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_STRICT_TEMPLATES", "0")
    x = Var("x", tensor_type((1, 64, 9, 9), "int8"))
    module = infer_types(IRModule([Function("main", (x,), RandomLayers(1).layer(x, 64, 64, (9, 9)))]))
    tiny = "-config=inp_bytes:32,wgt_bytes:512,acc_bytes:128,out_bytes:32,par_entries:2,uop_bytes:32"
    exe = tw.compile(module, target={"accel": tiny, "host": "native"})
    data = np.random.default_rng(0).integers(-128, 128, (1, 64, 9, 9)).astype(np.int8)
    np.testing.assert_array_equal(exe(data), tw.compile(module)(data))


PAST_THE_END: list[tuple[list[Instruction], str]] = [
    ([Load(memory=Memory.INP, sram=30, y_size=1, x_size=8, push_next=True)], r"INP\[30\] to \[37\], past its 32"),
    ([Load(memory=Memory.INP, dram=1 << 31, y_size=1, x_size=1, push_next=True)], "past its .* bytes"),
    ([Load(memory=Memory.PAR, y_size=1, x_size=4, y_before=1, push_next=True)], "PAR cannot be padded"),
]


@pytest.mark.parametrize(("head", "message"), PAST_THE_END)
def test_programs_that_leave_a_memory(head: list[Instruction], message: str, refused: Run, tmp_path: Path) -> None:
    program = Program(SMALL, (*head, Gemm(pop_prev=True, push_next=True), Finish(pop_prev=True)))
    with pytest.raises(UserError, match=message):
        program.run_on(FunctionalMachine(SMALL, program.dram_bytes))
    path = tmp_path / "a.twa"
    save_program(program, path)
    said = refused("accel", "run", path)
    assert "0: load" in said or "instruction 0" in said
    assert "past its" in said or "cannot be padded" in said


# ------------------------------------------------------------------------ a stream that deadlocks

STUCK = (Load(memory=Memory.INP, pop_next=True, push_next=True), Gemm(pop_prev=True, push_prev=True, push_next=True))


def _registers(config: AccelConfig, dram_bytes: int) -> Machine:
    return RegisterMachine(MockBoard(FunctionalMachine(config, dram_bytes)))


@pytest.mark.parametrize("machine", ["functional", "registers", "hardware"])
def test_streams_that_deadlock(machine: str, refused: Run, tmp_path: Path) -> None:
    if machine == "hardware":
        need("verilator", "amaranth", "c++-compiler")
    makes = {"functional": FunctionalMachine, "registers": _registers, "hardware": VerilatedMachine}
    program = Program(SMALL, (*STUCK, Finish(pop_prev=True)))
    target = makes[machine](SMALL, program.dram_bytes)
    with pytest.raises(UserError, match="deadlock"):
        program.run_on(target)
    # The machine works afterwards.
    fine = Program(SMALL, (Gemm(push_next=True), Finish(pop_prev=True)))
    assert fine.run_on(target)[0].instructions == 2
    target.close()
    path = tmp_path / "a.s"
    path.write_text(program_text(program))
    said = refused("accel", "run", path, "--machine", machine)
    assert "deadlock" in said and "load waits for a token" in said and "compute waits for a token" in said
    assert "deadlock" in refused("accel", "check", path)


def test_streams_are_proved_on_the_command_line(
    refused: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    product = TiledProduct(SMALL, 4, 2)
    size = 4 * 4 * SMALL.dma_bytes[Memory.OUT]
    program = Program(SMALL, tuple(product.instructions()), product.dram(), ((OUT_AT, size),))
    path = tmp_path / "a.twa"
    save_program(program, path)
    assert main(["accel", "check", str(path)]) == 0
    assert "it ends, and no two units race" in capsys.readouterr().out
    at = next(number for number, item in enumerate(program.instructions) if item.push_next)
    items = list(program.instructions)
    items[at] = Load(memory=Memory.INP, sram=0, dram=items[at].dram, y_size=1, x_size=4)  # type: ignore[attr-defined]
    save_program(Program(SMALL, tuple(items), product.dram()), path)
    said = refused("accel", "check", path)
    assert "not safe to run" in said


def test_programs_without_an_end_are_given_up(refused: Run, tmp_path: Path) -> None:
    long = Gemm(uop_end=8, outer=4095, inner=4095, push_next=True)
    program = Program(SMALL, (long, Finish(pop_prev=True)))
    with pytest.raises(UserError, match="takes more than 1000 steps"):
        program.run_on(FunctionalMachine(SMALL, program.dram_bytes), 1000)
    path = tmp_path / "a.twa"
    save_program(program, path)
    assert "takes more than 1000 steps" in refused("accel", "run", path, "--most-cycles", 1000)


# ------------------------------------------------------------------------ a file that is cut off


def test_files_that_are_cut_off(refused: Run, tmp_path: Path) -> None:
    product = TiledProduct(SMALL, 2, 1)
    content = program_bytes(Program(SMALL, tuple(product.instructions()), product.dram()))
    parse_program_bytes(content, "whole")
    for length in (*range(200), *range(200, len(content), 997), len(content) - 1):
        with pytest.raises(UserError, match=r"cut off|no program of the accelerator"):
            parse_program_bytes(content[:length], "cut")
    with pytest.raises(UserError, match="too long"):
        parse_program_bytes(content + b"\0", "long")
    path = tmp_path / "a.twa"
    for length in (12, 60, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        for command in (("run", path), ("disasm", path), ("check", path)):
            said = refused("accel", *command)
            assert "cut off" in said or "no program of the accelerator" in said


def test_files_that_are_damaged(refused: Run, tmp_path: Path) -> None:
    product = TiledProduct(SMALL, 2, 1)
    content = bytearray(program_bytes(Program(SMALL, tuple(product.instructions()), product.dram())))
    rng = np.random.default_rng(0)
    for place in rng.integers(0, len(content), 60):
        damaged = bytearray(content)
        damaged[place] ^= 1 << int(rng.integers(8))
        with pytest.raises(UserError):
            parse_program_bytes(bytes(damaged), "damaged")
    path = tmp_path / "a.twa"
    content[-1] ^= 1
    path.write_bytes(content)
    assert "is damaged" in refused("accel", "run", path)
