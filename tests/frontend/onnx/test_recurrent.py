"""LSTM, GRU and RNN against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tests.frontend.onnx.helpers import (
    agree,
    check,
    data,
    import_one,
    make_model,
    open_model,
    operators_of,
    run_onnxruntime,
)
from tilewright.support.errors import UnsupportedError, UserError

_STEPS, _BATCH, _IN, _HIDDEN = 4, 2, 3, 5
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def weights(op_type: str, directions: int = 1, bias: bool = True) -> list:
    rows = _GATES[op_type] * _HIDDEN
    return [
        data(directions, rows, _IN, low=-1, high=1),
        data(directions, rows, _HIDDEN, low=-1, high=1),
        data(directions, 2 * rows, low=-1, high=1) if bias else None,
    ]


def run(op_type: str, directions: int = 1, lengths=None, states=(), bias: bool = True, **attributes) -> None:
    x = data(_STEPS, _BATCH, _IN)
    outputs = 3 if op_type == "LSTM" else 2
    given = [x, *weights(op_type, directions, bias), lengths, *states]
    while given[-1] is None:
        given.pop()
    check(op_type, *given, constants=[1, 2, 3], outputs=outputs, hidden_size=_HIDDEN, tolerance=1e-4, **attributes)


@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_directions(op_type, direction):
    run(op_type, 2 if direction == "bidirectional" else 1, direction=direction)


@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_initial_states(op_type, direction):
    directions = 2 if direction == "bidirectional" else 1
    states = [data(directions, _BATCH, _HIDDEN) for _ in range(2 if op_type == "LSTM" else 1)]
    run(op_type, directions, states=states, direction=direction)


@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_lengths_of_sequences(op_type, direction):
    lengths = np.array([4, 2], np.int32)
    run(op_type, 2 if direction == "bidirectional" else 1, lengths=lengths, direction=direction)


@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
def test_without_bias(op_type):
    run(op_type, bias=False)


def test_full_lengths_need_no_masks():
    lengths = np.full(_BATCH, _STEPS, np.int32)
    x = data(_STEPS, _BATCH, _IN)
    module = import_one("RNN", x, *weights("RNN"), lengths, constants=[1, 2, 3, 4], outputs=2, hidden_size=_HIDDEN)
    assert "where" not in operators_of(module)


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("bias", [False, True])
def test_gru_resets_before_or_after(after, bias):
    run("GRU", bias=bias, linear_before_reset=after)


def test_lstm_peepholes():
    states = [data(1, _BATCH, _HIDDEN), data(1, _BATCH, _HIDDEN), data(1, 3 * _HIDDEN)]
    run("LSTM", states=states)


def test_lstm_coupled_gates():
    run("LSTM", input_forget=1)


@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
def test_clip(op_type):
    run(op_type, clip=0.3)


@pytest.mark.parametrize(
    "activations",
    [["Relu", "Tanh", "Sigmoid"], ["Sigmoid", "Softsign", "Softplus"], ["HardSigmoid", "ScaledTanh", "Affine"]],
)
def test_activations(activations):
    options = {}
    if "HardSigmoid" in activations:
        options = {"activation_alpha": [0.3, 0.9, 0.7], "activation_beta": [0.4, 1.1, 0.2]}
    run("LSTM", activations=activations, **options)


@pytest.mark.parametrize("name", ["Relu", "LeakyRelu", "ThresholdedRelu", "Elu"])
def test_activations_of_rnn(name):
    options = {} if name == "Relu" else {"activation_alpha": [0.2]}
    run("RNN", activations=[name], **options)


def test_activations_for_both_directions():
    run("RNN", 2, direction="bidirectional", activations=["Relu", "Sigmoid"])


@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
def test_batch_first_equals_transposed(op_type):
    """onnxruntime has no batch-first form, so it is compared with the other form."""
    from onnx import helper

    from tests.frontend.onnx.helpers import make_model, run_tilewright

    x, (w, r, b) = data(_STEPS, _BATCH, _IN), weights(op_type)
    names = ["y", "h"]
    stored = {"w": w, "r": r, "b": b}
    results = []
    for layout, value in ((0, x), (1, x.transpose(1, 0, 2).copy())):
        node = helper.make_node(op_type, ["x", "w", "r", "b"], names, hidden_size=_HIDDEN, layout=layout)
        results.append(run_tilewright(make_model([node], {"x": value}, names, stored), {"x": value}))
    np.testing.assert_array_equal(results[0][0].transpose(2, 0, 1, 3), results[1][0])
    np.testing.assert_array_equal(results[0][1].transpose(1, 0, 2), results[1][1])


def test_the_input_is_projected_once():
    x = data(_STEPS, _BATCH, _IN)
    module = import_one("LSTM", x, *weights("LSTM"), constants=[1, 2, 3], outputs=1, hidden_size=_HIDDEN)
    assert operators_of(module).count("matmul") == 1
    assert operators_of(module).count("nn.lstm") == 1


@pytest.mark.parametrize(
    ("attributes", "error", "message"),
    [
        ({"direction": "sideways"}, UserError, "unknown direction 'sideways'"),
        ({"hidden_size": 0}, UserError, "hidden_size must be positive"),
        ({"hidden_size": 7}, UserError, "the weights W must have shape"),
        ({"activations": ["Tanh", "Tanh"]}, UserError, "activations must have 1 entries"),
        ({"activations": ["Magic"]}, UnsupportedError, "the activation 'Magic' in RNN"),
    ],
)
def test_refusals(attributes, error, message):
    options = {"hidden_size": _HIDDEN, **attributes}
    with pytest.raises(error, match=message):
        import_one("RNN", data(_STEPS, _BATCH, _IN), *weights("RNN"), constants=[1, 2, 3], outputs=2, **options)


def test_long_sequences_are_no_larger_programs():
    w = weights("RNN")
    short, long = (
        import_one("RNN", data(steps, 1, _IN), *w, constants=[1, 2, 3], outputs=2, hidden_size=_HIDDEN)
        for steps in (2, 20000)
    )
    assert operators_of(short) == operators_of(long)


def test_refusals_of_shapes():
    w = weights("RNN")
    with pytest.raises(UserError, match="needs data of 3 dimensions"):
        import_one("RNN", data(_STEPS, _IN), *w, hidden_size=_HIDDEN)
    with pytest.raises(UserError, match="sequence_lens has shape"):
        import_one("RNN", data(_STEPS, _BATCH, _IN), *w, np.zeros(9, np.int32), hidden_size=_HIDDEN)
    with pytest.raises(UserError, match="an initial state has shape"):
        import_one("RNN", data(_STEPS, _BATCH, _IN), *w, None, data(1, 1, 1), hidden_size=_HIDDEN)
    with pytest.raises(UserError, match="needs the weights W and R"):
        import_one("RNN", data(_STEPS, _BATCH, _IN), w[0], hidden_size=_HIDDEN)


@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("with_lengths", [False, True])
def test_any_number_of_steps_and_sequences(op_type, direction, with_lengths):
    directions = 2 if direction == "bidirectional" else 1
    stored = dict(zip("WRB", weights(op_type, directions), strict=True))
    names = ["x", *stored, *(["lengths"] if with_lengths else [])]
    results = ["y", "h", "c"] if op_type == "LSTM" else ["y", "h"]
    node = helper.make_node(op_type, names, results, hidden_size=_HIDDEN, direction=direction)
    inputs = {"x": (TensorProto.FLOAT, ["steps", "batch", _IN])}
    if with_lengths:
        inputs["lengths"] = (TensorProto.INT32, ["batch"])
    model = open_model([node], inputs, results, stored)
    calls = [{"x": data(steps, batch, _IN)} for steps, batch in ((1, 1), (4, 2), (7, 3))]
    for call in calls:
        if with_lengths:
            call["lengths"] = np.arange(call["x"].shape[1], dtype=np.int32) % call["x"].shape[0] + 1
    agree(model, *calls)


@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
def test_a_hidden_size_of_one_is_compiled(op_type):
    """The product with the state has no sum: there is no loop to read weights ahead in."""
    gates = _GATES[op_type]
    node = helper.make_node(op_type, ["x", "w", "r"], ["y"], hidden_size=1)
    given = {"x": data(3, 1, 2)}
    model = make_model([node], given, ["y"], {"w": data(1, gates, 2), "r": data(1, gates, 1)})
    (mine,), (other,) = tw.compile(model, threads=1).run(given), run_onnxruntime(model, given)
    np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)
