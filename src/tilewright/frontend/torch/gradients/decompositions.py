"""Backward operators that torch has no decomposition for, or one that is of no use here, in terms of others.

What they save less of than torch's own is said in `operators.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.frontend.torch.gradients.operators import gradient_operators


def gradient_decompositions() -> dict[Any, Callable[..., Any]]:
    """The table, by operators of torch."""
    import torch

    aten: Any = torch.ops.aten
    ours = gradient_operators()
    return {
        aten.max_pool2d_with_indices_backward.default: _max_pool_backward(ours.max_pool2d_gradient),
        aten.max_pool3d_with_indices_backward.default: _max_pool_backward(ours.max_pool3d_gradient),
        aten.adaptive_max_pool2d_backward.default: _adaptive_max_pool_backward(2),
        aten.adaptive_max_pool3d_backward.default: _adaptive_max_pool_backward(3),
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _attention_backward,
        aten.log_sigmoid_backward.default: _log_sigmoid_backward,
        aten.replication_pad1d_backward.default: _replication_pad_backward,
        aten.replication_pad2d_backward.default: _replication_pad_backward,
        aten.replication_pad3d_backward.default: _replication_pad_backward,
        aten._weight_norm_interface_backward.default: _weight_norm_backward,
        aten._cdist_backward.default: _cdist_backward,
    }


def _max_pool_backward(gradient: Any) -> Callable[..., Any]:
    def decompose(
        grad_output: Any,
        self: Any,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        ceil_mode: bool,
        indices: Any,
    ) -> Any:
        return gradient(grad_output, self, kernel_size, stride, padding, dilation, ceil_mode)

    return decompose


def _adaptive_max_pool_backward(rank: int) -> Callable[..., Any]:
    def decompose(grad_output: Any, self: Any, indices: Any) -> Any:
        flat = self.new_zeros(self.shape).flatten(-rank)
        return flat.scatter_add(-1, indices.flatten(-rank), grad_output.flatten(-rank)).view(self.shape)

    return decompose


def _attention_backward(
    grad_out: Any,
    query: Any,
    key: Any,
    value: Any,
    out: Any,
    logsumexp: Any,
    dropout_p: float,
    is_causal: bool,
    attn_mask: Any = None,
    scale: float | None = None,
) -> Any:
    """Attention on CPUs, which never drops anything: torch takes dropout apart."""
    if dropout_p:
        return NotImplemented
    return gradient_operators().attention_gradient(grad_out, query, key, value, out, attn_mask, is_causal, scale)


def _log_sigmoid_backward(grad_output: Any, self: Any, buffer: Any) -> Any:
    """Without the buffer, which is not the same on every device."""
    return grad_output * (-self).sigmoid()


def _replication_pad_backward(grad_output: Any, self: Any, padding: Sequence[int]) -> Any:
    """Each edge takes what was copied from it."""
    import torch

    result = grad_output
    for place in range(len(padding) // 2):
        axis = grad_output.dim() - 1 - place
        before, after, size = padding[2 * place], padding[2 * place + 1], self.shape[axis]
        if before < 0 or after < 0:
            more = [0, 0] * place + [max(0, -before), max(0, -after)]
            result = torch.nn.functional.pad(result, more)
        before, after = max(0, before), max(0, after)
        if size == 1:
            result = result.sum(axis, keepdim=True)
            continue
        first = result.narrow(axis, 0, before + 1).sum(axis, keepdim=True)
        last = result.narrow(axis, before + size - 1, after + 1).sum(axis, keepdim=True)
        result = torch.cat([first, result.narrow(axis, before + 1, size - 2), last], axis)
    return result


def _weight_norm_backward(grad_w: Any, saved_v: Any, saved_g: Any, saved_norms: Any, dim: int) -> Any:
    """Of direction and length, which a weight is the product of."""
    others = [axis for axis in range(saved_v.dim()) if axis != dim % saved_v.dim()]
    norms = saved_norms.to(saved_g.dtype)
    along = (grad_w * saved_v).sum(others, keepdim=True)
    direction = (saved_g / norms) * (grad_w - saved_v * (along / (norms * norms)))
    return direction, along / norms


def _cdist_backward(grad: Any, x1: Any, x2: Any, p: float, cdist: Any) -> Any:
    """Of distances between rows, for the first of them; 0 where the distance is 0."""
    import torch

    between = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    distance, weight = cdist.unsqueeze(-1), grad.unsqueeze(-1)
    if p == 0:
        return torch.zeros_like(x1)
    if p == 1:
        share = between.sign()
    elif math.isinf(p):
        share = between.sign() * (between.abs() == distance)
    elif p == 2:
        share = between / distance
    else:
        share = between.sign() * (between.abs() / distance) ** (p - 1)
    if p not in (1, math.inf):
        share = torch.where(distance == 0, torch.zeros_like(share), share)
    return (weight * share).sum(-2)
