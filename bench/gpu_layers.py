"""Layers of networks that are products: what `bench.gpu_products` measures one at a time, and their programs."""

from __future__ import annotations

from dataclasses import dataclass

import tilewright.graph.ops
import tilewright.topi.library  # noqa: F401  (registers the computations)
from tilewright import te
from tilewright.ir.build import cast
from tilewright.ir.dtype import FLOAT32, DataType
from tilewright.ir.expr import PrimExpr
from tilewright.te.program import create_prim_func
from tilewright.tir.function import CONSTANTS, PrimFunc
from tilewright.topi.registry import apply_operator


@dataclass(frozen=True)
class Layer:
    """A convolution (NHWC, square) of `batch` images or, with `size` 0, a product of `rows` rows.

    Weights are constant, and bias (a residual) and ReLU follow. Several products (`batch`) are the exception: both
    their operands are computed, and nothing follows.
    """

    name: str
    size: int
    channels: int
    columns: int
    window: int = 1
    stride: int = 1
    rows: int = 0
    batch: int = 1
    residual: bool = False
    count: int = 1
    """How often its network has it."""

    @property
    def is_plain(self) -> bool:
        """Whether it is the product alone."""
        return self.size == 0 and self.batch > 1

    @property
    def result(self) -> tuple[int, ...]:
        """The shape of the result."""
        if self.size:
            side = (self.size + 2 * (self.window // 2) - self.window) // self.stride + 1
            return (self.batch, side, side, self.columns)
        return (*((self.batch,) if self.batch > 1 else ()), self.rows, self.columns)

    @property
    def operands(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of what its program reads: both factors, bias, the residual."""
        if self.is_plain:
            return (*self.result[:-1], self.channels), (self.batch, self.channels, self.columns)
        data = (self.batch, self.size, self.size) if self.size else (self.rows,)
        window = (self.window, self.window) if self.size else ()
        shapes = ((*data, self.channels), (*window, self.channels, self.columns), (self.columns,))
        return (*shapes, self.result) if self.residual else shapes

    @property
    def products(self) -> int:
        """Multiplications."""
        results = 1
        for extent in self.result:
            results *= extent
        return results * self.channels * self.window**2


def _conv(
    group: str,
    size: int,
    channels: int,
    columns: int,
    window: int,
    stride: int = 1,
    count: int = 1,
    batch: int = 1,
    residual: bool = False,
) -> Layer:
    name = f"{group}/{window}x{window}s{stride}_{channels}-{columns}@{size}"
    return Layer(name, size, channels, columns, window, stride, batch=batch, residual=residual, count=count)


def _gemm(
    group: str, rows: int, depth: int, columns: int, residual: bool = False, count: int = 1, batch: int = 1
) -> Layer:
    shape = f"{rows}x{depth}x{columns}" if batch == 1 else f"{batch}x{rows}x{depth}x{columns}"
    return Layer(f"{group}/{shape}", 0, depth, columns, rows=rows, batch=batch, residual=residual, count=count)


def _bert(group: str, rows: int) -> list[Layer]:
    sizes = ((768, 2304, False), (768, 768, True), (768, 3072, False), (3072, 768, True))
    return [_gemm(group, rows, depth, columns, residual, 12) for depth, columns, residual in sizes]


LAYERS = [
    _conv("resnet18", 224, 3, 64, 7, 2),
    _conv("resnet18", 56, 64, 64, 3, 1, 4),
    _conv("resnet18", 56, 64, 128, 3, 2),
    _conv("resnet18", 56, 64, 128, 1, 2),
    _conv("resnet18", 28, 128, 128, 3, 1, 3),
    _conv("resnet18", 28, 128, 256, 3, 2),
    _conv("resnet18", 28, 128, 256, 1, 2),
    _conv("resnet18", 14, 256, 256, 3, 1, 3),
    _conv("resnet18", 14, 256, 512, 3, 2),
    _conv("resnet18", 14, 256, 512, 1, 2),
    _conv("resnet18", 7, 512, 512, 3, 1, 3),
    _conv("resnet50", 56, 64, 64, 1),
    _conv("resnet50", 56, 64, 256, 1, 1, 4),
    _conv("resnet50", 56, 256, 64, 1, 1, 2),
    _conv("resnet50", 56, 256, 128, 1),
    _conv("resnet50", 28, 128, 512, 1, 1, 4),
    _conv("resnet50", 28, 512, 128, 1, 1, 3),
    _conv("resnet50", 28, 512, 256, 1),
    _conv("resnet50", 14, 256, 1024, 1, 1, 6),
    _conv("resnet50", 14, 1024, 256, 1, 1, 5),
    _conv("resnet50", 14, 1024, 512, 1),
    _conv("resnet50", 7, 512, 2048, 1, 1, 3),
    _conv("resnet50", 7, 2048, 512, 1, 1, 2),
    _conv("mobilenet", 224, 3, 32, 3, 2),
    _conv("mobilenet", 112, 32, 64, 1),
    _conv("mobilenet", 56, 64, 128, 1),
    _conv("mobilenet", 56, 128, 128, 1),
    _conv("mobilenet", 28, 128, 256, 1),
    _conv("mobilenet", 28, 256, 256, 1),
    _conv("mobilenet", 14, 256, 512, 1),
    _conv("mobilenet", 14, 512, 512, 1, 1, 5),
    _conv("mobilenet", 7, 512, 1024, 1),
    _conv("mobilenet", 7, 1024, 1024, 1),
    *_bert("bert", 128),
    _gemm("bert", 128, 64, 128, count=12, batch=12),
    _gemm("bert", 128, 128, 64, count=12, batch=12),
    *(_gemm("square", size, size, size) for size in (1024, 2048, 4096)),
    *(_conv("resnet18x16", size, 3584 // size, 3584 // size, 3, batch=16) for size in (56, 28, 14, 7)),
    *(_conv("resnet50x16", size, 14336 // size, 3584 // size, 1, batch=16) for size in (56, 28, 14, 7)),
    *(_conv("resnet50x16", size, 3584 // size, 14336 // size, 1, batch=16, residual=True) for size in (56, 28, 14, 7)),
    *(_conv("mobilenetx16", size, 7168 // size, 7168 // size, 1, batch=16) for size in (56, 28, 14, 7)),
    *_bert("bertx16", 2048),
    *(_conv("resnet50x64", size, 14336 // size, 3584 // size, 1, batch=64) for size in (56, 28, 14, 7)),
    *(_conv("resnet50x64", size, 3584 // size, 14336 // size, 1, batch=64, residual=True) for size in (56, 28, 14, 7)),
    _conv("resnet50x64", 56, 64, 64, 1, batch=64),
    _conv("resnet50x64", 56, 64, 64, 3, batch=64, count=3),
    _conv("efficientnetx64", 112, 16, 96, 1, batch=64),
    _conv("efficientnetx64", 56, 24, 144, 1, batch=64, count=2),
    _conv("efficientnetx64", 56, 144, 24, 1, batch=64, residual=True),
    _conv("efficientnetx64", 28, 40, 240, 1, batch=64, count=2),
    _conv("efficientnetx64", 14, 80, 480, 1, batch=64, count=3),
    _conv("efficientnetx64", 14, 480, 80, 1, batch=64, residual=True, count=2),
    _conv("efficientnetx64", 7, 192, 1152, 1, batch=64, count=4),
    _gemm("convnextx64", 200704, 96, 384, count=3),
    _gemm("convnextx64", 200704, 384, 96, residual=True, count=3),
    _gemm("convnextx64", 50176, 192, 768, count=3),
    _gemm("convnextx64", 50176, 768, 192, residual=True, count=3),
    _gemm("convnextx64", 12544, 384, 1536, count=9),
    _gemm("convnextx64", 12544, 1536, 384, residual=True, count=9),
    *_bert("bertx32", 4096),
    *_bert("vitx16", 3152),
    *(
        _gemm("llama", 512, depth, columns)
        for depth, columns in ((2048, 3072), (2048, 2048), (2048, 16384), (8192, 2048))
    ),
]


def function_of(layer: Layer, dtype: str = "float32") -> PrimFunc:
    """The program of a layer, not scheduled."""
    if DataType.of(dtype).bits == 8:
        return _byte_function(layer, dtype)
    names = ("x", "w", "bias", "other")
    x, w, *rest = [te.placeholder(shape, dtype, name) for shape, name in zip(layer.operands, names, strict=False)]
    if layer.size:
        strides, padding = (layer.stride,) * 2, (layer.window // 2,) * 4
        (y,) = apply_operator(
            "nn.conv2d", [x, w], strides=strides, padding=padding, data_layout="NHWC", kernel_layout="HWIO"
        )
    else:
        (y,) = apply_operator("matmul", [x, w])
    if layer.is_plain:
        return create_prim_func([x, w, y], "layer")
    bias, *other = rest

    def element(*i: PrimExpr) -> PrimExpr:
        value = y[i] + bias[i[-1]]
        for item in other:
            value = value + item[i]
        return te.maximum(value, te.const(0.0, dtype))

    z = te.compute(layer.result, element, "z")
    func = create_prim_func([x, w, *rest, z], "layer")
    return func.replace(attributes={**func.attributes, CONSTANTS: (1, 2)})


def _byte_function(layer: Layer, dtype: str) -> PrimFunc:
    """A layer of 8-bit integers or floats: its sums are scaled, a scale for each column, before bias and ReLU.

    Integers are quantised again; results of floats are halves.
    """
    total = DataType.of("float32" if DataType.of(dtype).is_float else "int32")
    shapes = (*layer.operands[:2], (layer.columns,), (layer.columns,), *layer.operands[3:])
    types = (dtype, dtype, "float32", "float32", dtype)
    names = ("x", "w", "scale", "bias", "other")
    x, w, scale, bias, *other = [
        te.placeholder(shape, kind, name) for shape, kind, name in zip(shapes, types, names, strict=False)
    ]
    if layer.size:
        zero = te.compute((), lambda: te.const(0, dtype), "zero")
        strides, padding = (layer.stride,) * 2, (layer.window // 2,) * 4
        (y,) = apply_operator("qnn.conv2d", [x, w, zero], strides=strides, padding=padding)
    else:
        (y,) = apply_operator("qnn.matmul", [x, w])

    def element(*i: PrimExpr) -> PrimExpr:
        value = cast(y[i], FLOAT32) * scale[i[-1]] + bias[i[-1]]
        for item in other:
            value = value + cast(item[i], FLOAT32)
        value = te.maximum(value, te.const(0.0, "float32"))
        if total is FLOAT32:
            return cast(value, DataType.of("float16"))
        return cast(te.minimum(te.round(value), te.const(127.0, "float32")), DataType.of(dtype))

    z = te.compute(layer.result, element, "z")
    func = create_prim_func([x, w, scale, bias, *other, z], "layer")
    return func.replace(attributes={**func.attributes, CONSTANTS: (1, 2, 3)})
