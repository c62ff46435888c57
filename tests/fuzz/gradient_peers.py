"""What graph operators are in torch and in JAX, for comparing gradients: functions of (arrays, attributes of the call).

Operators that a framework has no function for are written with those that it has (`spelled_peers.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.fuzz.spelled_peers import Framework, Peer, spelled_peers
from tilewright.graph.ops.attention import AttentionAttributes

_SAME = (
    "exp expm1 sin cos sinh cosh tan tanh log log1p sqrt abs maximum minimum add subtract multiply divide fmod"
).split()
"""Names that both frameworks have."""


def torch_peers() -> dict[str, Peer]:
    """The operators in torch."""
    import torch
    import torch.nn.functional as F

    peers: dict[str, Peer] = {name: getattr(torch, name) for name in _SAME}
    own = "negative acos acosh asin asinh atan atanh erf sigmoid rsqrt reciprocal where"
    peers |= {name: getattr(torch, name) for name in own.split()}
    peers |= {"power": torch.pow, "floor_mod": torch.remainder}
    peers |= {"nn.relu": F.relu, "nn.selu": F.selu, "nn.softplus": F.softplus}
    peers["nn.leaky_relu"] = lambda x, alpha=0.01: F.leaky_relu(x, alpha)
    peers["nn.elu"] = lambda x, alpha=1.0: F.elu(x, alpha)
    peers["nn.gelu"] = lambda x, approximate=False: F.gelu(x, approximate="tanh" if approximate else "none")
    peers["nn.hard_sigmoid"] = lambda x, alpha=0.2, beta=0.5: (alpha * x + beta).clamp(0, 1)
    peers["nn.prelu"] = lambda x, slope: torch.where(x > 0, x, slope * x)
    peers["clip"] = lambda x, minimum=None, maximum=None: x.clamp(minimum, maximum)
    peers["sum"] = lambda x, axes, keepdims=False: x.sum(axes, keepdim=keepdims)
    peers["mean"] = lambda x, axes, keepdims=False: x.mean(axes, keepdim=keepdims)
    peers["max"] = lambda x, axes, keepdims=False: x.amax(axes, keepdim=keepdims)
    peers["min"] = lambda x, axes, keepdims=False: x.amin(axes, keepdim=keepdims)
    peers["nn.softmax"] = lambda x, axis: torch.softmax(x, axis)
    peers["nn.log_softmax"] = lambda x, axis: torch.log_softmax(x, axis)
    peers["reshape"] = lambda x, shape: x.reshape(shape)
    peers["transpose"] = lambda x, axes: x.permute(axes)
    peers["concatenate"] = lambda *x, axis: torch.cat(x, axis)
    peers["tile"] = lambda x, repeats: x.tile(repeats)
    peers["matmul"] = _matmul(torch.matmul, lambda x: x.transpose(-1, -2))
    peers["nn.layer_norm"] = _layer_norm(lambda x, axes: x.mean(axes, keepdim=True), torch.rsqrt)
    peers["nn.batch_norm"] = _batch_norm(torch.rsqrt)
    peers["nn.attention"] = _attention(torch.softmax, torch.where, torch.einsum, torch.as_tensor)
    peers["nn.conv2d"] = _torch_conv2d(torch)
    peers["prod"] = lambda x, axes, keepdims=False: _torch_product(x, axes, keepdims)
    peers["segment_sum"] = lambda x, segments, count, inside=False: (
        x.new_zeros((count + 1, *x.shape[1:])).index_add(0, segments.where(segments >= 0, count).clamp(max=count), x)
    )[:count]
    return peers | spelled_peers(_torch_framework(peers["nn.conv2d"]))


def jax_peers() -> dict[str, Peer]:
    """The operators in JAX."""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    peers: dict[str, Peer] = {name: getattr(jnp, name) for name in _SAME}
    own = "negative arccos:acos arccosh:acosh arcsin:asin arcsinh:asinh arctan:atan arctanh:atanh reciprocal where"
    for pair in own.split():
        theirs, _, ours = pair.partition(":")
        peers[ours or theirs] = getattr(jnp, theirs)
    peers |= {"power": jnp.power, "floor_mod": jnp.remainder, "erf": jax.lax.erf, "rsqrt": jax.lax.rsqrt}
    peers |= {"sigmoid": jax.nn.sigmoid, "nn.relu": jax.nn.relu, "nn.selu": jax.nn.selu}
    peers["nn.softplus"] = jax.nn.softplus
    peers["nn.leaky_relu"] = lambda x, alpha=0.01: jax.nn.leaky_relu(x, alpha)
    peers["nn.elu"] = lambda x, alpha=1.0: jax.nn.elu(x, alpha)
    peers["nn.gelu"] = lambda x, approximate=False: jax.nn.gelu(x, approximate=approximate)
    peers["nn.hard_sigmoid"] = lambda x, alpha=0.2, beta=0.5: jnp.clip(alpha * x + beta, 0, 1)
    peers["nn.prelu"] = lambda x, slope: jnp.where(x > 0, x, slope * x)
    peers["clip"] = lambda x, minimum=None, maximum=None: jnp.clip(x, minimum, maximum)
    for name in ("sum", "mean", "max", "min", "prod"):
        reduced = getattr(jnp, name)
        peers[name] = lambda x, axes, keepdims=False, reduced=reduced: reduced(x, axis=axes, keepdims=keepdims)
    peers["nn.softmax"] = lambda x, axis: jax.nn.softmax(x, axis)
    peers["nn.log_softmax"] = lambda x, axis: jax.nn.log_softmax(x, axis)
    peers["reshape"] = lambda x, shape: x.reshape(shape)
    peers["transpose"] = lambda x, axes: x.transpose(axes)
    peers["concatenate"] = lambda *x, axis: jnp.concatenate(x, axis)
    peers["tile"] = lambda x, repeats: jnp.tile(x, repeats)
    peers["segment_sum"] = lambda x, segments, count, inside=False: (
        jnp.zeros((count, *x.shape[1:])).at[jnp.where(segments < 0, count, segments)].add(x, mode="drop")
    )
    peers["matmul"] = _matmul(jnp.matmul, lambda x: jnp.swapaxes(x, -1, -2))
    peers["nn.layer_norm"] = _layer_norm(lambda x, axes: x.mean(axes, keepdims=True), jax.lax.rsqrt)
    peers["nn.batch_norm"] = _batch_norm(jax.lax.rsqrt)
    peers["nn.attention"] = _attention(jax.nn.softmax, jnp.where, jnp.einsum, jnp.asarray)
    peers["nn.conv2d"] = _jax_conv2d(jax)
    return peers | spelled_peers(_jax_framework(peers["nn.conv2d"]))


def _torch_product(x: Any, axes: Sequence[int], keepdims: bool) -> Any:
    for axis in sorted(axes, reverse=True):
        x = x.prod(axis, keepdim=keepdims)
    return x


def _torch_framework(conv2d: Peer) -> Framework:
    import torch

    def pad(x: Any, widths: Sequence[tuple[int, int]], value: float) -> Any:
        return torch.nn.functional.pad(x, [side for width in reversed(widths) for side in width], value=value)

    def pull_back(function: Peer, where: Any, cotangent: Any) -> Any:
        where = where if where.requires_grad else where.requires_grad_()
        return torch.autograd.grad(function(where), where, cotangent, create_graph=True)[0]

    def top(x: Any, k: int, axis: int, largest: bool) -> Any:
        return torch.topk(x, k, axis, largest).values

    def zeros(shape: Sequence[int]) -> Any:
        return torch.zeros(tuple(shape), dtype=torch.float64)

    return Framework(torch, torch.sigmoid, pad, pull_back, top, zeros, conv2d, torch.permute)


def _jax_framework(conv2d: Peer) -> Framework:
    import jax
    import jax.numpy as jnp

    def pad(x: Any, widths: Sequence[tuple[int, int]], value: float) -> Any:
        return jnp.pad(x, widths, constant_values=value)

    def pull_back(function: Peer, where: Any, cotangent: Any) -> Any:
        return jax.vjp(function, where)[1](cotangent)[0]

    def top(x: Any, k: int, axis: int, largest: bool) -> Any:
        last = jnp.moveaxis(x, axis, -1)
        found = jax.lax.top_k(last, k)[0] if largest else -jax.lax.top_k(-last, k)[0]
        return jnp.moveaxis(found, -1, axis)

    return Framework(jnp, jax.nn.sigmoid, pad, pull_back, top, jnp.zeros, conv2d, jnp.transpose)


def _matmul(product: Peer, turned: Peer) -> Peer:
    def matmul(a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False) -> Any:
        return product(turned(a) if transpose_a else a, turned(b) if transpose_b else b)

    return matmul


def _layer_norm(mean: Peer, rsqrt: Peer) -> Peer:
    def layer_norm(x: Any, scale: Any, bias: Any, axis: int, epsilon: float = 1e-5) -> Any:
        axes = tuple(range(axis, x.ndim))
        centred = x - mean(x, axes)
        return centred * rsqrt(mean(centred * centred, axes) + epsilon) * scale + bias

    return layer_norm


def _batch_norm(rsqrt: Peer) -> Peer:
    def batch_norm(x: Any, *channels: Any, axis: int = 1, epsilon: float = 1e-5) -> Any:
        shape = tuple(size if n == axis else 1 for n, size in enumerate(x.shape))
        scale, bias, mean, variance = (item.reshape(shape) for item in channels)
        return (x - mean) * rsqrt(variance + epsilon) * scale + bias

    return batch_norm


def _attention(softmax: Peer, where: Peer, einsum: Peer, as_array: Peer) -> Peer:
    def attention(q: Any, k: Any, v: Any, mask: Any = None, **given: Any) -> Any:
        own = AttentionAttributes(**given)
        k, v = (
            einsum("bhjd->bjhd", item) if by_head else item
            for item, by_head in ((k, own.keys_by_head), (v, own.values_by_head))
        )
        # Heads of queries share those of keys, some neighbours each.
        heads = as_array(np.arange(q.shape[2]) // (q.shape[2] // k.shape[2]))
        k, v = k[:, :, heads], v[:, :, heads]
        scores = einsum("bihd,bjhd->bhij", q, k) * own.scale
        distance = np.arange(scores.shape[3]) - np.arange(scores.shape[2])[:, None]
        near = as_array((own.first <= distance) & (distance <= own.last))
        if mask is not None and "bool" not in str(mask.dtype):
            scores, mask = scores + mask, None
        seen = near if mask is None else near & mask
        # Rows that see nothing are 0 with a gradient of 0.
        sees = seen.any(-1)[..., None]
        weights = where(sees, softmax(where(seen | ~sees, scores, -1e300), -1), 0.0)
        return einsum("bhij,bjhe->bihe", weights, v)

    return attention


def _torch_conv2d(torch: Any) -> Peer:
    def conv2d(
        x: Any,
        w: Any,
        strides: Any = (1, 1),
        padding: Any = (0, 0, 0, 0),
        dilation: Any = (1, 1),
        groups: int = 1,
        data_layout: str = "NCHW",
        kernel_layout: str = "OIHW",
    ) -> Any:
        last = data_layout == "NHWC"
        image, kernel = (x.permute(0, 3, 1, 2), w.permute(3, 2, 0, 1)) if last else (x, w)
        top, left, bottom, right = padding
        image = torch.nn.functional.pad(image, (left, right, top, bottom))
        found = torch.nn.functional.conv2d(image, kernel, None, strides, 0, dilation, groups)
        return found.permute(0, 2, 3, 1) if last else found

    return conv2d


def _jax_conv2d(jax: Any) -> Peer:
    def conv2d(
        x: Any,
        w: Any,
        strides: Any = (1, 1),
        padding: Any = (0, 0, 0, 0),
        dilation: Any = (1, 1),
        groups: int = 1,
        data_layout: str = "NCHW",
        kernel_layout: str = "OIHW",
    ) -> Any:
        top, left, bottom, right = padding
        return jax.lax.conv_general_dilated(
            x,
            w,
            strides,
            ((top, bottom), (left, right)),
            rhs_dilation=dilation,
            dimension_numbers=(data_layout, kernel_layout, data_layout),
            feature_group_count=groups,
        )

    return conv2d
