"""Core ML models written with the importer's own schema: networks of layers, programs, models on rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.frontend.coreml.schema import SCHEMA
from tilewright.graph.interpreter import evaluate
from tilewright.ir.function import IRModule

FLOAT32, INT32 = 65568, 131104
_NAMES = {"float16": 10, "float32": 11, "int32": 23, "uint8": 31, "int8": 21, "bool": 1}


def message(kind: str, /, **fields: Any) -> Any:
    """A message of the schema; dictionaries become messages inside."""
    return SCHEMA.message(kind)(**fields)


def feature(name: str, shape: Sequence[int], dtype: int = FLOAT32) -> Any:
    """An array by name."""
    kind = message("FeatureType", multiArrayType=message("ArrayFeatureType", shape=shape, dataType=dtype))
    return message("FeatureDescription", name=name, type=kind)


def number(name: str, kind: str = "doubleType") -> Any:
    """A number or a text by name."""
    return message("FeatureDescription", name=name, type=message("FeatureType", **{kind: message("Nothing")}))


def dictionary(name: str) -> Any:
    """Probabilities by name."""
    return message(
        "FeatureDescription", name=name, type=message("FeatureType", dictionaryType=message("DictionaryFeatureType"))
    )


def model(inputs: Sequence[Any], outputs: Sequence[Any], **own: Any) -> bytes:
    """A model: its description, and what it is."""
    description = message(
        "ModelDescription",
        input=inputs,
        output=outputs,
        predictedFeatureName=own.pop("label", ""),
        predictedProbabilitiesName=own.pop("chances", ""),
    )
    return bytes(message("Model", specificationVersion=4, description=description, **own).SerializeToString())


def weights(values: Any) -> Any:
    """Weights as floats."""
    return message("WeightParams", floatValue=np.asarray(values, np.float32).ravel())


def layer(kind: str, inputs: Sequence[str], outputs: Sequence[str], name: str = "", **fields: Any) -> Any:
    """A layer of a network."""
    field = SCHEMA.message("NeuralNetworkLayer").DESCRIPTOR.fields_by_name[kind]
    params = SCHEMA.message(field.message_type.name)(**fields)
    return message("NeuralNetworkLayer", name=name or kind, input=inputs, output=outputs, **{kind: params})


def network(
    layers: Sequence[Any],
    inputs: Mapping[str, Sequence[int]],
    outputs: Sequence[str] = ("y",),
    exact: bool = True,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> bytes:
    """A network: the shapes of its inputs, the names of its outputs."""
    own = message("NeuralNetwork", layers=layers, arrayInputShapeMapping=int(exact), imageInputShapeMapping=int(exact))
    return model(
        [feature(name, shape) for name, shape in inputs.items()],
        [feature(name, (shapes or {}).get(name, ())) for name in outputs],
        neuralNetwork=own,
    )


def value(data: Any, dtype: str | None = None) -> Any:
    """A value of a program: numbers in a shape, or a text."""
    if isinstance(data, str):
        kind = message("TensorType", dataType=2)
        given = message("TensorValue", strings=message("RepeatedStrings", values=[data]))
    else:
        array = np.asarray(data)
        if array.dtype.kind == "f" and dtype is None:
            array = array.astype(np.float32)
        if array.dtype.kind == "i" and dtype is None:
            array = array.astype(np.int32)
        array = array if dtype is None else array.astype(dtype)
        kind = message("TensorType", dataType=_NAMES[array.dtype.name], rank=array.ndim, dimensions=_dims(array.shape))
        if array.dtype.name == "float32":
            given = message("TensorValue", floats=message("RepeatedFloats", values=array.ravel()))
        elif array.dtype.name == "int32":
            given = message("TensorValue", ints=message("RepeatedInts", values=array.ravel()))
        elif array.dtype.name == "bool":
            given = message("TensorValue", bools=message("RepeatedBools", values=array.ravel()))
        else:
            given = message("TensorValue", bytes=message("RepeatedBytes", values=array.tobytes()))
    return message(
        "Value", type=message("ValueType", tensorType=kind), immediateValue=message("ImmediateValue", tensor=given)
    )


def _dims(shape: Sequence[int]) -> list[Any]:
    return [message("Dimension", constant=message("ConstantDimension", size=size)) for size in shape]


def named(name: str, shape: Sequence[int] = (), dtype: str = "float32") -> Any:
    """A value's name and type."""
    kind = message("TensorType", dataType=_NAMES[dtype], rank=len(shape), dimensions=_dims(shape))
    return message("NamedValueType", name=name, type=message("ValueType", tensorType=kind))


def op(
    kind: str, outputs: str | Sequence[str], blocks: Sequence[Any] = (), attributes: Any = None, **arguments: Any
) -> Any:
    """An operation: texts that begin with % are names of values, all else is a value in place."""
    made = message("Operation", type=kind, blocks=blocks)
    for name in [outputs] if isinstance(outputs, str) else outputs:
        made.outputs.append(named(name))
    for key, given in arguments.items():
        items = given if isinstance(given, list) and given and isinstance(given[0], str) else [given]
        for item in items:
            if isinstance(item, str) and item.startswith("%"):
                made.inputs[key].arguments.append(message("Binding", name=item[1:]))
            else:
                made.inputs[key].arguments.append(message("Binding", value=value(item)))
    for key, given in (attributes or {}).items():
        made.attributes[key].CopyFrom(given)
    return made


def block(operations: Sequence[Any], outputs: Sequence[str], inputs: Sequence[Any] = ()) -> Any:
    """A block of operations."""
    return message("Block", operations=operations, outputs=outputs, inputs=inputs)


def program(
    operations: Sequence[Any],
    inputs: Mapping[str, Sequence[int]],
    outputs: Sequence[str] = ("y",),
    dtypes: Mapping[str, str] | None = None,
) -> bytes:
    """A program with the function `main`."""
    kinds = dict(dtypes or {})
    numbers = {"float32": FLOAT32, "int32": INT32, "float16": 65552}
    function = message(
        "Function",
        opset="CoreML7",
        inputs=[named(name, shape, kinds.get(name, "float32")) for name, shape in inputs.items()],
    )
    function.block_specializations["CoreML7"].CopyFrom(block(operations, outputs))
    own = message("Program", version=1)
    own.functions["main"].CopyFrom(function)
    return model(
        [feature(name, shape, numbers[kinds.get(name, "float32")]) for name, shape in inputs.items()],
        [feature(name, (), numbers[kinds.get(name, "float32")]) for name in outputs],
        mlProgram=own,
    )


def results(module: IRModule, *values: Any) -> list[Any]:
    """What a module gives, by the graph's interpreter."""
    found = evaluate(module, *values)
    return list(found) if isinstance(found, tuple) else [found]
