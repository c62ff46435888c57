"""Fuzzing of the importer: `python -m tests.fuzz.onnx_files --count 5000 --seed 0 [--built]`.

Mutated models go through import and the graph passes, now and then through the whole compiler, in a child process with
limits of time and memory. The result must be a module or a `UserError`; anything else, a crash or a hang too, is a
failure, which is printed with the seed that makes it again.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable

import numpy as np
import onnx

import tilewright as tw
from tests.fuzz import onnx_victims
from tests.fuzz.onnx_mutations import mutate, mutated_bytes
from tilewright.frontend import from_onnx
from tilewright.graph.options import GraphOptions
from tilewright.graph.pipeline import optimize
from tilewright.support.errors import UserError

LONGEST = 60.0
"""Seconds that one model may take."""
START = 600.0
"""Seconds that a child may take to make its models."""
MEMORY = 12 << 30
"""Bytes that the child may map (LLVM and OpenBLAS map a lot that they do not use)."""
COMPILED_EVERY = 40
"""One model of so many is compiled."""


def make(seed: int, victims: list[onnx.ModelProto]) -> bytes:
    """The mutated model of a seed."""
    random = np.random.default_rng(seed)
    victim = victims[random.integers(len(victims))]
    if random.random() < 0.3:
        return mutated_bytes(victim.SerializeToString(), random)
    model = onnx.ModelProto()
    model.CopyFrom(victim)
    operators = sorted({(node.domain, node.op_type) for item in victims for node in item.graph.node})
    for _ in range(random.integers(1, 4)):
        mutate(model, random, operators)
    return model.SerializeToString()


def run_one(content: bytes, whole: bool) -> None:
    """Import a model (and compile it): a `UserError` is as good as a result."""
    try:
        module = optimize(from_onnx(content), GraphOptions())
        if whole:
            tw.compile(module, threads=1)
    except UserError:
        pass


def run_seeds(seeds: Iterable[int], built: bool) -> None:
    """Child: run the models of seeds, and say which are done."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    victims = onnx_victims.built() if built else onnx_victims.node_cases() + onnx_victims.built() * 20
    print("ready", flush=True)
    for seed in seeds:
        print(f"begin {seed}", flush=True)
        run_one(make(seed, victims), seed % COMPILED_EVERY == 0)
    print("done", flush=True)


def fuzz(first: int, count: int, built: bool) -> list[tuple[int, str]]:
    """Run many seeds in child processes; gives the seeds that failed, with what was said."""
    failures: list[tuple[int, str]] = []
    following, last = first, first + count
    while following < last:
        seed, text = _run_child(following, last, built)
        if seed is None:
            if text:
                failures.append((following, text))
            break
        failures.append((seed, text))
        following = seed + 1
    return failures


def _run_child(first: int, last: int, built: bool) -> tuple[int | None, str]:
    """Run seeds until all are done or one fails: the seed and what was said."""
    words = [
        sys.executable,
        "-m",
        "tests.fuzz.onnx_files",
        "--seed",
        str(first),
        "--count",
        str(last - first),
        "--child",
    ]
    if built:
        words.append("--built")
    with tempfile.TemporaryFile("w+") as said:  # a pipe that nobody reads would fill up
        child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=said)
        try:
            seed, text = _follow(child)
            if text is None:
                said.seek(0)
                text = f"exit code {child.wait()}: {' | '.join(said.read().strip().splitlines()[-6:])}"
            return seed, text
        finally:
            child.kill()
            child.wait()


def _follow(child: subprocess.Popen[bytes]) -> tuple[int | None, str | None]:
    """Read what a child does until it is done (no seed), hangs, or ends by itself (no text)."""
    assert child.stdout is not None
    seed: int | None = None
    with child.stdout as stream:
        while True:
            limit = LONGEST if seed is not None else START
            ready, _, _ = select.select([stream], [], [], limit)
            if not ready:
                return seed, f"not done after {limit:.0f} s"
            lines = os.read(stream.fileno(), 1 << 16).decode().splitlines()
            if not lines:
                return seed, None
            for line in lines:
                if line == "done":
                    return None, ""
                if line.startswith("begin "):
                    seed = int(line.removeprefix("begin "))


def main() -> int:
    """Run the command line; the exit code says whether all went well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=5000, help="how many models")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--built", action="store_true", help="mutate the models built in code only")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        run_seeds(range(options.seed, options.seed + options.count), options.built)
        return 0
    begin = time.monotonic()
    failures = fuzz(options.seed, options.count, options.built)
    for seed, text in failures:
        print(f"seed {seed}: {text}")
    seconds = time.monotonic() - begin
    print(json.dumps({"models": options.count, "failures": [seed for seed, _ in failures], "seconds": round(seconds)}))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
