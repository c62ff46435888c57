"""What `tilewright accel` does with programs: to a file and back to text, runs, the C header, configurations."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from tilewright.accel.c_header import header
from tilewright.accel.checker import check
from tilewright.accel.config import AccelConfig
from tilewright.accel.driver import DRIVER_HEADER
from tilewright.accel.functional import FunctionalMachine
from tilewright.accel.instructions import Unit, check_formats
from tilewright.accel.listing import parse_program, program_text
from tilewright.accel.machine import Counters, Machine
from tilewright.accel.program import Program
from tilewright.accel.program_file import is_program_file, parse_program_bytes, save_program
from tilewright.accel.registers import MockBoard, RegisterMachine
from tilewright.accel.timeline import chrome_trace, listing
from tilewright.accel.verilated import VerilatedMachine
from tilewright.support.errors import UserError
from tilewright.support.files import replacing
from tilewright.support.text import table


def add_actions(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the actions and their arguments."""
    asm = actions.add_parser("asm", help="turn a program's text to a program file")
    asm.add_argument("program", type=Path, metavar="FILE", help="the text")
    asm.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="the file to write")
    disasm = actions.add_parser("disasm", help="print a program file as text")
    disasm.add_argument("program", type=Path, metavar="FILE", help="the program")
    disasm.add_argument("-o", "--output", type=Path, metavar="FILE", help="the file to write (default: print)")
    proof = actions.add_parser("check", help="prove that a program ends and that no two units race")
    proof.add_argument("program", type=Path, metavar="FILE", help="a program file, or its text")
    run = actions.add_parser("run", help="run a program")
    run.add_argument("program", type=Path, metavar="FILE", help="a program file, or its text")
    run.add_argument(
        "--machine",
        choices=("functional", "registers", "hardware"),
        default="functional",
        help="the functional simulator (the default), a board's registers before it, or the hardware, simulated",
    )
    run.add_argument("--trace", type=Path, metavar="FILE.json", help="write a timeline for trace viewers (Perfetto)")
    run.add_argument("--listing", action="store_true", help="list the instructions as they were executed")
    run.add_argument("--most-cycles", type=int, metavar="N", help="give up after this many steps")
    header_parser = actions.add_parser("header", help="the instructions and the driver interface for C programs")
    _add_config(header_parser)
    header_parser.add_argument("-o", "--output", type=Path, metavar="FILE.h", help="the file to write (default: print)")
    _add_config(actions.add_parser("config", help="what a configuration amounts to"))


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="the configuration, as JSON (default: the default)")


def execute(options: argparse.Namespace) -> int:
    """Run an action."""
    actions: dict[str, Callable[[argparse.Namespace], None]] = {
        "asm": _assemble,
        "disasm": _disassemble,
        "check": _check,
        "run": _run,
        "header": _header,
        "config": _config,
    }
    actions[options.action](options)
    return 0


def _read(path: Path) -> Program:
    """A program from a file, or from text."""
    try:
        content = path.read_bytes()
        return parse_program_bytes(content, str(path)) if is_program_file(content) else _parsed(content, path)
    except OSError as error:
        raise UserError(f"cannot read {path.name}: {error.strerror or error}", where=str(path)) from None


def _parsed(content: bytes, path: Path) -> Program:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise UserError("accelerator: this is neither a program file nor a program's text", where=str(path)) from None
    return parse_program(text, str(path))


def _put(text: str, path: Path | None) -> None:
    if path is None:
        print(text, end="")
    else:
        with replacing(path) as temporary:
            temporary.write_text(text)


def _assemble(options: argparse.Namespace) -> None:
    program = _read(options.program)
    save_program(program, options.output)
    print(f"{options.output}: {len(program.instructions)} instructions")


def _disassemble(options: argparse.Namespace) -> None:
    _put(program_text(_read(options.program)), options.output)


def _check(options: argparse.Namespace) -> None:
    program = _read(options.program)
    check(program.instructions, program.config, program.read)
    print(f"{options.program}: {len(program.instructions)} instructions; it ends, and no two units race")


def _run(options: argparse.Namespace) -> None:
    program = _read(options.program)
    is_traced = options.listing or options.trace is not None
    if is_traced and options.machine != "functional":
        raise UserError("only the functional simulator is traced", where="--machine", hint="leave it out")
    simulator = FunctionalMachine(program.config, program.dram_bytes, is_traced=is_traced)
    machines: dict[str, Callable[[], Machine]] = {
        "functional": lambda: simulator,
        "registers": lambda: RegisterMachine(MockBoard(simulator)),
        "hardware": lambda: VerilatedMachine(program.config, program.dram_bytes),
    }
    counters, results = program.run_on(machines[options.machine](), options.most_cycles)
    if options.listing:
        print(listing(program.instructions, simulator.events))
    print(_counters_text(counters))
    for (address, size), content in zip(program.results, results, strict=True):
        shown = content[:32].hex(" ") + (" ..." if size > 32 else "")
        print(f"result at {address:#x}, {size} bytes: {shown}")
    if options.trace is not None:
        _put(chrome_trace(program.instructions, simulator.events), options.trace)
        print(f"timeline written to {options.trace}")


def _counters_text(counters: Counters) -> str:
    rows = [
        (unit.name.lower(), str(counters.units[unit].instructions), str(counters.units[unit].busy)) for unit in Unit
    ]
    text = table(("unit", "instructions", "busy"), rows)
    if counters.cycles is not None:
        text += f"\n{counters.cycles} cycles"
    return f"{text}\n{counters.bytes_read} bytes read, {counters.bytes_written} written"


def _chosen(options: argparse.Namespace) -> AccelConfig:
    config = AccelConfig() if options.config is None else AccelConfig.read(options.config)
    check_formats(config)
    return config


def _header(options: argparse.Namespace) -> None:
    _put(header(_chosen(options), DRIVER_HEADER), options.output)


def _config(options: argparse.Namespace) -> None:
    config = _chosen(options)
    print(table(("field", "value"), [(name, str(value)) for name, value in asdict(config).items()]))
    rows = [(memory.name, str(depth), str(config.element_bits[memory])) for memory, depth in config.depth.items()]
    print(table(("memory", "elements", "bits of one"), rows))
    print(f"{config.multipliers} multipliers, {config.on_chip_bytes} bytes on chip")
