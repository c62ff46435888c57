"""The printer of the graph IR: functions and modules as valid Python.

    @graph.function
    def main(x: Tensor[(1, 3, 8, 8), "float32"]) -> Tensor[(1, 4, 8, 8), "float32"]:
        v0 = nn.conv2d(x, const[0], padding=(1, 1, 1, 1))  # name: "conv1"; float32[1, 4, 8, 8]
        v1 = nn.relu(v0)  # float32[1, 4, 8, 8]
        return v1

Each node that is computed is one assignment, in the innermost block that contains all its uses. `y: let = ...` is a
let binding, a nested `def` is a closure, `if` and `match` assign the same name in every branch, and
`with block() as y:` holds a let that is not at the end of a block. Large constants go to a table: `const[i]`.
"""

from __future__ import annotations

import numpy as np

from tilewright.graph.ir.expr import (
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
)
from tilewright.graph.ir.op import Operator
from tilewright.graph.ir.scopes import Scope, ScopeMap, find_scopes
from tilewright.graph.ir.traverse import free_variables, post_order, users
from tilewright.graph.ir.unify import show_type
from tilewright.graph.text.print_types import attribute_text, type_text
from tilewright.graph.text.words import Names, literal, quoted
from tilewright.ir.function import ExternFunc, IRModule, TypeDefinition
from tilewright.support.errors import CompilerBug, UnsupportedError
from tilewright.support.text import indent

INLINE_ELEMENTS = 8
"""Constants of up to so many elements are printed in place."""


class GraphText(str):
    """The text of a graph, with the table of constants it refers to."""

    constants: list[Constant]

    def __new__(cls, text: str, constants: list[Constant]) -> GraphText:
        """A text and its constants."""
        result = super().__new__(cls, text)
        result.constants = constants
        return result


def is_graph(value: object) -> bool:
    """Whether a value is a graph function, or a module of graph functions."""
    if isinstance(value, IRModule):
        functions = value.functions.values()
        return any(isinstance(f, Function) for f in functions) and all(
            isinstance(f, (Function, ExternFunc)) for f in functions
        )
    return isinstance(value, Function)


def to_text(value: object) -> GraphText:
    """A graph function or a module of graph functions as text; `.constants` is the table for `const[i]`."""
    printer = _Printer()
    if isinstance(value, Function):
        return GraphText(printer.function(value), printer.constants)
    if isinstance(value, IRModule):
        return GraphText(printer.module(value), printer.constants)
    raise UnsupportedError(f"a {type(value).__name__} is not a graph function or module")


