"""The virtual machine: runs verified programs, with a stack of its own.

Each instruction is a tuple whose operands were resolved when the program was loaded. Native code is called a segment at
a time; between segments the machine only moves references. Calls are frames on a list, so that the depth of a recursion
is bounded by memory and `_DEEPEST` alone. A machine keeps nothing of a run: any number of threads may run it.
"""

from __future__ import annotations

import ctypes
import time
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping, Sequence
from sys import getrefcount
from traceback import walk_tb
from typing import Any, Final

import numpy as np

from tilewright.runtime.core.artifact import Artifact
from tilewright.runtime.core.convert import Array, address_of
from tilewright.runtime.core.dtypes import is_sub_byte, storage_dtype
from tilewright.runtime.core.entry import Part, Workspaces, constants_address
from tilewright.runtime.core.library import Library, bind
from tilewright.runtime.core.packing import packed_size, unpack
from tilewright.runtime.device.array import DeviceArray
from tilewright.runtime.device.checks import PendingChecks
from tilewright.runtime.device.model import DeviceCode, DevicePart
from tilewright.runtime.device.program import Device
from tilewright.runtime.host import host_function
from tilewright.runtime.host.rows import Rows
from tilewright.runtime.host.values import sequence
from tilewright.runtime.vm.codec import decode
from tilewright.runtime.vm.extents import ViewShape, extent_in
from tilewright.runtime.vm.loops import LoopPattern, NativeLoop, find_loop
from tilewright.runtime.vm.program import (
    BIND,
    EQUAL,
    BlobConstant,
    Instruction,
    Opcode,
    Program,
    TextConstant,
    VmFunction,
)
from tilewright.runtime.vm.storage import Storage, owner_of
from tilewright.runtime.vm.values import Admission, Closure, DataValue, Value, contiguous
from tilewright.runtime.vm.verify import verify
from tilewright.support.errors import CompilerBug, TilewrightError, UserError

_DEVICE_SEGMENT = -1
"""A segment that runs on a device: no opcode of programs, which do not know where segments run."""
_APPEND = -2
"""An item behind a sequence that nothing reads afterwards: no opcode of programs, which insert into a new sequence."""
_DEEPEST = 1_000_000
"""Calls that may be under way at once: a program that recurses without end stops here."""

Observer = Callable[[Opcode, int, float], None]
"""Told of each segment and host call: the opcode, the number of the segment or host call, the seconds it took."""

# The loop compares with plain numbers.
(
    _CONSTANT, _MOVE, _SEGMENT, _HOST, _MATCH, _VIEW, _TUPLE, _DATA, _FIELD, _CLOSURE, _JUMP, _BRANCH, _TAG, _CALL,
    _TAIL_CALL, _CALL_CLOSURE, _TAIL_CLOSURE, _RETURN, _RELEASE, _FAIL,
) = map(int, Opcode)  # fmt: skip
_PLAIN_CALLS = (_CALL, _TAIL_CALL)
_CALLS = (*_PLAIN_CALLS, _CALL_CLOSURE, _TAIL_CLOSURE)
_KEEPING_CALLS = (_CALL, _CALL_CLOSURE)
"""Calls that come back to the caller: its frame goes on the stack."""


class _Code:
    """A function whose instructions are resolved."""

    __slots__ = ("code", "given", "loop", "name", "registers", "symbols")

    def __init__(self, function: VmFunction, code: list[tuple[Any, ...]]) -> None:
        self.name = function.name
        self.code = code
        self.given = function.captured + function.params
        self.registers = function.registers
        self.symbols = function.symbols
        self.loop: NativeLoop | None = None
        """What takes turns of it, where it is a loop of native code."""

    def entered(
        self, arguments: list[Any], bound: list[int]
    ) -> tuple[list[tuple[Any, ...]], int, list[Any], list[int]]:
        """A new activation: the code and the place in it, registers and symbols."""
        if len(arguments) != self.given:
            raise CompilerBug(f"'{self.name}' was called with {len(arguments)} values")
        registers = arguments + [None] * (self.registers - len(arguments))
        return self.code, 0, registers, bound + [0] * (self.symbols - len(bound))


