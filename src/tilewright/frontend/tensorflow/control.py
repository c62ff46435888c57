"""Converters of control flow: functions in place, as branches, and as bodies of loops.

A short loop of known conditions is spelled out; others are functions that call themselves (`core/loops.py`). A list to
which each turn writes one item, in order, is collected instead of carried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tilewright.frontend.core.branches import choice, free_name
from tilewright.frontend.core.builder import dtype_of, evaluate, rank_of, sizes_of
from tilewright.frontend.core.complex_values import Complex
from tilewright.frontend.core.loops import Loop, Turn, build_loop, captured
from tilewright.frontend.core.loops import stack as stacked
from tilewright.frontend.tensorflow import lists
from tilewright.frontend.tensorflow.context import NodeContext
from tilewright.frontend.tensorflow.model import Body, Ref
from tilewright.frontend.tensorflow.registry import converter
from tilewright.frontend.tensorflow.tensors import array_of
from tilewright.frontend.tensorflow.values import Handle, TensorList, Value
from tilewright.graph.ir.dimensions import Size, same, subtract
from tilewright.graph.ir.expr import Constant, GraphExpr, Var
from tilewright.ir.dtype import BOOL
from tilewright.support.errors import UnsupportedError, UserError

_MOST_TURNS = 64
"""Loops of more turns, or of turns that only a run counts, are functions that call themselves."""
_MOST_NODES = 4096
"""The most nodes of all turns that are spelled out."""
_CALLS = ("f", "then_branch", "else_branch", "cond", "body")
"""Attributes that name functions."""
_PASSED_ON = ("Identity", "IdentityN", "StopGradient", "Snapshot")


# Calls


@converter("PartitionedCall", "StatefulPartitionedCall", effect=True)
def call_function(node: NodeContext) -> Sequence[Value]:
    """A function in place."""
    return node.scope.run(node.body("f"), node.values)


@converter("Identity", "StopGradient", "Snapshot", "PreventGradient", "RefIdentity", "CheckNumerics")
def identity(node: NodeContext) -> Value:
    """The same value."""
    return node.value(0)


@converter("IdentityN")
def identities(node: NodeContext) -> Sequence[Value]:
    """The same values."""
    return node.values


# Branches


def truth(node: NodeContext, value: GraphExpr) -> GraphExpr:
    """A condition of any type: a number other than 0, a tensor that is not empty."""
    builder = node.builder
    if rank_of(value):
        count = builder.shape_tensor(sizes_of(value))
        return builder.call("all", builder.call("greater", count, builder.constant(0, "int64")), axes=(0,))
    return value if dtype_of(value) is BOOL else builder.cast(value, BOOL)


@converter("If", "StatelessIf", effect=True)
def branch(node: NodeContext) -> Sequence[Value]:
    """A known condition chooses the branch now; else both are kept and one is computed."""
    bodies = node.node.bodies or (node.body("then_branch"), node.body("else_branch"))
    return chosen(node, truth(node, node.input(0)), (bodies[0], bodies[1]), node.values[1:])


@converter("Case", "StatelessCase", effect=True)
def case(node: NodeContext) -> Sequence[Value]:
    """One of several functions by a number; one outside of them means the last."""
    bodies, index = node.bodies("branches"), node.builder.reshape(node.input(0), ())
    known, values = evaluate(index), node.values[1:]
    if not bodies:
        raise UserError("Case without branches")
    if known is not None:
        number = int(known)
        return node.scope.run(bodies[number if 0 <= number < len(bodies) else -1], values)

    def rest(at: int) -> Sequence[Value]:
        if at == len(bodies) - 1:
            return node.scope.run(bodies[at], values)
        here = node.builder.compare("equal", index, at)
        return _choice(node, here, lambda: node.scope.run(bodies[at], values), lambda: rest(at + 1), bodies)

    return rest(0)


def chosen(
    node: NodeContext, condition: GraphExpr, bodies: tuple[Body, Body], values: Sequence[Value]
) -> Sequence[Value]:
    """The results of the first body where a condition holds, else those of the second."""
    known = evaluate(condition)
    if known is not None:
        return node.scope.run(bodies[0 if known.all() else 1], values)
    first, second = bodies
    return _choice(
        node, condition, lambda: node.scope.run(first, values), lambda: node.scope.run(second, values), bodies
    )


def _choice(
    node: NodeContext,
    condition: GraphExpr,
    first: Callable[[], Sequence[Value]],
    second: Callable[[], Sequence[Value]],
    bodies: Sequence[Body],
) -> Sequence[Value]:
    state = node.scope.state
    before = dict(state.variables)
    names = sorted(_assigned(node, bodies, node.values))
    forms: list[list[Value]] = []

    def side(build: Callable[[], Sequence[Value]]) -> list[GraphExpr]:
        state.variables.clear()
        state.variables.update(before)
        results = build()
        forms.append(list(results))
        return [*flattened(node, results), *(state.variables[name] for name in names)]

    if not names and not bodies[0].results:
        return []
    parts = choice(node.builder, condition, (lambda: side(first), lambda: side(second)), node.operator, node.name)
    state.variables.clear()
    state.variables.update(before)
    state.variables.update(zip(names, parts[len(parts) - len(names) :], strict=True))
    return rebuilt(node, forms[0], parts[: len(parts) - len(names)])


def _assigned(node: NodeContext, bodies: Sequence[Body], values: Sequence[Value]) -> set[str]:
    """The variables that bodies may give a value, of those that exist before."""
    handles = {value.name for value in values if isinstance(value, Handle) and value.kind != "table"}
    known = handles & set(node.scope.state.variables)
    return known if any(_assigns(node, body, set()) for body in bodies) else set()


def _assigns(node: NodeContext, body: Body, seen: set[str]) -> bool:
    if body.name in seen:
        return False
    seen.add(body.name)
    for item in body.nodes.values():
        if item.op.startswith(("Assign", "ResourceScatter")):
            return True
        inner = list(item.bodies)
        for key in _CALLS:
            if key in item.attributes and item.attributes[key].func.name in node.scope.model.functions:
                inner.append(node.scope.model.functions[item.attributes[key].func.name])
        if any(_assigns(node, part, seen) for part in inner):
            return True
    return False


# Values as tensors


def flattened(node: NodeContext, values: Sequence[Value]) -> list[GraphExpr]:
    """The tensors that values are made of; handles are known and have none."""
    parts: list[GraphExpr] = []
    for value in values:
        if isinstance(value, GraphExpr):
            parts.append(value)
        elif isinstance(value, Complex):
            parts.extend(value.parts)
        elif isinstance(value, TensorList):
            parts.append(lists.rows_of(node, value))
    return parts


def rebuilt(node: NodeContext, forms: Sequence[Value], parts: Sequence[GraphExpr]) -> list[Value]:
    """Values of the same form from their tensors."""
    rest = iter(parts)
    results: list[Value] = []
    for form in forms:
        if isinstance(form, Complex):
            results.append(Complex(next(rest), next(rest)))
        elif isinstance(form, TensorList):
            results.append(TensorList(form.dtype, None, next(rest)))
        else:
            results.append(form if isinstance(form, Handle) else next(rest))
    return results


# Loops


@converter("While", "StatelessWhile", effect=True)
def while_loop(node: NodeContext) -> Sequence[Value]:
    """Turns of a body as long as a condition holds."""
    test, body = node.node.bodies or (node.body("cond"), node.body("body"))
    if len(body.results) > len(node.values) or len(body.params) != len(node.values):
        raise UserError(f"{node.operator} of {len(node.values)} values with a body of {len(body.params)}")
    spelled = _spelled_out(node, test, body)
    return spelled if spelled is not None else _Repeated(node, test, body).results()


def _going(node: NodeContext, test: Body, values: Sequence[Value]) -> GraphExpr:
    found = node.scope.run(test, values)[0]
    if not isinstance(found, GraphExpr):
        raise UserError(f"the condition of {node.operator} is no tensor")
    return truth(node, found)


def _spelled_out(node: NodeContext, test: Body, body: Body) -> list[Value] | None:
    """The turns one after the other, where every condition is known; None if one is not, or there are too many."""
    values, state = list(node.values), node.scope.state
    before = dict(state.variables)
    most = min(_MOST_TURNS, _MOST_NODES // max(1, len(body.nodes)))
    for _ in range(most + 1):
        going = evaluate(_going(node, test, values))
        if going is None:
            break
        if not going.all():
            return values[: len(body.results)]
        results = node.scope.run(body, values)
        values = [*results, *values[len(results) :]]
    state.variables.clear()
    state.variables.update(before)
    return None


def traced(body: Body, ref: Ref) -> Ref:
    """Where a value comes from, through nodes that hand it on."""
    for _ in range(len(body.nodes)):
        node = None if ref.node in body.params else body.nodes.get(ref.node)
        if node is None or node.op not in _PASSED_ON or ref.port >= len(node.inputs):
            break
        ref = node.inputs[ref.port]
    return ref


@dataclass(frozen=True, slots=True)
class _Written:
    """A list to which turn number i writes item i, and nothing else is done with it in the body."""

    place: int
    item: Ref


class _Repeated:
    """A loop as a function that calls itself."""

    def __init__(self, node: NodeContext, test: Body, body: Body) -> None:
        self.node, self.test, self.body = node, test, body
        names = {Ref(name): at for at, name in enumerate(body.params)}
        count = len(body.results)
        self.kept = {at for at in range(count) if names.get(traced(body, body.results[at])) == at}
        self.kept |= set(range(count, len(body.params)))
        self.written = self._written(names)
        self.values = list(node.values)
        out = self.kept | {item.place for item in self.written}
        self.places = [at for at in range(count) if at not in out]
        # Variables that a loop assigns are carried; so are those that hold what a run computes, as values from outside.
        variables = node.scope.state.variables
        handles = [value.name for value in node.values if isinstance(value, Handle)]
        computed = {name for name in handles if not isinstance(variables.get(name), Constant)}
        self.names = sorted(_assigned(node, (test, body), node.values) | (computed & set(variables)))

    def _written(self, names: dict[Ref, int]) -> list[_Written]:
        """The lists that are written in order, by a value that counts turns."""
        body, values = self.body, self.node.values
        counters = {at for at, ref in enumerate(body.results) if self._counts(at, ref)}
        found: list[_Written] = []
        for at, ref in enumerate(body.results):
            value, source = values[at], traced(body, ref)
            setter = body.nodes.get(source.node)
            is_list = isinstance(value, TensorList) and value.rows is None and not any(value.items or ())
            if not is_list or setter is None or setter.op not in ("TensorListSetItem", "TensorArrayWriteV3"):
                continue
            is_array = setter.op == "TensorArrayWriteV3"
            into = traced(body, setter.inputs[3 if is_array else 0])
            index = traced(body, setter.inputs[1])
            if names.get(into) == at and names.get(index) in counters and self._users(at) == 1:
                found.append(_Written(at, setter.inputs[2]))
        return found

    def _counts(self, at: int, ref: Ref) -> bool:
        """Whether a carried value is 0, 1, 2 ... in turn."""
        start = self.node.values[at]
        known = evaluate(start) if isinstance(start, GraphExpr) else None
        adder = self.body.nodes.get(traced(self.body, ref).node)
        if known is None or known.size != 1 or known.item() != 0 or adder is None or adder.op not in ("Add", "AddV2"):
            return False
        sources = [traced(self.body, item) for item in adder.inputs]
        mine = Ref(self.body.params[at])
        other = next((item for item in sources if item != mine), None)
        if mine not in sources or other is None:
            return False
        step = self.body.nodes.get(other.node)
        if step is None:
            place = self.body.params.index(other.node) if other.node in self.body.params else -1
            value = self.node.values[place] if place in self.kept else None
            known = evaluate(value) if isinstance(value, GraphExpr) else None
        elif step.op == "Const":
            known, _ = array_of(step.attributes["value"].tensor, f"the constant '{step.name}'")
        else:
            return False
        return known is not None and known.size == 1 and known.item() == 1

    def _users(self, at: int) -> int:
        """How many nodes of both bodies take a parameter for more than handing it on."""
        count = 0
        for body in (self.body, self.test):
            mine = Ref(body.params[at])
            for item in body.nodes.values():
                if item.op not in _PASSED_ON:
                    count += sum(traced(body, ref) == mine for ref in item.inputs)
        return count

    def results(self) -> list[Value]:
        """Build the loop; gives what it carries after the last turn."""
        node, builder, state = self.node, self.node.builder, self.node.scope.state
        forms = self._forms()
        start = [*flattened(node, forms), *(state.variables[name] for name in self.names)]

        def run(number: GraphExpr, carried: list[GraphExpr]) -> Turn:
            captures: list[tuple[GraphExpr, Var]] = []
            states = len(carried) - len(self.names)
            state.variables.update(zip(self.names, carried[states:], strict=True))
            values = self._arguments(forms, carried[:states], captures)
            collected: list[GraphExpr] = []
            results = self._turn(values, collected)
            after = [results[at] for at in self.places]
            full = [*results, *values[len(results) :]]
            parts = [*flattened(node, after), *(state.variables[name] for name in self.names)]
            return Turn(_going(node, self.test, full), parts, collected, captures)

        going = _going(node, self.test, self.values)
        loop = Loop(free_name(builder), None, going, start, run)
        finished, collected = build_loop(builder, node.scope.functions, loop)
        states = len(finished) - len(self.names)
        state.variables.update(zip(self.names, finished[states:], strict=True))
        results = list(self.values[: len(self.body.results)])
        for at, value in zip(self.places, rebuilt(node, forms, finished[:states]), strict=True):
            results[at] = value
        for item, sequence in zip(self.written, collected, strict=True):
            results[item.place] = self._rows(item, sequence, loop.name)
        return results

    def _turn(self, values: list[Value], collected: list[GraphExpr]) -> list[Value]:
        """One turn; what is written to lists is taken out of it."""
        body, extra = self.body, tuple(item.item for item in self.written)
        gone = {item.place for item in self.written}
        kept = tuple(ref for at, ref in enumerate(body.results) if at not in gone)
        found = self.node.scope.run(replace(body, results=(*kept, *extra)), values)
        for value in found[len(kept) :]:
            if not isinstance(value, GraphExpr):
                raise UnsupportedError("a list of what is no tensor of numbers")
            collected.append(value)
        rest = iter(found[: len(kept)])
        return [values[at] if at in gone else next(rest) for at in range(len(body.results))]

    def _forms(self) -> list[Value]:
        """What is carried, of the form that it has in the body: lists with known shapes of their items."""
        forms = [self.values[at] for at in self.places]
        unknown = [
            at
            for at, form in zip(self.places, forms, strict=True)
            if isinstance(form, TensorList) and lists.known_shape(self.node, form) is None
        ]
        if unknown:
            shapes = self._probe(unknown)
            for at, shape in shapes.items():
                value = self.values[at]
                assert isinstance(value, TensorList)
                self.values[at] = replace(value, shape=shape)
        return [self.values[at] for at in self.places]

    def _probe(self, places: Sequence[int]) -> dict[int, tuple[Size, ...]]:
        """The shapes of items of lists that the first turn writes."""
        shapes: dict[int, tuple[Size, ...]] = {}
        node, before = self.node, dict(self.node.scope.state.variables)

        def build() -> GraphExpr:
            results = self._turn(list(self.values), [])
            for at in places:
                result = results[at]
                shape = lists.known_shape(node, result) if isinstance(result, TensorList) else None
                if shape is None:
                    raise UnsupportedError("a loop with a list whose items have no known shape")
                shapes[at] = shape
            return node.builder.constant(0, "int64")

        node.builder.enclosed(build)
        node.scope.state.variables.clear()
        node.scope.state.variables.update(before)
        return shapes

    def _arguments(
        self, forms: Sequence[Value], carried: Sequence[GraphExpr], captures: list[tuple[GraphExpr, Var]]
    ) -> list[Value]:
        """What a turn is given: what is carried, and what comes from outside."""
        values: list[Value] = list(self.values)
        for at in range(len(values)):
            if at in self.kept:
                values[at] = self._seen(values[at], captures)
        for at, value in zip(self.places, rebuilt(self.node, forms, carried), strict=True):
            values[at] = value
        return values

    def _seen(self, value: Value, captures: list[tuple[GraphExpr, Var]]) -> Value:
        """A value from outside as the body sees it."""
        if isinstance(value, Handle):
            return value
        parts = [captured(part, captures) for part in flattened(self.node, [value])]
        return rebuilt(self.node, [value], parts)[0]

    def _rows(self, item: _Written, sequence: GraphExpr, name: str) -> TensorList:
        """The list that turns have written: zeros behind the last."""
        node, builder, value = self.node, self.node.builder, self.values[item.place]
        assert isinstance(value, TensorList)
        count = node.symbol(f"turns_{item.place}")
        rows = stacked(builder, sequence, count, 0, f"{name}_{item.place}")
        total = lists.count_of(node, value)
        if not same(total, count):
            after = (subtract(total, count), *(0,) * (rank_of(rows) - 1))
            rows = builder.call("pad", rows, before=(0,) * rank_of(rows), after=after)
        return TensorList(value.dtype, None, rows)


@converter("Switch", "Merge", "Enter", "Exit", "NextIteration", "LoopCond")
def unraised(node: NodeContext) -> Sequence[Value]:
    """What is no part of a loop or a branch of its own."""
    raise UnsupportedError(
        f"{node.operator}, which belongs to no loop and to no branch that is understood",
        hint="export the model again by TensorFlow 2, whose control flow is made of functions",
    )
