"""What only a run decides: branches of different ranks, branches that type only when taken, values of unknown rank."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import onnx.parser
import pytest

import tilewright as tw
from tests.frontend.onnx.helpers import run_onnxruntime
from tilewright.frontend import from_onnx
from tilewright.frontend.core import forks
from tilewright.graph.interpreter import evaluate
from tilewright.support.errors import UnsupportedError, UserError

HEADER = '<ir_version: 10, opset_import: ["" : 21]>\n'


def _model(text):
    return onnx.parser.parse_model(HEADER + text)


def _check(model, *inputs, tolerance=1e-5):
    """Compiled code and the interpreter agree with onnxruntime."""
    names = [info.name for info in model.graph.input]
    given = dict(zip(names, inputs, strict=True))
    expected = run_onnxruntime(model, given)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = from_onnx(model)
    interpreted = evaluate(module, *inputs)
    interpreted = list(interpreted) if isinstance(interpreted, tuple) else [interpreted]
    for results in (interpreted, tw.compile(module, threads=1).run(given)):
        assert len(results) == len(expected)
        for result, other in zip(results, expected, strict=True):
            assert result.dtype == other.dtype and result.shape == other.shape
            np.testing.assert_allclose(result, other, tolerance, tolerance)


SQUEEZE_OR_NOT = """
test (float[b, n, 4] x) => (float[] y) {{
  shape = Shape (x)
  one = Constant <value_ints = [1]> ()
  middle = Gather <axis = 0> (shape, one)
  flag = Equal (middle, one)
  axes = Constant <value_ints = [1]> ()
  z = If (flag) <
    then_branch = t () => (float[] a) {{ a = Squeeze (x, axes) }},
    else_branch = e () => (float[] c) {{ c = Identity (x) }}
  >
  {rest}
}}
"""


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize(
    "rest",
    [
        "y = Relu (z)",
        "w = Relu (z)  v = Neg (w)  s = ReduceSum <keepdims = 0> (v)  y = Add (s, s)",
        "k = Shape (z)  r = Size (k)  f = CastLike (r, x)  m = ReduceMax <keepdims = 0> (z)  y = Mul (m, f)",
    ],
    ids=["to-the-end", "together-again", "sizes"],
)
def test_branches_of_different_ranks(rest, size):
    model = _model(SQUEEZE_OR_NOT.format(rest=rest))
    _check(model, np.random.default_rng(0).standard_normal((2, size, 4)).astype(np.float32))


@pytest.mark.parametrize("size", [1, 3])
def test_each_side_keeps_what_it_knows_of_sizes(size):
    """The weights of a convolution fit one branch only; the number of channels is known in it."""
    model = _model("""
