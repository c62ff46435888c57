"""Operators of torch's registry that gradients are taken apart into, where torch's own need more than we do.

Torch saves the places of maxima and the sums of attention for the backward pass. These operators compute them again
from what is saved anyway, so that the forward pass does not give them. Torch can run them too, by its own operators: a
part of a graph that falls back to torch still has them.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

NAMESPACE = "tilewright"

_SCHEMAS = {
    f"max_pool{rank}d_gradient": f"(Tensor grad_output, Tensor self, int[{rank}] kernel_size, int[{rank}] stride, "
    f"int[{rank}] padding, int[{rank}] dilation, bool ceil_mode) -> Tensor"
    for rank in (2, 3)
}
_SCHEMAS["attention_gradient"] = (
    "(Tensor grad_output, Tensor query, Tensor key, Tensor value, Tensor output, Tensor? attn_mask, bool is_causal, "
    "float? scale) -> (Tensor, Tensor, Tensor)"
)


@cache
def gradient_operators() -> Any:
    """The operators, as `torch.ops` has them; made when they are first asked for."""
    import torch

    # The library must live as long as its operators.
    declare: Any = torch.library.Library
    library = declare(NAMESPACE, "FRAGMENT")
    for name, schema in _SCHEMAS.items():
        library.define(name + schema)
    for rank in (2, 3):
        library.impl(f"max_pool{rank}d_gradient", _max_pool_gradient(rank), "CompositeExplicitAutograd")
        library.impl(f"max_pool{rank}d_gradient", _like_the_data, "Meta")
    library.impl("attention_gradient", _attention_gradient, "CompositeExplicitAutograd")
    library.impl("attention_gradient", _like_the_operands, "Meta")
    gradient_operators.library = library  # type: ignore[attr-defined]
    return torch.ops.tilewright


def _max_pool_gradient(rank: int) -> Any:
    import torch

    pool = getattr(torch.ops.aten, f"max_pool{rank}d_with_indices")
    backward = getattr(torch.ops.aten, f"max_pool{rank}d_with_indices_backward")

    def run(grad_output: Any, x: Any, *how: Any) -> Any:
        places = pool(x, *how)[1]
        return backward(grad_output, x, *how, places)

    return run


def _like_the_data(grad_output: Any, x: Any, *_: Any) -> Any:
    return x.new_empty(x.shape)


def _attention_gradient(
    grad_output: Any, query: Any, key: Any, value: Any, output: Any, mask: Any, is_causal: bool, scale: float | None
) -> Any:
    import torch

    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = query @ key.transpose(-1, -2) * factor
    if is_causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).tril().logical_not(), -math.inf)
    if mask is not None:
        scores = scores.masked_fill(mask.logical_not(), -math.inf) if mask.dtype == torch.bool else scores + mask
    weights = torch.ops.aten._safe_softmax(scores, -1)
    of_weights = grad_output @ value.transpose(-1, -2)
    total = (grad_output * output).sum(-1, keepdim=True)
    of_scores = weights * (of_weights - total) * factor
    return of_scores @ key, of_scores.transpose(-1, -2) @ query, weights.transpose(-1, -2) @ grad_output


def _like_the_operands(grad_output: Any, query: Any, key: Any, value: Any, *_: Any) -> Any:
    import torch

    return tuple(torch.empty_like(item) for item in (query, key, value))
