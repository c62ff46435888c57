"""What control flow becomes in reverse mode: `if`, `match`, calls of functions, values of algebraic data.

A branch gives, beside its value, a *tape*: a value of a data type made for this place, with a constructor an arm whose
fields are what the way back reads of the arm. The way back is a `match` on the tape:

    if c { sin(x) } else { x * x }      ->      (y, tape) = if c { (sin(x), Then(...)) } else { (x * x, Else(...)) }
                                                x' = match tape { Then(...) => y' * cos(x), Else(...) => ... }

A function that calls itself becomes two: `forward_f` gives the value and the tape, which holds the tapes of the calls
inside, and `backward_f` turns a tape and a cotangent into the cotangents of the parameters. So a program without
closures has a gradient without closures, and the gradient has a gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tilewright.graph.gradient.accumulate import Contribution, Cotangent, constructor_pattern, construct
from tilewright.graph.gradient.binders import with_fresh_binders
from tilewright.graph.gradient.custom import custom_names
from tilewright.graph.gradient.expressions import item, substituted, tuple_of, typed, with_type
from tilewright.graph.gradient.program import Program
from tilewright.graph.gradient.regions import Region, Regions, active_nodes, carries_floats
from tilewright.graph.ir.expr import (
    Call,
    Clause,
    ConstructorPattern,
    ConstructorRef,
    Function,
    GlobalVar,
    GraphExpr,
    If,
    Let,
    Match,
    Pattern,
    TuplePattern,
    Var,
    VarPattern,
    WildcardPattern,
)
from tilewright.graph.ir.dimensions import symbols_of
from tilewright.graph.ir.op import call
from tilewright.graph.ir.traverse import children, pattern_variables, with_children
from tilewright.graph.ir.unify import show_type
from tilewright.ir.expr import IntImm
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.function import Constructor
from tilewright.ir.types import DataTypeCall, DataTypeName, FunctionType, TensorType, TupleType, Type
from tilewright.support.errors import CompilerBug, UserError
from tilewright.support.order import children_first


@dataclass(eq=False)
class Arm:
    """A branch or a clause: its region, its value, and the cotangents of what it uses given one of its value."""

    region: Region
    value: GraphExpr
    cotangent: Var
    left: dict[int, list[Contribution]]
    pattern: Pattern | None = None
    body: GraphExpr | None = None
    """The cotangents of what all arms use together, as a tuple."""
    saved: list[GraphExpr] = field(default_factory=list)


@dataclass(eq=False)
class Choice:
    """An `if` or a `match` on the way forward: what the way back needs to know of it."""

    arms: list[Arm]
    used: list[int]
    tape: GraphExpr
    constructors: tuple[Constructor, ...]


class Control:
    """The part of `Reverse` that is about control flow."""

    def __init__(self, program: Program, function: Function, wrt: Iterable[Var]) -> None:
        self.program = program
        self.function = function
        self.regions = Regions(function)
        self.active = active_nodes(self.regions, wrt, program.types)
        self.new: dict[int, GraphExpr] = {}
        """What stands for a node of the function in the new program, by identity."""
        self.kept: list[GraphExpr] = []
        """Every node made: identities stay valid only while the nodes live."""
        self.region: Region | None = None
        self.pending: dict[int, list[Contribution]] = {}
        self._choices: dict[int, Choice] = {}
        self._tapes: dict[int, GraphExpr] = {}

    def forward(self, region: Region) -> GraphExpr:
        """Build the values of a region; gives that of its root."""
        raise NotImplementedError

    def backward(self, region: Region, cotangent: Cotangent) -> dict[int, list[Contribution]]:
        """The contributions to what a region uses from outside."""
        raise NotImplementedError

    def contribute(self, node: GraphExpr, value: Contribution) -> None:
        """Add to the cotangent of a node."""
        raise NotImplementedError

    def note(self, made: GraphExpr) -> None:
        """Note what the region being built computes."""
        raise NotImplementedError

    def refuse_closure(self, node: GraphExpr) -> GraphExpr:
        """Say that a function value has no gradient here."""
        raise UserError(
            "the gradient of a call of a function that is itself a value of the run",
            where=None if node.span is None else str(node.span),
            hint="call the function by its name, or give the function at the call, so that it can be put in place",
        )

    # Branches and clauses

    def forward_if(self, node: If) -> GraphExpr:
        """A branch: with its tape if it has a derivative."""
        if id(node) not in self.active:
            return self._copied(node)
        arms = [self._arm(node, 1, None), self._arm(node, 2, None)]
        condition = self.new[id(node.condition)]
        used = self._close(arms)
        if not any(arm.saved for arm in arms):
            # The condition alone says which way back to take: no tape is needed.
            self._choices[id(node)] = Choice(arms, used, condition, ())
            first, second = (bound(arm.region.bindings, arm.value) for arm in arms)
            return typed(If(condition, first, second), node.type)
        values, constructors, kind = self._taped(arms, ("Then", "Else"), node.type)
        return self._finished(node, typed(If(condition, *values), kind), Choice(arms, used, node, constructors))

    def forward_match(self, node: Match) -> GraphExpr:
        """A match: with its tape if it has a derivative."""
        if id(node) not in self.active:
            return self._copied(node)
        patterns = [self._without_wildcards(clause.pattern, node.value.type) for clause in node.clauses]
        arms = [self._arm(node, place + 1, pattern) for place, pattern in enumerate(patterns)]
        if id(node.value) in self.active:
            for arm, pattern in zip(arms, patterns, strict=True):
                arm.left.setdefault(id(node.value), []).append(self._of_pattern(pattern, arm.left, node.value.type))
        used = self._close(arms)
        values, constructors, kind = self._taped(arms, [f"Case{place}" for place in range(len(arms))], node.type)
        clauses = tuple(Clause(pattern, value) for pattern, value in zip(patterns, values, strict=True))
        matched = typed(Match(self.new[id(node.value)], clauses), kind)
        return self._finished(node, matched, Choice(arms, used, node, constructors))

    def _arm(self, node: GraphExpr, position: int, pattern: Pattern | None) -> Arm:
        region = self.regions.inside(node, position)
        for var in pattern_variables(pattern) if pattern is not None else ():
            self.new[id(var)] = var
            region.made.add(id(var))
        value = self.forward(region)
        cotangent = Var("cotangent")
        cotangent.type = node.type
        return Arm(region, value, cotangent, self.backward(region, cotangent), pattern)

    def _close(self, arms: Sequence[Arm]) -> list[int]:
        """What the arms use from outside that has a cotangent; gives every arm all of these, and what it saves."""
        used: dict[int, None] = {}
        for arm in arms:
            own = {id(var) for var in pattern_variables(arm.pattern)} if arm.pattern is not None else set()
            used |= {key: None for key in arm.left if key not in own}
        for arm in arms:
            arm.body = bound(arm.region.late, tuple_of([self._left(arm, key) for key in used]))
            sources = [var for var, _ in arm.region.bindings]
            arm.saved = _saved(arm.body, arm.region.made, sources)
        return list(used)

    def _left(self, arm: Arm, key: int) -> GraphExpr:
        node = self.regions.by_identity[key]
        given = arm.left.get(key)
        total = None if given is None else self.program.data.combine(given, node.type)
        return self.program.data.whole(total, self.new[key])

    def _of_pattern(self, pattern: Pattern, left: dict[int, list[Contribution]], kind: Type | None) -> GraphExpr:
        """The cotangent of a matched value, put together from those of the variables of the pattern."""
        if isinstance(pattern, VarPattern):
            given = left.get(id(pattern.var))
            total = None if given is None else self.program.data.combine(given, pattern.var.type)
            return self.program.data.whole(total, pattern.var)
        if isinstance(pattern, ConstructorPattern):
            kinds = self.program.data.fields_of(pattern.constructor, kind)
            parts = [self._of_pattern(part, left, of) for part, of in zip(pattern.patterns, kinds, strict=True)]
            return construct(pattern.constructor, parts, kind)
        assert isinstance(pattern, TuplePattern)
        assert isinstance(kind, TupleType)
        pairs = zip(pattern.patterns, kind.items, strict=True)
        return tuple_of([self._of_pattern(part, left, found) for part, found in pairs])

    def _without_wildcards(self, pattern: Pattern, kind: Type | None) -> Pattern:
        """A pattern that binds what it does not look at: the cotangent of a matched value is one of all its parts."""
        if isinstance(pattern, WildcardPattern):
            var = Var("rest")
            var.type = kind
            return VarPattern(var)
        if isinstance(pattern, TuplePattern):
            assert isinstance(kind, TupleType)
            parts = zip(pattern.patterns, kind.items, strict=True)
            return TuplePattern(tuple(self._without_wildcards(part, found) for part, found in parts))
        if isinstance(pattern, ConstructorPattern):
            fields = zip(pattern.patterns, self.program.data.fields_of(pattern.constructor, kind), strict=True)
            bound = tuple(self._without_wildcards(part, found) for part, found in fields)
            return ConstructorPattern(pattern.constructor, bound)
        return pattern

    def _taped(
        self, arms: Sequence[Arm], names: Sequence[str], kind: Type | None
    ) -> tuple[list[GraphExpr], tuple[Constructor, ...], Type]:
        """The values of arms with their tapes, the constructors of these, and the type of both together."""
        assert kind is not None
        name = self.program.name_for(f"Tape_{self.function.name}")
        fields = [
            (f"{name}_{part}", tuple(erased(value.type) for value in arm.saved))
            for part, arm in zip(names, arms, strict=True)
        ]
        definition = self.program.define(name, fields)
        tape = DataTypeCall(DataTypeName(name), ())
        values = [
            bound(arm.region.bindings, tuple_of([arm.value, construct(made, arm.saved, tape)]))
            for arm, made in zip(arms, definition.constructors, strict=True)
        ]
        return values, definition.constructors, TupleType((kind, tape))

    def _finished(self, node: GraphExpr, pair: GraphExpr, choice: Choice) -> GraphExpr:
        pair.span = node.span
        choice.tape = item(pair, 1)
        self.note(pair)
        self.note(choice.tape)
        self._choices[id(node)] = choice
        return item(pair, 0)

    def backward_arms(self, node: GraphExpr, total: Cotangent) -> None:
        """The way back through a branch or a match: the arm that was taken, found by its tape."""
        choice = self._choices[id(node)]
        if not choice.used:
            return
        given = self.program.data.whole(total, self.new[id(node)])
        if choice.constructors:
            clauses = [
                Clause(*restored(made, arm.saved, arm.body, {id(arm.cotangent): given}))
                for arm, made in zip(choice.arms, choice.constructors, strict=True)
            ]
            result: GraphExpr = Match(choice.tape, tuple(clauses))
        else:
            bodies = [substituted(_known_body(arm), {id(arm.cotangent): given}) for arm in choice.arms]
            result = If(choice.tape, *bodies)
        assert choice.arms[0].body is not None
        typed(result, choice.arms[0].body.type)
        for place, key in enumerate(choice.used):
            self.contribute(self.regions.by_identity[key], item(result, place))

    def _copied(self, node: GraphExpr) -> GraphExpr:
        """Control flow that has no derivative, as it is, over the values of the new program."""

        def below(found: GraphExpr) -> Sequence[GraphExpr]:
            return () if id(found) in self.new else children(found)

        made: dict[int, GraphExpr] = {}
        for found in children_first([node], below):
            if id(found) in self.new:
                made[id(found)] = self.new[id(found)]
                continue
            rebuilt = with_children(found, [made[id(child)] for child in children(found)])
            made[id(found)] = rebuilt if rebuilt.type is not None else typed(rebuilt, found.type)
        return made[id(node)]

    # Algebraic data

    def backward_constructor(self, node: Call, total: Cotangent) -> None:
        """The cotangents of the fields are the fields of the cotangent."""
        assert isinstance(node.callee, ConstructorRef)
        assert isinstance(total, GraphExpr)
        if not node.args:
            return
        kinds = [_known(arg.type) for arg in node.args]
        pattern, variables = constructor_pattern(node.callee.constructor, kinds)
        zeros = [self.program.data.zeros(self.new[id(arg)]) for arg in node.args]
        clauses = [Clause(pattern, tuple_of(variables))]
        if len(self.program.types[node.callee.constructor.type_name].constructors) > 1:
            clauses.append(Clause(WildcardPattern(), tuple_of(zeros)))
        result = typed(Match(total, tuple(clauses)), TupleType(tuple(kinds)))
        for place, arg in enumerate(node.args):
            self.contribute(arg, item(result, place))

    # Calls of functions of the module

    def forward_global(self, node: Call) -> GraphExpr:
        """A call: of the function that gives a tape as well if it has a derivative."""
        arguments = tuple(self.new[id(arg)] for arg in node.args)
        assert isinstance(node.callee, GlobalVar)
        if id(node) not in self.active:
            return typed(Call(node.callee, arguments, node.attributes), node.type)
        forward, _, tape = self._derived(node.callee.name)
        kind = TupleType((_known(node.type), tape))
        pair = typed(Call(GlobalVar(forward), arguments), kind)
        pair.span = node.span
        self._tapes[id(node)] = item(pair, 1)
        self.note(pair)
        self.note(self._tapes[id(node)])
        return item(pair, 0)

    def backward_global(self, node: Call, total: Cotangent) -> None:
        """The way back through a call."""
        assert isinstance(node.callee, GlobalVar)
        _, backward, _ = self._derived(node.callee.name)
        given = self.program.data.whole(total, self.new[id(node)])
        places = self._floats(self.program.sources[node.callee.name])
        kinds = tuple(erased(node.args[place].type) for place in places)
        result = typed(Call(GlobalVar(backward), (self._tapes[id(node)], given)), TupleType(kinds))
        result.span = node.span
        for number, place in enumerate(places):
            arg = node.args[place]
            self.contribute(arg, self.resized(item(result, number), arg.type))

    def resized(self, value: GraphExpr, kind: Type | None) -> GraphExpr:
        """A cotangent whose type does not say its sizes, with those of the value that it is one of."""
        assert self.region is not None
        found = value.type
        if isinstance(found, TensorType) and (found.shape is None or None in found.shape):
            return sized(value, _known(kind), self.region.late)
        return with_type(value, kind)

    def _floats(self, function: Function) -> list[int]:
        """The parameters of a function that have cotangents."""
        return [at for at, var in enumerate(function.params) if carries_floats(var.type, self.program.types)]

    def _derived(self, name: str) -> tuple[str, str, Type]:
        """The functions of the ways forward and back, and the type of what one leaves for the other."""
        custom = custom_names(self.program.sources[name])
        if custom is not None:
            return (*custom, self._custom_tape(name, *custom))
        names = self.program.derived(name, lambda names: self._build(name, names), "forward", "backward", "Tape")
        return names[0], names[1], DataTypeCall(DataTypeName(names[2]), ())

    def _custom_tape(self, name: str, forward: str, backward: str) -> Type:
        """What the forward function of a custom gradient saves; the functions must fit each other."""
        sources = self.program.sources
        for part in (forward, backward):
            if part not in sources:
                raise UserError(f"the gradient of {name} is {part}, which is not in the module")
        given = sources[forward].function_type.result
        whole = sources[name].function_type.result
        if not isinstance(given, TupleType) or len(given.items) != 2 or given.items[0] is not whole:
            raise UserError(
                f"{forward} must give the value of {name} and what is saved, it gives {show_type(given)}",
                hint=f"({show_type(whole)}, anything)",
            )
        found = sources[backward].function_type.result
        wanted = TupleType(tuple(_known(sources[name].params[at].type) for at in self._floats(sources[name])))
        if found is not wanted:
            raise UserError(
                f"{backward} must give a cotangent for each float parameter of {name}, {show_type(wanted)}; "
                f"it gives {show_type(found)}"
            )
        return given.items[1]

    def _build(self, name: str, names: tuple[str, ...]) -> None:
        """The two functions that a function becomes, and the data type of its tape."""
        function = with_fresh_binders(self.program.sources[name])
        wrt = [function.params[place] for place in self._floats(function)]
        inner = type(self)(self.program, function, wrt)
        region = inner.regions.body
        value = inner.forward(region)
        assert isinstance(function.type, FunctionType)
        cotangent = Var("cotangent", function.type.result)
        left = inner.backward(region, cotangent)
        totals = [None if id(var) not in left else self.program.data.combine(left[id(var)], var.type) for var in wrt]
        results = [self.program.data.whole(given, var) for given, var in zip(totals, wrt, strict=True)]
        body = bound(region.late, tuple_of(results))
        sources = [*function.params, *(var for var, _ in region.bindings)]
        saved = _saved(body, region.made, sources)
        (made,) = self.program.define(names[2], [(names[2], tuple(erased(part.type) for part in saved))]).constructors
        kind = DataTypeCall(DataTypeName(names[2]), ())
        pair = bound(region.bindings, tuple_of([value, construct(made, saved, kind)]))
        whole = TupleType((function.type.result, kind))
        self.program.add(Function(names[0], function.params, pair, whole))
        tape = Var("tape", kind)
        clause = Clause(*restored(made, saved, body, {}))
        result = TupleType(tuple(erased(var.type) for var in wrt))
        self.program.add(Function(names[1], (tape, cotangent), Match(tape, (clause,)), result))


def _known_body(arm: Arm) -> GraphExpr:
    assert arm.body is not None
    return arm.body


def _known(kind: Type | None) -> Type:
    if kind is None:
        raise CompilerBug("a value without a type")
    return kind


def bound(bindings: Sequence[tuple[Var, GraphExpr]], value: GraphExpr) -> GraphExpr:
    """A value behind bindings that give symbols their sizes."""
    for var, given in reversed(bindings):
        value = typed(Let(var, given, value), value.type)
    return value


def _saved(body: GraphExpr, made: set[int], sources: Sequence[GraphExpr]) -> list[GraphExpr]:
    """What an expression of the way back reads of what was computed on the way forward, in order of first use.

    Its sizes are read too: of the values that symbols come from (`sources`), those that are needed for them are kept.
    """
    order = children_first([body], lambda found: () if id(found) in made else children(found))
    saved = [found for found in order if id(found) in made]
    needed = [s for found in order if isinstance(found, Call) and id(found) not in made for s in _symbols(found)]
    known = {symbol for value in saved for symbol in _plain_symbols(value)}
    for source in sources:
        if any(symbol in needed and symbol not in known for symbol in _plain_symbols(source)):
            saved.append(source)
            known.update(_plain_symbols(source))
    return saved


def _symbols(found: Call) -> list[Symbol]:
    return [] if found.attributes is None else symbols_of(found.attributes)


def _plain_symbols(value: GraphExpr) -> list[Symbol]:
    """The symbols that are dimensions of a value."""
    kind = value.type
    if not isinstance(kind, TensorType) or kind.shape is None or any(dim is None for dim in kind.shape):
        return []
    return [dim for dim in kind.shape if type(dim) is Symbol]


def restored(
    made: Constructor, saved: Sequence[GraphExpr], body: GraphExpr | None, mapping: dict[int, GraphExpr]
) -> tuple[Pattern, GraphExpr]:
    """A clause of the way back: the pattern of a tape, and a body over what it held."""
    pattern, variables = constructor_pattern(made, made.fields_types)
    bindings: list[tuple[Var, GraphExpr]] = []
    known = dict(mapping)
    # Symbols take their values from dimensions that are symbols alone: these come before expressions of them.
    pairs = sorted(zip(saved, variables, strict=True), key=lambda pair: not _plain_symbols(pair[0]))
    for value, var in pairs:
        known[id(value)] = sized(var, _known(value.type), bindings)
    assert body is not None
    return pattern, bound(bindings, substituted(body, known))


def sized(value: GraphExpr, kind: Type, bindings: list[tuple[Var, GraphExpr]]) -> GraphExpr:
    """A value from a tape with the sizes that it had: symbols of its type take them from it."""
    if erased(kind) is kind or value.type is kind:
        return value
    if isinstance(kind, TupleType):
        parts = enumerate(kind.items)
        return tuple_of([sized(item(value, index), found, bindings) for index, found in parts])
    if not isinstance(kind, TensorType) or kind.shape is None or any(dim is None for dim in kind.shape):
        return value
    var = Var("sized")
    var.type = kind
    bindings.append((var, typed(call("shape.match", value, dims=kind.shape), kind)))
    return var


def erased(kind: Type | None) -> Type:
    """A type without symbols, which mean nothing outside of the function that has them."""
    found = _known(kind)
    if isinstance(found, TensorType) and found.shape is not None:
        return TensorType(tuple(dim if isinstance(dim, IntImm) else None for dim in found.shape), found.dtype)
    if isinstance(found, TupleType):
        return TupleType(tuple(erased(part) for part in found.items))
    if isinstance(found, DataTypeCall):
        return DataTypeCall(found.name, tuple(erased(part) for part in found.arguments))
    return found
