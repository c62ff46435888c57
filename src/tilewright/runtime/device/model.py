"""Models whose kernels run on a device: code and constants loaded once, calls planned for their sizes, arrays moved.

A `DevicePart` is one straight run of kernels (a model, a segment of a program, a variant for fixed sizes), as `Part` is
on the host; `DeviceRunner` is a whole model without a program of the virtual machine.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np

from tilewright.runtime.core.artifact import (
    ArgKind,
    ArgRef,
    Artifact,
    CheckInfo,
    DeviceKernelInfo,
    Extent,
    ModelInfo,
    Step,
    TensorInfo,
)
from tilewright.runtime.core.checks import STATUS_BYTES
from tilewright.runtime.core.convert import Array, direct, to_storage
from tilewright.runtime.core.dtypes import storage_dtype
from tilewright.runtime.core.entry import OutputTypes
from tilewright.runtime.core.library import Library, bind
from tilewright.runtime.core.packing import packed_size
from tilewright.runtime.core.shapes import bind_shape, evaluate
from tilewright.runtime.device.array import DeviceArray
from tilewright.runtime.device.checks import STATUS_STRIDE, HostStatuses, PendingChecks, gathered
from tilewright.runtime.device.frame import Frame, Gate
from tilewright.runtime.device.program import BoundCall, Device, Scalar, TensorMaker, TensorReader
from tilewright.runtime.device.steps import Place, PlannedLaunch, PlannedStep
from tilewright.support.errors import CompilerBug, UserError

_MOST_PREPARED = 64
"""Sets of sizes that are remembered."""

Value = Array | DeviceArray


class DeviceCode:
    """The code and the constants of a model on a device, and the native code of what the host computes."""

    def __init__(self, artifact: Artifact, device: Device, library: Library | None) -> None:
        assert artifact.device is not None and artifact.model is not None
        self.device = device
        self.library = library
        self.infos = {info.symbol: info for info in artifact.device.kernels}
        self.kernels: dict[str, Any] = {}
        device.activate()
        for info, code in zip(artifact.device.kernels, artifact.device_code, strict=True):
            if code:
                self.kernels.update(device.load(code, info.launches))
        self._constants = direct(artifact.constants)
        self._places = sorted((item.offset, packed_size(item.shape, item.dtype)) for item in artifact.model.constants)
        self._memory: dict[int, Any] = {}
        if device.flat_memory:
            self._memory[0] = device.upload(self._constants)

    def constants(self, offset: int, size: int) -> Any:
        """The memory of constants from an offset on."""
        if self.device.flat_memory:
            return self.device.view(self._memory[0], offset, size)
        start, count = next((place for place in self._places if place[0] <= offset < place[0] + place[1]), (offset, 0))
        if start != offset:
            # A part of a constant is memory of its own.
            start, count = offset, size
        if start not in self._memory:
            self._memory[start] = self.device.upload(self._constants[start : start + max(count, size)])
        return self._memory[start]

    def native(self, symbol: str) -> Any:
        """A kernel on the host, in its packed form."""
        if self.library is None:
            raise CompilerBug(f"the kernel '{symbol}' is for the host, but there is no code for it")
        return bind(self.library, f"{symbol}__packed", ctypes.c_int32, ctypes.c_void_p)


class DevicePart:
    """One straight run of kernels on a device."""

    def __init__(self, info: ModelInfo, code: DeviceCode) -> None:
        self.info = info
        self.code = code
        self.dtypes = [storage_dtype(item.dtype) for item in info.outputs]
        self._prepared: dict[tuple[int, ...], DevicePrepared] = {}

    def prepare(self, values: tuple[int, ...]) -> DevicePrepared:
        """A call for values of the symbols."""
        found = self._prepared.get(values)
        if found is None:
            if len(self._prepared) >= _MOST_PREPARED:
                self._prepared.clear()
            found = self._prepared[values] = DevicePrepared(self, values)
        return found


class DevicePrepared:
    """A call of a part for known sizes."""

    def __init__(self, part: DevicePart, values: tuple[int, ...]) -> None:
        info = part.info
        self.part = part
        self.device = part.code.device
        self.values = values
        self._symbols = dict(zip(info.symbols, values, strict=True))
        self._check()
        self.outputs: OutputTypes = [
            (tuple(self._number(extent) for extent in item.shape), dtype)
            for item, dtype in zip(info.outputs, part.dtypes, strict=True)
        ]
        slots = [self._number(size) for size in info.slots] if info.slots else [info.workspace_bytes]
        self._slots = [max(1, size) for size in slots]
        self.steps = [self._step(number, step) for number, step in enumerate(info.steps)]
        self._input_bytes = [
            _nbytes(tuple(self._number(extent) for extent in item.shape), item.dtype) for item in info.inputs
        ]
        self._output_bytes = [_nbytes(shape, item.dtype) for (shape, _), item in self._outputs_with_infos()]
        self.output_types = [(shape, item.dtype) for (shape, _), item in self._outputs_with_infos()]
        """Shapes and data types of the outputs."""
        self._statuses = [self._status(check) for check in info.checks]
        self._status_slot = self._set_apart() if self._statuses and self.device.flat_memory else None
        self._free: deque[Frame] = deque()

    def _status(self, check: CheckInfo) -> Place:
        """Where a check leaves what it finds."""
        place = self.steps[check.step].args[1]
        assert isinstance(place, Place)
        return place

    def _set_apart(self) -> int | None:
        """Give statuses a slot of their own, which the host may look at; None where others read them."""
        places, slot = self._statuses, len(self._slots)
        for check, place in zip(self.part.info.checks, places, strict=True):
            others = (other for step in self.steps[check.step + 1 :] for other, _ in step.uses())
            is_launched = bool(self.steps[check.step].launches) and place.kind is ArgKind.WORKSPACE
            if not is_launched or any(place.overlaps(other) for other in others):
                return None
        self._slots.append(len(places) * STATUS_STRIDE)
        self._statuses = [Place(ArgKind.WORKSPACE, slot, n * STATUS_STRIDE, STATUS_BYTES) for n in range(len(places))]
        for check, old, new in zip(self.part.info.checks, places, self._statuses, strict=True):
            self.steps[check.step] = self.steps[check.step].moved(old, new)
        return slot

    def _outputs_with_infos(self) -> Any:
        return zip(self.outputs, self.part.info.outputs, strict=True)

    def _check(self) -> None:
        sizes = ", ".join(f"{name} = {value}" for name, value in self._symbols.items())
        for left, right in self.part.info.requires:
            if self._number(left) != self._number(right):
                raise UserError(f"the model needs {left} and {right} to be equal, which they are not for {sizes}")
        for item in self.part.info.outputs:
            for axis, extent in enumerate(item.shape):
                if self._number(extent) < 0:
                    raise UserError(f"axis {axis} of '{item.name}' ({extent}) would be negative for {sizes}")

    def _number(self, extent: Extent) -> int:
        number = evaluate(extent, self._symbols)
        if number is None:
            raise CompilerBug(f"no symbol gives the extent '{extent}' a value")
        return number

    def _step(self, number: int, step: Step) -> PlannedStep:
        code = self.part.code
        kernel = self.part.info.kernels[step.kernel]
        info = code.infos[kernel.symbol]
        given = [self.values[arg.index] for arg in step.args if arg.kind is ArgKind.SYMBOL]
        names = dict(zip(info.symbols, given, strict=True))
        sizes = iter([_evaluated(size, names) for size in info.sizes])
        args: list[Place | Scalar] = [self._arg(arg, sizes) for arg in step.args]
        if info.on_host:
            return PlannedStep(number, kernel, info, (), tuple(args), code.native(kernel.symbol))
        for size in info.workspaces:
            # Symbols decide this size, so no plan knew it: a slot more.
            self._slots.append(max(1, _evaluated(size, names)))
            args.append(Place(ArgKind.WORKSPACE, len(self._slots) - 1, 0, self._slots[-1]))
        return PlannedStep(number, kernel, info, self._launches(info, args, names), tuple(args))

    def _arg(self, arg: ArgRef, sizes: Any) -> Place | Scalar:
        if arg.kind is ArgKind.SYMBOL:
            return Scalar(self.values[arg.index], "int64")
        if arg.kind is ArgKind.SCALAR:
            return Scalar(arg.index, "int64")
        return Place(arg.kind, arg.index, arg.offset, next(sizes))

    def _launches(
        self, info: DeviceKernelInfo, args: Sequence[Place | Scalar], names: dict[str, int]
    ) -> tuple[PlannedLaunch, ...]:
        made: list[PlannedLaunch] = []
        for launch in info.launches:
            x, y, z = (_evaluated(extent, names) for extent in launch.grid)
            if x <= 0 or y <= 0 or z <= 0:
                continue
            kernel = self.part.code.kernels[launch.symbol]
            steps = (Scalar(value, "int64") for value in launch.values)
            given = (*(args[number] for number in launch.args), *steps)
            made.append(PlannedLaunch(kernel, (x, y, z), launch.block, given))
        return tuple(made)

    def take(self) -> Frame:
        """A frame for one call."""
        try:
            return self._free.pop()
        except IndexError:
            return self._new_frame()

    def _new_frame(self) -> Frame:
        constants, sizes = self.part.code.constants, (self._input_bytes, self._output_bytes)
        gate = statuses = None
        if self._statuses and not self.device.capturing:
            gate, statuses = self._gate, self._host_statuses()
        return Frame(self.device, self.steps, self._slots, constants, *sizes, self._statuses, gate, statuses)

    def _host_statuses(self) -> HostStatuses | None:
        slot = self._status_slot
        memory = None if slot is None else self.device.host_memory(self._slots[slot])
        if slot is None or memory is None:
            return None
        return HostStatuses(self.device, memory, slot, self.part.info.checks, self._symbols)

    def give_back(self, frame: Frame) -> None:
        """Return a frame for later calls, but for one whose checks may write yet (a run that was interrupted)."""
        if frame.statuses is None or frame.statuses.is_settled:
            self._free.append(frame)

    @cached_property
    def _maker(self) -> TensorMaker | None:
        return self.device.tensor_maker(self.output_types)

    def tensors(self, places: tuple[int, ...], kept: object) -> list[Any] | None:
        """One run on `kept` tensors at these places, whose results are torch's too; None where `call` must do it."""
        device, make = self.device, self._maker
        if make is None:
            return None
        device.activate()
        frame = self.take()
        try:
            statuses = frame.statuses
            if statuses is None and self._statuses:
                return None
            made, results = make()
            with device.lock:
                if frame.copies:
                    self._start_on_copies(frame, device.at(places), device.at(results))
                elif not frame.again(places + results):
                    frame.run(device.at(places), device.at(results), places + results)
                frame.kept = kept
            if statuses is not None:
                statuses.verify()
            return made
        finally:
            self.give_back(frame)

    def _start_on_copies(self, frame: Frame, inputs: Sequence[Any], results: Sequence[Any]) -> None:
        """Start a run on the frame's own memory, with copies before and behind it."""
        own = [frame.own(ArgKind.INPUT, number) for number in range(len(inputs))]
        made = self._outputs(frame, on_device=False)
        for source, target, size in zip(inputs, own, self._input_bytes, strict=True):
            self.device.copy(source, 0, target, 0, size)
        frame.run(own, made)
        for source, target, size in zip(made, results, self._output_bytes, strict=True):
            self.device.copy(source, 0, target, 0, size)

    def call(self, inputs: Sequence[Value], *, on_device: bool) -> list[Any]:
        """One run: arrays on the host, or arrays on the device that may still be computed."""
        self.device.activate()
        if self.device.capturing:
            return self._captured(inputs)
        frame = self.take()
        try:
            with self.device.lock:
                memory = self._inputs(frame, inputs)
                copies = on_device and frame.copies
                places = self._outputs(frame, on_device and not copies)
                frame.run(memory, places)
                frame.kept = inputs
                if copies:
                    own, places = places, self._outputs(frame, on_device)
                    for source, target, size in zip(own, places, self._output_bytes, strict=True):
                        self.device.copy(source, 0, target, 0, size)
                checks = self._pending(frame)
            if frame.statuses is not None:
                frame.statuses.verify()
            if checks is not None and not on_device:
                checks.verify()
                checks = None
            results = [
                DeviceArray(place, shape, info.dtype, self.device, checks)
                for place, ((shape, _), info) in zip(places, self._outputs_with_infos(), strict=True)
            ]
            return list(results) if on_device else [result.numpy() for result in results]
        finally:
            self.give_back(frame)

    def call_over(self, inputs: Sequence[Value], held: Mapping[int, DeviceArray], *, on_device: bool) -> list[Any]:
        """One run that leaves the outputs in `held`, by number, where these are; the others as `call` gives them.

        Kernels do not stop for a check that fails: the run stops before the first that writes over what is held, until
        the checks are known to be passed. Where a check comes later than that, new values are copied when the run is
        over. What is held has the same addresses in every run. In another package's graph memory is the graph's, and
        nobody reads checks.
        """
        self.device.activate()
        if self.device.capturing:
            self._require_no_host()
        frame = self._new_frame() if self.device.capturing else self.take()
        try:
            with self.device.lock:
                copies = on_device and frame.copies
                memory = self._inputs(frame, inputs, self._state_inputs)
                places = self._places_over(frame, held, on_device and not copies)
                frame.run(memory, places)
                frame.kept = inputs
            if self._gate is None and not self.device.capturing:
                self._verify(frame)
            own = self.written_over
            with self.device.lock:
                for number in held.keys() - own:
                    self.device.copy(places[number], 0, held[number].memory, 0, self._output_bytes[number])
                for number, size in enumerate(self._output_bytes if copies else ()):
                    if number not in held:
                        source, places[number] = places[number], self.device.allocate(size)
                        self.device.copy(source, 0, places[number], 0, size)
            results: list[Any] = [None] * len(places)
            for number, (place, ((shape, _), info)) in enumerate(zip(places, self._outputs_with_infos(), strict=True)):
                if number not in held:
                    array = DeviceArray(place, shape, info.dtype, self.device)
                    results[number] = array if on_device else array.numpy()
            return results
        finally:
            if not self.device.capturing:
                self.give_back(frame)

    @cached_property
    def written_over(self) -> frozenset[int]:
        """The outputs that are written over what is held: none where a check may fail after that."""
        return self._state_outputs if self._gate is not None or not self._statuses else frozenset()

    @cached_property
    def _state_outputs(self) -> frozenset[int]:
        return frozenset(item.output for item in self.part.info.state if item.in_place)

    @cached_property
    def _gate(self) -> Gate | None:
        """Between the last check and the first step that writes over what is held, where they come in this order."""
        last = max((check.step for check in self.part.info.checks), default=None)
        if last is None or not self._state_outputs:
            return None
        early = any(
            written and place.kind is ArgKind.OUTPUT and place.index in self._state_outputs
            for step in self.steps[: last + 1]
            for place, written in step.uses()
        )
        return None if early else Gate(last, self._verify)

    @cached_property
    def _state_inputs(self) -> frozenset[int]:
        return frozenset(item.input for item in self.part.info.state)

    def _places_over(self, frame: Frame, held: Mapping[int, DeviceArray], on_device: bool) -> list[Any]:
        """Where each output of a run with state goes."""
        own = self.written_over
        return [
            held[number].memory
            if number in own
            else self.device.allocate(size)
            if on_device and number not in held
            else frame.own(ArgKind.OUTPUT, number)
            for number, size in enumerate(self._output_bytes)
        ]

    def _captured(self, inputs: Sequence[Value]) -> list[Any]:
        """A run that becomes part of another package's graph: memory is the graph's, and nobody reads its checks."""
        self._require_no_host()
        frame = self._new_frame()
        with self.device.lock:
            places = self._outputs(frame, on_device=True)
            frame.run(self._inputs(frame, inputs), places)
        return [
            DeviceArray(place, shape, info.dtype, self.device)
            for place, ((shape, _), info) in zip(places, self._outputs_with_infos(), strict=True)
        ]

    def _require_no_host(self) -> None:
        if any(step.native is not None for step in self.steps):
            raise UserError(
                "the model computes something on the host, which a CUDA graph cannot hold",
                hint="call it outside the capture, or compile it for the CPU",
            )

    def _verify(self, frame: Frame) -> None:
        """Wait for the checks of a run, and raise what is wrong with its data."""
        found = frame.statuses or self._pending(frame)
        if found is not None:
            found.verify()

    def _pending(self, frame: Frame) -> PendingChecks | None:
        """What the run of a frame checks of its data, where only the device knows."""
        if not self._statuses or frame.statuses is not None:
            return None
        places = [frame.base(place) for place in self._statuses]
        return gathered(self.device, places, self.part.info.checks, self._symbols)

    def _inputs(self, frame: Frame, inputs: Sequence[Value], stays: Collection[int] = ()) -> list[Any]:
        """Memory with the inputs; those that stay where they are need no copy, however many places others have."""
        return [self.input_memory(frame, index, value, index in stays) for index, value in enumerate(inputs)]

    def input_memory(self, frame: Frame, index: int, value: Value, stays: bool = False) -> Any:
        """Memory with an input: its own, or the frame's with a copy."""
        if isinstance(value, DeviceArray) and (stays or not frame.copies):
            return value.memory
        memory = frame.own(ArgKind.INPUT, index)
        if isinstance(value, DeviceArray):
            self.device.copy(value.memory, 0, memory, 0, value.nbytes)
        else:
            self.device.write(memory, value)
        return memory

    def _outputs(self, frame: Frame, on_device: bool) -> list[Any]:
        if on_device:
            return [self.device.allocate(size) for size in self._output_bytes]
        return [frame.own(ArgKind.OUTPUT, index) for index in range(len(self._output_bytes))]

    def bound(self, inputs: Sequence[Value], held: Mapping[int, DeviceArray] = MappingProxyType({})) -> BoundRun:
        """A run with its arrays in place, to be started again and again; over what is held, where that may be."""
        frame = self.take()
        with self.device.lock:
            memory = self._inputs(frame, inputs, self._state_inputs)
        places = self._places_over(frame, held, False) if held else self._outputs(frame, on_device=False)
        return BoundRun(self, frame, memory, places)


