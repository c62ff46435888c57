"""Graph rewrites as data: patterns with captures, rules, and a worklist driver that keeps spans and types.

    scaled = Rule(
        "scale into convolution",
        P.op("multiply", P.op("nn.conv2d", P.any("x"), P.const("w"), name="conv"), P.const("c")),
        replace,                     # Bindings -> expression, or None to leave it
    )
    function = apply_rules(function, [scaled])

A capture that occurs twice must match the same node. Operators listed as commutative match their two inputs in either
order. The driver goes bottom-up and tries again on what a rule builds, until no rule fires.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

from tilewright.graph.ir.dimensions import Sizes, as_size
from tilewright.graph.ir.expr import Call, Constant, Function, GraphExpr, Tuple, TupleGet
from tilewright.graph.ir.infer import fill_type
from tilewright.graph.ir.op import Operator, call
from tilewright.graph.ir.traverse import children, count_uses, post_order, with_children
from tilewright.ir.types import TensorType
from tilewright.support.errors import CompilerBug
from tilewright.support.span import Span

COMMUTATIVE: Final = frozenset(
    ["add", "multiply", "minimum", "maximum", "equal", "not_equal", "logical_and", "logical_or", "logical_xor"]
)
"""Operators whose two inputs may be swapped."""


class Bindings:
    """What a pattern captured, by name, and how often nodes are used."""

    __slots__ = ("_found", "_uses", "root")

    def __init__(self, root: GraphExpr, uses: dict[int, int]) -> None:
        self.root = root
        self._found: dict[str, GraphExpr] = {}
        self._uses = uses

    def __getitem__(self, name: str) -> GraphExpr:
        return self._found[name]

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def constant(self, name: str) -> Constant:
        """A captured constant."""
        found = self._found[name]
        assert isinstance(found, Constant)
        return found

    def call(self, name: str) -> Call:
        """A captured operator call."""
        found = self._found[name]
        assert isinstance(found, Call)
        return found

    def used_once(self, name: str) -> bool:
        """Whether only one input of the whole graph reads a captured node."""
        return self.uses(self._found[name]) <= 1

    def uses(self, item: GraphExpr) -> int:
        """How many inputs of the whole graph read a node at or below the one that matched."""
        return self._uses.get(id(item), 1)

    def bind(self, name: str | None, item: GraphExpr) -> bool:
        """Capture a node; False if the name has captured another."""
        if name is None:
            return True
        return self._found.setdefault(name, item) is item

    def save(self) -> dict[str, GraphExpr]:
        """The captures so far, to return to."""
        return dict(self._found)

    def restore(self, saved: dict[str, GraphExpr]) -> None:
        """Forget what was captured since `save`."""
        self._found = saved


Matcher = Callable[[GraphExpr, Bindings], bool]


@dataclass(frozen=True)
class Pattern:
    """Something a node may match. `roots` are the operators it can start with, None for any node."""

    match: Matcher
    roots: frozenset[str] | None = None

    def __or__(self, other: Pattern) -> Pattern:
        roots = None if self.roots is None or other.roots is None else self.roots | other.roots
        return Pattern(lambda item, b: _either(item, b, (self, other)), roots)


def _either(item: GraphExpr, bindings: Bindings, choices: Sequence[Pattern]) -> bool:
    saved = bindings.save()
    for choice in choices:
        if choice.match(item, bindings):
            return True
        bindings.restore(dict(saved))
    return False


class P:
    """Constructors of patterns."""

    @staticmethod
    def any(name: str | None = None, where: Callable[[GraphExpr], bool] | None = None) -> Pattern:
        """Any node (that satisfies a test)."""
        return Pattern(lambda item, b: (where is None or where(item)) and b.bind(name, item))

    @staticmethod
    def const(name: str | None = None, where: Callable[[Constant], bool] | None = None) -> Pattern:
        """A constant (that satisfies a test)."""
        return Pattern(
            lambda item, b: isinstance(item, Constant) and (where is None or where(item)) and b.bind(name, item)
        )

    @staticmethod
    def value(number: float) -> Pattern:
        """A constant all of whose elements are one number."""
        return P.const(where=lambda item: item.data.size > 0 and item.data.size <= 65536 and _all_are(item, number))

    @staticmethod
    def op(
        names: str | Sequence[str], *args: Pattern, name: str | None = None, where: Callable[[Call], bool] | None = None
    ) -> Pattern:
        """A call to one of some operators; without argument patterns, whatever its inputs are."""
        wanted = frozenset([names] if isinstance(names, str) else names)

        def match(item: GraphExpr, bindings: Bindings) -> bool:
            if not (isinstance(item, Call) and isinstance(item.callee, Operator) and item.callee.name in wanted):
                return False
            if (where is not None and not where(item)) or not bindings.bind(name, item):
                return False
            if not args:
                return True
            if len(args) != len(item.args):
                return False
            saved = bindings.save()
            if all(p.match(a, bindings) for p, a in zip(args, item.args, strict=True)):
                return True
            if item.callee.name in COMMUTATIVE:
                bindings.restore(saved)
                return args[0].match(item.args[1], bindings) and args[1].match(item.args[0], bindings)
            return False

        return Pattern(match, wanted)

    @staticmethod
    def tuple_get(value: Pattern) -> Pattern:
        """An item of a tuple."""
        return Pattern(
            lambda item, b: isinstance(item, TupleGet) and value.match(item.value, b), frozenset(["<tuple_get>"])
        )

    @staticmethod
    def tuple_of(name: str | None = None) -> Pattern:
        """A tuple node."""
        return Pattern(lambda item, b: isinstance(item, Tuple) and b.bind(name, item), frozenset(["<tuple>"]))


def _all_are(item: Constant, number: float) -> bool:
    return not item.dtype.name.startswith("bfloat") and bool((item.data == number).all())


@dataclass(frozen=True)
class Rule:
    """A named rewrite. `replace` returns the new expression, or None when a condition fails."""

    name: str
    pattern: Pattern
    replace: Callable[[Bindings], GraphExpr | None]

    @property
    def source(self) -> str:
        """File and line of the replacement function."""
        code = inspect.unwrap(self.replace).__code__
        return f"{code.co_filename}:{code.co_firstlineno}"


def make(name: str, *args: GraphExpr, span: Span | None = None, **attributes: object) -> Call:
    """A typed call of an operator by name (its inputs must have types)."""
    result = call(name, *args, span=span, **attributes)
    fill_type(result)
    return result


def static_shape(item: GraphExpr) -> tuple[int, ...] | None:
    """The shape of a typed tensor if all its dimensions are constants."""
    return item.type.static_shape if isinstance(item.type, TensorType) else None


def known_sizes(item: GraphExpr) -> Sizes | None:
    """The shape of a typed tensor as numbers and expressions of symbols; None if a dimension is not known."""
    if not isinstance(item.type, TensorType) or item.type.shape is None:
        return None
    sizes = [as_size(dim) for dim in item.type.shape if dim is not None]
    return tuple(sizes) if len(sizes) == len(item.type.shape) else None


class _RuleTable:
    """Rules by the operator at their root."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.any_root = [rule for rule in rules if rule.pattern.roots is None]
        roots = dict.fromkeys(root for rule in rules for root in rule.pattern.roots or ())
        self.by_root = {
            root: [rule for rule in rules if rule.pattern.roots is not None and root in rule.pattern.roots]
            + self.any_root
            for root in roots
        }

    def for_node(self, item: GraphExpr) -> Sequence[Rule]:
        return self.by_root.get(_root(item), self.any_root)

    def may_fire(self, function: Function) -> bool:
        """Whether a function has a node that some rule starts with."""
        return bool(self.any_root) or not self.by_root.keys().isdisjoint(_roots_of(function))


