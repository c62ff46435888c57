"""`Executable`: a compiled static-shape model, run through its one ahead-of-time entry point.

    y = exe(x)                          # arrays in the model's input order, or by name
    [y] = exe.run({"data": x})          # always numpy, in the model's output order
    print(exe.profile(x))

Calls are thread-safe: each takes a workspace of its own, reused when it is free again.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.runtime.artifact import Artifact, TensorInfo
from tilewright.runtime.convert import (
    Array,
    address_of,
    aligned_empty,
    direct,
    is_direct,
    is_torch,
    to_storage,
)
from tilewright.runtime.dtypes import storage_dtype
from tilewright.runtime.library import Library, bind, check_code, check_threads, thread_setter
from tilewright.runtime.module import Exporter, export
from tilewright.runtime.profiler import Profile, profile_steps
from tilewright.runtime.shapes import bind_shape
from tilewright.support.errors import CompilerBug, UserError
from tilewright.support.text import human_bytes, plural

_MINIMUM_WORKSPACE = 64


class _Frame:
    """What one call needs: a workspace and the arrays of pointers that the entry takes."""

    def __init__(self, inputs: int, outputs: int, workspace_bytes: int) -> None:
        try:
            self.workspace = aligned_empty((max(workspace_bytes, _MINIMUM_WORKSPACE),), np.dtype(np.uint8))
        except MemoryError:
            raise UserError(f"no memory for the model's workspace of {human_bytes(workspace_bytes)}") from None
        self.workspace_address = address_of(self.workspace)
        # C has no arrays of length 0; a spare slot is harmless.
        self.inputs = (ctypes.c_void_p * max(inputs, 1))()
        self.outputs = (ctypes.c_void_p * max(outputs, 1))()


class Executable:
    """A compiled model. `threads` is the number of threads it runs on (None: every core this process may use)."""

    def __init__(
        self, artifact: Artifact, library: Library, exporter: Exporter | None = None, threads: int | None = None
    ) -> None:
        if artifact.model is None:
            raise CompilerBug("an executable needs an artifact with a model")
        self.artifact = artifact
        self.model = artifact.model
        self.library = library
        self.threads = check_threads(threads if threads is not None else self.model.threads)
        self._exporter = exporter
        self._constants_address = _constants_address(artifact, library)
        pointer = ctypes.c_void_p
        self._entry = bind(library, self.model.entry, ctypes.c_int32, pointer, pointer, pointer, pointer)
        self._set_threads = thread_setter(library, self.model.name)
        self._input_places = {info.name: place for place, info in enumerate(self.model.inputs)}
        self._input_types = [(info, info.static_shape, storage_dtype(info.dtype)) for info in self.model.inputs]
        self._output_types = [(info.static_shape, storage_dtype(info.dtype)) for info in self.model.outputs]
        self._frames: deque[_Frame] = deque()

    @property
    def input_info(self) -> tuple[TensorInfo, ...]:
        """Name, shape and data type of each input, in order."""
        return self.model.inputs

    @property
    def output_info(self) -> tuple[TensorInfo, ...]:
        """Name, shape and data type of each output, in order."""
        return self.model.outputs

    def __call__(self, *arrays: object, **named: object) -> Any:
        """Run the model; one output comes back as it is, several as a tuple.

        The outputs are torch tensors when the first input is one, else numpy arrays.
        """
        values = self._by_position(arrays, named)
        outputs = self._run(values)
        if values and is_torch(values[0]):
            results = [_to_torch(array, info) for array, info in zip(outputs, self.model.outputs, strict=True)]
            return results[0] if len(results) == 1 else tuple(results)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def run(self, inputs: Mapping[str, object]) -> list[Array]:
        """Run the model on inputs by name; numpy arrays in the model's output order (bfloat16 as uint16 bits)."""
        return self._run(self._by_name(inputs))

    def set_num_threads(self, threads: int | None) -> None:
        """Run later calls on this many threads (None: every core this process may use)."""
        self.threads = check_threads(threads)

    def profile(self, *arrays: object, repeat: int = 10, **named: object) -> Profile:
        """Time every kernel of the model on these inputs, `repeat` times over, kernel by kernel."""
        if repeat < 1:
            raise UserError(f"the number of repeats must be at least 1, not {repeat}")
        kept = self._checked(self._by_position(arrays, named))
        outputs = self._new_outputs()
        frame = self._take_frame(kept, outputs)
        try:
            # Programs of one process share a pool, so each call says how many threads it wants.
            self._set_threads(self.threads or 0)

            def whole() -> None:
                self._call_entry(frame)

            return profile_steps(
                self.model,
                self.library,
                inputs=[address_of(array) for array in kept],
                outputs=[address_of(array) for array in outputs],
                workspace=frame.workspace_address,
                constants=self._constants_address,
                whole=whole,
                repeat=repeat,
            )
        finally:
            self._frames.append(frame)

    def export_library(self, path: str | os.PathLike[str]) -> None:
        """Write the model as one shared library (code, constants, entry point), with a C header beside it."""
        export(self._exporter, self.artifact.with_threads(self.threads), path)

    def __repr__(self) -> str:
        inputs = ", ".join(map(str, self.model.inputs))
        outputs = ", ".join(map(str, self.model.outputs))
        return f"Executable({self.model.name}: ({inputs}) -> ({outputs}))"

    def _by_position(self, arrays: tuple[object, ...], named: Mapping[str, object]) -> list[object]:
        if named:
            if len(arrays) > len(self.model.inputs):
                raise self._count_error(len(arrays))
            given = {info.name: value for info, value in zip(self.model.inputs, arrays, strict=False)}
            twice = sorted(set(given) & set(named))
            if twice:
                raise UserError(f"the input '{twice[0]}' is given twice, by position and by name")
            return self._by_name({**given, **named})
        if len(arrays) != len(self.model.inputs):
            raise self._count_error(len(arrays))
        return list(arrays)

    def _count_error(self, count: int) -> UserError:
        expected = ", ".join(map(str, self.model.inputs))
        return UserError(f"the model takes {plural(len(self.model.inputs), 'input')} ({expected}), not {count}")

    def _by_name(self, inputs: Mapping[str, object]) -> list[object]:
        known = self._input_places
        expected = ", ".join(known) or "none"
        for name in inputs:
            if name not in known:
                raise UserError(f"the model has no input '{name}'", hint=f"its inputs: {expected}")
        for info in self.model.inputs:
            if info.name not in inputs:
                raise UserError(f"the input '{info.name}' is missing", hint=f"the model needs {info}")
        return [inputs[info.name] for info in self.model.inputs]

    def _checked(self, values: list[object]) -> list[Array]:
        """Each input as an array whose memory the compiled code can read as it is."""
        arrays = []
        for value, (info, shape, dtype) in zip(values, self._input_types, strict=True):
            if type(value) is np.ndarray and value.dtype == dtype and value.shape == shape and is_direct(value):
                arrays.append(value)
                continue
            where = f"the input '{info.name}'"
            array, name = to_storage(value, info.dtype, where)
            if name != info.dtype:
                raise UserError(
                    f"{where} has the data type {name}, expected {info.dtype}",
                    hint=f"convert it, for example with .astype('{info.dtype}')",
                )
            bind_shape(shape, array.shape, {}, where)
            arrays.append(direct(array))
        return arrays

    def _new_outputs(self) -> list[Array]:
        try:
            return [aligned_empty(shape, dtype) for shape, dtype in self._output_types]
        except MemoryError:
            raise UserError("no memory for the model's outputs") from None

    def _run(self, values: list[object]) -> list[Array]:
        kept = self._checked(values)
        outputs = self._new_outputs()
        frame = self._take_frame(kept, outputs)
        try:
            # Programs of one process share a pool, so each call says how many threads it wants.
            self._set_threads(self.threads or 0)
            self._call_entry(frame)
        finally:
            self._frames.append(frame)
        return outputs

    def _take_frame(self, inputs: list[Array], outputs: list[Array]) -> _Frame:
        try:
            frame = self._frames.pop()
        except IndexError:
            frame = _Frame(len(inputs), len(outputs), self.model.workspace_bytes)
        for place, array in enumerate(inputs):
            frame.inputs[place] = address_of(array)
        for place, array in enumerate(outputs):
            frame.outputs[place] = address_of(array)
        return frame

    def _call_entry(self, frame: _Frame) -> None:
        code = self._entry(frame.inputs, frame.outputs, frame.workspace_address, self._constants_address)
        if code:
            check_code(code, f"the model '{self.model.name}'")


def _constants_address(artifact: Artifact, library: Library) -> int:
    """Constants live in the exported library, or in the artifact beside code that was compiled in this process."""
    if artifact.model is not None and library.find(f"{artifact.model.name}_constants") is not None:
        accessor = bind(library, f"{artifact.model.name}_constants", ctypes.c_void_p)
        return accessor() or 0
    artifact.constants = direct(artifact.constants)
    if address_of(artifact.constants) % 64 and artifact.constants.nbytes:
        aligned = aligned_empty(artifact.constants.shape, artifact.constants.dtype)
        aligned[...] = artifact.constants
        artifact.constants = aligned
    return address_of(artifact.constants)


def _to_torch(array: Array, info: TensorInfo) -> Any:
    torch: Any = sys.modules["torch"]
    if info.dtype == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
