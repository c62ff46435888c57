"""The tensor processor's back end: layers on it are bit for bit what the interpreter and CPUs compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tests.backends.accel_layers import SMALL, Layer, random_layer, target_of
from tilewright.accel.config import AccelConfig
from tilewright.accel.instructions import Epi, Gemm, Load, Unit
from tilewright.accel.kernel import AccelKernel, from_text, to_text
from tilewright.backends.accel import kernel as accel_kernel
from tilewright.backends.accel.driver import AccelDevice, accel_device
from tilewright.backends.accel.lowering import accel_pipeline
from tilewright.backends.accel.steps import Step
from tilewright.backends.accel.tokens import with_tokens
from tilewright.lower.schedules import schedule_kernel
from tilewright.support.errors import CompilerBug, UnsupportedError, UserError
from tilewright.target import Target
from tilewright.tir.interpreter import interpret
from tilewright.tir.script import parse_script, to_script
from tilewright.topi.schedule.choices import Choices

WIDE = replace(SMALL, block_in=8, block_out=8, bus_bytes=8, acc_bytes=2048, out_bytes=512, wgt_bytes=4096)
ROWS = replace(SMALL, batch=2, inp_bytes=1024, acc_bytes=2048, out_bytes=512)


def _run(layer: Layer, config: AccelConfig, threads: int = 2, seed: int = 0) -> tuple[AccelKernel, np.ndarray]:
    scheduled = schedule_kernel(layer.program(config), target_of(config), Choices({"threads": threads}))
    module = tw.build(scheduled.func, target=target_of(config))
    arrays = layer.arrays(config, seed)
    module(*arrays)
    (kernel,) = from_text(module.source)
    return kernel, arrays[-1]


@pytest.mark.parametrize("seed", range(24))
def test_layers_are_exact(seed: int) -> None:
    layer, config = random_layer(seed), (SMALL, WIDE, ROWS)[seed % 3]
    _, result = _run(layer, config, threads=1 + seed % 2, seed=seed)
    np.testing.assert_array_equal(result, layer.expected(layer.arrays(config, seed)))


def test_a_stream_that_is_not_right_names_instructions_and_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof of every compilation: a token less, and the two instructions that race are named with their loops."""

    def without_one(steps: Sequence[Step], config: AccelConfig, together: int = 0) -> list[Step]:
        items = with_tokens(steps, config, together)
        givers = [n for n, step in enumerate(items) if step.instruction.push_prev and step.unit is Unit.COMPUTE]
        takers = [n for n, step in enumerate(items) if step.instruction.pop_next and step.unit is Unit.LOAD]
        for place, bit in ((givers[0], "push_prev"), (takers[0], "pop_next")):
            items[place] = replace(items[place], instruction=replace(items[place].instruction, **{bit: False}))
        return items

    monkeypatch.setattr(accel_kernel, "with_tokens", without_one)
    layer = Layer((8, 8), ci=2, co=2, kernel=(3, 3))
    scheduled = schedule_kernel(layer.program(SMALL), target_of(SMALL))
    with pytest.raises(
        CompilerBug, match=r"two units race for (INP|WGT)\n +\d+: .*\((\w+ = \d+, )*\w+ = \d+\)\n +\d+: .*= \d"
    ):
        tw.build(scheduled.func, target=target_of(SMALL))


@pytest.mark.parametrize(("tokens", "commands"), [(1, 2), (1, 64), (3, 2), (64, 3)])
def test_queues_of_any_depth(tokens: int, commands: int) -> None:
    """Units that would give more tokens than a queue holds wait for each other; with room they do not."""
    layer = Layer((6, 6), ci=3, co=3, kernel=(3, 3), residual=True)
    config = replace(SMALL, token_queue=tokens, command_queue=commands)
    kernel, result = _run(layer, config)
    np.testing.assert_array_equal(result, layer.expected(layer.arrays(config)))
    free, _ = _run(layer, SMALL)
    given = [sum(item.push_prev + item.push_next for item in items.instructions) for items in (kernel, free)]
    assert given[0] >= given[1]


@pytest.mark.parametrize("seed", [3, 5, 8])
def test_every_stage_computes_the_same(seed: int) -> None:
    layer = random_layer(seed)
    program = layer.program(SMALL)
    on_cpu = layer.arrays(SMALL, seed)
    tw.build(program, target="llvm")(*on_cpu)
    np.testing.assert_array_equal(on_cpu[-1], layer.expected(layer.arrays(SMALL, seed)))
    func = schedule_kernel(program, target_of(SMALL)).func
    for item in (None, *accel_pipeline(target_of(SMALL)).passes):
        func = func if item is None else item(func)  # type: ignore[assignment]
        again = parse_script(to_script(func))
        assert to_script(again) == to_script(func)
        arrays = layer.arrays(SMALL, seed)
        shaped = [array.reshape(buffer.static_shape or ()) for array, buffer in zip(arrays, func.buffers, strict=True)]
        interpret(again, *shaped)
        np.testing.assert_array_equal(shaped[-1].reshape(arrays[-1].shape), on_cpu[-1], str(item))