_ONLY_HERE = 2
"""What `getrefcount` says of a value that one local variable holds: it counts its own argument."""
_MOST_PENDING = 64
"""Segments on a device whose checks a run has not looked at, at most."""


class Machine:
    """A loaded program. With a device, its segments run there, and registers may hold arrays of the device."""

    def __init__(self, artifact: Artifact, library: Library, device: Device | None = None) -> None:
        assert artifact.model is not None
        self.model = artifact.model
        try:
            bytecode = b64decode(self.model.program, validate=True)
        except ValueError:
            raise UserError("the bytecode is damaged: it is not base 64", where=self.model.name) from None
        self.program: Program = decode(bytecode, self.model.name)
        size = sum_of_constants(artifact)
        verify(self.program, self.model.segments, size, self.model.name)
        if len(self.program.inputs) != len(self.model.inputs):
            raise UserError("the bytecode is damaged: it has other inputs than the model", where=self.model.name)
        self._constants_start = constants_address(artifact, library)
        self.parts: list[Part | DevicePart]
        if device is None:
            self.parts = [Part(info, library, self._constants_start) for info in self.model.segments]
        else:
            code = DeviceCode(artifact, device, library)
            self.parts = [DevicePart(info, code) for info in self.model.segments]
        self.workspaces = Workspaces()
        self.storage = Storage()
        self.admission = Admission(self.program.definitions)
        self._values = [self._constant(item) for item in self.program.constants]
        self._functions = [_Code(item, self._resolved_code(item)) for item in self.program.functions]
        if device is None:
            self._find_loops(library)

    def _find_loops(self, library: Library) -> None:
        """Let native code take the turns of loops; libraries of earlier versions come without what does."""
        name = f"{self.model.name}_loop"
        if library.find(name) is None:
            return
        parts = [part for part in self.parts if isinstance(part, Part)]
        driver = bind(library, name, None, ctypes.c_void_p)
        for number, code in enumerate(self._functions):
            pattern = find_loop(self.program, number)
            if pattern is not None:
                code.loop = NativeLoop(pattern, parts, self._values, driver, self.storage)

    def _resolved_code(self, function: VmFunction) -> list[tuple[Any, ...]]:
        """The instructions of a function, resolved."""
        resolved = [self._resolved(instruction) for instruction in function.code]
        for place, instruction in enumerate(function.code[:-1]):
            match instruction, function.code[place + 1]:
                case (Opcode.HOST, number, (items, item), (result,)), (Opcode.RELEASE, released):
                    is_insert = self.program.hosts[number].name == "sequence.insert"
                    if is_insert and items in released and item != items:
                        resolved[place] = (_APPEND, items, item, result)
                case (Opcode.RELEASE, _), (Opcode.RETURN, _):
                    # All registers end with the call.
                    resolved[place] = resolved[place + 1]
        return resolved

    def _constant(self, item: BlobConstant | TextConstant) -> Array:
        if isinstance(item, TextConstant):
            texts = np.empty(len(item.items), object)
            texts[:] = item.items
            return texts.reshape(item.shape)
        dtype = storage_dtype(item.dtype)
        if not np.prod(item.shape, dtype=np.int64):
            return np.empty(item.shape, dtype)
        if is_sub_byte(item.dtype):
            # Values that the machine hands around take a byte each.
            packed = self._stored(item.offset, (packed_size(item.shape, item.dtype),), "|u1")
            values = unpack(packed, item.shape, item.dtype)
            # Memory that is nobody's array: results are copies of constants (`own`).
            return np.frombuffer(values.tobytes(), values.dtype).reshape(item.shape)
        return self._stored(item.offset, item.shape, dtype.str)

    def _stored(self, offset: int, shape: tuple[int, ...], kind: str) -> Array:
        start = self._constants_start + offset
        return np.asarray(_Memory({"data": (start, False), "shape": shape, "typestr": kind, "version": 3}))

    def _resolved(self, instruction: Instruction) -> tuple[Any, ...]:
        opcode, *operands = instruction
        match instruction:
            case (Opcode.CONSTANT, result, number):
                operands = [result, self._values[number]]
            case (Opcode.HOST, number, inputs, results):
                call = self.program.hosts[number]
                operands = [host_function(call.name), dict(call.attributes), inputs, results, number]
            case (Opcode.SEGMENT, number, inputs, results, symbols):
                operands = [self.parts[number], inputs, results, symbols, number]
                if isinstance(self.parts[number], DevicePart):
                    return (_DEVICE_SEGMENT, *operands)
            case (Opcode.VIEW, result, register, offset, dims):
                extents = self.program.extents
                operands = [result, register, ViewShape(extents[offset], [extents[dim] for dim in dims])]
            case (Opcode.DATA, result, number, fields):
                operands = [result, self.program.constructors[number].name, fields]
            case (Opcode.TAG, register, number, target):
                operands = [register, self.program.constructors[number].name, target]
        return (int(opcode), *operands)

    def run(self, inputs: list[Any], observer: Observer | None = None) -> Value:
        """The value that the entry gives for values that were admitted."""
        run = _Run(self, observer)
        try:
            result = self._loop(run, inputs)
            run.verify_checks()
        except TilewrightError:
            raise
        except Exception as error:
            raise self._misuse(error) from error
        finally:
            if run.workspace is not None:
                self.workspaces.give_back(run.workspace)
        return result

    def _misuse(self, error: Exception) -> UserError:
        """What a program did that Python refused, and where: found in the traceback, so that other runs pay nothing."""
        if isinstance(error, MemoryError):
            return UserError("no memory for the values of the program", where=self.model.name)
        if isinstance(error, RecursionError):
            return UserError("the values of the program are nested too deep", where=self.model.name)
        frames = walk_tb(error.__traceback__)
        here = next((frame.f_locals for frame, _ in frames if frame.f_code is Machine._loop.__code__), {})
        opcode = here["instruction"][0] if "instruction" in here else Opcode.JUMP
        name = {_DEVICE_SEGMENT: "SEGMENT", _APPEND: "HOST"}.get(opcode) or Opcode(opcode).name
        return UserError(
            f"the bytecode is damaged: instruction {here.get('place', 1) - 1} ({name}) of "
            f"'{here['function'].name if 'function' in here else self.model.name}' cannot take its operands: {error}",
            where=self.model.name,
            hint="export the model again; if this one came from this version of Tilewright, please report it",
        )

    def _loop(self, run: _Run, inputs: list[Any]) -> Value:
        """Run instructions until the entry returns.

        What only moves references stands here: a call of a handler would cost more than the instruction.
        """
        functions, stack = self._functions, run.stack
        function = functions[0]
        code, place = function.code, 0
        registers: list[Any] = inputs + [None] * (function.registers - len(inputs))
        symbols: list[int] = [0] * function.symbols
        while True:
            instruction = code[place]
            place += 1
            opcode = instruction[0]
            if opcode == _SEGMENT:
                run.segment(instruction, registers, symbols)
            elif opcode == _RELEASE:
                for register in instruction[1]:
                    registers[register] = None
            elif opcode == _FIELD:
                _, result, register, number = instruction
                owner = registers[register]
                registers[result] = owner[number] if type(owner) is tuple else owner.fields[number]
            elif opcode == _MOVE:
                registers[instruction[1]] = registers[instruction[2]]
            elif opcode == _CONSTANT:
                registers[instruction[1]] = instruction[2]
            elif opcode == _BRANCH:
                if not registers[instruction[1]]:
                    place = instruction[2]
            elif opcode == _TAG:
                if registers[instruction[1]].constructor != instruction[2]:
                    place = instruction[3]
            elif opcode == _JUMP:
                place = instruction[1]
            elif opcode == _DATA:
                registers[instruction[1]] = DataValue(instruction[2], [registers[n] for n in instruction[3]])
            elif opcode == _TUPLE:
                registers[instruction[1]] = tuple([registers[n] for n in instruction[2]])
            elif opcode == _RETURN:
                value: Value = registers[instruction[1]]
                if not stack:
                    return value
                code, place, registers, symbols, result = stack.pop()
                registers[result] = value
            elif opcode in _CALLS:
                number, arguments, bound = _callee(instruction, registers)
                if opcode in _KEEPING_CALLS:
                    if len(stack) >= _DEEPEST:
                        raise UserError(f"the program is {len(stack)} calls deep in '{functions[number].name}'")
                    stack.append((code, place, registers, symbols, instruction[1]))
                function = functions[number]
                if function.loop is not None and len(arguments) == function.given:
                    arguments = function.loop.advance(run, arguments)
                code, place, registers, symbols = function.entered(arguments, bound)
                arguments = []  # Only registers hold values, so that counts of references say what is in use.
            else:
                _HANDLERS[opcode](run, instruction, registers, symbols)

    def call_host(self, instruction: tuple[Any, ...], registers: list[Any]) -> None:
        """Call a function of the host on values in registers."""
        _, host, attributes, sources, results, number = instruction
        try:
            values = host([_on_host(registers[source]) for source in sources], attributes)
        except UserError as error:
            call = self.program.hosts[number]
            raise UserError(error.message, where=error.where or call.where or None, hint=error.hint) from error
        except CompilerBug as error:
            # Attributes of a wrong kind: the compiler writes none, and only here it is known who takes which.
            raise TypeError(str(error.args[0])) from error
        if len(values) != len(results):
            raise ValueError(f"{self.program.hosts[number].name} gives {len(values)} results")
        for result, value in zip(results, values, strict=True):
            registers[result] = contiguous(value)

    def match_sizes(self, value: Any, dims: Any, symbols: list[int], text: int) -> None:
        """Bind symbols to the sizes of an array, and compare those that are known."""
        shape = value.shape
        if len(shape) != len(dims):
            raise UserError(f"{self.program.texts[text]} has {len(shape)} dimensions, expected {len(dims)}")
        for axis, (kind, number) in enumerate(dims):
            if kind == BIND:
                symbols[number] = shape[axis]
            elif kind == EQUAL:
                expected = extent_in(self.program.extents[number], symbols)
                if expected != shape[axis]:
                    raise UserError(
                        f"{self.program.texts[text]} has the shape {list(shape)}: "
                        f"axis {axis} must be {expected}, not {shape[axis]}"
                    )

    def own(self, value: Any, inputs: list[Any]) -> Any:
        """A result that is no part of an input, of the constants or of another result: those are copied."""
        if _have_memory_of_their_own(value if type(value) is tuple else (value,), inputs):
            return value
        try:
            return _own(value, _owners(inputs))
        except (MemoryError, RecursionError) as error:
            raise self._misuse(error) from error


