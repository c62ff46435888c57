"""The test cases of the onnx package (nodes generated in memory, models from its data folder), and how one is run.

A case gives a model, inputs and expected outputs. It is run as it is: no input is a constant (axes, shapes and modes
are data as well), and nothing is said about shapes beyond what the model says.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

import tilewright as tw
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Function
from tilewright.ir.function import IRModule
from tilewright.support.errors import UserError

Array = npt.NDArray[Any]
Run = Callable[[IRModule, Mapping[str, Array]], list[Array]]

KINDS = ("node", "pytorch-converted", "pytorch-operator", "simple", "light")
RANDOM = "test_bernoulli"
"""Cases of this name draw random numbers: of their results, type, shape and that they are 0 or 1 can be checked."""

DROPPED = "test_training_dropout"
"""Cases of this name drop elements at random: those that neither side drops can be checked."""


@dataclass(frozen=True)
class Case:
    """One case; models in files are read when they are needed."""

    name: str
    kind: str
    source: Any
    """The onnx package's own description of the case, or the path of a light model."""
    relative: float = 1e-3
    absolute: float = 1e-7

    @cached_property
    def model(self) -> onnx.ModelProto:
        """The model."""
        if isinstance(self.source, Path):
            return onnx.load(self.source)
        if self.source.model is not None:
            found: onnx.ModelProto = self.source.model
            return found
        return onnx.load(os.path.join(self.source.model_dir, "model.onnx"))

    def data_sets(self) -> Iterator[tuple[list[Any], list[Any]]]:
        """Inputs and expected outputs, once or several times."""
        if isinstance(self.source, Path):
            yield _light_data(self.source, self.model)
        elif self.source.data_sets is not None:
            for inputs, outputs in self.source.data_sets:
                yield [_plain(item) for item in inputs], [_plain(item) for item in outputs]
        else:
            graph = self.model.graph
            for folder in sorted(Path(self.source.model_dir).glob("test_data_set*")):
                yield _stored(folder, "input", graph.input), _stored(folder, "output", graph.output)

    @property
    def operator(self) -> str:
        """What the case tests: the one operator, the operator whose definition it spells out, or its kind."""
        nodes = self.model.graph.node
        if self.kind != "node":
            return f"({self.kind})"
        if len(nodes) == 1:
            domain = nodes[0].domain
            return f"{domain}.{nodes[0].op_type}" if domain not in ("", "ai.onnx") else str(nodes[0].op_type)
        return "(expanded)" if "_expanded" in self.name else "(several nodes)"


@dataclass(frozen=True)
class Outcome:
    """How a case went: `passed`, `failed` or `unsupported`, and why."""

    name: str
    operator: str
    verdict: str
    reason: str = ""


def load_cases(kinds: Sequence[str] = KINDS) -> list[Case]:
    """All cases of some kinds; generating those of single nodes takes ten seconds."""
    cases: list[Case] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases
        from onnx.backend.test.loader import DATA_DIR, load_model_tests

        for kind in kinds:
            if kind == "light":
                paths = sorted(Path(DATA_DIR, "light").glob("*.onnx"))
                cases += [Case(path.stem, kind, path) for path in paths]
                continue
            found = collect_testcases(None) if kind == "node" else load_model_tests(kind=kind)
            cases += sorted((Case(item.name, kind, item, item.rtol, item.atol) for item in found), key=_name_of)
    return cases


def _name_of(case: Case) -> str:
    return case.name


def run_compiled(module: IRModule, inputs: Mapping[str, Array], target: str = "native") -> list[Array]:
    """Compile for a target of this machine and run, on one thread where it is a CPU."""
    return tw.compile(module, target=target, threads=1).run(inputs)


def run_interpreted(module: IRModule, inputs: Mapping[str, Array]) -> list[Array]:
    """Run the imported graph in the graph interpreter."""
    main = module["main"]
    assert isinstance(main, Function)
    result: Any = evaluate(module, *(inputs[param.name] for param in main.params))
    return list(result) if isinstance(result, tuple) else [result]


def run_case(case: Case, run: Run) -> Outcome:
    """Import, compile, run and compare one case. What is refused with a clear error is unsupported, not failed."""
    try:
        for inputs, outputs in case.data_sets():
            _run_data(case, inputs, outputs, run)
        return Outcome(case.name, case.operator, "passed")
    except AssertionError as error:
        return Outcome(case.name, case.operator, "failed", str(error))
    except UserError as error:
        return Outcome(case.name, case.operator, "unsupported", error.message)


def _run_data(case: Case, inputs: list[Any], outputs: list[Any], run: Run) -> None:
    """Run one set of data, and compare."""
    given = given_inputs(case, inputs)
    module = tw.frontend.from_onnx(case.model)
    main = module["main"]
    assert isinstance(main, Function)
    results = run(module, {param.name: _bits(given[param.name]) for param in main.params})
    assert len(results) == len(outputs), f"{len(results)} outputs instead of {len(outputs)}"
    for result, wanted in zip(results, outputs, strict=True):
        compare(result, wanted, case)


def given_inputs(case: Case, inputs: Sequence[Any]) -> dict[str, Any]:
    """The inputs of a run by their names."""
    names = [info.name for info in case.model.graph.input if info.name not in _stored_names(case.model)]
    return dict(zip(names[: len(inputs)], inputs, strict=True))


