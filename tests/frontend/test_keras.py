"""Keras files against what Keras gave for them, and what the importer says where it cannot read one."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.requirements import need_module
from tilewright.frontend.formats import identify
from tilewright.frontend.keras import from_keras, register_layer
from tilewright.frontend.keras.context import LayerCall
from tilewright.frontend.keras.layer import policy_name, read_layer, snake_case, unique
from tilewright.frontend.keras.registry import known_layers, known_operations
from tilewright.frontend.keras.values import KerasBuilder, promoted
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.traverse import post_order
from tilewright.ir.dtype import DataType
from tilewright.support.errors import UnsupportedError, UserError

h5py = need_module("h5py")

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "keras"
FILES = sorted(path.name for path in FOLDER.iterdir() if path.suffix in (".keras", ".h5"))


def expected(name: str) -> tuple[dict[str, Any], list[Any]]:
    """The inputs by name and the outputs of a fixture."""
    with np.load(FOLDER / f"{Path(name).stem}.npz", allow_pickle=False) as stored:
        inputs = {key.removeprefix("input_"): stored[key] for key in stored if key.startswith("input_")}
        outputs = [stored[f"output_{at}"] for at in range(sum(key.startswith("output_") for key in stored))]
    return inputs, outputs


def run(module: Any, inputs: dict[str, Any]) -> list[Any]:
    result = evaluate(module, *(inputs[param.name] for param in module["main"].params))
    return list(result) if isinstance(result, tuple) else [result]


@pytest.mark.parametrize("name", FILES)
def test_as_keras_computes_it(name: str) -> None:
    inputs, outputs = expected(name)
    found = run(from_keras(FOLDER / name), inputs)
    assert len(found) == len(outputs)
    for ours, theirs in zip(found, outputs, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", ["sequences.keras", "steps.keras"])
def test_compiled(name: str) -> None:
    inputs, outputs = expected(name)
    found = tw.compile(FOLDER / name, threads=1).run(inputs)
    for ours, theirs in zip(found, outputs, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)


def test_names_and_open_sizes() -> None:
    module = from_keras(FOLDER / "functions.keras")
    assert [param.name for param in module["main"].params] == ["first", "second"]
    assert module.attributes["output_names"] == ("joined", "large", "top")
    spans = {str(node.span) for node in post_order(module["main"].body) if node.span is not None}
    assert any("block/" in span for span in spans)
    fixed = from_keras(FOLDER / "functions.keras", shapes={"first": (2, 4, 6), "second": (2, 6)})
    assert fixed["main"].params[0].type.static_shape == (2, 4, 6)
    with pytest.raises(UserError, match="no input 'third'"):
        from_keras(FOLDER / "functions.keras", shapes={"third": (1,)})


def test_images_stay_in_their_layout() -> None:
    module = from_keras(FOLDER / "images.keras")
    assert not [node for node in post_order(module["main"].body) if getattr(node, "name", "") == "transpose"]


def test_a_folder_is_a_model(tmp_path: Path) -> None:
    shutil.unpack_archive(FOLDER / "functions.keras", tmp_path / "model", "zip")
    assert identify(tmp_path / "model").key == "keras"
    inputs, outputs = expected("functions.keras")
    np.testing.assert_allclose(run(tw.load_model(tmp_path / "model"), inputs)[0], outputs[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", FILES)
def test_recognised_by_content(name: str) -> None:
    assert identify((FOLDER / name).read_bytes()).key == "keras"


# Models that tests write themselves


def layer(kind: str, name: str, *inputs: str, module: str = "keras.layers", **config: Any) -> dict[str, Any]:
    """A layer of a functional configuration, called once on others."""
    given: Any = [
        {
            "class_name": "__keras_tensor__",
            "config": {"shape": [None], "dtype": "float32", "keras_history": [item, 0, 0]},
        }
        for item in inputs
    ]
    nodes = (
        [{"args": given if module != "keras.layers" or len(given) == 1 else [given], "kwargs": {}}] if inputs else []
    )
    return {
        "module": module,
        "class_name": kind,
        "config": {"name": name, **config},
        "registered_name": kind,
        "name": name,
        "inbound_nodes": nodes,
    }


def archive(
    layers: list[dict[str, Any]],
    output: str,
    weights: dict[str, Any] | None = None,
    inputs: Sequence[str] = ("x",),
    tensor: int = 0,
) -> bytes:
    """A `.keras` archive of a functional model with the input `x`, or others; it gives a tensor of a layer."""
    config = {
        "module": "keras.src.models.functional",
        "class_name": "Functional",
        "config": {
            "name": "m",
            "layers": layers,
            "input_layers": [[name, 0, 0] for name in inputs],
            "output_layers": [[output, 0, tensor]],
        },
    }
    numbers = io.BytesIO()
    with h5py.File(numbers, "w") as file:
        for path, value in (weights or {}).items():
            file[path] = value
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        file.writestr("config.json", json.dumps(config))
        file.writestr("model.weights.h5", numbers.getvalue())
    return made.getvalue()


def data(*shape: int, dtype: str = "float32") -> dict[str, Any]:
    return layer("InputLayer", "x", batch_shape=list(shape), dtype=dtype)


def result_of(content: bytes, value: Any, **options: Any) -> Any:
    return evaluate(from_keras(content, **options), value)


def test_a_layer_of_ones_own() -> None:
    content = archive([data(2, 3), layer("Twice", "twice", "x", factor=2.5)], "twice")
    with pytest.raises(UnsupportedError, match="the layer Twice is not known") as refused:
        from_keras(content)
    assert "layers={'Twice': function}" in str(refused.value) and "'twice'" in str(refused.value)

    def twice(call: LayerCall) -> object:
        return call.builder.multiply(call.input(0), call.layer.number("factor", 1.0))

    value = np.ones((2, 3), np.float32)
    assert np.array_equal(result_of(content, value, layers={"Twice": twice}), value * 2.5)


def test_a_registered_layer() -> None:
    @register_layer("AddsItsWeight")
    def adds(call: LayerCall) -> object:
        return call.builder.add(call.input(0), call.weight("vars/0", (3,)))

    content = archive(
        [data(2, 3), layer("AddsItsWeight", "mine", "x")],
        "mine",
        {"layers/adds_its_weight/vars/0": np.float32([1, 2, 3])},
    )
    assert result_of(content, np.zeros((2, 3), np.float32)).tolist() == [[1, 2, 3]] * 2
    with pytest.raises(UserError, match="one of Keras' own"):
        register_layer("Dense")


def test_code_is_not_run() -> None:
    code = {"class_name": "__lambda__", "config": {"code": "4wEAAAAA", "defaults": None, "closure": None}}
    content = archive([data(2, 3), layer("Lambda", "surprise", "x", function=code)], "surprise")
    with pytest.raises(UnsupportedError, match="code of Python, which is not run") as refused:
        from_keras(content)
    assert "SavedModel" in str(refused.value) and "'surprise'" in str(refused.value)


REFUSED: dict[str, tuple[list[dict[str, Any]], str]] = {
    "stateful": ([data(1, 4, 3), layer("LSTM", "l", "x", units=2, stateful=True)], "keeps its states"),
    "texts": ([data(2, dtype="string"), layer("TextVectorization", "l", "x")], "TensorFlow's own functions"),
    "missing weights": ([data(2, 3), layer("Dense", "l", "x", units=4)], "no weights 'layers/dense/vars/0'"),
    "unknown operation": ([data(2, 3), layer("Fancy", "l", "x", module="keras.src.ops.numpy")], "operation Fancy"),
    "unknown activation": ([data(2, 3), layer("Activation", "l", "x", activation="wild")], "activation 'wild'"),
    "no number": ([data(2, 3), layer("RepeatVector", "l", "x", n="three")], "n must be a whole number"),
    "a loop": ([data(2, 3), layer("ReLU", "l", "m"), layer("ReLU", "m", "l")], "wait for tensors that nothing gives"),
    "two of a name": ([data(2, 3), layer("ReLU", "l", "x"), layer("ReLU", "l", "x")], "two layers have the name"),
    "groups": ([data(1, 4, 4, 3), layer("Conv2D", "l", "x", filters=4, kernel_size=1, groups=2)], "do not divide"),
    "padding": ([data(1, 4, 4, 3), layer("MaxPooling2D", "l", "x", padding="odd")], "padding 'odd'"),
    "sparse input": ([layer("InputLayer", "x", batch_shape=[1], sparse=True), layer("ReLU", "l", "x")], "sparse"),
    "int4": (
        [data(2, 4), layer("Dense", "l", "x", units=2, dtype={"config": {"mode": "int4", "source_name": "float32"}})],
        "quantised as int4",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_a_reason(case: str) -> None:
    layers, message = REFUSED[case]
    with pytest.raises(UserError, match=message) as refused:
        from_keras(archive(layers, "l"))
    assert refused.value.where


def test_weights_of_another_shape() -> None:
    content = archive([data(2, 3), layer("Dense", "l", "x", units=4)], "l", {"layers/dense/vars/0": np.ones((2, 4))})
    with pytest.raises(UserError, match=r"have shape \(2, 4\), not \(3, 4\)"):
        from_keras(content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no model of Keras"),
        (b"PK\x03\x04 and nothing more", "damaged archive"),
        (b"\x89HDF\r\n\x1a\n and nothing more", "no HDF5 file, or it is damaged"),
    ],
)
def test_damaged_files(content: bytes, message: str) -> None:
    with pytest.raises(UserError, match=message):
        from_keras(content)


def test_a_file_of_weights_alone(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "model.weights.h5", "w") as file:
        file["layers/dense/vars/0"] = np.ones((2, 2))
    with pytest.raises(UserError, match="has weights and no model"):
        tw.load_model(tmp_path / "model.weights.h5")


def test_links_out_of_a_file_are_not_followed(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["secret"] = np.ones((3, 4), np.float32)
    numbers = io.BytesIO()
    with h5py.File(numbers, "w") as file:
        file["layers/dense/vars/0"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "secret")
    content = archive([data(2, 3), layer("Dense", "l", "x", units=4, use_bias=False)], "l")
    parts = zipfile.ZipFile(io.BytesIO(content))
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        file.writestr("config.json", parts.read("config.json"))
        file.writestr("model.weights.h5", numbers.getvalue())
    with pytest.raises(UserError, match="is a link to another place"):
        from_keras(made.getvalue())


def test_an_archive_that_claims_too_much() -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("config.json", b" " * (1 << 25))
    with pytest.raises(UserError, match="more than the archive can hold"):
        from_keras(made.getvalue())


# Meanings


def test_masks_are_forgotten_by_layers_that_do_not_know_them() -> None:
    words = data(1, 3, dtype="int32")
    table = {"layers/embedding/vars/0": np.float32([[9, 9], [1, 2], [3, 4]])}
    kept = [words, layer("Embedding", "e", "x", input_dim=3, output_dim=2, mask_zero=True)]
    given = np.int32([[1, 2, 0]])
    with_mask = archive([*kept, layer("GlobalAveragePooling1D", "p", "e")], "p", table)
    assert result_of(with_mask, given).tolist() == [[2, 3]]
    through = archive([*kept, layer("Dropout", "d", "e"), layer("GlobalAveragePooling1D", "p", "d")], "p", table)
    assert result_of(through, given).tolist() == [[2, 3]]
    lost = archive(
        [*kept, layer("Reshape", "r", "e", target_shape=[3, 2]), layer("GlobalAveragePooling1D", "p", "r")], "p", table
    )
    np.testing.assert_allclose(result_of(lost, given), [[13 / 3, 5]], rtol=1e-6)


def test_indices_outside_a_table_are_an_error() -> None:
    content = archive(
        [data(1, 2, dtype="int32"), layer("Embedding", "e", "x", input_dim=3, output_dim=1)],
        "e",
        {"layers/embedding/vars/0": np.ones((3, 1), np.float32)},
    )
    with pytest.raises(UserError, match="index"):
        result_of(content, np.int32([[0, 3]]))


def test_words_by_a_vocabulary() -> None:
    content = archive(
        [data(3, dtype="string"), layer("StringLookup", "l", "x", vocabulary=["cat", "dog"], num_oov_indices=1)], "l"
    )
    assert result_of(content, np.array(["dog", "bird", "cat"], object)).tolist() == [2, 0, 1]


def test_half_precision_is_computed_in_it() -> None:
    policy = {"module": "keras", "class_name": "DTypePolicy", "config": {"name": "mixed_float16"}}
    content = archive([data(1, 2), layer("ReLU", "l", "x", dtype=policy)], "l")
    assert result_of(content, np.float32([[1, -1]])).dtype == np.float16


@pytest.mark.parametrize(
    ("types", "result"),
    [("int32 float32", "float32"), ("int64 float16", "float16"), ("uint8 int8", "int16"), ("bool int8", "int8"),
     ("float16 bfloat16", "float32"), ("uint32 int8", "int64"), ("float16 float32", "float32")],
)  # fmt: skip
def test_common_types(types: str, result: str) -> None:
    assert promoted([DataType.of(name) for name in types.split()]) is DataType.of(result)


def test_names_as_keras_makes_them() -> None:
    assert [snake_case(name) for name in ("Conv2D", "PReLU", "LSTMCell", "BatchNormalization")] == [
        "conv2d",
        "p_re_lu",
        "lstm_cell",
        "batch_normalization",
    ]
    used: dict[str, int] = {}
    assert [unique("dense", used) for _ in range(3)] == ["dense", "dense_1", "dense_2"]


def test_policies() -> None:
    assert policy_name(None) == "float32"
    assert policy_name({"class_name": "Policy", "config": {"name": "mixed_float16"}}) == "mixed_float16"
    with pytest.raises(UserError, match="is not known"):
        policy_name([1])


def test_layers_inside_each_other_have_a_limit() -> None:
    described: Any = {"class_name": "ReLU", "config": {}}
    with pytest.raises(UserError, match="more than 32 times"):
        read_layer(described, None, 33)  # type: ignore[arg-type]


def test_the_standard_library_is_known() -> None:
    layers, operations = known_layers(), known_operations()
    assert {"Dense", "ConvLSTM2D", "MultiHeadAttention", "SpectralNormalization", "RandomFlip"} <= set(layers)
    assert {"GetItem", "Einsum", "Softmax", "ScatterUpdate"} <= set(operations)
    assert len(layers) > 130 and len(operations) > 200
    assert issubclass(KerasBuilder, object) and isinstance(known_layers, Callable)  # type: ignore[arg-type]


def test_products_with_a_table_in_a_type_of_their_own() -> None:
    table = np.float32([[1, 2], [3, 4], [5, 6]])
    reverse = layer("ReversibleEmbedding", "e", "x", input_dim=3, output_dim=2, reverse_dtype="float16")
    reverse["inbound_nodes"][0]["kwargs"] = {"reverse": True}
    content = archive([data(1, 2), reverse], "e", {"layers/reversible_embedding/vars/0": table})
    result = result_of(content, np.float32([[1, -1]]))
    assert result.dtype == np.float16 and result.tolist() == [[-1, -1, -1]]
    reverse["config"]["reverse_dtype"] = "float3"
    with pytest.raises(UserError, match="the type 'float3' is not known"):
        from_keras(archive([data(1, 2), reverse], "e", {"layers/reversible_embedding/vars/0": table}))


@pytest.mark.parametrize(("axes", "equation"), [([1], "btsd,bTsd->bstT"), ([2], "btsd,btSd->btsS"), (None, "")])
def test_scores_of_attention_over_some_axes(axes: list[int] | None, equation: str) -> None:
    random = np.random.default_rng(0)
    attention = layer("MultiHeadAttention", "a", "x", "x", num_heads=1, key_dim=4, use_bias=False, attention_axes=axes)
    attention["inbound_nodes"][0]["args"] = attention["inbound_nodes"][0]["args"][0]
    attention["inbound_nodes"][0]["kwargs"] = {"return_attention_scores": True}
    eye = np.eye(4, dtype=np.float32)
    weights = {
        f"layers/multi_head_attention/{name}_dense/vars/0": eye.reshape((1, 4, 4) if name == "output" else (4, 1, 4))
        for name in ("query", "key", "value", "output")
    }
    content = archive([data(2, 3, 5, 4), attention], "a", weights)
    module = json.loads(zipfile.ZipFile(io.BytesIO(content)).read("config.json"))
    module["config"]["output_layers"] = [["a", 0, 1]]
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(made, "w") as new:
        new.writestr("config.json", json.dumps(module))
        new.writestr("model.weights.h5", old.read("model.weights.h5"))
    value = random.standard_normal((2, 3, 5, 4)).astype(np.float32)
    scores = np.einsum(equation or "btsd,bTSd->btsTS", value, value) / 2
    flat = scores if axes else scores.reshape(2, 15, 15)
    wanted = np.exp(flat) / np.exp(flat).sum(-1, keepdims=True)
    # Heads, of which there is one, come before the places.
    shape = {(1,): (2, 5, 1, 3, 3), (2,): (2, 3, 1, 5, 5)}.get(tuple(axes or ()), (2, 1, 3, 5, 3, 5))
    np.testing.assert_allclose(result_of(made.getvalue(), value), wanted.reshape(shape), rtol=1e-5)


@pytest.mark.parametrize(("shape", "result"), [((1,), [[0, 1, 0]]), ((2, 1), [[0, 1, 0]] * 2), ((), [[0, 1, 0]])])
def test_categories_of_one_sample(shape: tuple[int, ...], result: list[list[int]]) -> None:
    encoding = layer("CategoryEncoding", "c", "x", num_tokens=3, output_mode="one_hot")
    content = archive([data(*shape, dtype="int32"), encoding], "c")
    assert result_of(content, np.ones(shape, np.int32)).tolist() == result


# Preprocessing


def test_augmentation_is_left_to_training() -> None:
    images = np.arange(48, dtype=np.int32).reshape(1, 4, 4, 3)
    for kind, dtype in (("RandomHue", "int32"), ("RandomFlip", "float32"), ("RandomCrop", "int32")):
        content = archive([data(1, 4, 4, 3, dtype="int32"), layer(kind, "l", "x", height=2, width=2)], "l")
        result = result_of(content, images)
        assert result.dtype == dtype and np.array_equal(result, images), kind


@pytest.mark.parametrize(("bounds", "unit"), [([0, 255], 1.0), ([0, 1], 1 / 255)])
def test_contrast_is_stretched_channel_by_channel(bounds: list[int], unit: float) -> None:
    content = archive([data(1, 2, 2, 2), layer("AutoContrast", "l", "x", value_range=bounds)], "l")
    given = np.float32([[[[10, 7], [20, 7]], [[30, 7], [60, 7]]]]) * np.float32(unit)
    result = result_of(content, given)
    np.testing.assert_allclose(result[..., 0] / unit, [[[0, 51], [102, 255]]], rtol=1e-4, atol=1e-3)
    assert np.array_equal(result[..., 1], given[..., 1])  # one value only: as it is


def test_a_range_of_values_that_is_none() -> None:
    content = archive([data(1, 2, 2, 2), layer("AutoContrast", "l", "x", value_range=[1, 1])], "l")
    with pytest.raises(UserError, match="value_range must be two numbers"):
        from_keras(content)


def test_features_are_joined_in_a_common_type() -> None:
    layers = [data(2, 3, dtype="int32"), layer("TFDIdentity", "i", "x"), layer("Rescaling", "r", "x", scale=0.5)]
    content = archive([*layers, layer("TFDConcat", "l", "i", "r", axis=-1)], "l")
    given = np.int32([[1, 2, 3], [4, 5, 6]])
    assert result_of(content, given).tolist() == np.concatenate([given, given / 2], 1).tolist()


def test_bands_of_a_spectrum() -> None:
    options = {"fft_length": 64, "sequence_stride": 16, "sampling_rate": 8000, "num_mel_bins": 8, "power_to_db": False}
    content = archive([data(2, 200), layer("MelSpectrogram", "l", "x", sequence_length=48, **options)], "l")
    given = np.random.default_rng(0).standard_normal((2, 200)).astype(np.float32)
    window = np.pad(0.5 - 0.5 * np.cos(2 * np.pi * np.arange(48) / 48), 8)
    wide = np.pad(given, ((0, 0), (32, 32)), "reflect")
    frames = np.stack([wide[:, at : at + 64] for at in range(0, 201, 16)], 1) * window
    power = np.abs(np.fft.rfft(frames)) ** 2
    edges = np.linspace(1127 * np.log1p(20 / 700), 1127 * np.log1p(4000 / 700), 10)
    places = 1127 * np.log1p(np.linspace(0, 4000, 33) / 700)
    bands = np.stack([np.interp(places, edges[at : at + 3], [0, 1, 0]) for at in range(8)], 1)
    np.testing.assert_allclose(result_of(content, given), (power @ bands).transpose(0, 2, 1), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fft_length": 512}, "frames of 512 samples"),
        ({"fft_length": 64, "window": "odd"}, "a window 'odd' of 64 samples"),
        ({"fft_length": 64, "min_freq": 9000.0}, "128 bands from 9000.0 to 8000.0 Hz"),
    ],
)
def test_bands_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        from_keras(archive([data(2, 200), layer("MelSpectrogram", "l", "x", **options)], "l"))


def lookup(**options: Any) -> bytes:
    return archive([data(2, 3, dtype="int64"), layer("IntegerLookup", "l", "x", vocabulary=[5, 7, 9], **options)], "l")


def test_rows_of_categories_have_no_column_for_the_mask() -> None:
    given = np.int64([[0, 7, 7], [1, 9, 0]])
    counts = result_of(lookup(mask_token=0, output_mode="count"), given)
    assert counts.dtype == np.int64 and counts.tolist() == [[0, 0, 2, 0], [1, 0, 0, 1]]
    assert result_of(lookup(mask_token=0), given).tolist() == [[0, 3, 3], [1, 4, 0]]


def test_counts_by_how_rare_categories_are() -> None:
    content = lookup(output_mode="tf_idf", idf_weights=[0.5, 1.5, 4.0])
    assert result_of(content, np.int64([[5, 7, 7], [1, 9, 2]])).tolist() == [[0, 0.5, 3, 0], [4, 0, 0, 4]]
    with pytest.raises(UserError, match="4 idf_weights do not fit 4 categories"):
        from_keras(lookup(output_mode="tf_idf", idf_weights=[1, 2, 3, 4]))


def test_unknown_keys_are_not_hashed() -> None:
    with pytest.raises(UnsupportedError, match="several places for unknown keys, which are hashed"):
        from_keras(lookup(num_oov_indices=2, oov_method="farmhash"))
    assert result_of(lookup(num_oov_indices=2), np.int64([[5, 3, 4], [9, 1, 2]])).tolist() == [[2, 1, 0], [4, 1, 0]]


def test_categories_are_counted_along_the_axis_behind_the_batch() -> None:
    content = archive(
        [data(1, 2, 2), layer("Discretization", "l", "x", bin_boundaries=[0.0, 1.0], output_mode="count")], "l"
    )
    assert result_of(content, np.float32([[[-1, 2], [0.5, 3]]])).tolist() == [[[1, 1, 0], [0, 0, 2]]]


def test_whole_numbers_of_images_are_rounded_and_stay_such() -> None:
    given = np.uint8([[[[0], [255]]]])
    content = archive([data(1, 1, 2, 1, dtype="uint8"), layer("Resizing", "l", "x", height=1, width=4)], "l")
    result = result_of(content, given)
    assert result.dtype == np.uint8 and result.ravel().tolist() == [0, 64, 191, 255]


def test_images_with_their_boxes() -> None:
    boxes = layer("MaxNumBoundingBoxes", "l", "x", max_number=3)
    (tensor,) = boxes["inbound_nodes"][0]["args"]
    boxes["inbound_nodes"][0]["args"] = [{"images": tensor, "bounding_boxes": {"boxes": tensor}}]
    result = evaluate(from_keras(archive([data(1, 2, 4), boxes], "l")), np.ones((1, 2, 4), np.float32))
    assert result.tolist() == [[[1] * 4, [1] * 4, [-1] * 4]]
    other = layer("CenterCrop", "l", "x", height=1, width=4)
    other["inbound_nodes"] = boxes["inbound_nodes"]
    with pytest.raises(UnsupportedError, match="CenterCrop of images in a dictionary"):
        from_keras(archive([data(1, 2, 4), other], "l"))
    other = layer("RandomHue", "l", "x")
    other["inbound_nodes"][0]["args"] = [{"labels": tensor}]
    with pytest.raises(UserError, match="a dictionary of labels has no 'images'"):
        from_keras(archive([data(1, 2, 4), other], "l"))


def resized_boxes(tensor: int, images: Any, boxes: Any, labels: Any, **options: Any) -> Any:
    """A tensor of what `Resizing` to 20 x 20 gives for images with boxes and labels."""
    made = layer("Resizing", "l", "x", "boxes", "labels", height=20, width=20, **options)
    ((image, box, label),) = made["inbound_nodes"][0]["args"]
    made["inbound_nodes"][0]["args"] = [{"images": image, "bounding_boxes": {"boxes": box, "labels": label}}]
    given = [("x", images), ("boxes", boxes), ("labels", labels)]
    layers = [layer("InputLayer", name, batch_shape=list(a.shape), dtype=a.dtype.name) for name, a in given]
    content = archive([*layers, made], "l", inputs=[name for name, _ in given], tensor=tensor)
    return evaluate(from_keras(content), images, boxes, labels)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"pad_to_aspect_ratio": True}, [[6, 2, 10, 6], [14, 8, 18, 12]]),
        ({"crop_to_aspect_ratio": True}, [[5, 0.5, 10, 5.5], [15, 8, 20, 13]]),
        ({}, [[5, 2, 10, 6], [15, 8, 20, 12]]),
    ],
)
def test_boxes_move_with_their_images(options: dict[str, Any], expected: list[list[float]]) -> None:
    """The answers are those of Keras' own tests."""
    images = np.random.default_rng(0).random((1, 10, 8, 3), np.float32)
    corners, labels = np.float32([[[2, 1, 4, 3], [6, 4, 8, 6]]]), np.int32([[1, 2]])
    plain = resized_boxes(0, images, corners, labels, bounding_box_format="xyxy", **options)
    assert plain.tolist() == [expected]
    x, y = np.float32([8, 10])
    left, top, right, bottom = np.moveaxis(corners, -1, 0)
    middle, size = ((left + right) / 2, (top + bottom) / 2), (right - left, bottom - top)
    for name, box, back in (
        ("yxyx", (top, left, bottom, right), lambda a: a[..., [1, 0, 3, 2]]),
        ("xywh", (left, top, *size), lambda a: np.concatenate([a[..., :2], a[..., :2] + a[..., 2:]], -1)),
        ("rel_xyxy", (left / x, top / y, right / x, bottom / y), lambda a: a * 20),
        ("center_xywh", (*middle, *size), _from_middle),
        ("center_yxhw", (*middle[::-1], *size[::-1]), lambda a: _from_middle(a[..., [1, 0, 3, 2]])),
        ("rel_center_xywh", (middle[0] / x, middle[1] / y, size[0] / x, size[1] / y), lambda a: _from_middle(a * 20)),
    ):
        result = resized_boxes(0, images, np.stack(box, -1), labels, bounding_box_format=name, **options)
        np.testing.assert_allclose(back(result), [expected], atol=1e-5, err_msg=name)


