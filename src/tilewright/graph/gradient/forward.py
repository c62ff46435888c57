"""Forward mode: every value together with its tangent.

The tangent of an operator is the transpose of its reverse rule. A rule is linear in the cotangent it is given: with a
variable for it, what the rule computes is differentiated with respect to that variable, in reverse mode, and the
cotangents of that are the tangents of the inputs. The variable itself does not occur in the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.graph.gradient.accumulate import Contribution, Cotangent, Parts, construct
from tilewright.graph.gradient.binders import with_fresh_binders
from tilewright.graph.gradient.control import bound
from tilewright.graph.gradient.custom import custom_names
from tilewright.graph.gradient.expressions import item, substituted, tuple_of, typed
from tilewright.graph.gradient.program import Program
from tilewright.graph.gradient.regions import Region, Regions, active_nodes, carries_floats
from tilewright.graph.gradient.registry import Gradient, require_rule
from tilewright.graph.gradient.reverse import Reverse
from tilewright.graph.ir.expr import (
    Call,
    Clause,
    Constant,
    ConstructorPattern,
    ConstructorRef,
    Function,
    GlobalVar,
    GraphExpr,
    If,
    Let,
    Match,
    Pattern,
    Tuple,
    TupleGet,
    TuplePattern,
    Var,
    VarPattern,
    WildcardPattern,
)
from tilewright.graph.ir.op import Operator, introduces_symbols
from tilewright.graph.ir.traverse import children, pattern_variables, with_children
from tilewright.ir.types import FunctionType, TupleType, Type
from tilewright.support.errors import UserError


class Forward:
    """The tangents of one function, given those of some of its parameters."""

    def __init__(self, program: Program, function: Function, tangents: dict[int, Var]) -> None:
        self.program = program
        self.function = function
        self.regions = Regions(function)
        wrt = [var for var in function.params if id(var) in tangents]
        self.active = active_nodes(self.regions, wrt, program.types)
        self.new: dict[int, GraphExpr] = {id(var): var for var in function.params}
        self.tangents: dict[int, Cotangent] = dict(tangents)
        self.region = self.regions.body
        self._values: dict[type, Callable[..., GraphExpr]] = {
            Call: self._call,
            If: self._if,
            Match: self._match,
            Let: lambda node: self.new[id(node.body)],
            Var: self._variable,
            Function: self._refuse,
        }
        self._moves: dict[type, Callable[..., Cotangent | None]] = {
            Call: self._call_tangent,
            Tuple: lambda node: Parts(tuple(self.tangents.get(id(part)) for part in node.items)),
            TupleGet: self._item_tangent,
            Let: lambda node: self.tangents.get(id(node.body)),
            Var: lambda node: self.tangents.get(id(self.regions.binder[id(node)])),
            If: self._paired_tangent,
            Match: self._paired_tangent,
        }
        self._pairs: dict[int, GraphExpr] = {}

    def run(self) -> tuple[GraphExpr, Cotangent | None]:
        """The value of the function and its tangent."""
        return self._run(self.regions.body)

    def _run(self, region: Region) -> tuple[GraphExpr, Cotangent | None]:
        outer, self.region = self.region, region
        for node in region.nodes:
            if id(node) not in self.new:
                made = self._values.get(type(node), self._rebuilt)(node)
                self.new[id(node)] = made if made.type is not None else typed(made, node.type)
            if id(node) in self.active and id(node) not in self.tangents:
                tangent = self._moves[type(node)](node)
                if tangent is not None:
                    self.tangents[id(node)] = tangent
        self.region = outer
        return self.new[id(region.root)], self.tangents.get(id(region.root))

    def _refuse(self, node: GraphExpr) -> GraphExpr:
        raise UserError(
            "the tangent of a call of a function that is itself a value of the run",
            where=None if node.span is None else str(node.span),
            hint="call the function by its name, or give the function at the call, so that it can be put in place",
        )

    def _rebuilt(self, node: GraphExpr) -> GraphExpr:
        made = with_children(node, [self.new[id(child)] for child in children(node)])
        return made if made is node else typed(made, node.type)

    def _variable(self, node: Var) -> GraphExpr:
        return self.new[id(self.regions.binder[id(node)])]

    def _item_tangent(self, node: TupleGet) -> Cotangent | None:
        whole = self.tangents.get(id(node.value))
        if whole is None:
            return None
        assert isinstance(node.value.type, TupleType)
        return self.program.data.parts(whole, node.value.type).items[node.index]

    def _whole(self, node: GraphExpr) -> GraphExpr:
        return self.program.data.whole(self.tangents.get(id(node)), self.new[id(node)])

    # Operators, constructors and functions

    def _call(self, node: Call) -> GraphExpr:
        if isinstance(node.callee, GlobalVar) and id(node) in self.active:
            return self._global(node, node.callee.name)
        made = self._rebuilt(node)
        if not introduces_symbols(node):
            return made
        var = Var("sized")
        var.type = node.type
        self.region.bindings.append((var, made))
        return var

    def _call_tangent(self, node: Call) -> Cotangent | None:
        if isinstance(node.callee, ConstructorRef):
            return construct(node.callee.constructor, [self._whole(arg) for arg in node.args], node.type)
        if isinstance(node.callee, GlobalVar):
            return self._paired_tangent(node)
        if not isinstance(node.callee, Operator):
            self._refuse(node)
        assert isinstance(node.callee, Operator)
        gradient = require_rule(node, node.callee.name)
        made = self.new[id(node)]
        if isinstance(made, Var):
            made = next(value for var, value in self.region.bindings if var is made)
        assert isinstance(made, Call)
        given: list[GraphExpr | None] = []
        for arg in node.args:
            tangent = self.tangents.get(id(arg))
            given.append(None if tangent is None else self.program.data.whole(tangent, self.new[id(arg)]))
        if all(tangent is None for tangent in given):
            return None
        if gradient.forward is not None:
            return self._bound_tangent(gradient.forward(made, given))
        return self._transposed(made, gradient, given)

    def _bound_tangent(self, tangent: GraphExpr) -> GraphExpr:
        """A tangent, behind a binding if it gives symbols their sizes."""
        if not introduces_symbols(tangent):
            return tangent
        var = Var("sized")
        var.type = tangent.type
        self.region.bindings.append((var, tangent))
        return var

    def _transposed(self, made: Call, gradient: Gradient, given: Sequence[GraphExpr | None]) -> Cotangent | None:
        """The tangent of an operator from its reverse rule."""
        actual: dict[int, GraphExpr] = {}
        inputs = [arg if isinstance(arg, Constant) else self._standing_for(arg, actual) for arg in made.args]
        tangents = [None if part is None else self._standing_for(part, actual) for part in given]
        inner = Call(made.callee, tuple(inputs), made.attributes)
        inner.type = made.type
        actual[id(inner)] = made
        kinds = made.type.items if isinstance(made.type, TupleType) else (made.type,)
        dummies = [self._dummy(kind) for kind in kinds]
        assert gradient.reverse is not None
        results = gradient.reverse(inner, dummies if isinstance(made.type, TupleType) else dummies[0])
        pairs = [
            (part if isinstance(part, GraphExpr) else part(), tangent)
            for part, tangent in zip(results, tangents, strict=True)
            if part is not None and tangent is not None
        ]
        if not pairs:
            return None
        wrt = [var for var in dummies if var is not None]
        function = Function("", tuple(wrt), tuple_of([part for part, _ in pairs]))
        reverse = Reverse(self.program, function, wrt)
        for node in (*inputs, inner):
            reverse.new[id(node)] = node
        reverse.forward(reverse.regions.body)
        left = reverse.backward(reverse.regions.body, Parts(tuple(tangent for _, tangent in pairs)))
        items = [self._moved(left, var, actual) for var in dummies]
        return Parts(tuple(items)) if isinstance(made.type, TupleType) else items[0]

    def _moved(
        self, left: dict[int, list[Contribution]], var: Var | None, actual: dict[int, GraphExpr]
    ) -> GraphExpr | None:
        if var is None or id(var) not in left:
            return None
        total = self.program.data.combine(left[id(var)], var.type)
        assert isinstance(total, GraphExpr)
        return substituted(total, actual)

    def _standing_for(self, value: GraphExpr, actual: dict[int, GraphExpr]) -> Var:
        var = Var("input")
        var.type = value.type
        actual[id(var)] = value
        return var

    def _dummy(self, kind: Type | None) -> Var | None:
        if not carries_floats(kind, self.program.types):
            return None
        var = Var("cotangent")
        var.type = kind
        return var

    def _global(self, node: Call, name: str) -> GraphExpr:
        function = self.program.sources[name]
        if custom_names(function) is not None:
            raise UserError(
                f"{name} brings its own reverse rule, and has no forward rule",
                where=None if node.span is None else str(node.span),
                hint="use vjp, or call a function without a rule of its own",
            )
        places = [at for at, var in enumerate(function.params) if carries_floats(var.type, self.program.types)]
        (derived,) = self.program.derived(name, lambda names: self._build(name, names[0], places), "tangent")
        arguments = [self.new[id(arg)] for arg in node.args]
        moving = [self._whole(node.args[place]) for place in places]
        assert node.type is not None
        pair = typed(Call(GlobalVar(derived), (*arguments, *moving)), TupleType((node.type, node.type)))
        pair.span = node.span
        self._pairs[id(node)] = pair
        return item(pair, 0)

    def _build(self, name: str, derived: str, places: Sequence[int]) -> None:
        function = with_fresh_binders(self.program.sources[name])
        assert isinstance(function.type, FunctionType)
        tangents = {}
        for place in places:
            var = function.params[place]
            tangents[id(var)] = Var(f"tangent_{var.name}", var.type)
        inner = Forward(self.program, function, tangents)
        value, tangent = inner.run()
        body = tuple_of([value, self.program.data.whole(tangent, value)])
        body = bound(inner.regions.body.bindings, body)
        kind = TupleType((function.type.result, function.type.result))
        self.program.add(Function(derived, (*function.params, *tangents.values()), body, kind))

    # Control flow

    def _paired_tangent(self, node: GraphExpr) -> Cotangent | None:
        pair = self._pairs.get(id(node))
        return None if pair is None else item(pair, 1)

    def _arm(self, node: GraphExpr, position: int) -> GraphExpr:
        """A branch that gives its value and tangent."""
        region = self.regions.inside(node, position)
        value, tangent = self._run(region)
        body = tuple_of([value, self.program.data.whole(tangent, value)])
        return bound(region.bindings, body)

    def _finished(self, node: GraphExpr, pair: GraphExpr) -> GraphExpr:
        assert node.type is not None
        self._pairs[id(node)] = typed(pair, TupleType((node.type, node.type)))
        pair.span = node.span
        return item(pair, 0)

    def _if(self, node: If) -> GraphExpr:
        pair = If(self.new[id(node.condition)], self._arm(node, 1), self._arm(node, 2))
        return self._finished(node, pair)

    def _match(self, node: Match) -> GraphExpr:
        clauses: list[Clause] = []
        moving = id(node.value) in self.active
        for place, clause in enumerate(node.clauses):
            for var in pattern_variables(clause.pattern):
                self.new[id(var)] = var
            if not moving:
                clauses.append(Clause(clause.pattern, self._arm(node, place + 1)))
                continue
            beside: dict[Var, Var] = {}
            pattern = _tangent_pattern(clause.pattern, beside)
            for var, tangent in beside.items():
                if id(var) in self.active:
                    self.tangents[id(var)] = tangent
            body = self._arm(node, place + 1)
            cases = [Clause(pattern, body)]
            if _is_refutable(pattern):
                # A tangent has the structure of its value: this clause is never taken.
                value = item(body, 0)
                cases.append(Clause(WildcardPattern(), tuple_of([value, self.program.data.whole(None, value)])))
            inner = typed(Match(self._whole(node.value), tuple(cases)), body.type)
            clauses.append(Clause(clause.pattern, inner))
        return self._finished(node, Match(self.new[id(node.value)], tuple(clauses)))


def _tangent_pattern(pattern: Pattern, beside: dict[Var, Var]) -> Pattern:
    """The pattern that takes the tangent of a value apart; `beside` gets the tangents of the variables."""
    if isinstance(pattern, VarPattern):
        var = Var(f"tangent_{pattern.var.name}")
        var.type = pattern.var.type
        beside[pattern.var] = var
        return VarPattern(var)
    if isinstance(pattern, TuplePattern):
        return TuplePattern(tuple(_tangent_pattern(part, beside) for part in pattern.patterns))
    if isinstance(pattern, ConstructorPattern):
        return ConstructorPattern(
            pattern.constructor, tuple(_tangent_pattern(part, beside) for part in pattern.patterns)
        )
    return pattern


def _is_refutable(pattern: Pattern) -> bool:
    if isinstance(pattern, TuplePattern):
        return any(_is_refutable(part) for part in pattern.patterns)
    return isinstance(pattern, ConstructorPattern)


