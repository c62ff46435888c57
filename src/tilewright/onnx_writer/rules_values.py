"""How texts, sequences and optionals are written as ONNX nodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.graph.ir.expr import Call
from tilewright.ir.dtype import STRING
from tilewright.ir.types import OptionalType, SequenceType, TensorType, Type
from tilewright.onnx_writer.writer import REFUSED, Writer, rule
from tilewright.support.errors import UnsupportedError

_ML = "ai.onnx.ml"
REFUSED["sequence.pairs"] = "ONNX has sequences of maps for it, which no operator reads"


def _declare(name: str, operation: str) -> None:
    def write(writer: Writer, call: Call, inputs: list[str]) -> str:
        return str(writer.node(operation, *inputs))

    rule(name)(write)


for _name, _operation in {
    "text.concat": "StringConcat",
    "text.equal": "Equal",
    "text.where": "Where",
    "sequence.erase": "SequenceErase",
    "sequence.at": "SequenceAt",
    "sequence.length": "SequenceLength",
    "sequence.insert": "SequenceInsert",
    "optional.has": "OptionalHasElement",
    "optional.get": "OptionalGetElement",
}.items():
    _declare(_name, _operation)


# Texts


@rule("text.split")
def _split(writer: Writer, call: Call, inputs: list[str]) -> tuple[str, ...]:
    own: Any = call.attributes
    most = own.maxsplit if own.maxsplit >= 0 else None
    found: tuple[str, ...] = writer.node(
        "StringSplit", inputs[0], outputs=2, delimiter=own.delimiter or None, maxsplit=most
    )
    return found


@rule("text.full_match")
def _full_match(writer: Writer, call: Call, inputs: list[str]) -> str:
    own: Any = call.attributes
    return str(writer.node("RegexFullMatch", inputs[0], pattern=own.pattern))


@rule("text.normalize")
def _normalize(writer: Writer, call: Call, inputs: list[str]) -> str:
    own: Any = call.attributes
    return str(
        writer.node(
            "StringNormalizer",
            inputs[0],
            case_change_action=own.case_change_action,
            is_case_sensitive=int(own.is_case_sensitive),
            stopwords=list(own.stopwords) or None,
        )
    )


@rule("text.lookup")
def _lookup(writer: Writer, call: Call, inputs: list[str]) -> str:
    """LabelEncoder: which attributes it has depends on the types of keys and values."""
    own: Any = call.attributes
    names = {"int": "int64s", "str": "strings", "float": "floats"}
    attributes: dict[str, Any] = {}
    for what, values in (("keys", own.keys), ("values", own.values)):
        kinds = {type(value).__name__ for value in values}
        if len(kinds) != 1 or not kinds <= names.keys():
            raise UnsupportedError(f"a table whose {what} are of several types cannot be written to an ONNX model")
        attributes[f"{what}_{names[kinds.pop()]}"] = list(values)
    default = type(own.default).__name__
    if own.default is not None:
        attributes[f"default_{names[default].removesuffix('s')}"] = own.default
    data = inputs[0]
    source, to = call.args[0].tensor_type.dtype, call.tensor_type.dtype
    known = {"int": "int64", "float": "float32", "str": "string"}
    key, value = (known[type(values[0]).__name__] for values in (own.keys, own.values))
    if source.name != key:
        data = writer.node("Cast", data, to=writer.element(source.of(key)))
    found = writer.node("LabelEncoder", data, domain=_ML, **attributes)
    return str(found if to.name == value else writer.node("Cast", found, to=writer.element(to)))


@rule("text.from_numbers", "text.to_numbers")
def _numbers(writer: Writer, call: Call, inputs: list[str]) -> str:
    return str(writer.node("Cast", inputs[0], to=writer.element(call.tensor_type.dtype)))


@rule("text.ngrams")
def _ngrams(writer: Writer, call: Call, inputs: list[str]) -> str:
    own: Any = call.attributes
    pool = "pool_strings" if call.args[0].tensor_type.dtype is STRING else "pool_int64s"
    if max(own.places) + 1 != own.width:
        raise UnsupportedError("n-grams whose last place no gram has cannot be written to an ONNX model")
    attributes: dict[str, Any] = {
        "mode": "TF",
        "min_gram_length": own.shortest,
        "max_gram_length": own.longest,
        "max_skip_count": own.skips,
        "ngram_counts": list(own.starts),
        "ngram_indexes": list(own.places),
        pool: list(own.pool),
    }
    return str(writer.node("TfIdfVectorizer", inputs[0], **attributes))


@rule("text.transpose")
def _transpose(writer: Writer, call: Call, inputs: list[str]) -> str:
    own: Any = call.attributes
    return str(writer.node("Transpose", inputs[0], perm=own.axes))


@rule("text.take")
def _take(writer: Writer, call: Call, inputs: list[str]) -> str:
    own: Any = call.attributes
    return str(writer.node("Gather", *inputs, axis=own.axis))


@rule("text.concatenate")
def _concatenate(writer: Writer, call: Call, inputs: list[str]) -> str:
    own: Any = call.attributes
    return str(writer.node("Concat", *inputs, axis=own.axis))


# Sequences


@rule("sequence.make")
def _make(writer: Writer, call: Call, inputs: list[str]) -> str:
    own: Any = call.attributes
    if inputs:
        return str(writer.node("SequenceConstruct", *inputs))
    item: Type = own.result.item
    if not isinstance(item, TensorType):
        raise UnsupportedError("an empty sequence of values that are no tensors cannot be written to an ONNX model")
    return str(writer.node("SequenceEmpty", dtype=writer.element(item.dtype)))


@rule("sequence.concatenate")
def _joined(writer: Writer, call: Call, inputs: list[str]) -> str:
    own: Any = call.attributes
    return str(writer.node("ConcatFromSequence", inputs[0], axis=own.axis, new_axis=int(own.new_axis)))


@rule("sequence.stack")
def _stack(writer: Writer, call: Call, inputs: list[str]) -> str:
    """Of no items, an empty tensor: ConcatFromSequence wants one item at least."""
    own: Any = call.attributes
    kind = call.tensor_type
    before, after = ([writer.constant([number], np.int64) for number in ends] for ends in ((0, own.axis), (own.axis,)))

    def empty() -> list[str]:
        last = writer.constant([2**62], np.int64)
        parts = [writer.node("Slice", inputs[1], *before), writer.constant([0], np.int64)]
        shape = writer.node("Concat", *parts, writer.node("Slice", inputs[1], *after, last), axis=0)
        return [writer.node("Expand", writer.number(0, kind.dtype), shape)]

    def stacked() -> list[str]:
        return [writer.node("ConcatFromSequence", inputs[0], axis=own.axis, new_axis=1)]

    count = writer.node("SequenceLength", inputs[0])
    condition = writer.node("Equal", count, writer.constant(np.int64(0)))
    open_kind = TensorType((None,) * len(kind.shape or ()), kind.dtype)
    branches = {
        "then_branch": writer.graph((), empty, [open_kind]),
        "else_branch": writer.graph((), stacked, [open_kind]),
    }
    return str(writer.node("If", condition, **branches))


@rule("sequence.split")
def _split_to_sequence(writer: Writer, call: Call, inputs: list[str]) -> str:
    own: Any = call.attributes
    return str(writer.node("SplitToSequence", *inputs, axis=own.axis, keepdims=int(own.keepdims)))


@rule("optional.make")
def _optional(writer: Writer, call: Call, inputs: list[str]) -> str:
    own: Any = call.attributes
    if inputs:
        return str(writer.node("Optional", inputs[0]))
    assert isinstance(own.result, OptionalType)
    item = own.result.item
    if not isinstance(item, (TensorType, SequenceType)):
        raise UnsupportedError("an optional that holds no tensor cannot be written to an ONNX model")
    return str(writer.node("Optional", type=writer.type_proto(item)))
