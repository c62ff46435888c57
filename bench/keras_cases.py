"""Cases of Keras: what the layers' and operations' own tests call, recorded while those tests run.

    for recorded in recorded_calls(["layers/core/dense_test.py"]).calls:
        content, inputs, outputs = recorded.model("keras")

Keras ships its tests. A layer or an operation that a test calls on arrays (or hands to `run_layer_test`) is recorded
with its configuration and arguments; a functional model of that one call is saved and imported. Needs keras and the
backend that `KERAS_BACKEND` names.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import sys
import tempfile
import types
import unittest
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("KERAS_BACKEND", "torch")
_SKIPPED = (
    "gptq",
    "awq",
    "lora",
    "quantiz",
    "int4",
    "float8",
    "remat",
    "distribut",
    "jit_compile",
    "tf_data",
    "sparse",
    "dtypetest",
)
"""Words in names of tests that train, are about what no file of a model has, or call no operation: tests of types call
functions, thousands of times."""


@dataclass
class Recorded:
    """One call of a layer or an operation."""

    test: str
    kind: type
    config: dict[str, Any]
    args: Any
    kwargs: dict[str, Any]
    weights: list[Any] | None = None
    custom: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What a table calls it."""
        return f"{self.kind.__name__}:{self.test}"

    def model(self, form: str) -> tuple[bytes, dict[str, Any], list[Any]]:
        """The content of a file (`keras` or `h5`), inputs by name, and what Keras gives for them."""
        import keras
        from keras.src import tree

        values: list[Any] = []
        inputs: list[Any] = []

        def as_input(item: Any) -> Any:
            if not _is_array(item):
                return item
            array = np.asarray(keras.ops.convert_to_numpy(item))
            made = keras.Input(batch_shape=array.shape, dtype=str(array.dtype), name=f"input_{len(inputs)}")
            values.append(array)
            inputs.append(made)
            return made

        args, kwargs = tree.map_structure(as_input, self.args), tree.map_structure(as_input, self.kwargs)
        target = self.kind.from_config(self.config) if hasattr(self.kind, "from_config") else self.kind(**self.config)
        model = keras.Model(inputs, target(*args, **kwargs))
        if self.weights is not None and len(self.weights) == len(target.weights):
            target.set_weights(self.weights)
        elif hasattr(target, "weights"):
            _randomise(target)
        if hasattr(target, "finalize_state"):  # what layers compute from their weights when they are loaded
            target.finalize_state()
        # Python's own numbers (the rank of a tensor) have the type that Keras gives them.
        results = [
            item if hasattr(item, "dtype") else keras.ops.convert_to_tensor(item)
            for item in tree.flatten(model(values, training=False))
        ]
        outputs = [keras.ops.convert_to_numpy(item) for item in results]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"model.{form}"
            with contextlib.redirect_stdout(io.StringIO()):
                model.save(path)
            content = path.read_bytes()
        return content, {item.name: value for item, value in zip(inputs, values, strict=True)}, outputs


def _randomise(layer: Any) -> None:
    """Weights that are neither zeros nor ones, so that all of them show."""
    random = np.random.default_rng(0)
    fresh = []
    for weight in layer.weights:
        shape, dtype = tuple(weight.shape), str(weight.dtype).rpartition(".")[2]
        if "float" not in dtype:
            fresh.append(np.asarray(weight.numpy() if hasattr(weight, "numpy") else weight))
        elif "variance" in weight.name:
            fresh.append(random.uniform(0.5, 1.5, shape))
        else:
            fresh.append(random.normal(0, 0.5, shape))
    layer.set_weights(fresh)


def _is_array(item: Any) -> bool:
    if isinstance(item, np.ndarray):
        return item.dtype.kind in "biuf"
    return hasattr(item, "shape") and hasattr(item, "dtype") and not isinstance(item, np.generic)


