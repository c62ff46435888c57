"""What the compiler generates, as digests: to see which kernels a change of the compiler changes.

    python -m bench.generated --json before.json                # digests of every kernel's text, models x targets
    python -m bench.generated --against before.json             # which kernels differ now
    python -m bench.generated --quick --against before.json     # the smaller models and targets alone

Kernels for CPUs are compared by their LLVM IR before LLVM optimises it, kernels for devices by their text: equal text
under equal versions of the compilers is equal machine code. Nothing is run, so any target can be looked at anywhere.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import tilewright as tw
from bench import batches, harness, zoo

Digests = dict[str, dict[str, str]]


@dataclass(frozen=True, slots=True)
class Configuration:
    """One way to compile models, and the models it is used for."""

    name: str
    target: str
    models: tuple[str, ...]
    threads: int | None = None
    precision: str = "float32"
    batch: int = 1

    def case(self, model: str) -> str:
        """The name of one compilation."""
        return f"{model} {self.name}"


_SMALL = ("mobilenet_v2", "dqn", "dcgan", "lstm_lm_1", "bert_small")
_TEXTS = ("mobilenet_v2", "bert_small")
QUICK = (
    Configuration("avx512, 2 threads", "llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512", _SMALL, 2),
    Configuration("cuda float16", "cuda -arch=sm_90a", _SMALL, precision="float16"),
    Configuration("cuda float32", "cuda -arch=sm_90a", ("mobilenet_v2", "bert_small")),
    *(Configuration(kind, kind, ("mobilenet_v2",)) for kind in ("opencl", "webgpu", "vulkan", "rocm", "metal")),
)
WHOLE = (
    *(
        Configuration(f"{name}, {threads} threads", target, tuple(zoo.names()), threads)
        for name, target, threads in (
            ("avx512", "llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512", 1),
            ("avx512", "llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512", 16),
            ("avx2", "llvm -mtriple=x86_64-linux-gnu -mcpu=haswell", 4),
            ("neoverse", "llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1", 2),
        )
    ),
    *(
        Configuration(
            f"cuda {precision}, batch {batch}", "cuda -arch=sm_90a", tuple(zoo.names()), None, precision, batch
        )
        for precision, batch in (("float32", 1), ("tf32", 16), ("float16", 1), ("float16", 16))
    ),
    *(Configuration(f"{kind}, all", kind, _TEXTS) for kind in ("opencl", "webgpu", "vulkan", "rocm", "metal")),
    *QUICK,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 1 where kernels differ."""
    parser = argparse.ArgumentParser(prog="python -m bench.generated", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small models on few targets")
    parser.add_argument("--only", default="", help="words, comma-separated: cases whose name has one")
    parser.add_argument("--json", type=Path, help="where to write the digests")
    parser.add_argument("--against", type=Path, help="digests to compare with")
    options = parser.parse_args(arguments)
    words = [word for word in options.only.split(",") if word]
    found: Digests = {}
    started = time.perf_counter()
    for case, kernels in digests(QUICK if options.quick else WHOLE, words):
        found[case] = kernels
        harness.say(f"{case}: {len(kernels)} kernels, {time.perf_counter() - started:.0f} s")
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1))
    if options.against is None:
        return 0
    lines = differences(json.loads(options.against.read_text()), found)
    print("\n".join(lines) or f"the same: {sum(map(len, found.values()))} kernels of {len(found)} compilations")
    return 1 if lines else 0


def digests(configurations: Sequence[Configuration], words: Sequence[str] = ()) -> Iterator[tuple[str, dict[str, str]]]:
    """Every compilation with the digests of its kernels' texts by their symbols."""
    for configuration in configurations:
        for model in configuration.models:
            case = configuration.case(model)
            if not words or any(word in case for word in words):
                yield case, _kernels(configuration, model)


def _kernels(configuration: Configuration, model: str) -> dict[str, str]:
    source = batches.model(model, configuration.batch, half=False).SerializeToString()
    compilation = tw.Compilation(
        source,
        configuration.target,
        configuration.threads,
        precision=configuration.precision,
        database="shipped",
    )
    show = compilation.llvm_ir if compilation.target.is_cpu else compilation.source
    return {kernel.symbol: hashlib.sha256(show(kernel).encode()).hexdigest()[:16] for kernel in compilation.kernels}


def differences(before: Digests, after: Digests) -> list[str]:
    """What differs in the compilations that both have; nothing where all kernels are the same."""
    lines = []
    for case in after:
        old, new = before.get(case), after[case]
        if old is None:
            lines.append(f"{case}: was not there before")
            continue
        changed = [symbol for symbol in new if symbol in old and old[symbol] != new[symbol]]
        lines += [f"{case}: {symbol} has another text" for symbol in changed]
        lines += [f"{case}: {symbol} is new" for symbol in new if symbol not in old]
        lines += [f"{case}: {symbol} is gone" for symbol in old if symbol not in new]
    return lines


if __name__ == "__main__":
    sys.exit(main())
