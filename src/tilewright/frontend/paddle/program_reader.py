"""Programs of PaddlePaddle 2 (`.pdmodel`, `__model__`): protobuf messages of blocks, variables and operators."""

from __future__ import annotations

import os.path
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.frontend.core.scopes import Lazy
from tilewright.frontend.paddle.model import Block, PaddleInput, PaddleModel, PaddleOperator
from tilewright.frontend.paddle.schema import FEED, FETCH, FIELDS, LOD_TENSOR, RAW, READER, SCHEMA, TYPES
from tilewright.ir.dtype import DataType
from tilewright.support.errors import UnsupportedError, UserError

_NOT_MEANT = frozenset(["op_role", "op_role_var", "op_namescope", "op_callstack", "op_device", "with_quant_attr"])
"""Attributes that say where an operator comes from, not what it does."""
_BLOCK, _BLOCKS = FIELDS.index("block_idx"), FIELDS.index("blocks_idx")
_SCALAR_FIELDS = {1: "b", 2: "i", 3: "r"}


def read_program(content: bytes, source: str, parameters: Callable[[Sequence[str]], dict[str, Lazy]]) -> PaddleModel:
    """The model that the bytes of a program are."""
    program = SCHEMA.read("Program", content, source)
    if not program.blocks:
        raise UserError("the program has no blocks", where=source, hint="is it a PaddlePaddle model?")
    variables = {item.name: item for block in program.blocks for item in block.vars}
    kept = [name for name, item in variables.items() if _is_parameter(item)]
    blocks = [Block() for _ in program.blocks]
    for place, message in enumerate(program.blocks):
        blocks[place].operators = [_operator(item, blocks, place, source) for item in message.ops]
    inputs: dict[int, PaddleInput] = {}
    outputs: dict[int, tuple[str, str]] = {}
    operators: list[PaddleOperator] = []
    for item in blocks[0].operators:
        if item.kind == "feed":
            inputs[_column(item, source)] = _input(_first(item.outputs, "Out"), variables, source)
        elif item.kind == "fetch":
            name = _first(item.inputs, "X")
            outputs[_column(item, source)] = (name, name)
        else:
            operators.append(item)
    blocks[0].operators = operators
    return PaddleModel(
        source,
        blocks[0],
        tuple(inputs[column] for column in sorted(inputs)),
        tuple(outputs[column] for column in sorted(outputs)),
        parameters(kept),
        {name: _dims(item) for name, item in variables.items()},
    )


def _column(operator: PaddleOperator, source: str) -> int:
    """The place of a model's input or output among the others."""
    column = operator.attributes.get("col", 0)
    if not isinstance(column, int):
        raise UserError(f"the attribute 'col' of {operator.kind} is {column!r}, not a number", where=source)
    return column


def _is_parameter(variable: Any) -> bool:
    return bool(variable.persistable) and variable.type.type not in (FEED, FETCH, READER, RAW)


def _dims(variable: Any) -> tuple[int | None, ...]:
    return tuple(None if size < 0 else int(size) for size in variable.type.lod_tensor.tensor.dims)


def _first(groups: Any, parameter: str) -> str:
    names = groups.get(parameter, ())
    if not names:
        raise UserError(f"an operator of the program lacks its parameter {parameter}")
    return str(names[0])


def _input(name: str, variables: dict[str, Any], source: str) -> PaddleInput:
    variable = variables.get(name)
    if variable is None or variable.type.type != LOD_TENSOR:
        raise UnsupportedError(f"the input '{name}' is no tensor", where=source)
    number = variable.type.lod_tensor.tensor.data_type
    if number not in TYPES:
        raise UnsupportedError(f"the input '{name}' has the data type number {number}", where=source)
    return PaddleInput(name, name, DataType.of(TYPES[number]), _dims(variable))


def _operator(message: Any, blocks: list[Block], place: int, source: str) -> PaddleOperator:
    inputs = {item.parameter: tuple(item.arguments) for item in message.inputs}
    outputs = {item.parameter: tuple(item.arguments) for item in message.outputs}
    attributes: dict[str, Any] = {}
    inner: list[Block] = []
    for item in message.attrs:
        if item.name in _NOT_MEANT:
            continue
        if item.type in (_BLOCK, _BLOCKS):
            numbers = [item.block_idx] if item.type == _BLOCK else list(item.blocks_idx)
            if not all(place < number < len(blocks) for number in numbers):
                raise UserError(f"{message.type} names a block that does not follow its own", where=source)
            inner += [blocks[number] for number in numbers]
            continue
        attributes[item.name] = _attribute(item, message.type, source)
    names = [name for group in outputs.values() for name in group if name != "@EMPTY@"]
    name = names[0] if names else message.type
    return PaddleOperator(message.type, os.path.basename(name) or name, inputs, outputs, attributes, tuple(inner))


def _attribute(item: Any, operator: str, source: str) -> Any:
    if not 0 <= item.type < len(FIELDS):
        raise UserError(f"the attribute '{item.name}' of {operator} has the unknown type {item.type}", where=source)
    value = getattr(item, FIELDS[item.type])
    match FIELDS[item.type]:
        case "s":
            return value.decode(errors="replace")
        case "strings":
            return tuple(text.decode(errors="replace") for text in value)
        case "scalar":
            return _scalar(value)
        case "scalars":
            return tuple(map(_scalar, value))
        case "i" | "f" | "b" | "l" | "float64" | "var_name":
            return value
    return tuple(value)


def _scalar(value: Any) -> Any:
    return getattr(value, _SCALAR_FIELDS.get(value.type, "r"))