def _from_middle(boxes: Any) -> Any:
    return np.concatenate([boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2], -1)


def test_boxes_of_which_nothing_is_left() -> None:
    images = np.zeros((1, 10, 8, 3), np.float32)
    corners, labels = np.float32([[[-9, 1, -2, 3], [-1] * 4, [0] * 4, [4, 2, 40, 6]]]), np.int32([[7, 8, 9, 5]])
    boxes = resized_boxes(0, images, corners, labels, bounding_box_format="xyxy")
    assert boxes.tolist() == [[[0, 2, 0, 6], [0] * 4, [0] * 4, [10, 4, 20, 12]]]
    # What only fills up a row has a label that says so, too.
    assert resized_boxes(1, images, corners, labels, bounding_box_format="xyxy").tolist() == [[-1, -1, -1, 5]]
    for name in (None, "polar"):
        with pytest.raises(UserError, match=f"bounding boxes of the format {name!r}"):
            resized_boxes(0, images, corners, labels, bounding_box_format=name)
    with pytest.raises(UserError, match="no 'boxes' of four numbers"):
        resized_boxes(0, images, corners[..., :3], labels, bounding_box_format="xyxy")


def test_the_first_argument_by_its_name() -> None:
    made = layer("ReLU", "l", "x")
    made["inbound_nodes"][0] = {"args": [], "kwargs": {"inputs": made["inbound_nodes"][0]["args"][0]}}
    assert result_of(archive([data(2), made], "l"), np.float32([-1, 2])).tolist() == [0, 2]