def test_tiles_overlap() -> None:
    """Two virtual threads: products of one run while the other's operands are loaded, in banks of their own."""
    layer = Layer((8, 8), ci=2, co=2, kernel=(3, 3), padding=(1, 1, 1, 1))
    kernel, _ = _run(layer, SMALL)
    products = [item for item in kernel.instructions if isinstance(item, Gemm)]
    half = SMALL.acc_bytes // 16 // 2
    banks = [kernel.micro_ops[item.uop_begin].acc >= half for item in products]
    assert set(banks) == {False, True}


def test_sums_begin_by_overwriting() -> None:
    kernel, _ = _run(Layer((4, 4), ci=3, co=1), SMALL)
    assert not any(isinstance(item, Gemm) and item.reset for item in kernel.instructions)


def test_rows_that_no_window_reads_are_not_loaded() -> None:
    config = AccelConfig()
    kernel, _ = _run(Layer((8, 8), strides=(2, 2)), config)
    loads = [item for item in kernel.instructions if isinstance(item, Load) and item.memory.name == "INP"]
    assert sum(load.y_size * load.x_size for load in loads) <= 4 * 8


def test_epi_runs_over_whole_tiles() -> None:
    kernel, _ = _run(Layer((4, 4), co=2), AccelConfig())
    epis = [item for item in kernel.instructions if isinstance(item, Epi)]
    assert sum(item.outer * item.inner for item in epis) == 32 and len(epis) <= 8


def test_text_of_kernels_is_read_back() -> None:
    kernel, _ = _run(random_layer(9), SMALL)
    assert from_text(to_text([kernel])) == [kernel]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("load inp", "is in no kernel"),
        ("kernel k\nload inp", "does not begin with its configuration"),
        ("kernel k\nconfig default\njump", "there is no instruction 'jump'"),
        ("kernel k\nconfig default\nload inp color=3", "is no field of Load"),
        ("kernel k\nconfig default\nload nowhere", "there is no 'nowhere' for memory"),
        ("kernel k\nconfig default\nload inp sram=x", "'x' in 'load inp sram=x' is no number"),
        ("kernel k\nconfig default\nload inp @y", "is no argument"),
        ("kernel k\nconfig block_in\nfinish", "is no name with a whole number"),
    ],
)
def test_text_that_is_no_kernel(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        from_text(text)


def test_targets() -> None:
    assert str(Target("accel")) == "accel -config=default"
    target = Target("accel -config=block_out:32")
    assert Target(str(target)) == target and AccelConfig.from_text(target.arch).block_out == 32
    with pytest.raises(UserError, match="no 'size' in a configuration"):
        Target("accel -config=size:3")
    with pytest.raises(UserError, match="no power of two"):
        Target("accel -config=block_in:3")


def test_targets_name_files(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "wide.json"
    path.write_text('{"block_out": 32}')
    assert Target(f"accel -config={path}").arch == "block_out:32"
    with pytest.raises(UserError, match="cannot read the configuration"):
        Target(f"accel -config={tmp_path / 'none.json'}")


def test_what_has_no_schedule_is_refused() -> None:
    a = tw.te.placeholder((16,), "float32", name="A")
    func = tw.te.create_prim_func([a, tw.te.compute((16,), lambda i: a[i] * 2.0)])
    with pytest.raises(UnsupportedError, match="no instruction for what is stored to"):
        tw.build(func, target="accel")


def test_memory_is_given_back_and_grows() -> None:
    device = AccelDevice("a test's", accel_device()._make)
    first = device.allocate(100)
    kept = device.upload(np.arange(1000, dtype=np.int32))
    address = first.address
    del first
    assert device.allocate(64).address == address
    large = device.allocate(80 << 20)
    assert large.address + large.size <= device._machine.dram_bytes
    result = np.zeros(1000, np.int32)
    device.download(kept, result)
    np.testing.assert_array_equal(result, np.arange(1000))
    assert device.view(kept, 4, 8) is None
    device.read(kept, 64 * 4, part := np.zeros(3, np.int32))
    np.testing.assert_array_equal(part, [64, 65, 66])
