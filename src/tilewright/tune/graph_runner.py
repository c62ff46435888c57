"""The process that times whole models with some of their kernels exchanged.

The first request is a `GraphModel`: a compiled model, candidates for its kernels, and the constants as they are before
a schedule arranges them. Each further one is a `GraphTrial`, which says what stands for which kernel; the answer is the
time of the whole model by the device's clock, launched in the way that is quickest for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.ir.structural import structural_key
from tilewright.lower.kernel import CompiledKernel
from tilewright.runtime.core.artifact import ArgKind, Artifact
from tilewright.runtime.core.dtypes import storage_dtype
from tilewright.runtime.device.devices import find_device
from tilewright.runtime.device.model import DeviceRunner
from tilewright.runtime.device.program import BoundCall
from tilewright.runtime.device.steps import Place, PlannedStep
from tilewright.support.errors import CompilerBug, UserError
from tilewright.tir.index_map import IndexMap
from tilewright.tune.device_runner import bound_launches, check_alive

Array = npt.NDArray[np.generic]
AS_COMPILED = -1
"""The number of a kernel's code as the model was compiled."""


@dataclass(frozen=True, slots=True)
class GraphModel:
    """A model of static shapes whose kernels all run on the device, and what may stand for them, by their symbols.

    `places` has the constant (a number among `constants`) of each step and parameter that is one.
    """

    artifact: Artifact
    candidates: Mapping[str, Sequence[CompiledKernel]]
    constants: Sequence[Array]
    places: Mapping[tuple[int, int], int]


@dataclass(frozen=True, slots=True)
class GraphTrial:
    """Which candidate stands for which kernel; other kernels are as compiled."""

    chosen: Mapping[str, int]
    samples: int = 8


class GraphSession:
    """A model on the device of this process."""

    def __init__(self, model: GraphModel) -> None:
        info = model.artifact.device
        assert info is not None and model.artifact.model is not None
        self.model = model
        self.device = find_device(info.kind)
        runner = DeviceRunner(model.artifact, self.device, None)
        prepared = runner.part.prepare(())
        self._steps: Sequence[PlannedStep] = prepared.steps
        self._frame = prepared.take()
        tensors = model.artifact.model
        inputs = [self._frame.own(ArgKind.INPUT, n) for n in range(len(tensors.inputs))]
        for memory, item in zip(inputs, tensors.inputs, strict=True):
            self.device.write(memory, _values(item.static_shape, item.dtype))
        outputs = [self._frame.own(ArgKind.OUTPUT, n) for n in range(len(tensors.outputs))]
        self._calls = {(n, AS_COMPILED): calls for n, calls in enumerate(self._frame.calls(inputs, outputs))}
        self._constants: dict[tuple[int, object], Any] = {}
        self._loaded: dict[tuple[str, int], Any] = {}

    def seconds(self, trial: GraphTrial) -> list[float]:
        """The times of a model with kernels exchanged."""
        calls: list[BoundCall] = []
        for number, step in enumerate(self._steps):
            which = trial.chosen.get(step.kernel.symbol, AS_COMPILED)
            if (number, which) not in self._calls:
                self._calls[number, which] = self._bound(step, which)
            calls += self._calls[number, which]
        return self.device.measure(calls, trial.samples)

    def _bound(self, step: PlannedStep, which: int) -> list[BoundCall]:
        """The launches of a candidate in the place of a step's own."""
        symbol = step.kernel.symbol
        code = self.model.candidates[symbol][which]
        info = code.device
        if info is None:
            raise CompilerBug(f"a candidate of {symbol} is not for a device")
        if (symbol, which) not in self._loaded:
            self._loaded[symbol, which] = self.device.load(code.code, info.launches)
        count = len(info.sizes) - len(code.scratch)
        given = [self._argument(step, number, code.packing.get(number)) for number in range(count)]
        scratch = [self.device.allocate(size) for size in code.scratch]
        return bound_launches(self.device, self._loaded[symbol, which], info.launches, [*given, *scratch])

    def _argument(self, step: PlannedStep, number: int, packing: IndexMap | None) -> Any:
        constant = self.model.places.get((step.number, number))
        if constant is None:
            place = step.args[number]
            memory = self._frame.memory(place) if isinstance(place, Place) else None
            if memory is None or packing is not None:
                raise UserError(f"the kernel {step.kernel.symbol} cannot be exchanged: its operand {number} lies badly")
            return memory
        key = (constant, None if packing is None else structural_key(packing))
        if key not in self._constants:
            array = self.model.constants[constant]
            arranged = array if packing is None else packing.rearrange(array)
            self._constants[key] = self.device.upload(np.ascontiguousarray(arranged))
        return self._constants[key]


def _values(shape: tuple[int, ...], dtype: str) -> Array:
    """Plausible inputs: floats around zero, integers that are valid indices of small tables."""
    random = np.random.default_rng(0)
    kind = storage_dtype(dtype)
    if dtype == "bfloat16":
        return (random.standard_normal(shape).astype(np.float32).view(np.uint32) >> 16).astype(kind)
    return (random.standard_normal(shape) if kind.kind == "f" else random.integers(0, 2, shape)).astype(kind)


_session: list[GraphSession] = []


def answer(request: object) -> list[float]:
    """Load a model, or time one trial of it."""
    if isinstance(request, GraphModel):
        _session.clear()
        _session.append(GraphSession(request))
        return []
    assert isinstance(request, GraphTrial) and _session
    try:
        return _session[0].seconds(request)
    except UserError as error:
        raise check_alive(_session[0].device, error) from error
