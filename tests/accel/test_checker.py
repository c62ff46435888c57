"""The stream checker: sound programs pass, and every lost, added or moved token is found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.accel.configs import CONFIGS
from tests.accel.interleaved import outcome
from tests.accel.mutations import MOVED, mutations
from tests.accel.programs import random_program
from tests.accel.tiled_product import OUT_AT, TiledProduct
from tilewright.accel.checker import check, find_faults
from tilewright.accel.config import AccelConfig, Memory
from tilewright.accel.instructions import Finish, Gemm, Instruction, Load, Store, Unit
from tilewright.support.errors import UserError

CONFIG = AccelConfig()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("tiles", "steps"), [(1, 1), (2, 1), (1, 3), (4, 2), (5, 3)])
def test_sound_programs_pass(tiles: int, steps: int, threads: int) -> None:
    product = TiledProduct(CONFIG, tiles, steps, threads=threads)
    check(product.instructions(), CONFIG, product.read)


def _observed(program: list[Instruction], product: TiledProduct, runs: int = 6) -> set[str | bytes]:
    size = product.tiles * product.rows * CONFIG.dma_bytes[Memory.OUT]
    rng = np.random.default_rng(0)
    return {outcome(program, CONFIG, product.dram(), [(OUT_AT, size)], rng) for _ in range(runs)}


def test_every_flipped_token_is_found() -> None:
    product = TiledProduct(CONFIG, 3, 2)
    for what, program in mutations(product.instructions()):
        if MOVED not in what:
            assert find_faults(program, CONFIG, product.read), what


def test_what_random_orders_show_is_found() -> None:
    """A moved token is found wherever an execution can tell: else all orders give the results that the program had."""
    product = TiledProduct(CONFIG, 4, 2)
    expected = _observed(product.instructions(), product, 20)
    assert len(expected) == 1
    found = passed = 0
    for what, program in mutations(product.instructions()):
        if MOVED not in what:
            continue
        if find_faults(program, CONFIG, product.read):
            found += 1
        else:
            passed += 1
            assert _observed(program, product) == expected, what
    assert found > 20 and passed > 0


def test_random_programs_pass_and_their_mutants_do_not() -> None:
    rng = np.random.default_rng(1)
    flagged = 0
    for _ in range(12):
        config = list(CONFIGS.values())[rng.integers(len(CONFIGS))]
        program = random_program(rng, config)
        assert not find_faults(program.instructions, config, program.read)
        mutants = list(mutations(list(program.instructions)))
        for at in rng.permutation(len(mutants))[:12]:
            what, mutant = mutants[at]
            if find_faults(mutant, config, program.read):
                flagged += 1
                continue
            outcomes = {outcome(mutant, config, program.segments, program.results, rng) for _ in range(4)}
            assert len(outcomes) == 1 and all(isinstance(item, bytes) for item in outcomes), what
    assert flagged > 50


def test_a_race_names_the_two_instructions() -> None:
    product = TiledProduct(CONFIG, 4, 1)
    program = product.instructions()
    # The second thread's loads take the first one's place.
    program = [
        replace(item, sram=0) if isinstance(item, Load) and item.memory is Memory.INP else item for item in program
    ]
    with pytest.raises(
        UserError, match=r"two units race for INP\n +\d+: .*Gemm.*\n +\d+: .*Load|two units race for INP\n +\d+: Load"
    ):
        check(program, CONFIG, product.read)


def test_labels_say_where_instructions_come_from() -> None:
    product = TiledProduct(CONFIG, 1, 1)
    program = product.instructions()
    with pytest.raises(UserError, match=r"waits for ever(?s:.)*\(loop k of C\)"):
        check(
            [replace(item, push_next=False) for item in program], CONFIG, product.read, ["loop k of C"] * len(program)
        )


def test_races_in_dram() -> None:
    product = TiledProduct(CONFIG, 2, 1)
    *program, end = product.instructions()
    late = Load(memory=Memory.INP, sram=512, dram=OUT_AT // CONFIG.bus_bytes, y_size=1, x_size=1, push_next=True)
    # Something computes with what is loaded, so that FINISH comes after it.
    use = Gemm(reset=True, pop_prev=True, push_next=True)
    faults = find_faults([*program, late, use, replace(end, pop_prev=True)], CONFIG, product.read)
    assert [fault.message for fault in faults] == ["two units race for DRAM"]
    first, second = faults[0].instructions
    assert isinstance(program[first], Store) and second == len(program)


def test_a_deadlock_by_full_command_queues() -> None:
    """Loads fill their queue before fetch comes to the product that they wait for."""
    config = replace(CONFIG, command_queue=2)
    loads = [Load(x_size=0, y_size=0, pop_next=number > 0, push_next=True) for number in range(4)]
    products = [Gemm(reset=True, pop_prev=True, push_prev=number < 3, push_next=number == 3) for number in range(4)]
    program = [*loads, *products, Finish(pop_prev=True)]
    assert not find_faults(program, CONFIG, lambda address, size: b"")
    [fault] = find_faults(program, config, lambda address, size: b"")
    assert "fetch stands before instruction 3" in fault.message and fault.instructions == (1,)


def test_token_queues_may_overflow() -> None:
    config = replace(CONFIG, token_queue=2)
    loads = [Load(x_size=0, y_size=0, push_next=True) for _ in range(3)]
    products = [Gemm(reset=True, pop_prev=True, push_next=number == 2) for number in range(3)]
    [fault] = find_faults([*loads, *products, Finish(pop_prev=True)], config, lambda address, size: b"")
    assert fault.message == "there can be 3 tokens load -> compute; the queue holds 2" and fault.instructions == (2,)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ([], "one FINISH, this one 0"),
        ([Finish(), Finish()], "one FINISH, this one 2"),
        ([Finish(pop_prev=True)], "waits for ever: no token compute -> store"),
        ([Gemm(push_next=True), Finish()], "a token compute -> store is never taken"),
        ([Gemm(), Finish()], "may finish before"),
        ([Finish(), Store(y_size=1, x_size=1)], "may finish before"),
        ([Load(pop_prev=True), Finish()], "no unit before it"),
        ([Finish(push_next=True)], "no unit after it"),
        ([Store(sram=2047, x_size=2, y_size=1), Finish()], "OUT has 2048 elements; element 2048 is used"),
        (
            [Gemm(pop_prev=True, push_prev=True), Load(pop_next=True, push_next=True), Finish()],
            "deadlock: load waits for a token compute -> load, compute waits for a token load -> compute",
        ),
    ],
)
def test_what_is_refused(program: list[Instruction], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check(program, CONFIG, lambda address, size: b"")


def test_micro_ops_that_the_program_writes_are_refused() -> None:
    store = Store(sram=0, dram=0, x_size=1, y_size=1, push_prev=True)
    load = Load(memory=Memory.UOP, dram=1, x_size=1, y_size=1, pop_next=True, push_next=True)
    assert load.unit is Unit.COMPUTE
    faults = find_faults([store, load, Finish(pop_prev=True)], CONFIG, lambda address, size: bytes(size))
    assert [fault.message for fault in faults] == ["loads micro-ops from where the program stores"]