class _Run:
    """One run of a machine: what is under way, and the instructions that do more than move references."""

    def __init__(self, machine: Machine, observer: Observer | None) -> None:
        self.machine = machine
        self.observer = observer
        self.stack: list[tuple[Any, ...]] = []
        self.pending: list[PendingChecks] = []
        self.workspace: Array | None = None
        self.workspace_bytes = self.workspace_address = 0

    def provide(self, size: int) -> None:
        """Make the workspace at least so large."""
        if size > self.workspace_bytes:
            self.workspace = self.machine.workspaces.take(size)
            self.workspace_bytes, self.workspace_address = self.workspace.nbytes, address_of(self.workspace)

    def bind_sizes(self, pattern: LoopPattern, values: Sequence[Any]) -> list[int]:
        """The symbols of the function that a loop is, from the sizes of its parameters."""
        symbols = [0] * pattern.symbols
        for place, dims, text in pattern.matches:
            self.machine.match_sizes(values[place], dims, symbols, text)
        return symbols

    def dims(self, extents: tuple[int, ...], symbols: list[int]) -> tuple[int, ...]:
        """Dimensions that are extents of the program."""
        return tuple([extent_in(self.machine.program.extents[number], symbols) for number in extents])

    def observe(self, opcode: Opcode, number: int, seconds: float) -> None:
        """Tell whoever watches."""
        if self.observer is not None:
            self.observer(opcode, number, seconds)

    def segment(self, instruction: tuple[Any, ...], registers: list[Any], symbols: list[int]) -> None:
        """Native code on arrays in registers."""
        _, part, sources, results, sizes, number = instruction
        machine, observer = self.machine, self.observer
        prepared = part.prepare(tuple([symbols[size] for size in sizes]) if sizes else ())
        if prepared.workspace_bytes > self.workspace_bytes:
            self.provide(prepared.workspace_bytes)
        addresses = []
        for source, (size, dtype) in zip(sources, prepared.inputs, strict=True):
            value = registers[source]
            # Native code reads so much memory, whatever is there.
            if (size != value.size and size != -1) or (value.dtype is not dtype and value.dtype != dtype):
                raise ValueError(f"{value.dtype}{list(value.shape)} in the place of {size} {dtype}")
            addresses.append(address_of(value))
        outputs = [machine.storage.empty(shape, dtype) for shape, dtype in prepared.outputs]
        start = time.perf_counter() if observer is not None else 0.0
        prepared.call(addresses, [address for _, address in outputs], self.workspace_address)
        if observer is not None:
            observer(Opcode.SEGMENT, number, time.perf_counter() - start)
        for result, (output, _) in zip(results, outputs, strict=True):
            registers[result] = output

    def device_segment(self, instruction: tuple[Any, ...], registers: list[Any], symbols: list[int]) -> None:
        """Kernels on arrays of a device."""
        _, part, sources, results, sizes, number = instruction
        start = time.perf_counter() if self.observer is not None else 0.0
        call = part.prepare(tuple([symbols[size] for size in sizes]))
        values = call.call([registers[source] for source in sources], on_device=True)
        if self.observer is not None:
            call.device.wait()
            self.observer(Opcode.SEGMENT, number, time.perf_counter() - start)
        for result, value in zip(results, values, strict=True):
            registers[result] = value
        if values[0].checks is not None:
            self.pending.append(values[0].checks)
            if len(self.pending) >= _MOST_PENDING:
                self.verify_checks()

    def verify_checks(self) -> None:
        """Look at what segments on a device checked, and forget it."""
        for checks in self.pending:
            checks.verify()
        self.pending.clear()

    def host(self, instruction: tuple[Any, ...], registers: list[Any], symbols: list[int]) -> None:
        """A function of the host."""
        start = time.perf_counter() if self.observer is not None else 0.0
        self.machine.call_host(instruction, registers)
        if self.observer is not None:
            self.observer(Opcode.HOST, instruction[-1], time.perf_counter() - start)

    def append(self, instruction: tuple[Any, ...], registers: list[Any], symbols: list[int]) -> None:
        """An item behind a sequence: in its place if only this register holds it, else behind a copy."""
        _, source, item, result = instruction
        items, registers[source] = registers[source], None
        if type(items) is not list or getrefcount(items) > _ONLY_HERE:
            items = list(sequence(items))
        items.append(contiguous(registers[item]))
        registers[result] = items

    def match(self, instruction: tuple[Any, ...], registers: list[Any], symbols: list[int]) -> None:
        """The sizes of an array become symbols, or must be what they are."""
        _, register, dims, text = instruction
        self.machine.match_sizes(registers[register], dims, symbols, text)

    def view(self, instruction: tuple[Any, ...], registers: list[Any], symbols: list[int]) -> None:
        """Elements of an array in another shape."""
        _, result, register, shape = instruction
        value = registers[register]
        start, dims, count = shape.fixed or shape.at(symbols)
        if count == value.size and not start and type(value) is np.ndarray:
            registers[result] = value.reshape(dims)
        else:
            registers[result] = _view(value, start, dims, count)

    def closure(self, instruction: tuple[Any, ...], registers: list[Any], symbols: list[int]) -> None:
        """A function with the values and sizes that it captures."""
        _, result, number, captured, sizes = instruction
        values = tuple([registers[n] for n in captured])
        registers[result] = Closure(number, values, tuple([symbols[n] for n in sizes]))

    def fail(self, instruction: tuple[Any, ...], registers: list[Any], symbols: list[int]) -> None:
        """The program says that it cannot go on."""
        raise UserError(self.machine.program.texts[instruction[1]])


