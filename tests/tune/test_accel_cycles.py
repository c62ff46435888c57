"""The cycle model of the accelerator: cycles in one go are those one by one; its table is what instructions say."""

from __future__ import annotations

import numpy as np
import pytest

from tests.accel.tiled_product import TiledProduct
from tilewright import te
from tilewright.accel.config import AccelConfig, Memory
from tilewright.accel.encoding import encode
from tilewright.accel.instructions import Epi, Gemm, Load, Store
from tilewright.accel.kernel import AccelKernel, from_text
from tilewright.backends.device import device_kernels, device_source
from tilewright.lower.schedules import schedule_kernel
from tilewright.support.errors import UserError
from tilewright.target import Target
from tilewright.topi.accel import Windows, conv2d
from tilewright.topi.fixed_point import Requantization
from tilewright.topi.schedule.choices import Choices
from tilewright.tune.accel_cycles import cycles, cycles_of_code
from tilewright.tune.accel_table import COLUMNS, instruction_table

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


def test_rows_of_the_table_are_what_instructions_say() -> None:
    config = AccelConfig.from_text(SMALL)
    made = layer(config, 8, 64, 3, 1, 2)
    program = made.at([0, 1 << 12, 1 << 13, 1 << 14], 1 << 15)
    data = made.micro_op_bytes()

    def read(address: int, count: int) -> bytes:
        begin = address - (1 << 15)
        return data[begin : begin + count].ljust(count, b"\0")

    table = instruction_table(encode(program, config), config, read)
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in table.tolist()]
    words = {memory: config.dma_bytes[memory] // config.bus_bytes for memory in Memory}
    for item, row in zip(program, rows, strict=True):
        assert row["unit"] == item.unit
        assert [row[name] for name in ("pop_prev", "pop_next", "push_prev", "push_next")] == [
            item.pop_prev,
            item.pop_next,
            item.push_prev,
            item.push_next,
        ]
        if isinstance(item, Epi):
            assert (row["steps"], row["inner"]) == (item.outer * item.inner, item.inner)
            assert (row["acc"], row["acc_outer"], row["acc_inner"]) == (item.acc, item.acc_outer, item.acc_inner)
        elif isinstance(item, Gemm):
            assert row["steps"] == item.outer * item.inner * (item.uop_end - item.uop_begin)
            assert row["lower"] in (0, row["steps"]), "each thread has a bank of its own"
        elif isinstance(item, (Load, Store)):
            assert row["words"] == item.x_size * item.y_size * words[item.memory]
    assert {row["lower"] > 0 for row in rows if row["steps"] and row["unit"] == 1} == {True, False}
    padded = [row for item, row in zip(program, rows, strict=True) if isinstance(item, Load) and item.x_before]
    assert padded and all(row["gap"] == 2 and row["rows"] > 1 for row in padded)