class BoundRun:
    """A call whose inputs are on the device already, for timing: what a caller with arrays on the device would see."""

    def __init__(self, prepared: DevicePrepared, frame: Frame, inputs: list[Any], outputs: list[Any]) -> None:
        self.prepared = prepared
        self._frame = frame
        self._inputs = inputs
        self._outputs = outputs

    def start(self) -> None:
        """Start all kernels."""
        self._frame.run(self._inputs, self._outputs)

    def wait(self) -> None:
        """Wait until they are done."""
        self.prepared.device.wait()

    def measure(self, repeat: int) -> list[float]:
        """Seconds of all launches in a row by the device's clock, `repeat` times over."""
        calls = [call for step in self.calls() for call in step]
        return self.prepared.device.measure(calls, repeat) if calls else [0.0]

    def calls(self) -> list[list[BoundCall]]:
        """The launches of each step; none for steps on the host."""
        return self._frame.calls(self._inputs, self._outputs)


class DeviceRunner:
    """A static or symbolic model on a device."""

    def __init__(self, artifact: Artifact, device: Device, library: Library | None) -> None:
        assert artifact.model is not None
        self.model = artifact.model
        self.device = device
        code = DeviceCode(artifact, device, library)
        self.part = DevicePart(self.model, code)
        self.variants = {item.fixed: DevicePart(item, code) for item in self.model.variants}
        self._prepared: dict[tuple[tuple[int, ...], ...], DevicePrepared] = {}
        self._dtypes = [info.dtype for info in self.model.inputs]

    def admit(self, values: list[object], infos: Sequence[TensorInfo] | None = None) -> list[Value]:
        """Each input (those of `infos`, if given) as an array, on the host or on this device, checked."""
        self.device.activate()
        return [
            admit_value(value, info.dtype, self.device, f"the input '{info.name}'")
            for value, info in zip(values, self.model.inputs if infos is None else infos, strict=True)
        ]

    def prepare(self, inputs: Sequence[Value]) -> DevicePrepared:
        """The call for inputs of these shapes; a UserError names the input and the axis that does not fit."""
        shapes = tuple([array.shape for array in inputs])
        found = self._prepared.get(shapes)
        if found is None:
            symbols: dict[str, int] = {}
            for info, shape in zip(self.model.inputs, shapes, strict=True):
                bind_shape(info.shape, shape, symbols, f"the input '{info.name}'")
            values = tuple(symbols[name] for name in self.model.symbols)
            variant = self.variants.get(values) if values else None
            found = self.part.prepare(values) if variant is None else variant.prepare(())
            if len(self._prepared) >= _MOST_PREPARED:
                self._prepared.clear()
            self._prepared[shapes] = found
        return found

    @cached_property
    def tensor_reader(self) -> TensorReader | None:
        """What reads torch's tensors of the model's types, made when the first one comes."""
        return self.device.tensor_reader(self._dtypes)

    def tensors(self, values: Sequence[Any]) -> list[Any] | None:
        """One inference on tensors of torch's that can be read as they are, giving such tensors: the short way.

        None where there is more to do (another type or stream, strides, sizes that come for the first time).
        """
        places = None if self.tensor_reader is None else self.tensor_reader(values)
        if places is None:
            return None
        prepared = self._prepared.get(tuple([value.shape for value in values]))
        return None if prepared is None else prepared.tensors(places, values)

    def run(self, inputs: list[Value]) -> list[Any]:
        """One inference."""
        return self.prepare(inputs).call(inputs, on_device=False)

    def run_there(self, inputs: list[Value]) -> list[Any]:
        """One inference whose results stay on the device."""
        return self.prepare(inputs).call(inputs, on_device=True)

    def bound(self, inputs: list[Value]) -> BoundRun:
        """A run with its arrays on the device, to be started again and again."""
        return self.prepare(inputs).bound(inputs)


def admit_value(value: object, dtype: str, device: Device, where: str) -> Value:
    """A value as an array of a data type: in the device's memory if it is there already, else on the host."""
    imported: DeviceArray | None = None
    if isinstance(value, DeviceArray):
        imported = value if value.device is device else None
    elif not isinstance(value, np.ndarray):
        found = device.import_array(value)
        imported = None if found is None else DeviceArray(found.memory, found.shape, found.dtype, device)
    if imported is None:
        array, name = to_storage(value, dtype, where)
        result: Value = direct(array)
    else:
        result, name = imported, imported.dtype
    if name != dtype:
        raise UserError(
            f"{where} has the data type {name}, expected {dtype}",
            hint=f"convert it, for example with .astype('{dtype}')",
        )
    return result


def _evaluated(extent: Extent, names: dict[str, int]) -> int:
    number = evaluate(extent, names)
    if number is None:
        raise CompilerBug(f"no symbol of a kernel gives the extent '{extent}' a value")
    return number


def _nbytes(shape: tuple[int, ...], dtype: str) -> int:
    count = storage_dtype(dtype).itemsize
    for extent in shape:
        count *= extent
    return count
