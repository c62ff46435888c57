"""Decision trees whose nodes ask anything become trees whose nodes ask `feature <= threshold`."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

import tilewright as tw
from tests.requirements import need_module
from tilewright.frontend.core.tree_tables import MODES, Forest, Tables, at_most
from tilewright.support.errors import UserError

SPECIAL = [-np.inf, -1.5, -0.0, 0.0, 1e-45, 1.0, np.nextafter(np.float32(1), np.float32(2)), 2.0, np.inf, np.nan]
TESTS = [np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal]


def _one_node(mode: int, threshold: float, missing: bool, values: list[float]) -> Forest:
    """A tree of one node (0) with the leaves 1 (its test fails) and 2."""
    members = np.array([values, [np.nan] * len(values), [np.nan] * len(values)], np.float64) if values else None
    return Forest(
        features=np.zeros(3, np.int64),
        thresholds=np.array([threshold, 0, 0]),
        modes=np.array([mode, 0, 0]),
        branches=np.array([[1, 2], [1, 1], [2, 2]]),
        missing=np.array([missing, False, False]),
        members=members,
        roots=np.array([0]),
        weights=np.zeros((3, 1)),
        used=np.zeros((3, 1), bool),
        base=np.zeros(1),
        aggregate="SUM",
    )


def _leaf(tables: Tables, value: np.floating) -> int:
    at = 0
    for _ in range(int(tables.depths(np.array([0]))[0])):
        holds = value <= tables.thresholds[at] or (np.isnan(value) and tables.missing[at])
        at = int(tables.branches[at, int(holds)])
    return at


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("mode", range(len(TESTS)), ids=MODES[:-1])
def test_every_comparison_at_every_edge(mode, missing, dtype):
    for threshold in SPECIAL:
        tables = at_most(_one_node(mode, threshold, missing, []), np.dtype(dtype))
        for value in np.array(SPECIAL, dtype):
            holds = TESTS[mode](value, dtype(threshold)) or (missing and np.isnan(value))
            assert _leaf(tables, value) == 1 + holds, (threshold, value)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("count", range(1, 10))
def test_membership_is_a_search(count, missing):
    values = SPECIAL[:count]
    tables = at_most(_one_node(6, 0.0, missing, values), np.dtype(np.float32))
    for value in np.array([*SPECIAL, 0.5, 3.0, -7.0], np.float32):
        holds = value in np.array(values, np.float32) or (missing and np.isnan(value))
        assert _leaf(tables, value) == 1 + holds, value
    assert tables.depths(np.array([0]))[0] <= 1 + 2 * np.log2(2 * count)


def _regressor(depth: int, trees: int) -> onnx.ModelProto:
    """Trees that are one long line of nodes: node 2k goes to the leaf 2k + 1, or on to 2k + 2."""
    count = 2 * depth + 1
    ids = list(range(count))
    inner = [at % 2 == 0 and at < count - 1 for at in ids]
    node = helper.make_node(
        "TreeEnsembleRegressor",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        n_targets=1,
        nodes_treeids=[tree for tree in range(trees) for _ in ids],
        nodes_nodeids=ids * trees,
        nodes_featureids=[at % 3 for at in ids] * trees,
        nodes_values=[float(at) / count for at in ids] * trees,
        nodes_modes=["BRANCH_LT" if is_inner else "LEAF" for is_inner in inner] * trees,
        nodes_truenodeids=[at + 1 if is_inner else 0 for at, is_inner in zip(ids, inner, strict=True)] * trees,
        nodes_falsenodeids=[at + 2 if is_inner else 0 for at, is_inner in zip(ids, inner, strict=True)] * trees,
        target_treeids=[tree for tree in range(trees) for is_inner in inner if not is_inner],
        target_nodeids=[at for at, is_inner in zip(ids, inner, strict=True) if not is_inner] * trees,
        target_ids=[0] * (depth + 1) * trees,
        target_weights=[float(at) for at in range(trees * (depth + 1))],
    )
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["rows", 3])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["rows", 1])
    graph = helper.make_graph([node], "trees", [x], [y])
    return helper.make_model(
        graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    )


@pytest.mark.parametrize(("depth", "trees"), [(1, 1), (300, 9), (20, 100)])
def test_forests_are_one_kernel_whatever_their_depth(depth, trees):
    onnxruntime = need_module("onnxruntime")
    model = _regressor(depth, trees)
    compilation = tw.Compilation(model, threads=1)
    assert len(compilation.kernels) <= 2
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    executable = compilation.executable()
    for rows in (0, 1, 7):
        x = np.random.default_rng(rows).random((rows, 3), np.float32)
        np.testing.assert_array_equal(executable(x), session.run(None, {"x": x})[0])


def test_a_tree_that_leads_back_to_itself_is_refused():
    tables = Tables(np.zeros(2, np.int64), np.zeros(2), np.array([[1, 1], [0, 1]]), np.zeros(2, bool))
    with pytest.raises(UserError, match="leads back to itself"):
        tables.depths(np.array([0]))
