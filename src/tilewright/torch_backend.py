"""`torch.compile(model, backend="tilewright")`: graphs that torch captures, compiled and run by Tilewright.

Without gradients the model's weights become constants of the compiled code, laid out and folded as the compiler likes.
A weight that is changed in place afterwards is noticed (by torch's version counter) and the graph is compiled once
more, with its weights as inputs. A graph whose sizes vary is compiled for each set of sizes that it meets. Tensors go
in and out without copies; a graph of tensors on a GPU is compiled for that. An operator that is not supported is an
error that names it, never a silent fall back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.front import compile
from tilewright.frontend.torch.capture import import_graph
from tilewright.frontend.torch.decompositions import graph_decompositions
from tilewright.frontend.torch.importer import load_torch
from tilewright.options import CompileOptions, make_options
from tilewright.request import TargetLike
from tilewright.runtime.core.executor import Executable

Run = Callable[..., Sequence[Any]]


@dataclass(frozen=True, slots=True)
class _How:
    """How graphs are compiled; without a target, for where their tensors are."""

    target: TargetLike | None
    options: CompileOptions


def tilewright_backend(graph_module: Any, example_inputs: Sequence[Any], **options: Any) -> Run:
    """The backend function that torch calls with a captured graph.

    `torch.compile(model, backend="tilewright", options={"target": "cuda", "precision": "float16"})` takes a target and
    the fields of `CompileOptions`.
    """
    from torch._dynamo.backends.common import aot_autograd

    given = dict(options.get("options") or {})
    target = given.pop("target", None)
    how = _How(target, make_options(None, None, given))
    weights = [_is_weight(value) for value in example_inputs]
    held = sum(1 for _ in graph_module.parameters()) + sum(1 for _ in graph_module.buffers())

    def for_inference(graph: Any, inputs: Sequence[Any]) -> Run:
        # The graph's own parameters come first among its inputs; those that torch lifted are among the examples.
        actual = [*graph_module.parameters(), *graph_module.buffers(), *example_inputs]
        places = [place for place, flag in enumerate([True] * held + weights) if flag]
        if len(actual) != len(inputs):
            places = []
        return _compiled(graph, inputs, {place: actual[place] for place in places}, how)

    def for_training(graph: Any, inputs: Sequence[Any]) -> Run:
        return _compiled(graph, inputs, {}, how)

    compiler = aot_autograd(
        fw_compiler=_boxed(for_training),
        inference_compiler=_boxed(for_inference),
        decompositions=graph_decompositions(),
    )
    run: Run = compiler(graph_module, example_inputs)
    return run


def _boxed(make: Callable[[Any, Sequence[Any]], Run]) -> Callable[[Any, Sequence[Any]], Run]:
    from torch._functorch._aot_autograd.utils import make_boxed_func

    def compile_graph(graph: Any, inputs: Sequence[Any]) -> Run:
        boxed: Run = make_boxed_func(make(graph, inputs))
        return boxed

    return compile_graph


def _is_weight(value: Any) -> bool:
    """Whether torch says that an input is the same tensor in every call."""
    return getattr(value, "_dynamo_static_input_type", None) is not None


def _compiled(graph: Any, inputs: Sequence[Any], weights: dict[int, Any], how: _How) -> Run:
    torch = load_torch()
    sizes = [size for item in inputs for size in (item.shape if isinstance(item, torch.Tensor) else (item,))]
    if any(isinstance(size, (torch.SymInt, torch.SymFloat)) for size in sizes):
        return GraphByShape(graph, weights, how)
    return CompiledGraph(graph, inputs, weights, how)


class GraphByShape:
    """A graph of sizes that vary: one compiled graph for each set of sizes that it meets."""

    def __init__(self, graph: Any, weights: dict[int, Any], how: _How) -> None:
        self.graph, self.weights, self.how = graph, weights, how
        self.known: dict[tuple[Any, ...], CompiledGraph] = {}

    def __call__(self, *inputs: Any) -> list[Any]:
        """Run the graph on torch tensors and numbers."""
        key = tuple(tuple(item.shape) if hasattr(item, "shape") else item for item in inputs)
        found = self.known.get(key)
        if found is None:
            from torch.fx.experimental.proxy_tensor import make_fx

            fixed = make_fx(self.graph, tracing_mode="fake")(*inputs)
            found = self.known[key] = CompiledGraph(fixed, inputs, self.weights, self.how)
        return found(*inputs)


class CompiledGraph:
    """A graph with some inputs held as constants as long as nobody changes them."""

    def __init__(self, graph: Any, inputs: Sequence[Any], weights: dict[int, Any], how: _How) -> None:
        self.graph, self.inputs, self.how = graph, inputs, how
        self.on_gpu = any(getattr(item, "is_cuda", False) for item in inputs)
        self.held = {place: (value.data_ptr(), value._version) for place, value in weights.items()}
        self.executable = self._compile(weights)

    def _compile(self, constants: dict[int, Any]) -> Executable | None:
        from torch._subclasses.fake_tensor import unset_fake_temporarily

        with unset_fake_temporarily():  # torch captures with tensors that have no elements; weights have theirs
            values = {place: value.cpu() for place, value in constants.items()}
            module, self.given, self.computed = import_graph(self.graph, self.inputs, values)
        target = self.how.target or ("cuda" if self.on_gpu else "native")
        return None if module is None else compile(module, target, options=self.how.options)

    def __call__(self, *inputs: Any) -> list[Any]:
        """Run the graph on torch tensors."""
        for place, known in self.held.items():
            if (inputs[place].data_ptr(), inputs[place]._version) != known:
                self.held = {}
                self.executable = self._compile({})
                break
        found: list[Any] = []
        if self.executable is not None:
            result = self.executable(*(inputs[place] for place in self.given))
            found = list(result) if isinstance(result, tuple) else [result]
        values = iter(found)
        return [self._tensor(next(values)) if computed else None for computed in self.computed]

    def _tensor(self, value: Any) -> Any:
        """A result as a torch tensor where torch expects it (a graph without inputs gives arrays)."""
        torch = load_torch()
        found = value if isinstance(value, torch.Tensor) else torch.from_numpy(value)
        return found.cuda() if self.on_gpu and not found.is_cuda else found
