"""Lowering as one readable list per family of targets: from a scheduled function to what a code generator takes."""

from __future__ import annotations

from functools import partial

import tilewright.tir.script  # noqa: F401  (dumps and overrides of stages need the text of this level)
from tilewright.ir.passes import Exit, Pipeline, function_pass
from tilewright.target.target import Target
from tilewright.tir.analysis.frames import FRAME_BYTES
from tilewright.tir.passes.align_storage import align_storage
from tilewright.tir.passes.bind_threads import BindThreadsOptions, bind_threads
from tilewright.tir.passes.compact_buffers import CompactBuffersOptions, compact_buffers
from tilewright.tir.passes.flatten_buffers import flatten_buffers
from tilewright.tir.passes.hoist_guards import hoist_guards
from tilewright.tir.passes.inject_virtual_threads import inject_virtual_threads
from tilewright.tir.passes.keep_in_place import keep_in_place
from tilewright.tir.passes.legalize_small_types import SmallTypesOptions, legalize_small_types
from tilewright.tir.passes.legalize_types import LegalizeTypesOptions, legalize_types
from tilewright.tir.passes.limit_steps import LimitStepsOptions, limit_steps
from tilewright.tir.passes.lower_blocks import lower_blocks
from tilewright.tir.passes.lower_intrinsics import LowerIntrinsicsOptions, lower_intrinsics
from tilewright.tir.passes.lower_tensor_intrinsics import lower_tensor_intrinsics
from tilewright.tir.passes.lower_thread_reductions import ThreadReductionOptions, lower_thread_reductions
from tilewright.tir.passes.lower_threads import lower_threads
from tilewright.tir.passes.lower_words import LowerWordsOptions, lower_words
from tilewright.tir.passes.nest_guards import nest_guards
from tilewright.tir.passes.partition_loops import partition_loops
from tilewright.tir.passes.pipeline_loops import PipelineLoopsOptions, pipeline_loops
from tilewright.tir.passes.plan_storage import plan_storage
from tilewright.tir.passes.read_scalars_first import read_scalars_first
from tilewright.tir.passes.reuse_shared_memory import reuse_shared_memory
from tilewright.tir.passes.roll_epilogues import roll_epilogues
from tilewright.tir.passes.scratch_parameters import ScratchOptions, scratch_parameters
from tilewright.tir.passes.serialize_loops import serialize_loops
from tilewright.tir.passes.shorten_loops import shorten_loops
from tilewright.tir.passes.simplify_loops import simplify_loops
from tilewright.tir.passes.specialize_warps import specialize_warps
from tilewright.tir.passes.split_host_device import split_host_device, split_text
from tilewright.tir.passes.swizzle_storage import swizzle_storage
from tilewright.tir.passes.unroll_loops import UnrollLoopsOptions, unroll_loops
from tilewright.tir.passes.vectorize_loops import vectorize_loops
from tilewright.tir.passes.widen_loops import widen_loops
from tilewright.tir.passes.zigzag_loops import zigzag_loops

_WRITTEN_OUT = 256
"""Statements of a loop over registers that is written out for languages that cannot ask for it."""
_SHORT_TEXT = 64
"""Statements of other loops that are written out for them: drivers take long for long texts, and users load these."""
_CONVERTED_FLOATS = frozenset({"float8_e4m3fn", "float8_e5m2"})
"""The small floats that processors with products of 8-bit floats convert."""


