"""Rewrite rules as data: a pattern, a replacement and a condition, each written as a Python expression.

    rule("min(x, max(x, y))", "x", where="integer(x)")
    rule("select(p, x, select(p, y, z))", "select(p, x, z)")
    rule("x // c1 // c2", "x // (c1 * c2)", where="index(x) and c1 > 0 and c2 > 0")

Names stand for any expression, except `c`, `c1`, `c2`, ..., which stand for integer constants; a name used twice must
be the same expression twice. A literal stands for the constant of its value in whatever type is needed.
`+ * min max == !=` match with their operands in either order; `and` and `or` do not commute (they are short-circuit).
A condition is Python over the values of the constants, with `integer(x) index(x) floating(x) boolean(x)` testing
types and `prove(...)` asking the context. A `RuleSet` compiles its rules to Python functions, found by the type of the
root and of its operands, the first time each is needed.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, cast

from tilewright.ir import build
from tilewright.ir import expr as e
from tilewright.ir.dtype import BOOL, INDEX
from tilewright.ir.expr import FloatImm, IntImm, PrimExpr
from tilewright.ir.node import Node
from tilewright.support.errors import CompilerBug

_CONSTANT: Final = re.compile(r"^c[0-9]*$")
_BINARY: Final[dict[type, type[e.BinaryExpr]]] = {
    ast.Add: e.Add,
    ast.Sub: e.Sub,
    ast.Mult: e.Mul,
    ast.Div: e.Div,
    ast.FloorDiv: e.FloorDiv,
    ast.Mod: e.FloorMod,
}
_COMPARE: Final[dict[type, tuple[type[e.BinaryExpr], bool]]] = {
    ast.Lt: (e.LT, False),
    ast.LtE: (e.LE, False),
    ast.Gt: (e.LT, True),
    ast.GtE: (e.LE, True),
    ast.Eq: (e.EQ, False),
    ast.NotEq: (e.NE, False),
}
_CALLS: Final[dict[str, type[PrimExpr]]] = {
    "min": e.Min,
    "max": e.Max,
    "select": e.Select,
    "ramp": e.Ramp,
    "broadcast": e.Broadcast,
    "truncmod": e.Mod,
}
_COMMUTATIVE: Final = (e.Add, e.Mul, e.Min, e.Max, e.EQ, e.NE)
_BUILDERS: Final[dict[type, Callable[..., PrimExpr]]] = {
    **build.BINARY_BUILDERS,
    e.Not: build.logical_not,
    e.Select: build.select,
}
_TYPE_TESTS: Final = {
    "integer": "{0}.dtype.is_integer",
    "index": "{0}.dtype is INDEX",
    "floating": "{0}.dtype.is_float",
    "boolean": "{0}.dtype.is_bool",
}


class RuleContext(Protocol):
    """What conditions of rules may ask."""

    def prove(self, condition: PrimExpr) -> bool:
        """Whether a condition certainly holds."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rewrite: its texts, and where it was written."""

    pattern: str
    replacement: str
    where: str
    name: str
    source: str

    def __str__(self) -> str:
        condition = f" where {self.where}" if self.where else ""
        return f"{self.pattern} -> {self.replacement}{condition}  ({self.source})"

    def names(self) -> list[str]:
        """The pattern variables, in order of appearance."""
        tree = ast.parse(self.pattern, mode="eval")
        functions = {id(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
        found = [n for n in ast.walk(tree) if isinstance(n, ast.Name) and id(n) not in functions]
        return list(dict.fromkeys(n.id for n in sorted(found, key=lambda n: n.col_offset)))


def is_constant_name(name: str) -> bool:
    """Whether a pattern variable of this name stands for an integer constant."""
    return _CONSTANT.match(name) is not None


def rule(pattern: str, replacement: str, *, where: str = "", name: str = "") -> Rule:
    """A rule; its place in the source is recorded."""
    frame = sys._getframe(1)
    source = f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno}"
    return Rule(pattern, replacement, where, name or pattern, source)


# Texts to pattern trees


@dataclass(frozen=True, slots=True)
class _Variable:
    name: str


@dataclass(frozen=True, slots=True)
class _Literal:
    value: int | float | bool


@dataclass(frozen=True, slots=True)
class _Make:
    kind: type[PrimExpr]
    operands: tuple[_Pattern, ...]


_Pattern = _Variable | _Literal | _Make


def _parse(text: str, nodes: Mapping[str, type[PrimExpr]]) -> _Pattern:
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise CompilerBug(f"the rule text {text!r} is not an expression") from error
    return _convert(tree, text, nodes)


def _convert(tree: ast.expr, text: str, nodes: Mapping[str, type[PrimExpr]]) -> _Pattern:
    match tree:
        case ast.Name(id=name):
            return _Variable(name)
        case ast.Constant(value=bool() | int() | float() as value):
            return _Literal(value)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return _Literal(-value)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _Make(e.Not, (_convert(operand, text, nodes),))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _Make(_BINARY[type(op)], (_convert(left, text, nodes), _convert(right, text, nodes)))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
            kind, swapped = _COMPARE[type(op)]
            a, b = _convert(left, text, nodes), _convert(right, text, nodes)
            return _Make(kind, (b, a) if swapped else (a, b))
        case ast.BoolOp(op=op, values=values):
            kind = e.And if isinstance(op, ast.And) else e.Or
            result = _convert(values[0], text, nodes)
            for operand in values[1:]:
                result = _Make(kind, (result, _convert(operand, text, nodes)))
            return result
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            made = _CALLS.get(name) or nodes.get(name)
            if made is not None and len(args) == len(made.fields):
                return _Make(made, tuple(_convert(arg, text, nodes) for arg in args))
    raise CompilerBug(f"the rule text {text!r} has a part that is not understood: {ast.unparse(tree)}")


def _orders(pattern: _Pattern) -> Iterator[_Pattern]:
    """The pattern with the operands of commutative operations in every order."""
    if not isinstance(pattern, _Make):
        yield pattern
        return
    choices: list[tuple[_Pattern, ...]] = [()]
    for operand in pattern.operands:
        choices = [(*chosen, order) for chosen in choices for order in _orders(operand)]
    for chosen in choices:
        yield _Make(pattern.kind, chosen)
        if pattern.kind in _COMMUTATIVE and chosen[0] != chosen[1]:
            yield _Make(pattern.kind, (chosen[1], chosen[0]))


def instantiate(
    text: str, bindings: Mapping[str, PrimExpr], nodes: Mapping[str, type[PrimExpr]] | None = None
) -> PrimExpr:
    """The expression of a pattern's text with nothing folded: for tests and explanations of rules.

    Literals take the type of the other operand; a text that is only a literal is an index (or bool) constant.
    """

    def make(pattern: _Pattern, like: PrimExpr | None) -> PrimExpr:
        if isinstance(pattern, _Variable):
            return bindings[pattern.name]
        if isinstance(pattern, _Literal):
            return build.const(pattern.value, None if like is None or isinstance(pattern.value, bool) else like.dtype)
        made = [make(o, None) for o in pattern.operands if not isinstance(o, _Literal)]
        typed = next((item for item in made if isinstance(item, PrimExpr)), None)
        operands = [make(o, typed) for o in pattern.operands]
        return cast(Callable[..., PrimExpr], pattern.kind)(*operands)

    return make(_parse(text, nodes or {}), None)


# Pattern trees to Python functions


class _Compiler:
    """Writes the function that tries one order of one rule."""

    def __init__(self, nodes: Mapping[str, type[PrimExpr]]) -> None:
        self.nodes = nodes
        self.scope: dict[str, object] = {
            "FloatImm": FloatImm,
            "IntImm": IntImm,
            "INDEX": INDEX,
            "const": build.const,
            **{kind.__name__: kind for kind in (*_BUILDERS, *_CALLS.values(), *nodes.values())},
            **{f"build_{kind.__name__}": function for kind, function in _BUILDERS.items()},
        }

    def function(self, pattern: _Make, rewrite: Rule) -> Callable[[PrimExpr, RuleContext | None], PrimExpr | None]:
        self.lines = ["def attempt(root, context):"]
        self.bound: dict[str, str] = {}
        self.count = 0
        self._match(pattern, "root", root=True)
        if rewrite.where:
            self.lines.append(f"    if not ({self._condition(rewrite.where)}): return None")
        result = self._template(_parse(rewrite.replacement, self.nodes), whole=True)
        self.lines.append(f"    return {result}")
        scope = dict(self.scope)
        exec("\n".join(self.lines), scope)
        return cast("Callable[[PrimExpr, RuleContext | None], PrimExpr | None]", scope["attempt"])

    def _match(self, pattern: _Pattern, place: str, root: bool = False) -> None:
        if isinstance(pattern, _Variable):
            self._match_variable(pattern.name, place)
            return
        name = self._temporary()
        self.lines.append(f"    {name} = {place}")
        if isinstance(pattern, _Literal):
            kind = "FloatImm" if isinstance(pattern.value, float) else "IntImm"
            boolean = f" or {name}.dtype.is_bool is not {isinstance(pattern.value, bool)}" if kind == "IntImm" else ""
            if kind == "FloatImm":
                # By text, so that 0.0 and -0.0 differ.
                differs = f"repr({name}.value) != {repr(pattern.value)!r}"
            else:
                differs = f"{name}.value != {int(pattern.value)}"
            self.lines.append(f"    if type({name}) is not {kind} or {differs}{boolean}: return None")
            return
        if not root:
            self.lines.append(f"    if type({name}) is not {pattern.kind.__name__}: return None")
        for field, operand in zip(pattern.kind.fields, pattern.operands, strict=True):
            self._match(operand, f"{name}.{field}")

    def _match_variable(self, variable: str, place: str) -> None:
        known = self.bound.get(variable)
        if known is not None:
            # Nodes compare by identity; `!=` also serves fields that are not nodes (a number of lanes).
            self.lines.append(f"    if {place} != {known}: return None")
            return
        name = f"v_{variable}"
        self.bound[variable] = name
        self.lines.append(f"    {name} = {place}")
        if is_constant_name(variable):
            self.lines.append(f"    if type({name}) is not IntImm: return None")

    def _temporary(self) -> str:
        self.count += 1
        return f"t{self.count}"

    def _condition(self, text: str) -> str:
        tree = ast.parse(text, mode="eval")
        tree = cast(ast.Expression, _ConditionWriter(self).visit(tree))
        return ast.unparse(ast.fix_missing_locations(tree))

    def _template(self, pattern: _Pattern, whole: bool = False) -> str:
        if isinstance(pattern, _Variable):
            if pattern.name not in self.bound:
                raise CompilerBug(f"a rule uses {pattern.name}, which its pattern does not bind")
            return self.bound[pattern.name]
        if isinstance(pattern, _Literal):
            if whole or isinstance(pattern.value, bool):
                return f"const({pattern.value!r}, {'root.dtype' if whole else 'None'})"
            return repr(pattern.value)
        operands = ", ".join(self._template(operand) for operand in pattern.operands)
        prefix = "build_" if pattern.kind in _BUILDERS else ""
        return f"{prefix}{pattern.kind.__name__}({operands})"


class _ConditionWriter(ast.NodeTransformer):
    """Turns the names of a condition into values, type tests and proofs."""

    def __init__(self, compiler: _Compiler) -> None:
        self.compiler = compiler

    def visit_Call(self, node: ast.Call) -> ast.expr:  # called by NodeTransformer
        if isinstance(node.func, ast.Name):
            name = node.func.id
            if name in _TYPE_TESTS and isinstance(node.args[0], ast.Name):
                variable = self.compiler.bound[node.args[0].id]
                return _expression(_TYPE_TESTS[name].format(variable))
            if name == "prove":
                pattern = _parse(ast.unparse(node.args[0]), self.compiler.nodes)
                return _expression(f"context is not None and context.prove({self.compiler._template(pattern)})")
        return cast(ast.expr, self.generic_visit(node))

    def visit_Name(self, node: ast.Name) -> ast.expr:
        name = self.compiler.bound.get(node.id)
        if name is None:
            return node
        return _expression(f"{name}.value" if is_constant_name(node.id) else name)


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


_Attempt = tuple[Rule, Callable[[PrimExpr, "RuleContext | None"], "PrimExpr | None"]]


class RuleSet:
    """Rules tried together, in order. `nodes` names further node classes that patterns may use."""

    def __init__(self, name: str, rules: Iterable[Rule], nodes: Mapping[str, type[PrimExpr]] | None = None) -> None:
        self.name = name
        self.rules = tuple(rules)
        self.nodes = dict(nodes or {})
        self._parsed: dict[type, list[tuple[Rule, _Make]]] | None = None
        self._compiled: dict[tuple[Rule, _Make], _Attempt] = {}
        self._buckets: dict[tuple[type, ...], tuple[_Attempt, ...]] = {}

    def __add__(self, other: RuleSet) -> RuleSet:
        return RuleSet(f"{self.name}+{other.name}", self.rules + other.rules, self.nodes | other.nodes)

    def apply(self, expr: PrimExpr, context: RuleContext | None = None) -> PrimExpr | None:
        """The replacement by the first rule that matches at the root and changes the expression, or None."""
        found = self.apply_named(expr, context)
        return None if found is None else found[1]

    def apply_named(self, expr: PrimExpr, context: RuleContext | None = None) -> tuple[Rule, PrimExpr] | None:
        """As `apply`, with the rule that matched."""
        kind = type(expr)
        key = (kind, type(expr.a), type(expr.b)) if isinstance(expr, e.BinaryExpr) else (kind,)
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = self._bucket(key)
        for rewrite, attempt in bucket:
            result = attempt(expr, context)
            if result is not None and result is not expr:
                return rewrite, result
        return None

    def _bucket(self, key: tuple[type, ...]) -> tuple[_Attempt, ...]:
        if self._parsed is None:
            self._parsed = {}
            for rewrite in self.rules:
                pattern = _parse(rewrite.pattern, self.nodes)
                if not isinstance(pattern, _Make):
                    raise CompilerBug(f"the pattern of {rewrite} is not an operation")
                for order in dict.fromkeys(_orders(pattern)):
                    assert isinstance(order, _Make)
                    self._parsed.setdefault(order.kind, []).append((rewrite, order))
        attempts = []
        for rewrite, pattern in self._parsed.get(key[0], ()):
            operands = pattern.operands[: len(key) - 1]
            if all(_may_match(operand, kind) for operand, kind in zip(operands, key[1:], strict=True)):
                compiled = self._compiled.get((rewrite, pattern))
                if compiled is None:
                    compiled = (rewrite, _Compiler(self.nodes).function(pattern, rewrite))
                    self._compiled[(rewrite, pattern)] = compiled
                attempts.append(compiled)
        return tuple(attempts)


def _may_match(pattern: _Pattern, kind: type) -> bool:
    if isinstance(pattern, _Variable):
        return kind is IntImm or not is_constant_name(pattern.name)
    if isinstance(pattern, _Literal):
        return kind is (FloatImm if isinstance(pattern.value, float) else IntImm)
    return pattern.kind is kind


_FUEL: Final = 200


def rewrite(
    root: PrimExpr,
    rules: RuleSet,
    context: RuleContext | None = None,
    memo: dict[PrimExpr, PrimExpr] | None = None,
    watch: Callable[[Rule, PrimExpr, PrimExpr], None] | None = None,
) -> PrimExpr:
    """Rewrite bottom-up until no rule matches anywhere.

    `memo` keeps results between calls: use one per context, since conditions may ask the context. `watch` sees each
    step (rule, before, after).
    """
    results: dict[PrimExpr, PrimExpr] = {} if memo is None else memo

    def child(item: Node) -> Node:
        return visit(item) if isinstance(item, PrimExpr) else item.rebuild(child)

    def visit(item: PrimExpr) -> PrimExpr:
        done = results.get(item)
        if done is not None:
            return done
        current = item.rebuild(child)
        applied: list[Rule] = []
        while (found := rules.apply_named(current, context)) is not None:
            applied.append(found[0])
            if len(applied) > _FUEL:
                raise CompilerBug(f"the rules {rules.name} do not come to rest on {item!r}; the last was {found[0]}")
            if watch is not None:
                watch(found[0], current, found[1])
            current = found[1].rebuild(child)
        results[item] = current
        return current

    return visit(root)


def truth(value: bool) -> PrimExpr:
    """The bool constant of a Python truth value."""
    return IntImm(int(value), BOOL)
