"""Core ML's own tests with Tilewright in the place of Core ML: `python -m bench.frontend_coreml`.

coremltools tests its operations, layers and converters by models whose results it computes with numpy, torch or
scikit-learn; on machines that are no Macs it leaves out the comparison. Here `MLModel.predict` imports the model with
Tilewright and runs it, so that every such comparison is made. It wants coremltools, torch and pytest; the libraries of
coremltools itself are not needed (`bench.coreml_writer`).

    python -m bench.frontend_coreml --only layers,operations --every 5 --details

With COREML_INTERPRET=1 models are not compiled but run by the graph's interpreter, which takes a fraction of the time.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench import coreml_fixtures
from bench.coreml_writer import use_writer
from bench.frontend_case import Result
from tilewright.frontend.coreml import from_coreml
from tilewright.graph.interpreter import evaluate
from tilewright.support.errors import UserError
from tilewright.support.text import table

SUITES = {
    "layers": ["test/neural_network/test_numpy_nn_layers.py"],
    "operations": [f"converters/mil/mil/ops/tests/iOS{number}" for number in (14, 15, 16, 17, 18)],
    "models": ["test/xgboost_tests", "test/pipeline", "test/sklearn_tests"],
}
"""Parts of coremltools' tests, by paths in its package."""
_TARGET = (15, 0)


class Verdicts:
    """A plugin of pytest that keeps how tests went."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.results: dict[str, tuple[str, str]] = {}
        self.count = 0

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Every so many tests."""
        items[:] = items[:: self.every]

    def pytest_runtest_makereport(self, item: Any, call: Any) -> None:
        """Note the verdict: a refusal says why."""
        if call.when != "call" and call.excinfo is None:
            return
        if call.excinfo is None:
            verdict = ("passed", "") if predicted[0] else ("not run", "")
        else:
            error = call.excinfo.value
            if type(error).__name__ in ("Skipped", "XFailed", "ConnectionError"):
                verdict = ("not run", str(error)[:100])
            elif isinstance(error, UserError):
                verdict = ("refused", f"{error.message} ({error.where})")
            else:
                verdict = ("failed", f"{type(error).__name__}: {str(error)[:300]}")
        self.results[item.nodeid] = verdict

    def pytest_runtest_call(self, item: Any) -> None:
        """Nothing is predicted yet."""
        predicted[0] = 0


predicted = [0]
"""How many models the test has run so far."""


def _array(value: Any, kind: str) -> Any:
    """A value of coremltools as an input: images become (1, channels, height, width)."""
    if hasattr(value, "convert"):
        pixels = np.asarray(value)
        return pixels[None, None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)[None]
    return np.asarray(value, kind)


def predict(self: Any, data: Any, state: Any = None) -> Any:
    """What `MLModel.predict` gives, by Tilewright."""
    import tilewright as tw

    predicted[0] += 1
    if isinstance(data, list):
        return [predict(self, item) for item in data]
    spec = self.get_spec()
    module = _imported(self, spec, data)
    rows = not _has_network(spec)
    given = {}
    for param in module["main"].params:
        value = _array(data[param.name], param.type.dtype.name if param.type.dtype.name != "string" else "object")
        given[param.name] = value[None] if rows else value
    if os.environ.get("COREML_INTERPRET"):
        found = evaluate(module, *given.values())
        outputs = list(found) if isinstance(found, tuple) else [found]
    else:
        outputs = tw.compile(module, threads=1).run(given)
    return _named(spec, module, outputs, rows)


def _imported(model: Any, spec: Any, data: Any) -> Any:
    """A model as a module, for inputs of these shapes; it is kept with the model."""
    kind = spec.WhichOneof("Type")
    is_old = kind.startswith("neuralNetwork") and not getattr(spec, kind).arrayInputShapeMapping
    shapes = {}
    for item in spec.description.input:
        if item.type.HasField("multiArrayType") and (is_old or _is_open(item.type.multiArrayType)):
            shapes[item.name] = np.shape(data.get(item.name, ()))
    kept = vars(model).setdefault("imported", {})
    key = tuple(sorted(shapes.items()))
    if key not in kept:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.mlmodel"
            path.write_bytes(spec.SerializeToString())
            if model.weights_dir:
                (Path(folder) / "weights").symlink_to(model.weights_dir)
            kept[key] = from_coreml(path, shapes=shapes)
    return kept[key]


def _is_open(array: Any) -> bool:
    return bool(array.WhichOneof("ShapeFlexibility"))


def _has_network(spec: Any) -> bool:
    kind = spec.WhichOneof("Type")
    if kind.startswith("pipeline"):
        own = getattr(spec, kind)
        return any(_has_network(part) for part in (own.pipeline if hasattr(own, "pipeline") else own).models)
    return kind.startswith("neuralNetwork") or kind in ("mlProgram", "nonMaximumSuppression")


