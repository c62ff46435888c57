"""Real models as they are shipped: `python -m bench.corpus`.

    python -m bench.corpus                            # fetch all, compile, compare, time, ask what has a known answer
    python -m bench.corpus --list                     # what there is
    python -m bench.corpus --fetch                    # fetch only
    python -m bench.corpus --only 'silero*,moonshine*' --no-time
    python -m bench.corpus --limit 60 --memory 4      # seconds a step and gigabytes a process, each file
    python -m bench.corpus --resume                   # go on with a run that was ended: what was right stays

The files of `corpus.toml` come from packages of public registries (`bench/corpus_files.py`) and stay outside the
repository. Each is compiled as it is, with its own open shapes and an empty cache, in a process of its own: a crash, a
hang or a lack of memory is one row. It is run on the inputs of its recipe, compared with the runtime it was made for,
and timed against it in pairs of runs on one thread (`bench/corpus_run.py`). Questions with known answers follow.

Prints a table, writes the figures as JSON into `bench/results/`, and ends with one line of JSON. The exit code is 1
unless every file is right and every question that could be asked had its answer.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from bench import harness
from bench.corpus_files import LIST, Corpus, CorpusFile, Question, default_cache, fetch, read_corpus
from bench.corpus_run import ROUNDS
from bench.models import geometric_mean
from tilewright.cli import measure
from tilewright.cli.options import positive_int
from tilewright.support.errors import UserError
from tilewright.support.text import human_bytes, plural, table

STATUSES = ("right", "wrong", "refused", "crashed", "timed out", "out of memory", "no reference", "not fetched")
BASE_MB = 250
"""What compiling takes however small a model is: this process about 110 MB more than before, and a worker 130."""
WORKER = [sys.executable, "-m", "bench.corpus_run"]
_LONGEST_REASON = 200
_LOOK_SECONDS = 0.5
"""How often it is asked whether a process that says nothing still lives."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one file may take: seconds for each step, gigabytes of address space; and how long it is timed."""

    seconds: float
    memory: float
    rounds: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        corpus = read_corpus(options.corpus)
        chosen = choose(corpus, options.only)
        path = options.json or harness.RESULTS_FOLDER / "corpus.json"
        rows, answers = settled(path) if options.resume else ({}, {})
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    files = [item for item in chosen.files if item.is_model]
    if options.list:
        print(listing(files, chosen.questions))
        return 0
    failures = fetch(chosen.files, options.cache, harness.say)
    if options.fetch:
        for name, reason in failures.items():
            print(f"{name}: {reason}")
        return 1 if failures else 0
    harness.say(harness.machine_line())
    harness.write_bytecode()
    limits = Limits(options.limit, options.memory, 0 if options.no_time else options.rounds)
    is_written = options.json or options.resume or not options.only
    with tempfile.TemporaryDirectory(prefix="corpus-") as scratch:
        session = Session(options.corpus, options.cache, Path(scratch), limits)
        for number, item in enumerate(files, 1):
            harness.say(f"[{number}/{len(files)}] {item.name}")
            if item.name in rows:
                continue
            missing: Row = {"status": "not fetched", "reason": failures.get(item.name)}
            row = missing if item.name in failures else session.examine(item)
            rows[item.name] = {"domain": item.domain, "date": harness.machine()["date"], **row}
            harness.say(f"    {sentence(rows[item.name])}")
            if is_written:
                # A run that is ended can be gone on with.
                harness.write_json(path, summarize(rows, answers, limits))
        answers |= {item.name: session.ask(item) for item in chosen.questions if item.name not in answers}
    summary = summarize(rows, answers, limits)
    print(render(rows, answers, summary))
    if is_written:
        harness.write_json(path, summary)
        harness.say(f"figures written to {path}")
    print(json.dumps(summary))
    good = all(row["status"] == "right" for row in rows.values())
    return 0 if good and all(row["status"] in ("right", "not asked") for row in answers.values()) else 1


