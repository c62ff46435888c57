"""Host functions against ONNX's own reference evaluator and against plain Python."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tilewright.runtime.host import host_function
from tilewright.support.errors import UserError

RANDOM = np.random.default_rng(3)


def run(name, *values, **attributes):
    return host_function(name)(list(values), attributes)


def reference(op_type, values, outputs=1, **attributes):
    """The outputs of one ONNX node by the onnx package."""
    names = [f"x{index}" for index in range(len(values))]
    results = [f"y{index}" for index in range(outputs)]
    node = helper.make_node(op_type, names, results, **attributes)
    infos = [helper.make_empty_tensor_value_info(name) for name in names]
    graph = helper.make_graph([node], "g", infos, [helper.make_empty_tensor_value_info(name) for name in results])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    return ReferenceEvaluator(model).run(None, dict(zip(names, values, strict=True)))


def texts(*items):
    return np.array(items, dtype=object)


def same(ours, theirs):
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.dtype == other.dtype or mine.dtype == object
        assert mine.shape == other.shape
        assert mine.tolist() == other.tolist()


@pytest.mark.parametrize("shape", [(7,), (3, 4), (2, 3, 2), (0, 4)])
def test_nonzero(shape):
    data = RANDOM.integers(0, 2, shape)
    same(run("host.nonzero", data), reference("NonZero", [data]))


def test_nonzero_of_one_number():
    assert run("host.nonzero", np.array(5))[0].shape == (0, 1)
    assert run("host.nonzero", np.array(0))[0].shape == (0, 0)


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_compress(axis):
    data, condition = RANDOM.standard_normal((3, 4)), np.array([True, False, True])
    wanted = reference("Compress", [data, condition], **({} if axis < 0 else {"axis": axis}))
    same(run("host.compress", data, condition, axis=axis), wanted)


def test_compress_by_a_long_condition():
    with pytest.raises(UserError, match="a condition of shape"):
        run("host.compress", np.zeros((2, 3)), np.ones(3, bool), axis=0)


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_unique(axis, dtype):
    data = RANDOM.integers(0, 3, (6, 5)).astype(dtype)
    data[3] = data[0]
    wanted = reference("Unique", [data], outputs=4, sorted=1, **({} if axis < 0 else {"axis": axis}))
    same(run("host.unique", data, axis=axis, sorted=True), wanted)


def test_unique_in_order_of_appearance():
    data = np.array([2, 1, 1, 3, 4, 3], np.float32)
    values, first, place, count = run("host.unique", data, axis=-1, sorted=False)
    assert values.tolist() == [2, 1, 3, 4]
    assert first.tolist() == [0, 1, 3, 4]
    assert values[place].tolist() == data.tolist()
    assert count.tolist() == [1, 2, 2, 1]


def test_unique_texts_and_bits():
    values, *_, count = run("host.unique", texts("b", "a", "b"), axis=-1, sorted=True)
    assert (values.tolist(), count.tolist()) == (["a", "b"], [1, 2])
    bits = np.array([0xBF80, 0x3F80, 0xBF80], np.uint16)  # -1, 1, -1
    assert run("host.unique", bits, axis=-1, sorted=True, dtype="bfloat16")[0].tolist() == [0xBF80, 0x3F80]


@pytest.mark.parametrize("largest", [True, False])
def test_topk(largest):
    data = RANDOM.integers(0, 4, (3, 6)).astype(np.float32)
    ours = run("host.topk", data, np.array([4]), axis=1, largest=largest)
    same(ours, reference("TopK", [data, np.array([4])], outputs=2, axis=1, largest=int(largest), sorted=1))
    with pytest.raises(UserError, match="the axis has 6"):
        run("host.topk", data, np.array([7]), axis=1, largest=largest)


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("overlap", [0.1, 0.4, 0.8])
def test_non_max_suppression(centered, overlap):
    boxes = RANDOM.uniform(0, 1, (2, 30, 4)).astype(np.float32)
    scores = RANDOM.integers(0, 12, (2, 3, 30)).astype(np.float32) / 10  # some are equal
    values = [boxes, scores, np.array([8]), np.array([overlap], np.float32), np.array([0.25], np.float32)]
    ours = run("host.non_max_suppression", *values, center_point_box=centered)
    same(ours, reference("NonMaxSuppression", values, center_point_box=int(centered)))


def test_suppression_keeps_nothing_unless_told():
    boxes, scores = np.ones((1, 2, 4), np.float32), np.ones((1, 1, 2), np.float32)
    assert run("host.non_max_suppression", boxes, scores, center_point_box=False)[0].shape == (0, 3)
    with pytest.raises(UserError, match="do not fit"):
        run("host.non_max_suppression", boxes, scores[:, 0], center_point_box=False)


def test_mel_weights():
    values = [np.array(v) for v in (8, 16, 8192)] + [np.array(v, np.float32) for v in (0, 4096)]
    [ours], [wanted] = run("host.mel_weights", *values, dtype="float32"), reference("MelWeightMatrix", values)
    np.testing.assert_allclose(ours, wanted, atol=1e-6)


def test_text_joined_and_compared():
    left, right = texts("a", "b", "ü"), texts("x")
    assert run("text.concat", left, right)[0].tolist() == ["ax", "bx", "üx"]
    assert run("text.equal", left, texts("b"))[0].tolist() == [False, True, False]
    assert run("text.equal", left, texts("b"))[0].dtype == bool


@pytest.mark.parametrize(("delimiter", "most"), [(".", -1), ("", -1), (".", 1), ("ab", -1)])
def test_text_split(delimiter, most):
    data = texts("a.b c", "x..y", "", " lead", "cabd").reshape(5, 1)
    attributes = {} if most < 0 else {"maxsplit": most}
    wanted = reference("StringSplit", [data], outputs=2, delimiter=delimiter, **attributes)
    same(run("text.split", data, delimiter=delimiter, maxsplit=most), wanted)


def test_text_full_match():
    data = texts("a@b.com", "a@b", "x")
    pattern = r"\w+@\w+\.com"
    assert run("text.full_match", data, pattern=pattern)[0].tolist() == [True, False, False]


def test_text_normalize():
    options = {"case_change_action": "UPPER", "is_case_sensitive": False, "stopwords": ("MONDAY",)}
    assert run("text.normalize", texts("monday", "Tue", "wed"), **options)[0].tolist() == ["TUE", "WED"]
    assert run("text.normalize", texts("monday").reshape(1, 1), **options)[0].tolist() == [[""]]
    exact = {**options, "is_case_sensitive": True, "case_change_action": "NONE"}
    assert run("text.normalize", texts("monday", "MONDAY"), **exact)[0].tolist() == ["monday"]
    with pytest.raises(UserError, match=r"come as \(n,\) or \(1, n\)"):
        run("text.normalize", texts("a", "b").reshape(2, 1), **options)


def test_lookup():
    table = {"keys": ("a", "b"), "values": (1, 2), "default": -1, "dtype": "int64"}
    assert run("text.lookup", texts("b", "z", "a"), **table)[0].tolist() == [2, -1, 1]
    numbers = {"keys": (1.0, float("nan")), "values": ("one", "nan"), "default": "?", "dtype": "string"}
    assert run("text.lookup", np.array([np.nan, 1, 2], np.float32), **numbers)[0].tolist() == ["nan", "one", "?"]


def test_numbers_written_and_read():
    [written] = run("text.from_numbers", np.array([1.5, -0.25, np.nan, np.inf, 1e-9], np.float32), dtype="float32")
    assert written.tolist() == ["1.5", "-0.25", "NaN", "INF", "1e-09"]
    assert run("text.to_numbers", texts("1.5", "NaN"), dtype="float32")[0].tolist()[0] == 1.5
    assert run("text.from_numbers", np.array([True, False]), dtype="bool")[0].tolist() == ["1", "0"]
    assert run("text.to_numbers", texts("7", "-3"), dtype="int8")[0].dtype == np.int8
    with pytest.raises(UserError, match="no number of type int64"):
        run("text.to_numbers", texts("x"), dtype="int64")


def test_ngrams():
    words = texts("a", "b", "a", "b", "c")
    grams = {"pool": ("a", "c", "a", "b"), "starts": (0, 2), "places": (0, 1, 2), "width": 3, "skips": 1}
    assert run("text.ngrams", words, shortest=1, longest=2, **grams)[0].tolist() == [2, 1, 2]
    assert run("text.ngrams", words.reshape(1, 5), shortest=2, longest=2, **grams)[0].tolist() == [[0, 0, 2]]


def test_text_moves():
    data = texts("a", "b", "c", "d", "e", "f").reshape(2, 3)
    assert run("text.transpose", data, axes=(1, 0))[0].tolist() == data.T.tolist()
    assert run("text.take", data, np.array([-1, 0]), axis=1)[0].tolist() == [["c", "a"], ["f", "d"]]
    assert run("text.concatenate", data, data, axis=0)[0].shape == (4, 3)
    assert run("text.where", np.array([True, False]), texts("a", "b"), texts("x"))[0].tolist() == ["a", "x"]


def test_sequences():
    a, b = np.ones((2, 3)), np.zeros((1, 3))
    [made] = run("sequence.make", a, b)
    assert run("sequence.length", made)[0] == 2
    assert run("sequence.at", made, np.array(-1))[0] is b
    [longer] = run("sequence.insert", made, b, np.array(0))
    assert [item.shape for item in longer] == [(1, 3), (2, 3), (1, 3)]
    assert len(made) == 2  # inputs are never written to
    assert run("sequence.erase", longer)[0] == [b, a]
    assert run("sequence.erase", longer, np.array(-2))[0] == [b, b]
    assert run("sequence.concatenate", made, axis=0, new_axis=False)[0].shape == (3, 3)
    assert run("sequence.concatenate", [a, a], axis=-1, new_axis=True)[0].shape == (2, 3, 2)


def test_sequence_errors():
    with pytest.raises(UserError, match="the position 2 is not in a sequence of 2"):
        run("sequence.at", [1, 2], np.array(2))
    with pytest.raises(UserError, match="empty sequence cannot be erased"):
        run("sequence.erase", [])
    with pytest.raises(UserError, match="empty sequence cannot be joined"):
        run("sequence.concatenate", [], axis=0, new_axis=False)
    with pytest.raises(UserError, match="cannot be joined"):
        run("sequence.concatenate", [np.ones(2), np.ones(3)], axis=0, new_axis=True)
    with pytest.raises(UserError, match="must be a sequence, it is a tensor"):
        run("sequence.length", np.ones(2))
    with pytest.raises(UserError, match="must be a tensor, it is a sequence of 0"):
        run("host.nonzero", [])


def test_sequence_split():
    data = RANDOM.standard_normal((5, 2))
    sizes = [part.shape for part in run("sequence.split", data, np.array(2), axis=0, keepdims=True)[0]]
    assert sizes == [(2, 2), (2, 2), (1, 2)]
    parts = run("sequence.split", data, np.array([1, 4]), axis=0, keepdims=True)[0]
    assert [part.shape for part in parts] == [(1, 2), (4, 2)]
    parts = run("sequence.split", data, axis=1, keepdims=False)[0]
    np.testing.assert_array_equal(parts[1], data[:, 1])
    assert run("sequence.split", data[:0], axis=0, keepdims=True)[0] == []
    with pytest.raises(UserError, match="do not fit a dimension of 5"):
        run("sequence.split", data, np.array([1, 1]), axis=0, keepdims=True)


def test_optionals():
    value = np.ones(2)
    assert run("optional.make", value) == [value] or run("optional.make", value)[0] is value
    assert run("optional.make") == [None]
    assert run("optional.has", value)[0]
    assert not run("optional.has", None)[0]
    assert run("optional.get", value)[0] is value
    with pytest.raises(UserError, match="is empty"):
        run("optional.get", None)


def test_pairs():
    [rows] = run("sequence.pairs", texts("a", "b"), np.array([[1.0, 2.0], [3.0, 4.0]]))
    assert [(keys.tolist(), row.tolist()) for keys, row in rows] == [(["a", "b"], [1, 2]), (["a", "b"], [3, 4])]
    with pytest.raises(UserError, match="2 keys do not fit"):
        run("sequence.pairs", texts("a", "b"), np.ones((1, 3)))


def test_couple():
    chances = np.array([[0.8, 0.7, 0.4], [0.5, 0.5, 0.5]], np.float32)
    [found] = run("host.couple", chances, classes=3)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(found[1], 1 / 3, atol=1e-6)
    assert found[0].argmax() == 0
    assert found[0, 2] > found[0, 1]
    np.testing.assert_allclose(run("host.couple", chances[:, :1], classes=2)[0][0], [0.8, 0.2], atol=2e-3)


def test_axes_that_are_data():
    data = RANDOM.standard_normal((2, 3, 4))
    axes = np.array([-1, 0])
    [moved] = run("axes.to_end", data, axes)
    np.testing.assert_array_equal(moved, data.transpose(1, 0, 2))
    np.testing.assert_array_equal(run("axes.from_end", moved, axes)[0], data)
    assert run("axes.insert", data, axes)[0].shape == (1, 2, 3, 4, 1)
    assert run("axes.remove", data[:1, :, :1], axes)[0].shape == (3,)
    with pytest.raises(UserError, match="are not all 1"):
        run("axes.remove", data, axes)
    with pytest.raises(UserError, match="out of range"):
        run("axes.to_end", data, np.array([3]))
    with pytest.raises(UserError, match="repeat"):
        run("axes.to_end", data, np.array([0, -3]))


def test_a_condition_that_must_hold():
    (held,) = run("host.require", np.array([True]), message="no")
    assert held.tolist() == [True]
    with pytest.raises(UserError, match="positive numbers only"):
        run("host.require", np.array([False]), message="positive numbers only")
