"""Formats of models against their own runtimes: passed, refused with a reason, failed.

    python -m bench.frontends                     # all formats; environments are made where packages are missing
    python -m bench.frontends --only xgboost,lightgbm --details
    python -m bench.frontends --only tflite --filter 'CONV|POOL'
    python -m bench.frontends --resume --minutes 30   # what has not passed yet, for so long
    python -m bench.frontends --show              # the table of the record

Each format has a suite (`bench.frontend_suites`) that makes models with the real framework and compares what Tilewright
gives with what the framework gives. It runs in a process of an environment of its own (`bench.frontend_environments`).
The record, `bench/results/frontends.json`, has the counts of each suite and the reason of whatever did not pass; a run
with `--filter` does not change it. What the framework itself cannot save or run is left out, and what a time limit left
is not run; both are counted as such. A run that was ended, or found something to mend, is gone on with by `--resume`
(`bench.frontend_journal`). The exit code is 1 when something failed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench import harness
from bench.environments import REPOSITORY, variables
from bench.frontend_environments import HOMES, Home
from bench.frontend_journal import Journal
from tilewright.support.errors import UserError
from tilewright.support.text import table

RESULTS = harness.RESULTS_FOLDER / "frontends.json"
JOURNALS = REPOSITORY / ".cache" / "frontends"
VERDICTS = ("passed", "refused", "failed", "left out", "not run")
Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.frontends", description=__doc__)
    parser.add_argument("--only", default=",".join(HOMES), help=f"some of {', '.join(HOMES)} (default: all)")
    parser.add_argument(
        "--filter",
        default="",
        type=harness.regular_expression,
        metavar="REGEX",
        help="only cases whose name has this",
    )
    parser.add_argument("--interpreter", action="store_true", help="run the graph interpreter where a suite can")
    parser.add_argument("--details", action="store_true", help="list every case that did not pass")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes of each suite (default: 1)")
    parser.add_argument("--resume", action="store_true", help="go on with the last run: only what has not passed")
    parser.add_argument("--minutes", type=float, metavar="M", help="begin no case of a suite after so long")
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
            flags += ["--until", str(time.time() + 60 * options.minutes)] if options.minutes is not None else []
            whole = not options.filter and not options.interpreter
            with tempfile.TemporaryDirectory() as folder:
                path = (JOURNALS if whole else Path(folder)) / f"{key}.jsonl"
                journal = Journal(path, options.resume)
                shown[key] = suite_row(key, HOMES[key], flags, options.details, options.jobs, journal)
            if whole:
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


def suite_row(key: str, home: Home, flags: Sequence[str], details: bool, jobs: int, journal: Journal) -> Row:
    """What the record says of a suite: counts, versions, and the reason of what did not pass."""
    try:
        python = home.python()
    except UserError as error:
        return {"needs": error.message}
    notes = _run(python, key, home, flags, jobs, journal)
    counts: Counter[str] = Counter()
    reasons: dict[str, dict[str, str]] = {verdict: {} for verdict in VERDICTS[1:]}
    samples = [0, 0]
    entries = [journal.entries[number] for number in sorted(journal.entries)]
    for result in (entry["result"] for entry in entries if entry["result"] is not None):
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
        "seconds": round(sum(entry["seconds"] for entry in entries)),
        **{verdict: named for verdict, named in reasons.items() if named},
    }


def _run(python: str, key: str, home: Home, flags: Sequence[str], jobs: int, journal: Journal) -> set[str]:
    """Run what the journal does not have, in several processes that each take some of the cases; gives their notes."""
    with ThreadPoolExecutor(jobs) as pool:
        parts = [
            pool.submit(_run_part, python, key, home, [*flags, "--part", f"{number}/{jobs}"], journal)
            for number in range(jobs)
        ]
        return {note for part in parts for note in part.result()}


def _run_part(python: str, key: str, home: Home, flags: Sequence[str], journal: Journal) -> list[str]:
    """Run one part, whose notes it gives; a case that takes the process along has failed, and another one begins."""
    notes: list[str] = []
    running: Row = {}
    while True:
        command = [python, "-m", "bench.frontend_suites", key, *flags, "--journal", str(journal.path)]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY, env=variables(home.variables)
        )
        assert process.stdout is not None
        with process:
            for line in (json.loads(text) for text in process.stdout if text.startswith("{")):
                if "note" in line:
                    notes.append(line["note"])
                elif "begins" in line:
                    running = line
                else:
                    running = {}
                    journal.add(line)
                    if line["result"] and line["result"]["verdict"] not in ("passed", "not run"):
                        harness.say(f"{key}: {line['result']['verdict']} {line['result']['name']}")
        if not process.returncode:
            return notes
        if not running:
            raise UserError(f"the suite {key} cannot run: its process ended with {process.returncode}")
        reason = f"the process ended: {process.returncode}"
        result = {"name": running["begins"], "verdict": "failed", "reason": reason}
        journal.add({"number": running["number"], "name": running["begins"], "result": result, "seconds": 0})
        running = {}


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
        lines.append([key, *(str(row["counts"].get(verdict, 0)) for verdict in VERDICTS), notes])
    return table(["format", *VERDICTS, ""], lines)


if __name__ == "__main__":
    sys.exit(main())