class Recorder:
    """Records calls while tests run."""

    def __init__(self, most: int = 12) -> None:
        self.calls: list[Recorded] = []
        self.left_out: list[tuple[str, str]] = []
        """Configurations that no file can have, and why."""
        self.most = most
        """The most calls of one test."""
        self._seen: set[str] = set()
        self._test = ""
        self._depth = 0
        self._count = 0

    def starting(self, test: str) -> None:
        """A test starts."""
        self._test, self._count = test, 0

    def _room(self) -> bool:
        """Whether another call of this test is recorded."""
        self._count += 1
        return self._count <= self.most

    def note(self, target: Any, args: Any, kwargs: Mapping[str, Any], weights: list[Any] | None) -> None:
        """A call that a test makes itself."""
        from keras.src import tree

        leaves = tree.flatten([args, dict(kwargs)])
        if not any(map(_is_array, leaves)) or any(type(item).__name__ == "KerasTensor" for item in leaves):
            return
        given = {key: value for key, value in kwargs.items() if value is not None}
        if given.get("training"):
            return
        try:
            config = target.get_config()
            key = json.dumps([type(target).__name__, config, _shapes(args), _shapes(given)], default=str)
        except Exception:  # what has no configuration cannot be saved
            return
        key = key.replace(config.get("name", "?"), "")
        if key in self._seen or "_test" in key:  # a layer that holds one of the test's own
            return
        self._seen.add(key)
        self.calls.append(Recorded(self._test, type(target), config, args, given, weights))

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """While it lasts, calls of layers and operations are recorded."""
        from keras.src.layers.layer import Layer
        from keras.src.ops.operation import Operation
        from keras.src.testing import TestCase

        recorder, outer = self, (Layer.__call__, Operation.__call__, TestCase.run_layer_test)

        def call_layer(layer: Any, *args: Any, **kwargs: Any) -> Any:
            recorder._depth += 1
            try:
                result = outer[0](layer, *args, **kwargs)
            finally:
                recorder._depth -= 1
            if recorder._depth == 0 and _is_public(type(layer)) and recorder._room():
                recorder.note(layer, args, kwargs, layer.get_weights())
            return result

        def call_operation(item: Any, *args: Any, **kwargs: Any) -> Any:
            if recorder._depth == 0 and not isinstance(item, Layer) and _is_public(type(item)) and recorder._room():
                recorder.note(item, args, kwargs, None)
            return outer[1](item, *args, **kwargs)

        def run_layer_test(case: Any, layer_cls: Any, init_kwargs: Any, *rest: Any, **options: Any) -> None:
            recorder.note_layer_test(layer_cls, init_kwargs or {}, *rest, **options)

        Layer.__call__, Operation.__call__, TestCase.run_layer_test = call_layer, call_operation, run_layer_test
        try:
            yield
        finally:
            Layer.__call__, Operation.__call__, TestCase.run_layer_test = outer

    def note_layer_test(
        self,
        layer_cls: Any,
        init_kwargs: dict[str, Any],
        input_shape: Any = None,
        input_dtype: Any = None,
        input_data: Any = None,
        call_kwargs: Any = None,
        input_sparse: bool = False,
        input_ragged: bool = False,
        **_: Any,
    ) -> None:
        """What a test hands to `run_layer_test`."""
        from keras.src import tree
        from keras.src.testing.test_case import create_eager_tensors

        name = f"{layer_cls.__name__}:{self._test}"
        if input_sparse or input_ragged:
            self.left_out.append((name, "its inputs are sparse or ragged"))
            return
        if not _is_public(layer_cls):
            self.left_out.append((name, "a layer of the test's own"))
            return
        if input_data is None:
            if input_shape is None:
                self.left_out.append((name, "it has no inputs"))
                return
            dtype = input_dtype or tree.map_shape_structure(lambda _: "float32", input_shape)
            input_data = create_eager_tensors(input_shape, dtype, False, False)
        layer = layer_cls(**init_kwargs)
        kwargs = dict(call_kwargs or {})
        args: tuple[Any, ...] = (input_data,)
        if isinstance(input_data, dict):
            args, kwargs = (), {**input_data, **kwargs}
        self.note(layer, args, kwargs, None)


def _is_public(kind: type) -> bool:
    """Whether a class is one of Keras' own, not one of its tests."""
    return kind.__module__.startswith("keras.src.") and not kind.__module__.endswith("_test")


def _shapes(structure: Any) -> Any:
    from keras.src import tree

    return tree.map_structure(
        lambda item: [str(item.dtype), *map(int, item.shape)] if _is_array(item) else str(item), structure
    )


def recorded_calls(files: Sequence[str], most: int = 12) -> Recorder:
    """A recorder with what the tests in files of the package (`layers/core/dense_test.py`) call."""
    import keras

    stub = types.ModuleType("conftest")  # which the package does not ship
    stub.__dict__.update(skip_if_backend=lambda *_: lambda test: test)
    sys.modules.setdefault("conftest", stub)
    assert keras.__version__ >= "3"
    recorder = Recorder(most)
    with recorder.recording(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for name in files:
            try:
                module = importlib.import_module("keras.src." + name.removesuffix(".py").replace("/", "."))
            except ImportError as error:
                recorder.left_out.append((name, f"its tests need what is not installed: {error}"))
                continue
            suite = unittest.defaultTestLoader.loadTestsFromModule(module)
            for case in _cases(suite):
                if any(word in case.id().lower() for word in _SKIPPED):
                    continue
                recorder.starting(f"{Path(name).stem}.{case.id().rpartition('.')[2]}")
                recorder._depth = 0
                case.run(unittest.TestResult())
    return recorder


def _cases(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from _cases(item)
        else:
            yield item


def test_files(folder: str) -> list[str]:
    """The test files of a folder of the package."""
    import keras

    root = Path(keras.__file__).parent / "src"
    return sorted(str(path.relative_to(root)) for path in (root / folder).rglob("*_test.py"))
