"""`Step`: forward, backward and update of a model as one compiled function, with parameters and moments as its state.

step = tw.train.Step(module, "cross_entropy", tw.train.AdamW(1e-3))
for x, y in batches:
    result = step(x, y)               # result.loss, result.accuracy
step.save("run.npz")                  # all of it: parameters, moments, counters
exe = tw.compile(step.module())       # the model for inference, with what was learned
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.compiler import Compilation
from tilewright.front import compile as compile_model
from tilewright.frontend import from_file
from tilewright.frontend.core.arithmetic import ArithmeticBuilder
from tilewright.graph.gradient.constants import parameters_of
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ops.random_bits import folded_key, key_of
from tilewright.graph.passes.plan_memory import MemoryPlan
from tilewright.ir.function import IRModule
from tilewright.options import CompileOptions
from tilewright.request import ModelLike, TargetLike
from tilewright.runtime.core.executor import Executable
from tilewright.runtime.core.state import read_arrays, write_arrays
from tilewright.support.errors import UserError
from tilewright.support.text import human_bytes
from tilewright.train.losses import Loss, loss_of
from tilewright.train.model import Trainable, TrainableModel, main_of, model_kind, trainable_model, with_weights
from tilewright.train.optimizers import Optimizer
from tilewright.train.program import MOVES, SCALE, Rules, StepProgram, loss_module, step_program
from tilewright.train.recompute import fitted, parse_bytes

Array = npt.NDArray[Any]
_FORMAT = 1
_METADATA = "tilewright:training"
_GROWTH_STEPS = 2000
"""Steps without an overflow after which a loss scale that adapts is doubled."""
_FIRST_SCALE = 2.0**16


class Result(dict[str, float]):
    """What a step says of itself: the loss and metrics, by name or as attributes."""

    def __getattr__(self, name: str) -> float:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"there is no metric '{name}': {', '.join(self)}") from None

    def __float__(self) -> float:
        return self["loss"]


@dataclass(frozen=True)
class MemoryReport:
    """Bytes between the kernels of a step, before their own scratch memory."""

    budget: int
    kept: int
    """What the step takes if everything that the way back reads is kept."""
    planned: int
    """What it takes."""
    lower_bound: int
    """The most that is alive at one time: no plan of these kernels takes less."""

    def __str__(self) -> str:
        sizes = [human_bytes(size) for size in (self.budget, self.kept, self.planned, self.lower_bound)]
        return f"limit {sizes[0]}, keeping all {sizes[1]}, planned {sizes[2]}, lower bound {sizes[3]}"


class Step:
    """One step of training, compiled: `step(x, y)` changes the parameters, and gives the loss and metrics.

    `model` is a module of a frontend, or the path of a model file, as it is for inference; its weights are the
    parameters (`trainable`: names, or a function of a name, for some of them). `loss` is one of `tilewright.train`, its
    name, or None where the model's output is the loss. Batch normalisations take the statistics of the batch, and mix
    them with `batch_norm` (torch's momentum) into running ones; None leaves them as they are.

    `clip_norm` and `clip_value` limit gradients; with `accumulate`, parameters move after so many calls, by the average
    of their gradients; `average` keeps an average of parameters of which that share stays in each step. `precision` is
    that of `tw.compile`; in float16 the loss is scaled, by `loss_scale` or (None) by what the gradients allow. `seed`
    decides what dropout and the like draw. `inference` is the model that `module()` and `evaluate` use, where it is
    another one: for a torch module in training mode, the one that was imported after `eval()`. `memory` ("2GiB", or a
    share: 0.5) is the most that values between kernels may take: where that is less than keeping them all takes, some
    are computed again on the way back (`memory_report`).
    """

    def __init__(
        self,
        model: ModelLike,
        loss: Loss | str | None,
        optimizer: Optimizer,
        *,
        output: int = 0,
        trainable: Trainable = None,
        batch_norm: float | None = 0.1,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        accumulate: int = 1,
        average: float | None = None,
        precision: str = "float32",
        loss_scale: float | None = None,
        seed: int = 0,
        inference: IRModule | None = None,
        memory: str | float | None = None,
        target: TargetLike = "native",
        threads: int | None = None,
        options: CompileOptions | None = None,
    ) -> None:
        if not isinstance(optimizer, Optimizer):
            raise UserError("the optimizer is an object of tilewright.train", hint="tw.train.AdamW(1e-3)")
        scaled = precision == "float16" or loss_scale is not None
        rules = Rules(clip_norm, clip_value, accumulate, average, scaled)
        _check(rules, loss_scale, seed)
        self.loss = None if loss is None else loss_of(loss)
        self.optimizer = optimizer
        self.rules = rules
        self.seed = seed
        self.steps = 0
        """How often the parameters have moved."""
        self.calls = 0
        """How many batches were seen."""
        self.position: dict[str, int] = {}
        """Where in the data training is; `fit` keeps it here, and checkpoints have it."""
        self._adapts = scaled and loss_scale is None
        self._scale = _FIRST_SCALE if loss_scale is None else float(loss_scale)
        self._since_overflow = 0
        self._output = output
        module = _imported(model)
        self._inference = module if inference is None else inference
        found = trainable_model(module, ArithmeticBuilder(), trainable, batch_norm)
        self._options = (target, threads, options)
        self._precision = precision
        self.program: StepProgram = self._program(found, output)
        self.memory_report = self._fit_memory(memory)
        """What the step's workspace takes, as planned; None without a limit."""
        self._compiled = self._made(self.program)
        self._compiled.state.assign(self.program.initial)
        self._evaluator: Executable | None = None
        self._measured: tuple[str, ...] = ()
        self._snapshot: tuple[int, dict[str, Array]] | None = None

    def _program(self, model: TrainableModel, output: int) -> StepProgram:
        return step_program(model, self.loss, self.optimizer, self.rules, output)

    def _made(self, program: StepProgram) -> Executable:
        target, threads, options = self._options
        return compile_model(program.module, target, threads, options=options, precision=self._precision)

    def _run(self, values: Mapping[str, object]) -> list[Any]:
        return self._compiled.run(values)

    def input_shapes(self) -> list[tuple[Any, ...]]:
        """The shapes of what a step takes, as the model is compiled for them."""
        return [tuple(info.shape) for info in self._compiled.input_info if info.name in self.program.inputs]

    @property
    def batch_parts(self) -> int:
        """How many parts of the size that the model is compiled for a batch has."""
        return 1

    @property
    def writes_files(self) -> bool:
        """Whether this process writes logs."""
        return True

    def has_checkpoint(self, path: os.PathLike[str]) -> bool:
        """Whether there is one to go on from."""
        return os.path.exists(path)

    @property
    def executable(self) -> Executable:
        """The compiled step."""
        return self._compiled

    def memory_plan(self) -> MemoryPlan:
        """Where values of the step live: what its workspace takes against the least that it could."""
        return self._compilation(self.program.module).lowered.plans[0]

    def _compilation(self, module: IRModule) -> Compilation:
        target, threads, options = self._options
        return Compilation(module, target, threads, options=options, precision=self._precision)

    def _fit_memory(self, memory: str | float | None) -> MemoryReport | None:
        """Make the step fit an amount of memory, by computing values again where keeping them takes more."""
        if memory is None:
            return None
        parse_bytes(memory, 1)

        def planned(module: IRModule) -> MemoryPlan:
            return self._compilation(module).lowered.segments[0].plan

        kept = planned(self.program.module)
        budget = parse_bytes(memory, kept.workspace_bytes)
        if kept.workspace_bytes <= budget:
            return MemoryReport(budget, kept.workspace_bytes, kept.workspace_bytes, kept.lower_bound)
        found = fitted(self.program.module, planned, kept.workspace_bytes, budget)
        report = MemoryReport(budget, kept.workspace_bytes, found.plan.workspace_bytes, found.plan.lower_bound)
        if found.plan.workspace_bytes > budget:
            raise UserError(f"the step does not fit its memory: {report}", hint="give more memory, or smaller batches")
        self.program.module = found.module
        return report

    def __call__(self, *arrays: object, **named: object) -> Result:
        """One step on a batch: the model's inputs in order, then the target; or by name, the target as `target`."""
        given = self._given(arrays, named)
        moves = (self.calls + 1) % self.rules.accumulate == 0
        values = {**given, **self._scalars(moves)}
        outputs = self._run(values)
        result = Result(zip(("loss", *self.program.metrics), map(float, outputs), strict=True))
        self.calls += 1
        if moves:
            self._count(result.get("finite", 1.0) > 0)
        return result

    def _given(self, arrays: Sequence[object], named: Mapping[str, object]) -> dict[str, object]:
        names = self.program.inputs
        if len(arrays) > len(names):
            raise UserError(f"a step takes {len(names)} arrays ({', '.join(names)}), not {len(arrays)}")
        given = dict(zip(names, arrays, strict=False))
        for name, value in named.items():
            if name not in names or name in given:
                problem = "is given twice" if name in given else f"is none of {', '.join(names)}"
                raise UserError(f"the input '{name}' {problem}")
            given[name] = value
        missing = [name for name in names if name not in given]
        if missing:
            raise UserError(f"the input '{missing[0]}' is missing: a step takes {', '.join(names)}")
        return given

    def _scalars(self, moves: bool) -> dict[str, Array]:
        known = {name: np.asarray(value, np.float32) for name, value in self.optimizer.scalars(self.steps).items()}
        known[SCALE] = np.asarray(self._scale, np.float32)
        known[MOVES] = np.asarray(float(moves), np.float32)
        key = folded_key(key_of(self.seed), self.calls)
        known["seed"] = np.asarray(int(key[0]) << 31 | int(key[1]) >> 1, np.int64)
        return {name: known[name] for name in self.program.scalars}

    def _count(self, finite: bool) -> None:
        """Count a step, or make the scale of the loss smaller after one that overflowed."""
        if finite:
            self.steps += 1
        if not self._adapts:
            return
        self._since_overflow = self._since_overflow + 1 if finite else 0
        if not finite:
            self._scale = max(self._scale / 2, 1.0)
        elif self._since_overflow == _GROWTH_STEPS:
            self._scale, self._since_overflow = self._scale * 2, 0

    @property
    def loss_scale(self) -> float:
        """What the loss is multiplied with before it is differentiated; 1 in float32."""
        return self._scale if self.rules.scaled else 1.0

    # What was learned

    def parameters(self, *, average: bool = False) -> dict[str, Array]:
        """Copies of the trained weights by name; with `average`, their averages."""
        return {name: self._compiled.state[self._stored(name, average)] for name in self.program.parameters}

    def _stored(self, name: str, average: bool) -> str:
        if average and self.rules.average is None:
            raise UserError("this step keeps no average of its parameters", hint="Step(..., average=0.999)")
        return f"{name}:average" if average else name

    def buffers(self) -> dict[str, Array]:
        """Copies of the running statistics by name."""
        return {name: self._compiled.state[name] for name in self.program.buffers}

    def assign(self, values: Mapping[str, object]) -> None:
        """Give parameters (or running statistics) other values, by name."""
        known = (*self.program.parameters, *self.program.buffers)
        for name in values:
            if name not in known:
                raise UserError(f"the model has no parameter '{name}'", hint=f"it has: {', '.join(known[:8])}")
        wanted = dict(values)
        if self.rules.average is not None:
            wanted |= {f"{name}:average": value for name, value in values.items() if name in self.program.parameters}
        self._compiled.state.assign(wanted)
        self._snapshot = None

    def module(self, *, average: bool = False) -> IRModule:
        """The model for inference with what was learned: for `tw.compile`, `tw.to_onnx`, ..."""
        return with_weights(self._inference, self._learned(average))

    def _learned(self, average: bool) -> dict[str, Array]:
        """Weights and running statistics by the names that they have in the model for inference."""
        known = parameters_of(infer_types(self._inference))
        # Programs of torch have buffers under names with underscores.
        plain = {name.replace(".", "_"): name for name in known}
        values = self.parameters(average=average)
        for name, value in self.buffers().items():
            full = name if name in known else plain.get(name)
            if full is not None:
                values[full] = value
        return values

    def evaluate(self, *arrays: object, **named: object) -> Result:
        """The loss and metrics of a batch with what was learned, in the form for inference; nothing changes."""
        given = self._given(arrays, named)
        if self._snapshot is None or self._snapshot[0] != self.calls:
            self._snapshot = (self.calls, self._learned(average=False))
        if self._evaluator is None:
            self._evaluator = self._made_evaluator(list(self._snapshot[1]))
        outputs = self._evaluator.run({**given, **self._snapshot[1]})[1:]
        return Result(zip(("loss", *self._measured), map(float, outputs), strict=True))

    def _made_evaluator(self, names: list[str]) -> Executable:
        b = ArithmeticBuilder()
        model = trainable_model(self._inference, b, names, statistics=True)
        if model.seed is not None or model.buffers:
            raise UserError(
                "the model is in training mode: it draws random numbers, or changes its buffers",
                hint="Step(..., inference=from_torch(model.eval(), example))",
            )
        module, self._measured = loss_module(b, model, self.loss, self._output, scaled=False)
        target, threads, options = self._options
        return compile_model(module, target, threads, options=options)

    # Checkpoints

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything that the rest of training depends on to a file, which is there whole or not at all."""
        metadata = {
            "format": _FORMAT,
            "steps": self.steps,
            "calls": self.calls,
            "seed": self.seed,
            "scale": self._scale,
            "since_overflow": self._since_overflow,
            "position": self.position,
            "optimizer": repr(self.optimizer),
        }
        text = np.frombuffer(json.dumps(metadata).encode(), np.uint8)
        write_arrays(Path(path), {**self._compiled.state.snapshot(), _METADATA: text})

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Go on from a checkpoint of the same model and optimizer: what follows is what would have followed then."""
        arrays = read_arrays(Path(path))
        text = arrays.pop(_METADATA, None)
        try:
            metadata = {} if text is None else json.loads(text.tobytes())
            found = [metadata[name] for name in ("steps", "calls", "seed", "since_overflow")]
            scale, position = float(metadata["scale"]), {str(k): int(v) for k, v in metadata["position"].items()}
            steps, calls, seed, since = (int(value) for value in found)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise UserError(f"the file is no checkpoint of training, or damaged: {error!r}", where=str(path)) from None
        if metadata["format"] > _FORMAT:
            raise UserError("the checkpoint is of a newer Tilewright", where=str(path))
        for name in (*self._compiled.state, *arrays):
            if name not in arrays or name not in self._compiled.state:
                holder = "the checkpoint" if name not in arrays else "the step"
                raise UserError(
                    f"{holder} has no '{name}'", where=str(path), hint="restore with the model and optimizer of the run"
                )
        self._compiled.state.assign(arrays)
        self.steps, self.calls, self.seed, self._since_overflow = steps, calls, seed, since
        self._scale, self.position = scale, position
        self._snapshot = None

    def __repr__(self) -> str:
        count = sum(value.size for name, value in self.program.initial.items() if name in self.program.parameters)
        return f"Step({count} parameters, {self.optimizer!r}, after {self.steps} steps)"


def _imported(model: ModelLike) -> IRModule:
    if isinstance(model, IRModule):
        return model
    if not isinstance(model, (str, os.PathLike, bytes)):
        raise model_kind(model)
    module = from_file(model)
    main_of(module)
    return module


def _check(rules: Rules, scale: float | None, seed: int) -> None:
    for name in ("clip_norm", "clip_value"):
        value = getattr(rules, name)
        if value is not None and not (math.isfinite(value) and value > 0):
            raise UserError(f"{name} is a positive number, not {value}")
    if not isinstance(rules.accumulate, int) or isinstance(rules.accumulate, bool) or rules.accumulate < 1:
        raise UserError(f"accumulate is a whole number of at least 1, not {rules.accumulate!r}")
    if rules.average is not None and not 0 < rules.average < 1:
        raise UserError(f"average is the share of the old average that stays, between 0 and 1, not {rules.average}")
    if scale is not None and not (math.isfinite(scale) and scale > 0):
        raise UserError(f"loss_scale is a positive number, not {scale}")
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 1 << 64:
        raise UserError(f"the seed is a whole number from 0 to below 2^64, not {seed!r}")