_HANDLERS: Final[Mapping[int, Callable[[_Run, tuple[Any, ...], list[Any], list[int]], None]]] = {
    _DEVICE_SEGMENT: _Run.device_segment,
    _APPEND: _Run.append,
    _HOST: _Run.host,
    _MATCH: _Run.match,
    _VIEW: _Run.view,
    _CLOSURE: _Run.closure,
    _FAIL: _Run.fail,
}


def _callee(instruction: tuple[Any, ...], registers: list[Any]) -> tuple[int, list[Any], list[int]]:
    """What is called: the function's number, its arguments, and the sizes that it captured."""
    given = [registers[n] for n in instruction[-1]]
    if instruction[0] in _PLAIN_CALLS:
        return instruction[-2], given, []
    closure = registers[instruction[-2]]
    return closure.function, [*closure.captured, *given], list(closure.symbols)


def _have_memory_of_their_own(items: tuple[Any, ...], inputs: list[Any]) -> bool:
    """Whether results are arrays that numpy gave memory, none of them an input or two the same: most are."""
    owners = set()
    for item in items:
        if type(item) is not np.ndarray or item.dtype.kind == "O":
            return False
        owner = item if item.base is None else item.base
        if type(owner) is not np.ndarray or owner.base is not None:
            return False
        owners.add(id(owner))
    if len(owners) != len(items):
        return False
    for item in inputs:
        if type(item) is not np.ndarray or id(item if item.base is None else item.base) in owners:
            return False
    return True


