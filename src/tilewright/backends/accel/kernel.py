"""From a lowered kernel to a program: instructions with tokens, micro-ops, and what is patched at launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from tilewright.accel.checker import Fault, described, find_faults
from tilewright.accel.config import AccelConfig, Memory
from tilewright.accel.instructions import Alu, Gemm, Instruction, Load, MicroOp
from tilewright.accel.kernel import MICRO_OPS, AccelKernel
from tilewright.backends.accel.emit import emit_steps
from tilewright.backends.accel.order import in_good_order
from tilewright.backends.accel.steps import Step
from tilewright.backends.accel.tokens import with_tokens
from tilewright.support.errors import CompilerBug, UnsupportedError
from tilewright.tir.buffer import Buffer
from tilewright.tir.function import PrimFunc
from tilewright.tir.passes.split_host_device import buffer_bytes

_ALIGNMENT = 64


_TOGETHER: Final = (0, 64, 32, 16, 8, 4, 2, 1)
"""Steps after which units wait for each other, where queues are too small for as many tokens as would be best."""


def make_kernel(func: PrimFunc, config: AccelConfig) -> AccelKernel:
    """The program of a lowered kernel."""
    return kernel_of_steps(func, emit_steps(func, config), config)


def kernel_of_steps(func: PrimFunc, emitted: Sequence[Step], config: AccelConfig) -> AccelKernel:
    """The program of the steps of a kernel: it is proved to end, and that no two units of it race."""
    steps, micro_ops = with_micro_ops(in_good_order(emitted, config), config)
    for together in _TOGETHER:
        ordered = with_tokens(steps, config, together)
        relocations = tuple((number, step.argument) for number, step in enumerate(ordered) if step.argument is not None)
        instructions = tuple(step.instruction for step in ordered)
        kernel = AccelKernel(func.name, config, instructions, micro_ops, relocations)
        program, faults = _faults(kernel, func)
        if not all(fault.by_room for fault in faults):
            raise CompilerBug(
                f"the program of {func.name} is not right: {described(faults, program, _labels(ordered))}"
            )
        if not faults:
            return kernel
    raise CompilerBug(f"no order of tokens has room in the queues: {described(faults, program, _labels(ordered))}")


def _labels(steps: Sequence[Step]) -> list[str]:
    """Where in the schedule's loops each instruction comes from."""
    return [", ".join(f"{name} = {value}" for name, value in step.loops) for step in steps]


def _faults(kernel: AccelKernel, func: PrimFunc) -> tuple[tuple[Instruction, ...], list[Fault]]:
    """What is wrong with the program as it is with its arguments one after another; and that program."""
    data = kernel.micro_op_bytes()
    address, places = _aligned(len(data)), []
    for param in func.params:
        places.append(address)
        address += _aligned((buffer_bytes(param) or 0) if isinstance(param, Buffer) else 0)

    def read(start: int, size: int) -> bytes:
        return data[start : start + size].ljust(size, b"\0")

    program = kernel.at(places, 0)
    return program, find_faults(program, kernel.config, read)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def with_micro_ops(steps: Sequence[Step], config: AccelConfig) -> tuple[list[Step], tuple[MicroOp, ...]]:
    """The steps with ranges of UOP memory, and with LOADs of the micro-ops in it; and all micro-ops, once each.

    What fits is loaded in one piece before the first of them is used; kernels beyond that take the place of the
    oldest ones.
    """
    cache = _MicroOpCache(config)
    result: list[Step] = []
    for step in steps:
        if step.micro_ops:
            base, load = cache.place(step.micro_ops)
            if load is not None:
                result.append(load)
            instruction = step.instruction
            assert isinstance(instruction, (Gemm, Alu))
            moved = replace(instruction, uop_begin=instruction.uop_begin + base, uop_end=instruction.uop_end + base)
            step = replace(step, instruction=moved)
        result.append(step)
    return _loaded_at_once(result, cache.loads), tuple(cache.table)


def _loaded_at_once(steps: list[Step], count: int) -> list[Step]:
    """The first LOAD of micro-ops takes those with it that follow before any had to give way: `count` in all."""
    loads = [n for n, step in enumerate(steps) if step.argument == MICRO_OPS][:count]
    if not loads:
        return steps
    first, last = steps[loads[0]].instruction, steps[loads[-1]].instruction
    assert isinstance(first, Load) and isinstance(last, Load)
    whole = replace(steps[loads[0]], instruction=replace(first, x_size=last.dram + last.x_size - first.dram))
    dropped = set(loads[1:])
    return [whole if n == loads[0] else step for n, step in enumerate(steps) if n not in dropped]


class _MicroOpCache:
    """Which micro-op kernels UOP memory holds, and where they lie in DRAM."""

    def __init__(self, config: AccelConfig) -> None:
        self._unit = config.dma_elements[Memory.UOP]
        self._depth = config.depth[Memory.UOP]
        self._addresses: dict[tuple[MicroOp, ...], int] = {}
        self._resident: dict[tuple[MicroOp, ...], int] = {}
        self._next = 0
        self._wrapped = False
        self.table: list[MicroOp] = []
        self.loads = 0
        """LOADs before any kernel gives way: they fill the memory as the table goes on."""

    def place(self, kernel: tuple[MicroOp, ...]) -> tuple[int, Step | None]:
        """Where a kernel is in UOP memory, with the LOAD that brings it there if it is not there yet."""
        if kernel in self._resident:
            return self._resident[kernel], None
        size = -(-len(kernel) // self._unit) * self._unit
        if size > self._depth:
            raise UnsupportedError(f"an instruction needs {size} micro-ops, the machine holds {self._depth}")
        if kernel not in self._addresses:
            self._addresses[kernel] = len(self.table)
            self.table += [*kernel, *([MicroOp()] * (size - len(kernel)))]
        if self._next + size > self._depth:
            self._next, self._wrapped = 0, True
        base = self._next
        self._next += size
        for other, at in list(self._resident.items()):
            if at < base + size and base < at + len(other):
                del self._resident[other]
        self._resident[kernel] = base
        words = size // self._unit
        dram = self._addresses[kernel] // self._unit
        self.loads += not self._wrapped
        load = Load(memory=Memory.UOP, sram=base, dram=dram, y_size=1, x_size=words)
        return base, Step(load, argument=MICRO_OPS)
