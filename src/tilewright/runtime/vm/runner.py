"""A model that is a program, as the executable runs it: inputs checked, results the user's own."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tilewright.runtime.core.artifact import Artifact
from tilewright.runtime.core.dtypes import storage_dtype
from tilewright.runtime.core.library import Library
from tilewright.runtime.device.program import Device
from tilewright.runtime.vm.machine import Machine
from tilewright.runtime.vm.types import Kind
from tilewright.support.errors import UserError

_MOST_ADMITTED: Final = 256
"""Sets of shapes that are remembered; more of them are looked at anew."""


class ProgramRunner:
    """The machine of one model."""

    def __init__(self, artifact: Artifact, library: Library, device: Device | None = None) -> None:
        self.machine = Machine(artifact, library, device)
        self._dtypes = [
            storage_dtype(kind.name) if kind.kind is Kind.TENSOR and kind.name != "string" else None
            for kind in self.machine.program.inputs
        ]
        self._admitted: set[tuple[tuple[int, ...], ...]] = set()
        """Shapes of plain arrays that were looked at once."""

    def admit(self, values: list[object]) -> list[Any]:
        """Each input as a value of the machine, checked against its type."""
        shapes = self._plain_shapes(values)
        if shapes is not None and shapes in self._admitted:
            return values
        admitted = self._admit(values)
        if shapes is not None:
            if len(self._admitted) >= _MOST_ADMITTED:
                self._admitted.clear()
            self._admitted.add(shapes)
        return admitted

    def _plain_shapes(self, values: list[object]) -> tuple[tuple[int, ...], ...] | None:
        """The shapes of inputs that are all arrays as compiled code reads them; None where one is not."""
        shapes = []
        for value, dtype in zip(values, self._dtypes, strict=True):
            if type(value) is not np.ndarray or value.dtype is not dtype:
                return None
            flags = value.flags
            if not flags.c_contiguous or not flags.aligned:
                return None
            shapes.append(value.shape)
        return tuple(shapes)

    def _admit(self, values: list[object]) -> list[Any]:
        machine = self.machine
        symbols: dict[str, int] = {}
        pairs = zip(values, machine.program.inputs, machine.model.inputs, strict=True)
        return [
            machine.admission.admit(value, kind, symbols, f"the input '{info.name}'") for value, kind, info in pairs
        ]

    def run(self, values: list[Any]) -> list[Any]:
        """One run: the list of all outputs."""
        machine = self.machine
        result = machine.own(machine.run(values), values)
        infos = machine.model.outputs
        if len(infos) > 1 and (not isinstance(result, tuple) or len(result) != len(infos)):
            raise UserError(
                f"the bytecode is damaged: it gives no tuple of {len(infos)} outputs", where=machine.model.name
            )
        return list(result) if len(infos) > 1 else [result]
