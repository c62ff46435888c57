"""One contestant of `bench.training` in its own process: `python -m bench.training_ways WAY MODEL THREADS [small]`.

Says how long it took to get ready, its first step included, and the loss of that step; then takes a step for every line
it reads, and says how many seconds it took. Idle ones wait for a line, and take no processor.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from bench import harness

_RATE, _MOMENTUM = 0.01, 0.9


def ours(name: str, small: bool, threads: int) -> Callable[[], float]:
    """`tw.train.Step`."""
    import torch

    import tilewright as tw

    model, x, labels = torch_case(name, small)
    with torch.no_grad():
        module = tw.frontend.from_torch(model.eval(), (x,))
    step = tw.train.Step(module, "cross_entropy", tw.train.SGD(_RATE, momentum=_MOMENTUM), threads=threads)
    batch, right = x.numpy(), labels.numpy()
    return lambda: step(batch, right).loss


def torch_case(name: str, small: bool) -> Any:
    """A model of torch that drops nothing, its batch and labels."""
    import torch
    from torch import nn

    from bench.torch_training_models import CASES

    torch.manual_seed(0)
    model, x, labels = CASES[name](small)
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        if isinstance(part, nn.MultiheadAttention):
            part.dropout = 0.0
    return model, x, labels


def by_torch(name: str, small: bool, threads: int, *, compiled: bool, channels_last: bool) -> Callable[[], float]:
    """PyTorch, eager or through inductor, with its update of all parameters in one call."""
    import torch

    from bench.torch_training_models import torch_step

    torch.set_num_threads(threads)
    torch._dynamo.config.allow_rnn = True
    model, x, labels = torch_case(name, small)
    model.train()
    if channels_last and x.ndim == 4:
        model = model.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=_RATE, momentum=_MOMENTUM, fused=True)
    return torch_step((model, x, labels), optimizer, torch.compile if compiled else lambda function: function)


def by_jax(name: str, small: bool, threads: int) -> Callable[[], float]:
    """`jax.jit`, whose threads are the processors that this process may use."""
    if threads == 1:
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    os.environ["JAX_PLATFORMS"] = "cpu"
    from bench.training_jax import stepper

    return stepper(name, small)


WAYS: dict[str, Callable[[str, bool, int], Callable[[], float]]] = {
    "tilewright": ours,
    "eager": lambda *case: by_torch(*case, compiled=False, channels_last=False),
    "eager, channels last": lambda *case: by_torch(*case, compiled=False, channels_last=True),
    "torch.compile": lambda *case: by_torch(*case, compiled=True, channels_last=False),
    "torch.compile, channels last": lambda *case: by_torch(*case, compiled=True, channels_last=True),
    "jax.jit": by_jax,
}
"""Who trains; those with channels last are for images."""


def main() -> None:
    """Take a step for every line."""
    way, name, threads, *rest = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    # What libraries print is no answer.
    os.dup2(2, 1)
    begin = time.perf_counter()
    # JAX has as many threads as there are processors for it; the others compile on all of them.
    with harness.pinned(int(threads)) if way == "jax.jit" else contextlib.nullcontext():
        step = WAYS[way](name, "small" in rest, int(threads))
        loss = step()
        print(json.dumps({"ready_s": time.perf_counter() - begin, "loss": loss}), file=answers, flush=True)
    with harness.pinned(int(threads)):
        for _ in sys.stdin:
            begin = time.perf_counter()
            step()
            print(time.perf_counter() - begin, file=answers, flush=True)


if __name__ == "__main__":
    main()
