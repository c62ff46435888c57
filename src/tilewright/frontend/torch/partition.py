"""Graphs in parts: what is compiled, and operators between them that torch runs itself."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

PART = "compiled_"
"""How the modules of compiled parts are called."""


def partitioned(graph: Any, refused: Collection[Any]) -> Any:
    """A graph whose runs of nodes that can be compiled are modules of their own, each of which gives a tuple.

    Views alone are no work for a kernel: a part of nothing else stays where it is.
    """
    from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
    from torch.fx.passes.operator_support import create_op_support
    from torch.fx.passes.utils.fuser_utils import fuse_by_partitions

    names = {node.name for node in refused}

    def is_compiled(submodules: Any, node: Any) -> bool:
        return node.op == "call_function" and node.name not in names

    parted = copy.deepcopy(graph)
    support = create_op_support(is_compiled)
    proposed = CapabilityBasedPartitioner(parted, support, allows_single_node_partition=True).propose_partitions()
    worthwhile = [part.nodes for part in proposed if any(_computes(node) for node in part.nodes)]
    fuse_by_partitions(parted, worthwhile, prefix=PART, always_return_tuple=True)
    parted.recompile()
    return parted


def _computes(node: Any) -> bool:
    """Whether a node does more than look at a tensor, or at a size, in another way."""
    import torch

    target: Any = node.target
    if isinstance(target, torch._ops.OpOverload):
        return not target.is_view and "sym_" not in str(target)
    return isinstance(target, torch._ops.OperatorBase)
