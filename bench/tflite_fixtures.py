"""Writes the small models that tests of the TFLite importer read, with TensorFlow's converter, and LiteRT's answers.

python -m bench.tflite_fixtures          # needs tensorflow and ai-edge-litert, in an environment of their own
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bench.frontend_tflite import ANSWERS, recorded, run_litert

FOLDER = ANSWERS.parent / "models"
_SHAPE = (12, 12, 3)


def _images() -> Iterator[list[Any]]:
    random = np.random.default_rng(0)
    for _ in range(16):
        yield [random.normal(size=(1, *_SHAPE)).astype(np.float32)]


def _network() -> Any:
    """Convolutions of all kinds, a residual, pooling, activations and a classifier."""
    import keras  # type: ignore[import-not-found]

    keras.utils.set_random_seed(1)
    layers = keras.layers
    x = inputs = keras.Input(_SHAPE)
    x = layers.Conv2D(8, 3, strides=2, padding="same")(x)
    x = layers.BatchNormalization()(x)
    x = layers.ReLU(6.0)(x)
    y = layers.DepthwiseConv2D(3, padding="same", activation="relu")(x)
    y = layers.Conv2D(8, 1)(y)
    x = layers.Add()([x, y])
    x = layers.Activation("hard_swish")(x)
    x = layers.Multiply()([x, layers.Activation("sigmoid")(layers.GlobalAveragePooling2D(keepdims=True)(x))])
    x = layers.UpSampling2D(2, interpolation="bilinear")(x)
    x = layers.Conv2DTranspose(6, 3, strides=2, padding="same")(layers.MaxPooling2D(2)(x))
    x = layers.Concatenate()([layers.LeakyReLU(0.1)(x), layers.ZeroPadding2D(0)(x)])
    x = layers.Softmax()(layers.Dense(5)(layers.Flatten()(layers.AveragePooling2D(3)(x))))
    return keras.Model(inputs, x)


def _recurrent() -> Any:
    import keras

    keras.utils.set_random_seed(2)
    inputs = keras.Input((7, 4), batch_size=1)
    x = keras.layers.LSTM(5, return_sequences=True)(inputs)
    return keras.Model(inputs, keras.layers.Dense(3)(keras.layers.GRU(6)(x)))


def _converter(model: Any) -> Any:
    import tensorflow as tf  # type: ignore[import-not-found]

    return tf.lite.TFLiteConverter.from_keras_model(model)


def _quantized(kind: str) -> bytes:
    import tensorflow as tf

    converter = _converter(_network())
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = _images
    sets = tf.lite.OpsSet
    if kind == "int16":
        converter.target_spec.supported_ops = [
            sets.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8,
            sets.TFLITE_BUILTINS,
        ]
    else:
        converter.target_spec.supported_ops = [sets.TFLITE_BUILTINS_INT8]
        converter.inference_input_type = converter.inference_output_type = getattr(tf, kind)
    return bytes(converter.convert())


def _of_weights(kind: str) -> bytes:
    """Weights alone in 8 bits, or in float16."""
    import tensorflow as tf

    converter = _converter(_network())
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if kind == "float16":
        converter.target_spec.supported_types = [tf.float16]
    return bytes(converter.convert())


def _control() -> bytes:
    """Two signatures, with a loop and a branch."""
    import tensorflow as tf

    class Steps(tf.Module):  # type: ignore[misc]
        @tf.function(input_signature=[tf.TensorSpec((None, 3), tf.float32), tf.TensorSpec((), tf.int32)])  # type: ignore[untyped-decorator]
        def loop(self, x: Any, count: Any) -> Any:
            for _ in tf.range(count):
                x = tf.nn.relu(x * 2.0 - 1.0)
            return {"result": x}

        @tf.function(input_signature=[tf.TensorSpec((2, 3), tf.float32)])  # type: ignore[untyped-decorator]
        def branch(self, x: Any) -> Any:
            return {"result": tf.cond(tf.reduce_sum(x) > 0, lambda: tf.sort(x), lambda: tf.einsum("ij,kj->ik", x, x))}

    steps = Steps()
    functions = [steps.loop.get_concrete_function(), steps.branch.get_concrete_function()]
    converter = tf.lite.TFLiteConverter.from_concrete_functions(functions, steps)
    return bytes(converter.convert())


MODELS: dict[str, Callable[[], bytes]] = {
    "network_float": lambda: bytes(_converter(_network()).convert()),
    "network_int8": lambda: _quantized("int8"),
    "network_uint8": lambda: _quantized("uint8"),
    "network_int16": lambda: _quantized("int16"),
    "network_hybrid": lambda: _of_weights("int8"),
    "network_float16": lambda: _of_weights("float16"),
    "recurrent": lambda: bytes(_converter(_recurrent()).convert()),
}


def main() -> None:
    """Write all models and answers, and LiteRT's answers to the cases of operators."""
    np.savez_compressed(ANSWERS, **recorded())
    FOLDER.mkdir(exist_ok=True)
    answers: dict[str, Any] = {}
    for name, build in MODELS.items():
        data = build()
        (FOLDER / f"{name}.tflite").write_bytes(data)
        inputs, outputs = run_litert(data, None, optimized=False)
        for kind, values in (("input", inputs), ("output", outputs)):
            answers.update({f"{name}#{kind}{at}": value for at, value in enumerate(values)})
    (FOLDER / "signatures.tflite").write_bytes(_control())
    np.savez_compressed(FOLDER / "answers.npz", **answers)


if __name__ == "__main__":
    main()
