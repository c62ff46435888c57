"""The trace of a schedule: its instructions and decisions, as data that can be stored, printed and replayed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tilewright.support.errors import UserError
from tilewright.support.text import plural
from tilewright.tir.schedule.handles import BlockHandle, Handle, LoopHandle, SampledInt

VERSION: Final = 1
"""The version of the JSON form."""

Value = None | bool | int | float | str | list["Value"] | dict[str, "Value"]
"""An attribute or decision as stored: plain JSON; {"ref": n} stands for result number n."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One call of a primitive.

    Results of instructions are numbered through the whole trace; `inputs` and `outputs` are such numbers.
    """

    kind: str
    inputs: tuple[int, ...] = ()
    attributes: Mapping[str, Value] = field(default_factory=dict)
    outputs: tuple[int, ...] = ()
    decision: Value = None

    def to_json(self) -> dict[str, Value]:
        """The instruction as plain data."""
        data: dict[str, Value] = {"kind": self.kind, "inputs": list(self.inputs), "outputs": list(self.outputs)}
        if self.attributes:
            data["attributes"] = dict(self.attributes)
        if self.decision is not None:
            data["decision"] = self.decision
        return data


class Trace:
    """A list of instructions, and the numbers of the results that live handles stand for."""

    def __init__(self, instructions: Sequence[Instruction] = ()) -> None:
        self.instructions: list[Instruction] = list(instructions)
        self._results = max((number + 1 for item in self.instructions for number in item.outputs), default=0)
        self._numbers: dict[Handle | int, int] = {}
        # Sampled integers are told apart by identity: they are kept so that identities are not reused.
        self._sampled: list[SampledInt] = []

    def __len__(self) -> int:
        return len(self.instructions)

    def copy(self) -> Trace:
        """An independent trace with the same content."""
        other = Trace(self.instructions)
        other._numbers = dict(self._numbers)
        other._sampled = list(self._sampled)
        return other

    def knows(self, handle: Handle) -> bool:
        """Whether a handle is a result of a recorded instruction."""
        return handle in self._numbers

    def handles(self) -> Iterator[tuple[Handle, int]]:
        """The loops and blocks that are results of recorded instructions, with their numbers."""
        for handle, number in self._numbers.items():
            if isinstance(handle, (LoopHandle, BlockHandle)):
                yield handle, number

    def record(
        self,
        kind: str,
        inputs: Sequence[Handle],
        attributes: Mapping[str, object],
        outputs: Sequence[Handle | SampledInt],
        decision: Value = None,
    ) -> None:
        """Append an instruction."""
        numbers = tuple(self._numbers[handle] for handle in inputs)
        stored = {key: self.encode(value) for key, value in attributes.items()}
        results = tuple(range(self._results, self._results + len(outputs)))
        for number, output in zip(results, outputs, strict=True):
            if isinstance(output, SampledInt):
                self._numbers[id(output)] = number
                self._sampled.append(output)
            else:
                self._numbers[output] = number
        self._results += len(outputs)
        self.instructions.append(Instruction(kind, numbers, stored, results, decision))

    def encode(self, value: object) -> Value:
        """A value as it is stored in the trace; refuses what cannot be."""
        if isinstance(value, SampledInt) and id(value) in self._numbers:
            return {"ref": self._numbers[id(value)]}
        if isinstance(value, (LoopHandle, BlockHandle)):
            return {"ref": self._numbers[value]}
        if value is None or isinstance(value, (bool, str, float)):
            return value
        if isinstance(value, int):
            return int(value)
        if isinstance(value, (list, tuple)):
            return [self.encode(item) for item in value]
        if isinstance(value, dict):
            return {str(key): self.encode(item) for key, item in value.items()}
        raise UserError(
            f"a schedule cannot record {value!r}", hint="use numbers, strings, lists and dictionaries of them"
        )

    def to_json(self) -> str:
        """The trace as JSON text."""
        data = {"version": VERSION, "instructions": [item.to_json() for item in self.instructions]}
        return json.dumps(data, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> Trace:
        """The trace that JSON text holds."""
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise UserError(f"this is not a schedule trace: {error}") from error
        if not isinstance(data, dict) or not isinstance(data.get("instructions"), list):
            raise UserError("this is not a schedule trace: it has no instructions")
        if data.get("version") != VERSION:
            raise UserError(f"a schedule trace of version {data.get('version')}, this is version {VERSION}")
        return Trace([_instruction(item) for item in data["instructions"]])

    def with_decision(self, place: int, decision: Value) -> Trace:
        """The trace with another decision for the sampling instruction at a place."""
        if not 0 <= place < len(self.instructions) or self.instructions[place].decision is None:
            raise UserError(f"instruction {place} of the trace samples nothing")
        changed = list(self.instructions)
        changed[place] = replace(changed[place], decision=decision)
        return Trace(changed)

    def decisions(self) -> dict[int, Value]:
        """The decisions, by the place of their instruction."""
        return {n: item.decision for n, item in enumerate(self.instructions) if item.decision is not None}

    def apply(self, call: Callable[[str, list[object], dict[str, object], Value], object]) -> None:
        """Run the instructions through `call(kind, inputs, attributes, decision)`, which gives the results."""
        results: dict[int, object] = {}

        def decode(value: Value) -> object:
            if isinstance(value, dict):
                if value.keys() == {"ref"}:
                    return results[value["ref"]]  # type: ignore[index]
                return {key: decode(item) for key, item in value.items()}
            if isinstance(value, list):
                return [decode(item) for item in value]
            return value

        lines = self.lines()
        for number_of, item in enumerate(self.instructions):
            try:
                inputs = [results[number] for number in item.inputs]
                attributes = {key: decode(value) for key, value in item.attributes.items()}
                returned = call(item.kind, inputs, attributes, item.decision)
            except UserError as error:
                # The error itself, so that its kind and its picture of the program stay.
                error.message = f"instruction {number_of} of the trace, `{lines[number_of]}`: {error.message}"
                raise
            except KeyError as error:
                raise UserError(
                    f"instruction {number_of} of the trace uses result {error.args[0]}, which no instruction gives"
                ) from None
            except TypeError as error:
                place = f"instruction {number_of} of the trace, `{lines[number_of]}`"
                raise UserError(f"{place}, has arguments of a wrong kind: {error}") from error
            outputs = [] if returned is None else list(returned) if isinstance(returned, (list, tuple)) else [returned]
            if len(outputs) != len(item.outputs):
                raise UserError(
                    f"the trace does not fit the program: {item.kind} gives {len(outputs)} results here, "
                    f"{len(item.outputs)} in the trace (instruction {number_of}, `{lines[number_of]}`)"
                )
            results.update(zip(item.outputs, outputs, strict=True))

    def simplified(self) -> Trace:
        """The trace without questions (get_block, ...) whose answers nothing uses, or that were asked before.

        A block is known by its name, so asking for it again gives the same; loops change, so those questions stay.
        """
        same: dict[int, int] = {}
        blocks: dict[str, int] = {}
        asked: list[Instruction] = []
        for item in self.instructions:
            renamed = replace(
                item,
                inputs=tuple(same.get(number, number) for number in item.inputs),
                attributes={key: _renumbered(value, same) for key, value in item.attributes.items()},
            )
            if item.kind == "get_block":
                name = str(item.attributes["name"])
                if name in blocks:
                    same[item.outputs[0]] = blocks[name]
                    continue
                blocks[name] = item.outputs[0]
            asked.append(renamed)
        used: set[int] = set()
        kept: list[Instruction] = []
        for item in reversed(asked):
            if item.kind in _QUESTIONS and used.isdisjoint(item.outputs):
                continue
            used.update(item.inputs)
            used.update(_references(list(item.attributes.values())))
            kept.append(item)
        return Trace(kept[::-1])

    def __repr__(self) -> str:
        return f"Trace({plural(len(self.lines()), 'call')})"

    def __str__(self) -> str:
        """The trace as a Python program of calls on `sch`."""
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """One line of Python for each instruction."""
        names: dict[int, str] = {}
        lines: list[str] = []
        for item in self.instructions:
            prefix = _PREFIXES.get(item.kind, "l")
            for number in item.outputs:
                names[number] = f"{prefix}{number}"
            arguments = [names.get(number, f"?{number}") for number in item.inputs]
            arguments += [f"{key}={_source(value, names)}" for key, value in item.attributes.items()]
            if item.decision is not None:
                arguments.append(f"decision={_source(item.decision, names)}")
            call = f"sch.{item.kind}({', '.join(arguments)})"
            results = ", ".join(names[number] for number in item.outputs)
            if item.kind in _LISTS and len(item.outputs) == 1:
                results += ","
            lines.append(f"{results} = {call}" if item.outputs else call)
        return lines


_BLOCKS: Final = (
    "get_block",
    "cache_read",
    "cache_write",
    "decompose_reduction",
    "rfactor",
    "blockize",
    "tensorize",
    "reindex",
    "decompose_padding",
    "reindex_cache_read",
    "reindex_cache_write",
    "read_at",
    "write_at",
)
_BLOCK_LISTS: Final = (
    "get_child_blocks",
    "get_producers",
    "get_consumers",
    "get_output_blocks",
    "blocks",
    "pad_einsum",
    "cache_index",
    "replace_by_equivalent",
)
_SAMPLES: Final = ("sample_perfect_tile", "sample_categorical", "sample_compute_location")
_PREFIXES: Final = {
    **dict.fromkeys(_BLOCKS, "b"),
    **dict.fromkeys(_BLOCK_LISTS, "b"),
    **dict.fromkeys(_SAMPLES, "x"),
}
_LISTS: Final = (*_BLOCK_LISTS, "get_loops", "split", "partition", "sample_perfect_tile", "transform_block_layout")


_QUESTIONS: Final = (
    "get_block",
    "get_loops",
    "get_child_blocks",
    "get_producers",
    "get_consumers",
    "get_output_blocks",
    "blocks",
)


def _references(value: Value) -> Iterator[int]:
    """The numbers of results that an attribute refers to."""
    if isinstance(value, dict):
        number = value.get("ref")
        if isinstance(number, int) and len(value) == 1:
            yield number
        else:
            yield from _references(list(value.values()))
    elif isinstance(value, list):
        for item in value:
            yield from _references(item)


def _renumbered(value: Value, same: Mapping[int, int]) -> Value:
    """An attribute that refers to the first of equal results."""
    if isinstance(value, dict):
        number = value.get("ref")
        if isinstance(number, int) and len(value) == 1:
            return {"ref": same.get(number, number)}
        return {key: _renumbered(item, same) for key, item in value.items()}
    return [_renumbered(item, same) for item in value] if isinstance(value, list) else value


def _instruction(data: object) -> Instruction:
    if isinstance(data, dict) and isinstance(data.get("kind"), str):
        inputs, outputs, attributes = data.get("inputs", []), data.get("outputs", []), data.get("attributes", {})
        if _are_numbers(inputs) and _are_numbers(outputs) and isinstance(attributes, dict):
            if not all(map(_are_references, attributes.values())):
                raise UserError(f"an instruction of the schedule trace refers to what is no result: {data!r}")
            return Instruction(data["kind"], tuple(inputs), attributes, tuple(outputs), data.get("decision"))
    raise UserError(f"this is not an instruction of a schedule trace: {data!r}")


def _are_numbers(values: object) -> bool:
    """Whether these are numbers of results."""
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _are_references(value: Value) -> bool:
    """Whether everything in an attribute that looks like a reference to a result is one."""
    if isinstance(value, dict):
        if value.keys() == {"ref"}:
            return _are_numbers([value["ref"]])
        return all(map(_are_references, value.values()))
    return not isinstance(value, list) or all(map(_are_references, value))


def _source(value: Value, names: Mapping[int, str]) -> str:
    if isinstance(value, dict):
        if value.keys() == {"ref"}:
            return names.get(value["ref"], "?")  # type: ignore[arg-type]
        return "{" + ", ".join(f"{key!r}: {_source(item, names)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_source(item, names) for item in value) + "]"
    return repr(value)