def _stored_names(model: onnx.ModelProto) -> set[str]:
    return {item.name for item in model.graph.initializer}


def _bits(value: Any) -> Any:
    """Types that numpy lacks as Tilewright holds them: their bits, small integers one a byte; texts as objects."""
    if value is None:
        return None
    if isinstance(value, list):
        return [_bits(item) for item in value]
    if value.dtype.kind in "US":
        return value.astype(object)
    if value.dtype.isbuiltin == 1:
        return value
    if "int" in value.dtype.name:
        return value.astype(np.uint8 if "uint" in value.dtype.name else np.int8)
    return value.view(np.uint16 if value.dtype.itemsize == 2 else np.uint8)


def _like(result: Array, dtype: np.dtype[Any]) -> Array:
    """Undo `_bits` for the type that is expected; anything else is left to be refused."""
    if dtype.isbuiltin == 1 or result.dtype.kind not in "iu" or result.dtype.itemsize != dtype.itemsize:
        return result
    return result.astype(dtype) if "int" in dtype.name else result.view(dtype)


def compare(result: Any, wanted: Any, case: Case) -> None:
    """Assert the same type and shape, and values within the case's tolerance (at least a few units of the type)."""
    if isinstance(wanted, list):
        assert isinstance(result, list), f"a {type(result).__name__} instead of a sequence"
        assert len(result) == len(wanted), f"{len(result)} items instead of {len(wanted)}"
        for mine, other in zip(result, wanted, strict=True):
            compare(mine, np.asarray(other), case)
        return
    if wanted is None:
        assert result is None, f"a {type(result).__name__} instead of nothing"
        return
    assert isinstance(result, np.ndarray), f"a {type(result).__name__} instead of a tensor"
    if wanted.dtype.kind in "OUS":
        assert result.dtype == object, f"type {result.dtype} instead of texts"
        assert result.shape == wanted.shape, f"shape {result.shape} instead of {wanted.shape}"
        texts = [item.decode() if isinstance(item, bytes) else str(item) for item in wanted.reshape(-1)]
        assert result.reshape(-1).tolist() == texts, f"{result.tolist()} instead of {wanted.tolist()}"
        return
    result = _like(result, wanted.dtype)
    assert result.dtype == wanted.dtype, f"type {result.dtype} instead of {wanted.dtype}"
    assert result.shape == wanted.shape, f"shape {result.shape} instead of {wanted.shape}"
    if case.name.startswith(DROPPED) and "zero_ratio" not in case.name:
        if wanted.dtype.kind == "b":
            return
        kept = (result != 0) & (wanted != 0)
        result, wanted = result[kept], wanted[kept]
    if case.name.startswith(RANDOM):
        assert np.isin(result.astype(np.float64), (0, 1)).all(), "numbers other than 0 and 1"
        return
    relative, absolute = case.relative, case.absolute
    if wanted.dtype.kind not in "biu":
        units = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float64": 1e-12, "float32": 2.0**-20}
        unit = units.get(wanted.dtype.name, 0.0)
        result, wanted = result.astype(np.float64), wanted.astype(np.float64)
        finite = np.abs(wanted[np.isfinite(wanted)])
        relative, absolute = max(relative, 2 * unit), max(absolute, unit * float(finite.max(initial=0.0)))
    if not np.allclose(result, wanted, rtol=relative, atol=absolute, equal_nan=True):
        worst = np.unravel_index(int(np.argmax(np.abs(np.nan_to_num(result - wanted)))), result.shape)
        raise AssertionError(f"{result[worst]} instead of {wanted[worst]} at {tuple(int(at) for at in worst)}")


def _plain(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def _stored(folder: Path, name: str, infos: Sequence[onnx.ValueInfoProto]) -> list[Any]:
    """The values input_0.pb, input_1.pb ... of a folder."""
    found: list[Any] = []
    for index in range(len(list(folder.glob(f"{name}_*.pb")))):
        data = (folder / f"{name}_{index}.pb").read_bytes()
        found.append(_parsed(data, infos[index].type))
    return found


def _parsed(data: bytes, kind: onnx.TypeProto) -> Any:
    """A stored value of a type: a tensor, a sequence of them, or perhaps nothing."""
    match kind.WhichOneof("value"):
        case "sequence_type":
            return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
        case "optional_type":
            return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))


def _light_data(path: Path, model: onnx.ModelProto) -> tuple[list[Any], list[Any]]:
    """What the onnx package's own runner feeds the light models: a ramp from 0 to 1."""
    inputs: list[Any] = []
    for info in model.graph.input:
        if info.name in _stored_names(model):
            continue
        shape = tuple(dim.dim_value or 1 for dim in info.type.tensor_type.shape.dim)
        size = int(np.prod(shape))
        inputs.append((np.arange(size).reshape(shape) / size).astype(np.float32))
    outputs: list[Any] = []
    for index in range(len(model.graph.output)):
        tensor = onnx.TensorProto()
        tensor.ParseFromString(path.with_name(f"{path.stem}_output_{index}.pb").read_bytes())
        outputs.append(numpy_helper.to_array(tensor))
    return inputs, outputs


__all__ = [
    "KINDS",
    "Case",
    "Outcome",
    "compare",
    "given_inputs",
    "load_cases",
    "run_case",
    "run_compiled",
    "run_interpreted",
]
