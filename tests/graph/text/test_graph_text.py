"""The text form of graphs: round trips of every construct, and every message of the parser."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graph.generate import random_module
from tests.graph.helpers import function, op, random, var
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import (
    Call,
    Clause,
    ConstructorPattern,
    ConstructorRef,
    Function,
    GlobalVar,
    If,
    Let,
    Match,
    Tuple,
    TupleGet,
    TuplePattern,
    Var,
    VarPattern,
    WildcardPattern,
    constant,
)
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.prelude import CONS, NIL, construct, list_items, list_of, list_value, with_prelude
from tilewright.graph.pipeline import optimize
from tilewright.graph.text import parse_text, to_text
from tilewright.ir import build
from tilewright.ir.codec import to_text as any_text
from tilewright.ir.expr import Max
from tilewright.ir.expr import Var as Dimension
from tilewright.ir.function import Constructor, ExternFunc, IRModule, TypeDefinition
from tilewright.ir.structural import assert_same_ir
from tilewright.ir.types import (
    DataTypeName,
    FunctionType,
    OptionalType,
    SequenceType,
    TensorType,
    TupleType,
    TypeVariable,
    tensor_type,
)
from tilewright.support.errors import UnsupportedError, UserError
from tilewright.support.span import Span
from tilewright.tir.function import PrimFunc  # noqa: F401  (checks that the two texts can live together)

SCALAR = tensor_type((), "float32")


def round_trip(value):
    text = to_text(value)
    parsed = parse_text(text)
    assert_same_ir(parsed, value)
    assert str(to_text(parsed)).split("#")[0] == str(text).split("#")[0]
    return parsed


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 100_000))
def test_random_graphs_round_trip(seed):
    module = random_module(seed)
    round_trip(module)
    round_trip(optimize(module))


def test_golden_text():
    x = var("x", 1, 2, 4, 4)
    w = constant(random(0, 3, 2, 1, 1))
    conv = op("nn.conv2d", x, w, strides=(2, 2), span="conv1")
    main = infer_types(function([x], op("nn.relu", conv), result_type=tensor_type((1, 3, 2, 2), "float32")))
    text = to_text(main)
    assert text == (
        "@graph.function\n"
        'def main(x: Tensor[(1, 2, 4, 4), "float32"]) -> Tensor[(1, 3, 2, 2), "float32"]:\n'
        "    v0 = nn.conv2d(x, constant([[[[0.12573022]], [[-0.13210486]]], [[[0.64042264]], [[0.104900114]]], "
        '[[[-0.5356694]], [[0.36159506]]]], "float32"), strides=(2, 2))  # name: "conv1"; float32[1, 3, 2, 2]\n'
        "    v1 = nn.relu(v0)  # float32[1, 3, 2, 2]\n"
        "    return v1"
    )
    parsed = parse_text(text)
    assert parsed.body.args[0].span == Span("conv1")
    assert any_text(main) == text


def test_large_constants_go_to_the_table():
    x = var("x", 3, 5)
    w = constant(random(0, 5, 7))
    w.span = Span("weights")
    text = to_text(function([x], op("matmul", x, w)))
    assert "const[0]" in text
    assert text.constants == [w]
    assert parse_text(text).body.args[1] is w
    assert parse_text(str(text), constants=[w]).body.args[1] is w
    with pytest.raises(UserError, match="there is no constant 0: the table has 0"):
        parse_text(str(text))


def test_every_kind_of_constant():
    values = [
        constant(np.float32(0.1)),
        constant(np.float64(0.1)),
        constant([1, -2], "int64"),
        constant(True),
        constant([np.inf, -np.inf], "float32"),
        constant([np.nan], "float32"),
        constant(np.zeros((0, 3), np.float32)),
        constant(np.uint8(200)),
        constant(np.float16(0.1)),
        constant(np.asarray([1, 2], np.uint16), "bfloat16"),
        constant([[1.5], [2.5]], "float32"),
    ]
    round_trip(function([], Tuple(tuple(values))))


def test_names_that_are_no_identifiers_are_kept():
    x, y = var("input.1", 2), var("add", 2)
    parsed = round_trip(function([x, y], op("add", x, y, span='a "quoted" name')))
    assert [param.name for param in parsed.params] == ["input.1", "add"]
    assert parsed.body.span == Span('a "quoted" name')


def test_spans_with_lines():
    x = var("x", 2)
    body = op("nn.relu", x)
    body.span = Span("model.py", 3, 7)
    assert round_trip(function([x], body)).body.span == Span("model.py", 3, 7)


def test_attributes_of_all_kinds():
    x = var("x", 2, 3)
    body = op("clip", op("cast", x, dtype=TensorType((), SCALAR.dtype).dtype), minimum=-np.inf, maximum=2.5)
    body = op("pad", body, before=(1, 0), after=(0, 0), mode="edge")
    round_trip(function([x], op("nn.gelu", op("sum", body, axes=(0,), keepdims=True), approximate=True)))


def test_types():
    n = Dimension("n")
    t, u = TypeVariable("t"), TypeVariable("t")
    params = (
        Var("a", tensor_type((n, 4), "float32")),
        Var("b", tensor_type((None, build.add(n, 1)), "int8")),
        Var("c", tensor_type(None, "bool")),
        Var("d", TupleType((SCALAR, TupleType(())))),
        Var("e", FunctionType((SCALAR, t), TupleType((t,)))),
        Var("f", list_of(t)),
        Var("g", tensor_type((Max(n, build.mul(n, 2)), build.floordiv(n, 3), build.floormod(n, 5)), "float32")),
        Var("h", FunctionType((u,), u, (u,))),
        Var("i", DataTypeName("Color")),
        Var("j"),
    )
    round_trip(function(params, params[0], type_parameters=(t,)))


def test_unprintable_dimension():
    n = Dimension("n")
    with pytest.raises(UnsupportedError, match="a dimension with a Select has no text form"):
        to_text(function([Var("x", tensor_type((build.select(n < 3, n, n * 2),), "float32"))], constant(1)))


def test_let_if_and_blocks():
    c, x = var("c", dtype="bool"), var("x", 4)
    y, z, inner = Var("y"), Var("z", x.annotation), Var("inner")
    shared = op("nn.relu", x)
    nested = Let(inner, op("exp", y), op("add", inner, shared))
    branch = If(c, op("add", nested, y), Let(z, op("tanh", y), op("multiply", z, shared)))
    body = Let(y, shared, op("add", branch, op("add", y, branch)))
    main = function([c, x], body)
    parsed = round_trip(main)
    data = random(0, 4)
    for condition in (True, False):
        expected = evaluate(main, np.asarray(condition), data)
        np.testing.assert_array_equal(evaluate(parsed, np.asarray(condition), data), expected)


def test_closures_and_recursion():
    n, x = var("n", dtype="int64"), var("x", 4)
    loop, count, value = Var("loop"), Var("count", n.annotation), Var("value", x.annotation)
    shared = op("nn.relu", x)
    again = Call(loop, (op("subtract", count, constant(1, "int64")), op("add", value, shared)))
    body = Function("", (count, value), If(op("greater", count, constant(0, "int64")), again, value), x.annotation)
    free = Function("", (Var("p", SCALAR),), x)
    inner = Function("named", (Var("q", SCALAR),), Call(free, (constant(1.0, "float32"),)), notes={"k": (1, "two")})
    use = op("add", Call(loop, (n, x)), Call(inner, (constant(2.0, "float32"),)))
    parsed = round_trip(function([n, x], Let(loop, body, use)))
    data = np.full(4, 2, np.float32)
    np.testing.assert_array_equal(evaluate(parsed, np.asarray(3), data), np.full(4, 10, np.float32))


def test_let_of_a_function_with_annotation():
    x = var("x", 4)
    p = Var("p", x.annotation)
    f = Var("f", FunctionType((x.annotation,), x.annotation))
    round_trip(function([x], Let(f, Function("", (p,), p), Call(f, (x,)))))


def test_match_and_data_types():
    xs = Var("xs", list_of(SCALAR))
    head, tail, other = Var("head"), Var("tail"), Var("other")
    deep = ConstructorPattern(CONS, (VarPattern(head), ConstructorPattern(CONS, (WildcardPattern(), VarPattern(tail)))))
    body = Match(
        Tuple((xs, constant(1.0, "float32"))),
        (
            Clause(TuplePattern((deep, VarPattern(other))), construct(CONS, op("add", head, other), tail)),
            Clause(WildcardPattern(), Call(GlobalVar("empty"), ())),
        ),
    )
    empty = function([], construct(NIL), "empty", result_type=list_of(SCALAR))
    color = TypeDefinition("Color", (), (Constructor("Red", (), "Color"),))
    module = with_prelude(IRModule([function([xs], body), empty, ExternFunc("outside")], [color]))
    module = module.with_attributes(output_names=("a", "b"), version=3)
    parsed = parse_text(to_text(module))
    assert_same_ir(parsed, module)
    items = [np.float32(i) for i in range(3)]
    nil, cons = parsed.types["List"].constructors
    value = list_value(items)

    def rebuild(old):
        kind = cons if old.constructor is CONS else nil
        return type(old)(kind, tuple(rebuild(f) if isinstance(f, type(old)) else f for f in old.fields))

    result = evaluate(parsed, rebuild(value))
    assert float(result.fields[0]) == 1
    assert list_items(evaluate(module, value))[1] == 2
    assert parsed.attributes == {"output_names": ("a", "b"), "version": 3}


def test_constructor_as_a_value():
    x = var("x")
    apply = Function("", (Var("f"), Var("v")), x)
    round_trip(with_prelude(IRModule([function([x], Call(apply, (ConstructorRef(CONS), x)))])))


def test_call_of_a_call_result_and_tuple_items():
    x = var("x", 4)
    make = Function("", (), Function("", (Var("p"),), x))
    pair = Tuple((make, x))
    round_trip(function([x], Call(Call(TupleGet(pair, 0), ()), (TupleGet(pair, 1),))))


def test_deep_graph_round_trips():
    x = var("x")
    value = x
    for _ in range(3000):
        value = op("add", value, x)
    round_trip(function([x], value))


HEADER = '@graph.function\ndef main(x: Tensor[(4,), "float32"]):\n'
BAD = [
    ("def main(:\n", "not valid Python"),
    ("", "the text has no function"),
    ("x = 1\n", "expected a function, a data type"),
    ("print(1)\n", r"expected graph.module"),
    (HEADER + "    return y\n", "the name y is not defined"),
    (HEADER + "    return unknown_operator(x)\n", "unknown operator 'unknown_operator'"),
    (HEADER + "    return nn.relu(x, alpha=1)\n", "has no attribute alpha"),
    (HEADER + "    return nn.relu(x, x)\n", "takes \\(data\\), got 2 inputs"),
    (HEADER + "    return reshape(x)\n", "an attribute without a default is missing"),
    (HEADER + "    return reshape(x, shape=[foo])\n", "foo is not a value"),
    (HEADER + "    return reshape(x, shape=1 if 2 else 3)\n", "expected a literal"),
    (HEADER + "    return nn.relu(x, **{})\n", "attributes are written out"),
    (HEADER + "    y = nn.relu(x)\n", "must end with `return value`"),
    (HEADER + "    return x\n    y = x\n    return x\n", "return must be the last statement"),
    (HEADER + "    x += 1\n    return x\n", "this statement is not part of the graph dialect"),
    (HEADER + "    a, b = x\n    return x\n", "expected `name = expression`"),
    (HEADER + "    return x + x\n", "this expression is not part of the graph dialect"),
    (HEADER + "    return x[x]\n", "is not a value"),
    (HEADER + "    return x['a']\n", "a tuple is indexed by a number"),
    (HEADER + "    if x:\n        y = x\n    return y\n", "an `if` needs an `else`"),
    (HEADER + "    if x:\n        y = x\n    else:\n        z = x\n    return y\n", "must end by assigning y"),
    (HEADER + "    if x:\n        pass\n    else:\n        z = x\n    return y\n", "a branch must end with"),
    (HEADER + "    y: int = x\n    return y\n", "expected `let` or"),
    (HEADER + "    y: let\n    return x\n", "expected `name: let = expression`"),
    (HEADER + "    with open() as y:\n        y = x\n    return y\n", "expected `with block"),
    (HEADER + "    with block() as y:\n        z = x\n    return y\n", "this block must end with `y"),
    (HEADER + "    match x:\n        case _ if x:\n            y = x\n    return y\n", "a case has no condition"),
    (HEADER + "    match x:\n        case Foo():\n            y = x\n    return y\n", "expected a constructor"),
    (HEADER + "    match x:\n        case 1:\n            y = x\n    return y\n", "this pattern is not part"),
    (HEADER + "    return constant(1)\n", "expected constant\\(value"),
    (HEADER + "    return constant(1, 'strange')\n", "not a constant"),
    (HEADER + "    return x(x, a=1)\n", "only operators have attributes"),
    ("@graph.other\ndef main(x):\n    return x\n", "expected @graph.function"),
    ("@graph.function(size=1)\ndef main(x):\n    return x\n", "unknown option size"),
    ("@graph.function(names=1)\ndef main(x):\n    return x\n", "must be dictionaries"),
    ("@graph.function\ndef main(x=1):\n    return x\n", "parameters are plain names"),
    ("@graph.function\ndef main(x: 3):\n    return x\n", "expected a type"),
    ("@graph.function\ndef main(x: Tensor[3]):\n    return x\n", "expected Tensor"),
    ("@graph.function\ndef main(x: Tensor[3, 'float32']):\n    return x\n", "a shape is a tuple"),
    ("@graph.function\ndef main(x: Tensor[(3,), 'odd']):\n    return x\n", "unknown data type 'odd'"),
    ("@graph.function\ndef main(x: Tensor[('a',), 'bool']):\n    return x\n", "expected a dimension"),
    ("@graph.function\ndef main(x: Function[3, 4]):\n    return x\n", "expected Function"),
    ("@strange\nclass A:\n    pass\n", "expected @graph.data_type"),
    ("@graph.data_type()\nclass A:\n    B: int\n", "expected a constructor: Name"),
    (
        "@graph.data_type()\nclass A:\n    B = ()\n@graph.function\ndef main():\n    return A.C()\n",
        "type A has no constructor C",
    ),
    (
        "@graph.function\ndef f():\n    return constant(1, 'int8')\n@graph.function\ndef f():\n    return x\n",
        "is not defined|two functions named f",
    ),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_messages(text, message):
    with pytest.raises(UserError, match=message) as error:
        parse_text(text, "model.py")
    assert error.value.where.startswith("model.py")


def test_messages_show_the_place():
    with pytest.raises(UserError) as error:
        parse_text(HEADER + "    v0 = nn.relu(wrong)\n    return v0\n", "model.py")
    assert str(error.value) == (
        "the name wrong is not defined\n        v0 = nn.relu(wrong)\n                     ^\n  where: model.py:3:18"
    )


def test_other_values_are_refused():
    with pytest.raises(UnsupportedError, match="is not a graph function or module"):
        to_text(3)


def test_sequences_optionals_and_sizes_round_trip():
    n = Dimension("n")
    tensor = tensor_type((n, 4), "float32")
    items, maybe = Var("items", SequenceType(tensor)), Var("maybe", OptionalType(tensor))
    x = Var("x", tensor)
    flat = op("reshape", x, shape=(n * 4,))
    more = op("sequence.insert", items, x, result=SequenceType(tensor))
    text = to_text(Function("main", (items, maybe, x), Tuple((flat, more, maybe))))
    assert "Sequence[" in text
    assert "Optional[" in text
    assert "shape=((n * 4),)" in text
    again = to_text(parse_text(text, constants=text.constants))
    assert str(again) == str(text)


def test_a_sequence_has_one_kind_of_item():
    with pytest.raises(UserError, match=r"expected Sequence\[item\]"):
        parse_text('@graph.function\ndef main(x: Sequence[Tensor[(4,), "float32"], 3]):\n    return x\n')