def _own(value: Any, taken: list[object]) -> Any:
    """A value in memory of its own; `taken` are arrays and blocks of memory that belong to somebody."""
    if isinstance(value, np.ndarray):
        owner = owner_of(value)
        if owner is None or value.dtype == object or any(owner is other for other in taken):
            return value.copy()
        taken.append(owner)
        return value
    if isinstance(value, DeviceArray):
        return value.numpy()
    if isinstance(value, Rows):
        value = value.items()
    if isinstance(value, tuple):
        return tuple([_own(item, taken) for item in value])
    return [_own(item, taken) for item in value] if isinstance(value, list) else value


def _owners(values: Iterable[Any]) -> list[object]:
    """What the memory of arrays belongs to, also of those in tuples and lists."""
    owners: list[object] = []
    for value in values:
        if isinstance(value, np.ndarray):
            owners.append(owner_of(value))
        elif isinstance(value, (tuple, list)):
            owners += _owners(value)
    return owners


def _on_host(value: Any) -> Any:
    """A value whose arrays are all on the host."""
    if isinstance(value, DeviceArray):
        return value.host()
    if isinstance(value, (tuple, list)):
        return type(value)(_on_host(item) for item in value)
    return (
        DataValue(value.constructor, [_on_host(item) for item in value.fields])
        if isinstance(value, DataValue)
        else value
    )


class _Memory:
    """Memory at an address, for numpy."""

    def __init__(self, interface: dict[str, Any]) -> None:
        self.__array_interface__ = interface


def sum_of_constants(artifact: Artifact) -> int:
    """The size of the constants, also of a library whose constants are not in the artifact."""
    assert artifact.model is not None
    sizes = [info.offset + packed_size(info.shape, info.dtype) for info in artifact.model.constants]
    return max([int(artifact.constants.nbytes), *sizes])


def _view(value: Any, start: int, dims: tuple[int, ...], count: int) -> Any:
    if count < 0:
        raise UserError(f"a value of shape {list(value.shape)} cannot be viewed as {list(dims)}")
    if isinstance(value, DeviceArray) and 0 <= start <= value.size - count:
        return value.view(start, dims)
    if count == value.size and not start:
        return value.reshape(dims)
    if start < 0 or start + count > value.size:
        raise UserError(f"a value of shape {list(value.shape)} cannot be viewed as {list(dims)} from element {start}")
    return value.reshape(-1)[start : start + count].reshape(dims)
