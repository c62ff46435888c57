"""What quantization-aware training gives back: `python -m bench.training_quantized`.

The network of `examples/train_digits.py` learns scikit-learn's digits in float32, is quantised by `tw.quantize`, and
trained on for some epochs with its roundings in place, in 8 bits and in weights of fewer. The table has the share of
right answers on images that nobody has learned from; integers are compiled as any model. Needs scikit-learn.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import tilewright as tw
from bench import harness
from examples.train_digits import BATCH, load_digits, network
from tilewright.cli.options import positive_int
from tilewright.support.text import table

Array = npt.NDArray[Any]


def accuracy(module: tw.IRModule, images: Array, labels: Array) -> float:
    """The share of right answers of a compiled model."""
    exe = tw.compile(module, threads=1)
    found = np.concatenate([exe(images[at : at + BATCH]) for at in range(0, len(images), BATCH)])
    return float((found.argmax(axis=1) == labels).mean())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.training_quantized", description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=positive_int, default=12, help="epochs in float32 (default: 12)")
    parser.add_argument("--more", type=positive_int, default=3, help="epochs with roundings (default: 3)")
    parser.add_argument("--bits", default="8,4,3", help="bits of weights, separated by commas")
    options = parser.parse_args(arguments)
    digits = load_digits()
    images = (digits.images[:, None] / 16).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(images))
    tested, learned = order[: 7 * BATCH], order[7 * BATCH :]
    data, test = (images[learned], digits.target[learned]), (images[tested], digits.target[tested])
    batches = len(learned) // BATCH
    optimizer = tw.train.AdamW(tw.train.OneCycle(4e-3, options.epochs * batches), weight_decay=0.05)
    loss = tw.train.CrossEntropy(label_smoothing=0.05)
    step = tw.train.Step(network(), loss, optimizer, threads=1)
    step.assign(tw.train.initialize(step.parameters(), seed=0))
    tw.train.fit(step, data, epochs=options.epochs, seed=0)
    base = accuracy(step.module(), *test)
    rows = []
    for bits in map(int, options.bits.split(",")):
        quantized = tw.quantize(step.module(), data[0][: 4 * BATCH], weight_bits=bits, threads=1).module
        aware = tw.train.QuantizationAware(quantized)
        rate = tw.train.Cosine(1e-3, options.more * batches)
        again = tw.train.Step(aware.module, loss, tw.train.Adam(rate), threads=1)
        tw.train.fit(again, data, epochs=options.more, seed=1)
        after = accuracy(aware.quantized(again.parameters()), *test)
        rows.append({"bits": bits, "float": base, "quantized": accuracy(quantized, *test), "trained": after})
        harness.say(str(rows[-1]))
    lines = [(str(row["bits"]), *(f"{row[name]:.2%}" for name in ("float", "quantized", "trained"))) for row in rows]
    print(table(("bits of weights", "float32", "quantised", "quantised, trained on"), lines))
    harness.write_json(harness.RESULTS_FOLDER / "training_quantized.json", {"images": len(tested), "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
