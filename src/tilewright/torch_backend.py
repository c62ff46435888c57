"""`torch.compile(model, backend="tilewright")`: graphs that torch captures, compiled and run by Tilewright.

Without gradients the model's weights become constants of the compiled code, laid out and folded as the compiler likes.
A weight that is changed in place afterwards is noticed (by torch's version counter) and the graph is compiled once
more, with its weights as inputs. Sizes that vary are symbols of one compiled graph. Tensors go in and out without
copies; a graph of tensors on a GPU is compiled for that. Operators that are not supported are run by torch itself,
between compiled parts, with a warning that names them (`FallbackWarning`); never silently.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tilewright.front import compile
from tilewright.frontend.torch.capture import Captured, import_graph, is_size, refused_nodes
from tilewright.frontend.torch.decompositions import graph_decompositions
from tilewright.frontend.torch.importer import load_torch
from tilewright.frontend.torch.output_views import split_views
from tilewright.frontend.torch.partition import PART, partitioned
from tilewright.frontend.torch.training import split_for_training
from tilewright.options import CompileOptions, make_options
from tilewright.request import TargetLike
from tilewright.runtime.core.executor import Executable
from tilewright.support.errors import TilewrightError, UserError

Run = Callable[..., Sequence[Any]]


class FallbackWarning(UserWarning):
    """Part of a captured graph is run by torch itself; the text names the operators and says why."""


@dataclass(frozen=True, slots=True)
class _How:
    """How graphs are compiled; without a target, for where their tensors are."""

    target: TargetLike | None
    options: CompileOptions
    fallback: bool
    """Whether torch runs what is not supported; else that is an error."""
    fallback_random: bool
    """Whether torch draws random numbers, from its own generator in its own order; else compiled code does."""


def tilewright_backend(graph_module: Any, example_inputs: Sequence[Any], **options: Any) -> Run:
    """The backend function that torch calls with a captured graph.

    `torch.compile(model, backend="tilewright", options={"target": "cuda", "precision": "float16"})` takes a target,
    the fields of `CompileOptions`, `fallback` (False makes what is not supported an error) and `fallback_random` (True
    lets torch draw random numbers, which are then those of eager mode).
    """
    from torch._dynamo.backends.common import aot_autograd

    how = _how(dict(options.get("options") or {}))
    weights = [_is_weight(value) for value in example_inputs]
    held = sum(1 for _ in graph_module.parameters()) + sum(1 for _ in graph_module.buffers())

    def for_inference(graph: Any, inputs: Sequence[Any]) -> Run:
        # The graph's own parameters come first among its inputs; those that torch lifted are among the examples.
        actual = [*graph_module.parameters(), *graph_module.buffers(), *example_inputs]
        places = [place for place, flag in enumerate([True] * held + weights) if flag]
        if len(actual) != len(inputs):
            places = []
        return CapturedGraph(graph, inputs, {place: actual[place] for place in places}, how)

    def for_training(graph: Any, inputs: Sequence[Any]) -> Run:
        return CapturedGraph(graph, inputs, {}, how)

    compiler = aot_autograd(
        fw_compiler=_boxed(for_training),
        inference_compiler=_boxed(for_inference),
        partition_fn=split_for_training,
        decompositions=graph_decompositions(),
    )
    with _without_mkldnn():
        run: Run = compiler(graph_module, example_inputs)
    return run


@contextmanager
def _without_mkldnn() -> Iterator[None]:
    """While torch captures: with oneDNN, recurrent layers would be operators of its own that have no other form."""
    torch = load_torch()
    was_enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(was_enabled)


def _how(given: dict[str, Any]) -> _How:
    target = given.pop("target", None)
    flags = {name: given.pop(name, default) for name, default in (("fallback", True), ("fallback_random", False))}
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise UserError(f"the option '{name}' is True or False, not {flag!r}", where="torch.compile(options=...)")
    return _How(target, make_options(None, None, given), **flags)


def _boxed(make: Callable[[Any, Sequence[Any]], Run]) -> Callable[[Any, Sequence[Any]], Run]:
    from torch._functorch._aot_autograd.utils import make_boxed_func

    def compile_graph(graph: Any, inputs: Sequence[Any]) -> Run:
        boxed: Run = make_boxed_func(make(graph, inputs))
        return boxed

    return compile_graph


def _is_weight(value: Any) -> bool:
    """Whether torch says that an input is the same tensor in every call."""
    return getattr(value, "_dynamo_static_input_type", None) is not None


class CapturedGraph:
    """A captured graph. Numbers among its inputs that are no sizes are held: it is compiled for each set of them."""

    def __init__(self, graph: Any, inputs: Sequence[Any], weights: Mapping[int, Any], how: _How) -> None:
        self.graph, self.inputs, self.weights, self.how = graph, inputs, weights, how
        self.numbers = [place for place, item in enumerate(inputs) if _is_number(item)]
        self.known: dict[tuple[Any, ...], Run] = {}
        if not self.numbers:
            self.known[()] = _compiled(graph, inputs, weights, {}, how)

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        """Run the graph on torch tensors and numbers."""
        key = tuple(inputs[place] for place in self.numbers)
        run = self.known.get(key)
        if run is None:
            numbers = dict(zip(self.numbers, key, strict=True))
            run = self.known[key] = _compiled(self.graph, self.inputs, self.weights, numbers, self.how)
        return run(*inputs)


def _is_number(item: Any) -> bool:
    """Whether an input is a symbolic number that is not the size of anything."""
    torch = load_torch()
    return isinstance(item, (torch.SymFloat, torch.SymBool)) or (isinstance(item, torch.SymInt) and not is_size(item))


def _compiled(
    graph: Any, inputs: Sequence[Any], weights: Mapping[int, Any], numbers: Mapping[int, Any], how: _How
) -> Run:
    """A graph as compiled code: the whole, or parts of it."""
    try:
        return CompiledGraph(graph, inputs, weights, numbers, how)
    except TilewrightError as error:
        if not how.fallback:
            raise
        whole = error
    with _real_tensors():
        refused = refused_nodes(graph, inputs, {**_values(weights), **numbers}, may_draw=not how.fallback_random)
    if not refused:
        _warn("a graph is run by torch itself", [str(whole)])
        return lambda *inputs: graph(*inputs)
    _warn("some operators are run by torch itself", [str(error) for error in refused.values()])
    return _in_parts(partitioned(graph, refused), weights, numbers, how)


def _in_parts(parted: Any, weights: Mapping[int, Any], numbers: Mapping[int, Any], how: _How) -> Run:
    """A graph of parts, each of which is compiled if it can be."""
    placeholders = [node for node in parted.graph.nodes if node.op == "placeholder"]
    known = {placeholders[place]: value for place, value in weights.items()}
    held = {placeholders[place]: value for place, value in numbers.items()}
    for node in parted.graph.nodes:
        if node.op != "call_module" or not node.target.startswith(PART):
            continue
        part = getattr(parted, node.target)
        examples = [argument.meta["val"] for argument in node.args]
        places = list(enumerate(node.args))
        try:
            run = CompiledGraph(
                part,
                examples,
                {place: known[item] for place, item in places if item in known},
                {place: held[item] for place, item in places if item in held},
                how,
            )
        except TilewrightError as error:
            _warn("a part of a graph is run by torch itself", [str(error)])
            continue
        part.forward = run
    return lambda *inputs: parted(*inputs)


def _warn(what: str, reasons: Sequence[str]) -> None:
    listed = "\n".join(dict.fromkeys(reasons))
    warnings.warn(f"tilewright: {what}:\n{listed}", FallbackWarning, stacklevel=2)


def _real_tensors() -> Any:
    """Torch captures with tensors that have no elements; weights have theirs."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    return unset_fake_temporarily()


