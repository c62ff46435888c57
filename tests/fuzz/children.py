"""Campaigns in child processes: seeds that crash, hang or raise what they must not are found, and the rest goes on."""

from __future__ import annotations

import argparse
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator

START = 600.0
"""Seconds that a child may take to make what it mutates."""


def run_campaign(module: str, what: str, count: int, work: Callable[[], Callable[[int], str]], longest: float) -> int:
    """The command line of a campaign; `work()` prepares, and gives the function that runs a seed and says how it went.

    Anything that this function raises, a crash and a hang are failures. The exit code says whether there were any.
    """
    parser = argparse.ArgumentParser(description=f"mutated {what}: only our own errors, no crash, no hang")
    parser.add_argument("--count", type=int, default=count, help=f"how many {what}")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + options.count)
    if options.child:
        _work_off(seeds, work())
        return 0
    begin = time.monotonic()
    failures, outcomes = fuzz(module, seeds, longest)
    for seed, text in failures:
        print(f"seed {seed}: {text}")
    seconds = round(time.monotonic() - begin)
    print(json.dumps({what: options.count, **outcomes, "failures": [seed for seed, _ in failures], "seconds": seconds}))
    return 1 if failures else 0


def _work_off(seeds: range, run: Callable[[int], str]) -> None:
    """Child: run seeds, and say which is under way and how each went."""
    print("ready", flush=True)
    for seed in seeds:
        print(f"begin {seed}", flush=True)
        print(f"end {run(seed)}", flush=True)
    print("done", flush=True)


def fuzz(module: str, seeds: range, longest: float) -> tuple[list[tuple[int, str]], Counter[str]]:
    """Run seeds in child processes: those that failed with what was said, and how many others went which way."""
    failures: list[tuple[int, str]] = []
    outcomes: Counter[str] = Counter()
    following = seeds.start
    while following < seeds.stop:
        failed, text = _run_child(module, range(following, seeds.stop), longest, outcomes)
        if failed is None:
            if text:
                failures.append((following, text))
            break
        failures.append((failed, text))
        following = failed + 1
    return failures, outcomes


def _run_child(module: str, seeds: range, longest: float, outcomes: Counter[str]) -> tuple[int | None, str]:
    """Run seeds until all are done or one fails: the seed and what was said."""
    words = [sys.executable, "-m", module, "--seed", str(seeds.start), "--count", str(len(seeds)), "--child"]
    with tempfile.TemporaryFile("w+") as said:  # a pipe that nobody reads would fill up
        child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=said)
        try:
            seed: int | None = None
            for line in _lines(child, longest):
                if line == "done":
                    return None, ""
                if line.startswith("begin "):
                    seed = int(line.removeprefix("begin "))
                elif line.startswith("end "):
                    outcomes[line.removeprefix("end ")] += 1
                elif line == "hang":
                    return seed, f"not done after {longest:.0f} s"
            said.seek(0)
            return seed, f"exit code {child.wait()}: {' | '.join(said.read().strip().splitlines()[-6:])}"
        finally:
            child.kill()
            child.wait()


def _lines(child: subprocess.Popen[bytes], longest: float) -> Iterator[str]:
    """What a child prints, line by line; `hang` if it prints nothing for too long."""
    assert child.stdout is not None
    rest = b""
    limit = START
    with child.stdout as stream:
        while True:
            ready, _, _ = select.select([stream], [], [], limit)
            if not ready:
                yield "hang"
                return
            piece = os.read(stream.fileno(), 1 << 16)
            if not piece:
                return
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                yield line.decode()
            limit = longest
