"""How large exported libraries are: `python -m bench.sizes`.

For each model and machine: the library, the constants in it (weights as kernels want them), and the rest: code, the
thread pool, the description of the model, and what the file's format asks for. Winograd's algorithm stores weights
larger than the model has them: the row with `direct` is without it. Prints a table, ends with one line of JSON. The
exit code is 1 when the rest of ResNet-18 for x86-64 is more than 200 KB.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench import harness, models, zoo
from tilewright.backends.deployment import deployment_of
from tilewright.compiler import Compilation
from tilewright.support.errors import UserError
from tilewright.support.text import human_bytes, table

MOST_BYTES = 200_000
"""What a library of ResNet-18 for x86-64 may have beside its constants."""
TARGETS = ("x86-64-v3", "x86-64-v4", "aarch64", "armv7", "riscv64-v", "windows-x86-64", "macos-arm64")
SEVERAL = ("x86-64-v2", "x86-64-v3", "x86-64-v4")

Result = dict[str, int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        names = models.parse_models(options.models)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    targets = tuple(options.targets.split(","))
    results = {name: sizes_of(name, targets) for name in names}
    print(render(results))
    print(json.dumps({"sizes": results, "most_bytes": MOST_BYTES, "machine": harness.machine()}))
    checked = [size for target, size in results.get("resnet18", {}).items() if target in ("x86-64-v3", "x86-64-v4")]
    return 0 if all(size["rest"] <= MOST_BYTES for size in checked) else 1


def sizes_of(name: str, targets: Sequence[str]) -> dict[str, Result]:
    """The sizes of a model's library for each target, without Winograd's algorithm, and for several processors."""
    found = {target: size_of(name, Compilation(str(zoo.path(name)), target)) for target in targets}
    first = targets[0]
    found[f"{first}, direct"] = size_of(name, Compilation(str(zoo.path(name)), first, winograd=False))
    if first.startswith("x86-64"):
        found[", ".join(SEVERAL)] = size_of(name, Compilation(str(zoo.path(name)), first, cpus=SEVERAL))
    return found


def size_of(name: str, compilation: Compilation) -> Result:
    """The sizes of one library."""
    harness.say(f"{name}: compiling for {compilation.target.describe()}")
    suffix = deployment_of(compilation.host).suffix
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"model{suffix}"
        compilation.export_library(path)
        content = path.read_bytes()
    library = len(content)
    # As the library says itself: with several processors these are the constants of all.
    stated = re.search(rb'"constant_bytes":([0-9]+)', content)
    assert stated is not None
    constants = int(stated.group(1))
    return {"library": library, "constants": constants, "rest": library - constants}


def render(results: dict[str, dict[str, Result]]) -> str:
    """The table."""
    rows = [
        [name, target, *(human_bytes(size[part]) for part in ("library", "constants", "rest"))]
        for name, sizes in results.items()
        for target, size in sizes.items()
    ]
    return table(["model", "target", "library", "constants", "rest"], rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.sizes", description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="resnet18", help="names with commas between, or all (default: resnet18)")
    parser.add_argument("--targets", default=",".join(TARGETS), help="short names of machines with commas between")
    return parser


if __name__ == "__main__":
    sys.exit(main())
