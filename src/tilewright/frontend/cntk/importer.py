"""Import of CNTK 2 models: dictionaries of functions, walked from the results back to the inputs.

module = from_cntk("resnet.model")
module = from_cntk("tagger.dnn", shapes={"words": (1, 20, 300)})
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.frontend.cntk import elementwise, layers, regions, sequences
from tilewright.frontend.cntk.context import Operator, Value, convert
from tilewright.frontend.cntk.dictionary import FREE, INFERRED, TYPES, read_dictionary
from tilewright.frontend.cntk.model import INPUT, PLACEHOLDER, Model, PrimitiveFunction, Variable, read_model
from tilewright.frontend.cntk.recurrence import Recurrence, cycles
from tilewright.frontend.core.arithmetic import ArithmeticBuilder
from tilewright.frontend.core.functions import main_module, new_input
from tilewright.frontend.core.input_shapes import input_shapes
from tilewright.graph.ir.expr import Function, Var
from tilewright.ir.function import IRModule
from tilewright.support.errors import UnsupportedError, UserError
from tilewright.support.span import Span

FAMILIES = (elementwise, layers, regions, sequences)
"""The modules whose converters are registered, one a family of operators."""
_MALFORMED = (KeyError, TypeError, AttributeError, ValueError, IndexError, OverflowError)
"""What looking up raises in a dictionary whose parts make no sense."""


def from_cntk(
    source: str | os.PathLike[str] | bytes, shapes: Mapping[str, Sequence[int | str | None]] | None = None
) -> IRModule:
    """Import a model of CNTK 2: the path or the bytes of what `Function.save` wrote.

    Inputs have the names of the model's input variables and the shapes of CNTK's Python: (batch, sequence, ...) with
    the axes that the variable has; all sequences of a call have one length. Results are named after their functions.
    """
    dictionary, where = read_dictionary(source)
    try:
        model = read_model(dictionary)
    except _MALFORMED as error:
        raise UserError(
            f"{where} is no CNTK model, or it is damaged: {type(error).__name__}: {error}",
            hint="save it again with Function.save(path)",
        ) from error
    except UserError as error:
        error.where = error.where or where
        raise
    return _Importer(model, where).module(shapes or {})


@dataclass(frozen=True)
class _Input:
    """An input as the shapes that are asked for see it."""

    name: str
    dims: tuple[int | str | None, ...] | None
    variable: Variable


class _Importer:
    """The import of one model."""

    def __init__(self, model: Model, source: str) -> None:
        self.model = model
        self.source = source
        self.builder = ArithmeticBuilder()
        self.functions: list[Function] = []
        self.values: dict[str, list[Value]] = {}
        self.cycles: dict[str, frozenset[str]] = {}

    def module(self, shapes: Mapping[str, Sequence[int | str | None]]) -> IRModule:
        outputs = self.model.outputs()
        roots = [found[0].uid for found in (self.model.owner(self.model.resolve(uid)) for _, uid in outputs) if found]
        if not roots:
            raise UserError("the model computes nothing", where=self.source)
        self.cycles = cycles(self.model, roots)
        needed = self._needed(roots)
        params = self._inputs(shapes, {item for uid in needed for item in self.model.functions[uid].inputs})
        for uid in needed:
            self._function(uid)
        results = [self._value(uid) for _, uid in outputs]
        values, names = [value.data for value in results], [name for name, _ in outputs]
        return main_module(self.builder, params, values, names, self.model.name, self.functions)

    def _needed(self, roots: Sequence[str]) -> list[str]:
        """The functions that results depend on, each behind what it needs (members of one cycle in any order)."""
        ordered: list[str] = []
        seen: set[str] = set()
        work = [(uid, False) for uid in reversed(roots)]
        while work:
            uid, done = work.pop()
            if done:
                ordered.append(uid)
                continue
            if uid in seen:
                continue
            seen.add(uid)
            work.append((uid, True))
            members = self.cycles.get(uid, frozenset({uid}))
            seen |= members
            for member in sorted(members):
                for item in self.model.functions[member].inputs:
                    owner = self.model.owner(self.model.resolve(item))
                    if owner is not None and owner[0].uid not in members:
                        work.append((owner[0].uid, False))
        return ordered

    # Variables

    def _inputs(self, shapes: Mapping[str, Sequence[int | str | None]], used: set[str]) -> list[Var]:
        """The parameters of `main`: the input variables that are used, in the order of the file."""
        resolved = {self.model.resolve(uid) for uid in used}
        for uid in list(resolved):
            owner = self.model.owner(uid)
            for member in self.cycles.get(owner[0].uid, ()) if owner is not None else ():
                resolved |= {self.model.resolve(item) for item in self.model.functions[member].inputs}
        inputs: list[_Input] = []
        for variable in self.model.variables.values():
            if variable.kind == INPUT and variable.uid in resolved:
                name = variable.name or variable.uid
                if name in [item.name for item in inputs]:
                    name = variable.uid
                inputs.append(_Input(name, self._dims(variable, name), variable))
        params: list[Var] = []
        for item, sizes in zip(inputs, input_shapes(self.source, inputs, shapes), strict=True):
            dtype = TYPES.get(item.variable.data_type, "float32")
            assert sizes is not None
            params.append(new_input(self.builder, item.name, sizes, dtype))
            self.values[item.variable.uid] = [Value(params[-1], item.variable.has_batch, item.variable.has_sequence)]
        return params

    @staticmethod
    def _dims(variable: Variable, name: str) -> tuple[int | str | None, ...]:
        """Batch and sequence, then the dimensions in the order of numpy; free ones are open."""
        dims: list[int | str | None] = ["batch"] if variable.has_batch else []
        if variable.has_sequence:
            axis = next(axis for axis in variable.axes if axis.is_sequence)
            label = axis.name.removeprefix("default") or "sequence"
            dims.append("sequence" if label == "DynamicAxis" else label)
        for place, size in enumerate(reversed(variable.shape)):
            if size in (INFERRED, FREE):
                dims.append(f"{name}_{place}")
            elif size > 1 << 31:
                raise UserError(f"the input '{name}' has a dimension of {size}")
            else:
                dims.append(int(size))
        return tuple(dims)

    def _value(self, uid: str) -> Value:
        """The value of a variable or of an output."""
        resolved = self.model.resolve(uid)
        owner = self.model.owner(resolved)
        key, index = (resolved, 0) if owner is None else (owner[0].uid, owner[1])
        if key not in self.values:
            variable = self.model.variables.get(resolved)
            if variable is None or variable.kind == PLACEHOLDER or variable.value is None:
                raise UserError(f"nothing gives '{uid}' a value", where=self.source)
            self.values[key] = [Value(self.builder.constant(np.asarray(variable.value)))]
        found = self.values[key]
        if index >= len(found):
            raise UnsupportedError(f"output number {index + 1} of '{key}'", where=self.source)
        return found[index]

    # Functions

    def _function(self, uid: str) -> None:
        function = self.model.functions[uid]
        if uid in self.cycles:
            members = self.cycles[uid]
            recurrence = Recurrence(self.model, members, self.builder, self.functions, self._value, self._apply)
            self._located(function)
            try:
                self.values |= recurrence.values()
            except UserError as error:
                error.where = error.where or f"{self.source}, '{function.label}' ({function.operator})"
                raise
            return
        if function.operator in ("Combine", "PackedIndex", "Where"):
            return  # they mean something only where they are used
        if function.operator == "GatherPacked":
            self._located(function)
            part = sequences.gathered(
                self.model, function, self._value, lambda inputs: Operator(function, inputs, self.builder)
            )
            if part is not None:
                self.values[uid] = [part]
                return
            self._apply(function, [])
        self.values[uid] = self._apply(function, [self._value(item) for item in function.inputs])

    def _located(self, function: PrimitiveFunction) -> None:
        self.builder.span = Span(function.label, operation=function.operator)

    def _apply(self, function: PrimitiveFunction, inputs: list[Value]) -> list[Value]:
        self._located(function)
        try:
            return convert(Operator(function, inputs, self.builder))
        except UserError as error:
            error.where = error.where or f"{self.source}, '{function.label}' ({function.operator})"
            raise
