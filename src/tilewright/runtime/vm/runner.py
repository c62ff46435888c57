"""A model that is a program, as the executable runs it: inputs checked, results the user's own."""

from __future__ import annotations

from typing import Any

from tilewright.runtime.core.artifact import Artifact
from tilewright.runtime.core.library import Library
from tilewright.runtime.device.program import Device
from tilewright.runtime.vm.machine import Machine
from tilewright.support.errors import UserError


class ProgramRunner:
    """The machine of one model."""

    def __init__(self, artifact: Artifact, library: Library, device: Device | None = None) -> None:
        self.machine = Machine(artifact, library, device)

    def admit(self, values: list[object]) -> list[Any]:
        """Each input as a value of the machine, checked against its type."""
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
