"""The ten models: the known number of parameters, and outputs that say something about every layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from bench import zoo
from tilewright.cli import peers

# The largest model takes seconds to build and run; its small sibling shares all of its code.
QUICK = [name for name in zoo.names() if name != "bert_base"]


@pytest.fixture(scope="module", params=zoo.names())
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_ten_models_are_there() -> None:
    assert len(zoo.names()) == 10


def test_the_second_set_is_of_modest_size() -> None:
    assert not set(zoo.more_names()) & set(zoo.names())
    for name in zoo.more_names():
        assert zoo.spec(name).parameters < 28_000_000
        assert zoo.spec(name).gflop < 10


@pytest.mark.parametrize("name", ["shufflenet_v2", "tasnet"])
def test_the_second_set_has_the_parameters_it_says(name: str) -> None:
    model = zoo.build(name)
    stored = {entry.key: entry.value for entry in model.metadata_props}
    assert int(stored["parameters"]) == zoo.spec(name).parameters


def test_parameter_count_is_the_published_one(name: str) -> None:
    model = onnx.load(zoo.path(name), load_external_data=False)
    stored = {entry.key: entry.value for entry in model.metadata_props}
    assert int(stored["parameters"]) == zoo.SPECS[name].parameters
    statistics = [weight for weight in model.graph.initializer if ".running_" in weight.name]
    trained = [
        weight
        for weight in model.graph.initializer
        if weight.data_type == onnx.TensorProto.FLOAT
        and ".running_" not in weight.name
        and not weight.name.startswith("constant_")
    ]
    assert sum(int(np.prod(weight.dims)) for weight in trained) == zoo.SPECS[name].parameters
    assert len(statistics) % 2 == 0


def test_outputs_are_finite_varied_and_depend_on_the_inputs(name: str) -> None:
    path = zoo.path(name)
    first = peers.onnxruntime(path, 1, zoo.inputs(name, 0))()
    second = peers.onnxruntime(path, 1, zoo.inputs(name, 1))()
    for one, other in zip(first, second, strict=True):
        assert np.isfinite(one).all()
        assert 0.05 < one.std() < 20
        assert np.unique(one).size > one.size // 2
        assert np.abs(one - other).max() > 0.02 * np.abs(one).max()


def test_logits_do_not_make_one_class_certain() -> None:
    for model in ("resnet18", "mobilenet_v1", "mobilenet_v2", "lstm_lm_1"):
        logits = peers.onnxruntime(zoo.path(model), 1, zoo.inputs(model))()[0].reshape(-1)
        weights = np.exp(logits - logits.max())
        assert (weights / weights.sum()).max() < 0.9


def test_attention_looks_at_many_tokens_and_not_at_masked_ones(tmp_path: Path) -> None:
    model = zoo.build("bert_small")
    softmaxes = [node.output[0] for node in model.graph.node if node.op_type == "Softmax"]
    assert len(softmaxes) == 6
    for value in softmaxes:
        model.graph.output.append(onnx.helper.make_tensor_value_info(value, onnx.TensorProto.FLOAT, None))
    onnx.save(model, tmp_path / "model.onnx")
    inputs = zoo.inputs("bert_small")
    for weights in peers.onnxruntime(tmp_path / "model.onnx", 1, inputs)()[2:]:
        assert weights.max(axis=-1).mean() < 0.5
        masked = inputs["attention_mask"][0] == 0
        assert (weights[..., masked] == 0).all()


def test_batch_normalisation_stays_a_node_of_its_own() -> None:
    model = zoo.build("resnet18")
    kinds = [node.op_type for node in model.graph.node]
    assert kinds.count("Conv") == kinds.count("BatchNormalization") == 20
    names = [node.name for node in model.graph.node]
    assert len(set(names)) == len(names)


def test_the_small_bert_decomposes_layer_normalisation_and_the_base_one_does_not() -> None:
    small = {node.op_type for node in zoo.build("bert_small").graph.node}
    base = {node.op_type for node in zoo.build("bert_base").graph.node}
    assert "LayerNormalization" in base
    assert "LayerNormalization" not in small
    assert {"Pow", "Sqrt", "ReduceMean", "Erf"} <= small


def test_the_same_seed_gives_the_same_model_and_another_one_does_not() -> None:
    first, again, other = (zoo.SPECS["dqn"].make(seed).SerializeToString() for seed in (0, 0, 1))
    assert first == again
    assert first != other
    for key, array in zoo.inputs("lstm_lm_35", 3).items():
        assert np.array_equal(array, zoo.inputs("lstm_lm_35", 3)[key])


@pytest.mark.parametrize("model", QUICK)
def test_shape_inference_accepts_the_model(model: str) -> None:
    inferred = onnx.shape_inference.infer_shapes(zoo.build(model), strict_mode=True, check_type=True)
    assert inferred.graph.output[0].type.tensor_type.HasField("shape")


def test_a_stale_file_of_the_cache_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoo, "CACHE_FOLDER", tmp_path)
    (tmp_path / "dqn-0-000000000000.onnx").write_bytes(b"old")
    path = zoo.path("dqn")
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert zoo.path("dqn") == path