def settled(path: Path) -> tuple[dict[str, Row], dict[str, Row]]:
    """The rows and answers of figures that were written before on such a machine, as far as they are right."""
    if not path.exists():
        return {}, {}
    before = json.loads(path.read_text(encoding="utf-8"))
    here = harness.machine()
    if any(before["machine"][part] != here[part] for part in ("cpu", "llvm_cpu")):
        raise UserError(
            f"the figures there are those of another machine: {before['machine']['cpu']}",
            where=str(path),
            hint="name another file by --json",
        )
    rows, answers = (
        {name: row for name, row in before[part].items() if row["status"] == "right"} for part in ("rows", "answers")
    )
    return rows, answers


def choose(corpus: Corpus, patterns: str) -> Corpus:
    """The files whose names fit one of the patterns, and the questions that these answer alone."""
    wanted = [pattern.strip() for pattern in patterns.split(",") if pattern.strip()]
    if not wanted:
        return corpus
    for pattern in wanted:
        if not any(item.is_model and fnmatchcase(item.name, pattern) for item in corpus.files):
            raise UserError(f"no file of the corpus fits '{pattern}'", where="--only", hint="--list shows the names")
    fitting = {item.name for item in corpus.files if any(fnmatchcase(item.name, pattern) for pattern in wanted)}
    data = {item.name for item in corpus.files if not item.is_model}
    questions = tuple(item for item in corpus.questions if set(item.files.values()) <= fitting | data)
    kept = fitting | {name for item in questions for name in item.files.values()}
    return Corpus(tuple(item for item in corpus.files if item.name in kept), questions)


class Session:
    """One run over the corpus: where things are, and what each file may take."""

    def __init__(self, listed: Path, cache: Path, scratch: Path, limits: Limits) -> None:
        self._listed, self._cache, self._scratch, self._limits = listed, cache, scratch, limits
        self._kernels = scratch / "kernels"

    def examine(self, item: CorpusFile) -> Row:
        """The row of one file: compiled with an empty cache of kernels."""
        with tempfile.TemporaryDirectory(dir=self._scratch) as kernels:
            row = self._run(item.name, ["--rounds", str(self._limits.rounds)], Path(kernels))
            # Questions are asked of the same kernels.
            shutil.copytree(kernels, self._kernels, dirs_exist_ok=True)
        if "compile_mb" in row:
            beyond = max(row["compile_mb"] - BASE_MB, 0)
            row["memory_over_model"] = round(beyond * (1 << 20) / max(row["bytes"], 1), 2)
        return row

    def ask(self, question: Question) -> Row:
        """The row of a question."""
        harness.say(f"asking: {question.asks}")
        row = {"asks": question.asks, **self._run(question.name, ["--question"], self._kernels)}
        harness.say(f"    {row['status']}: {row.get('found', row.get('reason', ''))}")
        return row

    def _run(self, name: str, options: Sequence[str], kernels: Path) -> Row:
        """What a process of its own tells, with the status that its end means where it told none."""
        command = [*WORKER, name, *options, "--memory", str(self._limits.memory)]
        places = ["--list", str(self._listed.resolve()), "--cache", str(self._cache.resolve())]
        log = self._scratch / "log"
        with log.open("wb") as errors:
            process = subprocess.Popen(
                [*command, *places],
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=Path(__file__).resolve().parents[1],
                env={**os.environ, "TILEWRIGHT_CACHE_DIR": str(kernels)},
                start_new_session=True,
            )
            try:
                row, in_time = listen(process, self._limits.seconds)
            finally:
                end_group(process)
        step = row.pop("begins", "start")
        if not in_time:
            return {**row, "status": "timed out", "reason": f"{step}: more than {self._limits.seconds:.0f} s"}
        if process.returncode != 0:
            return {**row, "status": "crashed", "reason": f"{step}: {ending(process.returncode, log)}"}
        silent: Row = {"status": "crashed", "reason": f"{step}: ended without a word"}
        return row if "status" in row else {**row, **silent}


