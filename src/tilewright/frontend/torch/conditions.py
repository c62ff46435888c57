"""What torch took for granted about sizes that vary when it exported a program: checked when the model runs.

A module that asks `x.shape[1] > 10` while it is exported becomes the program of one answer; torch keeps the question,
as Python text in terms of the inputs (`L['x'].size()[1] > 10`), and the range of each size.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from tilewright.frontend.core.resampling import scaled_size
from tilewright.frontend.torch.sizes import TorchSizes
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.dimensions import Size, Sizes
from tilewright.support.errors import CompilerBug, UnsupportedError

_SPECIAL = 2
"""Sizes of 0 and 1 are examples that torch does not generalise from: a least size of 2 it does not insist on."""
_OPERATORS = {
    ast.Add: dimensions.add,
    ast.Sub: dimensions.subtract,
    ast.Mult: dimensions.multiply,
    ast.FloorDiv: dimensions.floor_divide,
    ast.Mod: dimensions.modulo,
}
_RELATIONS = {ast.Eq: "==", ast.NotEq: "!=", ast.GtE: ">=", ast.LtE: "<=", ast.Gt: ">", ast.Lt: "<"}
_CALLS = {"max": dimensions.maximum, "min": dimensions.minimum, "Max": dimensions.maximum, "Min": dimensions.minimum}

Pair = tuple[Size, Size]
"""Two sizes that must be equal."""


def conditions(program: Any, called: Any, sizes: TorchSizes, shapes: Mapping[str, Sizes]) -> list[Pair]:
    """What must hold for the sizes of a call; `shapes` are those of the inputs by name.

    `called` is the program as it was exported, whose inputs have the structures that conditions speak of.
    """
    found: list[Pair] = [(dimensions.modulo(whole, factor), 0) for factor, whole in sizes.multiples.values()]
    for size, bounds in program.range_constraints.items():
        found += _within(sizes, size, bounds)
    texts = getattr(called, "_guards_code", None) or []
    if texts:
        inputs = _arguments(called)
        found += [_Reader(inputs, shapes, text).pair() for text in texts]
    return [pair for pair in dict.fromkeys(found) if not dimensions.same(*pair)]


def _within(sizes: TorchSizes, expression: Any, bounds: Any) -> list[Pair]:
    """A size within its range, as far as torch itself insists on it; nothing about sizes that are no input's."""
    if not sizes.knows(expression):
        return []
    size = sizes.expression(expression)
    pairs: list[Pair] = []
    if bounds.lower > _SPECIAL:
        pairs.append((dimensions.maximum(size, int(bounds.lower)), size))
    if bounds.upper.is_Integer:
        pairs.append((dimensions.minimum(size, int(bounds.upper)), size))
    return pairs


def _arguments(program: Any) -> dict[str, str]:
    """The inputs as conditions speak of them (`L['pair'][0]`) and their names."""
    from torch.utils import _pytree as pytree

    signature = program.module_call_graph[0].signature
    names = (signature.forward_arg_names if signature is not None else None) or ()
    args, kwargs = program.example_inputs or _unflattened(program)
    leaves: list[tuple[Any, Any]] = pytree.tree_flatten_with_path((tuple(args), kwargs))[0]
    found: dict[str, str] = {}
    for (path, _), name in zip(leaves, program.graph_signature.user_inputs, strict=True):
        first, *rest = path
        if first.idx == 1:
            found[_spelled(rest)] = name
            continue
        place, *inner = rest
        if place.idx >= len(names):
            continue
        argument = names[place.idx]
        found[_spelled([pytree.MappingKey(argument), *inner])] = name
        # What `forward(self, *inputs)` takes has the names inputs_0, inputs_1, ...
        whole, _, number = argument.rpartition("_")
        if number.isdecimal() and whole not in names:
            found[_spelled([pytree.MappingKey(whole), pytree.SequenceKey(int(number)), *inner])] = name
    return found


def _unflattened(program: Any) -> tuple[Any, Any]:
    """Structures like those of the inputs, of a program without examples."""
    from torch.utils import _pytree as pytree

    args, kwargs = pytree.tree_unflatten(list(program.graph_signature.user_inputs), program.call_spec.in_spec)
    return args, kwargs


def _spelled(path: Sequence[Any]) -> str:
    """A part of the inputs as Python text."""
    from torch.utils import _pytree as pytree

    return ast.unparse(ast.parse(f"L{pytree.keystr(tuple(path))}", mode="eval"))


