"""`Module`: compiled functions called with arrays, checked against their signatures.

mod = tw.build(...)
mod["matmul"](a, b, c)                       # c is written
mod.time_evaluator("matmul", number=10)(a, b, c)
"""

from __future__ import annotations

import ctypes
import os
import statistics
import struct
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.runtime.core.artifact import Artifact, FunctionInfo, ParamInfo
from tilewright.runtime.core.convert import Array, address_of, direct, is_direct, to_storage
from tilewright.runtime.core.function_table import FunctionTable, check_repeats
from tilewright.runtime.core.keys import SigningKey, signing_key
from tilewright.runtime.core.library import Library, bind, check_code, check_threads, thread_setter
from tilewright.runtime.core.shapes import bind_shape, trailing_symbols
from tilewright.support.errors import CompilerBug, UserError
from tilewright.support.text import human_seconds, kind_of, plural


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """How a library is written: the name that its symbols begin with (None: the file's), and who signs it."""

    name: str | None = None
    sign: SigningKey | None = None


Exporter = Callable[[Artifact, Path, ExportOptions], None]
"""Writes an artifact as a shared library; the compiler hands it to what it builds."""


class FunctionSignature:
    """The parameters of a function: checks the arguments of a call and packs them into slots of 64 bits."""

    def __init__(self, info: FunctionInfo) -> None:
        self.info = info
        self.name = info.symbol
        scalars = [param.name for param in info.params if param.shape is None]
        self._symbols = trailing_symbols([param.shape for param in info.params], scalars)
        self._slots = ctypes.c_int64 * max(len(info.params) + len(self._symbols), 1)

    @property
    def symbols(self) -> tuple[str, ...]:
        """The symbolic extents whose values follow the parameters in the slots."""
        return tuple(self._symbols)

    def prepare(self, *args: object) -> tuple[Any, list[Array]]:
        """Check arguments and pack them into slots; the arrays returned must live through the call."""
        params = self.info.params
        if len(args) != len(params):
            names = ", ".join(param.name for param in params)
            raise UserError(f"'{self.name}' takes {plural(len(params), 'argument')} ({names}), not {len(args)}")
        slots = self._slots()
        kept: list[Array] = []
        values: dict[str, int] = {}
        # Scalars first: a scalar parameter that is also an extent decides what the shapes must be.
        for index, (param, arg) in enumerate(zip(params, args, strict=True)):
            if param.shape is None:
                slots[index] = self._scalar(param, arg, values)
        for index, (param, arg) in enumerate(zip(params, args, strict=True)):
            if param.shape is not None:
                array = self._buffer(param, arg, values)
                kept.append(array)
                slots[index] = address_of(array)
        for param, array in zip((param for param in params if param.shape is not None), kept, strict=True):
            # Again, now that all symbols have values: `n + 1` may come before `n`.
            bind_shape(param.shape or (), array.shape, values, self._where(param))
        for index, name in enumerate(self._symbols, start=len(params)):
            if name not in values:
                raise CompilerBug(f"no parameter of '{self.name}' gives the extent '{name}' a value")
            slots[index] = values[name]
        return slots, kept

    def _where(self, param: ParamInfo) -> str:
        return f"the argument '{param.name}' of '{self.name}'"

    def _scalar(self, param: ParamInfo, arg: object, values: dict[str, int]) -> int:
        array, name = to_storage(arg, param.dtype, self._where(param))
        if array.ndim != 0 or name != param.dtype:
            raise UserError(
                f"{self._where(param)} is {name} of shape {list(array.shape)}, expected a scalar of {param.dtype}"
            )
        raw = array.tobytes().ljust(8, b"\0")
        if array.dtype.kind == "i":
            number = int(array)
            values[param.name] = number
            return number
        bits: int = struct.unpack("<q", raw)[0]
        if array.dtype.kind in "ub" and param.dtype != "bfloat16":
            values[param.name] = int(array)
        return bits

    def _buffer(self, param: ParamInfo, arg: object, values: dict[str, int]) -> Array:
        where = self._where(param)
        array, name = to_storage(arg, param.dtype, where, is_written=param.is_output)
        if name != param.dtype:
            raise UserError(f"{where} has the data type {name}, expected {param.dtype}")
        bind_shape(param.shape or (), array.shape, values, where)
        if not param.is_output:
            return direct(array)
        if not isinstance(arg, np.ndarray) and not hasattr(arg, "__dlpack__"):
            raise UserError(f"{where} is written, so it must be an array, not {kind_of(arg)}")
        if not array.flags.writeable:
            raise UserError(f"{where} is written, but the array is read-only")
        if not is_direct(array):
            raise UserError(f"{where} is written, so it must be contiguous and aligned", hint="pass a fresh array")
        return array


class CompiledFunction(FunctionSignature):
    """One function: call it with its parameters in order, buffers as arrays of any kind, outputs included."""

    def __init__(self, info: FunctionInfo, module: Module) -> None:
        super().__init__(info)
        self._module = module
        self._packed = bind(module.library, info.packed_symbol, ctypes.c_int32, ctypes.c_void_p)

    def __call__(self, *args: object) -> None:
        """Run once. Inputs may be any array (copied when strided or unaligned); outputs are written in place."""
        slots, _kept = self.prepare(*args)
        self._module.apply_threads()
        check_code(self._packed(slots), f"the function '{self.name}'")


