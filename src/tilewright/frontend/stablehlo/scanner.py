"""Reading the text of MLIR piece by piece: words, types, attributes and locations, as all dialects share them."""

from __future__ import annotations

import re
from typing import Any, NoReturn

import numpy as np

from tilewright.frontend.stablehlo.literals import from_bytes, from_text
from tilewright.frontend.stablehlo.program import Dense, Location, OtherSpec, Spec, Symbol, TensorSpec, TupleSpec
from tilewright.support.errors import UserError

_SPACE = re.compile(r"(?:\s+|//[^\n]*)*")
_WORD = re.compile(r"[A-Za-z_$][A-Za-z0-9_$.\-]*")
_VALUE = re.compile(r"%([A-Za-z0-9_$.\-]+)(?:#(\d+))?")
_SYMBOL = re.compile(r"@(?:\"((?:[^\"\\]|\\.)*)\"|([A-Za-z0-9_$.\-]+))")
_STRING = re.compile(r"\"((?:[^\"\\]|\\.)*)\"")
_NUMBER = re.compile(r"[-+]?(?:0x[0-9a-fA-F]+|\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)")
_NUMBER_TYPE = re.compile(r":\s*((?:s|u)?i\d+|b?f\d+\w*|index)\b")
_ESCAPE = re.compile(rb"\\([0-9a-fA-F]{2}|.)")
_BRACKETS = {"<": ">", "(": ")", "[": "]", "{": "}"}
_MOST_NESTED = 200
"""Brackets, locations and operations inside each other: more are not read."""


def unescaped(text: str) -> str:
    """A text without its escapes."""
    if "\\" not in text:
        return text

    def plain(match: re.Match[bytes]) -> bytes:
        code = match[1]
        return bytes.fromhex(code.decode()) if len(code) == 2 else {b"n": b"\n", b"t": b"\t"}.get(code, code)

    return _ESCAPE.sub(plain, text.encode()).decode("utf-8", "replace")


