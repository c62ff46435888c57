"""Long random tests in pieces: several processes share them, and one that is stopped goes on where it was.

A piece is some seeds of one subject (a configuration, say). What became of it is a line of the state file; a piece
that has a line there from the same sources is not run again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench import harness
from tilewright.support.fingerprint import source_fingerprint

RESULTS: Final = Path(__file__).resolve().parents[2] / "bench" / "results"


@dataclass(frozen=True)
class Piece:
    """Seeds of a subject."""

    subject: str
    first: int
    count: int

    @property
    def seeds(self) -> range:
        """The seeds of it."""
        return range(self.first, self.first + self.count)


@dataclass
class Tally:
    """What became of a piece: numbers that add up over pieces, and what was wrong."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


Work = Callable[[Piece], Tally]


def parser(description: str | None, count: int, subjects: Sequence[str], what: str) -> argparse.ArgumentParser:
    """The arguments that all such tests have; `count` is how many seeds each of the subjects gets."""
    result = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--count", type=int, default=count, help=f"how many {what} for each configuration")
    result.add_argument("--seed", type=int, default=0, help="the first seed")
    result.add_argument("--configs", default=",".join(subjects), help="names of configurations")
    result.add_argument("--processes", type=int, default=1, help="how many share the work")
    result.add_argument("--piece", type=int, default=50, help="seeds after which the state is written")
    result.add_argument("--state", type=Path, metavar="FILE", help="go on from this file, and keep in it what is done")
    result.add_argument("--record", metavar="NAME.json", help="keep the counts in bench/results")
    return result


def run(options: argparse.Namespace, work: Work, places: Sequence[str]) -> int:
    """Work off all pieces; 1 if anything was wrong. Lines of the state count for the same sources of `places` only."""
    sources = source_fingerprint(*places)[:16]
    pieces = list(_pieces(options))
    known = _known(options.state, sources)
    tallies = {piece: known[piece] for piece in pieces if piece in known}
    began = time.monotonic()
    for piece, tally in _worked([piece for piece in pieces if piece not in known], work, options.processes):
        tallies[piece] = tally
        _keep(options.state, sources, piece, tally)
        for text in tally.failures:
            print(f"{piece.subject}, {text}", flush=True)
    by_subject: dict[str, Counter[str]] = {}
    for piece in pieces:
        by_subject.setdefault(piece.subject, Counter()).update(tallies[piece].counts)
    failures = [f"{piece.subject}, {text}" for piece in pieces for text in tallies[piece].failures]
    for subject, counts in by_subject.items():
        print(f"{subject:10} " + ", ".join(f"{number} {name}" for name, number in counts.items()))
    total = sum(by_subject.values(), Counter())
    print(json.dumps({**total, "failures": len(failures), "seconds": round(time.monotonic() - began)}))
    if options.record:
        heading = {"sources": sources, "first_seed": options.seed}
        harness.write_json(RESULTS / options.record, _record(RESULTS / options.record, heading, by_subject, failures))
    return int(bool(failures))


def _record(
    path: Path, heading: dict[str, Any], by_subject: dict[str, Counter[str]], failures: list[str]
) -> dict[str, Any]:
    """The counts of this run, beside those of other subjects that an earlier run of the same sources kept."""
    known = json.loads(path.read_text()) if path.exists() else {}
    if not heading.items() <= known.items():
        known = {"configurations": {}, "failures": []}
    counts = {**known["configurations"], **by_subject}
    others = [text for text in known["failures"] if text.split(",")[0] not in by_subject]
    total = sum((Counter(item) for item in counts.values()), Counter[str]())
    record = {"machine": harness.machine(), **heading, "total": dict(total)}
    return {**record, "failures": [*others, *failures], "configurations": counts}


def _pieces(options: argparse.Namespace) -> Iterator[Piece]:
    end = options.seed + options.count
    for subject in options.configs.split(","):
        for first in range(options.seed, end, options.piece):
            yield Piece(subject, first, min(options.piece, end - first))


def _worked(pieces: Sequence[Piece], work: Work, processes: int) -> Iterator[tuple[Piece, Tally]]:
    if processes == 1:
        for piece in pieces:
            yield piece, work(piece)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        futures = {pool.submit(work, piece): piece for piece in pieces}
        for future in as_completed(futures):
            yield futures[future], future.result()


def _known(state: Path | None, sources: str) -> dict[Piece, Tally]:
    """What a state file has of these sources; a last line that was cut off is not taken."""
    result: dict[Piece, Tally] = {}
    if state is None or not state.exists():
        return result
    for line in state.read_text().splitlines():
        try:
            item = json.loads(line)
        except ValueError:
            continue
        if item["sources"] == sources:
            piece = Piece(item["subject"], item["first"], item["count"])
            result[piece] = Tally(Counter(item["counts"]), item["failures"])
    return result


def _keep(state: Path | None, sources: str, piece: Piece, tally: Tally) -> None:
    if state is None:
        return
    line = {"sources": sources, "subject": piece.subject, "first": piece.first, "count": piece.count}
    with state.open("a") as stream:
        stream.write(json.dumps({**line, "counts": tally.counts, "failures": tally.failures}) + "\n")
