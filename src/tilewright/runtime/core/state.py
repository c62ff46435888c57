"""State: values that a model keeps from call to call, in memory that belongs to its `Executable`.

    exe = tw.compile(module, state={"count": "count_after"})
    exe(x)                              # takes and gives what is no state
    exe.state["count"]                  # a copy of what it is now
    exe.state["count"] = 0
    exe.state.save("state.npz"); exe.state.load("state.npz")

A runner here stands in front of another one, which sees state as inputs and outputs like any others. Where the memory
plan proves it right, old and new value are one piece of memory; else there are two, which change places after a call.
Nothing is copied on a CPU. Calls come one after the other.
"""

from __future__ import annotations

import os
import threading
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.runtime.core.artifact import ModelInfo, StateInfo, TensorInfo
from tilewright.runtime.core.convert import Array, aligned_empty, direct, to_storage, to_user
from tilewright.runtime.core.dtypes import storage_dtype
from tilewright.runtime.core.entry import EntryRunner
from tilewright.runtime.core.shapes import show_shape
from tilewright.runtime.device.array import DeviceArray
from tilewright.runtime.device.model import BoundRun, DeviceRunner
from tilewright.runtime.device.over import RunOver
from tilewright.runtime.device.program import Device, TensorReader
from tilewright.runtime.vm.runner import ProgramRunner
from tilewright.support.errors import UserError
from tilewright.support.files import replacing

_MOST_RUNS = 64
"""Sets of sizes that are remembered."""


class StatefulRunner(ABC):
    """A model with state: `model` is what a call sees of it, `inner` runs it."""

    inner: EntryRunner | ProgramRunner | DeviceRunner

    def __init__(self, model: ModelInfo) -> None:
        self.whole = model
        kept = {item.input for item in model.state}
        given = {item.output for item in model.state}
        self._inputs = [number for number in range(len(model.inputs)) if number not in kept]
        self._outputs = [number for number in range(len(model.outputs)) if number not in given]
        self.model = replace(
            model,
            inputs=tuple(model.inputs[number] for number in self._inputs),
            outputs=tuple(model.outputs[number] for number in self._outputs),
            state=(),
        )
        self.infos = [model.inputs[item.input] for item in model.state]
        self.lock = threading.RLock()

    def admit(self, values: list[object]) -> list[Any]:
        """Each input of a call as the model's code takes it, checked."""
        with self.lock:
            admitted = self.inner.admit(self.joined(values))
        return [admitted[number] for number in self._inputs]

    def run(self, values: list[Any]) -> list[Any]:
        """One call: the outputs that are no state."""
        with self.lock:
            outputs = self._run(self.joined(values))
        return [outputs[number] for number in self._outputs]

    def joined(self, values: Sequence[Any]) -> list[Any]:
        """All inputs of the model: those of a call, and state."""
        found: list[Any] = [None] * len(self.whole.inputs)
        for number, value in zip(self._inputs, values, strict=True):
            found[number] = value
        for item, held in zip(self.whole.state, self._held(), strict=True):
            found[item.input] = held
        return found

    @abstractmethod
    def _held(self) -> Sequence[Any]:
        """State as the model's code takes it."""

    @abstractmethod
    def _run(self, values: list[Any]) -> list[Any]:
        """Run on all inputs, and take over the new values of state."""

    @abstractmethod
    def read(self, number: int) -> Array:
        """A copy of a piece of state."""

    @abstractmethod
    def write(self, number: int, array: Array) -> None:
        """Give a piece of state a value; array and state have the same type and shape."""


class EntryState(StatefulRunner):
    """State of a model of kernels on a CPU."""

    inner: EntryRunner

    def __init__(self, inner: EntryRunner, model: ModelInfo) -> None:
        super().__init__(model)
        self.inner = inner
        self._buffers = [_zeros(info) for info in self.infos]
        self._spare: list[Array | None] = [None] * len(self.infos)

    def _held(self) -> Sequence[Any]:
        return self._buffers

    def _run(self, values: list[Any]) -> list[Any]:
        prepared = self.inner.prepare(values)
        # A variant for fixed sizes has a plan of its own.
        state = prepared.part.info.state
        places: dict[int, Array] = {item.output: self._place(at, item) for at, item in enumerate(state)}
        outputs = self.inner.run_over(values, prepared, places)
        for at, item in enumerate(state):
            if not item.in_place:
                self._buffers[at], self._spare[at] = places[item.output], self._buffers[at]
        return outputs

    def _place(self, at: int, item: StateInfo) -> Array:
        """Where a new value goes."""
        if item.in_place:
            return self._buffers[at]
        spare = self._spare[at]
        if spare is None:
            spare = self._spare[at] = _zeros(self.infos[at])
        return spare

    def read(self, number: int) -> Array:
        """A copy of a piece of state."""
        return self._buffers[number].copy()

    def write(self, number: int, array: Array) -> None:
        """Give a piece of state a value."""
        self._buffers[number][...] = array