def listen(process: subprocess.Popen[bytes], seconds: float) -> tuple[Row, bool]:
    """All that a process tells, each step within its time, and whether it kept to that."""
    assert process.stdout is not None
    row: Row = {}
    text = b""
    deadline = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            remaining = deadline - time.monotonic()
            if not selector.select(max(min(remaining, _LOOK_SECONDS), 0)):
                if remaining <= 0:
                    return row, False
                # A process that it started may hold the pipe open when it has ended itself.
                if process.poll() is not None:
                    break
                continue
            piece = os.read(process.stdout.fileno(), 1 << 16)
            if not piece:
                break
            *lines, text = (text + piece).split(b"\n")
            for line in lines:
                facts = json.loads(line)
                if "begins" in facts:
                    deadline = time.monotonic() + seconds
                row |= facts
    try:
        process.wait(max(deadline - time.monotonic(), 1))
    except subprocess.TimeoutExpired:
        return row, False
    return row, True


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process with all that it started, stopped ones too."""
    with suppress(ProcessLookupError):  # all of them may have ended by themselves
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def ending(code: int, log: Path) -> str:
    """Why a process ended: its signal, or its last words."""
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    words = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f"ended with code {code}: {words[-1] if words else 'without a word'}"


def summarize(rows: Mapping[str, Row], answers: Mapping[str, Row], limits: Limits) -> Row:
    """The figures of a run."""
    timed = {name: row["ratio"] for name, row in rows.items() if "ratio" in row}
    slowest = min(timed, key=lambda name: timed[name], default=None)
    counts = Counter(row["status"] for row in rows.values())
    compiled = [row["compile_cpu_s"] for row in rows.values() if "compile_cpu_s" in row]
    return {
        "files": len(rows),
        "counts": {status: counts[status] for status in STATUSES if counts[status]},
        "geomean_ratio": geometric_mean(list(timed.values())),
        "lowest_ratio": None if slowest is None else {"file": slowest, "ratio": timed[slowest]},
        "below_0.95": sorted(name for name, ratio in timed.items() if ratio < 0.95),
        "compile_cpu_s": {"total": round(sum(compiled), 1), "most": max(compiled, default=None)},
        "known_answers": counted_answers(answers),
        "answers": dict(answers),
        "rows": dict(rows),
        "ratio_means": "time of the file's own runtime / time of tilewright: above 1, tilewright is quicker",
        "limits": {"seconds": limits.seconds, "memory_gb": limits.memory},
        "machine": harness.machine(),
        "versions": harness.versions(["tilewright", "numpy", "llvmlite", "onnx", "onnxruntime", "torch"]),
    }


def counted_answers(answers: Mapping[str, Row]) -> dict[str, int]:
    """How many questions have a known answer, how many were asked, and how many were answered so."""
    statuses = [row["status"] for row in answers.values()]
    return {
        "questions": len(statuses),
        "asked": sum(status != "not asked" for status in statuses),
        "right": statuses.count("right"),
    }


def render(rows: Mapping[str, Row], answers: Mapping[str, Row], summary: Row) -> str:
    """The table, the answers, and what is to be said of all."""
    header = ["file", "domain", "size", "status", "error", "compile CPU s", "MB", "ours ms", "runtime ms", "ratio"]
    body = [
        [
            name,
            row["domain"],
            human_bytes(row["bytes"]) if "bytes" in row else "-",
            row["status"],
            _figure(row.get("error"), "{:.1e}"),
            _figure(row.get("compile_cpu_s"), "{:.1f}"),
            _figure(row.get("compile_mb"), "{:.0f}"),
            measure.format_ms(row["ours_ms"]) if "ours_ms" in row else "-",
            measure.format_ms(row["reference_ms"]) if "reference_ms" in row else "-",
            measure.format_ratio(row["ratio"], (row["between"][0], row["between"][1])) if "ratio" in row else "-",
        ]
        for name, row in rows.items()
    ]
    lines = [table(header, body)]
    lines += [f"{row['status']}: {name}: {shorten(row['reason'])}" for name, row in rows.items() if row.get("reason")]
    for row in answers.values():
        outcome = f"{row['found']!r}" if "found" in row else shorten(row.get("reason", ""))
        expected = f", not {row['expected']!r}" if row["status"] == "wrong" else ""
        lines.append(f"{row['status']}: {row['asks']}: {outcome}{expected}")
    lines.append(
        f"{plural(len(rows), 'file')}: " + ", ".join(f"{n} {status}" for status, n in summary["counts"].items())
    )
    counted = summary["known_answers"]
    if counted["questions"]:
        known = plural(counted["questions"], "known answer")
        lines.append(f"{known}: {counted['asked']} asked, {counted['right']} right")
    if summary["geomean_ratio"] is not None:
        lowest = summary["lowest_ratio"]
        below = f"; below 0.95x: {len(summary['below_0.95'])}"
        mean = f"geometric mean of the ratios {summary['geomean_ratio']:.2f}x"
        lines.append(f"{mean}, lowest {lowest['ratio']:.2f}x ({lowest['file']}){below}")
    return "\n".join(lines)


def sentence(row: Row) -> str:
    """A row in one line, for those who wait."""
    parts = [row["status"]]
    if "compile_cpu_s" in row:
        parts.append(f"compiled in {row['compile_cpu_s']:.1f} CPU s, {row['compile_mb']:.0f} MB")
    if row.get("error") is not None:
        parts.append(f"error {row['error']:.1e}")
    if "ratio" in row:
        parts.append(f"{row['ratio']:.2f}x")
    if row.get("reason"):
        parts.append(shorten(row["reason"]))
    return "; ".join(parts)


def shorten(text: str) -> str:
    """The beginning of a reason, on one line."""
    words = " ".join(text.split())
    return words if len(words) <= _LONGEST_REASON else f"{words[:_LONGEST_REASON]}..."


def listing(files: Sequence[CorpusFile], questions: Sequence[Question]) -> str:
    """What there is."""
    rows = [[item.name, item.domain, item.package.registry, item.package.name, item.package.version] for item in files]
    lines = [table(["file", "domain", "registry", "package", "version"], rows)]
    lines += [f"question: {question.asks} ({', '.join(question.files.values())})" for question in questions]
    lines.append(f"{plural(len(files), 'file')}, {plural(len(questions), 'question')}")
    return "\n".join(lines)


def _figure(value: float | None, layout: str) -> str:
    return "-" if value is None else layout.format(value)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.corpus", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--only", default="", help="comma-separated names of files, or patterns of names (default: all)"
    )
    parser.add_argument("--list", action="store_true", help="show the files and questions, and end")
    parser.add_argument("--fetch", action="store_true", help="fetch the files, and end")
    parser.add_argument(
        "--resume", action="store_true", help="keep what the figures have that is right, and do the rest"
    )
    parser.add_argument("--no-time", action="store_true", help="compile and compare, but do not time")
    parser.add_argument(
        "--limit", type=float, default=300, help="seconds that one step of a file may take (default: 300)"
    )
    parser.add_argument(
        "--memory", type=float, default=16, help="gigabytes a process may address; 0: any (default: 16)"
    )
    parser.add_argument(
        "--rounds", type=positive_int, default=ROUNDS, help=f"rounds of pairs of runs (default: {ROUNDS})"
    )
    parser.add_argument("--cache", type=Path, default=default_cache(), help="folder for fetched files (CORPUS_DIR)")
    parser.add_argument("--corpus", type=Path, default=LIST, help="another list of files (default: bench/corpus.toml)")
    parser.add_argument("--json", type=Path, help="where to write the figures (default: bench/results/corpus.json)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