class _Printer:
    """Names and constants are shared by all functions of a text."""

    def __init__(self) -> None:
        self.names = Names()
        self.constants: list[Constant] = []
        self.constant_index: dict[int, int] = {}
        self.scopes: ScopeMap
        self.by_scope: dict[int, list[GraphExpr]] = {}
        self.uses: dict[int, list[GraphExpr]] = {}

    def module(self, module: IRModule) -> str:
        """All definitions of a module."""
        for name in module.types:
            self.names.reserve(name)
        pairs = [(key, literal(value)) for key, value in module.attributes.items()]
        attributes = ", ".join(f"{key}={text}" for key, text in pairs if text is not None and key.isidentifier())
        parts = [f"graph.module({attributes})"]
        parts.extend(self.type_definition(definition) for definition in module.types.values())
        for name, function in module.functions.items():
            if isinstance(function, ExternFunc):
                parts.append(f"graph.extern({quoted(name)})")
            elif isinstance(function, Function):
                parts.append(self.function(function, name))
            else:
                raise UnsupportedError(f"the function {name} is not a graph function: it has a text form of its own")
        return "\n\n".join(parts)

    def type_definition(self, definition: TypeDefinition) -> str:
        """An algebraic data type as a class of constructors."""
        names = Names()
        parameters = ", ".join(repr(names.give(p, p.name)) for p in definition.type_parameters)
        lines = []
        for constructor in definition.constructors:
            fields = [type_text(field, names) for field in constructor.fields_types]
            inner = f"({fields[0]},)" if len(fields) == 1 else f"({', '.join(fields)})"
            lines.append(f"    {constructor.name} = {inner}")
        return f"@graph.data_type({parameters})\nclass {definition.name}:\n" + "\n".join(lines or ["    pass"])

    def function(self, function: Function, name: str | None = None) -> str:
        """A global function."""
        order = post_order(function)
        self.scopes = find_scopes(order)
        self.uses = users(order)
        self.by_scope = {}
        for item in order:
            self.by_scope.setdefault(id(self.scopes.scope(item)), []).append(item)
        shown = function.name if name is None else name
        lines = self._definition(function, "graph.function", shown or "anonymous", shown)
        return "\n".join(lines)

    def _definition(self, function: Function, decorator: str, printed: str, real: str) -> list[str]:
        """The lines of a `def`: decorators, signature, body."""
        around = self.names
        if self._is_closed(function):
            self.names = Names(around)
        for parameter in function.type_parameters:
            self.names.outermost.give(parameter, parameter.name)
        params = [self.names.give(param, param.name) for param in function.params]
        pairs = zip(params, function.params, strict=True)
        renamed = {shown: param.name for shown, param in pairs if shown != param.name}
        options: list[str] = []
        if real and (real != printed or decorator == "graph.closure"):
            options.append(f"name={quoted(real)}")
        if renamed:
            options.append(f"names={literal(renamed)}")
        if function.type_parameters:
            variables = tuple(self.names.outermost[parameter] for parameter in function.type_parameters)
            options.append(f"type_parameters={literal(variables)}")
        if function.notes:
            notes = literal({key: value for key, value in function.notes.items() if literal(value) is not None})
            options.append(f"notes={notes}")
        lines = []
        if options:
            lines.append(f"@{decorator}({', '.join(options)})")
        elif decorator == "graph.function":
            lines.append(f"@{decorator}")
        texts = [
            shown if param.annotation is None else f"{shown}: {type_text(param.annotation, self.names)}"
            for shown, param in zip(params, function.params, strict=True)
        ]
        result = "" if function.result_type is None else f" -> {type_text(function.result_type, self.names)}"
        lines.append(f"def {printed}({', '.join(texts)}){result}:{self._comment(function, with_type=False)}")
        body = self._block(self.scopes.inside(function, 0), function.body, None)
        lines.extend(indent(line) for line in body)
        self.names = around
        return lines

    def _is_closed(self, function: Function) -> bool:
        """Whether a function uses no name from around it."""
        inside = self.scopes.inside(function, 0)
        for item in post_order(function.body):
            if isinstance(item, (Var, Constant, GlobalVar, ConstructorRef, Operator)):
                continue
            scope: Scope | None = self.scopes.scope(item)
            while scope is not None and scope.depth > inside.depth:
                scope = scope.parent
            if scope is not inside:
                return False
        return not free_variables(function)

    def _block(self, scope: Scope, result: GraphExpr, target: str | None) -> list[str]:
        """The statements of a scope, then its result: returned, or assigned to a name."""
        lines: list[str] = []
        while True:
            at_end = isinstance(result, Let) and self.scopes.scope(result) is scope and len(self.uses[id(result)]) == 1
            skipped = {id(result)} if at_end or self._inlines(result, scope) else set()
            value = result.value if at_end and isinstance(result, Let) else None
            own_value = value is not None and self.scopes.scope(value) is scope and len(self.uses[id(value)]) == 1
            if own_value and isinstance(value, (Function, Call, Tuple)):
                skipped.add(id(value))
            for item in self.by_scope.get(id(scope), ()):
                if id(item) not in skipped:
                    lines.extend(self._statement(item))
            if not at_end:
                break
            assert isinstance(result, Let)
            lines.extend(self._let(result, id(result.value) in skipped))
            scope = self.scopes.inside(result, 1)
            result = result.body
        text = self._expression(result)
        comment = self._comment(result) if self._inlines(result, scope) else ""
        lines.append(f"return {text}{comment}" if target is None else f"{target} = {text}{comment}")
        return lines

    def _inlines(self, result: GraphExpr, scope: Scope) -> bool:
        """Whether the result of a block is written in place: a tuple that nothing else uses."""
        return isinstance(result, Tuple) and self.scopes.scope(result) is scope and len(self.uses[id(result)]) == 1

    def _let(self, item: Let, in_place: bool) -> list[str]:
        if in_place and isinstance(item.value, Function) and item.var.annotation is None:
            name = self.names.give(item.var, item.var.name)
            lines = self._definition(item.value, "graph.closure", name, item.value.name)
            return ["@graph.let", *lines]
        name = self.names.give(item.var, item.var.name)
        annotation = "let"
        if item.var.annotation is not None:
            annotation = f"let[{type_text(item.var.annotation, self.names)}]"
        before: list[str] = []
        if in_place and isinstance(item.value, Function):
            before = self._statement(item.value)
            return [*before, f"{name}: {annotation} = {self._expression(item.value)}"]
        comment = self._comment(item.value) if in_place else ""
        return [f"{name}: {annotation} = {self._expression(item.value)}{comment}"]

    def _statement(self, item: GraphExpr) -> list[str]:
        """The lines that define a node; none for what is written in place wherever it is used."""
        if isinstance(item, (Var, Constant, GlobalVar, ConstructorRef, Operator, TupleGet)):
            return []
        if isinstance(item, Function):
            if item is self.by_scope[id(self.scopes.outermost)][-1]:
                return []
            name = self.names.give(item, item.name or str(item.notes.get("name", "closure")))
            return self._definition(item, "graph.closure", name, item.name)
        if isinstance(item, (Call, Tuple)):
            text = self._expression(item)
            return [f"{self.names.number(item)} = {text}{self._comment(item)}"]
        name = self.names.number(item)
        if isinstance(item, If):
            lines = [f"if {self._expression(item.condition)}:{self._comment(item)}"]
            lines += map(indent, self._block(self.scopes.inside(item, 1), item.then_value, name))
            lines.append("else:")
            return [*lines, *map(indent, self._block(self.scopes.inside(item, 2), item.else_value, name))]
        if isinstance(item, Match):
            lines = [f"match {self._expression(item.value)}:{self._comment(item)}"]
            for position, clause in enumerate(item.clauses, start=1):
                lines.append(f"    case {self._pattern(clause.pattern)}:")
                body = self._block(self.scopes.inside(item, position), clause.body, name)
                lines += [indent(line, 8) for line in body]
            return lines
        assert isinstance(item, Let)
        lines = [f"with block() as {name}:{self._comment(item)}"]
        inner = self._let(item, in_place=False)
        return [*lines, *map(indent, inner), *map(indent, self._block(self.scopes.inside(item, 1), item.body, name))]

    def _pattern(self, pattern: Pattern) -> str:
        if isinstance(pattern, VarPattern):
            return self.names.give(pattern.var, pattern.var.name)
        if isinstance(pattern, TuplePattern):
            return f"[{', '.join(map(self._pattern, pattern.patterns))}]"
        if isinstance(pattern, ConstructorPattern):
            inner = ", ".join(map(self._pattern, pattern.patterns))
            return f"{pattern.constructor.type_name}.{pattern.constructor.name}({inner})"
        return "_"

    def _expression(self, item: GraphExpr) -> str:
        """A node as an expression: its name if it has one, else its operation on named inputs."""
        if isinstance(item, TupleGet):
            return f"{self._expression(item.value)}[{item.index}]"
        if isinstance(item, Constant):
            return self._constant(item)
        if isinstance(item, GlobalVar):
            return f"module.{item.name}"
        if isinstance(item, ConstructorRef):
            return f"{item.constructor.type_name}.{item.constructor.name}"
        if item in self.names:
            return self.names[item]
        if isinstance(item, Tuple):
            parts = [self._expression(part) for part in item.items]
            return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"
        if isinstance(item, Call):
            arguments = [self._expression(arg) for arg in item.args]
            if isinstance(item.callee, Operator):
                return f"{item.callee.name}({', '.join(arguments + self._attributes(item))})"
            return f"{self._expression(item.callee)}({', '.join(arguments)})"
        if isinstance(item, Operator):
            return item.name
        if isinstance(item, Var):
            return self.names.give(item, item.name)
        raise CompilerBug(f"a {type(item).__name__} was not printed before its use")

    def _attributes(self, item: Call) -> list[str]:
        """Attributes that differ from their defaults, as keywords."""
        if item.attributes is None:
            return []
        defaults = type(item.attributes).__dict__.get("_node_defaults", {})
        texts = []
        for name, value in zip(item.attributes.fields, item.attributes.field_values(), strict=True):
            text = attribute_text(value, self.names)
            if name in defaults and attribute_text(defaults[name], self.names) == text:
                continue
            if text is None:
                raise UnsupportedError(f"the attribute {name} has no text form: {value!r}")
            texts.append(f"{name}={text}")
        return texts

    def _constant(self, item: Constant) -> str:
        data = item.data
        plain = item.dtype.numpy() == data.dtype and item.dtype.name == data.dtype.name
        simple = plain and 0 < data.size <= INLINE_ELEMENTS and not bool(np.any(data != data))
        if simple:
            return f'constant({_numbers(data)}, "{item.dtype}")'
        index = self.constant_index.setdefault(id(item), len(self.constants))
        if index == len(self.constants):
            self.constants.append(item)
        return f"const[{index}]"

    def _comment(self, item: GraphExpr, with_type: bool = True) -> str:
        parts = []
        if item.span is not None:
            place = f" {item.span.line}:{item.span.column}" if item.span.line else ""
            parts.append(f"name: {quoted(item.span.source)}{place}")
        if with_type and item.type is not None:
            parts.append(show_type(item.type))
        return f"  # {'; '.join(parts)}" if parts else ""


def _numbers(data: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> str:
    """Numbers as nested lists, floats in the shortest form that reads back to the same value."""
    if data.ndim:
        return f"[{', '.join(_numbers(row) for row in data)}]"
    value = data.item()
    if isinstance(value, float) and np.isfinite(value):
        return str(float(str(data.astype(data.dtype)[()])))
    return literal(value) or repr(value)
