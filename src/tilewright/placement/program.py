"""A model's graph over the host and several devices at once: what each place computes, by measured costs.

The model is compiled for every place as a whole and its kernels are timed there; copies are timed too. Units of the
graph (`units.py`) are then given places (`assignment.py`), first so that all the work together is least, then so that
the run is done soonest when places work at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tilewright.compiler import Compilation
from tilewright.front import compile as compile_model
from tilewright.options import LOW_PRECISIONS, CompileOptions
from tilewright.placement.assignment import Problem, Schedule, cheapest, schedule, shortened
from tilewright.placement.kernels import measure_link
from tilewright.placement.units import ModelGraph, PlaceKernel, Unit, keep_names, numbered, unit_seconds
from tilewright.request import ModelLike, TargetLike, model_targets
from tilewright.runtime.core.artifact import TensorInfo
from tilewright.runtime.core.executor import Executable
from tilewright.runtime.device.devices import split_index
from tilewright.runtime.device.parts import HOST as HOST_PLACE
from tilewright.runtime.device.parts import Part, PlacedModel
from tilewright.runtime.device.program import Span
from tilewright.runtime.device.timeline import Timeline
from tilewright.support.errors import UserError
from tilewright.support.text import human_seconds, shorten, table

_REPEAT: Final = 5
_NODES_WIDTH: Final = 60


@dataclass(frozen=True, slots=True)
class Place:
    """The host or a device: its name in tables, and what is compiled for it."""

    name: str
    target: TargetLike


@dataclass(frozen=True, slots=True)
class ProgramPlacement:
    """Where each unit of a model runs, and what a run takes by the measured costs."""

    graph: ModelGraph
    places: tuple[Place, ...]
    options: CompileOptions
    units: tuple[Unit, ...]
    problem: Problem
    chosen: Mapping[str, int]
    """The place of each unit, by its name."""
    input_info: tuple[TensorInfo, ...]
    output_info: tuple[TensorInfo, ...]

    def seconds(self, chosen: Mapping[str, int] | None = None) -> float:
        """What a run takes with units at these places (None: as placed) when places work at once."""
        return self._schedule(chosen).seconds

    def _schedule(self, chosen: Mapping[str, int] | None = None) -> Schedule:
        return schedule(self.problem, self.chosen if chosen is None else chosen)

    @property
    def timeline(self) -> Timeline:
        """What a run is expected to look like: each unit and each copy at its time."""
        nodes = {unit.name: ", ".join(unit.nodes) or unit.name for unit in self.units}
        spans = []
        for span in self._schedule().spans:
            name = self.places[abs(span.place)].name
            where = name if span.place >= 0 else f"copies, {name}"
            spans.append(Span(where, nodes.get(span.name, f"value {span.name}"), span.begin, span.end))
        return Timeline(tuple(sorted(spans, key=lambda item: item.begin)))

    def moved(self, where: Mapping[str, str]) -> ProgramPlacement:
        """The same with some nodes of the model, by name, at other places, by name; others stay where they are."""
        names = {place.name: number for number, place in enumerate(self.places)}
        chosen = dict(self.chosen)
        for node, place in where.items():
            units = [unit for unit in self.units if node in unit.nodes]
            if not units:
                raise UserError(f"the model has no node '{node}'", hint="print(placement) lists them")
            if place not in names:
                raise UserError(f"there is no place '{place}'", hint=f"one of {', '.join(names)}")
            for unit in units:
                if self.problem.parts[unit.name][names[place]] is None:
                    raise UserError(f"'{node}' cannot run at '{place}'", hint="print(placement) says where it can")
                chosen[unit.name] = names[place]
        return replace(self, chosen=chosen)

    def compile(self) -> PlacedModel:
        """The model so placed: a part for each run of units at one place."""
        parts, results = self.graph.parts(self.units, self.chosen)
        made = []
        for part in parts:
            place = self.places[part.place]
            nodes = dict.fromkeys(node for unit in part.units for node in unit.nodes)
            executable = compile_model(part.module, place.target, options=self.options)
            made.append(Part(place.name, tuple(nodes), part.inputs, executable))
        return PlacedModel(made, results, self.input_info, self.output_info)

    def __str__(self) -> str:
        rows = []
        for unit in self.units:
            times = self.problem.parts[unit.name]
            cells = ["cannot" if seconds is None else human_seconds(seconds) for seconds in times]
            nodes = shorten(", ".join(unit.nodes), _NODES_WIDTH) or "-"
            rows.append((self.places[self.chosen[unit.name]].name, *cells, nodes))
        alone = {}
        for number, place in enumerate(self.places):
            where = {name: number if times[number] is not None else 0 for name, times in self.problem.parts.items()}
            alone["all on the host" if not number else f"all that {place.name} can"] = self.seconds(where)
        said = ", ".join(f"{name} {human_seconds(seconds)}" for name, seconds in alone.items())
        links = ", ".join(
            f"{place.name} {human_seconds(link.latency)} a copy and {1e-9 / link.seconds_per_byte:.1f} GB/s"
            for place, link in zip(self.places[1:], self.problem.links, strict=True)
        )
        titles = ("where", *(place.name for place in self.places), "nodes")
        return f"{table(titles, rows)}\nso placed {human_seconds(self.seconds())}, {said}\nlinks: {links}"


def place_program(
    model: ModelLike, inputs: Sequence[object], targets: Sequence[TargetLike], options: CompileOptions | None
) -> ProgramPlacement:
    """Measure a model at every place, and find where each of its units should run."""
    options = options or CompileOptions()
    if options.on_host or options.state is not None or options.specialize:
        raise UserError(
            "a model over several devices is placed by costs: on_host, state and specialize are of one device",
            hint="tw.place(model, inputs, 'opencl')",
        )
    places = _places(targets)
    imported = Compilation(model, places[0].target, options=options).imported
    lowered = "float32" if options.precision in LOW_PRECISIONS else options.precision
    # What quantising and importing needed is done now.
    options = replace(options, precision=lowered, calibration=None, shapes=None)
    graph = ModelGraph(numbered(imported))
    compiled = [compile_model(graph.module, place.target, options=options) for place in places]
    kernels = [_kernels(executable, inputs) for executable in compiled]
    units = tuple(graph.units(kernels))
    costs = [unit_seconds(units, items) for items in kernels]
    parts = {unit.name: tuple(cost[unit.name] for cost in costs) for unit in units}
    links = []
    for executable in compiled[1:]:
        assert executable.device is not None
        links.append(measure_link(executable.device))
    infos = compiled[0].input_info, compiled[0].output_info
    values = graph.values(units)
    while True:
        problem = Problem(parts, values, links)
        chosen = shortened(problem, cheapest(problem))
        placement = ProgramPlacement(graph, places, options, units, problem, chosen, *infos)
        lost = _lost(placement)
        if not lost:
            return placement
        for name in lost:
            parts[name] = tuple(None if place == chosen[name] else item for place, item in enumerate(parts[name]))


def _lost(placement: ProgramPlacement) -> list[str]:
    """Units that a device takes in the whole model and refuses in their part: what it needs of others is elsewhere."""
    parts, _ = placement.graph.parts(placement.units, placement.chosen, keep_names)
    found = []
    for part in parts:
        times = [placement.problem.parts[unit.name][part.place] for unit in placement.units]
        if part.place and None in times:
            executable = compile_model(part.module, placement.places[part.place].target, options=placement.options)
            taken = unit_seconds(part.units, _kernels_of(executable))
            found += [name for name, seconds in taken.items() if seconds is None]
    return found


def _places(targets: Sequence[TargetLike]) -> tuple[Place, ...]:
    """The host first, then the devices; a CPU among the targets is the host."""
    host: TargetLike = "native"
    found: dict[str, TargetLike] = {}
    hosts = 0
    for target in targets:
        resolved, _ = model_targets(split_index(target)[0] if isinstance(target, str) else target)
        if resolved.is_cpu:
            host, hosts = target, hosts + 1
            continue
        name = str(target) if isinstance(target, str) and target not in found and " " not in target else resolved.kind
        if name in found:
            name = f"{name} {len(found) + 1}"
        found[name] = target
    if hosts > 1 or not found:
        raise UserError(
            "a model is placed on devices and the one CPU beside them",
            hint="target=['opencl', 'accel'], or ['native', 'opencl', 'accel']",
        )
    return (Place(HOST_PLACE, host), *(Place(name, target) for name, target in found.items()))


def _kernels(executable: Executable, inputs: Sequence[object]) -> list[PlaceKernel]:
    """The kernels of a model at a place, with what they take."""
    rows = executable.profile(*inputs, repeat=_REPEAT).rows
    return [replace(kernel, seconds=row.seconds) for kernel, row in zip(_kernels_of(executable), rows, strict=True)]


def _kernels_of(executable: Executable) -> list[PlaceKernel]:
    """The kernels of a model at a place, step by step."""
    device = executable.artifact.device
    refused = set() if device is None else {kernel.symbol for kernel in device.kernels if kernel.on_host}
    steps = [executable.model.kernels[step.kernel] for step in executable.model.steps]
    return [PlaceKernel(kernel.nodes, 0.0, kernel.symbol in refused) for kernel in steps]