@dataclass(frozen=True, slots=True)
class TimingResult:
    """Seconds a call, one figure a repeat."""

    results: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The average over the repeats."""
        return statistics.fmean(self.results)

    @property
    def median(self) -> float:
        """The middle repeat."""
        return statistics.median(self.results)

    @property
    def min(self) -> float:
        """The best repeat."""
        return min(self.results)

    @property
    def max(self) -> float:
        """The worst repeat."""
        return max(self.results)

    @property
    def std(self) -> float:
        """The standard deviation over the repeats."""
        return statistics.pstdev(self.results)

    def __str__(self) -> str:
        return f"median {human_seconds(self.median)}, min {human_seconds(self.min)}, max {human_seconds(self.max)}"


def timed(run: Callable[[], object], number: int, repeat: int, wait: Callable[[], None] | None = None) -> TimingResult:
    """Time `run`: `repeat` figures, each the average of `number` calls, after one to warm up.

    `wait` ends what `run` only started; each figure waits once.
    """
    finish = wait if wait is not None else lambda: None
    run()
    finish()
    results = []
    for _ in range(repeat):
        start = time.perf_counter()
        for _ in range(number):
            run()
        finish()
        results.append((time.perf_counter() - start) / number)
    return TimingResult(tuple(results))


class Exportable(ABC):
    """What can be written as a shared library: a compiled model, or compiled functions."""

    @abstractmethod
    def _exported(self) -> tuple[Exporter | None, Artifact]:
        """What writes it, and what is written."""

    def export_library(
        self,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        sign: SigningKey | str | os.PathLike[str] | None = None,
    ) -> None:
        """Write one shared library (code, constants, entry point), with a C header beside it.

        `name` is what its symbols begin with, but for those of functions of your own (default: the file's name without
        its suffix): `model.so` has `model_run`. `sign` is a key, or the file of one, that signs the library
        (`tw.load(..., require="signed")`).
        """
        exporter, artifact = self._exported()
        export(exporter, artifact, path, name, sign)


class Module(FunctionTable[CompiledFunction], Exportable):
    """Functions by name; calling the module itself calls the only one."""

    def __init__(self, artifact: Artifact, library: Library, exporter: Exporter | None = None) -> None:
        self.artifact = artifact
        self.library = library
        self._exporter = exporter
        self._functions = {info.symbol: info for info in artifact.functions}
        super().__init__(self._functions)
        self._threads: int | None = None
        self._set_threads = thread_setter(library, "tilewright")

    def _bind_function(self, name: str) -> CompiledFunction:
        return CompiledFunction(self._functions[name], self)

    def get_function(self, name: str) -> CompiledFunction:
        """The function `name`; the same as `mod[name]`."""
        return self[name]

    def set_num_threads(self, threads: int | None) -> None:
        """Run later calls on this many threads (None: every core this process may use)."""
        self._threads = check_threads(threads)

    def apply_threads(self) -> None:
        """Tell the pool, which programs of one process share, how many threads this module wants."""
        self._set_threads(self._threads or 0)

    def time_evaluator(self, name: str, number: int = 10, repeat: int = 3) -> Callable[..., TimingResult]:
        """A function that times `name`: `repeat` figures, each the average of `number` calls, after one to warm up."""
        check_repeats(number, repeat)
        function = self[name]

        def evaluate(*args: object) -> TimingResult:
            slots, _kept = function.prepare(*args)
            packed, where = function._packed, f"the function '{name}'"
            self.apply_threads()
            check_code(packed(slots), where)
            results = []
            for _ in range(repeat):
                start = time.perf_counter()
                for _ in range(number):
                    code = packed(slots)
                results.append((time.perf_counter() - start) / number)
                check_code(code, where)
            return TimingResult(tuple(results))

        return evaluate

    def _exported(self) -> tuple[Exporter | None, Artifact]:
        return self._exporter, self.artifact

    def to_bytes(self) -> bytes:
        """The module as the bytes of a shared library, for `load`."""
        return exported_bytes(self._exporter, self.artifact, "module")

    def __copy__(self) -> Module:
        return Module(self.artifact, self.library, self._exporter)

    def __deepcopy__(self, memo: dict[int, object]) -> Module:
        # Code and constants are never written, so that two modules may share them.
        return self.__copy__()


def export(
    exporter: Exporter | None,
    artifact: Artifact,
    path: str | os.PathLike[str],
    name: str | None = None,
    sign: SigningKey | str | os.PathLike[str] | None = None,
) -> None:
    """Hand an artifact to the exporter that came with it."""
    if exporter is None:
        raise UserError("this program was loaded without the compiler and cannot be exported again")
    if not Path(path).name:
        raise UserError(f"{str(path)!r} is no name of a file", hint="export_library('model.so')")
    check_name(name)
    exporter(artifact, Path(path), ExportOptions(name, None if sign is None else signing_key(sign)))


def check_name(name: str | None) -> None:
    """A name that a user gives a library must say something."""
    if name is not None and (not isinstance(name, str) or not name.strip()):
        raise UserError(f"{name!r} is no name of a library", hint="name='encoder'")


def exported_bytes(exporter: Exporter | None, artifact: Artifact, name: str) -> bytes:
    """The bytes of the shared library that an artifact is exported as."""
    with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:
        path = Path(folder) / f"{name}.so"
        export(exporter, artifact, path)
        return path.read_bytes()
