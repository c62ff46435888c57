"""Writes the PaddlePaddle models that the tests read: `python -m bench.paddle_fixtures` (needs paddlepaddle).

Each model is small, in both formats of programs where PaddlePaddle still writes the old one, with what its own
predictor gives for inputs that are kept beside it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.frontend_paddle import run, save
from bench.paddle_cases import numbers, whole
from bench.paddle_layers import layers

_FOLDER = Path(__file__).resolve().parents[1] / "tests" / "fixtures" / "paddle"
_LAYERS = ("nms", "loop", "branch", "embedding network", "yolo_box {}", "roi_align True", "LSTM lengths")


def _network(paddle: Any) -> Any:
    nn, functional = paddle.nn, paddle.nn.functional

    class Network(nn.Layer):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm = nn.Conv2D(3, 8, 3, 2, 1), nn.BatchNorm2D(8)
            self.deep, self.up = nn.Conv2D(8, 8, 3, 1, 1, groups=8), nn.Conv2DTranspose(8, 4, 2, 2)
            self.dense = nn.Linear(4 * 4, 5)

        def forward(self, image: Any) -> Any:
            x = functional.hardswish(self.norm(self.first(image)))
            x = x + functional.hardsigmoid(self.deep(x)) * x
            x = functional.interpolate(self.up(x), scale_factor=0.5, mode="nearest")
            x = functional.adaptive_avg_pool2d(functional.max_pool2d(x, 3, 2, 1, ceil_mode=True), 2)
            x = self.dense(paddle.flatten(x, 1))
            return functional.softmax(x), paddle.argmax(x, axis=-1)

    return Network()


def models(paddle: Any) -> Iterator[tuple[str, Any, list[Any]]]:
    """Name, layer and inputs of each model."""
    yield "network", _network(paddle), [numbers(2, 3, 12, 12)]
    yield "encoder", paddle.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), [numbers(2, 4, 8)]
    yield "gather", lambda x, i: paddle.gather_nd(x, i) + x[0, 0], [numbers(3, 4, 2), whole(5, 2, high=3)]
    for name, function, inputs in layers(paddle):
        if name in _LAYERS:
            yield name.split(" {")[0].replace(" ", "_"), function, inputs


def main() -> int:
    """Write all files."""
    import paddle

    paddle.seed(0)
    _FOLDER.mkdir(parents=True, exist_ok=True)
    for name, function, inputs in models(paddle):
        for old in (False, True):
            stem = _FOLDER / f"{name}{'_old' if old else ''}"
            try:
                save(paddle, function, inputs, stem, old, open_batch=name in ("network", "encoder"))
            except TypeError:
                continue  # the old form of some functions is gone
            expected = run(stem.with_suffix(".pdmodel" if old else ".json"), inputs)
            arrays = {f"x{at}": value for at, value in enumerate(inputs)} | {
                f"y{at}": y for at, y in enumerate(expected)
            }
            np.savez(stem.with_suffix(".npz"), **arrays)
            stem.with_suffix(".pdiparams.info").unlink(missing_ok=True)
            if old:
                _without_stacks(stem.with_suffix(".pdmodel"))
    return 0


def _without_stacks(path: Path) -> None:
    """Take out where in Python each operator was made."""
    from paddle.base.proto import framework_pb2

    program = framework_pb2.ProgramDesc()
    program.ParseFromString(path.read_bytes())
    for operator in (item for block in program.blocks for item in block.ops):
        kept = [item for item in operator.attrs if not item.name.startswith("op_")]
        del operator.attrs[:]
        operator.attrs.extend(kept)
    path.write_bytes(program.SerializeToString())


if __name__ == "__main__":
    sys.exit(main())
