"""Functions of TensorFlow in models of Keras 2 (`TFOpLambda`): each is an operation of Keras 3, by other names.

tf.math.reduce_mean(x, axis=1)        is   Mean(axis=1)(x)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tilewright.frontend.keras.context import LayerCall
from tilewright.frontend.keras.layer import Layer
from tilewright.frontend.keras.registry import layer
from tilewright.support.errors import UnsupportedError, UserError


@dataclass(frozen=True)
class _Function:
    """An operation, the function's arguments that are tensors in its order, and those that are options."""

    operation: str
    tensors: tuple[str, ...] = ("x",)
    options: dict[str, str] = field(default_factory=dict)
    """Names of arguments, and what the operation calls them."""
    fixed: dict[str, Any] = field(default_factory=dict)


_AXES = {"axis": "axis", "keepdims": "keepdims"}
_FUNCTIONS: dict[str, _Function] = {
    **{
        f"{place}{name}": _Function(operation, ("x", "y"))
        for place in ("math.", "", "__operators__.")
        for name, operation in {
            "add": "Add",
            "subtract": "Subtract",
            "multiply": "Multiply",
            "divide": "Divide",
            "truediv": "Divide",
            "pow": "Power",
            "maximum": "Maximum",
            "minimum": "Minimum",
            "floordiv": "FloorDivide",
            "floormod": "Mod",
            "equal": "Equal",
            "not_equal": "NotEqual",
            "greater": "Greater",
            "greater_equal": "GreaterEqual",
            "less": "Less",
            "less_equal": "LessEqual",
            "logical_and": "LogicalAnd",
            "logical_or": "LogicalOr",
            "divide_no_nan": "DivideNoNan",
            "squared_difference": "SquaredDifference",
        }.items()
    },
    **{
        f"{place}{name}": _Function(operation)
        for place in ("math.", "nn.", "")
        for name, operation in {
            "relu": "Relu",
            "relu6": "Relu6",
            "sigmoid": "Sigmoid",
            "tanh": "Tanh",
            "elu": "Elu",
            "selu": "Selu",
            "silu": "Silu",
            "swish": "Silu",
            "softplus": "Softplus",
            "softsign": "Softsign",
            "exp": "Exp",
            "log": "Log",
            "log1p": "Log1p",
            "expm1": "Expm1",
            "sqrt": "Sqrt",
            "rsqrt": "Rsqrt",
            "square": "Square",
            "abs": "Absolute",
            "negative": "Negative",
            "floor": "Floor",
            "ceil": "Ceil",
            "round": "Round",
            "sin": "Sin",
            "cos": "Cos",
            "erf": "Erf",
            "sign": "Sign",
            "reciprocal": "Reciprocal",
            "logical_not": "LogicalNot",
            "identity": "Copy",
            "stop_gradient": "StopGradient",
            "zeros_like": "ZerosLike",
            "ones_like": "OnesLike",
        }.items()
    },
    **{
        f"{place}reduce_{name}": _Function(operation, ("input_tensor",), _AXES)
        for place in ("math.", "")
        for name, operation in {
            "mean": "Mean",
            "sum": "Sum",
            "max": "Max",
            "min": "Min",
            "prod": "Prod",
            "any": "Any",
            "all": "All",
            "std": "Std",
            "variance": "Var",
            "logsumexp": "Logsumexp",
        }.items()
    },
    "nn.softmax": _Function("Softmax", ("logits",), {"axis": "axis"}),
    "nn.log_softmax": _Function("LogSoftmax", ("logits",), {"axis": "axis"}),
    "nn.gelu": _Function("Gelu", ("features",), {"approximate": "approximate"}, {"approximate": False}),
    "nn.leaky_relu": _Function("LeakyRelu", ("features",), {"alpha": "negative_slope"}),
    "nn.l2_normalize": _Function("Normalize", ("x",), {"axis": "axis"}, {"order": 2, "epsilon": 1e-6}),
    "math.l2_normalize": _Function("Normalize", ("x",), {"axis": "axis"}, {"order": 2, "epsilon": 1e-6}),
    "nn.bias_add": _Function("Add", ("value", "bias")),
    "reshape": _Function("Reshape", ("tensor",), {"shape": "newshape"}),
    "transpose": _Function("Transpose", ("a",), {"perm": "axes"}),
    "expand_dims": _Function("ExpandDims", ("input",), {"axis": "axis"}),
    "squeeze": _Function("Squeeze", ("input",), {"axis": "axis"}),
    "concat": _Function("Concatenate", ("values",), {"axis": "axis"}),
    "stack": _Function("Stack", ("values",), {"axis": "axis"}, {"axis": 0}),
    "tile": _Function("Tile", ("input",), {"multiples": "repeats"}),
    "repeat": _Function("Repeat", ("input",), {"repeats": "repeats", "axis": "axis"}),
    "cast": _Function("Cast", ("x",), {"dtype": "dtype"}),
    "unstack": _Function("Unstack", ("value",), {"axis": "axis"}),
    "clip_by_value": _Function("Clip", ("t",), {"clip_value_min": "x_min", "clip_value_max": "x_max"}),
    "linalg.matmul": _Function("Matmul", ("a", "b")),
    "matmul": _Function("Matmul", ("a", "b")),
    "einsum": _Function("Einsum", (), {"equation": "subscripts"}),
    "pad": _Function("Pad", ("tensor",), {"paddings": "pad_width"}, {"mode": "constant"}),
    "gather": _Function("Take", ("params", "indices"), {"axis": "axis"}, {"axis": 0}),
    "compat.v1.gather": _Function("Take", ("params", "indices"), {"axis": "axis"}, {"axis": 0}),
    "one_hot": _Function("OneHot", ("indices",), {"depth": "num_classes"}),
    "where": _Function("Where", ("condition", "x", "y")),
    "math.argmax": _Function("Argmax", ("input",), {"axis": "axis"}),
    "argmax": _Function("Argmax", ("input",), {"axis": "axis"}),
    "math.cumsum": _Function("Cumsum", ("x",), {"axis": "axis"}, {"axis": 0}),
    "math.top_k": _Function("TopK", ("input",), {"k": "k"}),
    "image.resize": _Function("Resize", ("images",), {"size": "size", "method": "interpolation"}),
    "nn.depth_to_space": _Function("DepthToSpace", ("input",), {"block_size": "block_size"}),
    "nn.space_to_depth": _Function("SpaceToDepth", ("input",), {"block_size": "block_size"}),
    "reverse": _Function("Flip", ("tensor",), {"axis": "axis"}),
}  # fmt: skip