class ProgramState(StatefulRunner):
    """State of a program of the virtual machine, whose results are arrays of their own."""

    inner: ProgramRunner

    def __init__(self, inner: ProgramRunner, model: ModelInfo) -> None:
        super().__init__(model)
        self.inner = inner
        self._arrays = [_zeros(info) for info in self.infos]

    def _held(self) -> Sequence[Any]:
        return self._arrays

    def _run(self, values: list[Any]) -> list[Any]:
        outputs = self.inner.run(values)
        self._arrays = [outputs[item.output] for item in self.whole.state]
        return outputs

    def read(self, number: int) -> Array:
        """A copy of a piece of state."""
        return self._arrays[number].copy()

    def write(self, number: int, array: Array) -> None:
        """Give a piece of state a value."""
        self._arrays[number] = direct(array.copy())


class DeviceState(StatefulRunner):
    """State of a model of kernels on a device: it stays there between calls."""

    inner: DeviceRunner

    def __init__(self, inner: DeviceRunner, model: ModelInfo) -> None:
        super().__init__(model)
        self.inner = inner
        device = inner.device
        device.activate()
        self._arrays = [
            DeviceArray(device.upload(_zeros(info)), info.static_shape, info.dtype, device) for info in self.infos
        ]
        self._by_input = dict(zip((item.input for item in model.state), self._arrays, strict=True))
        self._by_output = dict(zip((item.output for item in model.state), self._arrays, strict=True))
        self._runs: dict[tuple[Any, ...], RunOver] = {}
        self._dtypes = [info.dtype for info in self.model.inputs]

    def _held(self) -> Sequence[Any]:
        return self._arrays

    @property
    def device(self) -> Device:
        """Where state is."""
        return self.inner.device

    def admit(self, values: list[object]) -> list[Any]:
        """Each input of a call as the model's code takes it, checked."""
        return list(self.inner.admit(values, self.model.inputs))

    def run(self, values: list[Any]) -> list[Any]:
        """One call: the outputs that are no state."""
        with self.lock:
            found = self._over(values).arrays(values)
        return super().run(values) if found is None else list(found)

    def _run(self, values: list[Any]) -> list[Any]:
        return self.inner.prepare(values).call_over(values, self._by_output, on_device=False)

    def run_there(self, values: list[Any]) -> list[Any]:
        """One call whose results stay on the device."""
        with self.lock:
            whole = self.joined(values)
            outputs = self.inner.prepare(whole).call_over(whole, self._by_output, on_device=True)
        return [outputs[number] for number in self._outputs]

    @cached_property
    def tensor_reader(self) -> TensorReader | None:
        """What reads torch's tensors of a call's types, made when the first one comes."""
        return self.device.tensor_reader(self._dtypes)

    def tensors(self, values: Sequence[Any]) -> list[Any] | None:
        """One call on tensors of torch's that can be read as they are, giving such tensors: the short way, or None."""
        places = None if self.tensor_reader is None else self.tensor_reader(values)
        if places is None:
            return None
        with self.lock:
            return self._over(values).tensors(places, values)

    def _over(self, values: Sequence[Any]) -> RunOver:
        """Runs on values of these sizes."""
        shapes = tuple([value.shape for value in values])
        run = self._runs.get(shapes)
        if run is None:
            if len(self._runs) >= _MOST_RUNS:
                self._runs.clear()
            prepared = self.inner.prepare(self.joined(values))
            run = self._runs[shapes] = RunOver(prepared, self._by_input, self._by_output)
        return run

    def bound(self, values: list[Any]) -> BoundRun:
        """A run with its arrays on the device and state where it is, to be started again and again."""
        whole = self.joined(values)
        return self.inner.prepare(whole).bound(whole, self._by_output)

    def read(self, number: int) -> Array:
        """A copy of a piece of state."""
        return np.array(self._arrays[number].numpy())

    def write(self, number: int, array: Array) -> None:
        """Give a piece of state a value."""
        device = self.inner.device
        device.activate()
        device.write(self._arrays[number].memory, direct(array))


