"""ONNX models as the commands handle them: inputs that fit, reference values, parts cut out.

A part of a model is some of its nodes: what they read from outside becomes inputs, whose values a run of the whole
model in onnxruntime has recorded, and what others read of them becomes outputs. So any set of nodes is a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.cli.input_ranges import draw_integers, integer_ranges
from tilewright.frontend.onnx.reader import onnx_package, read_proto
from tilewright.support.errors import MissingDependencyError, UserError

Proto = Any
"""Protobuf messages have no static types here."""
Array = npt.NDArray[Any]
Values = dict[str, Array]

_DEFAULT_SIZES = (2, 1, 5)


def load_model(path: Path) -> Proto:
    """A model with all its data."""
    onnx = onnx_package()
    model = read_proto(path)
    try:
        onnx.load_external_data_for_model(model, str(path.parent))
    except Exception as error:
        # The onnx package raises errors of many kinds for files that are missing or damaged.
        raise UserError(f"cannot read the weights of {path}: {error}") from error
    return model


@dataclass(frozen=True)
class ModelInput:
    """An input of a model: dimensions are numbers, names, or made-up names for those that have none."""

    name: str
    dtype: np.dtype[Any]
    dims: tuple[int | str, ...]


def model_inputs(model: Proto) -> list[ModelInput]:
    """The inputs that a run must be given."""
    onnx = onnx_package()
    stored = {item.name for item in model.graph.initializer}
    found: list[ModelInput] = []
    for info in model.graph.input:
        if info.name in stored:
            continue
        if info.type.WhichOneof("value") != "tensor_type":
            raise UserError(f"the input '{info.name}' is no tensor: values for it cannot be made up")
        tensor = info.type.tensor_type
        if not tensor.HasField("shape"):
            raise UserError(f"the model does not say how many dimensions the input '{info.name}' has")
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        dims: list[int | str] = []
        for place, dim in enumerate(tensor.shape.dim):
            known = dim.WhichOneof("value") == "dim_value" and dim.dim_value >= 0
            dims.append(int(dim.dim_value) if known else (dim.dim_param or f"{info.name}[{place}]"))
        found.append(ModelInput(info.name, dtype, tuple(dims)))
    return found


def fix_shapes(model: Proto, shapes: Mapping[str, Sequence[int]]) -> Proto:
    """The model with shapes of inputs fixed; an open dimension that gets a size has it in the other inputs, too."""
    if not shapes:
        return model
    specs = {item.name: item.dims for item in model_inputs(model)}
    sizes: dict[str, int] = {}
    for name, shape in shapes.items():
        dims = specs.get(name)
        if dims is None:
            raise UserError(f"the model has no input '{name}'", where="--shape", hint=f"it has: {', '.join(specs)}")
        wanted = {dim: size for dim, size in zip(dims, shape, strict=False) if isinstance(dim, str)}
        fitting = len(dims) == len(shape) and all(
            dim == size or sizes.get(str(dim), wanted.get(str(dim))) == size
            for dim, size in zip(dims, shape, strict=True)
        )
        if not fitting:
            raise UserError(f"the input '{name}' is ({', '.join(map(str, dims))}), not {tuple(shape)}", where="--shape")
        sizes.update(wanted)
    made = copy_model(model)
    for info in made.graph.input:
        for dim, size in zip(info.type.tensor_type.shape.dim, specs.get(info.name, ()), strict=False):
            if isinstance(size, str) and size in sizes:
                dim.dim_value = sizes[size]
    return made


def parse_sizes(items: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """`["batch=1,4"]` -> `{"batch": (1, 4)}`."""
    found: dict[str, tuple[int, ...]] = {}
    for item in items:
        name, separator, sizes = item.rpartition("=")
        parts = [part.strip() for part in sizes.split(",")]
        if not separator or not name or not all(part.isdecimal() for part in parts):
            raise UserError(f"'{item}' gives no sizes", where="--sizes", hint="write it as DIMENSION=1,4,32")
        found[name] = tuple(int(part) for part in parts)
    return found


def size_choices(inputs: Sequence[ModelInput], wanted: Mapping[str, tuple[int, ...]]) -> list[dict[str, int]]:
    """Which sizes the open dimensions take, run by run; those that nothing is said about differ from one another."""
    names = list(dict.fromkeys(dim for item in inputs for dim in item.dims if isinstance(dim, str)))
    for name in wanted:
        if name not in names:
            raise UserError(
                f"the model has no open dimension '{name}'",
                where="--sizes",
                hint=f"its open dimensions: {', '.join(names) or 'none'}",
            )
    if not names:
        return [{}]
    lists = {name: wanted.get(name, _DEFAULT_SIZES) for name in names}
    runs = max(len(sizes) for sizes in lists.values())
    turned = {name: 0 if name in wanted else place for place, name in enumerate(names)}
    return [{name: sizes[(run + turned[name]) % len(sizes)] for name, sizes in lists.items()} for run in range(runs)]


def make_inputs(
    model: Proto, inputs: Sequence[ModelInput], sizes: Mapping[str, int], generator: np.random.Generator
) -> Values:
    """Values that fit the inputs' types and, where the model shows it, ranges."""
    shapes = {item.name: tuple(dim if isinstance(dim, int) else sizes[dim] for dim in item.dims) for item in inputs}
    ranges = integer_ranges(model, shapes) if any(item.dtype.kind in "iu" for item in inputs) else {}
    values: Values = {}
    for item in inputs:
        shape = shapes[item.name]
        if item.dtype.kind == "O":
            words = np.array(["", "a", "text", "Tilewright", "7"], dtype=object)
            values[item.name] = words[generator.integers(0, len(words), shape)]
        elif item.dtype.kind in "iu":
            values[item.name] = draw_integers(item.name, shape, item.dtype, ranges.get(item.name), generator)
        elif item.dtype.kind == "b":
            values[item.name] = generator.integers(0, 2, shape).astype(item.dtype)
        else:
            values[item.name] = generator.standard_normal(shape).astype(item.dtype)
    return values


