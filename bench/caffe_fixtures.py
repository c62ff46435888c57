"""Writes `tests/fixtures/caffe`: small nets with what OpenCV gives for them. `python -m bench.caffe_fixtures`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bench.caffe_cases import LAYERS, NETWORK, random_inputs, written
from bench.frontend_caffe import expected

FOLDER = Path(__file__).resolve().parents[1] / "tests" / "fixtures" / "caffe"


def main() -> None:
    """Write the network as two files, and the expected results of all nets, whose numbers follow from their seeds."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    results: dict[str, np.ndarray] = {}
    for name, text in (*LAYERS.items(), ("network", NETWORK)):
        content, plain = written(text)
        for at, value in enumerate(expected(content, plain, random_inputs(text))):
            results[f"{name} {at}"] = value.astype(np.float32)
        if name == "network":
            (FOLDER / "network.caffemodel").write_bytes(content)
            (FOLDER / "network.prototxt").write_text(plain, encoding="utf-8")
    np.savez_compressed(FOLDER / "expected.npz", **results)


if __name__ == "__main__":
    main()
