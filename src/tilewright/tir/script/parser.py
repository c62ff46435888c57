"""The script parser: Python text (or a live function) to loop-level functions. The text is read, never run.

func = parse_script(text)

@tw.script
def scale(A: Buffer[(n,), "float32"], B: Buffer[(n,), "float32"]):
    for i in parallel(n):
        B[i] = A[i] * 2.0
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import Var
from tilewright.ir.function import BaseFunction, ExternFunc, IRModule
from tilewright.ir.visit import pre_order
from tilewright.support.errors import UserError
from tilewright.tir.buffer import Buffer
from tilewright.tir.function import PrimFunc
from tilewright.tir.script.parse_calls import CallParser
from tilewright.tir.script.parse_stmt import BlockFrame, StatementParser
from tilewright.tir.script.source import Source
from tilewright.tir.stmt import Block, Stmt

BaseScript = PrimFunc | IRModule
"""What a script can define."""


def parse_script(text: str, source: str = "<script>", constants: Mapping[str, object] | None = None) -> BaseScript:
    """The function or module that a script text defines.

    One function gives a `PrimFunc`; several, or a class under `@script.module`, give an `IRModule`. `constants` are
    names (numbers, types, shapes) that the text may use. Errors show the place in the text.
    """
    origin = Source(text, source)
    functions: list[BaseFunction] = []
    names = dict(constants or {})
    for node in origin.parse().body:
        if isinstance(node, ast.ClassDef):
            return _parse_module(origin, node, names)
        if isinstance(node, ast.FunctionDef):
            # Functions may call those above them.
            functions.append(FunctionParser(origin, names).function(node))
            names[node.name] = functions[-1]
        elif not isinstance(node, (ast.Import, ast.ImportFrom)) and not _is_docstring(node):
            raise origin.error(node, "a script holds functions, or one class under @script.module")
    if not functions:
        raise UserError("the script defines no function", where=source)
    if len(functions) == 1:
        assert isinstance(functions[0], PrimFunc)
        return functions[0]
    return IRModule(functions)


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _parse_module(source: Source, node: ast.ClassDef, constants: Mapping[str, object]) -> IRModule:
    functions: dict[str, BaseFunction] = {}
    attributes: dict[str, object] = {}
    names = dict(constants)
    for item in node.body:
        if isinstance(item, ast.FunctionDef):
            parser = FunctionParser(source, names)
            function = names[item.name] = parser.function(item)
            functions[parser.key or function.name] = function
        elif isinstance(item, ast.Assign):
            target = item.targets[0]
            name = target.id if isinstance(target, ast.Name) else ""
            reader = CallParser(source, constants)
            if isinstance(item.value, ast.Call) and reader.callee(item.value) == "extern_function":
                reader.arguments(item.value, 1, 2)
                words = [reader.text(argument) for argument in item.value.args]
                functions[words[-1]] = ExternFunc(words[0])
            elif name == "attributes":
                value = reader.value(item.value)
                if not isinstance(value, dict):
                    raise source.error(item, "the attributes of a module are a dictionary")
                attributes = value
            else:
                raise source.error(item, "a module holds functions, extern_function(...) and attributes = {...}")
        elif not isinstance(item, ast.Pass) and not _is_docstring(item):
            raise source.error(item, "a module holds functions, extern_function(...) and attributes = {...}")
    return IRModule(functions, attributes=attributes)


class FunctionParser(StatementParser):
    """Parses one function."""

    def __init__(self, source: Source, constants: Mapping[str, object]) -> None:
        super().__init__(source, constants)
        self.key: str | None = None

    def function(self, node: ast.FunctionDef) -> PrimFunc:
        """The function that a definition defines."""
        name, rooted = node.name, True
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call):
                self.arguments(decorator, 0, 0, ("name", "key", "root_block"))
                for keyword in decorator.keywords:
                    value = self.value(keyword.value)
                    if keyword.arg == "name":
                        name = str(value)
                    elif keyword.arg == "key":
                        self.key = str(value)
                    else:
                        rooted = bool(value)
        self._declare_symbols(node)
        params = self._params(node)
        root = BlockFrame(implicit=True)
        self.blocks.append(root)
        body = self.suite(node.body)
        self.blocks.pop()
        params, body = self.finish(node, params, body)
        func = PrimFunc(name, params, self._rooted(node, root, body) if rooted else body, self.attributes)
        func.span = self.source.span(node)
        return func

    def finish(
        self, node: ast.FunctionDef, params: tuple[Buffer | Var, ...], body: Stmt
    ) -> tuple[tuple[Buffer | Var, ...], Stmt]:
        """Parameters and body when everything is read; dialects built on this one complete them here."""
        return params, body

    def _rooted(self, node: ast.FunctionDef, root: BlockFrame, body: Stmt) -> Stmt:
        """The body inside a root block, unless it has one or is a program without blocks."""
        explicit = isinstance(body, Block) and body.name == "root" and not body.iters
        if explicit and not root.allocations:
            return body
        if not root.allocations and not any(isinstance(item, Block) for item in pre_order(body)):
            return body
        block = Block("root", (), (), (), body, allocations=tuple(root.allocations))
        block.span = self.source.span(node)
        return block

    def _declare_symbols(self, node: ast.FunctionDef) -> None:
        """`symbolic(n="int32")` in the body gives types to names that the signature uses."""
        for item in node.body:
            if isinstance(item, ast.Expr) and isinstance(item.value, ast.Call):
                call = item.value
                if isinstance(call.func, ast.Name) and call.func.id == "symbolic":
                    for keyword in call.keywords:
                        if keyword.arg is not None:
                            self.scope.bind(keyword.arg, Var(keyword.arg, self.dtype(keyword.value)))

    def _params(self, node: ast.FunctionDef) -> tuple[Buffer | Var, ...]:
        arguments = node.args
        if arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.posonlyargs or arguments.defaults:
            raise self.source.error(node, "the parameters of a script have no defaults, * or **")
        params: list[Buffer | Var] = []
        # Scalars first, because shapes may use them.
        scalars: dict[str, Var] = {}
        for argument in arguments.args:
            argument.annotation = _unquoted(argument.annotation)
            if argument.annotation is not None and not _is_buffer(argument.annotation):
                dtype = self.dtype(argument.annotation)
                scalars[argument.arg] = Var(argument.arg, dtype)
                self.scope.bind(argument.arg, scalars[argument.arg])
        for argument in arguments.args:
            if argument.arg in scalars:
                params.append(scalars[argument.arg])
                continue
            if argument.annotation is None:
                params.append(self.untyped_param(argument))
                continue
            buffer = self._buffer_annotation(argument.annotation, argument.arg)
            self.scope.bind(argument.arg, buffer)
            params.append(buffer)
        return tuple(params)

    def untyped_param(self, argument: ast.arg) -> Buffer | Var:
        """A parameter without annotation."""
        raise self.source.error(
            argument,
            f"parameter {argument.arg} has no type",
            'write e.g. `A: Buffer[(16, n), "float32"]` or `n: int64`',
        )

    def _buffer_annotation(self, node: ast.expr, name: str) -> Buffer:
        if isinstance(node, ast.Subscript):
            items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            # `Buffer[n]` and `Buffer[(n,)]` leave the type out; a tuple of numbers alone is the shape.
            if len(items) > 3 or not items or not isinstance(items[0], (ast.Tuple, ast.Name, ast.Constant, ast.List)):
                raise self.source.error(node, 'a buffer type is written Buffer[(16, n), "float32"]')
            call = ast.Call(func=node.value, args=items[:2], keywords=[])
            if len(items) == 3:
                call.keywords.append(ast.keyword(arg="scope", value=items[2]))
            ast.copy_location(call, node)
            return self._declared(call, name)
        assert isinstance(node, ast.Call)
        return self._declared(node, name)

    def _declared(self, call: ast.Call, name: str) -> Buffer:
        parts = [*call.args[:1], self.keyword(call, "strides"), self.keyword(call, "offset")]
        for part in parts:
            if part is not None:
                self._implicit_symbols(part)
        return self.new_buffer(call, name)

    def _implicit_symbols(self, node: ast.expr) -> None:
        """Unknown names in the shape of a parameter are symbolic dimensions."""
        for item in ast.walk(node):
            if isinstance(item, ast.Name) and not self.scope.find(item.id)[0] and not _is_called(node, item):
                self.scope.bind(item.id, Var(item.id, INDEX))


def _unquoted(node: ast.expr | None) -> ast.expr | None:
    """An annotation that was put in quotes, as `"Buffer[...]"`, without them."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and "Buffer" in node.value:
        inner = ast.parse(node.value, mode="eval").body
        for part in ast.walk(inner):
            ast.copy_location(part, node)
        return inner
    return node


def _is_buffer(node: ast.expr) -> bool:
    head = node.value if isinstance(node, ast.Subscript) else node.func if isinstance(node, ast.Call) else None
    return (isinstance(head, ast.Name) and head.id == "Buffer") or (
        isinstance(head, ast.Attribute) and head.attr == "Buffer"
    )


def _is_called(root: ast.expr, name: ast.Name) -> bool:
    """Whether a name is the function of a call (a conversion such as `int32(n)`), not a dimension."""
    return any(isinstance(item, ast.Call) and item.func is name for item in ast.walk(root))
