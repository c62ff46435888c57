"""Runs over state that stays where it is: what does not change from call to call is found once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from tilewright.runtime.core.artifact import ArgKind
from tilewright.runtime.core.convert import Array
from tilewright.runtime.device.array import DeviceArray
from tilewright.runtime.device.frame import Frame, identity
from tilewright.runtime.device.model import DevicePrepared, Value
from tilewright.runtime.device.program import TensorMaker


class RunOver:
    """Runs of a model for known sizes over pieces of state: the short way of a call.

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

    @cached_property
    def _maker(self) -> TensorMaker | None:
        return self._prepared.device.tensor_maker(self._types) if self._is_possible else None

    def tensors(self, places: tuple[int, ...], kept: object) -> list[Any] | None:
        """One run on `kept` tensors at these places, whose results are torch's too; None where it takes more."""
        prepared, make = self._prepared, self._maker
        if make is None:
            return None
        device = prepared.device
        device.activate()
        frame = prepared.take()
        try:
            if frame.copies:
                return None
            made, results = make()
            with device.lock:
                if not frame.again(places + results):
                    self._start(frame, device.at(places), device.at(results), places + results)
                frame.kept = kept
            return made
        finally:
            prepared.give_back(frame)

    def arrays(self, given: Sequence[Value]) -> list[Array] | None:
        """One run on arrays, whose results come to the host; None where it takes more."""
        prepared = self._prepared
        device = prepared.device
        if not self._is_possible or device.capturing:
            return None
        device.activate()
        frame = prepared.take()
        try:
            places = [frame.own(ArgKind.OUTPUT, number) for number in self._made]
            with device.lock:
                memory = [
                    prepared.input_memory(frame, number, value)
                    for number, value in zip(self._given, given, strict=True)
                ]
                self._start(frame, memory, places, tuple([identity(piece) for piece in (*memory, *places)]))
                frame.kept = given
            return [
                DeviceArray(place, shape, dtype, device).numpy()
                for place, (shape, dtype) in zip(places, self._types, strict=True)
            ]
        finally:
            prepared.give_back(frame)

    def _start(self, frame: Frame, given: Sequence[Any], made: Sequence[Any], key: tuple[int, ...]) -> None:
        inputs, outputs = self._inputs.copy(), self._outputs.copy()
        for number, memory in zip(self._given, given, strict=True):
            inputs[number] = memory
        for number, memory in zip(self._made, made, strict=True):
            outputs[number] = memory
        frame.run(inputs, outputs, key)
