"""A random ONNX graph while it grows: its nodes, and the value that every name has, so that what is added fits.

Each node is run when it is added. One that no oracle runs, that gives NaN or very large numbers, or whose results a
little noise on its inputs would change, is left out: what differs in a whole graph then is no accident of rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.fuzz.graph_explained import explain
from tests.fuzz.graph_oracles import Refused, run_any

Array = npt.NDArray[Any]
FLOATS = ("float32", "float32", "float32", "float32", "float64", "float16")
INTEGERS = ("int64", "int32", "int8", "uint8")
SIZES = (1, 2, 3, 4, 5, 7)
LARGEST = 1e4
"""Numbers beyond this are not kept: their rounding would hide that of others."""
NOISE = 2e-5
"""How much noise a node must bear, of the largest number."""
DOMAINS = {"com.microsoft": 1, "ai.onnx.ml": 4}


@dataclass
class Draft:
    """What has been made so far."""

    random: np.random.Generator
    opset: int = 21
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    values: dict[str, Array] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    """Whether a value is an `input`, a `constant` or `computed`."""

    @property
    def _context(self) -> onnx.checker.C.CheckerContext:
        context = onnx.checker.C.CheckerContext()
        context.ir_version, context.opset_imports = 10, {"": self.opset, **DOMAINS}
        return context

    # Choices

    def chance(self, probability: float) -> bool:
        """True so often."""
        return bool(self.random.random() < probability)

    def one(self, *options: Any) -> Any:
        """One of some things."""
        return options[int(self.random.integers(len(options)))]

    def whole(self, low: int, high: int) -> int:
        """A whole number from low to high, both included."""
        return int(self.random.integers(low, high + 1))

    def shape(self, rank: int | None = None, least: int = 1) -> tuple[int, ...]:
        """Sizes that are small and odd, now and then 1 or 0."""
        rank = self.whole(least, 4) if rank is None else rank
        sizes = [int(self.one(*SIZES)) for _ in range(rank)]
        if rank and self.chance(0.03):
            sizes[self.whole(0, rank - 1)] = 0
        return tuple(sizes)

    def axis(self, rank: int) -> int:
        """An axis, from the front or the back."""
        return self.whole(-rank, rank - 1) if rank else 0

    def axes(self, rank: int) -> list[int]:
        """Some different axes, of either sign."""
        chosen = self.random.permutation(rank)[: self.whole(1, rank)] if rank else []
        return [int(axis) - (rank if self.chance(0.4) else 0) for axis in chosen]

    # Values

    def numbers(self, shape: Sequence[int], dtype: str, low: float = -2.0, high: float = 2.0) -> Array:
        """Random numbers."""
        if dtype == "bool":
            return self.random.integers(0, 2, shape).astype(bool)
        if np.dtype(dtype).kind in "iu":
            floor = max(int(low), 0) if np.dtype(dtype).kind == "u" else int(low)
            return self.random.integers(floor, max(floor, int(high)) + 1, shape).astype(dtype)
        return self.random.uniform(low, high, shape).astype(dtype)

    def add(self, array: Array, kind: str | None = None) -> str:
        """A new input or constant."""
        kind = kind or ("constant" if self.chance(0.35) else "input")
        name = f"{'c' if kind == 'constant' else 'x'}{len(self.values)}"
        self.values[name], self.kinds[name] = np.asarray(array), kind
        return name

    def fresh(self, shape: Sequence[int], dtype: str = "float32", low: float = -2.0, high: float = 2.0) -> str:
        """A new input or constant of random numbers."""
        return self.add(self.numbers(shape, dtype, low, high))

    def constant(self, items: Any, dtype: str = "int64") -> str:
        """A constant; a list of sizes or axes mostly."""
        return self.add(np.asarray(items, dtype), "constant")

    def parameter(self, items: Any, dtype: str = "int64") -> str:
        """A list of sizes or axes: a constant, now and then an input."""
        return self.add(np.asarray(items, dtype), "constant" if self.chance(0.93) else "input")

    def pick(
        self, dtypes: Sequence[str] = FLOATS, rank: int | None = None, least: int = 0,
        where: Callable[[Array], bool] | None = None, low: float = -2.0, high: float = 2.0,
    ) -> str:  # fmt: skip
        """A value of one of some types: one that is there already, else a new one."""
        fitting = [
            name
            for name, value in self.values.items()
            if isinstance(value, np.ndarray)
            and value.dtype.name in dtypes
            and (value.ndim == rank if rank is not None else least <= value.ndim <= 5)
            and (where is None or where(value))
        ]
        computed = [name for name in fitting if self.kinds[name] == "computed"]
        if computed and self.chance(0.75):
            return str(self.one(*computed))
        if fitting and self.chance(0.3):
            return str(self.one(*fitting))
        while True:
            array = self.numbers(self.shape(rank, least), str(self.one(*dtypes)), low, high)
            if where is None or where(array):
                return self.add(array)

    def like(self, name: str, low: float = -2.0, high: float = 2.0) -> str:
        """A value that broadcasts with another one, of its type."""
        value = self.values[name]
        if self.chance(0.2):
            same = [n for n, v in self.values.items() if _same_kind(v, value)]
            return str(self.one(*same))
        shape = [1 if self.chance(0.25) else size for size in value.shape]
        return self.fresh(shape[self.whole(0, len(shape)) if self.chance(0.3) else 0 :], value.dtype.name, low, high)

    # Nodes

    def node(
        self, op_type: str, inputs: Sequence[str], outputs: int = 1, domain: str = "", **attributes: Any
    ) -> list[str] | None:
        """Add a node if an oracle runs it and its results are of use; gives the names of its results."""
        names = [f"t{len(self.values)}_{index}" for index in range(outputs)]
        made = helper.make_node(
            op_type, list(inputs), names, f"{op_type}{len(self.nodes)}", domain=domain, **attributes
        )
        results = None if explain([made], avoided_only=True) else self.results_of(made)
        if results is None:
            return None
        self.nodes.append(made)
        for name, result in zip(names, results, strict=True):
            self.values[name], self.kinds[name] = result, "computed"
        return names

    def results_of(self, node: onnx.NodeProto) -> list[Array] | None:
        """What a node gives, if all of it is of use."""
        given = {name: self.values[name] for name in node.input if name}
        results = self._run(node, given)
        if results is None or not all(map(_is_useful, results)):
            return None
        computed = {name for name, value in given.items() if self.kinds[name] == "computed" and _is_float(value)}
        noise = {name: self._noise(given[name]) for name in computed}
        # In both directions: whatever is near a step, of Floor or Sign, is moved over it by one of them.
        for sign in (1, -1) if computed else ():
            moved = {name: (given[name] + sign * noise[name]).astype(given[name].dtype) for name in computed}
            again = self._run(node, given | moved)
            if again is None or not all(map(_is_near, results, again)):
                return None
        return results

    def _noise(self, value: Array) -> Array:
        """Of the largest number, since what is nearly zero is rounding itself; at least a tenth of it everywhere."""
        size = max(NOISE, 4 * float(np.finfo(value.dtype).eps)) * float(np.abs(value).max(initial=0))
        return np.asarray(size * self.random.uniform(0.1, 1, value.shape) * self.random.choice([-1, 1], value.shape))

    def _run(self, node: onnx.NodeProto, given: dict[str, Array]) -> list[Array] | None:
        model = model_of([node], given, {}, list(node.output), self.opset)
        try:
            # The reference also runs what the opset does not have.
            onnx.checker.check_node(node, self._context)
            return run_any(model, given)
        except (Refused, onnx.checker.ValidationError):
            return None


def _is_float(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind == "f"


def _same_kind(one: Any, other: Array) -> bool:
    return isinstance(one, np.ndarray) and one.dtype == other.dtype and one.shape == other.shape


def _is_useful(result: Any) -> bool:
    if not isinstance(result, np.ndarray):
        return isinstance(result, list)
    if result.size > 4096 or result.dtype.kind in "OUSc":
        return False
    return result.dtype.kind != "f" or bool(np.isfinite(result).all() and np.abs(result).max(initial=0) <= LARGEST)


def _is_near(one: Any, other: Any) -> bool:
    if not isinstance(one, np.ndarray):
        return isinstance(other, list) and len(one) == len(other) and all(map(_is_near, one, other))
    if one.shape != other.shape:
        return False
    if one.dtype.kind != "f":
        return np.array_equal(one, other)
    room = 30 * max(NOISE, 4 * float(np.finfo(one.dtype).eps)) * max(1.0, float(np.abs(one).max(initial=0)))
    return bool(np.abs(one.astype(np.float64) - other.astype(np.float64)).max(initial=0) <= room)


def info_of(name: str, value: Any, shape: Sequence[int | str] | None = None) -> onnx.ValueInfoProto:
    """How a value is declared."""
    if isinstance(value, list):
        element = helper.np_dtype_to_tensor_dtype(value[0].dtype) if value else TensorProto.FLOAT
        return helper.make_tensor_sequence_value_info(name, element, None)
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape if shape is None else shape
    )


def model_of(
    nodes: Sequence[onnx.NodeProto], inputs: dict[str, Any], constants: dict[str, Array], outputs: Sequence[str],
    opset: int, shapes: dict[str, Sequence[int | str]] | None = None,
) -> onnx.ModelProto:  # fmt: skip
    """A model of some nodes."""
    infos = [info_of(name, value, (shapes or {}).get(name)) for name, value in inputs.items()]
    stored = [
        numpy_helper.from_array(np.ascontiguousarray(value).reshape(value.shape), name)
        for name, value in constants.items()
    ]
    results = [helper.make_empty_tensor_value_info(name) for name in outputs]
    graph = helper.make_graph(list(nodes), "fuzz", infos, results, stored)
    used = {node.domain for node in nodes} - {""}
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(name, DOMAINS[name]) for name in sorted(used))]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)
