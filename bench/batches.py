"""Models of the zoo for any batch, in float32 or float16, with inputs."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from bench import zoo
from bench.zoo.builder import CONSTANT

_BATCH_AXIS = {"lstm_lm_1": 1, "lstm_lm_35": 1}
_LARGEST_HALF = 65504.0


def batch_axis(name: str) -> int:
    """The axis of the inputs and outputs of a model that counts its batch."""
    return _BATCH_AXIS.get(name, 0)


def model(name: str, batch: int, half: bool) -> onnx.ModelProto:
    """A model of the zoo for a batch, in float16 throughout if asked for."""
    made = with_batch(zoo.build(name), name, batch)
    if half:
        _to_half(made)
    return made


def path(name: str, batch: int, seed: int = 0) -> Path:
    """The file of a model for a batch, beside that of batch 1."""
    alone = zoo.path(name, seed)
    if batch == 1:
        return alone
    file = alone.with_stem(f"{alone.stem}-b{batch}")
    if not file.exists():
        # Written aside and renamed: another process never sees half a model.
        handle, aside = tempfile.mkstemp(dir=file.parent, suffix=".tmp")
        os.close(handle)
        try:
            onnx.save(with_batch(onnx.load(alone), name, batch), aside)
            os.replace(aside, file)
        finally:
            Path(aside).unlink(missing_ok=True)
    return file


def with_batch(given: onnx.ModelProto, name: str, batch: int) -> onnx.ModelProto:
    """A copy of a model (of that name, or made of it) of batch 1 for another batch."""
    made = onnx.ModelProto()
    made.CopyFrom(given)
    if batch != 1:
        _set_batch(made, batch_axis(name), batch)
    return made


def inputs(name: str, batch: int, half: bool = False, seed: int = 0) -> zoo.Arrays:
    """Seeded inputs: every element of the batch is another."""
    rows = [zoo.inputs(name, seed + number) for number in range(batch)]
    joined = {key: np.concatenate([row[key] for row in rows], axis=batch_axis(name)) for key in rows[0]}
    return {
        key: value.astype(np.float16) if half and value.dtype == np.float32 else value for key, value in joined.items()
    }


def _set_batch(made: onnx.ModelProto, axis: int, batch: int) -> None:
    graph = made.graph
    constants = {item.name for item in graph.initializer}
    for value in (*graph.input, *graph.output):
        if value.name not in constants:
            value.type.tensor_type.shape.dim[axis].dim_value = batch
    del graph.value_info[:]
    shapes = {node.input[1] for node in graph.node if node.op_type == "Reshape"}
    joined = {name for node in graph.node if node.op_type == "Concat" for name in node.input}
    added = {name for node in graph.node if node.op_type == "Add" for name in node.input}
    for item in graph.initializer:
        if item.name in shapes:
            sizes = numpy_helper.to_array(item).copy()
            # The first axis counts the batch, or windows of its images.
            assert axis == 0 and sizes[0] >= 1, f"{item.name} says nothing about the batch: {sizes}"
            sizes[0] *= batch
            item.CopyFrom(numpy_helper.from_array(sizes, item.name))
        elif item.name in joined and item.dims[0] == 1:
            # What every element of the batch begins with (the token of a class).
            repeats = (batch, *[1] * (len(item.dims) - 1))
            item.CopyFrom(numpy_helper.from_array(np.tile(numpy_helper.to_array(item), repeats), item.name))
        elif item.name.startswith(CONSTANT) and item.name in added and len(item.dims) == 4 and item.dims[0] > 1:
            # Masks of the windows of an image: those of all images, one after the other.
            item.CopyFrom(numpy_helper.from_array(np.tile(numpy_helper.to_array(item), (batch, 1, 1, 1)), item.name))


def _to_half(made: onnx.ModelProto) -> None:
    graph = made.graph
    for item in graph.initializer:
        if item.data_type == TensorProto.FLOAT:
            array = np.clip(numpy_helper.to_array(item), -_LARGEST_HALF, _LARGEST_HALF).astype(np.float16)
            item.CopyFrom(numpy_helper.from_array(array, item.name))
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    del graph.value_info[:]
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.FLOAT16
            elif attribute.type == onnx.AttributeProto.TENSOR and attribute.t.data_type == TensorProto.FLOAT:
                array = np.clip(numpy_helper.to_array(attribute.t), -_LARGEST_HALF, _LARGEST_HALF)
                attribute.t.CopyFrom(numpy_helper.from_array(array.astype(np.float16)))