@layer("TFOpLambda", "SlicingOpLambda", autocast=False)
def function_of_tensorflow(call: LayerCall) -> Any:
    """A function of TensorFlow by its name."""
    name = call.layer.text("function", "")
    if name == "__operators__.getitem":
        return call.apply(_operation(call, "GetItem", {}), call.args[0], _key(call.kwargs.get("slice_spec")))
    function = _FUNCTIONS.get(name)
    if function is None:
        raise UnsupportedError(
            f"the function tf.{name} in a model of Keras 2",
            hint="export the model as SavedModel, TFLite or ONNX, or build it with layers of Keras",
        )
    config = dict(function.fixed)
    kwargs = {key: value for key, value in call.kwargs.items() if value is not None and key != "name"}
    given = list(call.args)
    for place, key in enumerate(function.tensors):
        if place >= len(given) and key in kwargs:
            given.append(kwargs.pop(key))
    names = [key for key in function.options if key not in kwargs]
    for value, key in zip(given[max(len(function.tensors), 1) :], names, strict=False):
        kwargs[key] = value
    given = given[: max(len(function.tensors), 1)]
    transposed = kwargs.pop("transpose_b", False)
    for key, value in kwargs.items():
        if key not in function.options:
            if value in (False, 0) or key in ("dtype", "output_type", "batch_dims", "validate_indices"):
                continue
            raise UnsupportedError(f"the argument {key}={str(value)[:40]} of tf.{name}")
        config[function.options[key]] = value
    if transposed:
        second = call.as_tensor(given[1])
        given[1] = call.one(_operation(call, "Swapaxes", {"axis1": -2, "axis2": -1}), second)
    return call.apply(_operation(call, function.operation, config), *given)


def _operation(call: LayerCall, kind: str, config: dict[str, Any]) -> Layer:
    return Layer(kind, call.layer.name, config, call.layer.weights, is_operation=True, depth=call.layer.depth)


def _key(described: Any) -> tuple[Any, ...]:
    """Indices as Keras 2 writes them."""
    listed = described if isinstance(described, list) else [described]
    keys: list[Any] = []
    for item in listed:
        if isinstance(item, dict) and "value" in item and item.get("class_name") == "__ellipsis__":
            keys.append(Ellipsis)
        elif isinstance(item, dict) and {"start", "stop", "step"} <= set(item):
            keys.append(slice(item["start"], item["stop"], item["step"]))
        elif item is None or isinstance(item, int):
            keys.append(item)
        elif isinstance(item, dict) and item.get("class_name") in ("__ellipsis__", "Ellipsis"):
            keys.append(Ellipsis)
        else:
            raise UserError(f"an index {str(item)[:40]!r}")
    return tuple(keys)
