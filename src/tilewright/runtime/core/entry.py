"""Calling the ahead-of-time code of a model: workspaces, pointers, and for symbolic shapes the sizes of a call.

A `Part` is one entry (a model, a segment of a program, a variant for fixed sizes). A call of it is prepared once for
each set of sizes (`Prepared`) and then costs little more than the native call itself.
"""

from __future__ import annotations

import ctypes
import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy import empty

from tilewright.runtime.core.artifact import ArgKind, Artifact, ModelInfo, TensorInfo
from tilewright.runtime.core.checks import FIRST_CODE, STATUS_SIZE, failed_check
from tilewright.runtime.core.convert import (
    ALIGNMENT,
    Array,
    address_of,
    addressof,
    aligned_empty,
    direct,
    from_buffer,
    lasting_empty,
    placed_empty,
    to_storage,
)
from tilewright.runtime.core.dtypes import is_sub_byte, storage_dtype
from tilewright.runtime.core.library import Library, bind, check_code
from tilewright.runtime.core.outputs import copy_into, written
from tilewright.runtime.core.shapes import bind_shape, evaluate
from tilewright.support.errors import CompilerBug, UserError
from tilewright.support.text import human_bytes

_MINIMUM_WORKSPACE = 64
LARGEST_BYTES = 1 << 48
"""More memory than any machine has."""
_SMALL_BYTES = 4096
"""Results up to this size come from numpy as they are: to place them on a cache line costs more than it gives."""
_MOST_PREPARED = 256
"""Sets of sizes that are remembered; more of them are prepared anew."""

OutputTypes = list[tuple[tuple[int, ...], "np.dtype[Any]"]]


class Prepared:
    """A call of one entry for known sizes."""

    __slots__ = ("inputs", "is_small", "output_bytes", "outputs", "part", "symbols", "values", "workspace_bytes")

    def __init__(
        self, part: Part, values: tuple[int, ...], symbols: Any, outputs: OutputTypes, workspace_bytes: int
    ) -> None:
        self.part = part
        self.values = values
        self.symbols = symbols
        self.outputs = outputs
        self.output_bytes = [math.prod(shape) * dtype.itemsize for shape, dtype in outputs]
        self.is_small = all(0 < size <= _SMALL_BYTES for size in self.output_bytes)
        self.inputs = part.input_sizes(values)
        self.workspace_bytes = workspace_bytes

    def new_outputs(self) -> list[Array]:
        """Uninitialised arrays for the results."""
        try:
            return [aligned_empty(shape, dtype) for shape, dtype in self.outputs]
        except MemoryError:
            raise UserError("no memory for the model's outputs") from None

    def call(self, inputs: Sequence[int], outputs: Sequence[int], workspace: int) -> None:
        """Run the entry on addresses."""
        part = self.part
        tables = part.take_tables()
        tables.inputs[: len(inputs)] = inputs
        tables.outputs[: len(outputs)] = outputs
        if self.symbols is None:
            code = part.entry(tables.inputs_address, tables.outputs_address, workspace, part.constants_address)
        else:
            code = part.entry(
                tables.inputs_address, tables.outputs_address, workspace, part.constants_address, self.symbols
            )
        part.free_tables.append(tables)
        if code:
            self._fail(code, workspace, outputs)

    def call_in(self, frame: Frame) -> None:
        """Run the entry on the addresses of a frame."""
        part = self.part
        if self.symbols is None:
            code = part.entry(
                frame.inputs_address, frame.outputs_address, frame.workspace_address, part.constants_address
            )
        else:
            code = part.entry(
                frame.inputs_address,
                frame.outputs_address,
                frame.workspace_address,
                part.constants_address,
                self.symbols,
            )
        if code:
            self._fail(code, frame.workspace_address, frame.result_addresses())

    def _fail(self, code: int, workspace: int, outputs: Sequence[int]) -> None:
        """Raise what a code of the entry stands for; what a check found is in the workspace."""
        info = self.part.info
        number = code - FIRST_CODE - info.first_check
        if not 0 <= number < len(info.checks):
            check_code(code, f"the model '{info.name}'")
        check = info.checks[number]
        symbols = dict(zip(info.symbols, self.values, strict=True))
        place = info.steps[check.step].args[1]
        # It is an output of a segment of which nothing else is needed.
        starts = outputs if place.kind is ArgKind.OUTPUT else [workspace + at for at in slot_starts(info, symbols)]
        status = (ctypes.c_int64 * STATUS_SIZE).from_address(starts[place.index] + place.offset)
        raise failed_check(check, tuple(status), symbols)


