"""Recurrent layers: the loop program and the scheduled machine code against the numpy reference."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.topi.differential import check
from tilewright.compiler import Compilation
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Function, Var, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import call, get_operator
from tilewright.graph.ops.recurrent import ACTIVATIONS
from tilewright.ir.dtype import FLOAT32
from tilewright.ir.expr import IntImm
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.function import IRModule
from tilewright.ir.types import TensorType, tensor_type
from tilewright.support.errors import UserError

GATES = {"lstm": 4, "gru": 3, "rnn": 1}
FUNCTIONS = {
    "lstm": (("sigmoid", 0.0, 0.0), ("tanh", 0.0, 0.0), ("tanh", 0.0, 0.0)),
    "gru": (("sigmoid", 0.0, 0.0), ("tanh", 0.0, 0.0)),
    "rnn": (("tanh", 0.0, 0.0),),
}


def operands(kind, steps=3, batch=2, size=5, lengths=False, peepholes=False, dtype="float32"):
    rng = np.random.default_rng(7)

    def array(*shape, scale=1.0):
        return (rng.standard_normal(shape) * scale).astype(dtype)

    result = [array(steps, batch, GATES[kind], size), array(GATES[kind], size, size, scale=0.3), array(batch, size)]
    if kind == "lstm":
        result.append(array(batch, size))
    if kind == "gru":
        result.append(array(size))
    if lengths:
        result.append(rng.integers(0, steps + 1, batch).astype(np.int32))
    if peepholes:
        result.append(array(3, size))
    return result


def run(kind, arrays, constants=(1,), threads=1, **attributes):
    """The operator compiled as a model, some of its operands constants."""
    params = [Var(f"p{n}", tensor_type(a.shape, a.dtype.name)) for n, a in enumerate(arrays) if n not in constants]
    queue = iter(params)
    args = [constant(a) if n in constants else next(queue) for n, a in enumerate(arrays)]
    module = IRModule([Function("main", tuple(params), call(f"nn.{kind}", *args, **attributes))])
    inputs = [a for n, a in enumerate(arrays) if n not in constants]
    got = tw.compile(module, threads=threads)(*inputs)
    wanted = evaluate(infer_types(module), *inputs)
    pairs = zip(*(item if isinstance(item, tuple) else (item,) for item in (got, wanted)), strict=True)
    for a, b in pairs:
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("kind", list(GATES))
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("lengths", [False, True])
def test_loop_programs(kind, backward, lengths):
    check(
        f"nn.{kind}", *operands(kind, lengths=lengths), activations=FUNCTIONS[kind], backward=backward, tolerance=1e-5
    )


def test_loop_programs_of_variants():
    plain = operands("lstm", peepholes=True, lengths=True)
    check("nn.lstm", *plain, activations=FUNCTIONS["lstm"], coupled=True, clip=0.5, tolerance=1e-5)
    check("nn.gru", *operands("gru"), activations=FUNCTIONS["gru"], reset_after=True, tolerance=1e-5)
    check("nn.rnn", *operands("rnn", dtype="float16"), activations=FUNCTIONS["rnn"], tolerance=4e-3)


@pytest.mark.parametrize("name", list(ACTIVATIONS))
def test_activations(name):
    check("nn.rnn", *operands("rnn"), activations=((name, 0.7, 0.3),), tolerance=1e-5)


@pytest.mark.grid
@pytest.mark.parametrize("kind", list(GATES))
@pytest.mark.parametrize(("batch", "size"), [(1, 37), (3, 32), (11, 16), (1, 3)])
def test_compiled(kind, batch, size):
    attributes = {"reset_after": True} if kind == "gru" and batch == 3 else {}
    run(kind, operands(kind, 4, batch, size), activations=FUNCTIONS[kind], **attributes)


@pytest.mark.parametrize("kind", list(GATES))
def test_compiled_on_two_threads(kind):
    run(kind, operands(kind, 5, 2, 150), threads=2, activations=FUNCTIONS[kind], backward=True)


def test_weights_that_are_no_constants():
    run("lstm", operands("lstm", 3, 2, 20, lengths=True), constants=(), activations=FUNCTIONS["lstm"])


def test_products_are_in_the_step_and_weights_in_its_order():
    arrays = operands("lstm", 4, 1, 64)
    params = [Var(f"p{n}", tensor_type(a.shape, "float32")) for n, a in enumerate(arrays) if n != 1]
    body = call("nn.lstm", params[0], constant(arrays[1]), *params[1:], activations=FUNCTIONS["lstm"])
    compilation = Compilation(IRModule([Function("main", tuple(params), body)]), threads=1)
    (kernel,) = compilation.kernels
    text = str(compilation.scheduled(kernel))
    assert "zigzag" in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a, f: (a[:1] + [a[1][:3]] + a[2:], f), "the weights and the data"),
        (lambda a, f: (a[:2] + [a[2][:1]] + a[3:], f), "hidden"),
        (lambda a, f: ([a[0][0], *a[1:]], f), "the data must have 4 dimensions"),
        (lambda a, f: (a, f[:2]), "3 activations are needed, there are 2"),
        (lambda a, f: (a, (("cube", 0.0, 0.0), *f[1:])), "unknown activation 'cube'"),
        (lambda a, f: ([*a, np.zeros(2, np.float32)], f), "the lengths must be of an integer type"),
        (lambda a, f: ([*a, np.zeros(2, np.int32), np.zeros((2, 5), np.float32)], f), "peepholes"),
    ],
)
def test_messages(change, message):
    arrays, functions = change(operands("lstm"), FUNCTIONS["lstm"])
    rule = get_operator("nn.lstm")
    types = [tensor_type(a.shape, a.dtype.name) for a in arrays]
    with pytest.raises(UserError, match=message):
        rule.infer(types, rule.attributes_class(activations=functions))


@pytest.mark.parametrize("symbolic_batch", [False, True])
def test_any_number_of_steps_and_sequences(symbolic_batch):
    rng = np.random.default_rng(1)
    size, steps = 19, Symbol("steps")
    batch = Symbol("batch") if symbolic_batch else IntImm(2)
    weights = constant((rng.standard_normal((4, size, size)) * 0.3).astype(np.float32))
    shapes = [(steps, batch, IntImm(4), IntImm(size)), (batch, IntImm(size)), (batch, IntImm(size))]
    params = [Var(f"p{n}", TensorType(shape, FLOAT32)) for n, shape in enumerate(shapes)]
    body = call("nn.lstm", params[0], weights, *params[1:], activations=FUNCTIONS["lstm"])
    module = IRModule([Function("main", tuple(params), body)])
    exe = tw.compile(module, threads=1)
    for count, sequences in [(3, 2), (1, 2), (4, 7 if symbolic_batch else 2)]:
        given = [(count, sequences, 4, size), (sequences, size), (sequences, size)]
        arrays = [rng.standard_normal(shape).astype(np.float32) for shape in given]
        for a, b in zip(exe(*arrays), evaluate(infer_types(module), *arrays), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
