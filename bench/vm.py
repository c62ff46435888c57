"""What the virtual machine costs: `python -m bench.vm`.

Nanoseconds of one instruction that only moves a reference, of a call and return, of the call of a native segment (one
kernel on one element), and of a whole call of a model as a program against the same model as a static entry. CPU time
of the calling thread, the least of many repeats. Prints a table, writes JSON into `bench/results/`, ends with one line
of JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

import tilewright as tw
from bench import harness
from tilewright.backends.llvm import deploy
from tilewright.graph.ir.expr import Call, Function, GlobalVar, If, Var, constant
from tilewright.graph.ir.op import call
from tilewright.graph.ops import host  # noqa: F401  (registers all operators)
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type
from tilewright.runtime.core.executor import Executable
from tilewright.runtime.vm.codec import encode
from tilewright.runtime.vm.program import Instruction, Opcode, Program, VmFunction
from tilewright.runtime.vm.types import Kind, ValueType
from tilewright.support.text import table

_LENGTH = 1000
"""Instructions, calls or turns of a loop in one run."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    harness.say(harness.machine_line())
    results = measure(options.repeat)
    print(table(["what", "ns"], [[name.replace("_", " "), f"{value:.0f}"] for name, value in results.items()]))
    summary = {"vm_ns": results, "machine": harness.machine()}
    harness.write_json(options.json or harness.RESULTS_FOLDER / "vm.json", summary)
    print(json.dumps(summary))
    return 0


def measure(repeat: int) -> dict[str, float]:
    """All figures, in nanoseconds."""
    x = np.ones(1, np.float32)
    static, program = _tiny_models()
    moves = tuple((Opcode.MOVE, 1 - n % 2, n % 2) for n in range(_LENGTH))
    calls = tuple((Opcode.CALL, 0, 1, (0,)) for _ in range(_LENGTH))
    ends: tuple[Instruction, ...] = ((Opcode.RETURN, 0),)
    empty = _least(_handmade(program, ends), x, repeat)
    loop = tw.compile(_loop(), threads=1)
    whole_static, whole_program = _least(static, x, repeat), _least(program, x, repeat)
    return {
        "instruction": (_least(_handmade(program, moves + ends), x, repeat) - empty) / _LENGTH,
        "call_and_return": (_least(_handmade(program, calls + ends), x, repeat) - empty) / _LENGTH,
        "loop_turn_of_two_segments": (_least(loop, x, repeat) - empty) / _LENGTH,
        "whole_call_static": whole_static,
        "whole_call_program": whole_program,
        "segment_call": whole_program - empty,
    }


def _least(run: Callable[[object], object], x: object, repeat: int) -> float:
    """The least CPU nanoseconds of a call."""
    best = float("inf")
    run(x)
    for _ in range(repeat):
        start = time.thread_time_ns()
        for _ in range(10):
            run(x)
        best = min(best, (time.thread_time_ns() - start) / 10)
    return best


def _tiny_models() -> tuple[Executable, Executable]:
    """x + 1 for one element: as a static entry, and as a program that calls it as a segment."""
    x, y = (Var(name, tensor_type((1,), "float32")) for name in ("x", "y"))
    one = constant(np.ones(1, np.float32))
    static = tw.compile(IRModule([Function("main", (x,), call("add", x, one))]), threads=1)
    step = Function("step", (y,), call("add", y, one))
    program = tw.compile(IRModule([Function("main", (x,), Call(GlobalVar("step"), (x,))), step]), threads=1)
    return static, program


def _handmade(model: Executable, code: tuple[Instruction, ...]) -> Executable:
    """A program of these instructions, with a function 1 that gives its argument back."""
    main_function = VmFunction("main", 0, 1, 0, 2, 0, ((Opcode.MOVE, 1, 0), *code))
    same = VmFunction("same", 0, 1, 0, 1, 0, ((Opcode.RETURN, 0),))
    made = Program((main_function, same), inputs=(ValueType(Kind.TENSOR, "float32", (1,)),))
    info = replace(model.model, program=b64encode(encode(made)).decode())
    return deploy.executable(replace(model.artifact, model=info), 1)


def _loop() -> IRModule:
    """A loop of 1000 turns: the test, and a kernel with the counter."""
    i, s, x = (Var(*pair) for pair in (("i", tensor_type((), "int64")), ("s", _ONE), ("x", _ONE)))
    again = Call(GlobalVar("loop"), (call("add", i, constant(np.int64(1))), call("add", s, s)))
    body = If(call("less", i, constant(np.int64(_LENGTH))), again, s)
    start = Call(GlobalVar("loop"), (constant(np.int64(0)), x))
    return IRModule([Function("main", (x,), start), Function("loop", (i, s), body, _ONE)])


_ONE = tensor_type((1,), "float32")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.vm", description=__doc__)
    parser.add_argument("--repeat", type=int, default=50, metavar="N", help="repeats of each figure (default: 50)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    return parser


if __name__ == "__main__":
    sys.exit(main())