@pytest.mark.parametrize(("start", "place"), [([1, 2], (1, 2)), ([-1, 9], (0, 2)), ([2, 0], (1, 0))])
def test_blocks_are_read_and_written_at_places_that_are_data(start: list[int], place: tuple[int, int]) -> None:
    values, updates = np.arange(12, dtype=np.float32).reshape(3, 4), np.full((2, 2), -1, np.float32)
    given = [
        layer("InputLayer", name, batch_shape=list(array.shape), dtype=array.dtype.name)
        for name, array in (("x", values), ("start", np.int32(start)), ("new", updates))
    ]
    written = layer("SliceUpdate", "w", "x", "start", "new", module="keras.src.ops.core")
    read = layer("Slice", "r", "w", "start", module="keras.src.ops.core", shape=[2, 2])
    for output, wanted in (("r", updates), ("w", values.copy())):
        if output == "w":
            wanted[place[0] : place[0] + 2, place[1] : place[1] + 2] = updates
        module = from_keras(archive([*given, written, read], output, inputs=("x", "start", "new")))
        np.testing.assert_array_equal(evaluate(module, values, np.int32(start), updates), wanted)


def test_an_operation_that_has_a_type_and_no_module() -> None:
    made = layer("ZerosLike", "z", "x", dtype=None)
    del made["module"], made["registered_name"]
    assert result_of(archive([data(2), made], "z"), np.float32([3, 4])).tolist() == [0, 0]
