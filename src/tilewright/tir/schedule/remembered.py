"""Schedules that remember: what was done to a program once is not done again.

    tree = ScheduleTree(func)
    for answers in points:
        template(tree.schedule(), answers)      # an ordinary function of a schedule

Schedules of one program that begin alike (the points of a search space) share their beginnings. The tree has a node for
each program on the way and an edge for each call of a primitive: a call that was made before on the same program gives
the same result and leads to the same next program, without work. A template notices nothing; it may only look at the
program through the schedule, as templates do.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from types import FunctionType
from typing import Final, NoReturn, Self

from tilewright.support.errors import CompilerBug
from tilewright.tir.function import PrimFunc
from tilewright.tir.index_map import IndexMap
from tilewright.tir.schedule.handles import BlockHandle, Handle, LoopHandle, SampledInt
from tilewright.tir.schedule.schedule import KINDS, Schedule
from tilewright.tir.schedule.state import ScheduleState
from tilewright.tir.schedule.trace import Trace, Value
from tilewright.tir.tensor_intrin import TensorIntrin

MOST_PROGRAMS: Final = 10_000
"""How many programs a tree holds before it starts anew. They share most of their nodes: a few kB are each one's own."""


class ScheduleTree:
    """The schedules of one program that were made so far, by their beginnings."""

    def __init__(self, func: PrimFunc) -> None:
        plain = Schedule(func)
        self._root = _Program(plain._state)
        self._programs = 0

    def schedule(self) -> Schedule:
        """A schedule of the unchanged program."""
        if self._programs >= MOST_PROGRAMS:
            self._root.next.clear()
            self._programs = 0
        return _RememberingSchedule(self, self._root)

    def count(self) -> None:
        """A new program was made."""
        self._programs += 1


class _Program:
    """One program on the way, and what calls on it gave."""

    __slots__ = ("_branched", "_state", "func", "next")

    def __init__(self, state: ScheduleState) -> None:
        self.func = state.func
        self.next: dict[Hashable, tuple[object, _Program]] = {}
        """For each call, its result and the program after it."""
        self._state = state.bare()
        self._branched = False

    def restore(self) -> ScheduleState:
        """A state to go on from. A program that is left in two ways will be in more: it keeps what is found there."""
        if self._branched:
            return self._state.copy()
        self._branched = True
        self._state.prepare()
        return self._state.copy()


class _RememberingSchedule(Schedule):
    """A schedule that follows a tree as far as it goes, and lets it grow."""

    def __init__(self, tree: ScheduleTree, program: _Program) -> None:
        self._tree = tree
        self._program = program
        self._followed = True
        """Whether the state is behind the program: it is made only when something new is to be done."""
        self._trace = _NoTrace()

    @property
    def func(self) -> PrimFunc:
        """The program as it is now."""
        return self._program.func

    @property
    def trace(self) -> Trace:
        """There is none: calls that are remembered are not made."""
        raise CompilerBug("a schedule that remembers has no trace")

    def copy(self) -> Self:
        """An independent schedule at the same point; handles are valid in both."""
        other = object.__new__(type(self))
        _RememberingSchedule.__init__(other, self._tree, self._program)
        return other

    def call(
        self, kind: str, plain: Callable[..., object], arguments: Sequence[object], named: Mapping[str, object]
    ) -> object:
        """A call of a primitive, or of a method that looks at the program."""
        key = (kind, *map(_key, arguments), *((name, _key(value)) for name, value in named.items()))
        known = self._program.next.get(key)
        if known is not None:
            result, program = known
            if program is not self._program:
                self._program, self._followed = program, True
            return list(result) if type(result) is list else result
        if self._followed:
            self._state = self._program.restore()
            self._followed = False
        try:
            result = plain(self, *arguments, **named)
        except BaseException:
            # A primitive that fails leaves the program as it was, but a tree must not depend on that.
            self._followed = True
            raise
        before, program = self._program, self._program
        if self._state.func is not before.func:
            program = self._program = _Program(self._state)
            self._tree.count()
        before.next[key] = (list(result) if type(result) is list else result, program)
        return result


class _NoTrace(Trace):
    """A trace that records nothing."""

    def knows(self, handle: Handle) -> bool:
        """Handles come from the schedule itself."""
        return True

    def record(
        self,
        kind: str,
        inputs: Sequence[Handle],
        attributes: Mapping[str, object],
        outputs: Sequence[Handle | SampledInt],
        decision: Value = None,
    ) -> None:
        """Nothing."""


def _key(value: object) -> Hashable:
    """What an argument is, so that equal keys mean equal arguments."""
    kind = type(value)
    if isinstance(value, LoopHandle):
        return value.var
    if isinstance(value, BlockHandle):
        return ("block", value.name)
    if kind is int or kind is str or value is None:
        return value
    if isinstance(value, (list, tuple)):
        return tuple([_key(item) for item in value])
    if isinstance(value, dict):
        return ("dict", *((key, _key(item)) for key, item in value.items()))
    if isinstance(value, IndexMap):
        return ("map", len(value.inputs), value.to_text())
    if isinstance(value, TensorIntrin):
        # Declared intrinsics are known by their names, as in traces.
        return ("intrinsic", value.name)
    if isinstance(value, FunctionType):
        # A function of the template: its code and what it took from around it.
        cells = tuple(_key(cell.cell_contents) for cell in value.__closure__ or ())
        return ("function", value.__code__, cells, _key(value.__defaults__))
    # True is equal to 1, and 1.0 is.
    return (kind, value)


def _remembering(kind: str, plain: Callable[..., object]) -> Callable[..., object]:
    def method(self: _RememberingSchedule, *arguments: object, **named: object) -> object:
        return self.call(kind, plain, arguments, named)

    method.__name__, method.__doc__ = kind, plain.__doc__
    return method


def _refusing(kind: str) -> Callable[..., object]:
    def method(self: _RememberingSchedule, *arguments: object, **named: object) -> NoReturn:
        raise CompilerBug(f"{kind}: a schedule that remembers cannot do by chance what it did before")

    method.__name__ = kind
    return method


for _kind in KINDS:
    _plain = getattr(Schedule, _kind)
    setattr(
        _RememberingSchedule, _kind, _refusing(_kind) if _kind.startswith("sample") else _remembering(_kind, _plain)
    )
