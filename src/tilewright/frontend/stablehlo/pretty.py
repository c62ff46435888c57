"""The pretty forms of operations, brought to what the generic form says.

Most are operands, words and `name = attribute` in any order, then the types. Those with a syntax of their own have a
function here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from tilewright.frontend.stablehlo.program import Block, Dense, Operation, Spec, Value
from tilewright.frontend.stablehlo.scanner import Scanner, convolution_dimensions


class Reader(Scanner, ABC):
    """What operations are read with; `text.TextReader` knows the names of values."""

    @abstractmethod
    def value(self) -> Value:
        """A value that has been defined."""

    @abstractmethod
    def region(self, arguments: list[Value] | None = None) -> Block:
        """Operations in braces."""


Read = tuple[Operation, list[Spec]]
"""An operation and the types of its results."""

_KEYS: dict[str, dict[str, str]] = {
    "broadcast_in_dim": {"dims": "broadcast_dimensions"},
    "dynamic_broadcast_in_dim": {"dims": "broadcast_dimensions"},
    "transpose": {"dims": "permutation"},
    "reverse": {"dims": "dimensions"},
    "broadcast": {"sizes": "broadcast_sizes"},
    "iota": {"dim": "iota_dimension"},
    "dynamic_iota": {"dim": "iota_dimension"},
    "concatenate": {"dim": "dimension"},
    "get_dimension_size": {"dim": "dimension"},
    "set_dimension_size": {"dim": "dimension"},
    "pad": {"low": "edge_padding_low", "high": "edge_padding_high", "interior": "interior_padding"},
    "dynamic_slice": {"sizes": "slice_sizes"},
    "fft": {"type": "fft_type", "length": "fft_length"},
    "rng": {"distribution": "rng_distribution"},
    "rng_bit_generator": {"algorithm": "rng_algorithm"},
    "map": {"dims": "dimensions"},
}
"""The names of attributes in pretty forms where they differ from the generic ones."""


def read_pretty(reader: Reader, count: int) -> Read:
    """An operation that gives so many results, from its name on."""
    name = reader.word()
    if name is None:
        reader.fail("an operation is missing")
    if name in ("call", "return", "constant"):
        name = f"func.{name}"
    form = _FORMS.get(name.split(".", 1)[-1])
    if form is not None:
        return form(reader, name, count)
    return _plain(reader, name, count)


def _plain(reader: Reader, name: str, count: int) -> Read:
    """Operands, words and attributes, then types."""
    operands: list[Value] = []
    attributes: dict[str, Any] = {}
    words: list[str] = []
    keys = _KEYS.get(name.split(".", 1)[-1], {})
    while not reader.sees(":"):
        if reader.accept(",") or reader.accept("(") or reader.accept(")"):
            continue
        if reader.sees("%"):
            operands.append(reader.value())
        elif reader.accept("<{"):
            reader.at -= 1
            attributes.update(reader.mapping())
            reader.expect(">")
        elif reader.sees("{"):
            attributes.update(reader.mapping())
        else:
            word = reader.word()
            if word is None or reader.sees("loc("):
                reader.fail(f"the form of {name} cannot be read")
            if reader.accept("="):
                attributes[keys.get(word, word)] = reader.attribute()
            else:
                words.append(word)
    if words:
        attributes["words"] = words
    return Operation(name, operands, attributes, []), _result_types(reader, operands, count)


def _result_types(reader: Reader, operands: list[Value], count: int) -> list[Spec]:
    """The types of results after a colon: `(a, b) -> c`, or one for all, or one for each, or of the operands."""
    reader.expect(":")
    if reader.sees("("):
        given = reader.types()
        if not reader.accept("->"):
            return given
        return reader.types()
    found = [reader.type()]
    while reader.accept(","):
        found.append(reader.type())
    if reader.accept("->"):
        return reader.types()
    if count == len(found):
        return found
    return found[-1:] * count


def _return(reader: Reader, name: str, count: int) -> Read:
    operands: list[Value] = []
    while reader.sees("%"):
        operands.append(reader.value())
        reader.accept(",")
    if reader.accept(":"):
        reader.type()
        while reader.accept(","):
            reader.type()
    return Operation(name, operands, {}, []), []


def _constant(reader: Reader, name: str, count: int) -> Read:
    """`stablehlo.constant dense<1> : tensor<i32>`; attributes may stand before or after the value."""
    attributes: dict[str, Any] = reader.mapping() if reader.sees("{") else {}
    if reader.accept("("):
        reader.expect(")")
        reader.expect("<{")
        reader.at -= 1
        attributes.update(reader.mapping())
        reader.expect(">")
        reader.expect(":")
        reader.types()
        reader.expect("->")
        return Operation(name, [], attributes, []), reader.types()
    value = reader.attribute()
    if not isinstance(value, Dense):
        reader.fail("a constant has no value")
    return Operation(name, [], {**attributes, "value": value}, []), [value.spec]


def _compare(reader: Reader, name: str, count: int) -> Read:
    made, specs = _plain(reader, name, count)
    words = made.attributes.pop("words", [])
    if words:
        made.attributes["comparison_direction"] = words[0]
    if len(words) > 1:
        made.attributes["compare_type"] = words[1]
    return made, specs


def _slice(reader: Reader, name: str, count: int) -> Read:
    """`%x [0:3, 0:4:2]`."""
    operand = reader.value()
    bounds: list[list[int]] = [[], [], []]
    reader.expect("[")
    while not reader.accept("]"):
        for place in range(3):
            if place and not reader.accept(":"):
                bounds[place].append(1)
            else:
                bounds[place].append(reader.number())
        reader.accept(",")
    attributes = dict(zip(("start_indices", "limit_indices", "strides"), bounds, strict=True))
    return Operation(name, [operand], attributes, []), _result_types(reader, [operand], count)


def _dot_general(reader: Reader, name: str, count: int) -> Read:
    """`batching_dims = [0] x [0], contracting_dims = [2] x [1]`."""
    operands = [reader.value()]
    reader.expect(",")
    operands.append(reader.value())
    numbers: dict[str, list[int]] = {}
    attributes: dict[str, Any] = {"dot_dimension_numbers": numbers}
    while reader.accept(","):
        key = reader.word()
        reader.expect("=")
        if key in ("batching_dims", "contracting_dims"):
            what = "batching" if key == "batching_dims" else "contracting"
            numbers[f"lhs_{what}_dimensions"] = reader.items("[", "]")
            reader.expect("x")
            numbers[f"rhs_{what}_dimensions"] = reader.items("[", "]")
        elif reader.sees("<"):
            attributes[str(key)] = reader.enclosed()
        else:
            attributes[str(key)] = reader.attribute()
    if reader.sees("{"):
        attributes.update(reader.mapping())
    return Operation(name, operands, attributes, []), _result_types(reader, operands, count)


def _convolution(reader: Reader, name: str, count: int) -> Read:
    """`(%x, %w) dim_numbers = [...]x[...]->[...], window = {...} {...}`."""
    operands: list[Value] = []
    reader.expect("(")
    while not reader.accept(")"):
        operands.append(reader.value())
        reader.accept(",")
    attributes: dict[str, Any] = {}
    if reader.accept_word("dim_numbers"):
        reader.expect("=")
        start = reader.at
        for separator in ("x", "->", None):
            reader.sees("[")
            reader.enclosed()
            if separator is not None:
                reader.expect(separator)
        attributes["dimension_numbers"] = convolution_dimensions(reader.text[start : reader.at])
        reader.accept(",")
    if reader.accept_word("window"):
        reader.expect("=")
        attributes.update(_window(reader))
    if reader.sees("{"):
        attributes.update(reader.mapping())
    return Operation(name, operands, attributes, []), _result_types(reader, operands, count)


_WINDOW = {
    "stride": "window_strides",
    "pad": "padding",
    "lhs_dilate": "lhs_dilation",
    "rhs_dilate": "rhs_dilation",
    "reverse": "window_reversal",
}


def _window(reader: Reader) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in reader.mapping().items():
        flat = [item for pair in value for item in pair] if key == "pad" else value
        found[_WINDOW.get(key, key)] = flat
    return found


def _call(reader: Reader, name: str, count: int) -> Read:
    """`@target(%x) {attributes}`, also of custom calls (without parentheses around nothing)."""
    target = reader.symbol()
    if target is None:
        reader.fail(f"{name} names no function")
    operands: list[Value] = []
    reader.expect("(")
    while not reader.accept(")"):
        operands.append(reader.value())
        reader.accept(",")
    attributes: dict[str, Any] = reader.mapping() if reader.sees("{") else {}
    key = "call_target_name" if name.endswith("custom_call") else "callee"
    return Operation(name, operands, {**attributes, key: target}, []), _result_types(reader, operands, count)


def _composite(reader: Reader, name: str, count: int) -> Read:
    """`"chlo.erf" %x {decomposition = @f}`."""
    label = reader.string()
    operands: list[Value] = []
    while reader.sees("%"):
        operands.append(reader.value())
        reader.accept(",")
    attributes: dict[str, Any] = reader.mapping() if reader.sees("{") else {}
    return Operation(name, operands, {**attributes, "name": label}, []), _result_types(reader, operands, count)


def _tuple_item(reader: Reader, name: str, count: int) -> Read:
    operand = reader.value()
    reader.expect("[")
    index = reader.number()
    reader.expect("]")
    return Operation(name, [operand], {"index": index}, []), _result_types(reader, [operand], count)


def _while(reader: Reader, name: str, count: int) -> Read:
    """`(%i = %a, %j = %b) : types cond {...} do {...}`."""
    operands: list[Value] = []
    names: list[str] = []
    reader.expect("(")
    while not reader.accept(")"):
        named = reader.value_name()
        if named is None:
            reader.fail("an argument of the loop is missing")
        reader.expect("=")
        names.append(named[0])
        operands.append(reader.value())
        reader.accept(",")
    specs: list[Spec] = []
    if reader.accept(":"):
        specs.append(reader.type())
        while reader.accept(","):
            specs.append(reader.type())
    attributes: dict[str, Any] = reader.mapping() if reader.accept_word("attributes") else {}
    if len(specs) != len(names):
        reader.fail(f"{len(specs)} types for {len(names)} values of a loop")
    regions: list[Block] = []
    for word in ("cond", "do"):
        if not reader.accept_word(word):
            reader.fail(f"'{word}' is missing")
        regions.append(reader.region([Value(spec, label) for spec, label in zip(specs, names, strict=True)]))
    return Operation(name, operands, attributes, [], regions), specs


def _reduce(reader: Reader, name: str, count: int) -> Read:
    """`(%x init: %z) applies stablehlo.add across dimensions = [0]`, or with a region behind the types."""
    inputs: list[Value] = []
    starts: list[Value] = []
    while reader.accept("("):
        inputs.append(reader.value())
        reader.expect("init")
        reader.expect(":")
        starts.append(reader.value())
        reader.expect(")")
        reader.accept(",")
    applied = reader.word() if reader.accept_word("applies") else None
    if not reader.accept_word("across") or not reader.accept_word("dimensions"):
        reader.fail("'across dimensions' is missing")
    reader.expect("=")
    attributes: dict[str, Any] = {"dimensions": reader.attribute()}
    if reader.sees("{"):
        attributes.update(reader.mapping())
    specs = _result_types(reader, inputs, count)
    region = _applied(applied, starts[0]) if applied is not None else _reducer(reader, len(inputs))
    return Operation(name, [*inputs, *starts], attributes, [], [region]), specs


def _applied(name: str, start: Value) -> Block:
    """The region of one operation on two elements."""
    arguments = [Value(start.spec), Value(start.spec)]
    result = Value(start.spec)
    inner = Operation(name, list(arguments), {}, [result])
    return Block(arguments, [inner, Operation("stablehlo.return", [result], {}, [])])


def _reducer(reader: Reader, count: int) -> Block:
    """`reducer(%a: t, %b: t) (%c: u, %d: u) {...}`: a pair of each input; the region takes firsts, then seconds."""
    if not reader.accept_word("reducer"):
        reader.fail("'reducer' is missing")
    pairs: list[list[Value]] = []
    for _ in range(count):
        pair: list[Value] = []
        reader.expect("(")
        while not reader.accept(")"):
            named = reader.value_name()
            if named is None:
                reader.fail("an argument of the reducer is missing")
            reader.expect(":")
            kind = reader.type()
            pair.append(Value(kind, named[0], reader.skip_location()))
            reader.accept(",")
        if len(pair) != 2:
            reader.fail("the reducer takes pairs")
        pairs.append(pair)
    return reader.region([pair[0] for pair in pairs] + [pair[1] for pair in pairs])


def _reduce_precision(reader: Reader, name: str, count: int) -> Read:
    """`%x, format = e5m10`."""
    operand = reader.value()
    reader.expect(",")
    reader.word()
    reader.expect("=")
    word = reader.word() or ""
    exponent, _, mantissa = word.removeprefix("e").partition("m")
    if not exponent.isdigit() or not mantissa.isdigit():
        reader.fail(f"{word!r} is no format of floats")
    attributes = {"exponent_bits": int(exponent), "mantissa_bits": int(mantissa)}
    return Operation(name, [operand], attributes, []), _result_types(reader, [operand], count)


_FORMS: dict[str, Callable[[Reader, str, int], Read]] = {
    "return": _return,
    "constant": _constant,
    "compare": _compare,
    "slice": _slice,
    "dot_general": _dot_general,
    "dot": _dot_general,
    "convolution": _convolution,
    "dynamic_conv": _convolution,
    "call": _call,
    "custom_call": _call,
    "composite": _composite,
    "get_tuple_element": _tuple_item,
    "while": _while,
    "reduce": _reduce,
    "reduce_precision": _reduce_precision,
}
"""Operations with a syntax of their own, by their names without the dialect."""
