"""`Executable`: a compiled model, ready to run.

    y = exe(x)                          # arrays in the model's input order, or by name
    [y] = exe.run({"data": x})          # always numpy, in the model's output order
    print(exe.profile(x))

Calls are thread-safe: each takes a workspace of its own, reused when it is free again.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.runtime.core.artifact import Artifact, TensorInfo
from tilewright.runtime.core.convert import (
    HOST_DEVICES,
    direct,
    is_jax,
    is_torch,
    to_jax,
    to_storage,
    to_user,
    view_of_torch,
)
from tilewright.runtime.core.dtypes import SMALL_FLOATS
from tilewright.runtime.core.entry import AbsentRunner, EntryRunner
from tilewright.runtime.core.function_table import check_repeats
from tilewright.runtime.core.library import Library, check_threads, thread_setter
from tilewright.runtime.core.module import Exportable, Exporter, TimingResult, exported_bytes, timed
from tilewright.runtime.core.outputs import as_list, copy_into, user_arrays
from tilewright.runtime.core.profiler import Profile, profile_entry, profile_program
from tilewright.runtime.core.state import DeviceState, State, StatefulRunner, stateful
from tilewright.runtime.device.array import DeviceArray
from tilewright.runtime.device.devices import choosing, find_device
from tilewright.runtime.device.model import DeviceRunner
from tilewright.runtime.device.profiler import profile_device
from tilewright.runtime.device.timeline import Timeline, timeline_of
from tilewright.runtime.vm.runner import ProgramRunner
from tilewright.support.errors import CompilerBug, UserError
from tilewright.support.text import plural, table


class Executable(Exportable):
    """A compiled model. `threads` is the number of threads it runs on (None: every core this process may use).

    A model for a device runs on `device`; `library` then has what the host computes. Where that device is `absent`, for
    the reason given, the model can be exported and every call is that error.
    """

    def __init__(
        self,
        artifact: Artifact,
        library: Library,
        exporter: Exporter | None = None,
        threads: int | None = None,
        absent: UserError | None = None,
    ) -> None:
        if artifact.model is None:
            raise CompilerBug("an executable needs an artifact with a model")
        self.artifact = artifact
        self.model = artifact.model
        self.library = library
        self.device = None if artifact.device is None or absent is not None else find_device(artifact.device.kind)
        self._absent = absent
        self.threads = check_threads(threads if threads is not None else self.model.threads)
        self._exporter = exporter
        self._runner: EntryRunner | ProgramRunner | DeviceRunner | StatefulRunner
        if absent is not None:
            self._runner = AbsentRunner(self.model, absent)
        elif self.model.program:
            self._runner = ProgramRunner(artifact, library, self.device)
        elif self.device is not None:
            self._runner = DeviceRunner(artifact, self.device, library)
        else:
            self._runner = EntryRunner(artifact, library)
        self._interface = self.model
        """What a call sees of the model: without state."""
        kept: StatefulRunner | None = None
        if self.model.state and not isinstance(self._runner, AbsentRunner):
            self._runner = kept = stateful(self._runner, self.model)
            self._interface = kept.model
        self.state = State(kept)
        """The values that the model keeps from call to call, by the names of its inputs."""
        self._entry = self._runner if type(self._runner) is EntryRunner else None
        self._there = self._runner.tensors if isinstance(self._runner, (DeviceRunner, DeviceState)) else None
        """The short way of a call with torch's tensors, on devices that have one."""
        self._is_mixed = artifact.device is not None and any(item.on_host for item in artifact.device.kernels)
        self._set_threads = thread_setter(library, self.model.name)
        self._input_places = {info.name: place for place, info in enumerate(self._interface.inputs)}

    @property
    def runner(self) -> EntryRunner | ProgramRunner | DeviceRunner | StatefulRunner:
        """What runs the model: for tools that look closer."""
        return self._runner

    @property
    def input_info(self) -> tuple[TensorInfo, ...]:
        """Name, shape and data type of each input, in order."""
        return self._interface.inputs

    @property
    def output_info(self) -> tuple[TensorInfo, ...]:
        """Name, shape and data type of each output, in order."""
        return self._interface.outputs

    def __call__(self, *arrays: object, out: object = None, **named: object) -> Any:
        """Run the model; one output comes back as it is, several as a tuple.

        The outputs are torch tensors or arrays of jax's when the first input is one, else numpy arrays. Where the first
        input is on the device that the model runs on, so are the outputs, which may still be computed. `out` is an
        array (for several outputs a list of arrays) that the results are written into, and that then comes back; where
        an input of the model is named `out`, the word means that input, and `run` takes arrays for the results.
        """
        if out is None and not named and self._there is not None:
            if self._is_mixed:
                self._set_threads(self.threads or 0)
            there = self._there(arrays)
            if there is not None:
                return there[0] if len(there) == 1 else tuple(there)
        elif out is None and not named and self._entry is not None:
            # Programs of one process share a pool, so each call says how many threads it wants.
            self._set_threads(self.threads or 0)
            plain = self._entry.run_plain(arrays)
            if plain is not None:
                plain = self._to_user(plain)
            elif arrays and is_torch(arrays[0]):
                plain = self._entry.run_plain([view_of_torch(array) for array in arrays])
                plain = None if plain is None else self._to_torch(plain)
            if plain is not None:
                return plain[0] if len(plain) == 1 else tuple(plain)
        if out is not None:
            if "out" not in self._input_places:
                written = self._run_into(self._by_position(arrays, named), out)
                return written[0] if len(written) == 1 else tuple(written)
            named = {**named, "out": out}
        values = self._by_position(arrays, named)
        if isinstance(self._runner, (DeviceRunner, DeviceState)) and values and _is_on_device(values[0]):
            return self._run_there(values, bool(named))
        outputs = self._run(values)
        if values and is_torch(values[0]):
            results = self._to_torch(outputs)
            return results[0] if len(results) == 1 else tuple(results)
        outputs = self._to_user(outputs)
        if values and is_jax(values[0]):
            outputs = [to_jax(array) for array in outputs]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def run(self, inputs: Mapping[str, object], out: object = None) -> list[Any]:
        """Run the model on inputs by name; numpy arrays in the model's output order.

        Types that numpy lacks (bfloat16, floats of 8 bits, integers of 4) are those of the package `ml_dtypes`, or, if
        it is not installed, as models hold them: bits in uint16, one to a byte.

        Outputs that are no tensors are tuples, lists, None and `runtime.DataValue`. `out` is an array, or a list of
        arrays, that the results are written into, and that then comes back.
        """
        if out is not None:
            return self._run_into(self._by_name(inputs), out)
        values = self._by_name(inputs)
        plain = None
        if self._entry is not None:
            self._set_threads(self.threads or 0)
            plain = self._entry.run_plain(values)
        return self._to_user(self._run(values) if plain is None else plain)

    def _to_user(self, outputs: list[Any]) -> list[Any]:
        return [to_user(array, info.dtype) for array, info in zip(outputs, self._interface.outputs, strict=True)]

    def _to_torch(self, outputs: list[Any]) -> list[Any]:
        return [_to_torch(array, info) for array, info in zip(outputs, self._interface.outputs, strict=True)]

    def _run_into(self, values: list[object], out: object) -> list[Any]:
        """One run whose results go into arrays of the user's."""
        given = as_list(out, self._interface.outputs)
        arrays = user_arrays(given, self._interface.outputs)
        kept: list[Any] = self._runner.admit(values)
        self._set_threads(self.threads or 0)
        if isinstance(self._runner, EntryRunner):
            self._runner.run_into(kept, arrays)
        else:
            copy_into(arrays, self._runner.run(kept), self._interface.outputs)
        return given

    def _run_there(self, values: list[object], is_new: bool) -> Any:
        """Run on a device, results left there; the short way, too, where these values are new to it."""
        assert isinstance(self._runner, (DeviceRunner, DeviceState))
        self._set_threads(self.threads or 0)
        results = self._runner.tensors(values) if is_new else None
        if results is None:
            with self._runner.device.joined():
                results = self._runner.run_there(self._runner.admit(values))
                if is_torch(values[0]):
                    torch: Any = sys.modules["torch"]
                    results = [torch.from_dlpack(array) for array in results]
        return results[0] if len(results) == 1 else tuple(results)

    def to_device(self, array: object, dtype: str | None = None) -> DeviceArray:
        """A copy of an array in the memory of the device that the model runs on."""
        if isinstance(self._runner, AbsentRunner):
            raise self._runner.complaint()
        if self.device is None:
            raise UserError("the model runs on the CPU: it has no other device")
        source, name = to_storage(array, dtype, "the array")
        self.device.activate()
        return DeviceArray(self.device.upload(direct(source)), source.shape, name, self.device)

    def time_evaluator(self, number: int = 10, repeat: int = 3) -> Callable[..., TimingResult]:
        """A function that times the model: `repeat` figures, each the average of `number` runs, after one to warm up.

        On a device the arrays are there before the clock starts, and each figure waits for the device once.
        """
        check_repeats(number, repeat)

        def evaluate(*arrays: object, **named: object) -> TimingResult:
            kept: list[Any] = self._runner.admit(self._by_position(arrays, named))
            self._set_threads(self.threads or 0)
            if isinstance(self._runner, (DeviceRunner, DeviceState)):
                bound = self._runner.bound(kept)
                return timed(bound.start, number, repeat, bound.wait)
            runner, values = self._runner, kept
            return timed(lambda: runner.run(values), number, repeat)

        return evaluate

    def set_num_threads(self, threads: int | None) -> None:
        """Run later calls on this many threads (None: every core this process may use)."""
        self.threads = check_threads(threads)

    def profile(self, *arrays: object, repeat: int = 10, **named: object) -> Profile:
        """Time every kernel of the model on these inputs, `repeat` times over, kernel by kernel."""
        return self.profile_by(time.perf_counter, self._by_position(arrays, named), repeat)

    def profile_by(self, clock: Callable[[], float], arrays: Sequence[object], repeat: int) -> Profile:
        """The same by another clock: for models of one thread, `time.thread_time` leaves out what else a machine does.

        Only kernels on a CPU that run one after the other are timed by it.
        """
        if repeat < 1:
            raise UserError(f"the number of repeats must be at least 1, not {repeat}")
        runner, kept = self._whole(arrays)
        self._set_threads(self.threads or 0)
        if isinstance(runner, EntryRunner):
            return profile_entry(runner, self.library, kept, repeat, clock)
        if isinstance(runner, DeviceRunner):
            return profile_device(runner, kept, repeat)
        return profile_program(runner, kept, repeat)

    def _whole(self, arrays: Sequence[object]) -> tuple[EntryRunner | ProgramRunner | DeviceRunner, list[Any]]:
        """What runs the model on state as on any inputs, for tools that run its kernels by themselves, and these.

        They write new values elsewhere: state does not change.
        """
        kept: list[Any] = self._runner.admit(list(arrays))
        if isinstance(self._runner, StatefulRunner):
            return self._runner.inner, self._runner.joined(kept)
        return self._runner, kept

    def timeline(self, *arrays: object, **named: object) -> Timeline:
        """When each kernel of a run on these inputs began and ended, on the device and on the host beside it."""
        runner, kept = self._whole(self._by_position(arrays, named))
        if not isinstance(runner, DeviceRunner):
            raise UserError(
                "only models on devices have a timeline, and only those of kernels alone",
                hint="profile() has the time of each kernel",
            )
        self._set_threads(self.threads or 0)
        return timeline_of(runner, kept)

    def placement(self) -> str:
        """A table of where each kernel runs, and why where that is not the model's device."""
        device = self.artifact.device
        if device is None:
            raise UserError("the model runs on the CPU alone: there is nothing to place")
        rows = [
            ("host" if kernel.on_host else device.kind, kernel.symbol, kernel.on_host.partition("\n")[0])
            for kernel in device.kernels
        ]
        return table(("where", "kernel", "why on the host"), rows)

    def _exported(self) -> tuple[Exporter | None, Artifact]:
        return self._exporter, self.artifact.with_threads(self.threads)

    def to_bytes(self) -> bytes:
        """The model as the bytes of a shared library, for `tw.load`; it is what pickles of an executable hold."""
        return exported_bytes(self._exporter, self.artifact.with_threads(self.threads), "model")

    def __copy__(self) -> Executable:
        kind = "" if self.artifact.device is None else self.artifact.device.kind
        with choosing(kind, 0 if self.device is None else self.device.index):
            made = Executable(self.artifact, self.library, self._exporter, self.threads, self._absent)
        made.state.assign(self.state.snapshot())
        return made

    def __deepcopy__(self, memo: dict[int, object]) -> Executable:
        # Code and constants are never written, so that two executables may share them.
        return self.__copy__()

    def __repr__(self) -> str:
        inputs = ", ".join(map(str, self._interface.inputs))
        outputs = ", ".join(map(str, self._interface.outputs))
        return f"Executable({self.model.name}: ({inputs}) -> ({outputs}))"

    def _by_position(self, arrays: tuple[object, ...], named: Mapping[str, object]) -> list[object]:
        if named:
            if len(arrays) > len(self._interface.inputs):
                raise self._count_error(len(arrays))
            given = {info.name: value for info, value in zip(self._interface.inputs, arrays, strict=False)}
            twice = sorted(set(given) & set(named))
            if twice:
                raise UserError(f"the input '{twice[0]}' is given twice, by position and by name")
            return self._by_name({**given, **named})
        if len(arrays) != len(self._interface.inputs):
            raise self._count_error(len(arrays))
        return list(arrays)

    def _count_error(self, count: int) -> UserError:
        expected = ", ".join(map(str, self._interface.inputs))
        return UserError(f"the model takes {plural(len(self._interface.inputs), 'input')} ({expected}), not {count}")

    def _by_name(self, inputs: Mapping[str, object]) -> list[object]:
        known = self._input_places
        if inputs.keys() == known.keys():
            return [inputs[name] for name in known]
        expected = ", ".join(known) or "none"
        for name in inputs:
            if name not in known:
                raise UserError(f"the model has no input '{name}'", hint=f"its inputs: {expected}")
        for info in self._interface.inputs:
            if info.name not in inputs:
                raise UserError(f"the input '{info.name}' is missing", hint=f"the model needs {info}")
        return [inputs[info.name] for info in self._interface.inputs]

    def _run(self, values: list[object]) -> list[Any]:
        kept: list[Any] = self._runner.admit(values)
        self._set_threads(self.threads or 0)
        return self._runner.run(kept)


def _is_on_device(value: object) -> bool:
    """Whether an array is in memory that is not the host's."""
    if isinstance(value, DeviceArray):
        return True
    if is_torch(value):
        tensor: Any = value
        return bool(tensor.device.type != "cpu")
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack_device__"):
        return False
    return int(value.__dlpack_device__()[0]) not in HOST_DEVICES


def _to_torch(array: Any, info: TensorInfo) -> Any:
    if not isinstance(array, np.ndarray) or array.dtype == object:
        return array
    torch: Any = sys.modules["torch"]
    if info.dtype == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    if info.dtype in SMALL_FLOATS and hasattr(torch, info.dtype):
        return torch.from_numpy(array).view(getattr(torch, info.dtype))
    return torch.from_numpy(array)
