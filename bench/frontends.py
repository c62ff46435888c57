"""Formats of models against their own runtimes: passed, refused with a reason, failed.

    python -m bench.frontends                     # all formats whose packages are installed
    python -m bench.frontends --only xgboost,lightgbm --details

Each format has a suite that makes models with the real framework and compares what Tilewright gives with what the
framework gives. It wants an environment of its own with the frameworks in it (`pip install lightgbm xgboost-cpu`, ...);
a format whose packages are missing is left out, and the table says so. The exit code is 1 when something failed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec

from bench import frontend_boosting, frontend_onnx, frontend_openvino, frontend_paddle
from bench.frontend_case import Case, Result, run_case
from tilewright.support.text import table

SUITES: dict[str, tuple[tuple[str, ...], Callable[[], Iterator[Case]]]] = {
    "onnx": (("onnx", "onnxruntime"), frontend_onnx.cases),
    "xgboost": (("xgboost",), frontend_boosting.xgboost_cases),
    "lightgbm": (("lightgbm",), frontend_boosting.lightgbm_cases),
    "openvino": (("onnx", "openvino"), frontend_openvino.cases),
    "paddle": (("paddle",), frontend_paddle.cases),
}
"""For each format, the packages that its suite needs, and the suite."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.frontends", description=__doc__)
    parser.add_argument("--only", default=",".join(SUITES), help=f"some of {', '.join(SUITES)} (default: all)")
    parser.add_argument("--details", action="store_true", help="list every case that did not pass")
    options = parser.parse_args(arguments)
    rows: list[list[str]] = []
    summary: dict[str, dict[str, int]] = {}
    for key in options.only.split(","):
        packages, suite = SUITES[key]
        missing = [name for name in packages if find_spec(name) is None]
        if missing:
            rows.append([key, "", "", "", f"needs {', '.join(missing)}"])
            continue
        results = [run_case(case) for case in suite()]
        counts = Counter(item.verdict for item in results)
        summary[key] = {verdict: counts[verdict] for verdict in ("passed", "refused", "failed")}
        rows.append([key, *map(str, summary[key].values()), ""])
        _show(results, options.details)
    print(table(["format", "passed", "refused", "failed", ""], rows))
    print(json.dumps(summary))
    return 1 if any(counts["failed"] for counts in summary.values()) else 0


def _show(results: Sequence[Result], details: bool) -> None:
    for item in results:
        if item.verdict == "failed" or (details and item.verdict == "refused"):
            print(f"{item.verdict} {item.name}: {item.reason}")


if __name__ == "__main__":
    sys.exit(main())
