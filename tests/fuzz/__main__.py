"""Long schedule fuzzing: `python -m tests.fuzz --count 5000 --seed 0`. Prints failing cases as scripts."""

from __future__ import annotations

import argparse
import json
import sys
import time

from tests.fuzz.cases import report, run_batch

BATCH = 25


def main() -> int:
    """Run many random cases; the exit code says whether all were right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=5000, help="how many programs")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    options = parser.parse_args()
    failed = []
    begin = time.monotonic()
    for start in range(options.seed, options.seed + options.count, BATCH):
        end = min(start + BATCH, options.seed + options.count)
        failures = run_batch(range(start, end))
        if failures:
            print(report(failures, limit=1), flush=True)
            failed.extend(case.seed for case, _ in failures)
        done = end - options.seed
        print(f"{done} programs, {len(failed)} failures, {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    print(json.dumps({"programs": options.count, "first_seed": options.seed, "failures": failed}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
