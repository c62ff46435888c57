"""The models of the benchmark zoo import, and the small ones give what onnxruntime gives."""

from __future__ import annotations

import pytest

from bench import zoo
from tests.frontend.onnx.helpers import compare, main_of
from tests.grids import rare
from tilewright.frontend import from_onnx
from tilewright.graph.ir.expr import Call, GraphExpr
from tilewright.ir.visit import post_order


@pytest.mark.parametrize("name", ["dqn", "dcgan", "lstm_lm_1", "mobilenet_v2"])
def test_small_models(name):
    compare(zoo.build(name), zoo.inputs(name), tolerance=2e-5)


@pytest.mark.parametrize("name", ["bert_small", *rare("resnet18", "mobilenet_v1", "lstm_lm_35")])
def test_larger_models(name):
    compare(zoo.build(name), zoo.inputs(name), tolerance=1e-4)


@pytest.mark.parametrize("name", ["resnet50", "bert_small"])
def test_every_node_has_a_type_and_a_name(name):
    for item in post_order(main_of(from_onnx(zoo.build(name))).body):
        if isinstance(item, Call):
            assert item.span is not None
        if isinstance(item, GraphExpr) and type(item).__name__ in ("Call", "Constant", "TupleGet", "Var"):
            assert item.type is not None
