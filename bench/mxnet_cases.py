"""Makes MXNet models with MXNet itself, and what it gives for them: `PYTHON -m bench.mxnet_cases OUT.npz [NETWORK]`.

The last MXNet wants an older numpy than Tilewright: this module is run by a Python of its own.
The archive has, for each case, the bytes of the symbol and of the arrays, the inputs and the results. With a second
argument a small network is exported under that prefix, as Gluon does it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

import mxnet as mx
import numpy as np

from bench.case_archive import write_archive

_RANDOM = np.random.RandomState(0)
X = (2, 4, 5, 6)


def sym(name: str) -> Any:
    """A variable."""
    return mx.sym.Variable(name)


def random(shape: tuple[int, ...], kind: str = "normal") -> Any:
    """Random numbers: whole ones below a limit for kinds `below 5`."""
    if kind.startswith("below"):
        return _RANDOM.randint(0, int(kind.split()[1]), shape).astype(np.float32)
    if kind == "positive":
        return (_RANDOM.rand(*shape) + 0.1).astype(np.float32)
    return _RANDOM.randn(*shape).astype(np.float32)


def operators() -> dict[str, tuple[Any, dict[str, Any]]]:
    """Symbols of one operator or a few, with their inputs."""
    s, x, y = mx.sym, sym("x"), sym("y")
    image = {"x": random(X)}
    both = {"x": random(X), "y": random(X)}
    found: dict[str, tuple[Any, dict[str, Any]]] = {
        "convolution": (s.Convolution(x, kernel=(3, 3), num_filter=6, pad=(1, 1), stride=(2, 2)), image),
        "convolution groups": (s.Convolution(x, kernel=(3, 2), num_filter=6, num_group=2, dilate=(2, 1)), image),
        "convolution 1d": (s.Convolution(x, kernel=(3,), num_filter=5, no_bias=True), {"x": random((2, 4, 9))}),
        "convolution 3d": (
            s.Convolution(x, kernel=(2, 2, 3), num_filter=3, pad=(1, 0, 1)),
            {"x": random((1, 2, 4, 5, 6))},
        ),
        "deconvolution": (s.Deconvolution(x, kernel=(4, 4), num_filter=3, stride=(2, 2), pad=(1, 1)), image),
        "fully connected": (s.FullyConnected(x, num_hidden=5), image),
        "fully connected rows": (s.FullyConnected(x, num_hidden=5, flatten=False, no_bias=True), image),
        "batch norm": (s.BatchNorm(x, fix_gamma=False, eps=1e-3), image),
        "batch norm fixed": (s.BatchNorm(x, axis=-1), image),
        "layer norm": (s.LayerNorm(x), image),
        "layer norm of channels": (s.LayerNorm(x, axis=1), image),
        "instance norm": (s.InstanceNorm(x), image),
        "group norm": (s.GroupNorm(x, num_groups=2), image),
        "lrn": (s.LRN(x, nsize=3, alpha=0.5), image),
        "softmax output": (s.SoftmaxOutput(x, name="softmax"), {"x": random((3, 5))}),
        "softmax output of images": (s.SoftmaxOutput(x, name="softmax", multi_output=True), image),
        "logistic output": (s.LogisticRegressionOutput(x, name="log"), {"x": random((3, 5))}),
        "softmax activation": (s.SoftmaxActivation(x, mode="channel"), image),
        "softmax": (s.softmax(x, axis=1, temperature=2.0), image),
        "log softmax": (s.log_softmax(x), image),
        "embedding": (s.Embedding(x, input_dim=9, output_dim=4), {"x": random((2, 3), "below 9")}),
        "up sampling": (s.UpSampling(x, scale=2, sample_type="nearest"), image),
        "up sampling bilinear": (s.UpSampling(x, scale=2, sample_type="bilinear", num_filter=4), image),
        "bilinear resize": (s.contrib.BilinearResize2D(x, height=10, width=9), image),
        "adaptive pooling": (s.contrib.AdaptiveAvgPooling2D(x, output_size=(3, 2)), image),
        "crop": (s.Crop(x, offset=(1, 2), h_w=(4, 3)), image),
        "roi pooling": (
            s.ROIPooling(x, y, pooled_size=(2, 3), spatial_scale=0.5),
            {"x": random(X), "y": np.float32([[0, 1, 2, 9, 11], [1, 0, 0, 4, 3]])},
        ),
        "add n": (s.add_n(x, y, x), both),
        "where": (s.where(x > 0, x, y), both),
        "smooth l1": (s.smooth_l1(x, scalar=1.5), image),
        "one hot": (s.one_hot(x, depth=5, on_value=2.0, off_value=-1.0), {"x": random((2, 3), "below 5")}),
        "pick": (s.pick(x, y, axis=1), {"x": random((3, 5)), "y": random((3,), "below 5")}),
        "pick keep": (s.pick(x, y, axis=0, keepdims=True), {"x": random((3, 5)), "y": random((5,), "below 3")}),
        "take": (s.take(x, y, axis=1), {"x": random(X), "y": random((3,), "below 9")}),
        "take wrap": (s.take(x, y, axis=2, mode="wrap"), {"x": random(X), "y": random((3,), "below 20")}),
        "gather nd": (s.gather_nd(x, y), {"x": random((3, 4, 5)), "y": random((2, 6), "below 3")}),
        "topk": (s.topk(x, k=3, axis=1, ret_typ="value"), image),
        "topk places": (s.topk(x, k=3), image),
        "topk mask": (s.topk(x, k=2, axis=2, ret_typ="mask"), image),
        "sort": (s.sort(x, axis=1, is_ascend=False), image),
        "argsort": (s.argsort(x), image),
        "argmax": (s.argmax(x, axis=1), image),
        "argmin keep": (s.argmin(x, axis=2, keepdims=True), image),
        "dot": (s.dot(x, y), {"x": random((2, 3, 4)), "y": random((4, 5))}),
        "dot transposed": (s.dot(x, y, transpose_a=True, transpose_b=True), {"x": random((4, 3)), "y": random((5, 4))}),
        "batch dot": (s.batch_dot(x, y, transpose_b=True), {"x": random((2, 3, 4)), "y": random((2, 5, 4))}),
        "gemm2": (s.linalg_gemm2(x, y, alpha=0.5, transpose_a=True), {"x": random((2, 4, 3)), "y": random((2, 4, 5))}),
        "self attention": (s.contrib.interleaved_matmul_selfatt_qk(x, heads=2), {"x": random((5, 3, 24))}),
        "self attention values": (
            s.contrib.interleaved_matmul_selfatt_valatt(x, y, heads=2),
            {"x": random((5, 3, 24)), "y": random((6, 5, 5))},
        ),
        "concat": (s.Concat(x, y, dim=2), both),
        "stack": (s.stack(x, y, axis=1), both),
        "split": (s.Group(list(s.SliceChannel(x, num_outputs=2, axis=1))), image),
        "split away": (s.SliceChannel(x, num_outputs=4, axis=1, squeeze_axis=True)[2], image),
        "slice": (s.slice(x, begin=(None, 1, 5), end=(None, 3, 0), step=(1, 1, -2)), image),
        "slice axis": (s.slice_axis(x, axis=-1, begin=-4, end=-1), image),
        "slice like": (s.slice_like(x, y, axes=(2, 3)), {"x": random(X), "y": random((1, 1, 3, 2))}),
        "tile": (s.tile(x, reps=(2, 1, 3)), {"x": random((2, 3))}),
        "repeat": (s.repeat(x, repeats=2, axis=1), image),
        "repeat all": (s.repeat(x, repeats=3), {"x": random((2, 3))}),
        "flip": (s.flip(x, axis=(1, 3)), image),
        "pad reflect": (s.pad(x, mode="reflect", pad_width=(0, 0, 0, 0, 1, 2, 2, 1)), image),
        "pad constant": (s.pad(x, mode="constant", pad_width=(0, 0, 0, 0, 1, 2, 2, 1), constant_value=3), image),
        "broadcast to": (s.broadcast_to(x, shape=(0, 4, 5)), {"x": random((2, 4, 1))}),
        "broadcast like": (s.broadcast_like(x, y), {"x": random((2, 1, 3)), "y": random((2, 5, 3))}),
        "depth to space": (s.depth_to_space(x, block_size=2), image),
        "space to depth": (s.space_to_depth(x, block_size=2), {"x": random((1, 3, 4, 6))}),
        "reshape like": (s.reshape_like(x, y), {"x": random((2, 6)), "y": random((3, 4))}),
        "squeeze": (s.squeeze(x), {"x": random((2, 1, 3, 1))}),
        "shape array": (s.shape_array(x), image),
        "sequence mask": (
            s.SequenceMask(x, y, use_sequence_length=True, value=-1),
            {"x": random((4, 3, 2)), "y": np.float32([1, 4, 2])},
        ),
        "sequence last": (
            s.SequenceLast(x, y, use_sequence_length=True),
            {"x": random((4, 3, 2)), "y": np.float32([1, 4, 2])},
        ),
        "sequence reverse": (
            s.SequenceReverse(x, y, use_sequence_length=True),
            {"x": random((4, 3, 2)), "y": np.float32([1, 4, 2])},
        ),
        "arange like": (s.broadcast_add(s.contrib.arange_like(x, axis=1), s.sum(x)), image),
        "norm": (s.norm(x, ord=1, axis=(1, 2)), image),
        "div sqrt dim": (s.contrib.div_sqrt_dim(x), image),
        "cast": (s.Cast(s.Cast(x * 5, dtype="int32"), dtype="float32"), image),
        "multi box prior": (s.contrib.MultiBoxPrior(x, sizes=(0.3, 0.5), ratios=(1, 2, 0.5), clip=True), image),
        "box nms": (
            s.contrib.box_nms(x, overlap_thresh=0.4, valid_thresh=0.1, id_index=0, topk=7),
            {"x": _boxes(2, 12)},
        ),
        "box nms centre": (
            s.contrib.box_nms(
                x, overlap_thresh=0.3, in_format="center", out_format="center", force_suppress=True, id_index=0
            ),
            {"x": _boxes(1, 9)},
        ),
        "l2 of everything": (s.L2Normalization(x), image),
        "l2 of channels": (s.L2Normalization(x, mode="channel"), image),
        "l2 of planes": (s.L2Normalization(x, mode="spatial"), image),
    }
    found["multi box detection"] = _detection()
    for kind in ("relu", "sigmoid", "tanh", "softrelu", "softsign"):
        found[f"activation {kind}"] = (s.Activation(x, act_type=kind), image)
    for kind in ("leaky", "elu", "selu", "gelu", "prelu", "rrelu"):
        found[f"leaky {kind}"] = (s.LeakyReLU(x, act_type=kind)[0], image)
    for kind in ("max", "avg", "sum", "lp"):
        options: dict[str, Any] = {"pool_type": kind, "kernel": (3, 2), "stride": (2, 2), "pad": (1, 0)}
        if kind == "lp":
            options["p_value"] = 2
        found[f"pooling {kind}"] = (s.Pooling(x, **options), image)
        found[f"pooling {kind} full"] = (s.Pooling(x, pooling_convention="full", **options), image)
        found[f"pooling {kind} global"] = (s.Pooling(x, global_pool=True, **{**options, "pad": (0, 0)}), image)
    found["pooling avg without padding"] = (
        s.Pooling(x, pool_type="avg", kernel=(3, 3), pad=(1, 1), count_include_pad=False),
        image,
    )
    for name in ("sum", "mean", "max", "min", "prod"):
        found[f"{name} axis"] = (getattr(s, name)(x, axis=(1, 3)), image)
        found[f"{name} but for one"] = (getattr(s, name)(x, axis=1, exclude=True, keepdims=True), image)
        found[f"{name} all"] = (getattr(s, name)(x), {"x": random((2, 3))})
    plain = (
        "exp log log2 log10 log1p expm1 sqrt rsqrt cbrt rcbrt square abs sign floor ceil trunc rint fix sin cos tan "
        "sinh cosh arctan arcsinh erf reciprocal negative relu sigmoid softsign hard_sigmoid zeros_like ones_like "
        "degrees radians logical_not"
    )
    for name in plain.split():
        found[name] = (getattr(s, name)(x), {"x": random((3, 4), "positive")})
    found["round"] = (s.round(x), {"x": np.float32([-2.5, -1.5, -0.4, 0.5, 1.5, 2.5])})
    for name in ("add", "sub", "mul", "div", "power", "maximum", "minimum", "mod", "equal", "greater", "lesser_equal",
                 "logical_and", "logical_xor", "hypot"):  # fmt: skip
        values = {"x": random((2, 3, 4), "positive"), "y": random((1, 3, 1), "positive")}
        found[f"broadcast {name}"] = (getattr(s, f"broadcast_{name}")(x, y), values)
    numbers = {"x": random((3, 4), "positive")}
    made = {
        "plus": x + 2, "minus": x - 2, "from": 2 - x, "times": x * 2, "by": x / 2, "over": 2 / x, "power": x**2,
        "to": 2**x, "modulo": x % 0.3, "of": 3 % x, "greater": x > 0.5, "less": x < 0.5, "equal": x == 1,
        "most": s.maximum(x, 0.5), "least": s.minimum(x, 0.5), "clip": s.clip(x, 0.2, 0.6),
    }  # fmt: skip
    for name, value in made.items():
        found[f"number {name}"] = (value, numbers)
    for codes in ((0, -1), (-2,), (0, -3, -2), (-4, 1, 2, -2), (-1, 0, 0, 0), (2, -1, 4), (0, -4, -1, 2, -2)):
        found[f"reshape {codes}"] = (s.reshape(x, shape=codes), image)
    found["reshape reverse"] = (s.reshape(x, shape=(-1, 0), reverse=True), image)
    for mode in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
        found.update(_recurrent(mode))
    return found


def _recurrent(mode: str) -> dict[str, tuple[Any, dict[str, Any]]]:
    s, found = mx.sym, {}
    for both in (False, True):
        layers, size, directions = 2, 3, 1 + both
        states = {"state": random((layers * directions, 2, size))}
        if mode == "lstm":
            states["state_cell"] = random((layers * directions, 2, size))
        values = {"x": random((4, 2, 5)), **states}
        given = {"data": sym("x"), "parameters": sym("weights"), **{name: sym(name) for name in states}}
        made = s.RNN(state_size=size, num_layers=layers, mode=mode, bidirectional=both, state_outputs=True, **given)
        found[f"{mode}{' both ways' if both else ''}"] = (s.Group(list(made)), values)
    return found


def _boxes(images: int, count: int) -> Any:
    """Rows of class, score and corners."""
    corners = _RANDOM.rand(images, count, 2) * 0.6
    extents = _RANDOM.rand(images, count, 2) * 0.4 + 0.1
    head = np.stack([_RANDOM.randint(0, 2, (images, count)), _RANDOM.rand(images, count)], axis=2)
    return np.concatenate([head, corners, corners + extents], axis=2).astype(np.float32)


def _detection() -> tuple[Any, dict[str, Any]]:
    boxes = _boxes(1, 15)
    chances = _RANDOM.rand(2, 3, 15)
    values = {
        "x": (chances / chances.sum(1, keepdims=True)).astype(np.float32),
        "codes": random((2, 60)),
        "anchors": boxes[:, :, 2:],
    }
    made = mx.sym.contrib.MultiBoxDetection(sym("x"), sym("codes"), sym("anchors"), nms_threshold=0.3, threshold=0.35)
    return made, values


class Turns(mx.gluon.HybridBlock):
    """Loops and branches."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """One kind of control flow."""
        if self.kind == "foreach":
            outputs, states = F.contrib.foreach(lambda d, s: (d + s[0], [d * 2 + s[0]]), x, [F.zeros((3,))])
            return outputs, states[0]
        if self.kind == "cond":
            return F.contrib.cond(F.sum(x) > 0, lambda: x * 2, lambda: x - 1)
        outputs, states = F.contrib.while_loop(
            lambda i, s: i <= 4,
            lambda i, s: ([s * 2], [i + 1, F.broadcast_mul(s, i)]),
            [F.ones((1,)), x],
            max_iterations=4,
        )
        return outputs[0], states[1]


def network() -> Any:
    """A small network of Gluon."""
    nn = mx.gluon.nn
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Conv2D(8, 3, padding=1, in_channels=3), nn.BatchNorm(in_channels=8), nn.Activation("relu"))
        net.add(nn.MaxPool2D(3, 2, ceil_mode=True), nn.Conv2D(8, 3, groups=8, in_channels=8), nn.PReLU(in_channels=1))
        net.add(nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dropout(0.5), nn.Dense(5, in_units=8))
    return net


def exported(block: Any, prefix: str, *values: Any) -> list[Any]:
    """The results of a block, which is exported."""
    block.initialize(mx.init.Normal(0.3))
    block.hybridize()
    results = block(*(mx.nd.array(value) for value in values))
    block.export(prefix)
    return [item.asnumpy() for item in (results if isinstance(results, (list, tuple)) else [results])]


def evaluated(symbol: Any, inputs: dict[str, Any]) -> tuple[bytes, bytes, list[Any]]:
    """The bytes of a symbol and of random arrays for it, and its results."""
    shapes = {name: value.shape for name, value in inputs.items()}
    arguments, _, auxiliary = symbol.infer_shape(**shapes)
    arrays = {}
    for name, shape in zip(symbol.list_arguments(), arguments, strict=True):
        if name not in inputs:
            arrays[name] = np.abs(random(shape)) if name.endswith("gamma") else random(shape) * 0.5
    extras = {
        name: np.abs(random(shape)) + 0.5 for name, shape in zip(symbol.list_auxiliary_states(), auxiliary, strict=True)
    }
    given = {name: mx.nd.array(value) for name, value in {**arrays, **inputs}.items()}
    executor = symbol.bind(mx.cpu(), given, aux_states={name: mx.nd.array(value) for name, value in extras.items()})
    results = [item.asnumpy() for item in executor.forward(is_train=False)]
    saved = {f"arg:{name}": mx.nd.array(value) for name, value in arrays.items() if not name.endswith("label")}
    saved.update({f"aux:{name}": mx.nd.array(value) for name, value in extras.items()})
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "a.params")
        mx.nd.save(path, saved)
        with open(path, "rb") as file:
            return symbol.tojson().encode(), file.read(), results


def main() -> None:
    """Write the archive."""
    archive: dict[str, Any] = {}

    def add(name: str, symbol: bytes, params: bytes, inputs: dict[str, Any], results: list[Any]) -> None:
        archive[f"{name}|symbol"], archive[f"{name}|params"] = symbol, params
        archive.update({f"{name}|in|{key}": value for key, value in inputs.items()})
        archive.update({f"{name}|out|{at}": value for at, value in enumerate(results)})

    for name, (symbol, inputs) in operators().items():
        content, params, results = evaluated(symbol, inputs)
        add(name, content, params, inputs, results)
    with tempfile.TemporaryDirectory() as folder:
        for kind, value in (("foreach", random((4, 3))), ("cond", -np.abs(random((4, 3)))), ("while", random((2,)))):
            prefix = os.path.join(folder, kind)
            results = exported(Turns(kind), prefix, value)
            add(f"control {kind}", *_files(prefix), {"data": value}, results)
        image = random((1, 3, 12, 12))
        prefix = sys.argv[2] if len(sys.argv) > 2 else os.path.join(folder, "network")
        results = exported(network(), prefix, image)
        add("network", *_files(prefix), {"data": image}, results)
    write_archive(sys.argv[1], archive)


def _files(prefix: str) -> tuple[bytes, bytes]:
    with open(f"{prefix}-symbol.json", "rb") as symbol, open(f"{prefix}-0000.params", "rb") as params:
        return symbol.read(), params.read()


if __name__ == "__main__":
    main()
