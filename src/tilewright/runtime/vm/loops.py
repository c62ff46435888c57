"""Loops of the virtual machine that run natively: no instruction is interpreted from turn to turn.

A loop is a function that calls itself in the last place:

    f1 loop(r0, r1, r2, r3):
         match         r3 [s0:=, 128]               sizes
         segment       segment1 (r0, r1) -> r4      whether there is another turn (or it is a parameter)
         branch        r4 to the end
         segment       segment2 (r0, r3, r2) [s0] -> r5, r6
         host          sequence.insert (r7, r6) -> r8
         tail_call     f1 (r5, r1, r6, r3, r8)

Where one turn is native code and its results have the shapes of what the turn began with, the next turn is the same
call on other addresses. A native function of the model (`<model>_loop`, `backends/llvm/loop_driver.py`) then takes
turns from a table of addresses until there is no other one, or until it has taken so many that Python is asked whether
to go on. Values that a turn hands to the next are written to two places in turn; values that are collected are written
to the rows of one tensor. Whether shapes stay is looked at when the loop is entered, not when it is compiled: a loop
whose first turn changes a shape runs natively from the second.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from tilewright.runtime.core.convert import Array, address_of
from tilewright.runtime.core.entry import Part, Prepared
from tilewright.runtime.host.rows import Rows
from tilewright.runtime.vm.program import Opcode, Program
from tilewright.runtime.vm.storage import Storage

(
    _CONDITION, _BODY, _CONDITION_INPUTS, _FLAG, _INPUTS, _OUTPUTS, _WORKSPACE, _CONSTANTS, _CONDITION_SYMBOLS,
    _SYMBOLS, _MOVES, _MOVE_COUNT, _STEPS, _STEP_COUNT, _TURNS, _TAKEN,
) = range(16)  # fmt: skip
"""The first words of a table, in the order in which `backends/llvm/loop_driver.py` reads them."""
_MOST_TURNS = 1024
"""Turns that native code takes before Python has a look: an interrupt waits no longer than these take."""
_FIRST_ROWS = 64
_MOST_ROW_BYTES = 1 << 26
"""Memory for collected values that is taken before it is known how many there will be."""
_WORD = 8


@dataclass(frozen=True, slots=True)
class _Param:
    """A parameter, under other dimensions if there are some."""

    number: int
    dims: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class _Known:
    """A constant of the program."""

    number: int


@dataclass(frozen=True, slots=True)
class _Result:
    """A result of the turn's native code, under other dimensions if there are some."""

    number: int
    dims: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class _Longer:
    """The sequence of a parameter with a result of the turn behind its items."""

    param: int
    item: _Result


_Source = _Param | _Known | _Result | _Longer


@dataclass(frozen=True, slots=True)
class _Segment:
    number: int
    inputs: tuple[int, ...]
    """The parameters that it reads."""
    symbols: tuple[int, ...]


@dataclass(slots=True)
class LoopPattern:
    """A function that is a loop of one native turn."""

    symbols: int
    matches: list[tuple[int, Any, int]] = field(default_factory=list)
    """Parameters whose sizes give symbols their values: the parameter, its dimensions, the text that names it."""
    views: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    """Parameters that native code reads under other dimensions, and those."""
    condition: _Segment | None = None
    flag: int | None = None
    """The parameter that says whether there is another turn, where no native code does."""
    body: _Segment | None = None
    then: tuple[_Source, ...] = ()
    """What each parameter is in the next turn."""


def find_loop(program: Program, number: int) -> LoopPattern | None:
    """The loop that a function is, if it is one that can run natively."""
    function = program.functions[number]
    if function.captured or function.captured_symbols:
        return None
    reader = _Reader(program, number)
    for instruction in function.code:
        if not reader.read(instruction):
            return None
        if reader.is_done:
            return reader.pattern
    return None


