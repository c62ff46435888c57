"""Small nets of Caffe, one for each layer, with random weights: what suites and fixtures are made of.

A net is a text whose layers say the shapes of their blobs; `written` fills them and gives the bytes of a .caffemodel.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.frontend.caffe.schema import NET

IMAGE = "shape { dim: 2 dim: 4 dim: 9 dim: 7 }"


def blobs(*shapes: tuple[int, ...]) -> str:
    """The blobs of a layer, without their numbers."""
    return " ".join("blobs { shape { " + " ".join(f"dim: {size}" for size in shape) + " } }" for shape in shapes)


def layer(kind: str, options: str = "", bottoms: str = "data", tops: str = "out", name: str = "layer") -> str:
    """A layer in the text format."""
    ends = "".join(f' bottom: "{item}"' for item in bottoms.split()) + "".join(
        f' top: "{item}"' for item in tops.split()
    )
    return f'layer {{ name: "{name}" type: "{kind}"{ends} {options} }}\n'


def inputs(**shapes: tuple[int, ...]) -> str:
    """Input layers."""
    return "".join(
        layer("Input", "input_param { shape { " + " ".join(f"dim: {size}" for size in shape) + " } }", "", name, name)
        for name, shape in shapes.items()
    )


def written(text: str, seed: int = 0) -> tuple[bytes, str]:
    """The bytes of a net with random weights, and its text without them."""
    random = np.random.default_rng(seed)
    net = NET.read_text("NetParameter", text, "case")
    for item in (*net.layer, *net.layers):
        for at, blob in enumerate(item.blobs):
            values = random.standard_normal(int(np.prod(blob.shape.dim))) * 0.5
            if item.type == "BatchNorm":
                values = np.abs(values) + 0.5 if at in (1, 3) else np.full(values.shape, 2.0) if at == 2 else values
            if item.type == "PReLU":
                values = np.abs(values)
            blob.data.extend(float(value) for value in values)
    content = bytes(net.SerializeToString())
    for item in (*net.layer, *net.layers):
        del item.blobs[:]
    return content, str(net)


def random_inputs(text: str, seed: int = 1) -> dict[str, Any]:
    """Values for the input layers of a net."""
    random = np.random.default_rng(seed)
    net = NET.read_text("NetParameter", text, "case")
    return {
        item.top[0]: random.standard_normal(list(item.input_param.shape[0].dim)).astype(np.float32)
        for item in net.layer
        if item.type == "Input"
    }


_DATA = (2, 4, 9, 7)


def _one(kind: str, options: str = "", shape: tuple[int, ...] = _DATA) -> str:
    return inputs(data=shape) + layer(kind, options)


_CONV = "convolution_param { num_output: 6 "
_POOL = "pooling_param { "

LAYERS: dict[str, str] = {
    "convolution": _one("Convolution", _CONV + "kernel_size: 3 pad: 1 stride: 2 } " + blobs((6, 4, 3, 3), (6,))),
    "convolution groups": _one(
        "Convolution", _CONV + "kernel_h: 3 kernel_w: 1 pad_h: 1 pad_w: 0 group: 2 } " + blobs((6, 2, 3, 1), (6,))
    ),
    "convolution dilated": _one(
        "Convolution", _CONV + "kernel_size: 3 dilation: 2 bias_term: false } " + blobs((6, 4, 3, 3))
    ),
    "deconvolution": _one(
        "Deconvolution", _CONV + "kernel_size: 4 pad: 1 stride: 2 group: 2 } " + blobs((4, 3, 4, 4), (6,))
    ),
    "inner product": _one("InnerProduct", "inner_product_param { num_output: 5 } " + blobs((5, 252), (5,))),
    "max pooling": _one("Pooling", _POOL + "pool: MAX kernel_size: 3 stride: 2 }"),
    "max pooling padded": _one("Pooling", _POOL + "pool: MAX kernel_size: 2 stride: 2 pad: 1 }"),
    "max pooling down": _one("Pooling", _POOL + "pool: MAX kernel_h: 2 kernel_w: 3 stride_h: 2 stride_w: 1 }"),
    "average pooling": _one("Pooling", _POOL + "pool: AVE kernel_size: 3 stride: 2 }"),
    "average pooling padded": _one("Pooling", _POOL + "pool: AVE kernel_size: 3 stride: 2 pad: 1 }"),
    "average pooling global": _one("Pooling", _POOL + "pool: AVE global_pooling: true }"),
    "lrn across": _one("LRN", "lrn_param { local_size: 3 alpha: 0.5 beta: 0.6 k: 1 }"),
    "lrn within": _one("LRN", "lrn_param { local_size: 3 alpha: 0.5 beta: 0.6 norm_region: WITHIN_CHANNEL }"),
    "batch norm": _one(
        "BatchNorm", "batch_norm_param { use_global_stats: true eps: 0.001 } " + blobs((4,), (4,), (1,))
    ),
    "scale": _one("Scale", "scale_param { bias_term: true } " + blobs((4,), (4,))),
    "relu": _one("ReLU"),
    "leaky relu": _one("ReLU", "relu_param { negative_slope: 0.2 }"),
    "prelu": _one("PReLU", blobs((4,))),
    "elu": _one("ELU"),
    "sigmoid": _one("Sigmoid"),
    "tanh": _one("TanH"),
    "absolute": _one("AbsVal"),
    "softplus": _one("BNLL"),
    "power": _one("Power", "power_param { power: 3 scale: 0.5 shift: 0.1 }"),
    "exponential": _one("Exp", "exp_param { base: 2 scale: 0.5 shift: 0.1 }"),
    "softmax": _one("Softmax"),
    "flatten": _one("Flatten"),
    "reshape": _one("Reshape", "reshape_param { shape { dim: 0 dim: -1 dim: 21 } }"),
    "permute": _one("Permute", "permute_param { order: 0 order: 2 order: 3 order: 1 }"),
    "normalize": _one("Normalize", "norm_param { across_spatial: false channel_shared: false } " + blobs((4,))),
    "mvn": _one("MVN", "mvn_param { eps: 0.000001 }"),
    "shuffle": _one("ShuffleChannel", "shuffle_channel_param { group: 2 }"),
    "concat": inputs(data=_DATA, other=(2, 3, 9, 7)) + layer("Concat", "", "data other"),
    "slice": inputs(data=_DATA)
    + layer("Slice", "slice_param { axis: 1 slice_point: 1 }", "data", "a b", "cut")
    + layer("Concat", "", "b a"),
    "crop": inputs(data=_DATA, other=(2, 4, 5, 4)) + layer("Crop", "crop_param { axis: 2 offset: 2 }", "data other"),
    "eltwise sum": inputs(data=_DATA, other=_DATA)
    + layer("Eltwise", "eltwise_param { operation: SUM coeff: 1 coeff: -0.5 }", "data other"),
    "eltwise product": inputs(data=_DATA, other=_DATA)
    + layer("Eltwise", "eltwise_param { operation: PROD }", "data other"),
    "eltwise maximum": inputs(data=_DATA, other=_DATA)
    + layer("Eltwise", "eltwise_param { operation: MAX }", "data other"),
    "prior boxes": inputs(data=_DATA, image=(2, 3, 70, 90))
    + layer(
        "PriorBox",
        "prior_box_param { min_size: 12 max_size: 20 aspect_ratio: 2 aspect_ratio: 3 flip: true clip: true "
        "variance: 0.1 variance: 0.1 variance: 0.2 variance: 0.2 }",
        "data image",
    ),
    "detection": inputs(loc=(1, 240), conf=(1, 180), image=(1, 3, 60, 80), map=(1, 2, 4, 5))
    + layer("Reshape", "reshape_param { shape { dim: 0 dim: 60 dim: 3 } }", "conf", "rows", "rows")
    + layer("Softmax", "softmax_param { axis: 2 }", "rows", "chances", "chances")
    + layer("Flatten", "", "chances", "flat", "flat")
    + layer(
        "PriorBox",
        "prior_box_param { min_size: 20 aspect_ratio: 2 clip: false "
        "variance: 0.1 variance: 0.1 variance: 0.2 variance: 0.2 }",
        "map image",
        "priors",
        "priors",
    )
    + layer(
        "DetectionOutput",
        "detection_output_param { num_classes: 3 share_location: true background_label_id: 0 code_type: CENTER_SIZE "
        "keep_top_k: 9 confidence_threshold: 0.3 "
        "nms_param { nms_threshold: 0.45 top_k: 20 } }",
        "loc flat priors",
    ),
}
"""Nets of one layer each that other runtimes know as well."""

NETWORK = (
    'name: "small"\n'
    + inputs(data=(1, 3, 16, 16))
    + layer(
        "Convolution",
        "convolution_param { num_output: 8 kernel_size: 3 pad: 1 bias_term: false } " + blobs((8, 3, 3, 3)),
        "data",
        "c1",
        "c1",
    )
    + layer("BatchNorm", blobs((8,), (8,), (1,)), "c1", "c1", "bn1")
    + layer("Scale", "scale_param { bias_term: true } " + blobs((8,), (8,)), "c1", "c1", "scale1")
    + layer("ReLU", "", "c1", "c1", "relu1")
    + layer("Pooling", "pooling_param { pool: MAX kernel_size: 3 stride: 2 }", "c1", "p1", "p1")
    + layer("LRN", "lrn_param { local_size: 5 alpha: 0.0001 beta: 0.75 }", "p1", "n1", "n1")
    + layer(
        "Convolution",
        "convolution_param { num_output: 8 kernel_size: 3 pad: 1 group: 8 } " + blobs((8, 1, 3, 3), (8,)),
        "n1",
        "c2",
        "c2",
    )
    + layer("Eltwise", "", "c2 n1", "sum", "sum")
    + layer("Concat", "", "sum n1", "both", "both")
    + layer("Pooling", "pooling_param { pool: AVE global_pooling: true }", "both", "p2", "p2")
    + layer("Dropout", "", "p2", "p2", "drop")
    + layer("InnerProduct", "inner_product_param { num_output: 10 } " + blobs((10, 16), (10,)), "p2", "fc", "fc")
    + layer("Softmax", "", "fc", "prob", "prob")
)
"""A whole small network."""
