"""Layers of the tensor processor for tests: programs, arrays, and what they give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright import te
from tilewright.accel.config import AccelConfig
from tilewright.graph.ops.accelerator import AccelConv2dAttributes, _conv2d
from tilewright.target import Target
from tilewright.tir.function import PrimFunc
from tilewright.topi.accel import Windows, conv2d
from tilewright.topi.fixed_point import Requantization

SMALL = AccelConfig(
    block_in=4,
    block_out=4,
    bus_bytes=4,
    inp_bytes=512,
    wgt_bytes=1024,
    acc_bytes=1024,
    out_bytes=256,
    par_entries=8,
    uop_bytes=512,
)
"""Little memory: small layers have several tiles."""


@dataclass(frozen=True)
class Layer:
    """A layer, in blocks of channels."""

    size: tuple[int, int]
    ci: int = 1
    co: int = 1
    kernel: tuple[int, int] = (1, 1)
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    pad: int = 0
    groups: int = 1
    residual: bool = False
    n: int = 1
    form: tuple[int, int, int] = (0, -128, 127)

    def shapes(self, config: AccelConfig) -> list[tuple[int, ...]]:
        """Shapes of data, weight, parameters, residual (where there is one) and results."""
        height, width = (
            (size + self.padding[n] + self.padding[n + 2] - kernel) // stride + 1
            for n, (size, kernel, stride) in enumerate(zip(self.size, self.kernel, self.strides, strict=True))
        )
        result = (self.n, self.co, height, width, config.batch, config.block_out)
        return [
            (self.n, self.ci * self.groups, *self.size, config.batch, config.block_in),
            (self.co, self.ci, *self.kernel, config.block_out, config.block_in),
            (self.co, 4, config.block_out),
            *([result] if self.residual else []),
            result,
        ]

    def program(self, config: AccelConfig) -> PrimFunc:
        """The layer as a loop program."""
        *shapes, _ = self.shapes(config)
        names = ("data", "weight", "parameters", "residual")
        types = ("int8", "int8", "int32", "int8")
        inputs = [te.placeholder(shape, dtype, name=name) for shape, dtype, name in zip(shapes, types, names)]  # noqa: B905
        residual = inputs[3] if self.residual else None
        windows = Windows(self.strides, self.padding, self.pad, self.groups)
        result = conv2d(inputs[0], inputs[1], inputs[2], residual, windows, Requantization(self.residual, *self.form))
        return te.create_prim_func([*inputs, result], "layer")

    def arrays(self, config: AccelConfig, seed: int = 0) -> list[np.ndarray]:
        """Random data, weights, parameters and residuals, and room for results."""
        random = np.random.default_rng(seed)
        shapes = self.shapes(config)
        arrays = [random.integers(-128, 128, shape).astype(np.int8) for shape in shapes]
        words = np.stack(
            [
                random.integers(-5000, 5000, (self.co, config.block_out)),
                random.integers(-(1 << 15), 1 << 15, (self.co, config.block_out)),
                random.integers(-(1 << 15), 1 << 15, (self.co, config.block_out)),
                random.integers(16, 26, (self.co, config.block_out)) | random.integers(0, 4, (self.co, 1)) << 8,
            ],
            axis=1,
        )
        arrays[2] = words.astype(np.int32)
        return [*arrays[:-1], np.zeros(shapes[-1], np.int8)]

    def expected(self, arrays: list[np.ndarray]) -> Any:
        """What the operator's reference makes of arrays."""
        attributes = AccelConv2dAttributes(self.strides, self.padding, self.groups, self.pad, *self.form)
        return _conv2d(list(arrays[:-1]), attributes)


def target_of(config: AccelConfig) -> Target:
    """The target of a configuration."""
    return Target(f"accel -config={config.to_text()}")


def random_layer(seed: int) -> Layer:
    """A small layer of any kind."""
    random = np.random.default_rng(seed)

    def below(most: int) -> int:
        return int(random.integers(1, most + 1))

    kernel = (below(3), below(3))
    size = (kernel[0] + below(8) - 1, kernel[1] + below(8) - 1)
    padding = tuple(int(item) for item in random.integers(0, 3, 4)) if seed % 2 else (0, 0, 0, 0)
    groups = 2 if seed % 5 == 0 else 1
    return Layer(
        size,
        ci=below(3),
        co=groups * below(3),
        kernel=kernel,
        strides=(below(3), below(3)),
        padding=padding,  # type: ignore[arg-type]
        pad=int(random.integers(-128, 128)),
        groups=groups,
        residual=seed % 3 == 0,
        n=below(2),
        form=(int(random.integers(-20, 20)), -100, 90),
    )