# Reference values


def run_reference(model: Proto, inputs: Mapping[str, Array]) -> list[Any]:
    """The outputs of a model by onnxruntime, without its graph optimisations."""
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingDependencyError.for_extra("onnxruntime", "bench", "comparing with onnxruntime") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        outputs: list[Any] = session.run(None, dict(inputs))
    except Exception as error:
        # Its errors have no common class.
        raise UserError(
            f"onnxruntime cannot run the model: {str(error).strip()}",
            hint="are the sizes right? --sizes DIMENSION=... sets those of open dimensions",
        ) from error
    return outputs


def record_values(model: Proto, inputs: Mapping[str, Array]) -> Values:
    """Every tensor that a node of the model gives, by name, and the inputs; values that are no tensors are left out."""
    names = [name for node in model.graph.node for name in node.output if name]
    outputs = run_reference(with_outputs(model, names), inputs)
    found = {name: value for name, value in zip(names, outputs, strict=True) if isinstance(value, np.ndarray)}
    return {**inputs, **found}


# Parts


def copy_model(model: Proto) -> Proto:
    """A copy that may be changed."""
    made = onnx_package().ModelProto()
    made.CopyFrom(model)
    return made


def with_outputs(model: Proto, names: Sequence[str]) -> Proto:
    """A model that gives other values: any of those that its nodes give."""
    onnx = onnx_package()
    made = copy_model(model)
    known = {info.name: info for info in (*model.graph.output, *model.graph.value_info)}
    del made.graph.output[:]
    for name in names:
        made.graph.output.append(known.get(name, onnx.helper.make_empty_tensor_value_info(name)))
    return made


def names_read(node: Proto) -> list[str]:
    """The names of values that a node reads from around it, those read in its graphs included."""
    found = [name for name in node.input if name]
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            own = {item.name for item in (*graph.input, *graph.initializer)}
            own.update(name for inner in graph.node for name in inner.output)
            found += [name for inner in graph.node for name in names_read(inner) if name not in own]
            found += [info.name for info in graph.output if info.name not in own]
    return list(dict.fromkeys(found))


def cut_out(model: Proto, kept: Iterable[int], values: Mapping[str, Array]) -> tuple[Proto, Values] | None:
    """The model of some nodes (by place) and its inputs; None if it would need a value that is no tensor."""
    onnx = onnx_package()
    places = sorted(kept)
    nodes = [model.graph.node[place] for place in places]
    stored = {item.name: item for item in model.graph.initializer}
    sparse = {item.values.name: item for item in model.graph.sparse_initializer}
    given = {name for node in nodes for name in node.output if name}
    read = list(dict.fromkeys(name for node in nodes for name in names_read(node)))
    needed = [name for name in read if name not in given and name not in stored and name not in sparse]
    if any(name not in values for name in needed):
        return None
    rest = set(range(len(model.graph.node))) - set(places)
    read_by_others = {name for place in rest for name in names_read(model.graph.node[place])}
    wanted = {info.name for info in model.graph.output} | read_by_others
    outputs = [name for node in nodes for name in node.output if name and (name in wanted or name not in read)]
    made = copy_model(model)
    graph = made.graph
    for part in (graph.node, graph.input, graph.output, graph.initializer, graph.sparse_initializer, graph.value_info):
        del part[:]
    graph.node.extend(nodes)
    graph.input.extend(_value_info(onnx, name, values[name]) for name in needed)
    graph.output.extend(
        _value_info(onnx, name, values[name]) if name in values else onnx.helper.make_empty_tensor_value_info(name)
        for name in outputs
    )
    graph.initializer.extend(stored[name] for name in read if name in stored)
    graph.sparse_initializer.extend(sparse[name] for name in read if name in sparse)
    return made, {name: values[name] for name in needed}


def _value_info(onnx: Any, name: str, value: Array) -> Proto:
    return onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)


def node_name(node: Proto) -> str:
    """The name of a node in messages: its own, or its operator and first output."""
    return str(node.name) or f"{node.op_type}:{next((name for name in node.output if name), '')}"