class _Reader:
    """Follows what registers hold along the code of a function, up to the call of itself."""

    def __init__(self, program: Program, number: int) -> None:
        function = program.functions[number]
        self.program, self.number = program, number
        self.pattern = LoopPattern(function.symbols)
        self.values: dict[int, _Source | None] = {place: _Param(place) for place in range(function.params)}
        self.test: int | None = None
        self.is_tested = self.is_done = False

    def read(self, instruction: tuple[Any, ...]) -> bool:
        """Take in one instruction; False if the function is no such loop."""
        values = self.values
        match instruction:
            case (Opcode.RELEASE, _):
                return True
            case (Opcode.MATCH, register, dims, text):
                source = values.get(register)
                if isinstance(source, _Param):
                    self.pattern.matches.append((source.number, dims, text))
                return isinstance(source, _Param)
            case (Opcode.CONSTANT, result, number):
                values[result] = _Known(number)
                return True
            case (Opcode.MOVE, result, register):
                values[result] = values.get(register)
                return True
            case (Opcode.VIEW, result, register, offset, dims):
                return self._view(result, values.get(register), offset, dims)
            case (Opcode.SEGMENT, number, inputs, results, symbols):
                return self._segment(number, [values.get(register) for register in inputs], results, symbols)
            case (Opcode.BRANCH, register, _):
                return self._branch(register)
            case (Opcode.HOST, number, (sequence, item), (result,)):
                return self._insert(number, values.get(sequence), values.get(item), result)
            case (Opcode.TAIL_CALL, self.number, arguments):
                return self._call([values.get(register) for register in arguments])
        return False

    def _view(self, result: int, source: _Source | None, offset: int, dims: tuple[int, ...]) -> bool:
        if not isinstance(source, (_Param, _Result)) or self.program.extents[offset] != 0:
            return False
        self.values[result] = type(source)(source.number, dims)
        if isinstance(source, _Param):
            self.pattern.views.append((source.number, dims))
        return True

    def _segment(
        self, number: int, sources: Sequence[_Source | None], results: tuple[int, ...], symbols: tuple[int, ...]
    ) -> bool:
        params = tuple([source.number for source in sources if isinstance(source, _Param)])
        if len(params) != len(sources):
            return False
        segment = _Segment(number, params, symbols)
        if not self.is_tested and self.test is None and len(results) == 1:
            self.pattern.condition, self.test = segment, results[0]
            self.values[results[0]] = None
            return True
        if not self.is_tested or self.pattern.body is not None:
            return False
        self.pattern.body = segment
        self.values.update({register: _Result(place) for place, register in enumerate(results)})
        return True

    def _branch(self, register: int) -> bool:
        source = self.values.get(register)
        if self.is_tested:
            return False
        self.is_tested = True
        if self.test is not None:
            return register == self.test
        self.pattern.flag = source.number if isinstance(source, _Param) else None
        return isinstance(source, _Param)

    def _insert(self, number: int, sequence: _Source | None, item: _Source | None, result: int) -> bool:
        is_insert = self.program.hosts[number].name == "sequence.insert"
        if not is_insert or not isinstance(sequence, _Param) or not isinstance(item, _Result):
            return False
        self.values[result] = _Longer(sequence.number, item)
        return True

    def _call(self, sources: Sequence[_Source | None]) -> bool:
        """The call of itself: a parameter stays, or is made anew by the turn."""
        for place, source in enumerate(sources):
            moved = isinstance(source, _Param) and source != _Param(place)
            elsewhere = isinstance(source, _Longer) and source.param != place
            if source is None or moved or elsewhere:
                return False
        self.pattern.then = tuple([source for source in sources if source is not None])
        self.is_done = True
        return self.pattern.body is not None


class LoopRun(Protocol):
    """What a loop needs of the run that enters it."""

    workspace_address: int

    def provide(self, size: int) -> None:
        """Make the workspace at least so large."""

    def bind_sizes(self, pattern: LoopPattern, values: Sequence[Any]) -> list[int]:
        """The symbols of the function, from the sizes of its parameters."""

    def dims(self, extents: tuple[int, ...], symbols: list[int]) -> tuple[int, ...]:
        """Dimensions that are extents of the program, under these symbols."""

    def observe(self, opcode: Opcode, number: int, seconds: float) -> None:
        """Tell whoever watches the run."""


