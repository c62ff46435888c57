"""The cycle model of the accelerator: cycles in one go are those one by one (`test_hardware.py` has the hardware's)."""

from __future__ import annotations

import numpy as np
import pytest

from tests.accel.configs import CONFIGS
from tests.accel.programs import random_program
from tests.accel.tiled_product import TiledProduct
from tilewright import te
from tilewright.accel.config import AccelConfig
from tilewright.accel.encoding import encode
from tilewright.accel.kernel import AccelKernel, from_text
from tilewright.backends.device import device_kernels, device_source
from tilewright.lower.schedules import schedule_kernel
from tilewright.support.errors import UserError
from tilewright.target import Target
from tilewright.topi.accel import Windows, conv2d
from tilewright.topi.fixed_point import Requantization
from tilewright.topi.schedule.choices import Choices
from tilewright.tune.accel_cycles import cycles, cycles_of_code

SMALL = "acc_bytes:16384,inp_bytes:8192,wgt_bytes:16384,out_bytes:4096,memory_latency:20"
NARROW = "block_in:8,block_out:8,inp_bytes:4096,wgt_bytes:8192,acc_bytes:8192,out_bytes:4096,command_queue:4"
WIDE = "bus_bytes:16,memory_latency:200,command_queue:8"


def layer(config: AccelConfig, size: int, channels: int, kernel: int, stride: int, threads: int) -> AccelKernel:
    """A compiled convolution."""
    ci, co, pad = channels // config.block_in, channels // config.block_out, kernel // 2
    data = te.placeholder((1, ci, size, size, config.batch, config.block_in), "int8", name="data")
    weight = te.placeholder((co, ci, kernel, kernel, config.block_out, config.block_in), "int8", name="weight")
    parameters = te.placeholder((co, 4, config.block_out), "int32", name="parameters")
    result = conv2d(data, weight, parameters, None, Windows((stride, stride), (pad,) * 4), Requantization())
    target = Target(f"accel -config={config.to_text()}")
    func = te.create_prim_func([data, weight, parameters, result], "layer")
    scheduled = schedule_kernel(func, target, Choices({"threads": threads}))
    (made,) = from_text(device_source(device_kernels(scheduled.func, target).kernels, target))
    return made


@pytest.mark.grid
@pytest.mark.parametrize("text", [SMALL, NARROW, WIDE])
@pytest.mark.parametrize(("size", "kernel", "stride"), [(8, 3, 1), (12, 1, 2)])
@pytest.mark.parametrize("threads", [1, 2])
def test_cycles_in_one_go_are_those_one_by_one(text: str, size: int, kernel: int, stride: int, threads: int) -> None:
    config = AccelConfig.from_text(text)
    made = layer(config, size, 64, kernel, stride, threads)
    data = made.micro_op_bytes()
    code = made.encoded([1 << 20, 1 << 21, 1 << 22, 1 << 23], 0)

    def read(address: int, count: int) -> bytes:
        return data[address : address + count].ljust(count, b"\0")

    for latency in (1, 7, config.memory_latency):
        slowly = cycles_of_code(code, config, read, latency=latency, one_by_one=True)
        assert cycles_of_code(code, config, read, latency=latency) == slowly
        assert cycles(made.at([1 << 20, 1 << 21, 1 << 22, 1 << 23], 0), config, read, latency=latency) == slowly


def test_more_cycles_than_allowed_and_a_wait_without_end_are_errors() -> None:
    config = AccelConfig.from_text(SMALL)
    product = TiledProduct(config, 2, 2, 4, 2)
    program = product.instructions()
    total = cycles(program, config, product.read).total
    with pytest.raises(UserError, match="more than"):
        cycles(program, config, product.read, most_cycles=total // 2)
    first = next(n for n, item in enumerate(program) if item.push_next)
    cut = [item for n, item in enumerate(program) if n != first]
    with pytest.raises(UserError, match="for ever"):
        cycles_of_code(encode(cut, config), config, product.read)


def test_a_program_of_one_instruction_ends() -> None:
    config = AccelConfig()
    program = TiledProduct(config, 2, 2, 4, 2).instructions()[-1:]
    alone = [type(program[0])()]
    assert cycles(alone, config, lambda address, size: bytes(size)).total > config.memory_latency
    assert np.isfinite(cycles(alone, config, lambda address, size: bytes(size)).utilization)


@pytest.mark.parametrize("name", ["tiny", "usual", "fast_bus", "wide_out"])
def test_cycles_of_random_programs_in_one_go_are_those_one_by_one(name: str) -> None:
    config = CONFIGS[name]
    for seed in range(25):
        program = random_program(np.random.default_rng(seed), config)
        code = encode(program.instructions, config)
        latency = (1, 3, 24, 90)[seed % 4]
        slowly = cycles_of_code(code, config, program.read, latency=latency, one_by_one=True)
        assert cycles_of_code(code, config, program.read, latency=latency) == slowly, seed


def test_a_program_that_is_cut_off_or_empty_is_refused() -> None:
    config = AccelConfig()
    with pytest.raises(UserError, match="a program of 20 bytes is cut off"):
        cycles_of_code(bytes(20), config, lambda address, size: bytes(size))
    with pytest.raises(UserError, match="for ever"):
        cycles_of_code(b"", config, lambda address, size: bytes(size))
