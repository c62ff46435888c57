"""Random nodes, family by family: values that fit, attributes of every kind.

Operators without a maker of their own come from the onnx package's test cases (`graph_donors.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.fuzz.graph_draft import FLOATS, INTEGERS, Draft

Maker = Callable[[Draft, str], list[str] | None]
MAKERS: dict[str, Maker] = {}
NUMBERS = (*FLOATS, *INTEGERS)


def maker(*op_types: str) -> Callable[[Maker], Maker]:
    """Register a maker of nodes of some operators."""

    def register(make: Maker) -> Maker:
        MAKERS.update(dict.fromkeys(op_types, make))
        return make

    return register


@maker(*"Abs Neg Sign Ceil Floor Round Exp Erf Sin Cos Tan Atan Sinh Cosh Tanh Asinh Sigmoid Softplus Softsign Relu "
       "HardSwish Mish Identity IsNaN IsInf".split())  # fmt: skip
def unary(d: Draft, op: str) -> list[str] | None:
    """Functions of any number."""
    integers = op in ("Abs", "Neg", "Sign", "Identity", "Relu")
    dtypes = ("int64", "int32", "int8") if integers and d.chance(0.3) else FLOATS
    return d.node(op, [d.pick(dtypes)])


@maker("Log", "Sqrt", "Reciprocal", "Acosh", "Asin", "Acos", "Atanh")
def unary_within(d: Draft, op: str) -> list[str] | None:
    """Functions of some numbers."""
    low, high = {"Acosh": (1.1, 4.0), "Asin": (-0.9, 0.9), "Acos": (-0.9, 0.9), "Atanh": (-0.9, 0.9)}.get(
        op, (0.2, 4.0)
    )

    def fits(value: Any) -> bool:
        return bool(value.min(initial=low) >= low and value.max(initial=high) <= high)

    return d.node(op, [d.pick(where=fits, low=low, high=high)])


@maker("Elu", "Selu", "Celu", "LeakyRelu", "ThresholdedRelu", "HardSigmoid", "Shrink", "Gelu", "Swish")
def activation(d: Draft, op: str) -> list[str] | None:
    """Functions with attributes."""
    attributes: dict[str, Any] = {}
    if op == "Gelu":
        attributes = {"approximate": d.one("none", "tanh")}
    elif op == "Shrink":
        attributes = {"lambd": float(d.one(0.25, 0.5, 1.0)), "bias": float(d.one(0.0, 0.3, -0.2))}
    elif op != "Swish" and d.chance(0.7):
        attributes = {"alpha": float(d.one(0.1, 0.5, 1.0, 1.5))}
        if op in ("HardSigmoid", "Selu"):
            attributes["beta" if op == "HardSigmoid" else "gamma"] = float(d.one(0.3, 0.6, 1.2))
    return d.node(op, [d.pick()], **attributes)


@maker("Add", "Sub", "Mul", "Div", "Pow", "Mod", "PRelu")
def binary(d: Draft, op: str) -> list[str] | None:
    """Arithmetic with broadcasting."""
    integers = op in ("Add", "Sub", "Mul", "Div", "Mod") and d.chance(0.25)
    a = d.pick(("int64", "int32") if integers else FLOATS, low=0.3 if op == "Pow" else -2.0)
    b = d.like(a, 0.5 if op in ("Div", "Mod", "Pow") and not integers else 1.0 if op in ("Div", "Mod") else -2.0, 3.0)
    attributes = {"fmod": 1} if op == "Mod" and (not integers or d.chance(0.5)) else {}
    inputs = [b, a] if op in ("Add", "Sub", "Mul") and d.chance(0.4) else [a, b]
    return d.node(op, inputs, **attributes)


@maker("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
def comparison(d: Draft, op: str) -> list[str] | None:
    """Truth values of two numbers."""
    a = d.pick(NUMBERS)
    return d.node(op, [a, d.like(a)])


@maker("And", "Or", "Xor", "Not")
def logical(d: Draft, op: str) -> list[str] | None:
    """Truth values of truth values."""
    a = d.pick(("bool",))
    return d.node(op, [a] if op == "Not" else [a, d.like(a)])


@maker("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "BitShift")
def bitwise(d: Draft, op: str) -> list[str] | None:
    """Bits of whole numbers."""
    if op == "BitShift":
        a = d.pick(("uint8", "uint32", "uint64"), low=0, high=200)
        return d.node(op, [a, d.like(a, 0, 6)], direction=d.one("LEFT", "RIGHT"))
    a = d.pick(("int32", "int64", "uint8", "int8"), low=-100, high=100)
    return d.node(op, [a] if op == "BitwiseNot" else [a, d.like(a, -100, 100)])


@maker("Sum", "Mean", "Max", "Min")
def variadic(d: Draft, op: str) -> list[str] | None:
    """Of one number or several."""
    a = d.pick(("int64", "int32") if op in ("Max", "Min") and d.chance(0.2) else FLOATS)
    return d.node(op, [a, *(d.like(a) for _ in range(d.whole(0, 2)))])


@maker("Where", "Clip")
def choice(d: Draft, op: str) -> list[str] | None:
    """One of two numbers; a number within others."""
    a = d.pick(NUMBERS)
    value = d.values[a]
    if op == "Where":
        shape = [1 if d.chance(0.3) else size for size in value.shape]
        return d.node(op, [d.fresh(shape, "bool"), a, d.like(a)])
    low, high = sorted(d.numbers((2,), value.dtype.name).tolist())
    bounds = [d.add(np.asarray(item, value.dtype)) if d.chance(0.7) else "" for item in (low, high)]
    return d.node(op, [a, *bounds])


@maker("Cast", "CastLike")
def cast(d: Draft, op: str) -> list[str] | None:
    """Numbers of another type."""
    a = d.pick((*NUMBERS, "bool"))
    target = str(d.one("float32", "float64", "float16", "int64", "int32", "int8", "uint8", "bool"))
    if d.values[a].min(initial=0) < 0 and target == "uint8":
        target = "int32"
    if op == "CastLike":
        return d.node(op, [a, d.fresh((1,), target, 0, 1)])
    return d.node(op, [a], to=_TYPES[target])


_TYPES = {"float32": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7, "bool": 9, "float16": 10, "float64": 11}


@maker(*"ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp "
       "ReduceSumSquare".split())  # fmt: skip
def reduction(d: Draft, op: str) -> list[str] | None:
    """Over some axes, all, or none."""
    low = 0.2 if op == "ReduceLogSum" else -2.0
    integers = op in ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceSumSquare")
    a = d.pick(("int64", "int32") if integers and d.chance(0.2) else FLOATS, low=low)
    rank = d.values[a].ndim
    attributes = {"keepdims": d.whole(0, 1)} if d.chance(0.7) else {}
    if d.chance(0.25):
        return d.node(op, [a], noop_with_empty_axes=d.whole(0, 1), **attributes)
    return d.node(op, [a, d.parameter(d.axes(rank) if rank else [])], **attributes)


@maker("ArgMax", "ArgMin", "CumSum", "CumProd", "Softmax", "LogSoftmax", "Hardmax", "LpNormalization")
def along_an_axis(d: Draft, op: str) -> list[str] | None:
    """What is done along one axis."""
    a = d.pick(least=1)
    axis = d.axis(d.values[a].ndim)
    if op in ("CumSum", "CumProd"):
        place = d.parameter(axis)
        return d.node(op, [a, place], exclusive=d.whole(0, 1), reverse=d.whole(0, 1))
    attributes: dict[str, Any] = {"axis": axis} if d.chance(0.8) else {}
    if op.startswith("Arg"):
        attributes |= {"keepdims": d.whole(0, 1), "select_last_index": d.whole(0, 1)}
    if op == "LpNormalization":
        attributes["p"] = d.whole(1, 2)
    return d.node(op, [a], **attributes)


@maker("TopK")
def top_k(d: Draft, op: str) -> list[str] | None:
    """The greatest or least, in order."""
    a = d.pick(("float32", "float64", "int64"), least=1)
    axis = d.axis(d.values[a].ndim)
    count = d.whole(0 if d.chance(0.1) else 1, max(1, d.values[a].shape[axis]))
    return d.node(op, [a, d.parameter([count])], 2, axis=axis, largest=d.whole(0, 1), sorted=1)


@maker("MatMul", "Gemm", "Einsum", "FusedMatMul")
def product(d: Draft, op: str) -> list[str] | None:
    """Products of matrices."""
    rows, depth, columns = (int(d.one(1, 2, 3, 5, 8)) for _ in range(3))
    dtype = str(d.one(*FLOATS))
    if op == "Gemm":
        a_turned, b_turned = d.whole(0, 1), d.whole(0, 1)
        a = d.fresh((depth, rows) if a_turned else (rows, depth), dtype)
        b = d.fresh((columns, depth) if b_turned else (depth, columns), dtype)
        c = [d.fresh(d.one((columns,), (rows, columns), (1, columns), (rows, 1), (1,)), dtype)] if d.chance(0.7) else []
        return d.node(
            op, [a, b, *c], transA=a_turned, transB=b_turned, alpha=float(d.one(1.0, 0.5)), beta=float(d.one(1.0, 2.0))
        )
    if op == "Einsum":
        text, *shapes = d.one(
            ("ij,jk->ik", (rows, depth), (depth, columns)), ("bij,bkj->bik", (2, rows, depth), (2, columns, depth)),
            ("ij->ji", (rows, depth)), ("ij->", (rows, depth)), ("i,j->ij", (rows,), (columns,)),
            ("ii->i", (rows, rows)),
            ("...ij,jk", (2, rows, depth), (depth, columns)),
        )  # fmt: skip
        return d.node(op, [d.fresh(shape, dtype) for shape in shapes], equation=text)
    batch = d.shape(d.whole(0, 2))
    left = (
        d.pick((dtype,), where=lambda value: value.ndim >= 1, least=1)
        if d.chance(0.5)
        else d.fresh((*batch, rows, depth), dtype)
    )
    inner = d.values[left].shape[-1]
    other = tuple(1 if d.chance(0.3) else size for size in d.values[left].shape[:-2]) if d.values[left].ndim > 2 else ()
    if op == "FusedMatMul":
        right = d.fresh((*other, columns, inner), "float32")
        left = left if d.values[left].ndim > 1 else d.fresh((rows, inner))
        return d.node(op, [left, right], domain="com.microsoft", transB=1, alpha=0.5)
    right = d.fresh((inner,) if d.chance(0.2) else (*other, inner, columns), d.values[left].dtype.name)
    return d.node(op, [left, right])


@maker(*"LayerNormalization RMSNormalization BatchNormalization InstanceNormalization GroupNormalization LRN "
       "MeanVarianceNormalization".split())  # fmt: skip
def normalization(d: Draft, op: str) -> list[str] | None:
    """What is made of mean and deviation."""
    if op in ("LayerNormalization", "RMSNormalization"):
        a = d.pick(("float32", "float64"), least=1)
        axis = d.axis(d.values[a].ndim)
        shape = d.values[a].shape[axis:]
        dtype = d.values[a].dtype.name
        bias = [d.fresh(shape, dtype)] if op == "LayerNormalization" and d.chance(0.6) else []
        return d.node(op, [a, d.fresh(shape, dtype), *bias], axis=axis, epsilon=float(d.one(1e-5, 1e-2)))
    a = d.pick(("float32",), rank=d.one(3, 4), where=lambda value: value.shape[1] > 0)
    channels = d.values[a].shape[1]
    if op == "LRN":
        return d.node(op, [a], size=int(d.one(1, 3, 5)), alpha=0.3, beta=0.6, bias=1.5)
    if op == "MeanVarianceNormalization":
        return d.node(op, [d.pick(("float32",), rank=4)])
    scale, shift = d.fresh((channels,)), d.fresh((channels,))
    if op == "BatchNormalization":
        return d.node(op, [a, scale, shift, d.fresh((channels,)), d.fresh((channels,), low=0.3)])
    if op == "GroupNormalization":
        groups = int(d.one(*(n for n in range(1, channels + 1) if channels % n == 0)))
        return d.node(op, [a, scale, shift], num_groups=groups, epsilon=1e-2)
    return d.node(op, [a, scale, shift], epsilon=1e-2)


@maker("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger", "QLinearMatMul")
def quantized(d: Draft, op: str) -> list[str] | None:
    """Whole numbers for numbers."""
    kind = str(d.one("uint8", "int8"))
    zero = d.fresh((), kind, -3, 3)
    if op == "QuantizeLinear":
        return d.node(op, [d.pick(("float32",)), d.fresh((), low=0.05, high=0.2), zero])
    if op == "DequantizeLinear":
        return d.node(op, [d.pick((kind,), low=-90, high=90), d.fresh((), low=0.05, high=0.2), zero])
    if op == "DynamicQuantizeLinear":
        return d.node(op, [d.pick(("float32",), where=lambda value: value.size > 0)], 3)
    a, b = d.fresh((3, 4), "uint8", 0, 90), d.fresh((4, 5), kind, -90, 90)
    if op == "MatMulInteger":
        return d.node(op, [a, b, d.fresh((), "uint8", 0, 9), zero])
    if op == "ConvInteger":
        return d.node(
            op, [d.fresh((1, 2, 5, 6), "uint8", 0, 90), d.fresh((3, 2, 3, 2), kind, -9, 9), d.fresh((), "uint8", 0, 9)]
        )
    scales = [d.fresh((), low=0.05, high=0.2) for _ in range(3)]
    zeros = [d.fresh((), "uint8", 0, 9), zero, d.fresh((), "uint8", 0, 9)]
    return d.node(op, [a, scales[0], zeros[0], b, scales[1], zeros[1], scales[2], zeros[2]])


@maker("LSTM", "GRU", "RNN")
def recurrent(d: Draft, op: str) -> list[str] | None:
    """Steps one after the other."""
    steps, batch, width, hidden = d.whole(1, 4), d.whole(1, 3), d.whole(1, 4), d.whole(1, 4)
    direction = str(d.one("forward", "reverse", "bidirectional"))
    count, gates = 2 if direction == "bidirectional" else 1, {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    inputs = [
        d.fresh((steps, batch, width)),
        d.fresh((count, gates * hidden, width)),
        d.fresh((count, gates * hidden, hidden)),
    ]
    inputs.append(d.fresh((count, 2 * gates * hidden)) if d.chance(0.5) else "")
    inputs.append(d.fresh((batch,), "int32", 1, steps) if d.chance(0.3) else "")
    inputs.append(d.fresh((count, batch, hidden)) if d.chance(0.5) else "")
    attributes = {"linear_before_reset": d.whole(0, 1)} if op == "GRU" else {}
    return d.node(op, inputs, 3 if op == "LSTM" else 2, hidden_size=hidden, direction=direction, **attributes)
