"""Single operators of PaddlePaddle for `bench.frontends`: what each computes, and the inputs that it is tried with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

Function = Callable[..., Any]
_RANDOM = np.random.default_rng(0)


def numbers(*shape: int, low: float = -2.0, high: float = 2.0) -> Any:
    """Random float32."""
    return _RANDOM.uniform(low, high, shape).astype(np.float32)


def whole(*shape: int, low: int = 0, high: int = 4, kind: str = "int64") -> Any:
    """Random integers."""
    return _RANDOM.integers(low, high, shape).astype(kind)


def truth(*shape: int) -> Any:
    """Random truth values."""
    return _RANDOM.random(shape) > 0.5


def _unary(paddle: Any) -> Iterator[tuple[str, Function, list[Any]]]:
    functional = paddle.nn.functional
    everywhere = (
        "abs ceil cos cosh exp expm1 floor round sign sin sinh square tan tanh atan asinh erf sigmoid isnan isinf "
        "isfinite neg trunc"
    )
    for name in everywhere.split():
        yield name, getattr(paddle, name), [numbers(3, 4)]
    for name in "log log2 log10 log1p sqrt rsqrt reciprocal lgamma digamma".split()[:7]:
        yield name, getattr(paddle, name), [numbers(3, 4, low=0.1, high=3.0)]
    for name in "acos asin atanh logit".split():
        yield name, getattr(paddle, name), [numbers(3, 4, low=-0.9, high=0.9) * 0.5 + (0.5 if name == "logit" else 0)]
    yield "acosh", paddle.acosh, [numbers(3, 4, low=1.1, high=3.0)]
    activations = (
        "relu relu6 elu selu celu gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu log_sigmoid log_softmax "
        "mish silu softmax softplus softshrink softsign swish tanhshrink thresholded_relu"
    )
    for name in activations.split():
        yield name, getattr(functional, name), [numbers(3, 4) * 3]
    yield "gelu tanh", lambda x: functional.gelu(x, approximate=True), [numbers(3, 4)]
    yield "softplus beta", lambda x: functional.softplus(x, beta=2.0, threshold=3.0), [numbers(3, 4) * 3]
    yield "stanh", paddle.stanh, [numbers(3, 4)]
    yield "softmax axis", lambda x: functional.softmax(x, axis=1), [numbers(2, 3, 4)]
    yield "maxout", lambda x: functional.maxout(x, groups=2, axis=1), [numbers(2, 4, 3, 2)]
    yield "glu", functional.glu, [numbers(2, 4)]
    yield "clip", lambda x: paddle.clip(x, -0.5, 1.0), [numbers(3, 4)]
    yield "scale", lambda x: paddle.scale(x, 2.0, 1.0, bias_after_scale=False), [numbers(3, 4)]
    yield "pow", lambda x: paddle.pow(x, 3.0), [numbers(3, 4)]
    yield "cast", lambda x: paddle.cast(x, "int32"), [numbers(3, 4)]
    yield "logical_not", paddle.logical_not, [truth(3, 4)]
    yield "bitwise_not", paddle.bitwise_not, [whole(3, 4)]
    yield "dropout", lambda x: functional.dropout(x, 0.3, training=False), [numbers(3, 4)]
    yield (
        "dropout old",
        lambda x: functional.dropout(x, 0.3, training=False, mode="downscale_in_infer"),
        [numbers(3, 4)],
    )
    yield "increment", lambda x: paddle.increment(x * 2, 2.0), [numbers(1)]
    yield "nan_to_num", paddle.nan_to_num, [np.float32([1, np.nan, 3])]


def _binary(paddle: Any) -> Iterator[tuple[str, Function, list[Any]]]:
    for name in "add subtract multiply divide maximum minimum fmax fmin atan2 heaviside".split():
        yield name, getattr(paddle, name), [numbers(2, 3, 4), numbers(3, 4)]
    yield "pow tensor", paddle.pow, [numbers(3, 4, low=0.1), numbers(3, 4)]
    for name in "floor_divide mod floor_mod".split():
        yield name, getattr(paddle, name), [whole(3, 4, low=-9, high=9), whole(3, 4, low=1, high=5)]
    yield "mod floats", paddle.mod, [numbers(3, 4), numbers(3, 4, low=0.5)]
    for name in "equal not_equal less_than less_equal greater_than greater_equal".split():
        yield name, getattr(paddle, name), [whole(3, 4), whole(3, 4)]
    for name in "logical_and logical_or logical_xor".split():
        yield name, getattr(paddle, name), [truth(3, 4), truth(3, 4)]
    for name in "bitwise_and bitwise_or bitwise_xor".split():
        yield name, getattr(paddle, name), [whole(3, 4), whole(3, 4)]
    yield "where", paddle.where, [truth(3, 4), numbers(3, 4), numbers(3, 4)]
    yield "matmul", paddle.matmul, [numbers(2, 3, 4), numbers(2, 4, 5)]
    yield "matmul turned", lambda x, y: paddle.matmul(x, y, True, True), [numbers(4, 3), numbers(5, 4)]
    yield "matmul vector", paddle.matmul, [numbers(2, 3, 4), numbers(4)]
    yield "bmm", paddle.bmm, [numbers(2, 3, 4), numbers(2, 4, 5)]
    yield "mv", paddle.mv, [numbers(3, 4), numbers(4)]
    yield "dot", paddle.dot, [numbers(5), numbers(5)]
    yield (
        "addmm",
        lambda a, x, y: paddle.addmm(a, x, y, beta=0.5, alpha=2.0),
        [numbers(3, 5), numbers(3, 4), numbers(4, 5)],
    )
    yield "einsum", lambda x, y: paddle.einsum("bij,bjk->bik", x, y), [numbers(2, 3, 4), numbers(2, 4, 5)]
    yield "kron", paddle.kron, [numbers(2, 3), numbers(3, 2)]
    yield "lerp", paddle.lerp, [numbers(3), numbers(3), numbers(3)]
    yield "add_n", lambda x, y: paddle.add_n([x, y, x]), [numbers(3), numbers(3)]
    yield "isclose", paddle.isclose, [np.float32([1, 2, np.nan]), np.float32([1, 2.1, np.nan])]
    yield "allclose", paddle.allclose, [np.float32([1, 2]), np.float32([1, 2])]
    yield "prelu", lambda x: paddle.nn.functional.prelu(x, paddle.to_tensor([0.25])), [numbers(2, 3, 4)]
    yield "cosine", lambda x, y: paddle.nn.functional.cosine_similarity(x, y, axis=1), [numbers(3, 4), numbers(3, 4)]
    for order in (0.0, 1.0, 2.0, 3.0, float("inf"), float("-inf")):
        yield f"norm {order}", lambda x, order=order: paddle.norm(x, p=order, axis=1), [numbers(3, 4)]
    yield "norm all", lambda x: paddle.norm(x), [numbers(3, 4)]
    yield "normalize", lambda x: paddle.nn.functional.normalize(x, axis=1), [numbers(3, 4)]


def _reductions(paddle: Any) -> Iterator[tuple[str, Function, list[Any]]]:
    for name in "sum mean max min prod amax amin logsumexp".split():
        for axis, keep in ((None, False), (1, True), ([0, 2], False)):
            function = getattr(paddle, name)
            yield f"{name} {axis}", lambda x, f=function, a=axis, k=keep: f(x, axis=a, keepdim=k), [numbers(2, 3, 4)]
    for name in ("all", "any"):
        function = getattr(paddle, name)
        yield name, lambda x, f=function: f(x, axis=1), [truth(3, 4)]
    yield "sum bool", paddle.sum, [truth(3, 4)]
    yield "sum int", lambda x: paddle.sum(x, axis=0), [whole(3, 4, kind="int32")]
    for name in ("argmax", "argmin"):
        function = getattr(paddle, name)
        yield name, lambda x, f=function: f(x, axis=1), [numbers(3, 4)]
        function = getattr(paddle, name)
        yield f"{name} all", lambda x, f=function: f(x, keepdim=True), [numbers(3, 4)]
    yield "topk", lambda x: paddle.topk(x, 2, axis=1), [numbers(3, 5)]
    yield "topk least", lambda x: paddle.topk(x, 3, largest=False), [numbers(3, 5)]
    yield "argsort", lambda x: paddle.argsort(x, axis=0), [numbers(5, 3)]
    yield "sort", lambda x: paddle.sort(x, axis=1, descending=True), [numbers(3, 5)]
    yield "kthvalue", lambda x: paddle.kthvalue(x, 2, axis=1), [numbers(3, 5)]
    yield "cumsum", lambda x: paddle.cumsum(x, axis=1), [numbers(3, 4)]
    yield "cumsum all", paddle.cumsum, [numbers(3, 4)]
    yield "cumprod", lambda x: paddle.cumprod(x, dim=1), [numbers(3, 4)]
    yield "std", paddle.std, [numbers(3, 4)]
    yield "var", lambda x: paddle.var(x, axis=1), [numbers(3, 4)]
    yield "numel", paddle.numel, [numbers(3, 4)]
    yield "unique", lambda x: paddle.unique(x, return_index=True, return_inverse=True, return_counts=True), [whole(9)]


def _shapes(paddle: Any) -> Iterator[tuple[str, Function, list[Any]]]:
    functional = paddle.nn.functional
    x = numbers(2, 3, 4)
    yield "reshape", lambda x: paddle.reshape(x, [0, -1]), [x]
    yield "reshape by data", lambda x: paddle.reshape(x, [x.shape[0], -1, 2]), [x]
    yield "transpose", lambda x: paddle.transpose(x, [2, 0, 1]), [x]
    yield "squeeze", paddle.squeeze, [numbers(1, 3, 1)]
    yield "squeeze axis", lambda x: paddle.squeeze(x, [0, -2]), [numbers(1, 3, 1)]
    yield "unsqueeze", lambda x: paddle.unsqueeze(x, [0, 2]), [numbers(3, 4)]
    yield "unsqueeze last", lambda x: paddle.unsqueeze(x, [-1, -2]), [numbers(3, 4)]
    yield "flatten", lambda x: paddle.flatten(x, 1), [x]
    yield "concat", lambda x, y: paddle.concat([x, y], axis=-1), [numbers(3, 4), numbers(3, 2)]
    yield "stack", lambda x, y: paddle.stack([x, y], axis=1), [numbers(3, 4), numbers(3, 4)]
    yield "unstack", lambda x: paddle.unstack(x, axis=1), [x]
    yield "unbind", lambda x: paddle.unbind(x, axis=0), [x]
    yield "split", lambda x: paddle.split(x, 3, axis=1), [x]
    yield "split sizes", lambda x: paddle.split(x, [1, -1], axis=2), [x]
    yield "chunk", lambda x: paddle.chunk(x, 2, axis=-1), [x]
    yield "slice", lambda x: x[:, 1:, -2:], [x]
    yield "slice index", lambda x: x[1, ..., 0], [x]
    yield "strided slice", lambda x: paddle.strided_slice(x, [1, 2], [2, 0], [-4, 4], [-1, 2]), [x]
    yield "crop", lambda x: paddle.crop(x, shape=[1, 2, -1], offsets=[1, 0, 1]), [x]
    yield "expand", lambda x: paddle.expand(x, [2, -1, 4]), [numbers(3, 1)]
    yield "expand_as", paddle.expand_as, [numbers(3, 1), numbers(2, 3, 4)]
    yield "broadcast_tensors", lambda x, y: paddle.broadcast_tensors([x, y]), [numbers(3, 1), numbers(1, 4)]
    yield "tile", lambda x: paddle.tile(x, [2, 1, 3]), [numbers(3, 2)]
    yield "tile short", lambda x: paddle.tile(x, [2]), [numbers(3, 2)]
    yield "repeat_interleave", lambda x: paddle.repeat_interleave(x, 2, axis=1), [numbers(3, 2)]
    yield "flip", lambda x: paddle.flip(x, [0, 2]), [x]
    yield "roll", lambda x: paddle.roll(x, 1, 2), [x]
    yield "roll all", lambda x: paddle.roll(x, 5), [x]
    yield "pad", lambda x: functional.pad(x, [1, 0, 0, 2], value=3.0), [numbers(3, 4)]
    for mode in ("constant", "reflect", "replicate", "circular"):
        yield f"pad {mode}", lambda x, m=mode: functional.pad(x, [1, 2, 0, 1], mode=m), [numbers(2, 3, 4, 5)]
    yield (
        "pad last",
        lambda x: functional.pad(x, [1, 2, 0, 1], mode="reflect", data_format="NHWC"),
        [numbers(2, 4, 5, 3)],
    )
    yield "pixel_shuffle", lambda x: functional.pixel_shuffle(x, 2), [numbers(1, 8, 3, 4)]
    yield "pixel_unshuffle", lambda x: functional.pixel_unshuffle(x, 2), [numbers(1, 2, 4, 6)]
    yield "channel_shuffle", lambda x: functional.channel_shuffle(x, 2), [numbers(1, 4, 3, 3)]
    yield "tril", lambda x: paddle.tril(x, 1), [numbers(3, 4)]
    yield "triu", lambda x: paddle.triu(x, -1), [numbers(3, 4)]
    yield "unfold", lambda x: functional.unfold(x, [2, 3], strides=2, paddings=1), [numbers(1, 2, 6, 7)]
    yield "meshgrid", paddle.meshgrid, [numbers(3), numbers(4)]
    yield "shape", paddle.shape, [x]
    yield "full_like", lambda x: paddle.full_like(x, 2.5), [x]
    yield "zeros", lambda x: x + paddle.zeros([3, 4]), [x]
    yield "arange", lambda x: x + paddle.arange(4, dtype="float32"), [x]
    yield "linspace", lambda x: x + paddle.linspace(0, 1, 4), [x]
    yield "eye", lambda x: x + paddle.eye(3, 4), [x]
    yield "one_hot", lambda x: functional.one_hot(x, 5), [whole(3, 2)]
    yield "diag", paddle.diag, [numbers(3)]
    yield "diag of", lambda x: paddle.diag(x, offset=1), [numbers(3, 4)]
    yield "diagonal", lambda x: paddle.diagonal(x, offset=-1, axis1=1, axis2=2), [numbers(2, 3, 4)]
    yield "temporal_shift", lambda x: functional.temporal_shift(x, 2, 0.25), [numbers(4, 8, 2, 2)]


def _indexing(paddle: Any) -> Iterator[tuple[str, Function, list[Any]]]:
    x = numbers(4, 5)
    yield "gather", lambda x, i: paddle.gather(x, i, axis=1), [x, whole(3)]
    yield "gather_nd", paddle.gather_nd, [x, whole(3, 2)]
    yield "index_select", lambda x, i: paddle.index_select(x, i, axis=1), [x, whole(3)]
    yield "index_sample", paddle.index_sample, [x, whole(4, 2)]
    yield "take_along_axis", lambda x, i: paddle.take_along_axis(x, i, 0), [x, whole(2, 5)]
    yield "put_along_axis", lambda x, i: paddle.put_along_axis(x, i, 1.5, 0), [x, whole(1, 5)]
    yield "scatter", paddle.scatter, [x, np.int64([2, 0]), numbers(2, 5)]
    yield (
        "scatter add",
        lambda x, i, u: paddle.scatter(x, i, u, overwrite=False),
        [x, np.int64([2, 0, 2]), numbers(3, 5)],
    )
    yield "scatter_nd_add", paddle.scatter_nd_add, [x, whole(3, 1), numbers(3, 5)]
    yield "scatter_nd", lambda i, u: paddle.scatter_nd(i, u, [4, 5]), [whole(3, 2), numbers(3)]
    yield "index_add", lambda x, i, v: paddle.index_add(x, i, 1, v), [x, whole(3), numbers(4, 3)]
    yield "embedding", lambda i, w: paddle.nn.functional.embedding(i, w), [whole(3, 2), numbers(4, 6)]
    yield (
        "embedding padding",
        lambda i, w: paddle.nn.functional.embedding(i, w, padding_idx=1),
        [whole(3, 2), numbers(4, 6)],
    )
    yield "nonzero", paddle.nonzero, [truth(3, 4)]
    yield "masked_select", paddle.masked_select, [numbers(3, 4), truth(3, 4)]
    yield (
        "multiplex",
        lambda x, y, i: paddle.multiplex([x, y], i),
        [numbers(4, 2), numbers(4, 2), whole(4, 1, high=2, kind="int32")],
    )
    yield "searchsorted", paddle.searchsorted, [np.sort(numbers(5)), numbers(3, 2)]
    yield "set item", _set_item, [x]
    yield "masked_fill", lambda x, m: paddle.masked_fill(x, m, 2.0), [x, truth(4, 5)]


def _set_item(x: Any) -> Any:
    y = x + 0
    y[1:3, ::2] = 5.0
    y[0] = x[1] * 2
    return y


def single_operators(paddle: Any) -> Iterator[tuple[str, Function, list[Any]]]:
    """Name, function and inputs of each case."""
    for family in (_unary, _binary, _reductions, _shapes, _indexing):
        yield from family(paddle)
