"""One run of a model's kernels on a device: its memory, its launches, and what stands between launches.

A `Frame` belongs to one call at a time. Its launches are recorded once; when inputs or outputs lie elsewhere in a later
call, only the launches that touch them are given other arguments. Kernels that the host computes, and memory that
kernels of the device cannot start in, are copied between the launches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from tilewright.runtime.core.artifact import ArgKind
from tilewright.runtime.core.convert import Array
from tilewright.runtime.device.checks import HostStatuses
from tilewright.runtime.device.host_calls import HostCall, HostValues
from tilewright.runtime.device.program import BoundCall, Device, Recording, Scalar
from tilewright.runtime.device.steps import Place, PlannedLaunch, PlannedStep
from tilewright.runtime.device.trials import overwritten
from tilewright.support import settings
from tilewright.support.errors import UserError

_ENOUGH_CALLS = 0.25
"""The part of a recording's calls whose trial shows how all of them are best launched."""
_MOST_PLACES = 32
"""Sets of addresses for which launches are recorded anew; with more, inputs and outputs are copied."""


@dataclass(frozen=True, slots=True)
class Gate:
    """Where a run stops until its checks are known to be passed: what comes behind `step` may write over state."""

    step: int
    verify: Callable[[Frame], None]
    """Raises what is wrong with the data of a run."""


