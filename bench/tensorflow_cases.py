"""Single operators of TensorFlow, as functions that `bench.frontend_tensorflow` traces: name, function, inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

Operator = tuple[str, Callable[..., Any], tuple[Any, ...]]
_RANDOM = np.random.default_rng(0)


def _floats(*shape: int) -> Any:
    return _RANDOM.standard_normal(shape).astype(np.float32)


def _integers(low: int, high: int, *shape: int) -> Any:
    return _RANDOM.integers(low, high, shape).astype(np.int32)


def elementwise(tf: Any) -> Iterator[Operator]:
    """Functions of single elements."""
    x, y, positive = _floats(3, 5), _floats(3, 5), np.abs(_floats(3, 5)) + 0.1
    whole, other = _integers(-9, 9, 3, 5), _integers(1, 5, 3, 5)
    names = (
        "abs ceil cos cosh exp floor negative round sigmoid sign sin sinh square tan tanh atan asinh erf expm1 softplus"
    )
    for name in names.split():
        yield name, getattr(tf.math, name), (x,)
    for name in "log log1p sqrt rsqrt reciprocal acosh".split():
        yield name, getattr(tf.math, name), (positive + (1 if name == "acosh" else 0),)
    for name in "acos asin atanh".split():
        yield name, getattr(tf.math, name), (np.clip(x, -0.9, 0.9),)
    yield "rint", tf.math.rint, (x * 3,)
    yield "erfc", tf.math.erfc, (x,)
    for name in "add subtract multiply divide maximum minimum squared_difference floordiv floormod atan2".split():
        yield name, getattr(tf.math, name), (x, y)
    for name in "add subtract multiply floordiv floormod truncatediv truncatemod maximum minimum".split():
        yield f"{name} of integers", getattr(tf, name, None) or getattr(tf.math, name), (whole, other)
    for name in "equal not_equal greater greater_equal less less_equal".split():
        yield name, getattr(tf.math, name), (whole, other)
    for name in "divide_no_nan multiply_no_nan xdivy xlogy xlog1py".split():
        yield name, getattr(tf.math, name), (positive, np.where(x > 0, positive, 0).astype(np.float32))
    yield "pow", tf.pow, (positive, y)
    yield "add_n", lambda a, b: tf.add_n([a, b, a]), (x, y)
    for name in "logical_and logical_or logical_xor".split():
        yield name, getattr(tf.math, name), (x > 0, y > 0)
    yield "logical_not", tf.math.logical_not, (x > 0,)
    for name in "bitwise_and bitwise_or bitwise_xor left_shift right_shift".split():
        yield name, getattr(tf.bitwise, name), (np.abs(whole), other)
    yield "invert", tf.bitwise.invert, (whole,)
    odd = np.array([1, np.nan, np.inf, -np.inf], np.float32)
    for name in "is_nan is_inf is_finite".split():
        yield name, getattr(tf.math, name), (odd,)
    for name in "relu relu6 elu selu leaky_relu softsign gelu silu".split():
        yield name, getattr(tf.nn, name), (x * 4,)
    yield "clip_by_value", lambda a: tf.clip_by_value(a, -0.5, 0.5), (x,)
    yield "raw ClipByValue", lambda a: tf.raw_ops.ClipByValue(t=a, clip_value_min=-0.5, clip_value_max=0.5), (x,)
    yield "where", lambda c, a, b: tf.where(c, a, b), (x > 0, x, y)
    yield "select by rows", lambda c, a, b: tf.raw_ops.Select(condition=c, x=a, y=b), (x[:, 0] > 0, x, y)
    for kind in ("float64", "int32", "int64", "uint8", "bool", "float16"):
        yield f"cast to {kind}", lambda a, kind=kind: tf.cast(a, kind), (np.abs(x) * 9,)
    yield "bitcast", lambda a: tf.bitcast(a, tf.int32), (x,)
    yield "bucketize", lambda a: tf.raw_ops.Bucketize(input=a, boundaries=[-1.0, 0.0, 0.5]), (x,)
    fake = tf.quantization
    yield "fake_quant args", lambda a: fake.fake_quant_with_min_max_args(a, -1.0, 2.0), (x,)
    yield "fake_quant vars", lambda a: fake.fake_quant_with_min_max_vars(a, -1.0, 2.0, 4, True), (x,)
    low, high = np.full(5, -1, np.float32), np.linspace(1, 2, 5).astype(np.float32)
    yield "fake_quant channels", lambda a: fake.fake_quant_with_min_max_vars_per_channel(a, low, high), (x,)
    yield (
        "quantize_and_dequantize",
        lambda a: fake.quantize_and_dequantize_v2(a, -1.0, 2.0, range_given=True),
        (x,),
    )


def reductions(tf: Any) -> Iterator[Operator]:
    """Reductions, order and segments."""
    x, whole = _floats(3, 4, 5), _integers(0, 9, 3, 4, 5)
    for name in "sum mean max min prod euclidean_norm std variance logsumexp".split():
        for axis, keepdims in ((None, False), (1, True), ((0, 2), False), (-1, False)):
            label = f"reduce_{name} {axis}"
            yield label, lambda a, n=name, at=axis, k=keepdims: getattr(tf.math, f"reduce_{n}")(a, at, k), (x,)
    yield "reduce_mean of integers", lambda a: tf.reduce_mean(a, 1), (whole,)
    yield "reduce_any", lambda a: tf.reduce_any(a, 1), (x > 0.5,)
    yield "reduce_all", lambda a: tf.reduce_all(a, 1), (x > -0.5,)
    yield "argmax", lambda a: tf.argmax(a, 1), (x,)
    yield "argmin int32", lambda a: tf.argmin(a, -1, output_type=tf.int32), (x,)
    yield "top_k", lambda a: tf.math.top_k(a, 2), (x,)
    yield "in_top_k", lambda a: tf.math.in_top_k(np.array([1, 0, 2]), a, 2), (_floats(3, 4),)
    yield "cumsum", lambda a: tf.cumsum(a, 1), (x,)
    yield "cumsum reversed", lambda a: tf.cumsum(a, 1, exclusive=True, reverse=True), (x,)
    yield "cumprod", lambda a: tf.math.cumprod(a, 2), (x,)
    ids, mixed = np.array([0, 0, 2], np.int32), np.array([1, 0, 1], np.int32)
    for name in "sum mean max min prod".split():
        yield f"segment_{name}", lambda a, n=name: getattr(tf.math, f"segment_{n}")(a, ids), (_floats(3, 4),)
    for name in "sum max min prod".split():
        yield f"unsorted_{name}", lambda a, n=name: getattr(tf.math, f"unsorted_segment_{n}")(a, mixed, 2), (x,)
    yield "bincount", lambda a: tf.math.bincount(a, minlength=10, maxlength=10), (whole.ravel(),)
    labels = np.array([0, 2, 1])
    yield "sparse loss", lambda a: tf.nn.sparse_softmax_cross_entropy_with_logits(labels, a), (_floats(3, 4),)
    yield "loss", lambda a, b: tf.nn.softmax_cross_entropy_with_logits(b, a), (_floats(3, 4), np.abs(_floats(3, 4)))
    yield "l2_loss", tf.nn.l2_loss, (x,)
    yield "l2_normalize", lambda a: tf.math.l2_normalize(a, 1), (x,)
    yield "moments", lambda a: tf.nn.moments(a, [0, 1]), (x,)
    yield "histogram", lambda a: tf.histogram_fixed_width(a, [-1.0, 1.0], 5), (x,)
    yield "sort", lambda a: tf.sort(a, 1), (x,)
    yield "argsort", lambda a: tf.argsort(a, -1, "DESCENDING"), (x,)


def shapes(tf: Any) -> Iterator[Operator]:
    """Shapes, slices, joins."""
    x = _floats(3, 4, 5)
    yield "reshape", lambda a: tf.reshape(a, [2, -1]), (x,)
    yield "squeeze", lambda a: tf.squeeze(a, [1]), (_floats(3, 1, 5),)
    yield "expand_dims", lambda a: tf.expand_dims(a, -2), (x,)
    yield "transpose", lambda a: tf.transpose(a, [2, 0, 1]), (x,)
    yield "size and rank", lambda a: tf.cast(tf.size(a), tf.float32) + a + tf.cast(tf.rank(a), tf.float32), (x,)
    yield "concat", lambda a, b: tf.concat([a, b, a], -1), (x, x)
    yield "stack", lambda a, b: tf.stack([a, b], 1), (x, x)
    yield "unstack", lambda a: tf.unstack(a, axis=1), (x,)
    yield "split", lambda a: tf.split(a, 2, 1), (x,)
    yield "split by sizes", lambda a: tf.split(a, [1, -1, 2], 2), (x,)
    yield "broadcast_to", lambda a: tf.broadcast_to(a, [3, 4, 5]), (_floats(4, 1),)
    yield "tile", lambda a: tf.tile(a, [1, 2, 1]), (x,)
    yield "fill", lambda a: tf.fill([2, 3], a[0]), (_floats(1),)
    yield "zeros_like", lambda a: tf.zeros_like(a) + tf.ones_like(a) + a, (x,)
    yield "range", lambda a: tf.range(0, 10, 3) + a, (_integers(0, 9, 4),)
    yield "linspace", lambda a: tf.linspace(a[0], a[1], 7), (_floats(2),)
    for label, cut in (
        ("1:3", lambda a: a[1:3]),
        ("masks", lambda a: a[..., tf.newaxis, ::-1]),
        ("index", lambda a: a[1, :, -1]),
        ("strides", lambda a: a[:, 3:0:-2]),
        ("negative", lambda a: a[-2:, :-1]),
    ):
        yield f"strided_slice {label}", cut, (x,)
    yield "strided_slice by data", lambda a, i: a[i:, :, 1], (x, np.int32(1))
    yield "slice", lambda a: tf.slice(a, [1, 0, 2], [2, -1, 1]), (x,)
    yield "pad", lambda a: tf.pad(a, [[1, 0], [0, 2], [1, 1]], constant_values=2.0), (x,)
    yield "mirror pad", lambda a: tf.pad(a, [[0, 0], [1, 2], [2, 1]], "REFLECT"), (x,)
    yield "symmetric pad", lambda a: tf.pad(a, [[0, 0], [1, 2], [2, 1]], "SYMMETRIC"), (x,)
    yield "reverse", lambda a: tf.reverse(a, [0, 2]), (x,)
    yield "roll", lambda a: tf.roll(a, [1, -2], [0, 2]), (x,)
    image = _floats(2, 4, 6, 8)
    yield "space_to_depth", lambda a: tf.nn.space_to_depth(a, 2), (image,)
    yield "depth_to_space", lambda a: tf.nn.depth_to_space(a, 2), (image,)
    yield "space_to_batch", lambda a: tf.space_to_batch(a, [2, 3], [[1, 1], [0, 0]]), (image,)
    yield "batch_to_space", lambda a: tf.batch_to_space(a, [2, 1], [[1, 0], [0, 2]]), (image,)
    yield "ensure_shape", lambda a: tf.ensure_shape(a, [3, None, 5]) + 1.0, (x,)
    yield "searchsorted", lambda a: tf.searchsorted(np.array([-1, 0, 1], np.float32), a), (_floats(5),)
    yield "meshgrid", lambda a, b: tf.meshgrid(a, b), (_floats(3), _floats(4))
    yield "repeat", lambda a: tf.repeat(a, 3, 1), (x,)


def indexing(tf: Any) -> Iterator[Operator]:
    """Indices that are data."""
    x, places = _floats(3, 4, 5), _integers(0, 3, 2, 2)
    yield "gather", lambda a, i: tf.gather(a, i), (x, places)
    yield "gather axis", lambda a, i: tf.gather(a, i, axis=1), (x, places)
    batch = _integers(0, 4, 3, 2)
    yield "gather batch", lambda a, i: tf.gather(a, i, batch_dims=1, axis=1), (x, batch)
    yield "gather_nd", lambda a, i: tf.gather_nd(a, i), (x, places)
    rows = np.array([[0], [2], [0]], np.int32)
    yield "scatter_nd", lambda a: tf.scatter_nd(rows, a, [4, 5]), (_floats(3, 5),)
    for name in "update add sub max min".split():
        yield (
            f"tensor_scatter_{name}",
            lambda a, b, n=name: getattr(tf, f"tensor_scatter_nd_{n}")(a, [[2], [0]], b),
            (x, _floats(2, 4, 5)),
        )
    yield "one_hot", lambda a: tf.one_hot(a, 4, on_value=2.0, off_value=-1.0, axis=1), (places,)
    yield "where places", lambda a: tf.where(a > 0), (x,)
    yield "unique", lambda a: tf.unique(a), (_integers(0, 4, 9),)
    yield "boolean_mask", lambda a, m: tf.boolean_mask(a, m), (x, np.array([True, False, True]))
    yield "reverse_sequence", lambda a: tf.reverse_sequence(a, [1, 4, 2], 1, 0), (x,)
    yield "diag", lambda a: tf.linalg.diag(a), (_floats(3, 4),)
    yield "set_diag", lambda a, b: tf.linalg.set_diag(a, b), (_floats(3, 4, 4), _floats(3, 4))
    yield "diag_part", lambda a: tf.linalg.diag_part(a), (x,)
    yield "band_part", lambda a: tf.linalg.band_part(a, 1, -1), (x,)
    yield "trace", tf.linalg.trace, (_floats(2, 4, 4),)
    yield "sequence_mask", lambda a: tf.sequence_mask(a, 6), (_integers(0, 6, 4),)
    yield "dynamic_stitch", lambda a, b: tf.dynamic_stitch([[0, 2], [1]], [a, b]), (_floats(2, 3), _floats(1, 3))
    yield "dynamic_partition", lambda a, p: tf.dynamic_partition(a, p, 2), (x, np.array([1, 0, 1], np.int32))
    yield "embedding_lookup", lambda i: tf.nn.embedding_lookup(x[0], i), (places,)
    yield "nth_element", lambda a: tf.raw_ops.NthElement(input=a, n=1), (x,)


def layers(tf: Any) -> Iterator[Operator]:
    """Convolutions, pools, normalisations."""
    image, volume = _floats(1, 6, 5, 4), _floats(1, 3, 4, 5, 3)
    grouped, line, deep_up = _floats(3, 3, 2, 4), _floats(3, 5, 2), _floats(2, 2, 2, 2, 3)
    depths, points, taps, cubes = _floats(3, 3, 4, 2), _floats(1, 1, 8, 3), _floats(3, 3, 4), _floats(2, 3, 2, 3, 2)
    for padding in ("SAME", "VALID"):
        for stride, rate in ((1, 1), (2, 1), (1, 2)):
            label = f"{padding} {stride} {rate}"
            weight = _floats(3, 2, 4, 3)
            yield (
                f"conv2d {label}",
                lambda a, w=weight, s=stride, p=padding, r=rate: tf.nn.conv2d(a, w, s, p, dilations=r),
                (image,),
            )
            deep = _floats(3, 3, 4, 2)
            yield (
                f"depthwise {label}",
                lambda a, w=deep, s=stride, p=padding, r=rate: tf.nn.depthwise_conv2d(
                    a, w, [1, s, s, 1], p, dilations=[r, r]
                ),
                (image,),
            )
        for name in ("max_pool2d", "avg_pool2d"):
            yield (
                f"{name} {padding}",
                lambda a, n=name, p=padding: getattr(tf.nn, n)(a, [3, 2], [2, 2], p),
                (image,),
            )
        for name in ("max_pool3d", "avg_pool3d"):
            yield f"{name} {padding}", lambda a, n=name, p=padding: getattr(tf.nn, n)(a, 2, 2, p), (volume,)
        up, size = _floats(3, 3, 2, 4), (12, 10) if padding == "SAME" else (13, 11)
        yield (
            f"conv2d_transpose {padding}",
            lambda a, w=up, p=padding, s=size: tf.nn.conv2d_transpose(a, w, [1, *s, 2], 2, p),
            (image,),
        )
        yield (
            f"conv3d {padding}",
            lambda a, p=padding: tf.nn.conv3d(a, cubes, [1, 1, 2, 1, 1], p),
            (volume,),
        )
    yield "conv2d explicit", lambda a: tf.nn.conv2d(a, _ONES, 2, [[0, 0], [1, 2], [0, 1], [0, 0]]), (image,)
    yield "conv2d groups", lambda a: tf.nn.conv2d(a, grouped, 1, "SAME"), (image,)
    yield "conv1d", lambda a: tf.nn.conv1d(a, line, 2, "SAME"), (_floats(2, 9, 5),)
    yield (
        "conv3d_transpose",
        lambda a: tf.nn.conv3d_transpose(a, deep_up, [1, 6, 8, 10, 2], 2, "SAME"),
        (volume,),
    )
    yield (
        "separable",
        lambda a: tf.nn.separable_conv2d(a, depths, points, [1, 1, 1, 1], "SAME"),
        (image,),
    )
    yield (
        "dilation2d",
        lambda a: tf.nn.dilation2d(a, taps, [1, 1, 1, 1], "SAME", "NHWC", [1, 1, 1, 1]),
        (image,),
    )
    yield "bias_add", lambda a: tf.nn.bias_add(a, np.arange(4, dtype=np.float32)), (image,)
    yield "softmax", tf.nn.softmax, (image,)
    yield "log_softmax", lambda a: tf.nn.log_softmax(a, 1), (image,)
    yield "lrn", lambda a: tf.nn.lrn(a, 2, 1.5, 0.3, 0.7), (image,)
    stats = [_floats(4), _floats(4), _floats(4), np.abs(_floats(4))]
    yield "fused_batch_norm", lambda a: tf.compat.v1.nn.fused_batch_norm(a, *stats, is_training=False)[0], (image,)
    yield "batch_norm training", lambda a: tf.compat.v1.nn.fused_batch_norm(a, stats[0], stats[1])[0], (image,)
    yield (
        "extract_patches",
        lambda a: tf.image.extract_patches(a, [1, 3, 2, 1], [1, 2, 1, 1], [1, 1, 2, 1], "SAME"),
        (image,),
    )


_ONES = np.ones((3, 2, 4, 2), np.float32)


def algebra(tf: Any) -> Iterator[Operator]:
    """Products and factorisations of matrices, spectra."""
    a, b = _floats(4, 5), _floats(5, 3)
    square = _floats(2, 4, 4)
    definite = square @ square.swapaxes(1, 2) + 4 * np.eye(4, dtype=np.float32)
    yield "matmul", tf.matmul, (a, b)
    yield (
        "matmul transposed",
        lambda x, y: tf.matmul(x, y, transpose_a=True, transpose_b=True),
        (a.T.copy(), b.T.copy()),
    )
    yield "batch matmul", lambda x, y: tf.matmul(x, y, adjoint_b=True), (_floats(2, 3, 4), _floats(2, 5, 4))
    yield "einsum", lambda x, y: tf.einsum("bij,bjk->bik", x, y), (_floats(2, 3, 4), _floats(2, 4, 5))
    yield (
        "einsum attention",
        lambda x, y: tf.einsum("bqhd,bkhd->bhqk", x, y),
        (_floats(2, 3, 2, 4), _floats(2, 5, 2, 4)),
    )
    yield "tensordot", lambda x, y: tf.tensordot(x, y, [[1], [0]]), (_floats(3, 4, 2), _floats(4, 5))
    yield "cross", tf.linalg.cross, (_floats(4, 3), _floats(4, 3))
    yield "cholesky", tf.linalg.cholesky, (definite,)
    yield "triangular_solve", lambda x, y: tf.linalg.triangular_solve(x, y), (definite, _floats(2, 4, 3))
    yield "solve", tf.linalg.solve, (definite, _floats(2, 4, 3))
    yield "inverse", tf.linalg.inv, (definite,)
    yield "determinant", tf.linalg.det, (square,)
    yield "qr", lambda x: tf.matmul(*tf.linalg.qr(x)), (_floats(5, 3),)
    yield "eigh", lambda x: tf.linalg.eigvalsh(x), (definite,)
    yield "svd", lambda x: tf.linalg.svd(x, compute_uv=False), (a,)
    yield "norm", tf.linalg.norm, (a,)
    yield "rfft", lambda x: tf.abs(tf.signal.rfft(x)), (_floats(3, 16),)
    yield "rfft length", lambda x: tf.math.real(tf.signal.rfft(x, [12])), (_floats(3, 16),)
    yield "irfft", lambda x: tf.signal.irfft(tf.signal.rfft(x) * tf.cast(2.0, tf.complex64)), (_floats(3, 16),)
    yield "fft", lambda x, y: tf.math.imag(tf.signal.fft(tf.complex(x, y))), (_floats(3, 8), _floats(3, 8))
    yield "ifft2d", lambda x, y: tf.math.real(tf.signal.ifft2d(tf.complex(x, y))), (_floats(3, 8), _floats(3, 8))
    yield "rfft2d", lambda x: tf.abs(tf.signal.rfft2d(x)), (_floats(2, 6, 8),)
    yield "stft", lambda x: tf.abs(tf.signal.stft(x, 16, 8, 16)), (_floats(64),)
    yield "angle", lambda x, y: tf.math.angle(tf.complex(x, y)), (_floats(3, 8), _floats(3, 8))
    yield "mel", lambda x: tf.matmul(x, tf.signal.linear_to_mel_weight_matrix(6, 9, 8000)), (_floats(2, 9),)


def images(tf: Any) -> Iterator[Operator]:
    """Resizing, crops, colours, boxes."""
    image = _floats(2, 6, 7, 3)
    for method in ("bilinear", "nearest", "bicubic", "area"):
        for size in ((9, 11), (3, 4)):
            yield f"resize {method} {size}", lambda a, s=size, m=method: tf.image.resize(a, s, m), (image,)
    for name in ("resize_bilinear", "resize_nearest_neighbor"):
        for corners in (True, False):
            yield (
                f"old {name} {corners}",
                lambda a, n=name, c=corners: getattr(tf.compat.v1.image, n)(a, [9, 11], align_corners=c),
                (image,),
            )
    boxes = np.array([[0, 0, 1, 1], [0.2, 0.1, 0.8, 1.2]], np.float32)
    yield "crop_and_resize", lambda a: tf.image.crop_and_resize(a, boxes, [1, 0], [4, 5]), (image,)
    yield "rgb_to_hsv", tf.image.rgb_to_hsv, (np.abs(image),)
    yield "hsv_to_rgb", tf.image.hsv_to_rgb, (np.clip(np.abs(image), 0, 1),)
    yield "adjust_contrast", lambda a: tf.image.adjust_contrast(a, 1.5), (image,)
    yield "per_image_standardization", tf.image.per_image_standardization, (image,)
    corners = np.sort(_RANDOM.random((9, 2, 2)), axis=1).reshape(9, 4).astype(np.float32)
    scores = _RANDOM.random(9).astype(np.float32)
    yield "non_max_suppression", lambda b, s: tf.image.non_max_suppression(b, s, 5, 0.3, 0.2), (corners, scores)
    yield (
        "padded suppression",
        lambda b, s: tf.image.non_max_suppression_padded(b, s, 5, 0.3, 0.2, pad_to_max_output_size=True),
        (corners, scores),
    )
    yield (
        "combined suppression",
        lambda b, s: list(tf.image.combined_non_max_suppression(b, s, 3, 6, 0.3, 0.2)),
        (corners.reshape(1, 9, 1, 4), _RANDOM.random((1, 9, 2)).astype(np.float32)),
    )


def older(tf: Any) -> Iterator[Operator]:
    """Operators that only older graphs have, or that the functions above do not become."""
    raw, x, places = tf.raw_ops, _floats(3, 4, 5), np.array([0, 2, 0, 1], np.int32)
    matrix, square, row = _floats(3, 4), _floats(4, 4), _floats(4)
    yield "Add", lambda a: raw.Add(x=a, y=a), (x,)
    yield "Div", lambda a: raw.Div(x=a, y=a + 5.0), (x,)
    yield "Mod", lambda a: raw.Mod(x=a, y=3), (_integers(-9, 9, 5),)
    yield "Inv", lambda a: raw.Inv(x=a), (x,)
    yield "AccumulateNV2", lambda a: raw.AccumulateNV2(inputs=[a, a], shape=[3, 4, 5]), (x,)
    yield "ApproximateEqual", lambda a: raw.ApproximateEqual(x=a, y=a + 1e-6), (x,)
    yield "BatchMatMul", lambda a, b: raw.BatchMatMul(x=a, y=b, adj_y=True), (x, x)
    yield "BatchMatMulV3", lambda a, b: raw.BatchMatMulV3(x=a, y=b, Tout=tf.float32, adj_y=True), (x, x)
    yield "SparseMatMul", lambda a, b: raw.SparseMatMul(a=a, b=b), (matrix, square)
    image, stats = _floats(1, 3, 3, 4), [row, row + 1, row + 2, np.abs(row)]
    keys = ("scale", "offset", "mean", "variance")
    for name in ("FusedBatchNorm", "FusedBatchNormV2"):
        yield (
            name,
            lambda a, n=name: getattr(raw, n)(x=a, is_training=False, **dict(zip(keys, stats, strict=True))).y,
            (image,),
        )
    yield (
        "MaxPoolV2",
        lambda a: raw.MaxPoolV2(input=a, ksize=[1, 2, 2, 1], strides=[1, 1, 1, 1], padding="SAME"),
        (image,),
    )
    yield "Concat", lambda a: raw.Concat(concat_dim=1, values=[a, a]), (x,)
    yield "Gather", lambda a: raw.Gather(params=a, indices=[2, 0]), (x,)
    yield "Conj", lambda a: tf.math.imag(raw.Conj(input=tf.complex(a, a))), (x,)
    yield "Rank", lambda a: tf.cast(raw.Rank(input=a), tf.float32) * a, (x,)
    yield "ConjugateTranspose", lambda a: raw.ConjugateTranspose(x=a, perm=[1, 0, 2]), (x,)
    yield "Size", lambda a: tf.cast(raw.Size(input=a), tf.float32) * a, (x,)
    yield "ShapeN", lambda a, b: [item + 1 for item in raw.ShapeN(input=[a, b])] + [a, b], (x, matrix)
    yield "ZerosLike", lambda a: raw.ZerosLike(x=a) + raw.OnesLike(x=a) + a, (x,)
    yield "Reverse", lambda a: raw.Reverse(tensor=a, dims=[True, False, True]), (x,)
    yield "InvertPermutation", lambda a: tf.gather(a, raw.InvertPermutation(x=[2, 0, 1])), (x,)
    yield "LinSpace", lambda a: raw.LinSpace(start=a[0], stop=a[1], num=5), (row,)
    yield "UpperBound", lambda a, b: raw.UpperBound(sorted_inputs=a, values=b), (np.sort(matrix, 1), matrix)
    yield "InTopK", lambda a: raw.InTopK(predictions=a, targets=[0, 1, 2], k=2), (matrix,)
    yield "UniqueWithCounts", lambda a: list(raw.UniqueWithCounts(x=a)), (places,)
    yield "UniqueV2", lambda a: list(raw.UniqueV2(x=a, axis=[0])), (places,)
    yield (
        "SparseToDense",
        lambda a: raw.SparseToDense(sparse_indices=[1, 3], output_shape=[5], sparse_values=a, default_value=2.0),
        (_floats(2),),
    )
    yield "Bincount", lambda a: raw.Bincount(arr=a, size=4, weights=np.ones(4, np.float32)), (places,)
    yield "Diag", lambda a: raw.DiagPart(input=raw.Diag(diagonal=a)) + a, (row,)
    yield "MatrixDiag", lambda a: raw.MatrixDiagPart(input=raw.MatrixDiag(diagonal=a)) + a, (matrix,)
    yield "MatrixSetDiag", lambda a, d: raw.MatrixSetDiag(input=a, diagonal=d), (square, row)
    yield "FFT2D", lambda a, b: tf.math.real(raw.FFT2D(input=tf.complex(a, b))), (square, square)
    yield "IFFT", lambda a, b: tf.math.imag(raw.IFFT(input=tf.complex(a, b))), (square, square)
    yield "RFFT3D", lambda a: tf.abs(raw.RFFT3D(input=a, fft_length=[3, 4, 4])), (x,)
    yield (
        "Snapshot",
        lambda a: raw.Snapshot(input=raw.PreventGradient(input=raw.CheckNumerics(tensor=a, message=""))),
        (x,),
    )
    boxes = np.sort(_RANDOM.random((9, 2, 2)), axis=1).reshape(9, 4).astype(np.float32)
    scores = _RANDOM.random(9).astype(np.float32)
    limits = {"max_output_size": 6, "iou_threshold": 0.3}
    yield "NonMaxSuppression", lambda b, s: raw.NonMaxSuppression(boxes=b, scores=s, **limits), (boxes, scores)
    yield "NonMaxSuppressionV2", lambda b, s: raw.NonMaxSuppressionV2(boxes=b, scores=s, **limits), (boxes, scores)
    limits = {**limits, "score_threshold": 0.2}
    for padded in (True, False):
        options = {**limits, "pad_to_max_output_size": padded}
        yield (
            f"NonMaxSuppressionV4 {padded}",
            lambda b, s, o=options: list(raw.NonMaxSuppressionV4(boxes=b, scores=s, **o)),
            (boxes, scores),
        )
        yield (
            f"NonMaxSuppressionV5 {padded}",
            lambda b, s, o=options: list(raw.NonMaxSuppressionV5(boxes=b, scores=s, soft_nms_sigma=0.0, **o)),
            (boxes, scores),
        )


def recurrent(tf: Any) -> Iterator[Operator]:
    """Recurrent layers that are one operator, and lists of tensors."""
    raw, x, c, h = tf.raw_ops, _floats(5, 2, 3), _floats(2, 4), _floats(2, 4)
    weights = {"w": _floats(7, 16), "wci": _floats(4), "wcf": _floats(4), "wco": _floats(4), "b": _floats(16)}
    for peephole in (True, False):
        yield (
            f"LSTMBlockCell {peephole}",
            lambda a, p=peephole: list(
                raw.LSTMBlockCell(x=a, cs_prev=c, h_prev=h, use_peephole=p, forget_bias=0.5, **weights)
            ),
            (x[0],),
        )
    yield (
        "BlockLSTM",
        lambda a: list(raw.BlockLSTM(seq_len_max=np.int64(5), x=a, cs_prev=c, h_prev=h, cell_clip=0.3, **weights)),
        (x,),
    )
    yield (
        "BlockLSTMV2",
        lambda a: list(raw.BlockLSTMV2(seq_len_max=np.int64(5), x=a, cs_prev=c, h_prev=h, **weights)),
        (x,),
    )
    cell = {"w_ru": _floats(7, 8), "w_c": _floats(7, 4), "b_ru": _floats(8), "b_c": _floats(4)}
    yield "GRUBlockCell", lambda a: list(raw.GRUBlockCell(x=a, h_prev=h, **cell)), (x[0],)
    shape = np.array([2, 3], np.int32)

    def pushed(a: Any) -> Any:
        values = raw.EmptyTensorList(element_shape=shape, max_num_elements=-1, element_dtype=tf.float32)
        for at in range(3):
            values = raw.TensorListPushBack(input_handle=values, tensor=a[at])
        popped = raw.TensorListPopBack(input_handle=values, element_shape=shape, element_dtype=tf.float32)
        rest = raw.TensorListStack(input_handle=popped.output_handle, element_shape=shape, element_dtype=tf.float32)
        return [popped.tensor, rest, raw.TensorListLength(input_handle=values) + 1]

    yield "TensorListPushBack", pushed, (x,)

    def gathered(a: Any) -> Any:
        values = raw.TensorListFromTensor(tensor=a, element_shape=shape)
        some = raw.TensorListGather(input_handle=values, indices=[3, 1], element_shape=shape, element_dtype=tf.float32)
        joined = raw.TensorListConcatV2(
            input_handle=values, element_shape=shape, leading_dims=np.zeros(0, np.int64), element_dtype=tf.float32
        )
        parts = raw.TensorListSplit(tensor=a[:, 0], element_shape=[-1, 3], lengths=np.array([2, 3], np.int64))
        return [
            some,
            joined.tensor,
            raw.TensorListGetItem(input_handle=parts, index=1, element_shape=[-1, 3], element_dtype=tf.float32),
        ]

    yield "TensorListGather", gathered, (x,)
    for chosen in (0, 2, 7):
        sides = lambda a: [lambda: a, lambda: a * 2.0, lambda: -a]  # noqa: E731
        yield f"Case {chosen}", lambda a, i, sides=sides: tf.switch_case(i, sides(a)), (x, np.int32(chosen))
    yield "If", lambda a: tf.cond(tf.reduce_sum(a) > 0, lambda: a * 2.0, lambda: -a), (np.abs(x),)
    yield "While", lambda a: tf.while_loop(lambda v: tf.reduce_sum(v) < 50.0, lambda v: (v + 1.0,), (a,)), (x,)
    yield "map_fn", lambda a: tf.map_fn(lambda row: tf.reduce_sum(row) * row, a), (x,)
    yield "scan", lambda a: tf.scan(lambda state, row: state * 0.5 + row, a), (x,)


def texts(tf: Any) -> Iterator[Operator]:
    """Operators on texts."""
    words = np.array(["Ab", "c", "12"], object)
    yield "join", lambda a: tf.strings.join([a, a, "x"], "-"), (words,)
    yield "lower", tf.strings.lower, (words,)
    yield "upper", tf.strings.upper, (words,)
    yield "to_number", lambda a: tf.strings.to_number(a, tf.float32), (np.array(["1.5", "-2"], object),)
    yield "as_string", tf.strings.as_string, (_integers(-9, 99, 4),)
    yield "regex_full_match", lambda a: tf.strings.regex_full_match(a, "[A-Z]+[a-z]*"), (words,)
    yield "equal", lambda a: tf.equal(a, "c"), (words,)
    yield "gather", lambda a: tf.gather(a, [2, 0]), (words,)


FAMILIES = (elementwise, reductions, shapes, indexing, layers, algebra, images, older, recurrent, texts)


def operators(tf: Any) -> Iterator[Operator]:
    """All cases."""
    for family in FAMILIES:
        for name, function, inputs in family(tf):
            yield f"{family.__name__} {name}", function, inputs
