"""Core layers: dense products, embeddings, masking, and what is the identity when a model runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.frontend.core.builder import dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.core.checks import checked_index
from tilewright.frontend.core.einsum import einsum
from tilewright.frontend.keras.activations import configured
from tilewright.frontend.keras.context import LayerCall
from tilewright.frontend.keras.layer import Layer, as_dtype, kernel_and_bias, variables
from tilewright.frontend.keras.registry import Slot, layer
from tilewright.frontend.keras.values import Value
from tilewright.frontend.keras.variables import under
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import FLOAT32, INT8, INT32, INT64
from tilewright.support.errors import UnsupportedError, UserError


@layer(
    "Identity",
    "InputLayer",
    "StochasticDepth",
    "Dropout",
    "AlphaDropout",
    "GaussianDropout",
    "GaussianNoise",
    "ActivityRegularization",
    "SpatialDropout1D",
    "SpatialDropout2D",
    "SpatialDropout3D",
    keeps_mask=True,
)
def identity(call: LayerCall) -> object:
    """What only training needs changes nothing when a model runs."""
    first = call.args[0]
    return first.expr if isinstance(first, Value) else first


@layer("LayerScale", variables=lambda item: variables(1))
def layer_scale(call: LayerCall) -> GraphExpr:
    """Each channel times a factor, as in the ConvNeXt models of `keras.applications`."""
    return call.builder.multiply(call.input(0), call.weight("vars/0"))


@layer("CustomScaleLayer")
def custom_scale(call: LayerCall) -> GraphExpr:
    """One tensor plus a share of another, as in the InceptionResNetV2 of `keras.applications`."""
    b, values = call.builder, call.all_inputs()
    if len(values) != 2:
        raise UserError(f"CustomScaleLayer takes two tensors, not {len(values)}")
    return b.add(values[0], b.multiply(values[1], call.layer.number("scale", 1.0)))


@layer("Lambda")
def function_of_python(call: LayerCall) -> object:
    """Code is never run."""
    raise UnsupportedError(
        "a Lambda layer is code of Python, which is not run",
        hint="write it with layers or keras.ops, export the model as SavedModel, TFLite or ONNX (model.export), or say "
        "what it means: from_keras(..., layers={'Lambda': function})",
    )


# Products


def _quantized(call: LayerCall) -> str | None:
    """How the weights of a product are quantised, if they are."""
    policy = call.layer.policy
    mode = policy.partition("_from_")[0] if "_from_" in policy else None
    if mode is not None and mode != "int8":
        raise UnsupportedError(
            f"weights quantised as {mode}", hint="save the model before model.quantize, and quantise with tw.quantize"
        )
    return mode


@layer("Dense", variables=kernel_and_bias, keeps_mask=True)
def dense(call: LayerCall) -> GraphExpr:
    """A product with the last dimension."""
    data, units = call.floats(), call.layer.integer("units")
    if rank_of(data) < 1:
        raise UserError("Dense needs data of at least 1 dimension")
    inputs = size_at(data, rank_of(data) - 1)
    if _quantized(call):
        result = _int8_product(call, data, "...a,ab->...b", (inputs, units))
    else:
        result = product_with(call, data, call.weight("vars/0", (inputs, units)))
    if call.layer.flag("use_bias", True):
        result = call.call("add", result, call.weight("vars/1", (units,)))
    return configured(call, result)


def product_with(call: LayerCall, data: GraphExpr, kernel: GraphExpr) -> GraphExpr:
    """Data times a matrix, along the last dimension."""
    b = call.builder
    if rank_of(data) == 1:
        result = call.call("matmul", b.reshape(data, (1, *sizes_of(data))), kernel)
        return b.reshape(result, sizes_of(result)[1:])
    return call.call("matmul", data, kernel)


def _int8_product(call: LayerCall, data: GraphExpr, equation: str, shape: Sequence[int]) -> GraphExpr:
    """Data rounded to bytes for each row, times bytes; then both scales are taken out."""
    b = call.builder
    kernel, scale = call.array("vars/0"), call.array(f"vars/{1 + call.layer.flag('use_bias', True)}")
    if kernel.shape != tuple(shape) or kernel.dtype != np.int8 or scale.shape != (shape[-1],):
        raise UserError(f"the quantised weights have shapes {kernel.shape} and {scale.shape}, not {tuple(shape)}")
    last = rank_of(data) - 1
    greatest = b.reduce("max", b.call("abs", data), (last,), True)
    factor = b.divide(127.0, b.add(greatest, 1e-7))
    steps = b.call("clip", b.call("round", b.multiply(data, factor)), minimum=-127.0, maximum=127.0)
    sums = product_with(call, b.cast(b.cast(steps, INT8), INT32), b.constant(kernel.astype(np.int32), INT32))
    return b.divide(b.cast(sums, call.dtype), b.multiply(factor, b.constant(scale.astype(np.float32), FLOAT32)))


def _einsum_shape(layer: Layer) -> Sequence[Slot]:
    return variables(1 + (layer.option("bias_axes") is not None))


@layer("EinsumDense", variables=_einsum_shape)
def einsum_dense(call: LayerCall) -> GraphExpr:
    """A product by an equation of letters; the bias has those of `bias_axes`."""
    if _quantized(call):
        raise UnsupportedError(
            "an EinsumDense layer with quantised weights", hint="save the model before model.quantize"
        )
    equation = call.layer.text("equation", "")
    data = call.floats()
    result = einsum(call.builder, equation, [data, call.weight("vars/0")])
    if call.layer.option("bias_axes") is not None:
        result = call.call("add", result, call.weight("vars/1"))  # it has dimensions of 1 where it needs them
    return configured(call, result)


# Embeddings and masks


def _embedding(call: LayerCall) -> GraphExpr:
    b, indices = call.builder, call.input(0)
    units = call.layer.integer("output_dim")
    if dtype_of(indices).is_float or dtype_of(indices).is_bool:
        indices = b.cast(indices, INT32)
    table = call.array("vars/0")
    if table.ndim != 2 or table.shape[1] != units:
        raise UserError(f"the embeddings have shape {table.shape}, not (…, {units})")
    if _quantized(call):
        scale = call.array("vars/1")
        table = (table / scale[:, None]).astype(np.float32)
    indices = checked_index(b, b.cast(indices, INT64), (table.shape[0],), (0,))
    return call.call("take", call.constant_of(table, call.dtype), indices, axis=0)


@layer("Embedding", variables=lambda item: variables(1), autocast=False)
def embedding(call: LayerCall) -> Value:
    """Rows of a table; index 0 is masked if the layer says so."""
    return Value(_embedding(call), _zero_mask(call))


def _zero_mask(call: LayerCall) -> GraphExpr | None:
    if not call.layer.flag("mask_zero"):
        return None
    indices = call.input(0)
    return call.call("not_equal", indices, call.builder.scalar(0, dtype_of(indices)))


@layer(
    "ReversibleEmbedding", variables=lambda item: variables(1 if item.flag("tie_weights", True) else 2), autocast=False
)
def reversible_embedding(call: LayerCall) -> object:
    """Rows of a table, or with `reverse` the products with all of them."""
    if not call.argument("reverse", 1, False):
        return embedding(call)
    b = call.builder
    data, tied = call.input(0), call.layer.flag("tie_weights", True)
    chosen = call.layer.option("reverse_dtype")
    dtype = call.dtype if chosen is None else as_dtype(chosen)
    kernel = b.cast(call.weight("vars/0") if tied else call.weight("vars/1"), dtype)
    logits = call.call("matmul", b.cast(data, dtype), kernel, transpose_b=tied)
    cap = call.layer.option("logit_soft_cap")
    if cap is not None:
        cap = call.layer.number("logit_soft_cap", 0.0)
        logits = b.multiply(b.call("tanh", b.divide(logits, cap)), cap)
    return logits


@layer("Masking")
def masking(call: LayerCall) -> Value:
    """Steps whose features all have one value count no more, and become 0."""
    b, data = call.builder, call.input(0)
    last = rank_of(data) - 1
    if last < 1:
        raise UserError("Masking needs data with steps and features")
    is_other = b.compare("not_equal", data, call.layer.number("mask_value", 0.0))
    counts = b.reduce("any", is_other, (last,), True)
    kept = b.multiply(data, b.cast(counts, dtype_of(data)))
    return Value(kept, b.reshape(counts, sizes_of(data)[:-1]))


# Wrappers


def _wrapped(item: Layer) -> Layer:
    return item.part("layer", item.option("layer"))


@layer("Wrapper", variables=lambda item: under(item, _wrapped(item)))
def wrapper(call: LayerCall) -> object:
    """The layer inside it."""
    return call.apply(_wrapped(call.layer), *call.args, **call.kwargs)


@layer("SpectralNormalization", variables=lambda item: [*variables(1, trainable=False), *under(item, _wrapped(item))])
def spectral_normalization(call: LayerCall) -> GraphExpr:
    """The layer inside it: its weights are those that training normalised."""
    result = call.one(_wrapped(call.layer), call.args[0])
    return call.builder.cast(result, dtype_of(call.input(0)))
