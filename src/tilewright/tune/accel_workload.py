"""What an accelerator is to run, as programs for any configuration: layers that were named, or those of a model.

56x56x64-64x3*4, 56x56x64-128x1/2        height x width x channels - channels of results x kernel [/ stride] [* uses]
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tilewright import te
from tilewright.accel.config import PARAMETER_WORDS, AccelConfig
from tilewright.accel.kernel import AccelKernel
from tilewright.backends.accel.kernel import make_kernel
from tilewright.backends.device import device_kernels
from tilewright.compiler import Compilation
from tilewright.lower.schedules import schedule_kernel
from tilewright.request import ModelLike
from tilewright.support.errors import UserError
from tilewright.target import Target
from tilewright.tir.function import PrimFunc
from tilewright.topi.accel import Windows, conv2d
from tilewright.topi.fixed_point import Requantization
from tilewright.topi.schedule.choices import Answer, Choices
from tilewright.tune.accel_cycles import Cycles, cycles_of_code
from tilewright.tune.task import extract_tasks

_LAYER: Final = re.compile(r"(\d+)x(\d+)x(\d+)-(\d+)x(\d+)(?:/(\d+))?(?:\*(\d+))?")
_ALIGNMENT: Final = 64


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One convolution of a square window, and how often it runs."""

    height: int
    width: int
    inputs: int
    outputs: int
    kernel: int
    stride: int = 1
    uses: int = 1

    @classmethod
    def parse(cls, text: str) -> LayerShape:
        """The layer that a text such as 56x56x64-128x3/2*4 names."""
        found = _LAYER.fullmatch(text.strip())
        numbers = [int(number) if number else 1 for number in found.groups()] if found is not None else [0]
        if not all(numbers):
            raise UserError(
                f"'{text.strip()}' is no layer",
                hint="height x width x channels - channels of results x kernel / stride * uses: 56x56x64-128x3/2*4",
            )
        return cls(*numbers)

    def __str__(self) -> str:
        """The text that `parse` takes."""
        sizes = f"{self.height}x{self.width}x{self.inputs}-{self.outputs}x{self.kernel}"
        return f"{sizes}/{self.stride}*{self.uses}"

    def program(self, config: AccelConfig) -> PrimFunc:
        """The layer in blocks of channels of a configuration."""
        ci, co = -(-self.inputs // config.block_in), -(-self.outputs // config.block_out)
        data = te.placeholder((1, ci, self.height, self.width, config.batch, config.block_in), "int8", name="data")
        window = (self.kernel, self.kernel)
        weight = te.placeholder((co, ci, *window, config.block_out, config.block_in), "int8", name="weight")
        parameters = te.placeholder((co, PARAMETER_WORDS, config.block_out), "int32", name="parameters")
        windows = Windows((self.stride, self.stride), (self.kernel // 2,) * 4)
        result = conv2d(data, weight, parameters, None, windows, Requantization())
        return te.create_prim_func([data, weight, parameters, result], "layer")


@dataclass(frozen=True, slots=True)
class Part:
    """A program of a workload: its name, its unscheduled form, how often it runs."""

    name: str
    func: PrimFunc
    uses: int = 1


class Workload:
    """Programs that depend on a configuration only by its blocks."""

    def __init__(self, programs: Callable[[AccelConfig], list[Part]]) -> None:
        self._programs = programs
        self._known: dict[tuple[int, int, int], list[Part]] = {}

    @classmethod
    def of_layers(cls, text: str) -> Workload:
        """Layers that are named by a text, with commas between them."""
        layers = {item.strip(): LayerShape.parse(item) for item in text.split(",")}
        return cls(lambda config: [Part(name, layer.program(config), layer.uses) for name, layer in layers.items()])

    @classmethod
    def of_model(cls, model: ModelLike) -> Workload:
        """The layers of a quantised model that an accelerator runs."""

        def programs(config: AccelConfig) -> list[Part]:
            tasks = extract_tasks(Compilation(model, target_of(config)).lowered)
            if not tasks:
                raise UserError(
                    "no layer of this model runs on the accelerator",
                    hint='quantise it with arithmetic="fixed_point" first',
                )
            return [Part(f"{task.label} {task.sizes}", task.kernel.func, task.uses) for task in tasks]

        return cls(programs)

    def programs(self, config: AccelConfig) -> list[Part]:
        """The programs for the blocks of a configuration."""
        key = (config.batch, config.block_in, config.block_out)
        if key not in self._known:
            self._known[key] = self._programs(config)
        return self._known[key]


def target_of(config: AccelConfig) -> Target:
    """The target of a configuration."""
    return Target(f"accel -config={config.to_text()}")


def compiled(func: PrimFunc, config: AccelConfig, answers: dict[str, Answer]) -> AccelKernel:
    """A program, scheduled by some answers and compiled."""
    target = target_of(config)
    scheduled = schedule_kernel(func, target, Choices(answers))
    (kernel,) = device_kernels(scheduled.func, target).kernels
    return make_kernel(kernel.func, config)


def counted(kernel: AccelKernel) -> Cycles:
    """What a kernel takes, by the cycle model: where its arguments lie makes no difference."""
    micro_ops = kernel.micro_op_bytes()
    begin = -(-len(micro_ops) // _ALIGNMENT) * _ALIGNMENT
    arguments = max((number for _, number in kernel.relocations), default=-1) + 1

    def read(address: int, size: int) -> bytes:
        return micro_ops[address : address + size].ljust(size, b"\0")

    return cycles_of_code(kernel.encoded([begin] * arguments, 0), kernel.config, read)
