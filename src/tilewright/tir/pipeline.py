"""Lowering as one readable list per target family: from a scheduled function to what a code generator takes."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.support import trace
from tilewright.support.errors import UnsupportedError
from tilewright.target.target import Target
from tilewright.tir.function import PrimFunc
from tilewright.tir.passes.compact_buffers import compact_buffers
from tilewright.tir.passes.flatten_buffers import flatten_buffers
from tilewright.tir.passes.legalize_types import legalize_types
from tilewright.tir.passes.lower_blocks import lower_blocks
from tilewright.tir.passes.lower_intrinsics import lower_intrinsics
from tilewright.tir.passes.lower_threads import lower_threads
from tilewright.tir.passes.partition_loops import partition_loops
from tilewright.tir.passes.plan_storage import plan_storage
from tilewright.tir.passes.simplify_loops import simplify_loops
from tilewright.tir.passes.unroll_loops import unroll_loops
from tilewright.tir.passes.vectorize_loops import vectorize_loops

Pass = Callable[[PrimFunc], PrimFunc]
"""A pass: from a function to a function that computes the same."""


def cpu_pipeline(target: Target) -> list[tuple[str, Pass]]:
    """The passes for a CPU, in order, each with its name."""
    return [
        ("lower_blocks", lower_blocks),
        ("lower_threads", lower_threads),
        ("simplify", simplify_loops),
        ("compact_buffers", compact_buffers),
        ("partition_loops", partition_loops),
        ("flatten_buffers", flatten_buffers),
        ("vectorize_loops", vectorize_loops),
        ("unroll_loops", unroll_loops),
        ("simplify_again", simplify_loops),
        ("plan_storage", plan_storage),
        ("legalize_types", lambda func: legalize_types(func, has_half=target.has_fp16)),
        ("lower_intrinsics", lower_intrinsics),
    ]


def lower(func: PrimFunc, target: Target) -> PrimFunc:
    """A scheduled function lowered for a target, ready for its code generator."""
    if not target.is_cpu:
        raise UnsupportedError(f"there is no lowering for the target kind {target.kind!r} yet")
    for name, function in cpu_pipeline(target):
        with trace.span(f"pass:{name}"):
            func = function(func)
    return func
