"""`PlacedModel`: a model in parts, each for a place of its own (the host, a GPU, an accelerator), that work at once.

    model = tw.place("detector.onnx", [x], ["opencl", "accel"]).compile()
    y = model(x)
    print(model.timeline(x).text())
    for y in model.map(frames): ...       # several runs under way: each place has the next one's part to do

Each place has a thread that runs its parts, and each device one that copies: what a part needs travels while others
compute. A part begins when all that it reads is at its place. Calls may come from several threads.
"""

from __future__ import annotations

import functools
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tilewright.runtime.core.artifact import TensorInfo
from tilewright.runtime.core.convert import Array
from tilewright.runtime.core.executor import Executable
from tilewright.runtime.core.load import load
from tilewright.runtime.device.array import DeviceArray
from tilewright.runtime.device.program import Span
from tilewright.runtime.device.timeline import Timeline
from tilewright.support.errors import UserError
from tilewright.support.files import replacing
from tilewright.support.text import human_bytes, plural, shorten, table

HOST: Final = "host"
_PLAN: Final = "placement.json"
_FORMAT: Final = 1
_NODES_WIDTH: Final = 60
_AHEAD: Final = 3
"""Runs that `map` has under way at once, where nobody says."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a value comes from: an input of the model (`part` is None) or a result of a part, by its number."""

    part: int | None
    index: int


@dataclass(frozen=True, slots=True)
class Part:
    """What one place computes without a break, and where each of its inputs comes from."""

    place: str
    nodes: tuple[str, ...]
    inputs: tuple[Source, ...]
    executable: Executable

    @property
    def label(self) -> str:
        """Its nodes, in short."""
        ends = self.nodes if len(self.nodes) <= 2 else (self.nodes[0], "...", self.nodes[-1])
        return " ".join(ends) or "constants"


