"""What the processors of a kind can do, as passes and schedules ask for it: they never ask which kind it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MOST_STEPS: Final = 65_535
"""Steps that threads of such drivers take: Mesa's llvmpipe counts so far."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the processors of a kind can do. A text is the feature that the target must have for it; None: no target.

    Most are about kernels of blocks of threads; those of a CPU kind are the defaults.
    """

    processor_levels: bool = False
    """Whether one library may have code for several processors, of which the best runs."""
    warp_shuffles: bool = False
    """Whether the threads of a warp read each other's registers by an instruction."""
    async_copies: bool = False
    """Whether copies to shared memory run on while their thread computes, and it can wait for them."""
    shared_reuse: bool = False
    """Whether shared buffers are places in one array, so that buffers of different live ranges share bytes."""
    static_shared_bytes: int | None = None
    """Shared memory that a kernel may declare; beyond it the launch has to ask. None: all of the target's."""
    clusters: str | None = None
    """Blocks that work together and read each other's shared memory."""
    dependent_launch: str | None = None
    """Kernels that wait for those before them themselves, and so may be started before these are done."""
    dot4: str | None = None
    """An instruction that multiplies four signed bytes with four and adds the products to a sum."""
    run_dots: str | None = None
    """Functions that add dot products of whole runs of signed bytes to sums (`tir.machine.RUN_DOTS`)."""
    tensor_cores: str | None = None
    """Matrix products of half-precision operands by the registers of a warp."""
    byte_tensor_cores: str | None = None
    """The same of 8-bit integers."""
    float8_products: str | None = None
    """The same of 8-bit floats."""
    warp_group_products: str | None = None
    """Matrix products of four warps, with operands in shared memory."""
    precisions: frozenset[str] = frozenset()
    """Precisions of float32 products beside float32 itself, which are features that a request adds: `tf32`."""
    least_shared_bytes: int = 1
    """The smallest element of shared memory that threads can store without touching its neighbours."""
    expanded_mathematics: frozenset[str] | None = frozenset()
    """Functions that become arithmetic because the device has none, or none that is precise. None: all."""
    half_mathematics: frozenset[str] = frozenset()
    """Functions that take fewer steps with the digits of half precision (`ir.intrinsics.HALF_FUNCTIONS`)."""
    double_steps: bool = False
    """Whether expanded mathematics may compute in float64 where float32 is too coarse."""
    flat_memory: bool = False
    """Whether a place inside memory is memory like any other: models then live in one block of it."""
    memory_line: int = 64
    """Bytes that pieces of one block of memory begin at a multiple of: what memory is read by."""
    overlapping_parameters: bool = False
    """Whether a kernel may be given the same memory twice, to read and to write: state is then written in place."""
    software: str | None = None
    """A processor that plays a GPU: the threads of a block take turns, and meet at barriers slowly."""
    written_out: bool = False
    """Whether its language cannot ask for loops to be unrolled: those over registers are written out."""
    little_memory: bool = False
    """Whether memory is shorter than time: operands of products stay as small in it as they are."""
    most_buffers: int | None = None
    """Buffers that a kernel may read and write in all, wherever the kind runs; None: as many as there are."""
    horizontal_buffers: int | None = None
    """Buffers that a launch may have which does the work of several kernels; None: each kernel has its own launches."""
    barriers_in_branches: bool = False
    """Whether the threads of a block may meet inside a condition that all of them fulfil: compilers of CPUs fail."""
    few_steps: str | None = None
    """A driver that ends the loops of a thread after `MOST_STEPS` steps in all, whatever they still had to do."""
    counted_cycles: bool = False
    """Whether its time is counted in cycles, by a model of its control, and not measured."""
    block_layers: bool = False
    """Whether it computes layers of bytes in blocks of channels, with results in fixed point (`accel.conv2d`)."""
