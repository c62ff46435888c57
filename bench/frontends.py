"""Formats of models against their own runtimes: passed, refused with a reason, failed.

    python -m bench.frontends                     # all formats whose packages are installed
    python -m bench.frontends --only xgboost,lightgbm --details
    python -m bench.frontends --only tflite --filter 'CONV|POOL'

Each format has a suite that makes models with the real framework and compares what Tilewright gives with what the
framework gives. It wants an environment of its own with the frameworks in it (`pip install lightgbm xgboost-cpu`, ...);
a format whose packages are missing is left out, and the table says so. The exit code is 1 when something failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec

from bench import (
    frontend_boosting,
    frontend_caffe,
    frontend_caffe2,
    frontend_coreml,
    frontend_keras,
    frontend_mxnet,
    frontend_ncnn,
    frontend_onnx,
    frontend_openvino,
    frontend_paddle,
    frontend_stablehlo,
    frontend_tensorflow,
    frontend_tflite,
)
from bench.frontend_case import Result, Trial
from tilewright.support.text import table

SUITES: dict[str, tuple[tuple[str, ...], Callable[[], Iterator[Trial]]]] = {
    "onnx": (("onnx", "onnxruntime"), frontend_onnx.cases),
    "tensorflow": (("tensorflow",), frontend_tensorflow.cases),
    "xgboost": (("xgboost",), frontend_boosting.xgboost_cases),
    "coreml": (("coremltools", "torch"), frontend_coreml.cases),
    "lightgbm": (("lightgbm",), frontend_boosting.lightgbm_cases),
    "caffe": (("google.protobuf", "cv2"), frontend_caffe.cases),
    "caffe2": (("google.protobuf", "torch"), frontend_caffe2.cases),
    "ncnn": (("ncnn",), frontend_ncnn.cases),
    "mxnet": (("MXNET_PYTHON",), frontend_mxnet.cases),
    "stablehlo": (("jax",), frontend_stablehlo.trials),
    "tflite": (("ai_edge_litert",), frontend_tflite.trials),
    "openvino": (("onnx", "openvino"), frontend_openvino.cases),
    "paddle": (("paddle",), frontend_paddle.cases),
    "keras": (("keras", "h5py"), frontend_keras.layer_cases),
    "keras-operations": (("keras", "h5py"), frontend_keras.operation_cases),
    "keras-applications": (("keras", "h5py"), frontend_keras.application_cases),
}
"""For each format, the packages (or variables of the environment) that its suite needs, and the suite."""
INTERPRETED: dict[str, Callable[[], Iterator[Trial]]] = {
    "stablehlo": partial(frontend_stablehlo.trials, interpreted=True),
}
"""Suites that can run the graph interpreter instead of compiled code."""
NOTES: dict[str, Callable[[Sequence[Result]], str]] = {
    "stablehlo": frontend_stablehlo.note,
    "tflite": frontend_tflite.note,
}
"""What a row of the table says beside its counts."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.frontends", description=__doc__)
    parser.add_argument("--only", default=",".join(SUITES), help=f"some of {', '.join(SUITES)} (default: all)")
    parser.add_argument("--filter", default="", metavar="REGEX", help="only cases whose name has this")
    parser.add_argument("--interpreter", action="store_true", help="run the graph interpreter where a suite can")
    parser.add_argument("--details", action="store_true", help="list every case that did not pass")
    options = parser.parse_args(arguments)
    # Frameworks warn of their own future; a model's warnings are said in its result.
    warnings.filterwarnings("ignore")
    rows: list[list[str]] = []
    summary: dict[str, dict[str, int]] = {}
    for key in options.only.split(","):
        packages, suite = SUITES[key]
        missing = [name for name in packages if not _is_there(name)]
        if missing:
            rows.append([key, "", "", "", f"needs {', '.join(missing)}"])
            continue
        if options.interpreter:
            suite = INTERPRETED.get(key, suite)
        tried = [trial.run() for trial in suite() if re.search(options.filter, trial.name)]
        results = [item for item in tried if item is not None]
        counts = Counter(item.verdict for item in results)
        summary[key] = {verdict: counts[verdict] for verdict in ("passed", "refused", "failed")}
        note = NOTES[key](results) if key in NOTES else ""
        rows.append([key, *map(str, summary[key].values()), note])
        _show(results, options.details)
    print(table(["format", "passed", "refused", "failed", ""], rows))
    print(json.dumps(summary))
    return 1 if any(counts["failed"] for counts in summary.values()) else 0


def _is_there(name: str) -> bool:
    """Whether a package is installed, or a variable of the environment (in capitals) names an interpreter with one."""
    return name in os.environ if name.isupper() else find_spec(name) is not None


def _show(results: Sequence[Result], details: bool) -> None:
    for item in results:
        if item.verdict == "failed" or (details and item.verdict == "refused"):
            print(f"{item.verdict} {item.name}: {item.reason}")


if __name__ == "__main__":
    sys.exit(main())
