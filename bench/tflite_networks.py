"""Image networks as TFLite files, float and int8, with random weights: written by TensorFlow's converter.

python -m bench.tflite_networks FOLDER          # needs tensorflow, in an environment of its own
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

_SIZE = 224
_CLASSES = 1000
_LITE_BLOCKS = (
    # Taps, expansion, channels, repeats, stride.
    (3, 1, 16, 1, 1),
    (3, 6, 24, 2, 2),
    (5, 6, 40, 2, 2),
    (3, 6, 80, 3, 2),
    (5, 6, 112, 3, 1),
    (5, 6, 192, 4, 2),
    (3, 6, 320, 1, 1),
)
"""The blocks of EfficientNet-Lite0."""


def _normalized(layers: Any, x: Any, rectified: bool) -> Any:
    x = layers.BatchNormalization()(x)
    return layers.ReLU(6.0)(x) if rectified else x


def efficientnet_lite0() -> Any:
    """EfficientNet-Lite0: inverted residuals with ReLU6, without squeeze and excitation."""
    import keras  # type: ignore[import-not-found]

    layers = keras.layers
    inputs = keras.Input((_SIZE, _SIZE, 3))
    x = _normalized(layers, layers.Conv2D(32, 3, strides=2, padding="same", use_bias=False)(inputs), True)
    for taps, expansion, channels, repeats, first in _LITE_BLOCKS:
        for n in range(repeats):
            before, stride = x, first if n == 0 else 1
            if expansion > 1:
                x = _normalized(layers, layers.Conv2D(expansion * x.shape[-1], 1, use_bias=False)(x), True)
            x = layers.DepthwiseConv2D(taps, strides=stride, padding="same", use_bias=False)(x)
            x = _normalized(layers, x, True)
            x = _normalized(layers, layers.Conv2D(channels, 1, use_bias=False)(x), False)
            if stride == 1 and before.shape[-1] == channels:
                x = layers.Add()([before, x])
    x = _normalized(layers, layers.Conv2D(1280, 1, use_bias=False)(x), True)
    return keras.Model(inputs, layers.Dense(_CLASSES, activation="softmax")(layers.GlobalAveragePooling2D()(x)))


def _application(name: str) -> Any:
    import keras

    return getattr(keras.applications, name)(weights=None)


NETWORKS: dict[str, Callable[[], Any]] = {
    "mobilenet_v1": lambda: _application("MobileNet"),
    "mobilenet_v2": lambda: _application("MobileNetV2"),
    "mobilenet_v3": lambda: _application("MobileNetV3Large"),
    "efficientnet_lite0": efficientnet_lite0,
}


def _spread(model: Any) -> None:
    """Statistics of batches as trained networks have them, so that no layer's results are all alike."""
    random = np.random.default_rng(0)
    for weight in model.weights:
        if "moving_variance" in weight.path:
            weight.assign(random.uniform(0.5, 2, weight.shape))
        elif "moving_mean" in weight.path or "beta" in weight.path:
            weight.assign(random.normal(size=weight.shape) * 0.2)


def _images() -> Iterator[list[Any]]:
    random = np.random.default_rng(0)
    for _ in range(4):
        yield [random.normal(size=(1, _SIZE, _SIZE, 3)).astype(np.float32)]


def converted(model: Any, quantized: bool) -> bytes:
    """A Keras model as a TFLite file, in float32 or with int8 from its inputs to its results."""
    import tensorflow as tf  # type: ignore[import-not-found]

    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    if quantized:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = _images
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        converter.inference_input_type = converter.inference_output_type = tf.int8
    return bytes(converter.convert())


def main(folder: Path) -> None:
    """Write the files that are missing."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, build in NETWORKS.items():
        paths = {folder / f"{name}{'_int8' if quantized else ''}.tflite": quantized for quantized in (False, True)}
        missing = {path: quantized for path, quantized in paths.items() if not path.exists()}
        if not missing:
            continue
        model = build()
        _spread(model)
        for path, quantized in missing.items():
            path.write_bytes(converted(model, quantized))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
