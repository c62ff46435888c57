"""SavedModels for `bench.frontend_tensorflow`: Keras applications, recurrent networks, transformers."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.frontend_keras import architecture

Build = Callable[[Any, Path], Sequence[Any]]
"""Exports a model to a folder, and gives inputs for it."""

COMPILED = (
    "ConvNeXtTiny DenseNet121 EfficientNetB0 EfficientNetV2B0 InceptionV3 MobileNet MobileNetV2 MobileNetV3Small "
    "NASNetMobile ResNet50 ResNet50V2 VGG16 Xception".split()
)
"""Architectures that are compiled: one of each family. The graph interpreter runs the others, which are deeper."""


def _random(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def application(name: str, tf: Any, folder: Path) -> Sequence[Any]:
    """Export an architecture of Keras."""
    model, data, _ = architecture(name)
    model.export(str(folder), verbose=False)
    return [data]


def _sequential(shape: Sequence[int | None], layers: Callable[[Any], Sequence[Any]], data: Any) -> Build:
    def build(tf: Any, folder: Path) -> Sequence[Any]:
        tf.keras.utils.set_random_seed(0)
        model = tf.keras.Sequential([tf.keras.Input(shape), *layers(tf.keras.layers)])
        model.export(str(folder), verbose=False)
        return [data]

    return build


def small_network(tf: Any, folder: Path) -> Sequence[Any]:
    """Convolutions with their normalisation, a pool and a dense layer, for any number of images."""
    build = _sequential(
        (8, 8, 3),
        lambda k: [
            k.Conv2D(4, 3, strides=2, padding="same"),
            k.BatchNormalization(),
            k.ReLU(),
            k.DepthwiseConv2D(3, padding="same"),
            k.GlobalAveragePooling2D(),
            k.Dense(5, activation="softmax"),
        ],
        _random(2, 8, 8, 3),
    )
    return build(tf, folder)


def small_lstm(tf: Any, folder: Path) -> Sequence[Any]:
    """A long short-term memory over sequences of any length."""
    return _sequential((None, 3), lambda k: [k.LSTM(4, return_sequences=True)], _random(2, 5, 3))(tf, folder)


def _transformer(tf: Any, folder: Path) -> Sequence[Any]:
    """Two blocks of attention over embedded tokens, with masks."""
    layers = tf.keras.layers
    tf.keras.utils.set_random_seed(0)
    tokens = tf.keras.Input((None,), dtype="int32")
    value = layers.Embedding(50, 16, mask_zero=True)(tokens)
    for _ in range(2):
        attended = layers.MultiHeadAttention(4, 4)(value, value, use_causal_mask=True)
        value = layers.LayerNormalization()(value + attended)
        inner = layers.Dense(16)(layers.Dense(32, activation="gelu")(value))
        value = layers.LayerNormalization()(value + inner)
    model = tf.keras.Model(tokens, layers.Dense(50)(layers.GlobalAveragePooling1D()(value)))
    model.export(str(folder), verbose=False)
    return [np.random.default_rng(0).integers(0, 50, (2, 9)).astype(np.int32)]


def _decoder(tf: Any, folder: Path) -> Sequence[Any]:
    """A cell that writes tokens until one ends the text: a loop whose length is data, with a list that it fills."""

    class Decoder(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            random = np.random.default_rng(0)
            self.table = tf.Variable(random.standard_normal((12, 8)).astype(np.float32))
            self.cell = tf.Variable(random.standard_normal((16, 8)).astype(np.float32) * 0.5)
            self.logits = tf.Variable(random.standard_normal((8, 12)).astype(np.float32))

        @tf.function(input_signature=[tf.TensorSpec([1, 8], tf.float32, "state")])
        def __call__(self, state: Any) -> Any:
            written = tf.TensorArray(tf.int32, 20, element_shape=[])
            token, step = tf.constant(1), tf.constant(0)
            while step < 20 and token != 0:
                row = tf.gather(self.table, [token])
                state = tf.tanh(tf.matmul(tf.concat([row, state], 1), self.cell))
                token = tf.argmax(tf.matmul(state, self.logits)[0], output_type=tf.int32)
                written = written.write(step, token)
                step += 1
            if step > 10:
                state = state * 2.0
            return {"state": state, "steps": step, "tokens": written.stack()}

    module = Decoder()
    tf.saved_model.save(module, str(folder), signatures=module.__call__)
    return [_random(1, 8)]


def _table(tf: Any, folder: Path) -> Sequence[Any]:
    """Texts looked up in a table whose lines are a file of the model."""
    words = Path(tempfile.mkdtemp(prefix="tilewright-tensorflow-")) / "colours.txt"
    words.write_text("red\ngreen\nblue\n")

    class Table(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            lines = tf.lookup.TextFileInitializer(
                str(words), tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER
            )
            self.table = tf.lookup.StaticHashTable(lines, -1)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "words")])
        def __call__(self, words: Any) -> Any:
            return {"numbers": self.table.lookup(words)}

    module = Table()
    tf.saved_model.save(module, str(folder), signatures=module.__call__)
    return [np.array(["blue", "black", "red"], object)]


def models() -> dict[str, Build]:
    """The models by name."""
    found: dict[str, Build] = {}
    sequence = _random(2, 9, 6)
    found["LSTM of open length"] = _sequential(
        (None, 6), lambda k: [k.LSTM(5, return_sequences=True), k.LSTM(4)], sequence
    )
    found["GRU of open length"] = _sequential((None, 6), lambda k: [k.Bidirectional(k.GRU(5))], sequence)
    found["LSTM spelled out"] = _sequential((9, 6), lambda k: [k.Bidirectional(k.LSTM(5))], sequence)
    found["LSTM of 100 steps"] = _sequential((100, 3), lambda k: [k.LSTM(5, return_sequences=True)], _random(1, 100, 3))
    found["masked LSTM"] = _sequential(
        (None, 6), lambda k: [k.Masking(), k.LSTM(5)], np.where(sequence > 1.5, sequence, 0)
    )
    found["ConvLSTM"] = _sequential((4, 8, 8, 2), lambda k: [k.ConvLSTM2D(3, 3)], _random(1, 4, 8, 8, 2))
    found["transformer"] = _transformer
    found["decoder with a loop"] = _decoder
    found["table of a file"] = _table
    return found
