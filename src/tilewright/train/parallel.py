"""Data-parallel training: several processes, each with its part of every batch, change the same parameters alike.

    step = tw.train.ParallelStep(module, "cross_entropy", tw.train.AdamW(1e-3))
    tw.train.fit(step, (x, y), epochs=3, batch_size=64, checkpoint="run.npz")

    $ torchrun --nproc-per-node 2 --max-restarts 3 train.py

Processes are those of torch.distributed's default group: whoever started them (torchrun, Ray's TorchTrainer, a
cluster's scheduler) has said who they are. Each computes the gradients of its part; the averages over all parts are
what every process updates its own copy of the parameters by, so that copies stay equal. A batch is given whole to all,
in the same order (`fit` sees to it): losses are those of one process that sees the batch joined, but for rounding.
Batch normalisations take the statistics of a process's own part.

A process that is lost ends the others with an error; started again, all go on from the last checkpoint.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import numpy as np

from tilewright.front import compile as compile_model
from tilewright.frontend.core.arithmetic import ArithmeticBuilder
from tilewright.graph.gradient.api import value_and_grad
from tilewright.graph.ir.expr import Function, GraphExpr, Var
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import Array
from tilewright.graph.state import with_state
from tilewright.ir.dtype import FLOAT32
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type
from tilewright.runtime.core.executor import Executable
from tilewright.support.errors import MissingDependencyError, UserError
from tilewright.train.model import ENTRY, TrainableModel, put_together
from tilewright.train.program import MOVES, SCALE, TARGET, Assembly, StepProgram, loss_module, update
from tilewright.train.step import Step

_GRADIENT, _NEXT = ":gradient", ":next"


class Group:
    """The processes that train together: torch.distributed's default group, or one that the environment describes.

    `torchrun` sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; without them, this process is alone.
    """

    def __init__(self, timeout: float = 300.0) -> None:
        try:
            import torch
            import torch.distributed as distributed
        except ImportError:
            raise MissingDependencyError(
                "training in several processes needs PyTorch, whose collectives it uses",
                hint="pip install tilewright[torch]",
            ) from None
        self._torch, self._distributed = torch, distributed
        self.rank, self.size = 0, 1
        if not distributed.is_available():
            raise UserError("this PyTorch was built without torch.distributed", hint="install another build of it")
        if not distributed.is_initialized() and "WORLD_SIZE" in os.environ:
            distributed.init_process_group("gloo", timeout=timedelta(seconds=timeout))
        if distributed.is_initialized():
            self.rank, self.size = distributed.get_rank(), distributed.get_world_size()

    def average(self, values: Array) -> Array:
        """The mean over all processes, of a float32 array; every process gets the same bits."""
        if self.size == 1:
            return values
        tensor = self._torch.from_numpy(values)
        self._collectively(lambda: self._distributed.all_reduce(tensor))
        return np.asarray(tensor.numpy() / np.float32(self.size), np.float32)

    def share(self, values: Array) -> Array:
        """What the first process has, for all; arrays have the same shape and type everywhere."""
        if self.size == 1:
            return values
        tensor = self._torch.from_numpy(np.ascontiguousarray(values))
        self._collectively(lambda: self._distributed.broadcast(tensor, 0))
        return np.asarray(tensor.numpy())

    def wait(self) -> None:
        """Until all processes are here."""
        if self.size > 1:
            self._collectively(self._distributed.barrier)

    def _collectively(self, call: Callable[[], object]) -> None:
        try:
            call()
        except RuntimeError as error:
            raise UserError(
                f"process {self.rank} of {self.size} has lost another: {str(error).splitlines()[0]}",
                hint="start all of them again: fit(checkpoint=...) goes on from the last checkpoint",
            ) from None


class ParallelStep(Step):
    """`Step` in several processes: each gets the whole batch, and computes its part of it.

    The model is compiled for its part: where it has a fixed batch, the whole one is that times the number of processes.
    Checkpoints are written and read by the first process. Arguments are those of `Step`, but for `memory`.
    """

    def __init__(self, *arguments: Any, group: Group | None = None, **named: Any) -> None:
        self.group = Group() if group is None else group
        if named.get("memory") is not None:
            raise UserError(
                "memory= is for a step in one process", hint="give each process a smaller part of the batch"
            )
        super().__init__(*arguments, **named)
        self._agree()

    def input_shapes(self) -> list[tuple[Any, ...]]:
        """The shapes of a process's part."""
        return [tuple(info.shape) for info in self._slopes.input_info if info.name in self.program.inputs]

    @property
    def batch_parts(self) -> int:
        """How many parts a batch has."""
        return self.group.size

    @property
    def writes_files(self) -> bool:
        """Whether this process writes checkpoints and logs."""
        return self.group.rank == 0

    def _program(self, model: TrainableModel, output: int) -> StepProgram:
        self._gradients, program = split_program(self, model, output)
        return program

    def _made(self, program: StepProgram) -> Executable:
        target, threads, options = self._options
        self._slopes = compile_model(self._gradients, target, threads, options=options, precision=self._precision)
        return compile_model(program.module, target, threads, options=options)

    def _run(self, values: Mapping[str, object]) -> list[Any]:
        """Gradients of this process's part, their averages, and the update by these."""
        given = {name: self._part(name, values[name]) for name in self.program.inputs}
        state = self._compiled.state
        learned = {name: state[name] for name in (*self.program.parameters, *self.program.buffers)}
        wanted = {info.name for info in self._slopes.input_info}
        outputs = self._slopes.run({name: v for name, v in {**values, **given, **learned}.items() if name in wanted})
        outputs = [np.asarray(value, np.float32) for value in outputs]
        averages = self._averaged(outputs)
        parameters, buffers = self.program.parameters, self.program.buffers
        count = 1 + len(parameters)
        shown = averages[count : len(averages) - len(buffers)]
        slopes = {f"{name}{_GRADIENT}": value for name, value in zip(parameters, averages[1:count], strict=True)}
        after = averages[len(averages) - len(buffers) :] if buffers else []
        following = {f"{name}{_NEXT}": value for name, value in zip(buffers, after, strict=True)}
        wanted = {info.name for info in self._compiled.input_info}
        scalars = {name: value for name, value in values.items() if name in wanted}
        return [*shown, *self._compiled.run({**slopes, **following, **scalars})]

    def _averaged(self, outputs: list[Array]) -> list[Array]:
        """All of them in one call: many small messages take longer than a large one."""
        flat = self.group.average(np.concatenate([value.reshape(-1) for value in outputs]))
        found, begin = [], 0
        for value in outputs:
            found.append(flat[begin : begin + value.size].reshape(value.shape))
            begin += value.size
        return found

    def _part(self, name: str, value: object) -> Array:
        array = np.asarray(value)
        count, size = (len(array) if array.ndim else 0), self.group.size
        if count % size or not count:
            raise UserError(f"'{name}' has {count} examples, which {size} processes cannot share evenly")
        share = count // size
        return array[self.group.rank * share : (self.group.rank + 1) * share]

    def _agree(self) -> None:
        """All processes have what the first one has."""
        state = self._compiled.state
        state.assign({name: self.group.share(np.ascontiguousarray(value)) for name, value in state.snapshot().items()})
        self._snapshot = None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint; the first process does, and the others wait for it."""
        if self.writes_files:
            super().save(path)
        self.group.wait()

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Go on from a checkpoint, which only the first process needs to see."""
        if self.writes_files:
            super().restore(path)
        names = sorted(("epoch", "batch"))
        numbers = [self.steps, self.calls, self._since_overflow, *(self.position.get(name, 0) for name in names)]
        # Seeds have 64 bits, and scales are powers of two.
        words = self.group.share(np.array([self.seed & 0xFFFFFFFF, self.seed >> 32, *numbers], np.int64))
        self._scale = float(self.group.share(np.array([self._scale], np.float64))[0])
        self.seed = int(words[0]) | int(words[1]) << 32
        self.steps, self.calls, self._since_overflow = (int(word) for word in words[2:5])
        self.position = dict(zip(names, (int(word) for word in words[5:]), strict=True))
        self._agree()

    def has_checkpoint(self, path: os.PathLike[str]) -> bool:
        """Whether the first process sees a checkpoint there."""
        found = np.array([os.path.exists(path) and self.writes_files], np.int64)
        return bool(self.group.share(found)[0])