def slot_starts(info: ModelInfo, symbols: dict[str, int]) -> list[int]:
    """Where the slots of a symbolic workspace start; a static one is a single slot."""
    starts = [0]
    for size in info.slots:
        starts.append(starts[-1] + -(-max(evaluate(size, symbols) or 0, 0) // ALIGNMENT) * ALIGNMENT)
    return starts


class Part:
    """The code of one entry."""

    def __init__(self, info: ModelInfo, library: Library, constants_address: int) -> None:
        self.info = info
        self.constants_address = constants_address
        pointer = ctypes.c_void_p
        extra = (pointer,) if info.symbols else ()
        self.entry = bind(library, info.entry, ctypes.c_int32, pointer, pointer, pointer, pointer, *extra)
        self.address = library.symbol(info.entry)
        # C has no arrays of length 0; a spare slot is harmless.
        self.inputs_type = ctypes.c_void_p * max(len(info.inputs), 1)
        self.outputs_type = ctypes.c_void_p * max(len(info.outputs), 1)
        self.symbols_type = ctypes.c_int64 * max(len(info.symbols), 1)
        self.ranks = [len(item.shape) for item in info.outputs]
        self.dtypes = [storage_dtype(item.dtype) for item in info.outputs]
        self._dims_type = ctypes.c_int64 * max(sum(self.ranks), 1)
        self.free_tables: deque[Tables] = deque()
        self._prepared: dict[tuple[int, ...], Prepared] = {}
        self._fixed: Prepared | None = None
        if info.symbols:
            self.plan = bind(library, info.planner, ctypes.c_int32, pointer, pointer, pointer)
        else:
            outputs = [(item.static_shape, dtype) for item, dtype in zip(info.outputs, self.dtypes, strict=True)]
            self._fixed = Prepared(self, (), None, outputs, info.workspace_bytes)

    def take_tables(self) -> Tables:
        """Tables that nobody else has; whoever is done with them puts them back on `free_tables`."""
        try:
            return self.free_tables.pop()
        except IndexError:
            return Tables(self)

    def input_sizes(self, values: tuple[int, ...]) -> list[tuple[int, np.dtype[Any]]]:
        """How many elements of which type the entry reads from each input at least.

        Of an input with a size that nothing decides (-1) it reads nothing: no kernel could say how much.
        """
        symbols = dict(zip(self.info.symbols, values, strict=True))
        sizes = []
        for info in self.info.inputs:
            extents = [evaluate(extent, symbols) for extent in info.shape]
            known = [extent for extent in extents if extent is not None]
            count = math.prod(known) if len(known) == len(extents) else -1
            sizes.append((count, storage_dtype(info.dtype)))
        return sizes

    def prepare(self, values: tuple[int, ...]) -> Prepared:
        """A call for values of the symbols."""
        if self._fixed is not None:
            return self._fixed
        prepared = self._prepared.get(values)
        if prepared is None:
            symbols = self.symbols_type(*values)
            dims = self._dims_type()
            size = ctypes.c_int64()
            code = self.plan(symbols, dims, ctypes.byref(size))
            prepared = self.finish(code, symbols, dims, size.value)
            if len(self._prepared) >= _MOST_PREPARED:
                self._prepared.clear()
            self._prepared[values] = prepared
        return prepared

    def finish(self, code: int, symbols: Any, dims: Any, workspace_bytes: int) -> Prepared:
        """The call that planned sizes describe; `code` is what the planning function returned."""
        if code:
            raise self._size_error(-1 - code, symbols)
        self._check_bytes(symbols, workspace_bytes)
        outputs: OutputTypes = []
        place = 0
        for rank, dtype in zip(self.ranks, self.dtypes, strict=True):
            outputs.append((tuple(dims[place : place + rank]), dtype))
            place += rank
        return Prepared(self, tuple(symbols[: len(self.info.symbols)]), symbols, outputs, workspace_bytes)

    def _check_bytes(self, symbols: Any, workspace_bytes: int) -> None:
        """Refuse sizes whose bytes are no 64-bit numbers: in the native plan they have wrapped around."""
        values = dict(zip(self.info.symbols, symbols, strict=False))
        bytes_of = [evaluate(size, values) or 0 for size in self.info.slots]
        total = sum(-(-size // ALIGNMENT) * ALIGNMENT for size in bytes_of)
        if total > max(workspace_bytes, LARGEST_BYTES) or any(size < 0 for size in bytes_of):
            sizes = ", ".join(f"{name} = {value}" for name, value in values.items())
            raise UserError(f"no memory for the model's workspace of {human_bytes(total)} for {sizes}")

    def _size_error(self, dimension: int, symbols: Any) -> UserError:
        sizes = ", ".join(f"{name} = {symbols[n]}" for n, name in enumerate(self.info.symbols))
        if dimension >= sum(self.ranks):
            left, right = self.info.requires[dimension - sum(self.ranks)]
            return UserError(f"the model needs {left} and {right} to be equal, which they are not for {sizes}")
        info, axis = _dimension(self.info.outputs, dimension)
        return UserError(f"axis {axis} of '{info.name}' ({info.shape[axis]}) would be negative for {sizes}")

    def dims_array(self) -> Any:
        """Room for the dimensions of all outputs."""
        return self._dims_type()


def _dimension(infos: Sequence[TensorInfo], number: int) -> tuple[TensorInfo, int]:
    """The tensor and axis of a dimension, counted over all tensors."""
    for info in infos:
        if number < len(info.shape):
            return info, number
        number -= len(info.shape)
    raise CompilerBug(f"there is no dimension {number}")


class Tables:
    """The tables of addresses that an entry reads, which one call at a time borrows."""

    __slots__ = ("inputs", "inputs_address", "outputs", "outputs_address")
    inputs: Any
    outputs: Any

    def __init__(self, part: Part) -> None:
        self.inputs, self.outputs = part.inputs_type(), part.outputs_type()
        self.inputs_address, self.outputs_address = addressof(self.inputs), addressof(self.outputs)


class Frame(Tables):
    """What one call of a model borrows: its workspace, and the tables of addresses that the entry reads."""

    __slots__ = ("_workspace", "workspace_address")

    def __init__(self, part: Part, workspace: Array) -> None:
        super().__init__(part)
        self._workspace = workspace
        self.workspace_address = address_of(workspace)

    @property
    def workspace_bytes(self) -> int:
        """The size of the workspace."""
        return self._workspace.nbytes

    def result_addresses(self) -> Sequence[int]:
        """The addresses of the results."""
        return [address or 0 for address in self.outputs]

    def place_into(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Fill in the addresses of inputs and of arrays for the results."""
        for table, arrays in ((self.inputs, inputs), (self.outputs, outputs)):
            for number, array in enumerate(arrays):
                table[number] = address_of(array)

    def place(self, inputs: Sequence[Array], prepared: Prepared) -> list[Array]:
        """Fill in the addresses of inputs and of new arrays for the results, which it gives."""
        table = self.inputs
        for number, array in enumerate(inputs):
            table[number] = address_of(array)
        results, table = [], self.outputs
        for number, ((shape, dtype), size) in enumerate(zip(prepared.outputs, prepared.output_bytes, strict=True)):
            array, table[number] = placed_empty(shape, dtype, size)
            results.append(array)
        return results


class Workspaces:
    """Workspaces that calls borrow, each for one call at a time; they grow as calls need."""

    def __init__(self) -> None:
        self._free: deque[Array] = deque()

    def take(self, size: int) -> Array:
        """A workspace of at least `size` bytes."""
        try:
            workspace = self._free.pop()
        except IndexError:
            workspace = None
        if workspace is None or workspace.nbytes < size:
            try:
                return lasting_empty(max(size, _MINIMUM_WORKSPACE))
            except MemoryError:
                raise UserError(f"no memory for the model's workspace of {human_bytes(size)}") from None
        return workspace

    def give_back(self, workspace: Array) -> None:
        """Return a workspace for later calls."""
        self._free.append(workspace)


class EntryRunner:
    """A static or symbolic model: binds its symbols from the shapes of the inputs and calls its entry."""

    def __init__(self, artifact: Artifact, library: Library) -> None:
        assert artifact.model is not None
        self.model = artifact.model
        constants = constants_address(artifact, library)
        self.part = Part(self.model, library, constants)
        self.variants = {item.fixed: Part(item, library, constants) for item in self.model.variants}
        self.workspaces = Workspaces()
        self._frames: deque[Frame] = deque()
        # Bytes that hold integers of fewer bits are looked at: there is no quick way for them.
        self._input_types = [
            (info, None if is_sub_byte(info.dtype) else storage_dtype(info.dtype)) for info in self.model.inputs
        ]
        self._plain = [(dtype, 0 if dtype is None else dtype.itemsize - 1) for _, dtype in self._input_types]
        self._prepared: dict[tuple[tuple[int, ...], ...], Prepared] = {}
        if self.model.symbols:
            pointer = ctypes.c_void_p
            self._bind = bind(library, self.model.binder, ctypes.c_int32, pointer, pointer, pointer, pointer)
        else:
            self._prepared[tuple(info.static_shape for info in self.model.inputs)] = self.part.prepare(())

    def admit(self, values: list[object]) -> list[Array]:
        """Each input as an array whose memory the compiled code can read as it is."""
        arrays = []
        for value, (info, dtype) in zip(values, self._input_types, strict=True):
            rank = len(info.shape)
            # The plain case first: it is most of what a short call costs.
            if type(value) is np.ndarray and value.dtype is dtype and value.ndim == rank:
                flags = value.flags
                if flags.c_contiguous and flags.aligned:
                    arrays.append(value)
                    continue
            where = f"the input '{info.name}'"
            array, name = to_storage(value, info.dtype, where)
            if name != info.dtype:
                raise UserError(
                    f"{where} has the data type {name}, expected {info.dtype}",
                    hint=f"convert it, for example with .astype('{info.dtype}')",
                )
            if array.ndim != rank:
                bind_shape(info.shape, array.shape, {}, where)
            arrays.append(direct(array))
        return arrays

    def prepare(self, inputs: Sequence[Array]) -> Prepared:
        """The call for inputs of these shapes; a UserError names the input and the axis that does not fit."""
        shapes = tuple([array.shape for array in inputs])
        prepared = self._prepared.get(shapes)
        if prepared is None:
            prepared = self._bound(shapes)
            if len(self._prepared) >= _MOST_PREPARED:
                self._prepared.clear()
            self._prepared[shapes] = prepared
        return prepared

    def _bound(self, shapes: tuple[tuple[int, ...], ...]) -> Prepared:
        if not self.model.symbols:
            raise self._misfit(shapes)
        given = [extent for shape in shapes for extent in shape]
        symbols, dims, size = self.part.symbols_type(), self.part.dims_array(), ctypes.c_int64()
        code = self._bind((ctypes.c_int64 * max(len(given), 1))(*given), symbols, dims, ctypes.byref(size))
        if code > 0:
            raise self._misfit(shapes)
        prepared = self.part.finish(code, symbols, dims, size.value)
        variant = self.variants.get(prepared.values)
        return prepared if variant is None else variant.prepare(())

    def _misfit(self, shapes: tuple[tuple[int, ...], ...]) -> Exception:
        """What is wrong with shapes that were refused."""
        values: dict[str, int] = {}
        try:
            for info, shape in zip(self.model.inputs, shapes, strict=True):
                bind_shape(info.shape, shape, values, f"the input '{info.name}'")
        except UserError as error:
            return error
        return CompilerBug(f"the input shapes {list(shapes)} were refused, but fit")

    def run_plain(self, arrays: Sequence[object]) -> list[Array] | None:
        """One inference on plain arrays of shapes that came before, with small results: nothing is looked at twice.

        None for all else, which `admit` and `run` take: arrays of other kinds, types or places in memory, new shapes.
        """
        addresses: list[int] = []
        shapes: list[tuple[int, ...]] = []
        try:
            for value, (dtype, unaligned) in zip(arrays, self._plain, strict=True):
                if type(value) is not np.ndarray or value.dtype is not dtype:
                    return None
                address = addressof(from_buffer(value))
                if address & unaligned:
                    return None
                addresses.append(address)
                shapes.append(value.shape)
        except (TypeError, ValueError, BufferError):
            return None  # read-only, strided or empty, or not as many as there are inputs
        prepared = self._prepared.get(tuple(shapes))
        if prepared is None or not prepared.is_small or not addresses:
            return None
        frame = self._frame(prepared)
        try:
            frame.inputs[:] = addresses
            outputs = [empty(shape, dtype) for shape, dtype in prepared.outputs]
            frame.outputs[:] = [addressof(from_buffer(array)) for array in outputs]
            prepared.call_in(frame)
        finally:
            self._frames.append(frame)
        return outputs

    def run(self, inputs: list[Array]) -> list[Array]:
        """One inference."""
        prepared = self.prepare(inputs)
        frame = self._frame(prepared)
        try:
            outputs = frame.place(inputs, prepared)
            prepared.call_in(frame)
        except MemoryError:
            raise UserError("no memory for the model's outputs") from None
        finally:
            self._frames.append(frame)
        return outputs

    def run_over(self, inputs: list[Array], prepared: Prepared, places: Mapping[int, Array]) -> list[Array]:
        """One inference that writes some results, by number, to arrays given, which may be inputs of a plan for it."""
        frame = self._frame(prepared)
        try:
            kinds = enumerate(prepared.outputs)
            outputs = [places[n] if n in places else aligned_empty(*kind) for n, kind in kinds]
            frame.place_into(inputs, outputs)
            prepared.call_in(frame)
        except MemoryError:
            raise UserError("no memory for the model's outputs") from None
        finally:
            self._frames.append(frame)
        return outputs

    def run_into(self, inputs: list[Array], arrays: Sequence[Array]) -> None:
        """One inference into arrays of the user's."""
        prepared = self.prepare(inputs)
        results = written(arrays, prepared.outputs, inputs, self.model.outputs)
        frame = self._frame(prepared)
        try:
            frame.place_into(inputs, results)
            prepared.call_in(frame)
        finally:
            self._frames.append(frame)
        copy_into(arrays, results, self.model.outputs)

    def _frame(self, prepared: Prepared) -> Frame:
        """A frame that nobody else has, with room for a call."""
        try:
            frame = self._frames.pop()
        except IndexError:
            frame = None
        if frame is None or frame.workspace_bytes < prepared.workspace_bytes:
            frame = Frame(self.part, self.workspaces.take(prepared.workspace_bytes))
        return frame


class AbsentRunner(EntryRunner):
    """A model whose device is not here: taking in the values of a call, the first thing that any call does, says so."""

    def __init__(self, model: ModelInfo, reason: UserError) -> None:
        self.model = model
        self._reason = reason

    def admit(self, values: list[object]) -> list[Array]:
        """Refuse."""
        raise self.complaint()

    def complaint(self) -> UserError:
        """What is missing, as an error of its own each time."""
        return UserError(self._reason.message, where=self._reason.where, hint=self._reason.hint)


def constants_address(artifact: Artifact, library: Library) -> int:
    """Constants live in the exported library, or in the artifact beside code that was compiled in this process."""
    if artifact.model is not None and library.find(f"{artifact.model.name}_constants") is not None:
        accessor = bind(library, f"{artifact.model.name}_constants", ctypes.c_void_p)
        return accessor() or 0
    artifact.constants = direct(artifact.constants)
    if address_of(artifact.constants) % 64 and artifact.constants.nbytes:
        aligned = lasting_empty(artifact.constants.nbytes)
        aligned[...] = artifact.constants
        artifact.constants = aligned
    return address_of(artifact.constants)