class NativeLoop:
    """A loop of a loaded program."""

    def __init__(
        self, pattern: LoopPattern, parts: Sequence[Part], constants: Sequence[Any], driver: Any, storage: Storage
    ) -> None:
        assert pattern.body is not None
        self.pattern = pattern
        self.body = pattern.body
        self.body_part = parts[pattern.body.number]
        self.condition_part = None if pattern.condition is None else parts[pattern.condition.number]
        self.constants = constants
        self.driver = driver
        self.storage = storage

    def advance(self, run: LoopRun, values: list[Any]) -> list[Any]:
        """The parameters after as many turns as native code takes; as they are where it takes none."""
        symbols = run.bind_sizes(self.pattern, values)
        body = self.body_part.prepare(tuple([symbols[at] for at in self.body.symbols]))
        condition: Prepared | None = None
        if self.condition_part is not None:
            assert self.pattern.condition is not None
            condition = self.condition_part.prepare(tuple([symbols[at] for at in self.pattern.condition.symbols]))
        if not self._is_steady(run, values, symbols, body, condition):
            return values
        run.provide(max(body.workspace_bytes, 0 if condition is None else condition.workspace_bytes))
        rows = self._first_rows(values, body)
        is_over = False
        while not is_over:
            turns = _Turns(self, run, values, body, condition, symbols, rows)
            start = time.perf_counter()
            is_over = turns.take()
            run.observe(Opcode.SEGMENT, self.body.number, time.perf_counter() - start)
            values = turns.after(values)
            rows *= 2
        return values

    def _first_rows(self, values: Sequence[Any], body: Prepared) -> int:
        """Room for collected values: what a number that the condition reads suggests, which often is how many."""
        pattern = self.pattern
        reads = () if pattern.condition is None else pattern.condition.inputs
        bounds = [
            int(values[place])
            for place in reads
            if pattern.then[place] == _Param(place) and values[place].dtype == np.int64 and values[place].size == 1
        ]
        most = _MOST_ROW_BYTES // max([1, *body.output_bytes])
        return bounds[0] if bounds and 0 < bounds[0] <= most else _FIRST_ROWS

    def _is_steady(
        self, run: LoopRun, values: Sequence[Any], symbols: list[int], body: Prepared, condition: Prepared | None
    ) -> bool:
        """Whether native code can read what there is, and a turn leaves all shapes as they are."""
        pattern = self.pattern
        if not _reads([values[place] for place in self.body.inputs], body):
            return False
        if condition is None:
            assert pattern.flag is not None
            flag = values[pattern.flag]
            is_flag = isinstance(flag, np.ndarray) and flag.dtype == np.bool_ and flag.size == 1
        else:
            assert pattern.condition is not None
            ((shape, dtype),) = condition.outputs
            is_flag = dtype == np.bool_ and math.prod(shape) == 1
            is_flag = is_flag and _reads([values[place] for place in pattern.condition.inputs], condition)
        if any(values[place].size != math.prod(run.dims(dims, symbols)) for place, dims in pattern.views):
            return False
        return is_flag and all(
            self._stays(run, value, source, symbols, body) for value, source in zip(values, pattern.then, strict=True)
        )

    def _stays(self, run: LoopRun, value: Any, source: _Source, symbols: list[int], body: Prepared) -> bool:
        match source:
            case _Known(number):
                known = self.constants[number]
                return isinstance(value, np.ndarray) and (value.shape, value.dtype) == (known.shape, known.dtype)
            case _Result(number, dims):
                shape, dtype = body.outputs[number]
                if dims is not None:
                    viewed = run.dims(dims, symbols)
                    if math.prod(viewed) != math.prod(shape) or any(size < 0 for size in viewed):
                        return False
                    shape = viewed
                return isinstance(value, np.ndarray) and (value.shape, value.dtype) == (shape, dtype)
            case _Longer():
                return isinstance(value, (list, Rows))
        return True


def _reads(values: Sequence[Any], prepared: Prepared) -> bool:
    """Whether native code reads no more than there is, of the type that is there."""
    return all(
        isinstance(value, np.ndarray) and size in (-1, value.size) and value.dtype == dtype
        for value, (size, dtype) in zip(values, prepared.inputs, strict=True)
    )


