"""Models as a PyTorch user would write them: which idioms are found, and that results stay."""

from __future__ import annotations

import numpy as np
import pytest

from bench import zoo
from bench.peers.idioms import idiomatic, kinds
from tests.requirements import need_module

torch = need_module("torch")


@pytest.mark.parametrize(("name", "layers"), [("bert_small", 6)])
def test_every_idiom_of_a_transformer_is_one_node_with_the_same_result(name: str, layers: int) -> None:
    from bench.peers.onnx_to_torch import OnnxModule

    model = zoo.build(name)
    found = idiomatic(model)
    count = kinds(found)
    assert count["ScaledDotProductAttention"] == count["Gelu"] == layers
    assert count["Linear"] == 6 * layers and count["LayerNormalization"] == 2 * layers + 1
    assert not count.keys() & {"Erf", "Softmax", "ReduceMean", "MatMul", "Pow"}
    inputs = zoo.inputs(name)
    with torch.inference_mode():
        plain, whole = (
            [out.numpy() for out in made(*(torch.from_numpy(inputs[key]) for key in made.input_names))]
            for made in (OnnxModule(model).eval(), OnnxModule(found).eval())
        )
    for left, right in zip(plain, whole, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-3, atol=1e-4)


def test_models_without_idioms_stay_as_they_are() -> None:
    model = zoo.build("resnet18")
    assert [node.op_type for node in idiomatic(model).graph.node] == [node.op_type for node in model.graph.node]
