"""Random layers, compiled for random accelerators by random schedules: the checker passes every stream.

    python -m tests.fuzz.accel_compiled --count 210

The compiler proves each stream that it makes. Here it is proved again with its arguments elsewhere in DRAM, and every
sixteenth one runs on the functional simulator, against the operator's reference. Of each lowered layer there are more
streams, for processors with other queues. A layer that the compiler refuses (it does not fit on the processor) is
counted, and must be a refusal with a reason.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Final

import numpy as np

from tests.backends.accel_layers import SMALL, Layer, random_layer, target_of
from tests.fuzz import pieces
from tilewright.accel.checker import find_faults
from tilewright.accel.config import AccelConfig
from tilewright.accel.functional import FunctionalMachine
from tilewright.accel.kernel import AccelKernel
from tilewright.accel.program import Program
from tilewright.backends.accel.kernel import make_kernel
from tilewright.backends.device import device_kernels
from tilewright.lower.schedules import schedule_kernel
from tilewright.support.errors import CompilerBug, UnsupportedError, UserError
from tilewright.tir.function import PrimFunc
from tilewright.topi.schedule.choices import Answer, Choices, Question

_WIDE: Final = replace(SMALL, block_in=8, block_out=8, bus_bytes=8, acc_bytes=2048, out_bytes=512, wgt_bytes=4096)
SUBJECTS: Final = {
    "small": SMALL,
    "wide": _WIDE,
    "rows": replace(SMALL, batch=2, inp_bytes=1024, acc_bytes=2048, out_bytes=512),
    "tall": replace(SMALL, block_out=8, acc_bytes=2048, out_bytes=512, wgt_bytes=2048),
    "few_tokens": replace(SMALL, token_queue=2, command_queue=3),
    "few_micro_ops": replace(SMALL, uop_bytes=64),
    "roomy": replace(_WIDE, inp_bytes=4096, wgt_bytes=16384, acc_bytes=8192, out_bytes=2048, uop_bytes=4096),
    "little": replace(SMALL, inp_bytes=128, wgt_bytes=256, acc_bytes=256, out_bytes=64, par_entries=2),
    "fast_bus": replace(_WIDE, bus_bytes=4, memory_latency=200, token_queue=1),
    "default": AccelConfig(),
}
"""Memories, blocks, queues and buses that schedules have to fit."""
OTHER_QUEUES: Final = 4
"""Streams of each layer for processors with other queues."""
_PAGE: Final = 4096


def compiled(layer: Layer, config: AccelConfig, seed: int) -> AccelKernel:
    """A layer by a schedule that a seed chooses."""
    return make_kernel(lowered(layer, config, seed), config)


def lowered(layer: Layer, config: AccelConfig, seed: int) -> PrimFunc:
    """A layer by such a schedule, before it becomes instructions."""
    random = np.random.default_rng(seed)

    def answer(question: Question) -> Answer:
        return question.options[int(random.integers(len(question.options)))]

    target = target_of(config)
    scheduled = schedule_kernel(layer.program(config), target, Choices(answer=answer))
    (kernel,) = device_kernels(scheduled.func, target).kernels
    return kernel.func


def placed(kernel: AccelKernel, arrays: list[np.ndarray], random: np.random.Generator) -> Program:
    """The kernel with its arguments in DRAM, in any order; the last one has the results."""
    parts = [*(array.tobytes() for array in arrays), kernel.micro_op_bytes()]
    places = [0] * len(parts)
    address = 0
    for number in random.permutation(len(parts)):
        places[number] = address
        address += -(-len(parts[number]) // _PAGE) * _PAGE
    segments = dict(zip(places, parts, strict=True))
    result = places[len(arrays) - 1], arrays[-1].nbytes
    return Program(kernel.config, kernel.at(places[:-1], places[-1]), segments, (result,))


def layer_of(seed: int) -> Layer:
    """A small layer of any kind, of a few tiles; every eighth one is larger."""
    layer = random_layer(seed)
    if seed % 8 == 0:
        return layer
    height, width = (min(size, kernel + 2) for size, kernel in zip(layer.size, layer.kernel, strict=True))
    return replace(layer, n=1, size=(height, width))


def run_layer(config: AccelConfig, seed: int, tally: pieces.Tally) -> str | None:
    """Compile one layer; what is wrong, or None."""
    layer, random = layer_of(seed), np.random.default_rng(seed)
    try:
        func = lowered(layer, config, seed)
        kernel = make_kernel(func, config)
        for _ in range(OTHER_QUEUES):
            queues = {"command_queue": int(random.integers(2, 65)), "token_queue": int(2 ** random.integers(7))}
            more = make_kernel(func, replace(config, **queues))
            tally.counts.update(streams=1, instructions=len(more.instructions))
    except (UnsupportedError, UserError):
        tally.counts["refused"] += 1
        return None
    except CompilerBug as error:
        return f"{layer}: {error}"
    arrays = layer.arrays(config, seed)
    program = placed(kernel, arrays, random)
    tally.counts.update(streams=1, layers=1, instructions=len(program.instructions))
    for fault in find_faults(program.instructions, config, program.read):
        return f"{layer}: the checker has a false alarm: {fault.message}"
    if seed % 16 == 0:
        _, (data,) = program.run_on(FunctionalMachine(config, program.dram_bytes))
        tally.counts["executed"] += 1
        if not np.array_equal(np.frombuffer(data, np.int8).reshape(arrays[-1].shape), layer.expected(arrays)):
            return f"{layer}: results differ from the operator's reference"
    return None


def work(piece: pieces.Piece) -> pieces.Tally:
    """Layers for one configuration."""
    tally = pieces.Tally()
    for seed in piece.seeds:
        wrong = run_layer(SUBJECTS[piece.subject], seed, tally)
        if wrong is not None:
            tally.failures.append(f"seed {seed}: {wrong}")
    return tally


if __name__ == "__main__":
    places = ("accel", "backends/accel", "topi/schedule/accel", "tir")
    sys.exit(pieces.run(pieces.parser(__doc__, 210, list(SUBJECTS), "layers").parse_args(), work, places))