class Scanner:
    """A place in a text; everything that is read moves it on."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.aliases: dict[str, Any] = {}
        """Attributes that the text names: `#map`."""
        self.type_aliases: dict[str, Spec] = {}
        self.locations: dict[str, tuple[int, int]] = {}
        """Where in the text locations that it names stand: they may be named before they are written."""
        self.resources: dict[str, bytes] = {}
        self._read_locations: dict[str, Location | None] = {}
        self._specs: dict[str, Spec] = {}

    # Pieces

    def fail(self, message: str) -> NoReturn:
        """An error that says where in the text it is."""
        line = self.text.count("\n", 0, self.at) + 1
        column = self.at - (self.text.rfind("\n", 0, self.at) + 1) + 1
        raise UserError(f"{message} in StableHLO text", where=f"line {line}, column {column}")

    def skip(self) -> None:
        """Go past spaces and comments."""
        match = _SPACE.match(self.text, self.at)
        assert match is not None
        self.at = match.end()

    def sees(self, text: str) -> bool:
        """Whether a text comes next."""
        self.skip()
        return self.text.startswith(text, self.at)

    def accept(self, text: str) -> bool:
        """Read a text if it comes next."""
        if not self.sees(text):
            return False
        self.at += len(text)
        return True

    def expect(self, text: str) -> None:
        """Read a text, which must come next."""
        if not self.accept(text):
            self.fail(f"{text!r} is missing")

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        self.skip()
        match = pattern.match(self.text, self.at)
        if match is not None:
            self.at = match.end()
        return match

    def word(self) -> str | None:
        """A name without quotes, if one comes next."""
        match = self._match(_WORD)
        return None if match is None else match[0]

    def sees_word(self, text: str) -> bool:
        """Whether a whole word comes next."""
        self.skip()
        match = _WORD.match(self.text, self.at)
        return match is not None and match[0] == text

    def accept_word(self, text: str) -> bool:
        """Read a whole word if it comes next."""
        if not self.sees_word(text):
            return False
        self.at += len(text)
        return True

    def value_name(self) -> tuple[str, int] | None:
        """The name of a value, and which of several results it is."""
        match = self._match(_VALUE)
        return None if match is None else (match[1], int(match[2] or 0))

    def symbol(self) -> Symbol | None:
        """The name of a function."""
        match = self._match(_SYMBOL)
        if match is None:
            return None
        return Symbol(match[2] if match[1] is None else unescaped(match[1]))

    def string(self) -> str | None:
        """A text in quotes."""
        match = self._match(_STRING)
        return None if match is None else unescaped(match[1])

    def number(self) -> int:
        """A whole number, which must come next."""
        match = self._match(_NUMBER)
        if match is None:
            self.fail("a number is missing")
        try:
            return int(match[0], 0)
        except ValueError:
            self.fail(f"{match[0]!r} is no whole number")

    def sees_number(self) -> bool:
        """Whether a number comes next."""
        self.skip()
        return _NUMBER.match(self.text, self.at) is not None

    def enclosed(self) -> str:
        """What stands between brackets, the first of which comes next; brackets inside are paired."""
        self.skip()
        start = self.at
        open_brackets: list[str] = []
        text = self.text
        while self.at < len(text):
            char = text[self.at]
            if char == '"':
                if self._match(_STRING) is None:
                    self.fail("a text has no end")
                continue
            if text.startswith("->", self.at):
                self.at += 2
                continue
            self.at += 1
            if char in _BRACKETS:
                open_brackets.append(_BRACKETS[char])
                if len(open_brackets) > _MOST_NESTED:
                    self.fail("too many brackets inside each other")
            elif open_brackets and char == open_brackets[-1]:
                open_brackets.pop()
                if not open_brackets:
                    return text[start + 1 : self.at - 1]
        self.at = start
        self.fail("a bracket is not closed")

    # Types

    def types(self) -> list[Spec]:
        """Types in parentheses, or one without."""
        if not self.accept("("):
            return [self.type()]
        found: list[Spec] = []
        while not self.accept(")"):
            found.append(self.type())
            if self.sees("{"):
                self.enclosed()
            self.accept(",")
        return found

    def type(self) -> Spec:
        """A type."""
        self.skip()
        if self.sees("("):
            start = self.at
            self.types()
            self.expect("->")
            self.types()
            return OtherSpec(self.text[start : self.at])
        if self.accept("!"):
            name = self.word() or self.fail("a type is missing")
            if name in self.type_aliases:
                return self.type_aliases[name]
            return OtherSpec(f"!{name}<{self.enclosed()}>" if self.sees("<") else f"!{name}")
        name = self.word() or self.fail("a type is missing")
        if name == "tuple":
            self.expect("<")
            items: list[Spec] = []
            while not self.accept(">"):
                items.append(self.type())
                self.accept(",")
            return TupleSpec(tuple(items))
        if self.text.startswith("<", self.at):
            body = self.enclosed()
            if name == "tensor":
                return self._tensor(body)
            return OtherSpec(f"{name}<{body}>")
        return OtherSpec(name)

    def _tensor(self, body: str) -> Spec:
        known = self._specs.get(body)
        if known is None:
            known = self._specs[body] = self._read_tensor(body)
        return known

    def _read_tensor(self, body: str) -> Spec:
        shape: list[int | None] = []
        rest = body.strip()
        if rest.startswith("*"):
            self.fail("a tensor without a known number of dimensions")
        while match := re.match(r"(\?|\d+)x", rest):
            shape.append(None if match[1] == "?" else int(match[1]))
            rest = rest[match.end() :]
        element = rest if rest.startswith("!") else rest.split(",")[0]
        element = element.strip().replace(" ", "")
        return TensorSpec(tuple(shape), element)

    # Attributes

    def mapping(self) -> dict[str, Any]:
        """Attributes by name in braces."""
        self.expect("{")
        found: dict[str, Any] = {}
        while not self.accept("}"):
            name = self.string() if self.sees('"') else self.word()
            if name is None:
                self.fail("the name of an attribute is missing")
            found[name] = self.attribute() if self.accept("=") else True
            self.accept(",")
        return found

    def attribute(self) -> Any:
        """Any attribute."""
        self.skip()
        start = self.text[self.at : self.at + 1]
        if not start:
            self.fail("an attribute is missing")
        if start == '"':
            found = self.string()
            return self.fail("a text has no end") if found is None else found
        if start == "[":
            return self.items("[", "]")
        if start == "{":
            return self.mapping()
        if start == "@":
            name = self.symbol()
            while self.accept("::"):
                self.symbol()
            return self.fail("a name is missing") if name is None else name
        if start == "#":
            return self._dialect_attribute()
        if start in "!(":
            return self.type()
        if self.sees_number():
            return self._number_attribute()
        return self._word_attribute()

    def items(self, first: str, last: str) -> list[Any]:
        """Attributes in brackets."""
        self.expect(first)
        found: list[Any] = []
        while not self.accept(last):
            found.append(self.attribute())
            self.accept(",")
        return found

    def _number_attribute(self) -> Any:
        match = self._match(_NUMBER)
        assert match is not None
        text = match[0]
        # In a pretty form the types of the operation may come next.
        kind = self._match(_NUMBER_TYPE)
        element = "" if kind is None else kind[1]
        if element.startswith(("f", "bf")):
            return float(from_text(text, TensorSpec((), element))) if not element.startswith("bf") else float(text)
        return float(text) if re.search(r"[.eE]", text) and "0x" not in text else int(text, 0)

    def _word_attribute(self) -> Any:
        start = self.at
        word = self.word()
        match word:
            case "true" | "false":
                return word == "true"
            case "unit" | "none":
                return True
            case "dense" | "dense_resource":
                return self._dense(word)
            case "array":
                return self._array()
            case "loc":
                self.at = start
                return self.location()
            case "affine_map" | "affine_set" | "opaque" | "sparse" | "strided":
                return OtherSpec(f"{word}<{self.enclosed()}>")
            case None:
                self.fail("an attribute is missing")
        self.at = start
        kind = self.type()
        return kind.text if isinstance(kind, OtherSpec) and kind.text == word else kind

    def _dense(self, word: str) -> Dense:
        body = self.enclosed()
        self.expect(":")
        spec = self.type()
        if not isinstance(spec, TensorSpec):
            if isinstance(spec, OtherSpec) and spec.text.startswith("vector<"):
                self.fail("constants that are vectors are not supported")
            self.fail("the type of a constant is missing")
        if word == "dense_resource":
            raw = self.resources.get(body.strip())
            if raw is None:
                self.fail(f"the resource {body.strip()!r} of a constant is not in the text")
            return Dense(spec, from_bytes(raw, spec))
        return Dense(spec, from_text(body, spec))

    def _array(self) -> list[Any]:
        kind, _, body = self.enclosed().partition(":")
        words = body.replace(",", " ").split()
        if kind.strip() == "i1":
            return [word == "true" for word in words]
        try:
            return [float(word) if kind.strip().startswith("f") else int(word) for word in words]
        except ValueError as error:
            self.fail(f"a list of numbers: {error}")

    def _dialect_attribute(self) -> Any:
        self.expect("#")
        name = self.word()
        if name is None:
            self.fail("the name of an attribute is missing")
        if not self.text.startswith("<", self.at):
            if name not in self.aliases:
                if name in self.locations:
                    return self._named_location(name)
                self.fail(f"#{name} is not defined")
            return self.aliases[name]
        start = self.at
        body = self.enclosed()
        end = self.at
        dialect, _, mnemonic = name.partition(".")
        if dialect not in ("stablehlo", "mhlo", "chlo", "vhlo"):
            return OtherSpec(f"#{name}<{body}>")
        if mnemonic == "conv":
            return convolution_dimensions(body)
        if "=" not in body:
            # An enumeration: #stablehlo<comparison_direction LT>.
            words = body.split()
            return words[-1] if words else {}
        self.at = start + 1
        found: dict[str, Any] = {}
        while self.at < end - 1:
            key = self.word()
            if key is None:
                self.fail(f"a name is missing in #{name}")
            self.expect("=")
            found[key] = self.attribute()
            self.accept(",")
            self.skip()
        self.at = end
        return found

    # Locations

    def skip_location(self) -> Location | None:
        """A location after an operation or an argument, if there is one."""
        return self.location() if self.sees("loc(") else None

    def location(self) -> Location | None:
        """`loc(...)`."""
        self.expect("loc")
        self.expect("(")
        found = self._location(0)
        self.expect(")")
        return found

    def _named_location(self, name: str) -> Location | None:
        if name not in self._read_locations:
            span = self.locations.get(name)
            if span is None:
                return None
            self._read_locations[name] = None  # one that is made of itself says nothing
            here = self.at
            self.at = span[0]
            self._read_locations[name] = self.location()
            self.at = here
        return self._read_locations[name]

    def _location(self, depth: int) -> Location | None:
        if depth > _MOST_NESTED:
            self.fail("too many locations inside each other")
        if self.accept("#"):
            return self._named_location(self.word() or "")
        if self.sees('"'):
            return self._name_or_file(depth)
        word = self.word()
        if word is None:
            self.fail("a location is missing")
        if word == "callsite":
            self.expect("(")
            callee = self._location(depth + 1)
            self.expect("at")
            caller = self._location(depth + 1)
            self.expect(")")
            return callee if callee is not None and callee.file else caller or callee
        if word == "fused":
            if self.sees("<"):
                self.enclosed()
            self.expect("[")
            first: Location | None = None
            while not self.accept("]"):
                found = self._location(depth + 1)
                first = first or found
                self.accept(",")
            return first
        if self.sees("<"):
            self.enclosed()
        return None

    def _name_or_file(self, depth: int) -> Location:
        name = self.string()
        if name is None:
            self.fail("a text has no end")
        if self.accept(":"):
            line = self.number()
            if self.accept(":"):
                self.number()
            if self.accept_word("to"):
                while self.accept(":") or self.sees_number():
                    if self.sees_number():
                        self.number()
            return Location(file=name, line=line)
        inner: Location | None = None
        if self.accept("("):
            inner = self._location(depth + 1)
            self.expect(")")
        if inner is None:
            return Location(name.rstrip(":"))
        return Location(name.rstrip(":") or inner.name, inner.file, inner.line)


def convolution_dimensions(text: str) -> dict[str, Any]:
    """What `[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]` says of the dimensions of a convolution."""
    match = re.fullmatch(r"\s*\[([^\]]*)\]\s*x\s*\[([^\]]*)\]\s*->\s*\[([^\]]*)\]\s*", text)
    if match is None:
        raise UserError(f"the dimension numbers {text!r} of a convolution cannot be read")
    found: dict[str, Any] = {}
    parts = (("input", "b", "batch", "f", "feature"), ("kernel", "i", "input_feature", "o", "output_feature"))
    for body, (what, *names) in zip(match.groups(), (*parts, ("output", *parts[0][1:])), strict=True):
        letters = [item.strip() for item in body.split(",")]
        spatial = sorted((int(item), at) for at, item in enumerate(letters) if item.isdigit())
        found[f"{what}_spatial_dimensions"] = [at for _, at in spatial]
        for letter, name in (names[:2], names[2:]):
            if letter not in letters:
                raise UserError(f"the dimension numbers {text!r} of a convolution have no '{letter}'")
            found[f"{what}_{name}_dimension"] = letters.index(letter)
    return found


def numbers(value: Any) -> list[int]:
    """A list of whole numbers, however it was written."""
    if isinstance(value, Dense):
        return [int(item) for item in np.asarray(value.data).reshape(-1)]
    if isinstance(value, list):
        return [int(item) for item in value]
    raise UserError(f"a list of numbers is needed here, not {value!r}")
