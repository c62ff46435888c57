"""Formats of models against their own runtimes: passed, refused with a reason, failed.

    python -m bench.frontends                     # all formats; environments are made where packages are missing
    python -m bench.frontends --only xgboost,lightgbm --details
    python -m bench.frontends --only tflite --filter 'CONV|POOL'
    python -m bench.frontends --show              # the table of the record

Each format has a suite (`bench.frontend_suites`) that makes models with the real framework and compares what Tilewright
gives with what the framework gives. It runs in a process of an environment of its own (`bench.frontend_environments`).
The record, `bench/results/frontends.json`, has the counts of each suite and the reason of whatever did not pass; a run
with `--filter` does not change it. What the framework itself cannot save or run is left out, and counted as such. The
exit code is 1 when something failed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench import harness
from bench.environments import REPOSITORY, variables
from bench.frontend_environments import HOMES, Elsewhere, Home
from tilewright.support.errors import UserError
from tilewright.support.text import table

RESULTS = harness.RESULTS_FOLDER / "frontends.json"
VERDICTS = ("passed", "refused", "failed", "left out")
Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.frontends", description=__doc__)
    parser.add_argument("--only", default=",".join(HOMES), help=f"some of {', '.join(HOMES)} (default: all)")
    parser.add_argument("--filter", default="", metavar="REGEX", help="only cases whose name has this")
    parser.add_argument("--interpreter", action="store_true", help="run the graph interpreter where a suite can")
    parser.add_argument("--details", action="store_true", help="list every case that did not pass")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes of each suite (default: 1)")
    parser.add_argument("--show", action="store_true", help="print the table of the record, and run nothing")
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE", help="where the record is")
    options = parser.parse_args(arguments)
    record = _stored(options.json)
    wanted = options.only.split(",")
    if unknown := set(wanted) - set(HOMES):
        parser.error(f"there is no suite {', '.join(sorted(unknown))}: one of {', '.join(HOMES)}")
    shown = {key: record[key] for key in wanted if key in record}
    if not options.show:
        shown = {}
        for key in wanted:
            flags = [*(["--filter", options.filter] if options.filter else [])]
            flags += ["--interpreter"] if options.interpreter else []
            shown[key] = suite_row(key, HOMES[key], flags, options.details, options.jobs)
            if not options.filter and not options.interpreter:
                _keep(options.json, key, shown[key])
    print(render(shown))
    print(json.dumps({key: row.get("counts", {}) for key, row in shown.items()}))
    return 1 if any(row.get("counts", {}).get("failed") for row in shown.values()) else 0


def _stored(path: Path) -> dict[str, Row]:
    if not path.exists():
        return {}
    suites: dict[str, Row] = json.loads(path.read_text(encoding="utf-8"))["suites"]
    return suites


def _keep(path: Path, key: str, row: Row) -> None:
    """Put the row of a suite in the record, as it is now: others may run beside this one."""
    record = {**_stored(path), key: row}
    ordered = {name: record[name] for name in HOMES if name in record}
    harness.write_json(path, {"machine": harness.machine(), "suites": ordered})


def suite_row(key: str, home: Home | Elsewhere, flags: Sequence[str], details: bool, jobs: int) -> Row:
    """What the record says of a suite: counts, versions, and the reason of what did not pass."""
    try:
        python = home.python()
    except UserError as error:
        return {"needs": error.message}
    began = time.monotonic()
    counts: Counter[str] = Counter()
    reasons: dict[str, dict[str, str]] = {verdict: {} for verdict in VERDICTS[1:]}
    samples = [0, 0]
    notes: set[str] = set()
    for line in _lines(python, key, home, flags, jobs):
        if "note" in line:
            notes.add(line["note"])
            continue
        result = line["result"]
        name, verdict, reason = (result[part] for part in ("name", "verdict", "reason"))
        samples = [known + more for known, more in zip(samples, result.get("samples", (0, 0)), strict=True)]
        counts[verdict] += 1
        if verdict != "passed":
            reasons[verdict][name] = reason
            if details or verdict == "failed":
                print(f"{key}: {verdict} {name}: {reason}")
    return {
        "counts": {verdict: counts[verdict] for verdict in VERDICTS},
        "note": "; ".join([*sorted(notes), *([f"{samples[0]} of {samples[1]} samples"] if samples[1] else [])]),
        "versions": _versions(python, home.distributions),
        "seconds": round(time.monotonic() - began),
        **{verdict: named for verdict, named in reasons.items() if named},
    }


def _lines(python: str, key: str, home: Home | Elsewhere, flags: Sequence[str], jobs: int) -> Iterator[Row]:
    """What several processes of a suite say, each of some of its cases."""
    with ThreadPoolExecutor(jobs) as pool:
        parts = [
            pool.submit(lambda part: list(_part(python, key, home, [*flags, "--part", part])), f"{number}/{jobs}")
            for number in range(jobs)
        ]
        for part in parts:
            yield from part.result()


def _part(python: str, key: str, home: Home | Elsewhere, flags: Sequence[str]) -> Iterator[Row]:
    """What a process of the suite says; a case that takes it along has failed, and the next one begins behind it."""
    begun, running = 0, ""
    while True:
        command = [python, "-m", "bench.frontend_suites", key, *flags, "--skip", str(begun)]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY, env=variables(home.variables)
        )
        assert process.stdout is not None
        with process:
            for text in process.stdout:
                if not text.startswith("{"):
                    continue
                line = json.loads(text)
                if "begins" in line:
                    begun, running = begun + 1, line["begins"]
                    continue
                running = ""
                if line.get("result", {}).get("verdict", "passed") != "passed":
                    harness.say(f"{key}: {line['result']['verdict']} {line['result']['name']}")
                yield line
        if not process.returncode:
            return
        if not running:
            raise UserError(f"the suite {key} cannot run: its process ended with {process.returncode}")
        yield {"result": {"name": running, "verdict": "failed", "reason": f"the process ended: {process.returncode}"}}
        running = ""


def _versions(python: str, distributions: Sequence[str]) -> dict[str, str]:
    code = f"import json; from bench.harness import versions; print(json.dumps(versions({list(distributions)})))"
    reply = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY, env=variables()
    )
    found: dict[str, str] = json.loads(reply.stdout)
    return found


def render(rows: dict[str, Row]) -> str:
    """The table of suites."""
    lines = []
    for key, row in rows.items():
        if "needs" in row:
            lines.append([key, *[""] * len(VERDICTS), f"not run: {row['needs']}"])
            continue
        versions = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
        notes = "; ".join(filter(None, (row["note"], versions)))
        lines.append([key, *(str(row["counts"][verdict]) for verdict in VERDICTS), notes])
    return table(["format", *VERDICTS, ""], lines)


if __name__ == "__main__":
    sys.exit(main())