def _root(item: GraphExpr) -> str:
    """What patterns call a node that they start with: the operator of a call, or the kind of the node."""
    if type(item) is Call:
        return item.callee.name if type(item.callee) is Operator else "<call>"
    return "<tuple_get>" if isinstance(item, TupleGet) else "<tuple>" if isinstance(item, Tuple) else "<other>"


_ROOTS: Final[WeakKeyDictionary[Function, list[str]]] = WeakKeyDictionary()


def _roots_of(function: Function) -> list[str]:
    """The roots of a function's nodes in their order, remembered while it lives: most rules are for few operators."""
    found = _ROOTS.get(function)
    if found is None:
        found = _ROOTS[function] = list(map(_root, post_order(function)))
    return found


def apply_rules(function: Function, rules: Sequence[Rule]) -> Function:
    """Rewrite a typed function bottom-up until no rule fires; the result is typed."""
    table = _RuleTable(rules)
    if not table.may_fire(function):
        return function
    result = _Driver(table).run(function)
    assert isinstance(result, Function)
    return result


class _Driver:
    """One run: final replacements by identity of the nodes they replace."""

    def __init__(self, table: _RuleTable) -> None:
        self.table = table
        self.memo: dict[int, GraphExpr] = {}
        self.forward: dict[int, GraphExpr] = {}
        self.uses: dict[int, int] = {}
        self.kept: list[GraphExpr] = []
        """Every node seen: identities stay valid only while the nodes live."""
        self.fired = 0
        self.limit = 0

    def run(self, root: Function) -> GraphExpr:
        order = post_order(root)
        self.uses = count_uses(order)
        self.kept.extend(order)
        self.limit = 1000 + 50 * len(order)
        memo, table = self.memo, self.table
        # Children come first: what a rule builds is all that has to be looked for. Before the first, all is as it was.
        for item, name in zip(order, _roots_of(root), strict=True):
            if not self.fired and name not in table.by_root and not table.any_root and item.type is not None:
                memo[id(item)] = item
            elif id(item) not in memo and not self._settle(item, children(item)):
                self._finish(item)
        return memo[id(root)]

    def _finish(self, root: GraphExpr) -> None:
        """Rewrite what a rule built in the place of a node, and what rules make of that."""
        stack = [root]
        while stack:
            item = stack[-1]
            if id(item) in self.memo:
                stack.pop()
                continue
            replacement = self.forward.get(id(item))
            if replacement is not None:
                if id(replacement) in self.memo:
                    self.memo[id(item)] = self.memo[id(replacement)]
                    stack.pop()
                else:
                    stack.append(replacement)
                continue
            below = children(item)
            missing = [child for child in below if id(child) not in self.memo]
            if missing:
                stack.extend(reversed(missing))
            elif self._settle(item, below):
                stack.pop()

    def _settle(self, item: GraphExpr, below: tuple[GraphExpr, ...]) -> bool:
        """Note what becomes of a node whose children are done; False if a rule fires, whose result is to be done."""
        rebuilt = self._rebuild(item, below)
        rules = self.table.for_node(rebuilt)
        new = self._fire(rebuilt, rules) if rules else rebuilt
        if new is rebuilt:
            self.memo[id(item)] = rebuilt
            self.memo[id(rebuilt)] = rebuilt
            return True
        self.fired += 1
        if self.fired > self.limit:
            raise CompilerBug("the rewrite rules do not come to an end")
        self.forward[id(item)] = new
        return False

    def _rebuild(self, item: GraphExpr, below: tuple[GraphExpr, ...]) -> GraphExpr:
        memo = self.memo
        rebuilt = item
        for child in below:
            if memo[id(child)] is not child:
                rebuilt = with_children(item, [memo[id(child)] for child in below])
                break
        if rebuilt is not item:
            self.kept.append(rebuilt)
            self.uses[id(rebuilt)] = self.uses.get(id(item), 1)
        if rebuilt.type is None:
            fill_type(rebuilt)
            if rebuilt.type is None:
                rebuilt.type = item.type
        return rebuilt

    def _fire(self, item: GraphExpr, rules: Sequence[Rule]) -> GraphExpr:
        for rule in rules:
            bindings = Bindings(item, self.uses)
            if not rule.pattern.match(item, bindings):
                continue
            new = rule.replace(bindings)
            if new is None or new is item:
                continue
            if new.type is None:
                fill_type(new)
            if new.type is not item.type:
                raise CompilerBug(f"the rule {rule.name!r} ({rule.source}) changes the type {item.type} to {new.type}")
            if id(new) in self.uses:
                self.uses[id(new)] += self.uses.get(id(item), 1) - 1
            else:
                self.uses[id(new)] = self.uses.get(id(item), 1)
            if new.span is None and isinstance(new, Call):
                new.span = item.span
            self.kept.append(new)
            return new
        return item