class PlacedModel:
    """Parts of a model at their places. `names` are those of the model's inputs and outputs."""

    def __init__(
        self,
        parts: Sequence[Part],
        results: Sequence[Source],
        input_info: Sequence[TensorInfo],
        output_info: Sequence[TensorInfo],
    ) -> None:
        self.parts = tuple(parts)
        self.results = tuple(results)
        self.input_info = tuple(input_info)
        self.output_info = tuple(output_info)
        self._readers: dict[Source, list[int | None]] = {}
        for number, part in enumerate(parts):
            for source in part.inputs:
                self._readers.setdefault(source, []).append(number)
        for source in results:
            self._readers.setdefault(source, []).append(None)
        self._closed = False
        self._under_way: set[Future[list[Array]]] = set()
        places = dict.fromkeys(part.place for part in parts)
        self._workers = {place: ThreadPoolExecutor(1, f"tilewright {place}") for place in places}
        devices = [place for place in places if place != HOST]
        self._couriers = {place: ThreadPoolExecutor(1, f"tilewright copies {place}") for place in devices}

    # ---------------------------------------------------------------- calls

    def __call__(self, *arrays: object) -> Any:
        """Run the model; one output comes back as it is, several as a tuple, as numpy arrays."""
        outputs = self.start(*arrays).result()
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def run(self, inputs: Mapping[str, object]) -> list[Array]:
        """Run the model on inputs by name; arrays in the model's output order."""
        known = [info.name for info in self.input_info]
        if inputs.keys() != set(known):
            raise UserError(f"the model takes the inputs {', '.join(known)}, not {', '.join(inputs) or 'none'}")
        return self.start(*(inputs[name] for name in known)).result()

    def start(self, *arrays: object, spans: list[Span] | None = None) -> Future[list[Array]]:
        """Begin a run; others may be under way. `spans` is where what happens is noted."""
        if self._closed:
            raise UserError("the model is closed")
        if len(arrays) != len(self.input_info):
            expected = ", ".join(map(str, self.input_info))
            raise UserError(f"the model takes {plural(len(self.input_info), 'input')} ({expected}), not {len(arrays)}")
        run = _Run(self, spans)
        self._under_way.add(run.done)
        run.done.add_done_callback(self._under_way.discard)
        return run.begin(arrays)

    def map(self, batches: Iterable[object], ahead: int = _AHEAD) -> Iterator[Any]:
        """The results of many runs, in order, with `ahead` of them under way: places work on different runs at once.

        A batch is an array, or a tuple of arrays where the model has several inputs.
        """
        if ahead < 1:
            raise UserError(f"at least one run is under way, not {ahead}")
        under_way: deque[Future[list[Array]]] = deque()
        for batch in batches:
            under_way.append(self.start(*(batch if isinstance(batch, tuple) else (batch,))))
            if len(under_way) >= ahead:
                yield _alone(under_way.popleft().result())
        while under_way:
            yield _alone(under_way.popleft().result())

    def timeline(self, *arrays: object, runs: int = 1) -> Timeline:
        """When each part and each copy began and ended, of so many runs started together, after one to warm up."""
        self.start(*arrays).result()
        spans: list[Span] = []
        for started in [self.start(*arrays, spans=spans) for _ in range(runs)]:
            started.result()
        return Timeline(tuple(sorted(spans, key=lambda span: span.begin)))

    def placement(self) -> str:
        """A table of the parts: where each runs, what it reads of others, and its nodes."""
        rows = []
        for number, part in enumerate(self.parts):
            reads = [f"part {source.part}" if source.part is not None else "input" for source in part.inputs]
            nodes = shorten(", ".join(part.nodes), _NODES_WIDTH) or "-"
            rows.append((str(number), part.place, ", ".join(dict.fromkeys(reads)) or "-", nodes))
        return table(("part", "where", "reads", "nodes"), rows)

    def close(self) -> None:
        """End the threads, when the runs under way are done. Later calls are errors."""
        self._closed = True
        wait(tuple(self._under_way))
        for worker in (*self._workers.values(), *self._couriers.values()):
            worker.shutdown()

    def __enter__(self) -> PlacedModel:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(map(str, infos)) for infos in (self.input_info, self.output_info))
        return f"PlacedModel({', '.join(part.place for part in self.parts)}: ({inputs}) -> ({outputs}))"

    # ---------------------------------------------------------------- what runs use

    def readers(self, source: Source) -> Sequence[int | None]:
        """The parts that read a value; None stands for the caller."""
        return self._readers.get(source, ())

    def worker(self, place: str) -> ThreadPoolExecutor:
        """The thread that runs the parts of a place."""
        return self._workers[place]

    def courier(self, place: str) -> ThreadPoolExecutor:
        """The thread that copies from and to a device."""
        return self._couriers[place]

    # ---------------------------------------------------------------- files

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the parts as libraries into a folder, for `PlacedModel.load`."""
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        for number, part in enumerate(self.parts):
            part.executable.export_library(place / f"part_{number}.so")
        plan = {
            "format": _FORMAT,
            "parts": [
                {"place": part.place, "nodes": part.nodes, "inputs": [asdict(source) for source in part.inputs]}
                for part in self.parts
            ],
            "results": [asdict(source) for source in self.results],
            "inputs": [asdict(info) for info in self.input_info],
            "outputs": [asdict(info) for info in self.output_info],
        }
        with replacing(place / _PLAN) as temporary:
            temporary.write_text(json.dumps(plan, indent=1))

    @staticmethod
    def load(folder: str | os.PathLike[str]) -> PlacedModel:
        """The model that `save` wrote. Its parts are native code: load those whose origin you trust."""
        place = Path(folder)
        try:
            plan = json.loads((place / _PLAN).read_text())
            if plan["format"] != _FORMAT:
                raise UserError(
                    f"the placement has format {plan['format']}, and this reads {_FORMAT}", where=str(place)
                )
            return _loaded(place, plan)
        except OSError as error:
            raise UserError(f"there is no placed model: {error}", where=str(place)) from None
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise UserError(f"the placement is damaged: {error!r}", where=str(place / _PLAN)) from None


def _alone(outputs: list[Array]) -> Any:
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _loaded(folder: Path, plan: Mapping[str, Any]) -> PlacedModel:
    parts = []
    for number, item in enumerate(plan["parts"]):
        executable = load(folder / f"part_{number}.so")
        sources = tuple(Source(**source) for source in item["inputs"])
        if not isinstance(executable, Executable) or len(sources) != len(executable.input_info):
            raise ValueError(f"part {number} is not the one that was saved")
        for source in sources:
            if source.part is not None and not 0 <= source.part < number:
                raise ValueError(f"part {number} reads of part {source.part}")
        parts.append(Part(str(item["place"]), tuple(item["nodes"]), sources, executable))
    results = [Source(**source) for source in plan["results"]]
    infos = [
        [TensorInfo(**{**info, "shape": tuple(info["shape"])}) for info in plan[key]] for key in ("inputs", "outputs")
    ]
    for source in (*results, *(source for part in parts for source in part.inputs)):
        count = len(infos[0]) if source.part is None else len(parts[source.part].executable.output_info)
        if not 0 <= source.index < count:
            raise ValueError(f"there is no value {source}")
    return PlacedModel(parts, results, *infos)


class _Run:
    """One run: values where they are, and what still waits for them."""

    def __init__(self, model: PlacedModel, spans: list[Span] | None) -> None:
        self._model = model
        self._spans = spans
        self._lock = threading.Lock()
        self._values: dict[tuple[Source, str], Any] = {}
        self._asked: set[tuple[Source, str]] = set()
        self._missing = [len(set(part.inputs)) for part in model.parts]
        self._outputs_missing = len(set(model.results))
        self.done: Future[list[Array]] = Future()
        """The results, when they are there."""

    def begin(self, arrays: Sequence[object]) -> Future[list[Array]]:
        """Give the inputs; everything else follows."""
        for number, part in enumerate(self._model.parts):
            if not part.inputs:
                self._submit(number)
        for index, array in enumerate(arrays):
            self._arrive(Source(None, index), HOST, array)
        return self.done

    def _arrive(self, source: Source, place: str, value: Any) -> None:
        """A value is at a place: parts may begin, and copies to other places."""
        with self._lock:
            self._values[source, place] = value
            readers = list(dict.fromkeys(self._model.readers(source)))
            here = [number for number in readers if self._place_of(number) == place]
            ready: list[int | None] = []
            for number in here:
                if number is None:
                    self._outputs_missing -= 1
                    if not self._outputs_missing:
                        ready.append(number)
                else:
                    self._missing[number] -= 1
                    if not self._missing[number]:
                        ready.append(number)
            wanted = {self._place_of(number) for number in readers} - {place}
            if place != HOST:
                # Everything goes through the host: from there it is copied on.
                wanted = {HOST} if wanted and (source, HOST) not in self._values else set()
            copies = [item for item in sorted(wanted) if (source, item) not in self._asked]
            self._asked.update((source, item) for item in copies)
        for number in ready:
            if number is None:
                self._finish()
            else:
                self._submit(number)
        for target in copies:
            courier = self._model.courier(target if place == HOST else place)
            self._give(courier, functools.partial(self._copy, source, place, target))

    def _place_of(self, number: int | None) -> str:
        return HOST if number is None else self._model.parts[number].place

    def _finish(self) -> None:
        self.done.set_result([self._values[source, HOST] for source in self._model.results])

    def _submit(self, number: int) -> None:
        self._give(self._model.worker(self._model.parts[number].place), lambda: self._compute(number))

    def _give(self, worker: ThreadPoolExecutor, work: Callable[[], None]) -> None:
        def guarded() -> None:
            if self.done.done():
                return
            try:
                work()
            except BaseException as error:
                # The caller gets it; what else is under way finds the run done.
                with self._lock:
                    if not self.done.done():
                        self.done.set_exception(error)

        worker.submit(guarded)

    def _note(self, place: str, name: str, begin: float) -> None:
        if self._spans is not None:
            self._spans.append(Span(place, name, begin, time.perf_counter()))

    def _compute(self, number: int) -> None:
        part = self._model.parts[number]
        begin = time.perf_counter()
        outputs = part.executable(*(self._values[source, part.place] for source in part.inputs))
        if part.executable.device is not None:
            part.executable.device.wait()
        self._note(part.place, f"part {number}: {part.label}", begin)
        for index, value in enumerate(outputs if isinstance(outputs, tuple) else (outputs,)):
            self._arrive(Source(number, index), part.place, value)

    def _copy(self, source: Source, place: str, target: str) -> None:
        value = self._values[source, place]
        begin = time.perf_counter()
        if place == HOST:
            reader = next(number for number in self._model.readers(source) if self._place_of(number) == target)
            assert reader is not None
            part = self._model.parts[reader]
            info = part.executable.input_info[part.inputs.index(source)]
            copied: Any = part.executable.to_device(value, info.dtype)
            size = copied.nbytes
        else:
            assert isinstance(value, DeviceArray)
            copied, size = value.numpy(), value.nbytes
        name = "input" if source.part is None else f"result of part {source.part}"
        row = f"copies, {target if place == HOST else place}"
        self._note(row, f"{name} {source.index} to {target} ({human_bytes(size)})", begin)
        self._arrive(source, target, copied)
