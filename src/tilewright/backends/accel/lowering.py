"""The lowering list of the tensor processor: from a scheduled function to a kernel of instruction calls."""

from __future__ import annotations

from functools import partial

from tilewright.accel.config import AccelConfig, Memory
from tilewright.backends.accel.copies import CopiesOptions, copies_to_dma
from tilewright.backends.accel.emit import MEMORIES
from tilewright.backends.accel.fold_loops import fold_loops
from tilewright.backends.accel.residuals import residuals_in_place
from tilewright.ir.expr import ONE
from tilewright.ir.passes import Exit, Pipeline, function_pass
from tilewright.support.errors import UnsupportedError
from tilewright.target.target import Target
from tilewright.tir.accel_instructions import ACC, SCOPES
from tilewright.tir.buffer import Buffer
from tilewright.tir.function import PrimFunc, constant_buffers
from tilewright.tir.passes.compact_buffers import compact_buffers
from tilewright.tir.passes.flatten_buffers import flatten_buffers
from tilewright.tir.passes.inject_virtual_threads import VirtualThreadsOptions, inject_virtual_threads
from tilewright.tir.passes.lower_blocks import lower_blocks
from tilewright.tir.passes.lower_tensor_intrinsics import lower_tensor_intrinsics
from tilewright.tir.passes.simplify_loops import simplify_loops
from tilewright.tir.passes.split_host_device import DeviceKernel, SplitFunction, split_text
from tilewright.tir.rewrite.statements import all_statements
from tilewright.tir.stmt import Allocate

CONFIG = "accel_config"
"""The attribute of a kernel that holds the configuration it is for."""


def accel_pipeline(target: Target) -> Pipeline:
    """The passes for the tensor processor, in order; in the end the function is one kernel."""
    config = AccelConfig.from_text(target.arch)
    lanes = {scope: config.element_bits[memory] // _element_bits(config, memory) for scope, memory in MEMORIES.items()}
    bank = config.depth[Memory.ACC] // 2 * lanes[ACC]
    return Pipeline(
        "accel",
        [
            function_pass("lower_tensor_intrinsics")(lower_tensor_intrinsics),
            function_pass("lower_blocks", leaves="blocks_lowered")(lower_blocks),
            function_pass("simplify")(simplify_loops),
            function_pass("compact_buffers")(compact_buffers),
            function_pass("residuals_in_place")(residuals_in_place),
            function_pass("inject_virtual_threads")(inject_virtual_threads).with_options(
                VirtualThreadsOptions(whole_nests=True, distances=((ACC, bank),))
            ),
            function_pass("flatten_buffers", requires="blocks_lowered", leaves="flattened")(flatten_buffers),
            function_pass("simplify_again")(simplify_loops),
            function_pass("fold_loops")(fold_loops),
            function_pass("copies_to_dma")(copies_to_dma).with_options(CopiesOptions(tuple(lanes.items()))),
        ],
        ends_with=Exit("one_kernel", partial(one_kernel, config=config), split_text),
    )


def _element_bits(config: AccelConfig, memory: Memory) -> int:
    bits = {
        Memory.INP: config.inp_bits,
        Memory.WGT: config.wgt_bits,
        Memory.ACC: config.acc_bits,
        Memory.OUT: config.out_bits,
    }
    return bits.get(memory, 32)


def one_kernel(func: PrimFunc, config: AccelConfig) -> SplitFunction:
    """A lowered function as a kernel that is launched once."""
    for item in all_statements(func.body):
        if isinstance(item, Allocate) and item.buffer.scope not in SCOPES:
            raise UnsupportedError(
                f"{item.buffer.name} is in no memory of the accelerator", where=f"function {func.name}"
            )
    name = "".join(c if c.isascii() and c.isalnum() else "_" for c in func.name)
    kernel = func.replace(name=f"{name}_kernel0", attributes={**func.attributes, CONFIG: config.to_text()})
    buffers = frozenset(param for param in func.params if isinstance(param, Buffer))
    single = DeviceKernel(kernel, (ONE, ONE, ONE), (1, 1, 1), {}, (), buffers, constants=constant_buffers(func))
    return SplitFunction(func, (single,), (), ((0, ()),))
