"""The suites of Keras in `bench.frontends`: layers, operations and applications, by Keras itself.

Layers and operations are those that Keras' own tests call (`bench.keras_cases`), layers as `.keras` and as `.h5`;
applications are all architectures of `keras.applications`, small images and random weights. The backend is the one that
`KERAS_BACKEND` names (torch unless it is set); JAX, numpy and TensorFlow agree on averages at borders and on cubic
resampling, where torch differs from them.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.frontend_case import Case, LeftOut, Result, Trial
from bench.keras_cases import Recorded, recorded_calls, test_files

_TOLERANCE = 3e-5
_HALF = 2e-2
"""The tolerance of results of half precision."""
_IMPRECISE = {
    # Pairs of numbers that may be nearly equal, whose variance is a difference of squares in Keras.
    "LayerNormalization:layer_normalization_test.test_correctness": 1e-2,
    # Logarithms of what is nearly nothing.
    "stft_spectrogram_test": 2e-3,
}
"""Words in the names of cases in which Keras itself is so far off."""
_COMPILED = ("stft_spectrogram_test",)
"""Words in the names of cases that the graph interpreter takes minutes for."""
_OPERATIONS = ("ops/core_test.py", "ops/linalg_test.py", "ops/math_test.py", "ops/nn_test.py", "ops/numpy_test.py")
"""The files of tests, the longest last."""
_SMALLEST = {"InceptionV3": 75, "InceptionResNetV2": 75, "Xception": 71, "NASNetLarge": 64, "NASNetMobile": 64}
"""The smallest images of architectures that do not take 32 x 32."""
_GROWN = 1e4
"""Results beyond this are of layers that add up without measure: Keras' own jump with the last digit of an image."""
_TOLERANCES = {"NASNetLarge": 1e-3, "NASNetMobile": 1e-3, "EfficientNetV2L": 1e-3}
"""Of the deepest: that of a thousand layers moves by 1.3e-4 of itself when its image moves by a millionth."""


@dataclass(frozen=True)
class RecordedTrial:
    """A call of a layer or an operation, saved as a model of one layer in one form of files."""

    recorded: Recorded
    form: str

    @property
    def name(self) -> str:
        """The layer, its test and the form."""
        return f"{self.recorded.name} ({self.form})"

    def run(self) -> Result:
        """Save, import, run and compare; left out where Keras itself cannot save it."""
        try:
            content, inputs, outputs = self.recorded.model(self.form)
        except Exception as error:  # whatever Keras raises: its errors have no common class
            return LeftOut(self.name, f"{type(error).__name__}: {str(error).strip()[:200]}").run()
        half = any(output.dtype.itemsize == 2 and output.dtype.kind not in "iu" for output in outputs)
        doubles = any(value.dtype == np.float64 for value in inputs.values())
        made = (content, inputs, [_as_given(output, doubles) for output in outputs])
        imprecise = [allowed for words, allowed in _IMPRECISE.items() if words in self.recorded.name]
        tolerance = max([_HALF if half else _TOLERANCE, *imprecise])
        # The backend of numpy makes integers of 32 bits of those that files have with 64, and of TensorFlow's tables.
        narrowed = any(value.dtype == np.int64 for value in inputs.values())
        interpreted = not any(words in self.recorded.name for words in _COMPILED)
        return Case(self.name, lambda: made, tolerance, reference=interpreted, narrowed=narrowed).run()


def _recorded_trials(files: Sequence[str], forms: Sequence[str]) -> Iterator[Trial]:
    for file in files:
        recorder = recorded_calls([file])
        for item in recorder.calls:
            for form in forms:
                yield RecordedTrial(item, form)
        for name, reason in recorder.left_out:
            yield LeftOut(name, reason)


def _as_given(output: Any, doubles: bool) -> Any:
    """A result in a type that files have: bfloat16, which numpy does not know, and what numpy widens are float32."""
    widened = output.dtype == np.float64 and not doubles
    return output.astype(np.float32) if widened or str(output.dtype) == "bfloat16" else output


def layer_cases() -> Iterator[Trial]:
    """What the tests of layers call, in both forms of files."""
    yield from _recorded_trials(test_files("layers"), ("keras", "h5"))


def operation_cases() -> Iterator[Trial]:
    """What the tests of operations call."""
    yield from _recorded_trials(_OPERATIONS, ("keras",))


def architectures() -> list[str]:
    """The names of all architectures."""
    import keras

    found = (name for name in dir(keras.applications) if name[0].isupper())
    return sorted(name for name in found if callable(getattr(keras.applications, name)))


def _settle(model: Any, norms: Sequence[Any], data: Any) -> None:
    """Give normalisations the statistics of their own data."""
    momenta = [layer.momentum for layer in norms]
    for layer in norms:
        layer.momentum = 0.0
    model(data, training=True)
    for layer, momentum in zip(norms, momenta, strict=True):
        layer.momentum = momentum


def architecture(name: str) -> tuple[Any, Any, Any]:
    """An architecture with random weights, without its classifier, random images, and what it gives for them.

    Nothing hides a difference: a softmax of weights that were never trained gives all classes the same, or one of them
    everything.
    """
    import keras

    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    size = _SMALLEST.get(name, 32)
    model = getattr(keras.applications, name)(weights=None, include_top=False, input_shape=(size, size, 3))
    random = np.random.default_rng(0)
    norms = [layer for layer in model.layers if isinstance(layer, keras.layers.BatchNormalization)]
    for layer in norms:  # statistics as training would leave them
        layer.set_weights([random.uniform(0.8, 1.2, weight.shape) for weight in layer.get_weights()])
    data = random.uniform(0, 1, (1, size, size, 3)).astype(np.float32)
    expected = keras.ops.convert_to_numpy(model(data))
    if np.abs(expected).max() > _GROWN:
        _settle(model, norms, random.uniform(0, 1, (8, size, size, 3)).astype(np.float32))
        expected = keras.ops.convert_to_numpy(model(data))
    return model, data, expected


def architecture_tolerance(name: str) -> float:
    """How far results may be apart."""
    return _TOLERANCES.get(name, 2e-4)


def application(name: str) -> tuple[bytes, Mapping[str, Any], Sequence[Any]]:
    """An architecture as a file, and what it gives."""
    model, data, expected = architecture(name)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        model.save(path)
        # A file has the name of the layer; the tensor of one that was given no name has another.
        return path.read_bytes(), {model.layers[0].name: data}, [expected]


def application_cases() -> Iterator[Case]:
    """All architectures."""
    for name in architectures():
        make = functools.partial(application, name)
        yield Case(name, make, architecture_tolerance(name), reference=True)