class _Turns:
    """Turns that are taken into memory for so many of them: the table of addresses, and where results lie."""

    def __init__(
        self,
        loop: NativeLoop,
        run: LoopRun,
        values: Sequence[Any],
        body: Prepared,
        condition: Prepared | None,
        symbols: list[int],
        rows: int,
    ) -> None:
        self.loop, self.run, self.body, self.condition, self.symbols = loop, run, body, condition, symbols
        self.taken = 0
        pattern = loop.pattern
        self.collected = {source.item.number for source in pattern.then if isinstance(source, _Longer)}
        self.room = rows if self.collected else _MOST_TURNS
        self.places: list[list[Array]] = []
        """For each result the tensor of its rows, or the two arrays that it is written to in turn."""
        self._table = table = _Table()
        table.words_of = {
            _CONDITION: 0 if loop.condition_part is None else loop.condition_part.address,
            _BODY: loop.body_part.address,
            _WORKSPACE: run.workspace_address,
            _CONSTANTS: loop.body_part.constants_address,
            _CONDITION_SYMBOLS: _symbols_address(condition),
            _SYMBOLS: _symbols_address(body),
        }
        self._inputs(values, self._results())

    def _results(self) -> list[int]:
        """Places for the results; gives where in the table their addresses are."""
        table, addresses, steps = self._table, [], []
        for number, ((shape, dtype), size) in enumerate(zip(self.body.outputs, self.body.output_bytes, strict=True)):
            if number in self.collected:
                array, address = self.loop.storage.empty((self.room, *shape), dtype)
                self.places.append([array])
                steps.append((size, 0))
            else:
                pair = [self.loop.storage.empty(shape, dtype) for _ in range(2)]
                self.places.append([array for array, _ in pair])
                address = pair[0][1]
                steps.append((0, address ^ pair[1][1]))
            addresses.append(address)
        start = table.add(addresses, _OUTPUTS)
        slots = [start + place for place in range(len(addresses))]
        table.steps = [(slot, *step) for slot, step in zip(slots, steps, strict=True)]
        return slots

    def _inputs(self, values: Sequence[Any], outputs: Sequence[int]) -> None:
        """Addresses of what the condition and the turn read, and which of them change after a turn."""
        pattern, table = self.loop.pattern, self._table
        known: dict[int, int] = {}
        readers = [(_INPUTS, self.loop.body.inputs)]
        if self.condition is None:
            assert pattern.flag is not None
            readers.append((_FLAG, (pattern.flag,)))
        else:
            assert pattern.condition is not None
            readers.append((_CONDITION_INPUTS, pattern.condition.inputs))
            ((shape, dtype),) = self.condition.outputs
            self._flag, address = self.loop.storage.empty(shape, dtype)
            table.add([address], _FLAG)
        for place, params in readers:
            start = table.add([address_of(values[param]) for param in params], place)
            for slot, param in enumerate(params, start):
                match pattern.then[param]:
                    case _Result(number):
                        table.moves.append((outputs[number], slot))
                    case _Known(number):
                        if number not in known:
                            known[number] = table.add([address_of(self.loop.constants[number])])
                        table.moves.append((known[number], slot))

    def take(self) -> bool:
        """Take turns while there is room; whether there is no other one (or one that fails, which is taken again)."""
        words = self._table.words()
        base = ctypes.addressof(words)
        while self.taken < self.room:
            piece = words[_TURNS] = min(_MOST_TURNS, self.room - self.taken)
            self.loop.driver(base)
            self.taken += words[_TAKEN]
            if words[_TAKEN] < piece:
                return True
        return False

    def after(self, values: Sequence[Any]) -> list[Any]:
        """The parameters after the turns that were taken."""
        if not self.taken:
            return list(values)
        new: list[Any] = []
        for value, source in zip(values, self.loop.pattern.then, strict=True):
            match source:
                case _Known(number):
                    new.append(self.loop.constants[number])
                case _Result(number):
                    places = self.places[number]
                    last = places[0][self.taken - 1] if number in self.collected else places[(self.taken - 1) % 2]
                    new.append(np.asarray(last).reshape(value.shape))
                case _Longer(_, item):
                    shape = self.body.outputs[item.number][0]
                    viewed = shape if item.dims is None else self.run.dims(item.dims, self.symbols)
                    part = self.places[item.number][0][: self.taken].reshape((self.taken, *viewed))
                    new.append(Rows.joined(value, part))
                case _:
                    new.append(value)
        return new


class _Table:
    """Words that native code reads: a head, addresses of arrays, and what happens to them after a turn."""

    def __init__(self) -> None:
        self.words_of: dict[int, int] = {}
        self._starts: dict[int, int] = {}
        self._cells: list[int] = []
        self.moves: list[tuple[int, int]] = []
        """Cells whose address other cells take."""
        self.steps: list[tuple[int, int, int]] = []
        """Cells whose address goes on by so many bytes, or to the other of two places (by exclusive or)."""

    def add(self, addresses: Sequence[int], head: int | None = None) -> int:
        """Cells of addresses, to which a word of the head points; the number of the first."""
        start = _TAKEN + 1 + len(self._cells)
        self._cells += addresses
        if head is not None:
            self._starts[head] = start
        return start

    def words(self) -> Any:
        """The table as native code reads it."""
        moves = _TAKEN + 1 + len(self._cells)
        steps = moves + 2 * len(self.moves)
        table: Any = (ctypes.c_int64 * (steps + 3 * len(self.steps)))()
        base = ctypes.addressof(table)
        for place, word in self.words_of.items():
            table[place] = word
        for place, start in (*self._starts.items(), (_MOVES, moves), (_STEPS, steps)):
            table[place] = base + _WORD * start
        table[_MOVE_COUNT], table[_STEP_COUNT] = len(self.moves), len(self.steps)
        table[_TAKEN + 1 : moves] = self._cells
        table[moves:steps] = [base + _WORD * cell for move in self.moves for cell in move]
        for number, (cell, stride, mask) in enumerate(self.steps):
            table[steps + 3 * number : steps + 3 * number + 3] = [base + _WORD * cell, stride, mask]
        return table


def _symbols_address(prepared: Prepared | None) -> int:
    return 0 if prepared is None or prepared.symbols is None else ctypes.addressof(prepared.symbols)