class _Reader:
    """Reads one condition: `L['x'].size()[1] > 10`."""

    def __init__(self, arguments: Mapping[str, str], shapes: Mapping[str, Sizes], text: str) -> None:
        self.arguments = arguments
        self.shapes = shapes
        self.text = text

    def pair(self) -> Pair:
        """Sizes that are equal where the condition holds, and only there."""
        condition = ast.parse(self.text, mode="eval").body
        if isinstance(condition, ast.Compare) and len(condition.ops) == 1:
            relation = self._relation(condition.ops[0])
            return related(self.size(condition.left), relation, self.size(condition.comparators[0]))
        return self.truth(condition), 1

    def truth(self, node: ast.expr) -> Size:
        """1 where a condition holds, else 0."""
        match node:
            case ast.BoolOp():
                combine = dimensions.minimum if isinstance(node.op, ast.And) else dimensions.maximum
                return reduce(combine, [self.truth(part) for part in node.values])
            case ast.UnaryOp(op=ast.Not()):
                return dimensions.subtract(1, self.truth(node.operand))
            case ast.Call(func=ast.Name(id="Not")):
                return dimensions.subtract(1, self.truth(node.args[0]))
            case ast.Compare():
                terms = [self.size(part) for part in (node.left, *node.comparators)]
                relations = [self._relation(operator) for operator in node.ops]
                parts = [_holds(*item) for item in zip(terms, relations, terms[1:], strict=False)]
                return reduce(dimensions.minimum, parts)
        raise self._unread(node)

    def _relation(self, operator: ast.cmpop) -> str:
        found = _RELATIONS.get(type(operator))
        if found is None:
            raise self._unread(ast.parse(self.text, mode="eval").body)
        return found

    def size(self, node: ast.expr) -> Size:
        """A number, or an expression of the sizes of inputs."""
        match node:
            case ast.Constant(value=int() as number):
                return int(number)
            case ast.UnaryOp(op=ast.USub()):
                return dimensions.subtract(0, self.size(node.operand))
            case ast.BinOp() if (combine := _OPERATORS.get(type(node.op))) is not None:
                return combine(self.size(node.left), self.size(node.right))
            case ast.Call(func=ast.Name(id=name)) if name in _CALLS:
                return reduce(_CALLS[name], [self.size(item) for item in node.args])
            case ast.Call(func=ast.Attribute(value=ast.Name(id="math"), attr="trunc" | "floor"), args=[scaled]):
                return self._scaled(scaled)
            case ast.Subscript(value=ast.Call(func=ast.Attribute(attr="size", value=tensor), args=[]), slice=axis):
                called, number = self.arguments.get(ast.unparse(tensor)), int(ast.literal_eval(axis))
                shape = None if called is None else self.shapes.get(called)
                if shape is not None:
                    return shape[number]
        raise self._unread(node)

    def _scaled(self, node: ast.expr) -> Size:
        """`0.5*torch.sym_float(L['x'].size()[2])`, rounded down."""
        match node:
            case ast.BinOp(
                left=ast.Constant(value=float() | int() as factor),
                op=ast.Mult(),
                right=ast.Call(func=ast.Attribute(attr="sym_float"), args=[size]),
            ):
                found = scaled_size(self.size(size), float(factor), "float64")
                if found is not None:
                    return found
        raise self._unread(node)

    def _unread(self, node: ast.expr) -> UnsupportedError:
        return UnsupportedError(
            f"the program is for sizes of which '{self.text}': '{ast.unparse(node)}' is not understood",
            hint="export the model with fixed sizes, or without asking for sizes in it",
        )


def truth_pair(sizes: TorchSizes, expression: Any) -> Pair:
    """Sizes that are equal where a symbolic condition of torch's holds, and only there."""
    if expression.is_Relational:
        a, b = (sizes.expression(part) for part in expression.args)
        return related(a, expression.rel_op, b)
    return _truth(sizes, expression), 1


def _truth(sizes: TorchSizes, expression: Any) -> Size:
    """1 where a symbolic condition of torch's holds, else 0."""
    match type(expression).__name__:
        case "And":
            return reduce(dimensions.minimum, [_truth(sizes, part) for part in expression.args])
        case "Or":
            return reduce(dimensions.maximum, [_truth(sizes, part) for part in expression.args])
        case "Not":
            return dimensions.subtract(1, _truth(sizes, expression.args[0]))
        case _ if expression.is_Relational:
            a, b = (sizes.expression(part) for part in expression.args)
            return _holds(a, expression.rel_op, b)
    raise UnsupportedError(f"the program asserts '{expression}', which is not understood")


def related(a: Size, relation: str, b: Size) -> Pair:
    """Sizes that are equal where a comparison holds, and only there."""
    match relation:
        case "==":
            return a, b
        case ">=":
            return dimensions.maximum(a, b), a
        case "<=":
            return dimensions.minimum(a, b), a
        case ">":
            return dimensions.maximum(a, dimensions.add(b, 1)), a
        case "<":
            return dimensions.minimum(a, dimensions.subtract(b, 1)), a
    return _holds(a, relation, b), 1


def _holds(a: Size, relation: str, b: Size) -> Size:
    """1 where a comparison holds, else 0."""
    less, more = dimensions.subtract(b, a), dimensions.subtract(a, b)
    match relation:
        case ">=":
            return _bit(dimensions.add(more, 1))
        case "<=":
            return _bit(dimensions.add(less, 1))
        case ">":
            return _bit(more)
        case "<":
            return _bit(less)
        case "!=":
            return _bit(dimensions.maximum(less, more))
        case "==":
            return dimensions.subtract(1, _bit(dimensions.maximum(less, more)))
    raise CompilerBug(f"sizes are not compared by {relation}")


def _bit(value: Size) -> Size:
    """1 for what is positive, 0 for the rest."""
    return dimensions.minimum(dimensions.maximum(value, 0), 1)