def cpu_pipeline(
    target: Target, *, planned: bool = False, threads: bool = True, frame_bytes: int = FRAME_BYTES
) -> Pipeline:
    """The passes for a CPU, in order; with `planned`, for callers that plan memory: they give scratch memory.

    `threads` says whether there are any; `frame_bytes` is what buffers of a kernel may take of the stack.
    """
    scratch = function_pass("scratch_parameters")(scratch_parameters)
    return Pipeline(
        "cpu",
        [
            function_pass("lower_tensor_intrinsics")(lower_tensor_intrinsics),
            function_pass("lower_blocks", leaves="blocks_lowered")(lower_blocks),
            *([] if threads else [function_pass("serialize_loops")(serialize_loops)]),
            function_pass("widen_loops")(widen_loops),
            function_pass("pipeline_loops")(pipeline_loops),
            function_pass("inject_virtual_threads")(inject_virtual_threads),
            function_pass("lower_threads")(lower_threads),
            function_pass("simplify")(simplify_loops),
            function_pass("compact_buffers")(compact_buffers),
            function_pass("partition_loops")(partition_loops),
            function_pass("roll_epilogues")(roll_epilogues),
            function_pass("zigzag_loops")(zigzag_loops),
            function_pass("align_storage")(align_storage),
            function_pass("flatten_buffers", requires="blocks_lowered", leaves="flattened")(flatten_buffers),
            function_pass("vectorize_loops", requires="flattened", leaves="vectorized")(vectorize_loops),
            function_pass("unroll_loops", requires="vectorized", leaves="cpu_ready")(unroll_loops),
            function_pass("simplify_again")(simplify_loops),
            function_pass("hoist_guards")(hoist_guards),
            function_pass("nest_guards")(nest_guards),
            function_pass("shorten_loops")(shorten_loops),
            function_pass("plan_storage")(plan_storage),
            function_pass("legalize_small_types")(legalize_small_types),
            function_pass("legalize_types")(legalize_types).with_options(
                LegalizeTypesOptions(has_half=target.has_fp16)
            ),
            function_pass("lower_words")(lower_words).with_options(
                LowerWordsOptions(has_dot4=target.has_dot4, reads_words=target.has_dot4)
            ),
            function_pass("lower_intrinsics", requires="cpu_ready")(lower_intrinsics).with_options(
                LowerIntrinsicsOptions(
                    has_scale=target.has_feature("avx512f"), has_rounded_products=target.has_rounded_products
                )
            ),
            function_pass("keep_in_place")(keep_in_place),
            *([scratch.with_options(ScratchOptions(frame_bytes))] if planned else []),
        ],
    )


def gpu_pipeline(target: Target) -> Pipeline:
    """The passes for a device with blocks of threads, in order; in the end the function splits in kernels."""
    can = target.capabilities
    return Pipeline(
        "gpu",
        [
            function_pass("lower_tensor_intrinsics")(lower_tensor_intrinsics),
            function_pass("lower_thread_reductions")(lower_thread_reductions).with_options(
                ThreadReductionOptions(warp_size=target.shuffle_width)
            ),
            function_pass("lower_blocks", leaves="blocks_lowered")(lower_blocks),
            function_pass("widen_loops")(widen_loops),
            function_pass("pipeline_loops")(pipeline_loops).with_options(PipelineLoopsOptions(can.async_copies)),
            function_pass("inject_virtual_threads")(inject_virtual_threads),
            function_pass("simplify")(simplify_loops),
            function_pass("compact_buffers")(compact_buffers),
            function_pass("zigzag_loops")(zigzag_loops),
            function_pass("limit_steps")(limit_steps).with_options(LimitStepsOptions(target.most_steps)),
            function_pass("bind_threads")(bind_threads).with_options(
                BindThreadsOptions(max_threads=target.max_threads)
            ),
            function_pass("specialize_warps")(specialize_warps),
            function_pass("simplify_kernels")(simplify_loops),
            function_pass("compact_private_buffers")(compact_buffers).with_options(
                CompactBuffersOptions(keep=("global",))
            ),
            function_pass("align_storage")(align_storage),
            function_pass("flatten_buffers", requires="blocks_lowered", leaves="flattened")(flatten_buffers),
            function_pass("vectorize_loops", requires="flattened", leaves="vectorized")(vectorize_loops),
            function_pass("swizzle_storage", requires="vectorized")(swizzle_storage),
            function_pass("hoist_guards")(hoist_guards),
            function_pass("zigzag_loops")(zigzag_loops),
            function_pass("unroll_loops", requires="vectorized")(unroll_loops).with_options(
                UnrollLoopsOptions(copied=True, register_statements=_WRITTEN_OUT, most_statements=_SHORT_TEXT)
                if can.written_out
                else UnrollLoopsOptions(copied=False)
            ),
            function_pass("simplify_again")(simplify_loops),
            *([function_pass("reuse_shared_memory")(reuse_shared_memory)] if can.shared_reuse else []),
            function_pass("legalize_small_types")(legalize_small_types).with_options(
                SmallTypesOptions(_CONVERTED_FLOATS if target.has_float8_products else frozenset())
            ),
            function_pass("legalize_types")(legalize_types).with_options(
                LegalizeTypesOptions(has_half=False, keeps_precision=True, half_functions=can.half_mathematics)
            ),
            function_pass("lower_words")(lower_words).with_options(
                LowerWordsOptions(has_dot4=target.has_dot4, reads_words=True)
            ),
            function_pass("lower_intrinsics")(lower_intrinsics).with_options(
                LowerIntrinsicsOptions(can.expanded_mathematics, has_double=can.double_steps)
            ),
            *([function_pass("read_scalars_first")(read_scalars_first)] if target.has_dependent_launch else []),
            function_pass("keep_in_place")(keep_in_place),
        ],
        ends_with=Exit("split_host_device", partial(split_host_device, target=target), split_text),
    )
