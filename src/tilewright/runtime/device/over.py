"""Runs over state that stays where it is: what does not change from call to call is found once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.runtime.device.array import DeviceArray
from tilewright.runtime.device.model import DevicePrepared


class RunOver:
    """Runs of a model for known sizes over pieces of state, on torch's tensors: the short way of a call.

    Only what a call brings and what it gets lies elsewhere each time, so that only their addresses decide which
    recorded launches fit.
    """

    def __init__(self, prepared: DevicePrepared, inputs: Mapping[int, DeviceArray], held: Mapping[int, DeviceArray]):
        """`inputs` and `held` are state by the numbers of its inputs and outputs."""
        self._prepared = prepared
        self._inputs = [
            None if (own := inputs.get(n)) is None else own.memory for n in range(len(prepared.part.info.inputs))
        ]
        self._outputs = [
            None if (own := held.get(n)) is None else own.memory for n in range(len(prepared.output_types))
        ]
        self._given = [number for number, memory in enumerate(self._inputs) if memory is None]
        self._made = [number for number, memory in enumerate(self._outputs) if memory is None]
        self._types = [prepared.output_types[number] for number in self._made]
        self._is_possible = held.keys() == prepared.written_over

    def tensors(self, given: Sequence[Any], kept: object) -> list[Any] | None:
        """One run on the memory of `kept` tensors, whose results are torch's tensors too; None where it takes more."""
        prepared = self._prepared
        device = prepared.device
        made = device.tensors(self._types) if self._is_possible else None
        if made is None:
            return None
        device.activate()
        frame = prepared.take()
        try:
            if frame.copies:
                return None
            inputs, outputs = self._inputs.copy(), self._outputs.copy()
            places = []
            for number, memory in zip(self._given, given, strict=True):
                inputs[number] = memory
                places.append(memory.address)
            for number, tensor in zip(self._made, made, strict=True):
                outputs[number] = memory = device.address(tensor)
                places.append(memory.address)
            with device.lock:
                frame.run(inputs, outputs, tuple(places))
                frame.kept = kept
            return made
        finally:
            prepared.give_back(frame)
