"""The suites of `bench.frontends`, and a process that runs one of them.

    python -m bench.frontend_suites keras --filter 'LSTM|GRU'

prints a line of JSON when a case begins and when it is done; `bench.frontends` starts it with the interpreter that has
the suite's frameworks, and again where a case took the process along. Cases that a journal has are not run.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

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
from bench.frontend_journal import done

SUITES: dict[str, Callable[[], Iterator[Trial]]] = {
    "onnx": frontend_onnx.cases,
    "keras": frontend_keras.layer_cases,
    "keras-operations": frontend_keras.operation_cases,
    "keras-applications": frontend_keras.application_cases,
    "stablehlo": frontend_stablehlo.trials,
    "tensorflow": frontend_tensorflow.cases,
    "tensorflow-applications": frontend_tensorflow.application_cases,
    "tflite": frontend_tflite.trials,
    "xgboost": frontend_boosting.xgboost_cases,
    "lightgbm": frontend_boosting.lightgbm_cases,
    "openvino": frontend_openvino.cases,
    "paddle": frontend_paddle.cases,
    "ncnn": frontend_ncnn.cases,
    "caffe": frontend_caffe.cases,
    "caffe2": frontend_caffe2.cases,
    "mxnet": frontend_mxnet.cases,
    "coreml": frontend_coreml.cases,
}
INTERPRETED: dict[str, Callable[[], Iterator[Trial]]] = {
    "stablehlo": partial(frontend_stablehlo.trials, interpreted=True),
}
"""Suites that can run the graph interpreter instead of compiled code."""
NOTES: dict[str, Callable[[], str]] = {"tflite": frontend_tflite.note, "mxnet": frontend_mxnet.note}
"""What a row of the table says beside its counts."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.frontend_suites", description=__doc__)
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("--filter", default="", metavar="REGEX", help="only cases whose name has this")
    parser.add_argument("--part", default="0/1", metavar="I/N", help="every Nth case, from the Ith on")
    parser.add_argument("--journal", type=Path, metavar="FILE", help="not the cases that are in it")
    parser.add_argument("--until", type=float, default=float("inf"), metavar="TIME", help="begin no case after it")
    parser.add_argument("--interpreter", action="store_true", help="run the graph interpreter where a suite can")
    options = parser.parse_args(arguments)
    # Frameworks warn of their own future; a model's warnings are said in its result.
    warnings.filterwarnings("ignore")
    suite = INTERPRETED.get(options.suite, SUITES[options.suite]) if options.interpreter else SUITES[options.suite]
    part, parts = map(int, options.part.split("/"))
    settled = done(options.journal) if options.journal else {}
    for number, trial in enumerate(suite()):
        if number % parts != part or settled.get(number) == trial.name or not re.search(options.filter, trial.name):
            continue
        if time.time() > options.until:
            late = Result(trial.name, "not run", "the time was over")
            _say({"number": number, "name": trial.name, "result": dataclasses.asdict(late), "seconds": 0})
            continue
        _say({"begins": trial.name, "number": number})
        began = time.monotonic()
        result = trial.run()
        seconds = round(time.monotonic() - began, 1)
        known = result and dataclasses.asdict(result)
        _say({"number": number, "name": trial.name, "result": known, "seconds": seconds})
    if options.suite in NOTES:
        _say({"note": NOTES[options.suite]()})
    return 0


def _say(line: dict[str, object]) -> None:
    # Frameworks print too, and some do not end their lines.
    print("\n" + json.dumps(line), flush=True)


if __name__ == "__main__":
    sys.exit(main())
