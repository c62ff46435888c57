"""The suite of TensorFlow in `bench.frontends`: operators, SavedModels, control flow of both kinds, checkpoints."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.frontend_case import Case
from bench.frontend_keras import architecture_tolerance, architectures
from bench.tensorflow_cases import Operator, operators
from bench.tensorflow_graphs import graphs
from bench.tensorflow_models import COMPILED, application, models

Made = tuple[bytes | Path, Mapping[str, Any], Sequence[Any]]
_OPERATOR_TOLERANCE = 2e-5
_MODEL_TOLERANCE = 1e-3
_FOLDERS: list[Path] = []
"""The folder of the SavedModel that is being tried."""


def load_tensorflow() -> Any:
    """TensorFlow, quiet and on the CPU."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    import tensorflow

    tensorflow.get_logger().setLevel("ERROR")
    return tensorflow


def traced(tf: Any, function: Callable[..., Any], inputs: Sequence[Any]) -> Made:
    """A function as a GraphDef, whose placeholders are x0, x1 ..., and what it gives."""
    kinds = [tf.string if np.asarray(item).dtype == object else np.asarray(item).dtype for item in inputs]
    specs = [tf.TensorSpec(np.shape(item), kinds[at], f"x{at}") for at, item in enumerate(inputs)]
    concrete = tf.function(lambda *args: function(*args), autograph=False).get_concrete_function(*specs)
    given = [tf.constant(item) for item in inputs]
    results = [_array(item) for item in tf.nest.flatten(concrete(*given))]
    named = {f"x{at}": np.asarray(item) for at, item in enumerate(inputs)}
    names = [item.op.name for item in concrete.outputs]
    graph = tf.compat.v1.graph_util.extract_sub_graph(concrete.graph.as_graph_def(), names)
    return graph.SerializeToString(), named, results


def _array(value: Any) -> Any:
    """A result as an array, texts as such."""
    array = np.asarray(value)
    return (
        np.array([item.decode() for item in array.ravel()], object).reshape(array.shape)
        if array.dtype == object
        else array
    )


def exported(tf: Any, folder: Path, inputs: Sequence[Any]) -> Made:
    """A SavedModel, its inputs by name in the order of its signature, and what the signature gives."""
    signature = tf.saved_model.load(str(folder)).signatures["serving_default"]
    names = sorted(signature.structured_input_signature[1])
    given = dict(zip(names, inputs, strict=True))
    results = signature(**{name: tf.constant(value) for name, value in given.items()})
    return folder, given, [np.asarray(results[name]) for name in sorted(results)]


def _model(tf: Any, make: Callable[[Any, Path], Sequence[Any]]) -> Made:
    # The folder before it is done with: the largest hold gigabytes.
    if _FOLDERS:
        shutil.rmtree(_FOLDERS.pop())
    folder = Path(tempfile.mkdtemp(prefix="tilewright-tensorflow-"))
    _FOLDERS.append(folder)
    return exported(tf, folder, make(tf, folder))


def cases() -> Iterator[Case]:
    """All of them: operators first."""
    tf = load_tensorflow()
    for name, function, inputs in operators(tf):
        yield Case(name, partial(traced, tf, function, inputs), _OPERATOR_TOLERANCE)
    for name, make in graphs().items():
        yield Case(f"graph {name}", partial(make, tf), _OPERATOR_TOLERANCE)
    for name, build in models().items():
        yield Case(f"model {name}", partial(_model, tf, build), _MODEL_TOLERANCE)


def application_cases() -> Iterator[Case]:
    """SavedModels of all architectures of Keras, with random weights."""
    tf = load_tensorflow()
    for name in architectures():
        make = partial(_model, tf, partial(application, name))
        yield Case(name, make, architecture_tolerance(name), reference=name not in COMPILED)


__all__ = ["Operator", "application_cases", "cases", "exported", "load_tensorflow", "traced"]
