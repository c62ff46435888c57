"""Type inference: fills `type` on every expression of a function or a module, by unification.

Operators declare a type rule over concrete input types, so a call whose input types are not known yet is put off
and tried again when the rest has been seen. Types of parameters may be left out where uses or calls determine them.
Polymorphic functions (explicit type parameters) and functions over symbolic dimensions are instantiated at each call.
Works on graphs of any depth without recursion.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from tilewright.graph.ir.expr import (
    Attributes,
    Call,
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
from tilewright.graph.ir.match import missing_case
from tilewright.graph.ir.op import Operator
from tilewright.graph.ir.traverse import children, graph_functions, post_order
from tilewright.graph.ir.unify import Mismatch, Unifier, show_type
from tilewright.ir.dtype import BOOL
from tilewright.ir.function import Constructor, IRModule
from tilewright.ir.types import DataTypeCall, DataTypeName, FunctionType, TensorType, TupleType, Type
from tilewright.support.errors import CompilerBug, UserError
from tilewright.support.order import children_first

F = TypeVar("F", bound=Function | IRModule)


def infer_types(value: F) -> F:
    """Fill `type` on every expression of a function, or of every graph function of a module; returns its argument.

    Raises a UserError that names the place (the node's span) where types do not fit; then no type is filled.
    """
    module = value if isinstance(value, IRModule) else IRModule([value])
    _Inference(module).run(list(graph_functions(module).values()))
    return value


def operator_type(operator: Operator, types: list[Type], attributes: Attributes | None, where: str | None) -> Type:
    """The result type of an operator; errors name the operator and the place."""
    least = len(operator.inputs) - operator.optional - (1 if operator.variadic else 0)
    if len(types) < least or (len(types) > len(operator.inputs) and not operator.variadic):
        raise UserError(
            f"operator {operator.name} takes ({', '.join(operator.inputs)}), got {len(types)} inputs", where=where
        )
    try:
        return operator.infer(types, attributes)
    except UserError as error:
        if error.where is not None and error.message.startswith(operator.name):
            raise
        message = error.message if operator.name in error.message else f"{operator.name}: {error.message}"
        raise type(error)(message, where=error.where or where, hint=error.hint) from None


def fill_type(item: GraphExpr) -> GraphExpr:
    """Give a newly built first-order expression its type from its children's types, if they have them all.

    Rewrites use this, so that types stay known without inferring the whole function anew.
    """
    if item.type is not None:
        return item
    if isinstance(item, Call) and isinstance(item.callee, Operator):
        types = [arg.type for arg in item.args]
        if all(known is not None for known in types):
            where = str(item.span) if item.span is not None else None
            item.type = operator_type(item.callee, cast("list[Type]", types), item.attributes, where)
    elif isinstance(item, Call) and isinstance(item.callee, Function):
        if isinstance(item.callee.type, FunctionType) and not item.callee.type_parameters:
            item.type = item.callee.type.result
    elif isinstance(item, Tuple):
        if all(part.type is not None for part in item.items):
            item.type = TupleType(tuple(cast(Type, part.type) for part in item.items))
    elif isinstance(item, TupleGet):
        if isinstance(item.value.type, TupleType):
            item.type = item.value.type.items[item.index]
    elif isinstance(item, Let):
        item.type = item.body.type
    elif isinstance(item, Function) and item.body.type is not None and all(p.type is not None for p in item.params):
        parameters = tuple(cast(Type, p.type) for p in item.params)
        item.type = FunctionType(parameters, item.result_type or item.body.type, item.type_parameters)
    return item


def keep_type(old: GraphExpr, item: GraphExpr) -> None:
    """Give an expression that was rebuilt its type: by its children, or where they do not tell, as it was."""
    if item is not old:
        fill_type(item)
        if item.type is None:
            item.type = old.type


def _where(item: GraphExpr) -> str | None:
    return str(item.span) if item.span is not None else None


class _Inference:
    """One run over a module."""

    def __init__(self, module: IRModule) -> None:
        self.module = module
        self.unifier = Unifier()
        self.types: dict[int, Type] = {}
        self.done: list[GraphExpr] = []
        self.signatures: dict[str, FunctionType] = {}
        self.deferred: list[tuple[GraphExpr, Type]] = []

    def run(self, functions: list[Function]) -> None:
        for function in functions:
            if function.name:
                self.signatures[function.name] = self._signature(function)
        for function in self._callees_first(functions):
            self._visit(function)
            self._retry()
        if self.deferred:
            item = self.deferred[0][0]
            raise UserError(
                f"the types of the inputs of {_describe(item)} cannot be inferred",
                where=_where(item),
                hint="annotate the parameters they come from",
            )
        self._write_back()

    def _callees_first(self, functions: list[Function]) -> list[Function]:
        """The functions ordered so that a callee comes before its callers, as far as there are no cycles."""
        by_name = {function.name: function for function in functions}

        def callees(function: Function) -> list[Function]:
            found = (by_name.get(item.name) for item in post_order(function) if isinstance(item, GlobalVar))
            return [callee for callee in found if callee is not None]

        return children_first(functions, callees)

    def _signature(self, function: Function) -> FunctionType:
        """The declared type of a function, with holes where nothing is declared; sets its parameters' types."""
        known = self.types.get(id(function))
        if isinstance(known, FunctionType):
            return known
        for param in function.params:
            if id(param) in self.types:
                raise UserError(f"the variable {param.name} is bound twice", where=_where(function))
            self._set(param, param.annotation if param.annotation is not None else self.unifier.hole(param.name))
        parameters = tuple(self.types[id(param)] for param in function.params)
        result = function.result_type if function.result_type is not None else self.unifier.hole("result")
        signature = FunctionType(parameters, result, function.type_parameters)
        self.types[id(function)] = signature
        return signature

    def _set(self, item: GraphExpr, found: Type) -> None:
        self.types[id(item)] = found
        self.done.append(item)

    def _visit(self, root: Function) -> None:
        """Walk with an explicit stack; an entry is an expression to enter or an action to do after others."""
        finished: set[int] = set()
        stack: list[GraphExpr | Callable[[], None]] = [root]

        def finish(item: GraphExpr) -> Callable[[], None]:
            return lambda: self._set(item, self._leave(item))

        while stack:
            entry = stack.pop()
            if not isinstance(entry, GraphExpr):
                entry()
                continue
            if id(entry) in finished:
                continue
            finished.add(id(entry))
            if isinstance(entry, Var):
                if id(entry) not in self.types:
                    raise UserError(
                        f"the variable {entry.name} is used outside of the scope that binds it", where=_where(entry)
                    )
                continue
            if isinstance(entry, Function):
                self._signature(entry)
                stack.extend((finish(entry), entry.body))
            elif isinstance(entry, Let):
                self._before_let(entry)
                stack.extend((finish(entry), entry.body, self._after_let(entry), entry.value))
            elif isinstance(entry, Match):
                stack.append(finish(entry))
                stack.extend(clause.body for clause in reversed(entry.clauses))
                stack.extend((self._bind_patterns(entry), entry.value))
            else:
                below = children(entry)
                if not below:
                    self._set(entry, self._leave(entry))
                    continue
                stack.append(finish(entry))
                stack.extend(child for child in reversed(below) if id(child) not in finished)

    def _before_let(self, item: Let) -> None:
        if id(item.var) in self.types:
            raise UserError(f"the variable {item.var.name} is bound twice", where=_where(item))
        if item.var.annotation is not None:
            self._set(item.var, item.var.annotation)
        elif isinstance(item.value, Function):
            self._set(item.var, self._signature(item.value))

    def _after_let(self, item: Let) -> Callable[[], None]:
        def bind() -> None:
            value = self.types[id(item.value)]
            if id(item.var) not in self.types:
                self._set(item.var, value)
            elif not isinstance(item.value, Function) or item.var.annotation is not None:
                self._unify(self.types[id(item.var)], value, f"the value of {item.var.name}", item)

        return bind

    def _bind_patterns(self, item: Match) -> Callable[[], None]:
        def bind() -> None:
            value = self.types[id(item.value)]
            for clause in item.clauses:
                self._bind_pattern(clause.pattern, value, item)
            missing = missing_case([clause.pattern for clause in item.clauses], self.module.types)
            if missing is not None:
                raise UserError(
                    f"the match does not cover {missing}", where=_where(item), hint="add a clause, or end with `case _`"
                )

        return bind

    def _bind_pattern(self, root: Pattern, value: Type, item: Match) -> None:
        stack: list[tuple[Pattern, Type]] = [(root, value)]
        while stack:
            pattern, found = stack.pop()
            if isinstance(pattern, WildcardPattern):
                continue
            if isinstance(pattern, VarPattern):
                if id(pattern.var) in self.types:
                    raise UserError(f"the variable {pattern.var.name} is bound twice", where=_where(item))
                self._set(pattern.var, found)
            elif isinstance(pattern, TuplePattern):
                holes = tuple(self.unifier.hole("item") for _ in pattern.patterns)
                self._unify(TupleType(holes), found, "the matched value", item)
                stack.extend(zip(pattern.patterns, holes, strict=True))
            elif isinstance(pattern, ConstructorPattern):
                built = self.unifier.instantiate(self._constructor_type(pattern.constructor, item))
                if len(pattern.patterns) != len(built.parameters):
                    raise UserError(
                        f"the pattern {pattern.constructor.name} takes {len(built.parameters)} fields, "
                        f"got {len(pattern.patterns)}",
                        where=_where(item),
                    )
                self._unify(built.result, found, "the matched value", item)
                stack.extend(zip(pattern.patterns, built.parameters, strict=True))

    def _constructor_type(self, constructor: Constructor, item: GraphExpr) -> FunctionType:
        definition = self.module.types.get(constructor.type_name)
        if definition is None or all(constructor is not known for known in definition.constructors):
            raise UserError(
                f"the type {constructor.type_name} of the constructor {constructor.name} is not defined in the module",
                where=_where(item),
                hint="pass its definition: IRModule(functions, types=[...])",
            )
        result = DataTypeCall(DataTypeName(definition.name), definition.type_parameters)
        return FunctionType(constructor.fields_types, result, definition.type_parameters)

    def _leave(self, item: GraphExpr) -> Type:
        """The type of an expression whose children have types."""
        if isinstance(item, Constant):
            return cast(Type, item.type)
        if isinstance(item, Call):
            if isinstance(item.callee, Operator):
                return self._attempt(item) or self._defer(item)
            return self._apply(item)
        if isinstance(item, Tuple):
            return TupleType(tuple(self.types[id(part)] for part in item.items))
        if isinstance(item, TupleGet):
            return self._attempt(item) or self._defer(item)
        if isinstance(item, Let):
            return self.types[id(item.body)]
        if isinstance(item, If):
            condition = self.types[id(item.condition)]
            self._unify(TensorType((), BOOL), condition, "the condition", item)
            then_type, else_type = self.types[id(item.then_value)], self.types[id(item.else_value)]
            return self._join(then_type, else_type, "the else branch", item)
        if isinstance(item, Match):
            result = self.types[id(item.clauses[0].body)]
            for clause in item.clauses[1:]:
                result = self._join(result, self.types[id(clause.body)], "a clause of the match", item)
            return result
        if isinstance(item, Function):
            signature = self._signature(item)
            name = f"the result of {item.name}" if item.name else "the result of the closure"
            body = self._unify(signature.result, self.types[id(item.body)], name, item)
            result = signature.result if item.result_type is not None else body
            return FunctionType(signature.parameters, result, item.type_parameters)
        if isinstance(item, GlobalVar):
            if item.name not in self.signatures:
                raise UserError(f"the module has no graph function {item.name!r}", where=_where(item))
            return self.signatures[item.name]
        if isinstance(item, ConstructorRef):
            return self._constructor_type(item.constructor, item)
        if isinstance(item, Operator):
            raise UserError(
                f"the operator {item.name} is used as a value", hint="wrap it in a function: fn(x) { op(x) }"
            )
        raise CompilerBug(f"no type rule for {type(item).__name__}")

    def _attempt(self, item: GraphExpr) -> Type | None:
        """The type of an operator call or a tuple item, or None while its inputs are not known."""
        resolve = self.unifier.resolve
        if isinstance(item, TupleGet):
            value = resolve(self.types[id(item.value)])
            if self.unifier.is_hole(value):
                return None
            if not isinstance(value, TupleType):
                raise UserError(f"{show_type(value)} has no items", where=_where(item))
            if not 0 <= item.index < len(value.items):
                raise UserError(f"there is no item {item.index} of {show_type(value)}", where=_where(item))
            return value.items[item.index]
        assert isinstance(item, Call)
        assert isinstance(item.callee, Operator)
        types = [resolve(self.types[id(arg)]) for arg in item.args]
        if not all(self.unifier.is_ground(found) for found in types):
            return None
        return operator_type(item.callee, types, item.attributes, _where(item))

    def _defer(self, item: GraphExpr) -> Type:
        hole = self.unifier.hole("value")
        self.deferred.append((item, hole))
        return hole

    def _retry(self) -> None:
        """Try what was put off again, as long as that makes progress."""
        while self.deferred:
            waiting: list[tuple[GraphExpr, Type]] = []
            for item, hole in self.deferred:
                found = self._attempt(item)
                if found is None:
                    waiting.append((item, hole))
                else:
                    self._unify(hole, found, "the value", item)
            if len(waiting) == len(self.deferred):
                return
            self.deferred = waiting

    def _apply(self, item: Call) -> Type:
        """The type of a call to a function value."""
        arguments = [self.unifier.value_type(self.types[id(arg)]) for arg in item.args]
        callee = self.unifier.resolve(self.types[id(item.callee)])
        if self.unifier.is_hole(callee):
            result = self.unifier.hole("result")
            self._unify(callee, FunctionType(tuple(arguments), result), "the callee", item)
            return result
        if not isinstance(callee, FunctionType):
            raise UserError(f"a value of type {show_type(callee)} is called", where=_where(item))
        name = _callee_name(item.callee)
        if len(callee.parameters) != len(arguments):
            raise UserError(
                f"{name} takes {len(callee.parameters)} arguments, got {len(arguments)}", where=_where(item)
            )
        callee = self.unifier.instantiate(callee)
        callee = self.unifier.bind_dimensions(callee, arguments)
        for position, (expected, given) in enumerate(zip(callee.parameters, arguments, strict=True)):
            self._unify(expected, given, f"argument {position} of {name}", item)
        return self.unifier.resolve(callee.result)

    def _unify(self, a: Type, b: Type, what: str, item: GraphExpr) -> Type:
        return self._combined(self.unifier.unify, a, b, what, item)

    def _join(self, a: Type, b: Type, what: str, item: GraphExpr) -> Type:
        """The type of one of two values, whose shapes may differ."""
        return self._combined(self.unifier.join, a, b, what, item)

    def _combined(self, combine: Callable[[Type, Type], Type], a: Type, b: Type, what: str, item: GraphExpr) -> Type:
        try:
            return combine(a, b)
        except Mismatch as mismatch:
            a, b = self.unifier.resolve(a), self.unifier.resolve(b)
            raise UserError(
                f"{what} has type {show_type(b)}, expected {show_type(a)}: {mismatch}", where=_where(item)
            ) from None

    def _write_back(self) -> None:
        """Check that everything is known, then fill the types."""
        resolved: list[tuple[GraphExpr, Type]] = []
        for item in self.done:
            found = self.unifier.resolve(self.types[id(item)])
            if not self.unifier.is_ground(found):
                raise UserError(
                    f"the type of {_describe(item)} cannot be inferred: {show_type(found)}",
                    where=_where(item),
                    hint="annotate it",
                )
            resolved.append((item, found))
        for item, found in resolved:
            item.type = found


def _describe(item: GraphExpr) -> str:
    if isinstance(item, Var):
        return f"the variable {item.name}"
    if isinstance(item, Call) and isinstance(item.callee, Operator):
        return f"the operator {item.callee.name}"
    if isinstance(item, Function):
        return f"the function {item.name or '<closure>'}"
    return f"a {type(item).__name__}"


def _callee_name(callee: GraphExpr) -> str:
    if isinstance(callee, (GlobalVar, Var)):
        return callee.name
    if isinstance(callee, ConstructorRef):
        return callee.constructor.name
    if isinstance(callee, Function) and callee.name:
        return callee.name
    return "the closure"
