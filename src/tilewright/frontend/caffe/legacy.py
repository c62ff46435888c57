"""Nets of older versions as those of today: layers of version 1 (types are numbers) and 0 (no messages of options)."""

from __future__ import annotations

from typing import Any

from tilewright.frontend.caffe.schema import NET
from tilewright.support.errors import UserError

_V1_TYPES = {
    1: "Accuracy",
    2: "BNLL",
    3: "Concat",
    4: "Convolution",
    5: "Data",
    6: "Dropout",
    7: "EuclideanLoss",
    8: "Flatten",
    9: "HDF5Data",
    10: "HDF5Output",
    11: "Im2col",
    12: "ImageData",
    13: "InfogainLoss",
    14: "InnerProduct",
    15: "LRN",
    16: "MultinomialLogisticLoss",
    17: "Pooling",
    18: "ReLU",
    19: "Sigmoid",
    20: "Softmax",
    21: "SoftmaxWithLoss",
    22: "Split",
    23: "TanH",
    24: "WindowData",
    25: "Eltwise",
    26: "Power",
    27: "SigmoidCrossEntropyLoss",
    28: "HingeLoss",
    29: "MemoryData",
    30: "ArgMax",
    31: "Threshold",
    32: "DummyData",
    33: "Slice",
    34: "MVN",
    35: "AbsVal",
    36: "Silence",
    37: "ContrastiveLoss",
    38: "Exp",
    39: "Deconvolution",
}
_V0_TYPES = {
    "accuracy": "Accuracy",
    "bnll": "BNLL",
    "concat": "Concat",
    "conv": "Convolution",
    "data": "Data",
    "dropout": "Dropout",
    "euclidean_loss": "EuclideanLoss",
    "flatten": "Flatten",
    "innerproduct": "InnerProduct",
    "lrn": "LRN",
    "pool": "Pooling",
    "relu": "ReLU",
    "sigmoid": "Sigmoid",
    "softmax": "Softmax",
    "softmax_loss": "SoftmaxWithLoss",
    "split": "Split",
    "tanh": "TanH",
}


def upgraded(net: Any, source: str) -> Any:
    """A net whose layers all are of version 2."""
    if not net.layers:
        return net
    if net.layer:
        raise UserError("the net has layers of two versions ('layer' and 'layers')", where=source)
    pads: dict[str, int] = {}
    for old in net.layers:
        if old.HasField("layer"):
            _from_v0(net, old, pads, source)
        else:
            _from_v1(net, old, source)
    return net


def _from_v1(net: Any, old: Any, source: str) -> None:
    if old.type not in _V1_TYPES:
        raise UserError(f"the layer '{old.name}' has the type number {old.type}, which is not known", where=source)
    layer = net.layer.add(name=old.name, type=_V1_TYPES[old.type], bottom=old.bottom, top=old.top)
    layer.param.extend(NET.message("ParamSpec")(name=name) for name in old.param)
    layer.include.extend(old.include)
    layer.exclude.extend(old.exclude)
    for field, value in old.ListFields():
        if field.name.endswith("_param"):
            getattr(layer, field.name).CopyFrom(value)


def _from_v0(net: Any, old: Any, pads: dict[str, int], source: str) -> None:
    inner = old.layer
    if inner.type == "padding":
        # Padding was a layer of its own, before a convolution or a pool.
        for top, bottom in zip(old.top, old.bottom, strict=False):
            pads[top] = inner.pad
            net.layer.add(name=inner.name, type="Split", bottom=[bottom], top=[top])
        return
    if inner.type not in _V0_TYPES:
        raise UserError(f"the layer '{inner.name}' has the type '{inner.type}', which is not known", where=source)
    layer = net.layer.add(name=inner.name, type=_V0_TYPES[inner.type], bottom=old.bottom, top=old.top)
    pad = inner.pad or next((pads[bottom] for bottom in old.bottom if bottom in pads), 0)
    match inner.type:
        case "conv":
            options = layer.convolution_param
            options.num_output, options.bias_term, options.group = inner.num_output, inner.biasterm, inner.group
            options.pad.append(pad)
            options.kernel_size.append(inner.kernelsize)
            options.stride.append(inner.stride)
        case "pool":
            pool = layer.pooling_param
            pool.pool, pool.kernel_size, pool.stride, pool.pad = inner.pool, inner.kernelsize, inner.stride, pad
        case "innerproduct":
            layer.inner_product_param.num_output = inner.num_output
            layer.inner_product_param.bias_term = inner.biasterm
        case "lrn":
            lrn = layer.lrn_param
            lrn.local_size, lrn.alpha, lrn.beta, lrn.k = inner.local_size, inner.alpha, inner.beta, inner.k
        case "concat":
            layer.concat_param.concat_dim = inner.concat_dim
        case "data":
            layer.data_param.batch_size, layer.data_param.crop_size = inner.batchsize, inner.cropsize