class Frame:
    """The memory and the recorded launches of one run at a time."""

    def __init__(
        self,
        device: Device,
        steps: Sequence[PlannedStep],
        slots: Sequence[int],
        constants: Callable[[int, int], Any],
        inputs: Sequence[int],
        outputs: Sequence[int],
        kept: Sequence[Place] = (),
        gate: Gate | None = None,
        statuses: HostStatuses | None = None,
    ) -> None:
        """`slots`, `inputs` and `outputs` are sizes in bytes; `constants` gives the memory of an offset and a size.

        `kept` are the places of the workspace that are read when the run is over, or at its `gate`. `statuses` are in
        memory that stands for a slot.
        """
        self.device = device
        self.steps = steps
        self._constants = constants
        self.statuses = statuses
        self._slots = [
            device.allocate(size) if statuses is None or number != statuses.slot else statuses.memory
            for number, size in enumerate(slots)
        ]
        self._kept_places = kept
        self._gate = gate
        self._sizes = {ArgKind.INPUT: inputs, ArgKind.OUTPUT: outputs}
        self._own: dict[tuple[ArgKind, int], Any] = {}
        self._bound: dict[ArgKind, list[Any]] = {}
        """Inputs and outputs of the run at hand, and those that the recorded launches have as arguments."""
        self._recorded: dict[ArgKind, list[Any]] = {}
        self._stages: list[Recording | Callable[[], None]] = []
        self._readers: dict[tuple[ArgKind, int], list[tuple[Recording, int, PlannedLaunch, dict[int, Any]]]] = {}
        self._recorded_steps: dict[int, list[tuple[int, PlannedStep]]] = {}
        """The steps of each recording, by its identity, with the number of the first call of each."""
        self._starts: dict[tuple[int, ...], list[Callable[[], None]]] = {}
        """What starts the stages, for sets of addresses."""
        self._needs_memory = False
        """Whether stages are more than launches, and take the pieces of memory of the run at hand."""
        self._seen = 0
        self._watched = "launch" in settings.TRACE.get()
        self.kept: object = None
        """What must live until the run is over."""

    def own(self, kind: ArgKind, index: int) -> Any:
        """Memory of the frame for an input or output, for values that come from the host or go there."""
        key = (kind, index)
        if key not in self._own:
            self._own[key] = self.device.allocate(self._sizes[kind][index])
        return self._own[key]

    @property
    def copies(self) -> bool:
        """Whether inputs and outputs lie elsewhere in every call, so that copying them costs less than recording."""
        return self._seen > _MOST_PLACES

    def again(self, places: tuple[int, ...]) -> bool:
        """Start everything on memory at these addresses (see `run`), if launches as recorded are all that it takes."""
        starts = self._starts.get(places)
        if starts is None or self._needs_memory:
            return False
        if self.statuses is not None:
            self.statuses.begin()
        for start in starts:
            start()
        return True

    def run(self, inputs: list[Any], outputs: list[Any], places: tuple[int, ...] | None = None) -> None:
        """Start everything, on these pieces of memory.

        `places` are the addresses of those that are not the same in every call, for callers that know; always of the
        same ones.
        """
        if places is None:
            places = tuple([identity(memory) for memory in (*inputs, *outputs)])
        self._bound = {ArgKind.INPUT: inputs, ArgKind.OUTPUT: outputs}
        if self.statuses is not None:
            self.statuses.begin()
        starts = self._starts.get(places)
        if starts is None:
            if len(self._starts) > _MOST_PLACES:
                del self._starts[next(iter(self._starts))]
            self._seen += 1
            self._bind()
            self._starts[places] = self._first_run()
            return
        for start in starts:
            start()

    def _first_run(self) -> list[Callable[[], None]]:
        """Run the stages, and give what starts them again: each may be tried on what those before it have left."""
        starts, is_tried = [], False
        for stage in self._stages:
            start: Callable[[], None]
            if isinstance(stage, Recording):
                is_tried |= stage.will_try
                with self._trials_undone(stage):
                    start = stage.bound()
            else:
                start = stage
            start()
            starts.append(start)
        if is_tried and self.statuses is not None:
            # What trials wrote is no sign that the checks of the run itself have written.
            self.device.wait()
        return starts

    @contextmanager
    def _trials_undone(self, stage: Recording) -> Iterator[None]:
        """Let each trial of launches find, and all of them leave, what is there now: state, and what stages left.

        Only the calls before the first that writes over state are tried, where these are enough: state is large.
        """
        if not stage.will_try:
            yield
            return
        inputs = {identity(memory): number for number, memory in enumerate(self._bound[ArgKind.INPUT])}
        over = [number for number, memory in enumerate(self._bound[ArgKind.OUTPUT]) if identity(memory) in inputs]
        writers = [
            number
            for output in over
            for recording, number, *_ in self._readers.get((ArgKind.OUTPUT, output), ())
            if recording is stage
        ]
        first = min(writers, default=len(stage.calls))
        stage.tried = first if first >= _ENOUGH_CALLS * len(stage.calls) else None
        steps = self._recorded_steps[id(stage)]
        tried = [step for number, step in steps if stage.tried is None or number < stage.tried]
        earlier = [step for step in self.steps if step.number < steps[0][1].number]
        places = [(*self.base(place), place.size) for place in overwritten(earlier, tried)]
        if stage.tried is None:
            numbers = [inputs[identity(self._bound[ArgKind.OUTPUT][output])] for output in over]
            places += [(self._bound[ArgKind.INPUT][n], 0, self._sizes[ArgKind.INPUT][n]) for n in numbers]
        copies = [(memory, offset, self.device.allocate(size), size) for memory, offset, size in places]
        for memory, offset, copy, size in copies:
            self.device.copy(memory, offset, copy, 0, size)

        def restore() -> None:
            for memory, offset, copy, size in copies:
                self.device.copy(copy, 0, memory, offset, size)

        stage.before_trial = restore
        try:
            yield
        finally:
            restore()
            stage.before_trial = lambda: None

    def calls(self, inputs: list[Any], outputs: list[Any]) -> list[list[BoundCall]]:
        """The launches of each step, bound to these pieces of memory; none for steps on the host."""
        self._bound = {ArgKind.INPUT: inputs, ArgKind.OUTPUT: outputs}
        self._bind()
        return [
            [
                BoundCall(launch.kernel, launch.grid, launch.block, self._arguments(launch, {})[0])
                for launch in step.launches
            ]
            for step in self.steps
        ]

    def _bind(self) -> None:
        """Give the launches the present pieces of memory."""
        before, self._recorded = self._recorded, self._bound
        if not before:
            self._record()
            return
        moved: dict[tuple[int, int], tuple[Recording, int, PlannedLaunch, dict[int, Any]]] = {}
        for kind, memories in self._bound.items():
            for index, (old, new) in enumerate(zip(before[kind], memories, strict=True)):
                if identity(old) != identity(new):
                    for reader in self._readers.get((kind, index), ()):
                        moved[id(reader[0]), reader[1]] = reader
        for recording, number, launch, staged in moved.values():
            recording.replace(number, self._arguments(launch, staged)[0])

    def _record(self) -> None:
        """Turn the steps into stages: launches in a row are one recording."""
        pending: list[tuple[BoundCall, PlannedLaunch, dict[int, Any]]] = []
        begun: list[tuple[int, PlannedStep]] = []

        def flush() -> None:
            if not pending:
                return
            recording = self.device.record([call for call, _, _ in pending])
            self._stages.append(recording)
            self._recorded_steps[id(recording)] = list(begun)
            begun.clear()
            for number, (_, launch, staged) in enumerate(pending):
                for arg in launch.args:
                    if isinstance(arg, Place) and arg.kind in self._bound:
                        entry = (recording, number, launch, staged)
                        self._readers.setdefault((arg.kind, arg.index), []).append(entry)
            pending.clear()

        values = HostValues(self._kept_places)
        for step in self.steps:
            if step.native is not None:
                flush()
                self._stages.append(HostCall(self, step, values))
            else:
                values.launched(step)
            for launch in step.launches:
                args, staged = self._arguments(launch, {})
                for number, memory in staged.items():
                    flush()
                    self._stages.append(_Copy(self, launch.args[number], memory))
                begun.append((len(pending), step))
                pending.append((BoundCall(launch.kernel, launch.grid, launch.block, args), launch, staged))
            if self._watched:
                flush()
                self._stages.append(_Wait(self, step))
            if self._gate is not None and step.number == self._gate.step:
                flush()
                self._stages.append(partial(self._gate.verify, self))
        flush()
        self._needs_memory = (self._gate is not None and self.statuses is None) or any(
            isinstance(stage, (HostCall, _Copy)) for stage in self._stages
        )

    def _arguments(self, launch: PlannedLaunch, staged: dict[int, Any]) -> tuple[list[Any], dict[int, Any]]:
        """What a launch is given, and the memory that stands for places where none can start."""
        args: list[Any] = []
        used = dict(staged)
        for number, arg in enumerate(launch.args):
            if isinstance(arg, Scalar):
                args.append(arg)
                continue
            memory = used.get(number) or self.memory(arg)
            if memory is None:
                memory = used[number] = self.device.allocate(arg.size)
            args.append(memory)
        return args, used

    def base(self, place: Place) -> tuple[Any, int]:
        """The memory that a place is in, and the bytes from its start."""
        if place.kind is ArgKind.CONSTANT:
            return self._constants(place.offset, place.size), 0
        if place.kind is ArgKind.WORKSPACE:
            return self._slots[place.index], place.offset
        return self._bound[place.kind][place.index], place.offset

    def memory(self, place: Place) -> Any | None:
        """The memory of a place as kernels take it; None where memory cannot start there."""
        base, offset = self.base(place)
        return base if not offset else self.device.view(base, offset, place.size)

    def read(self, place: Place, array: Array) -> None:
        """Copy a place to the host."""
        base, offset = self.base(place)
        self.device.read(base, offset, array)

    def write(self, place: Place, array: Array) -> None:
        """Copy from the host to a place."""
        memory = self.memory(place)
        if memory is not None:
            self.device.write(memory, array)
            return
        base, offset = self.base(place)
        self.device.copy(self.device.upload(array), 0, base, offset, place.size)

    def copy(self, place: Place, memory: Any) -> None:
        """Copy a place to memory that stands for it. Only views start inside other memory, and they are only read."""
        base, offset = self.base(place)
        self.device.copy(base, offset, memory, 0, place.size)


def identity(memory: Any) -> int:
    """What tells a piece of memory from others: its address, if it has one."""
    address: int = getattr(memory, "address", 0) or id(memory)
    return address


class _Copy:
    """A copy of a place to the memory that stands for it."""

    def __init__(self, frame: Frame, place: Place | Scalar, memory: Any) -> None:
        assert isinstance(place, Place)
        self._frame, self._place, self._memory = frame, place, memory

    def __call__(self) -> None:
        self._frame.copy(self._place, self._memory)


class _Wait:
    """Waits for the kernels of a step, so that what fails in them is said with their names."""

    def __init__(self, frame: Frame, step: PlannedStep) -> None:
        self._frame, self._step = frame, step

    def __call__(self) -> None:
        try:
            self._frame.device.wait()
        except UserError as error:
            kernel = self._step.kernel
            raise UserError(
                f"the kernel {kernel.symbol} failed: {error.message}", where=", ".join(kernel.nodes)
            ) from error