def _named(spec: Any, module: Any, outputs: Sequence[Any], rows: bool) -> dict[str, Any]:
    """Results by name, as Core ML gives them: numbers, dictionaries of classes."""
    results: dict[str, Any] = {}
    for item, value in zip(spec.description.output, outputs, strict=True):
        array = np.asarray(value)
        if rows:
            array = array[:1].reshape(array.shape[1:])
        if item.type.HasField("dictionaryType"):
            labels = module.attributes["class_labels"]
            results[item.name] = dict(zip(labels, array.ravel().tolist(), strict=True))
        elif item.type.HasField("multiArrayType") or item.type.HasField("imageType"):
            results[item.name] = array
        else:
            results[item.name] = array.item() if array.dtype != object else str(array[()])
    return results


def _prepare() -> Path:
    """coremltools with the writer and with the prediction of Tilewright; gives the folder of its package."""
    use_writer()
    os.environ.setdefault("INCLUDE_MIL_FP32_UNIT_TESTS", "1")
    import coremltools
    from coremltools.converters.mil import testing_utils
    from coremltools.models import model, utils

    for module in (utils, model, testing_utils):
        for name, value in (("_is_macos", lambda: True), ("_macos_version", lambda: _TARGET)):
            setattr(module, name, value)
    utils._IS_MACOS = testing_utils._IS_MACOS = True
    coremltools.models.MLModel.predict = predict
    coremltools.models.MLModel.make_state = lambda self: None
    return Path(coremltools.__path__[0])


@dataclass(frozen=True)
class Written:
    """A model that coremltools wrote, and what it should give by name."""

    name: str
    path: Path
    arrays: Mapping[str, Any]

    def run(self) -> Result:
        """Import, compile, run and compare: half precision by its own digits."""
        import tilewright as tw

        tolerance = 2e-2 if self.name.endswith("_half") else 1e-4
        try:
            module = from_coreml(self.path)
            inputs = {name[3:]: value for name, value in self.arrays.items() if name.startswith("in_")}
            outputs = dict(zip(module.attributes["output_names"], tw.compile(module).run(inputs), strict=True))
        except UserError as error:
            return Result(self.name, "refused", error.message)
        for name, wanted in self.arrays.items():
            if name.startswith("out_"):
                found = np.asarray(outputs[name[4:]]).reshape(wanted.shape)
                same = found == wanted if wanted.dtype.kind in "UO" else np.isclose(found, wanted, tolerance, tolerance)
                if not np.all(same):
                    return Result(self.name, "failed", f"'{name[4:]}' differs")
        return Result(self.name, "passed")


def cases() -> Iterator[Written]:
    """Models that coremltools makes, for `bench.frontends`; its own tests are this command."""
    use_writer()
    with tempfile.TemporaryDirectory() as folder:
        coreml_fixtures.write(Path(folder))
        for path in sorted(Path(folder).glob("*.npz")):
            found = [item for item in (path.with_suffix(".mlmodel"), path.with_suffix(".mlpackage")) if item.exists()]
            yield Written(path.stem, found[0], dict(np.load(path, allow_pickle=False)))


def run_suite(key: str, every: int, match: str) -> dict[str, tuple[str, str]]:
    """The verdicts of one part of the tests."""
    import pytest

    folder = _prepare()
    verdicts = Verdicts(every)
    paths = [str(folder / path) for path in SUITES[key] if (folder / path).exists()]
    flags = [
        "-q",
        "--no-header",
        "-p",
        "no:cacheprovider",
        "--tb=no",
        "-W",
        "ignore",
        *(["-k", match] if match else []),
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main([*paths, *flags, "--rootdir", str(folder)], plugins=[verdicts])
    return verdicts.results


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.frontend_coreml", description=__doc__)
    parser.add_argument("--only", default=",".join(SUITES), help=f"some of {', '.join(SUITES)} (default: all)")
    parser.add_argument("--every", type=int, default=1, help="every so many tests (default: all)")
    parser.add_argument("--match", default="", help="an expression of pytest for names of tests")
    parser.add_argument("--details", action="store_true", help="list every test that did not pass")
    options = parser.parse_args(arguments)
    rows: list[list[str]] = []
    summary: dict[str, dict[str, int]] = {}
    for key in options.only.split(","):
        results = run_suite(key, options.every, options.match)
        counts = Counter(verdict for verdict, _ in results.values())
        summary[key] = {verdict: counts[verdict] for verdict in ("passed", "refused", "failed", "not run")}
        rows.append([key, *map(str, summary[key].values())])
        for name, (verdict, reason) in results.items():
            if verdict == "failed" or (options.details and verdict == "refused"):
                print(f"{verdict} {name.split('coremltools/')[-1]}: {reason}")
    print(table(["tests of", "passed", "refused", "failed", "not run"], rows))
    print(json.dumps(summary))
    return 1 if any(counts["failed"] for counts in summary.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