def split_program(step: Step, model: TrainableModel, output: int) -> tuple[IRModule, StepProgram]:
    """A step in two: gradients of a batch, and the update of parameters by gradients that are given."""
    b = ArithmeticBuilder()
    aimed, metrics = loss_module(b, model, step.loss, output, step.rules.scaled)
    names, buffers = tuple(model.parameters), tuple(model.buffers)
    gradients = value_and_grad(aimed, list(names), has_aux=True)
    b, assembly = ArithmeticBuilder(), Assembly()
    scalars = {name: Var(name, tensor_type((), FLOAT32)) for name in step.optimizer.scalars(0)}
    if step.rules.accumulate > 1:
        scalars[MOVES] = Var(MOVES, tensor_type((), FLOAT32))
    hosts = [*([Var(SCALE, tensor_type((), FLOAT32))] if step.rules.scaled else []), *scalars.values()]
    params = {name: Var(name, var.type) for name, (var, _) in model.parameters.items()}
    params |= {var.name: var for var in hosts}
    slopes = [Var(f"{name}{_GRADIENT}", var.type) for name, (var, _) in model.parameters.items()]
    for var in (*params.values(), *slopes):
        assert var.type is not None
        b.declare(var.type)
    shown: dict[str, GraphExpr] = {}
    update(b, assembly, model, params, list(slopes), step.optimizer, step.rules, scalars, shown)
    following = []
    for name, item in model.buffers.items():
        following.append(Var(f"{name}{_NEXT}", item.var.type))
        assembly.keep(Var(name, item.var.type), item.value)
        assembly.after[name] = following[-1]
    order = [var.name for var in assembly.vars]
    body = put_together(b, [], [*shown.values(), *(assembly.after[name] for name in order)])
    function = Function(ENTRY, (*slopes, *following, *hosts, *assembly.vars), body)
    labels = (*shown, *(f"next_{name}" for name in order))
    made = infer_types(IRModule([function], attributes={"model_name": "update", "output_names": labels}))
    given = tuple(var.name for var in model.inputs) + ((TARGET,) if step.loss is not None else ())
    seed = () if model.seed is None else (model.seed.name,)
    return gradients, StepProgram(
        with_state(made, {name: f"next_{name}" for name in order}),
        given,
        (*seed, *(var.name for var in hosts)),
        (*metrics, *shown),
        metrics,
        assembly.initial,
        names,
        buffers,
    )
