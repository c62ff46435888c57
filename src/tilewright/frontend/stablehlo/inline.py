"""Calls of functions put in the place where they are called, so that a region shows all that it does."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.frontend.stablehlo.program import Block, FunctionDefinition, Operation, Value
from tilewright.support.errors import UnsupportedError, UserError

_MOST_CALLS = 200
_CALLS = frozenset({"func.call", "stablehlo.call"})


def has_calls(block: Block) -> bool:
    """Whether a block or its regions call functions."""
    return any(
        operation.name in _CALLS or any(has_calls(inner) for inner in operation.regions)
        for operation in block.operations
    )


def inlined(block: Block, functions: Mapping[str, FunctionDefinition]) -> Block:
    """A block without calls (itself if it has none); its arguments stay the same."""
    return _copy(block, functions, {}, 0, keep_arguments=True) if has_calls(block) else block


def _copy(
    block: Block,
    functions: Mapping[str, FunctionDefinition],
    names: dict[Value, Value],
    depth: int,
    *,
    keep_arguments: bool,
) -> Block:
    """A block with values of its own; `names` say what values of the original are in the copy."""
    if depth > _MOST_CALLS:
        raise UnsupportedError(f"functions that call each other {_MOST_CALLS} deep", hint="loops are stablehlo.while")
    arguments = block.arguments
    if not keep_arguments:
        arguments = [_fresh(value) for value in block.arguments]
        names.update(zip(block.arguments, arguments, strict=True))
    operations: list[Operation] = []
    for operation in block.operations:
        operands = [names.get(value, value) for value in operation.operands]
        if operation.name in _CALLS:
            callee = functions.get(str(operation.attributes.get("callee")))
            if callee is None or len(callee.body.arguments) != len(operands):
                raise UserError(
                    f"there is no function @{operation.attributes.get('callee')} of {len(operands)} arguments"
                )
            inner = dict(zip(callee.body.arguments, operands, strict=True))
            body = _copy(callee.body, functions, inner, depth + 1, keep_arguments=True)
            operations.extend(body.operations[:-1])
            names.update(zip(operation.results, body.results, strict=True))
            continue
        results = [_fresh(value) for value in operation.results]
        regions = [_copy(inner, functions, names, depth, keep_arguments=False) for inner in operation.regions]
        names.update(zip(operation.results, results, strict=True))
        operations.append(
            Operation(operation.name, operands, operation.attributes, results, regions, operation.location)
        )
    return Block(arguments, operations)


def _fresh(value: Value) -> Value:
    return Value(value.spec, value.name, value.location)
