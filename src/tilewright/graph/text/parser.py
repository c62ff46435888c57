"""The parser of the graph dialect: from text, through `ast`, to the IR. Nothing of the text is ever executed."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import ChainMap
from collections.abc import Sequence

import tilewright.graph.ops  # noqa: F401  (registers the operators)
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
    constant,
)
from tilewright.graph.ir.op import call
from tilewright.graph.text.parse_types import TypeReader
from tilewright.graph.text.printer import GraphText
from tilewright.graph.text.reading import Source, dotted, read_literal
from tilewright.ir.function import BaseFunction, Constructor, ExternFunc, IRModule, TypeDefinition
from tilewright.ir.types import Type, TypeVariable
from tilewright.support.errors import UserError
from tilewright.support.span import Span

Scope = ChainMap[str, GraphExpr]
_NAME_COMMENT = re.compile(r"name: (?P<name>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")(?: (?P<line>\d+):(?P<column>\d+))?")


def parse_text(text: str, source: str = "<text>", constants: Sequence[Constant] | None = None) -> Function | IRModule:
    """Read a function or a module that `to_text` wrote (or a person, in the same form).

    `constants` is the table that `const[i]` refers to; a `GraphText` carries its own.
    """
    if constants is None and isinstance(text, GraphText):
        constants = text.constants
    return _Parser(Source(text, source), constants or ()).run()


class _Parser:
    """One text."""

    def __init__(self, source: Source, constants: Sequence[Constant]) -> None:
        self.source = source
        self.constants = constants
        self.types: dict[str, TypeDefinition] = {}
        self.reader = TypeReader(source, self.types)
        self.spans = self._read_comments()

    def run(self) -> Function | IRModule:
        tree = self.source.parse()
        attributes: dict[str, object] | None = None
        functions: dict[str, BaseFunction] = {}
        for statement in tree.body:
            if isinstance(statement, ast.ClassDef):
                self._type_definition(statement)
        for statement in tree.body:
            if isinstance(statement, ast.FunctionDef):
                function = self._function(statement, ChainMap(), is_global=True)
                if function.name in functions:
                    raise self.error(statement, f"two functions named {function.name}")
                functions[function.name] = function
            elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
                name = dotted(statement.value.func)
                if name == "graph.module":
                    attributes = {
                        item.arg: read_literal(item.value, self.source) for item in statement.value.keywords if item.arg
                    }
                elif name == "graph.extern" and len(statement.value.args) == 1:
                    extern = str(read_literal(statement.value.args[0], self.source))
                    functions[extern] = ExternFunc(extern)
                else:
                    raise self.error(statement, "expected graph.module(...) or graph.extern(...)")
            elif not isinstance(statement, ast.ClassDef):
                raise self.error(statement, "expected a function, a data type or graph.module(...)")
        if attributes is None and not self.types and len(functions) == 1:
            (only,) = functions.values()
            if isinstance(only, Function):
                return only
        if not functions and attributes is None:
            raise UserError("the text has no function", where=self.source.name)
        return IRModule(functions, self.types.values(), attributes)

    def error(self, place: ast.AST, message: str, hint: str | None = None) -> UserError:
        """The error of a place in the text."""
        return self.source.error(place, message, hint)

    def _read_comments(self) -> dict[int, Span]:
        """Spans by line, from comments of the form `# name: "conv1"`."""
        spans: dict[int, Span] = {}
        try:
            for token in tokenize.generate_tokens(io.StringIO(self.source.text).readline):
                if token.type == tokenize.COMMENT:
                    found = _NAME_COMMENT.search(token.string)
                    if found is not None:
                        name = str(ast.literal_eval(found["name"]))
                        spans[token.start[0]] = Span(name, int(found["line"] or 0), int(found["column"] or 0))
        except (tokenize.TokenError, SyntaxError):
            return {}  # The text does not parse: `ast` says where.
        return spans

    def _named(self, item: GraphExpr, place: ast.stmt) -> GraphExpr:
        """A node with the span that the comment of its line gives."""
        # An `if` or a `def` has its comment on its first line, an assignment at its end.
        simple = isinstance(place, (ast.Assign, ast.AnnAssign, ast.Return))
        end = place.end_lineno if simple and place.end_lineno is not None else place.lineno
        span = self.spans.get(end) or self.spans.get(place.lineno)
        if span is not None and item.span is None:
            item.span = span
        return item

    def _type_definition(self, statement: ast.ClassDef) -> None:
        parameters: list[TypeVariable] = []
        for decorator in statement.decorator_list:
            if isinstance(decorator, ast.Call) and dotted(decorator.func) == "graph.data_type":
                parameters = [TypeVariable(str(read_literal(arg, self.source))) for arg in decorator.args]
            else:
                raise self.error(decorator, "expected @graph.data_type(...)")
        scope = {parameter.name: parameter for parameter in parameters}
        constructors: list[Constructor] = []
        for item in statement.body:
            if isinstance(item, ast.Pass):
                continue
            if (
                not isinstance(item, ast.Assign)
                or len(item.targets) != 1
                or not isinstance(item.targets[0], ast.Name)
                or not isinstance(item.value, ast.Tuple)
            ):
                raise self.error(item, "expected a constructor: Name = (field types)")
            fields = tuple(self.reader.read(field, scope) for field in item.value.elts)
            constructors.append(Constructor(item.targets[0].id, fields, statement.name))
        self.types[statement.name] = TypeDefinition(statement.name, tuple(parameters), tuple(constructors))

    def _options(self, statement: ast.FunctionDef, expected: str) -> tuple[dict[str, object], bool]:
        """Options of a function's decorators, and whether it is a let binding."""
        options: dict[str, object] = {}
        is_let = False
        for decorator in statement.decorator_list:
            name = dotted(decorator.func if isinstance(decorator, ast.Call) else decorator)
            if name == "graph.let" and expected == "graph.closure":
                is_let = True
            elif name != expected:
                raise self.error(decorator, f"expected @{expected}")
            elif isinstance(decorator, ast.Call):
                for item in decorator.keywords:
                    if item.arg not in ("name", "names", "type_parameters", "notes"):
                        raise self.error(decorator, f"unknown option {item.arg} of @{expected}")
                    options[item.arg] = read_literal(item.value, self.source)
        return options, is_let

    def _function(
        self,
        statement: ast.FunctionDef,
        scope: Scope,
        *,
        is_global: bool = False,
        options: dict[str, object] | None = None,
    ) -> Function:
        if options is None:
            options, _ = self._options(statement, "graph.function" if is_global else "graph.closure")
        names = options.get("names", {})
        notes = options.get("notes", {})
        parameters = options.get("type_parameters", ())
        if not isinstance(names, dict) or not isinstance(notes, dict) or not isinstance(parameters, tuple):
            raise self.error(statement, "names and notes must be dictionaries, type_parameters a tuple")
        variables = tuple(TypeVariable(str(name)) for name in parameters)
        arguments = statement.args
        if arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.defaults or arguments.posonlyargs:
            raise self.error(statement, "parameters are plain names with types")
        with self.reader.type_variables({variable.name: variable for variable in variables}):
            params = tuple(
                Var(str(names.get(arg.arg, arg.arg)), self.reader.read(arg.annotation) if arg.annotation else None)
                for arg in arguments.args
            )
            inner: Scope = scope.new_child({a.arg: p for a, p in zip(arguments.args, params, strict=True)})
            result = self.reader.read(statement.returns) if statement.returns is not None else None
            body = self._block(statement.body, inner, None)
        name = str(options.get("name", statement.name if is_global else ""))
        function = Function(name, params, body, result, variables, {str(key): item for key, item in notes.items()})
        self._named(function, statement)
        return function

    def _block(self, statements: list[ast.stmt], scope: Scope, target: str | None) -> GraphExpr:
        """The value of a block: what its last statement returns, or assigns to the target."""
        lets: list[tuple[Var, GraphExpr]] = []
        for statement in statements[:-1]:
            if isinstance(statement, ast.Return):
                raise self.error(statement, "return must be the last statement")
            self._statement(statement, scope, lets)
        last = statements[-1]
        if target is None:
            if not isinstance(last, ast.Return) or last.value is None:
                raise self.error(last, "a function must end with `return value`")
            result = self._expression(last.value, scope)
            if isinstance(result, Tuple):
                self._named(result, last)
        else:
            if self._target_of(last) != target or not isinstance(last, ast.Assign):
                raise self.error(last, f"this block must end with `{target} = ...`")
            result = self._expression(last.value, scope)
            if isinstance(last.value, (ast.Call, ast.Tuple)):
                self._named(result, last)
        for var, value in reversed(lets):
            result = Let(var, value, result)
        return result

    @staticmethod
    def _target_of(statement: ast.stmt) -> str | None:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = statement.targets[0]
            if isinstance(target, ast.Name):
                return target.id
        return None

    def _statement(self, statement: ast.stmt, scope: Scope, lets: list[tuple[Var, GraphExpr]]) -> None:
        if isinstance(statement, ast.Assign):
            name = self._target_of(statement)
            if name is None:
                raise self.error(statement, "expected `name = expression`")
            value = self._expression(statement.value, scope)
            if isinstance(statement.value, (ast.Call, ast.Tuple)) and not isinstance(value, Constant):
                self._named(value, statement)
            scope[name] = value
        elif isinstance(statement, ast.AnnAssign):
            self._let(statement, scope, lets)
        elif isinstance(statement, ast.FunctionDef):
            self._inner_function(statement, scope, lets)
        elif isinstance(statement, ast.If):
            self._if(statement, scope)
        elif isinstance(statement, ast.Match):
            self._match(statement, scope)
        elif isinstance(statement, ast.With):
            self._with(statement, scope)
        else:
            raise self.error(statement, "this statement is not part of the graph dialect")

    def _let(self, statement: ast.AnnAssign, scope: Scope, lets: list[tuple[Var, GraphExpr]]) -> None:
        if not isinstance(statement.target, ast.Name) or statement.value is None:
            raise self.error(statement, "expected `name: let = expression`")
        annotation: Type | None = None
        mark = statement.annotation
        if isinstance(mark, ast.Subscript) and dotted(mark.value) == "let":
            annotation = self.reader.read(mark.slice)
        elif dotted(mark) != "let":
            raise self.error(mark, "expected `let` or `let[type]`")
        value = self._expression(statement.value, scope)
        if isinstance(statement.value, (ast.Call, ast.Tuple)) and not isinstance(value, Constant):
            self._named(value, statement)
        var = Var(statement.target.id, annotation)
        lets.append((var, value))
        scope[statement.target.id] = var

    def _inner_function(self, statement: ast.FunctionDef, scope: Scope, lets: list[tuple[Var, GraphExpr]]) -> None:
        options, is_let = self._options(statement, "graph.closure")
        if is_let:
            var = Var(statement.name)
            scope[statement.name] = var
            lets.append((var, self._function(statement, scope, options=options)))
        else:
            scope[statement.name] = self._function(statement, scope, options=options)

    def _branch(self, statements: list[ast.stmt], scope: Scope, target: str | None) -> tuple[str, GraphExpr]:
        """A block in a scope of its own; its target is the name that its last statement assigns."""
        found = self._target_of(statements[-1])
        if found is None:
            raise self.error(statements[-1], "a branch must end with `name = value`")
        if target is not None and found != target:
            raise self.error(statements[-1], f"every branch must end by assigning {target}, this one assigns {found}")
        return found, self._block(statements, scope.new_child(), found)

    def _if(self, statement: ast.If, scope: Scope) -> None:
        condition = self._expression(statement.test, scope)
        if not statement.orelse:
            raise self.error(statement, "an `if` needs an `else`: both must give a value")
        target, then_value = self._branch(statement.body, scope, None)
        _, else_value = self._branch(statement.orelse, scope, target)
        scope[target] = self._named(If(condition, then_value, else_value), statement)

    def _match(self, statement: ast.Match, scope: Scope) -> None:
        value = self._expression(statement.subject, scope)
        clauses: list[Clause] = []
        target: str | None = None
        for case in statement.cases:
            if case.guard is not None:
                raise self.error(case.guard, "a case has no condition in the graph dialect")
            inner = scope.new_child()
            pattern = self._pattern(case.pattern, inner)
            target, body = self._branch(case.body, inner, target)
            clauses.append(Clause(pattern, body))
        assert target is not None
        scope[target] = self._named(Match(value, tuple(clauses)), statement)

    def _with(self, statement: ast.With, scope: Scope) -> None:
        item = statement.items[0]
        is_block = isinstance(item.context_expr, ast.Call) and dotted(item.context_expr.func) == "block"
        if not is_block or not isinstance(item.optional_vars, ast.Name) or len(statement.items) != 1:
            raise self.error(statement, "expected `with block() as name:`")
        name = item.optional_vars.id
        scope[name] = self._named(self._block(statement.body, scope.new_child(), name), statement)

    def _pattern(self, pattern: ast.pattern, scope: Scope) -> Pattern:
        if isinstance(pattern, ast.MatchAs) and pattern.pattern is None:
            if pattern.name is None:
                return WildcardPattern()
            var = Var(pattern.name)
            scope[pattern.name] = var
            return VarPattern(var)
        if isinstance(pattern, ast.MatchSequence):
            return TuplePattern(tuple(self._pattern(item, scope) for item in pattern.patterns))
        if isinstance(pattern, ast.MatchClass) and not pattern.kwd_attrs:
            constructor = self._constructor(pattern.cls)
            if constructor is None:
                raise self.error(pattern.cls, "expected a constructor, e.g. List.Cons(head, tail)")
            return ConstructorPattern(constructor, tuple(self._pattern(item, scope) for item in pattern.patterns))
        raise self.error(pattern, "this pattern is not part of the graph dialect")

    def _constructor(self, place: ast.expr) -> Constructor | None:
        if isinstance(place, ast.Attribute) and isinstance(place.value, ast.Name) and place.value.id in self.types:
            definition = self.types[place.value.id]
            for constructor in definition.constructors:
                if constructor.name == place.attr:
                    return constructor
            raise self.error(place, f"type {definition.name} has no constructor {place.attr}")
        return None

    def _expression(self, place: ast.expr, scope: Scope) -> GraphExpr:
        if isinstance(place, ast.Name):
            found = scope.get(place.id)
            if found is None:
                raise self.error(place, f"the name {place.id} is not defined")
            return found
        if isinstance(place, ast.Tuple):
            return Tuple(tuple(self._expression(item, scope) for item in place.elts))
        if isinstance(place, ast.Subscript):
            index = read_literal(place.slice, self.source)
            if not isinstance(index, int) or isinstance(index, bool):
                raise self.error(place, "a tuple is indexed by a number")
            if isinstance(place.value, ast.Name) and place.value.id == "const":
                return self._table_entry(place, index)
            return TupleGet(self._expression(place.value, scope), index)
        if isinstance(place, ast.Call):
            return self._call(place, scope)
        if isinstance(place, ast.Attribute):
            reference = self._reference(place)
            if reference is not None:
                return reference
        raise self.error(place, "this expression is not part of the graph dialect")

    def _table_entry(self, place: ast.Subscript, index: int) -> Constant:
        if not 0 <= index < len(self.constants):
            raise self.error(
                place,
                f"there is no constant {index}: the table has {len(self.constants)}",
                "pass constants=, or the text with its table as to_text returned it",
            )
        return self.constants[index]

    def _reference(self, place: ast.expr) -> GraphExpr | None:
        """`module.f` or `List.Cons`."""
        constructor = self._constructor(place)
        if constructor is not None:
            return ConstructorRef(constructor)
        if isinstance(place, ast.Attribute) and isinstance(place.value, ast.Name) and place.value.id == "module":
            return GlobalVar(place.attr)
        return None

    def _call(self, place: ast.Call, scope: Scope) -> GraphExpr:
        name = dotted(place.func)
        if name == "constant":
            return self._inline_constant(place)
        if isinstance(place.func, ast.Name) and place.func.id in scope:
            return self._apply(scope[place.func.id], place, scope)
        reference = self._reference(place.func)
        if reference is not None:
            return self._apply(reference, place, scope)
        if name is None:
            return self._apply(self._expression(place.func, scope), place, scope)
        arguments = [self._expression(arg, scope) for arg in place.args]
        attributes: dict[str, object] = {}
        for item in place.keywords:
            if item.arg is None:
                raise self.error(place, "attributes are written out")
            attributes[item.arg] = self.reader.attribute(item.value)
        try:
            return call(name, *arguments, **attributes)  # type: ignore[arg-type]
        except UserError as error:
            raise self.error(place, error.message, error.hint) from None
        except TypeError:
            raise self.error(place, f"operator {name}: an attribute without a default is missing") from None

    def _apply(self, callee: GraphExpr, place: ast.Call, scope: Scope) -> Call:
        if place.keywords:
            raise self.error(place, "only operators have attributes")
        return Call(callee, tuple(self._expression(arg, scope) for arg in place.args))

    def _inline_constant(self, place: ast.Call) -> Constant:
        if len(place.args) != 2:
            raise self.error(place, 'expected constant(value, "dtype")')
        value, dtype = (read_literal(arg, self.source) for arg in place.args)
        try:
            return constant(value, str(dtype))  # type: ignore[arg-type]
        except (UserError, ValueError, TypeError, OverflowError) as error:
            raise self.error(place, f"not a constant: {error}") from None