def _values(weights: Mapping[int, Any]) -> dict[int, Any]:
    """Weights where the compiler reads them."""
    return {place: value.cpu() for place, value in weights.items()}


class CompiledGraph:
    """A graph with some inputs held as constants as long as nobody changes them."""

    def __init__(
        self, graph: Any, inputs: Sequence[Any], weights: Mapping[int, Any], numbers: Mapping[int, Any], how: _How
    ) -> None:
        self.graph, self.inputs, self.numbers, self.how = graph, inputs, numbers, how
        self.torch = load_torch()
        self.split = split_views(graph)
        self.on_gpu = any(getattr(item, "is_cuda", False) for item in inputs)
        self.held = {place: (value.data_ptr(), value._version) for place, value in weights.items()}
        self.successor: Run | None = None
        """The graph with its weights as inputs, once somebody has changed one."""
        self.captured, self.executable = self._compile(weights)

    def _compile(self, weights: Mapping[int, Any]) -> tuple[Captured, Executable | None]:
        with _real_tensors():
            constants = {**_values(weights), **self.numbers}
            may_draw = not self.how.fallback_random
            captured = import_graph(self.split.graph, self.inputs, constants, may_draw=may_draw)
        target = self.how.target or ("cuda" if self.on_gpu else "native")
        if captured.module is None:
            return captured, None
        return captured, compile(captured.module, target, options=self.how.options)

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        """Run the graph on torch tensors and numbers."""
        if self.successor is None and any(self._is_changed(place, inputs[place]) for place in self.held):
            self.successor = _compiled(self.graph, self.inputs, {}, self.numbers, self.how)
        if self.successor is not None:
            return self.successor(*inputs)
        results: list[Any] = []
        if self.executable is not None:
            tensors = [self._argument(place, inputs[place]) for place in self.captured.given]
            if self.captured.draws:
                tensors.append(_seed(self.on_gpu))
            result = self.executable(*tensors)
            results = list(result) if isinstance(result, tuple) else [result]
        values = iter(results)
        given = [
            None if not computed else next(values).item() if is_number else self._tensor(next(values))
            for computed, is_number in zip(self.captured.computed, self.captured.numbers, strict=True)
        ]
        return given if self.split.views is None else list(self.split.views(*inputs, *given))

    def _is_changed(self, place: int, weight: Any) -> bool:
        return (weight.data_ptr(), weight._version) != self.held[place]

    def _argument(self, place: int, value: Any) -> Any:
        """What an executable takes for an input of a graph; for a size, a tensor that long, which nobody reads."""
        if not isinstance(value, self.torch.Tensor):
            return self.torch.empty(value, dtype=self.torch.bool)
        order = self.captured.orders.get(place)
        return value if order is None else value.permute(order)

    def _tensor(self, value: Any) -> Any:
        """A result as a torch tensor where torch expects it (a graph without inputs gives arrays)."""
        tensor = value if isinstance(value, self.torch.Tensor) else self.torch.from_numpy(value)
        return tensor.cuda() if self.on_gpu and not tensor.is_cuda else tensor


def _seed(on_gpu: bool) -> Any:
    """What a run draws random numbers from: a number that torch's generator gives (see `torch.manual_seed`)."""
    torch = load_torch()
    return torch.empty((), dtype=torch.int64, device="cuda" if on_gpu else "cpu").random_()