test (float[b, c, 8, n] x, float[4, 8, 1] w) => (float[] y) {
  shape = Shape (x)
  three = Constant <value_ints = [3]> ()
  last = Gather <axis = 0> (shape, three)
  one = Constant <value_ints = [1]> ()
  flag = Equal (last, one)
  z = If (flag) <
    then_branch = t () => (float[] a) { a = Squeeze (x, three) },
    else_branch = e () => (float[] c) { m = ReduceMax <keepdims = 0> (x, three)  c = Identity (m) }
  >
  t = Transpose <perm = [0, 2, 1]> (z)
  y = Conv (t, w)
}
""")
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((2, 5, 8, size)), rng.standard_normal((4, 8, 1))
    _check(model, x.astype(np.float32), w.astype(np.float32))


WRONG_BRANCH = """
test (float[2, 3] x, bool flag) => (float[2, 5] y) {
  w = Constant <value = float[3, 5] {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6}> ()
  v = Constant <value = float[4, 5] {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,1,2,3,4,5}> ()
  z = If (flag) <
    then_branch = t () => (float[2, 5] a) { a = MatMul (x, w) },
    else_branch = e () => (float[2, 5] c) { c = MatMul (x, v) }
  >
  y = Relu (z)
}
"""


def test_a_branch_that_does_not_type_is_an_error_only_when_it_is_taken():
    model = _model(WRONG_BRANCH)
    x = np.ones((2, 3), np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the model is wrong there, whoever runs it
        exe = tw.compile(model, threads=1)
    weights = onnx.numpy_helper.to_array(model.graph.node[0].attribute[0].t)
    np.testing.assert_allclose(exe(x, np.array(True)), x @ weights, rtol=1e-6)
    with pytest.raises(UserError, match="MatMul"):
        exe(x, np.array(False))


def test_a_branch_that_is_not_supported_is_told_of():
    text = WRONG_BRANCH.replace("c = MatMul (x, v)", "u = Cast <to = 2> (v)  p = ImageDecoder (u)  c = CastLike (p, x)")
    with pytest.warns(UserWarning, match="branch cannot be compiled.*ImageDecoder"):
        exe = tw.compile(_model(text), threads=1)
    assert exe(np.ones((2, 3), np.float32), np.array(True)).shape == (2, 5)
    with pytest.raises(UserError, match="ImageDecoder"):
        exe(np.ones((2, 3), np.float32), np.array(False))


def test_no_branch_that_types_is_an_error_of_the_model():
    text = WRONG_BRANCH.replace("MatMul (x, w)", "MatMul (x, v)")
    with pytest.raises(UserError, match="MatMul"):
        from_onnx(_model(text))


def test_a_branch_of_a_loop_may_fail_in_one_turn_only():
    """Errors of two branches stay two, wherever they are."""
    model = _model(
        WRONG_BRANCH.replace(
            "y = Relu (z)",
            """u = If (flag) <
    then_branch = t2 () => (float[2, 5] a2) { a2 = MatMul (x, w) },
    else_branch = e2 () => (float[2, 5] c2) { c2 = MatMul (x, v) }
  >
  y = Add (u, z)""",
        )
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exe = tw.compile(model, threads=1)
    assert exe(np.ones((2, 3), np.float32), np.array(True)).shape == (2, 5)


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4), (5,)])
def test_inputs_of_unknown_rank(shape):
    model = _model("test (float[] x) => (float[] y) { r = Relu (x)  y = Softmax <axis = -1> (r) }")
    _check(model, np.random.default_rng(2).standard_normal(shape).astype(np.float32))


def test_what_no_rank_fits_is_an_error_of_the_model():
    model = _model("test (float[] x, int64[2] i) => (float[] y) { y = Gather <axis = 20> (x, i) }")
    with pytest.raises(UserError, match="axis 20 is out of range"):
        from_onnx(model)


def test_a_rank_beyond_those_that_were_compiled_is_an_error_of_the_call():
    model = _model("test (float[] x) => (float[] y) { y = Relu (x) }")
    exe = tw.compile(model, threads=1)
    with pytest.raises(UserError, match="more than 8 dimensions"):
        exe(np.zeros((1,) * 9, np.float32))


@pytest.mark.parametrize("shape", [(2, 12), (4, 3, 2), (24,)])
def test_reshape_to_a_shape_of_unknown_length(shape):
    model = _model("test (float[4, 6] x, int64[n] shape) => (float[] y) { r = Reshape (x, shape)  y = Relu (r) }")
    x = np.random.default_rng(3).standard_normal((4, 6)).astype(np.float32)
    _check(model, x, np.array(shape, np.int64))


@pytest.mark.parametrize("axes", [[0], [1, 2], [-1, 0, 1], []])
def test_axes_of_unknown_number(axes):
    model = _model("""
test (float[2, 3, 4] x, int64[n] axes) => (float[] y, float[] z) {
  y = ReduceSum <keepdims = 0> (x, axes)
  z = ReduceMax <keepdims = 1> (x, axes)
}
""")
    x = np.random.default_rng(4).standard_normal((2, 3, 4)).astype(np.float32)
    _check(model, x, np.array(axes, np.int64))


@pytest.mark.parametrize("shape", [(1, 3, 1), (2, 3, 1), (2, 3, 5), (1, 1, 1)])
def test_squeeze_of_all_open_sizes(shape):
    model = _model("test (float[a, b, c] x) => (float[] y) { s = Squeeze (x)  y = Neg (s) }")
    _check(model, np.random.default_rng(5).standard_normal(shape).astype(np.float32))


def test_loop_that_carries_values_of_changing_rank():
    model = _model("""
test (float[2] x, int64 turns) => (float[] y) {
  going = Constant <value = bool {1}> ()
  y = Loop (turns, going, x) <body = b (int64 i, bool c, float[] v) => (bool d, float[] w) {
    d = Identity (c)
    zero = Constant <value_ints = [0]> ()
    w = Unsqueeze (v, zero)
  }>
}
""")
    for turns in (0, 3):
        _check(model, np.array([1, 2], np.float32), np.array(turns, np.int64))


def test_too_many_forms_are_refused(monkeypatch):
    monkeypatch.setattr("tilewright.frontend.onnx.importer.MOST_SIDES", 8)
    model = _model(SQUEEZE_OR_NOT.format(rest="y = Relu (z)"))
    assert forks.MOST_SIDES > 8
    from_onnx(model)
    text = SQUEEZE_OR_NOT.format(
        rest="""
  other = Squeeze (x)
  more = Squeeze (other)
  y = Add (more, z)"""
    )
    with pytest.raises(UnsupportedError, match="more than 8 forms"):
        from_onnx(_model(text))
