"""Modules in training mode, and graphs of training steps in two: the forward pass and the backward pass.

Torch's partitioner decides what is saved for the backward pass and what it computes again: cheap elementwise work.
Images are saved in the order in which compiled convolutions have them, channels last, so that neither pass rearranges
them.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

STORAGE_ORDER = "tilewright_storage_order"
"""The key, in what an fx node says of itself, of the order of axes in which its value is stored."""
_CHANNELS_LAST = [0, 2, 3, 1]


@contextmanager
def in_training_mode(module: Any) -> Iterator[None]:
    """A module in training mode; one that is in it already keeps parts that are not (frozen normalisations)."""
    if module.training:
        yield
        return
    modes = {part: part.training for part in module.modules()}
    module.train()
    try:
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode


def split_for_training(joint: Any, inputs: Any, *, num_fwd_outputs: int, **others: Any) -> tuple[Any, Any]:
    """The partition function that `aot_autograd` calls with the graph of both passes."""
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    forward, backward = min_cut_rematerialization_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs, **others)
    nodes = list(forward.graph.nodes)
    outputs = nodes[-1].args[0]
    seen_by_user = set(filter(_is_node, outputs[:num_fwd_outputs]))
    images = _images(nodes)
    saved = {item.name for item in outputs[num_fwd_outputs:] if item in images and item not in seen_by_user}
    for node in nodes:
        if node.name in saved:
            node.meta[STORAGE_ORDER] = _CHANNELS_LAST
    for node in backward.graph.nodes:
        if node.op == "placeholder" and node.name in saved:
            node.meta[STORAGE_ORDER] = _CHANNELS_LAST
    return forward, backward


def _is_node(item: Any) -> bool:
    import torch

    return isinstance(item, torch.fx.Node)


def _images(nodes: list[Any]) -> set[Any]:
    """The nodes whose values come from convolutions through operators on images: those of four axes, views aside."""
    import torch

    images: set[Any] = set()
    for node in nodes:
        if node.op != "call_function":
            continue
        is_operator = isinstance(node.target, torch._ops.OpOverload)
        if not is_operator and node.target is not operator.getitem:
            continue
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.dim() != 4:
            continue
        if is_operator and node.target.is_view:
            continue
        is_convolution = is_operator and node.target is torch.ops.aten.convolution.default
        if is_convolution or any(source in images for source in node.all_input_nodes):
            images.add(node)
    return images
