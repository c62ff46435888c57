"""Makes `tests/fixtures/keras`: small models of Keras with inputs and what Keras gives for them.

    KERAS_BACKEND=torch python -m bench.keras_fixtures           # the .keras and .h5 files of Keras 3
    python -m bench.keras_fixtures --legacy                      # keras2.h5, by tf_keras (Keras 2)

Needs keras (or tf_keras) with a backend; the tests need neither.
"""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).resolve().parents[1] / "tests" / "fixtures" / "keras"


def images(keras: Any) -> Any:
    """Convolutions of most kinds, pools, normalisations."""
    layers = keras.layers
    data = keras.Input((12, 12, 3), name="image")
    x = layers.Rescaling(1 / 2, offset=-0.5)(data)
    x = layers.Conv2D(6, 3, strides=2, padding="same", use_bias=False, name="stem")(x)
    x = layers.BatchNormalization()(x)
    x = layers.ReLU(max_value=6)(x)
    x = layers.Add()([x, layers.DepthwiseConv2D(3, padding="same", activation="silu")(x)])
    x = layers.SeparableConv2D(8, 3, padding="valid", activation="gelu")(x)
    x = layers.GroupNormalization(2)(x)
    x = layers.Conv2DTranspose(4, 3, strides=2, padding="same")(x)
    x = layers.MaxPooling2D(2, padding="same")(layers.ZeroPadding2D(((0, 1), (1, 0)))(x))
    x = layers.AveragePooling2D(2)(layers.PReLU(shared_axes=[1, 2])(x))
    x = layers.Dropout(0.5)(layers.Flatten()(x))
    return keras.Model(data, layers.Dense(5, activation="softmax", name="classes")(x))


def functions(keras: Any) -> Any:
    """Several inputs and outputs, a layer called twice, a model inside the model, operations."""
    layers, ops = keras.layers, keras.ops
    first, second = keras.Input((4, 6), name="first"), keras.Input((6,), name="second")
    shared = layers.Dense(5, activation="tanh", name="shared")
    inner_input = keras.Input((5,))
    inner = keras.Model(
        inner_input, [layers.Dense(3)(inner_input), layers.LayerNormalization()(inner_input)], name="inner"
    )
    sums = shared(second) + ops.mean(shared(first), axis=1)
    small, large = inner(sums)
    block = keras.Sequential([keras.Input((3,)), layers.Dense(4), layers.BatchNormalization()], name="block")
    picked = first[:, ::2, 1:] * 2.0
    joined = ops.concatenate([ops.reshape(picked, (-1, 10)), block(small)], axis=-1)
    return keras.Model(
        [first, second], {"joined": joined, "large": ops.relu(large), "top": ops.max(picked, axis=(1, 2))}
    )


def sequences(keras: Any) -> Any:
    """Recurrent layers of all kinds over words, some of which are masked."""
    layers = keras.layers
    words = keras.Input((7,), dtype="int32", name="words")
    x = layers.Embedding(11, 4, mask_zero=True)(words)
    x = layers.Bidirectional(layers.LSTM(3, return_sequences=True))(x)
    x = layers.GRU(4, return_sequences=True, reset_after=False)(x)
    x, *states = layers.RNN([layers.LSTMCell(3), layers.GRUCell(2)], return_sequences=True, return_state=True)(x)
    x = layers.TimeDistributed(layers.Dense(3))(x)
    last = layers.SimpleRNN(3, go_backwards=True)(x)
    return keras.Model(words, [last, states[1], layers.GlobalAveragePooling1D()(x)])


def attention(keras: Any) -> Any:
    """Attention of several heads with a mask, of one head, and an einsum."""
    layers = keras.layers
    data, other = keras.Input((5, 8), name="data"), keras.Input((3, 8), name="other")
    masked = layers.Masking()(data)
    x = layers.MultiHeadAttention(2, 4)(masked, masked, use_causal_mask=True)
    x = layers.LayerNormalization(epsilon=1e-6)(layers.Add()([data, x]))
    x = layers.GroupQueryAttention(4, 4, 2)(x, other)
    x = layers.EinsumDense("abc,cd->abd", output_shape=(None, 6), bias_axes="d", activation="relu")(x)
    y = layers.Attention(use_scale=True)([x, layers.Dense(6)(other)])
    return keras.Model([data, other], [x, y])


