"""Programs of PaddlePaddle 3 (`.json`): operators with regions, values by numbers, attributes with their types."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.frontend.core.scopes import Lazy
from tilewright.frontend.paddle.model import Block, PaddleInput, PaddleModel, PaddleOperator
from tilewright.ir.dtype import DataType
from tilewright.support.errors import UnsupportedError, UserError

_MAGIC = b'"magic"'
_TYPES = {
    "t_bool": "bool",
    "t_i8": "int8",
    "t_ui8": "uint8",
    "t_i16": "int16",
    "t_i32": "int32",
    "t_i64": "int64",
    "t_f16": "float16",
    "t_bf16": "bfloat16",
    "t_f32": "float32",
    "t_f64": "float64",
}
_RENAMED = {
    "all": "reduce_all",
    "any": "reduce_any",
    "max": "reduce_max",
    "mean": "reduce_mean",
    "mean_all": "mean",
    "min": "reduce_min",
    "prod": "reduce_prod",
    "sum": "reduce_sum",
    "while": "while_by_values",
}
"""Operators whose names mean something else in programs of PaddlePaddle 2."""
_DEEPEST = 32


def is_pir(content: bytes) -> bool:
    """Whether a program is a JSON text of PaddlePaddle 3."""
    head = content[:256].lstrip()
    return head.startswith(b"{") and _MAGIC in head and b'"pir"' in head


def read_pir(content: bytes, source: str, parameters: Callable[[Sequence[str]], dict[str, Lazy]]) -> PaddleModel:
    """The model that the text of a program is."""
    try:
        document = json.loads(content)
        reader = _Reader()
        block = reader.block(document["program"]["regions"][0]["blocks"][0], 0)
    except UserError as error:
        error.where = error.where or source
        raise
    except (ArithmeticError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"this is no program of PaddlePaddle 3, or it is damaged: {error!r}"[:300],
            where=source,
            hint="download or export the model again",
        ) from error
    stored = parameters(list(reader.parameters))
    named = {variable: stored[name] for name, variable in reader.parameters.items()}
    return PaddleModel(source, block, tuple(reader.inputs), tuple(reader.outputs), named, reader.shapes)


class _Reader:
    """Reads one program; lists of values are spelled out where they are used."""

    def __init__(self) -> None:
        self.inputs: list[PaddleInput] = []
        self.outputs: list[tuple[str, str]] = []
        self.parameters: dict[str, str] = {}
        """Names of stored parameters, and the values that they are."""
        self.shapes: dict[str, tuple[int | None, ...]] = {}
        self.lists: dict[str, tuple[str, ...]] = {}
        """The values of lists."""

    def block(self, content: Any, depth: int) -> Block:
        if depth > _DEEPEST:
            raise UserError("the program is nested too deeply")
        made = Block(tuple(f"%{item['#']}" for item in content["args"]))
        for item in content["ops"]:
            self._operator(item, made, depth)
        return made

    def _operator(self, item: Any, block: Block, depth: int) -> None:
        if item["#"] == "p":
            name, variable = str(item["A"][3]), f"%{item['O']['%']}"
            if bool(item["OA"][0]):
                self.parameters[name] = variable
            else:
                self.lists[variable] = ()  # room that training wants
            return
        dialect, _, kind = str(item["#"]).partition(".")
        operands = tuple(self._operand(operand["%"]) for operand in item["I"])
        attributes = {entry["N"]: _attribute(entry["AT"]) for entry in item.get("A", ())}
        if dialect == "0" and kind == "combine":
            self.lists[f"%{item['O'][0]['%']}"] = tuple(name for group in operands for name in group)
            return
        if dialect == "0" and kind in ("split", "slice"):
            chosen = operands[0] if kind == "split" else operands[0][attributes["index"] :]
            for name, output in zip(chosen, item["O"], strict=False):
                self.lists[f"%{output['%']}"] = (name,)
            return
        if dialect == "2" and kind == "yield":
            block.results = tuple(name for group in operands for name in group)
            return
        outputs = tuple(self._output(output) for output in item["O"])
        if kind == "fetch":
            self.outputs.append((str(attributes.get("name", outputs[0][0])), operands[0][0]))
            return
        if kind in ("data", "feed"):
            self._input(str(attributes["name"]), outputs[0][0], item["O"][0]["TT"])
            return
        kind = kind.removesuffix("_") if dialect == "1" else kind
        blocks = tuple(self.block(inner, depth + 1) for region in item.get("regions", ()) for inner in region["blocks"])
        number = item["O"][0]["%"] if item["O"] else len(block.operators)
        name = f"{str(attributes.pop('struct_name', '')).strip('/')}/{kind}_{number}".lstrip("/")
        block.operators.append(PaddleOperator(_RENAMED.get(kind, kind), name, operands, outputs, attributes, blocks))

    def _operand(self, number: Any) -> tuple[str, ...]:
        name = f"%{number}"
        return () if number == 0 else self.lists.get(name, (name,))

    def _output(self, output: Any) -> tuple[str, ...]:
        """The names of an output: those of its items, if it is a list."""
        name, kind = f"%{output['%']}", output.get("TT")
        if kind is None or kind["#"] == "NULL":
            return ()
        if kind["#"].endswith("t_vec"):
            names = tuple(f"{name}.{at}" for at in range(len(kind["D"])))
            for item, inner in zip(names, kind["D"], strict=True):
                self._note(item, inner)
            self.lists[name] = names
            return names
        self._note(name, kind)
        return (name,)

    def _note(self, name: str, kind: Any) -> None:
        if kind["#"].endswith("t_dtensor"):
            self.shapes[name] = tuple(None if size < 0 else int(size) for size in kind["D"][1])

    def _input(self, name: str, variable: str, kind: Any) -> None:
        if not kind["#"].endswith("t_dtensor"):
            raise UnsupportedError(f"the input '{name}' is no tensor")
        element = str(kind["D"][0]["#"]).rpartition(".")[2]
        if element not in _TYPES:
            raise UnsupportedError(f"the input '{name}' has elements of type {element}")
        dtype = DataType.of(_TYPES[element])
        self.inputs.append(PaddleInput(name, variable, dtype, self.shapes[variable]))


def _attribute(content: Any) -> Any:
    """The value of an attribute; lists are tuples."""
    value = content.get("D", content.get("VD"))
    if isinstance(value, list):
        return tuple(_attribute(item) if isinstance(item, dict) else item for item in value)
    if isinstance(value, str) and str(content.get("#")).endswith(("a_f32", "a_f64")):
        return float(value)
    return _attribute(value) if isinstance(value, dict) and "#" in value else value