def _zeros(info: TensorInfo) -> Array:
    made = aligned_empty(info.static_shape, storage_dtype(info.dtype))
    made[...] = 0
    return made


def stateful(inner: EntryRunner | ProgramRunner | DeviceRunner, model: ModelInfo) -> StatefulRunner:
    """The runner of a model with state."""
    if isinstance(inner, DeviceRunner):
        return DeviceState(inner, model)
    return ProgramState(inner, model) if isinstance(inner, ProgramRunner) else EntryState(inner, model)


class State(MutableMapping[str, Any]):
    """The state of an executable, by the names of its inputs: arrays in, copies out.

    It is zeros at first. A call that fails leaves it as it was.
    """

    def __init__(self, runner: StatefulRunner | None) -> None:
        self._runner = runner
        infos = [] if runner is None else runner.infos
        self._places = {info.name: number for number, info in enumerate(infos)}
        self.info: tuple[TensorInfo, ...] = tuple(infos)
        """Name, shape and data type of each value."""

    def __getitem__(self, name: str) -> Any:
        runner, number = self._find(name)
        with runner.lock:
            return to_user(runner.read(number), self.info[number].dtype)

    def __setitem__(self, name: str, value: object) -> None:
        runner, number = self._find(name)
        array = self._checked(self.info[number], value)
        with runner.lock:
            runner.write(number, array)

    def __delitem__(self, name: str) -> None:
        self._find(name)
        raise UserError(f"the state '{name}' belongs to the model", hint="set it to another value")

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __repr__(self) -> str:
        return f"State({', '.join(map(str, self.info))})"

    def assign(self, values: Mapping[str, object]) -> None:
        """Give several values at once: all are checked before the first is written."""
        found = [(self._find(name), value) for name, value in values.items()]
        arrays = [self._checked(self.info[number], value) for (_, number), value in found]
        if self._runner is not None:
            with self._runner.lock:
                for ((runner, number), _), array in zip(found, arrays, strict=True):
                    runner.write(number, array)

    def snapshot(self) -> dict[str, Any]:
        """Copies of all values, as they are between two calls."""
        if self._runner is None:
            return {}
        with self._runner.lock:
            return {name: self[name] for name in self}

    def reset(self) -> None:
        """Make everything zero again."""
        self.assign({info.name: np.zeros(info.static_shape, storage_dtype(info.dtype)) for info in self.info})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all values to a .npz file, which is there whole or not at all."""
        write_arrays(Path(path), self._stored())

    def _stored(self) -> dict[str, Array]:
        if self._runner is None:
            return {}
        with self._runner.lock:
            return {name: self._runner.read(number) for name, number in self._places.items()}

    def load(self, path: str | os.PathLike[str]) -> None:
        """Take all values from a file that `save` wrote; it must have exactly these, of these types and shapes."""
        arrays = read_arrays(Path(path))
        for name in self:
            if name not in arrays:
                raise UserError(f"the file has no state '{name}'", where=str(path))
        for name in arrays:
            if name not in self:
                raise UserError(f"the file has the state '{name}', which the model has not", where=str(path))
        self.assign(arrays)

    def _find(self, name: str) -> tuple[StatefulRunner, int]:
        if self._runner is None or name not in self._places:
            known = ", ".join(self._places) or "none"
            raise UserError(f"the model has no state '{name}'", hint=f"its state: {known}")
        return self._runner, self._places[name]

    @staticmethod
    def _checked(info: TensorInfo, value: object) -> Array:
        where = f"the state '{info.name}'"
        array, name = to_storage(value, info.dtype, where)
        if name != info.dtype and array.dtype != storage_dtype(info.dtype):
            raise UserError(
                f"{where} has the data type {info.dtype}, not {name}",
                hint=f"convert it, for example with .astype('{info.dtype}')",
            )
        if array.shape != info.static_shape:
            raise UserError(f"{where} has the shape {show_shape(info.static_shape)}, not {show_shape(array.shape)}")
        return array


def write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays by name to a .npz file, which is there whole or not at all, even after a power failure."""
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, allow_pickle=False, **{f"array_{name}": array for name, array in arrays.items()})
        file.flush()
        os.fsync(file.fileno())


def read_arrays(path: Path) -> dict[str, Array]:
    """The arrays that `write_arrays` wrote."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name.removeprefix("array_"): file[name] for name in file.files}
    except FileNotFoundError:
        raise UserError("there is no such file", where=str(path)) from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, AttributeError) as error:
        raise UserError(f"the file is no .npz file, or damaged: {error}", where=str(path)) from None