def steps(keras: Any) -> Any:
    """A loop: convolutions in the place of products."""
    data = keras.Input((None, 6, 6, 2), name="frames")
    return keras.Model(data, keras.layers.ConvLSTM2D(3, 3, padding="same", return_sequences=True)(data))


def keras2(keras: Any) -> Any:
    """What Keras 2 writes differently: nodes as lists, models inside models, hard_sigmoid, operators of TensorFlow."""
    import tensorflow as tf

    layers = keras.layers
    data = keras.Input((6, 4), name="data")
    base = keras.Sequential([layers.Dense(4, input_shape=(4,)), layers.BatchNormalization()], name="base")
    base.trainable = False
    x = layers.TimeDistributed(base)(data)
    x, state, _ = layers.LSTM(3, recurrent_activation="hard_sigmoid", return_sequences=True, return_state=True)(x)
    x = layers.GRU(3, reset_after=True)(x, initial_state=[state])
    x = tf.nn.relu(x * 2.0 + state)[:, 1:]
    return keras.Model(data, layers.Concatenate()([x, layers.Dense(2)(state)]))


MODELS: dict[str, tuple[Callable[[Any], Any], tuple[str, ...]]] = {
    "images": (images, ("keras",)),
    "functions": (functions, ("keras", "h5")),
    "sequences": (sequences, ("keras",)),
    "attention": (attention, ("keras",)),
    "steps": (steps, ("keras",)),
}


def values_for(model: Any) -> dict[str, Any]:
    """Inputs of a model, by name."""
    random = np.random.default_rng(0)
    given: dict[str, Any] = {}
    for item in model.inputs:
        shape = tuple(3 if size is None else int(size) for size in (2, *item.shape[1:]))
        name = item.name.partition(":")[0]
        if "int" in str(item.dtype):
            given[name] = np.where(random.random(shape) < 0.3, 0, random.integers(1, 11, shape)).astype(np.int32)
        else:
            given[name] = random.normal(0, 1, shape).astype(np.float32)
            if name == "data" and len(shape) == 3:
                given[name][0, 3:] = 0
    return given


def write(keras: Any, name: str, make: Callable[[Any], Any], forms: tuple[str, ...]) -> None:
    """The files of one model, with its inputs and outputs."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(7)
    model = make(keras)
    random = np.random.default_rng(1)
    for layer in model.layers:
        weights = layer.get_weights()
        layer.set_weights(
            [(w + random.uniform(0.05, 0.3, w.shape)).astype(w.dtype) if w.dtype.kind == "f" else w for w in weights]
        )
    inputs = values_for(model)
    result = model(list(inputs.values()) if len(inputs) > 1 else next(iter(inputs.values())))
    if isinstance(result, dict):
        result = [result[key] for key in sorted(result)]
    listed = list(result) if isinstance(result, (list, tuple)) else [result]
    outputs = {f"output_{at}": np.asarray(_numpy(item)) for at, item in enumerate(listed)}
    for form in forms:
        model.save(FOLDER / f"{name}.{form}")
        if form == "keras":
            _compressed(FOLDER / f"{name}.{form}")
    np.savez_compressed(FOLDER / f"{name}.npz", **{f"input_{key}": value for key, value in inputs.items()}, **outputs)


def _compressed(path: Path) -> None:
    """The same archive, smaller."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)


def _numpy(item: Any) -> Any:
    return item.detach().cpu().numpy() if hasattr(item, "detach") else item


def main(arguments: list[str]) -> None:
    """Write all files."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    if "--legacy" in arguments:
        import tf_keras

        write(tf_keras, "keras2", keras2, ("h5",))
        return
    import keras

    for name, (make, forms) in MODELS.items():
        write(keras, name, make, forms)


if __name__ == "__main__":
    main(sys.argv[1:])
