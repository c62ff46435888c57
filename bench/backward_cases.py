"""What `bench.backward` measures: backward passes of layers, ours as graph programs and the same in torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import tilewright as tw
from tilewright.graph.ir.expr import Function, GraphExpr, Var
from tilewright.graph.ir.op import call
from tilewright.graph.ir.rewrite import make
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type

Array = npt.NDArray[Any]
Torch = Any
NHWC = {"data_layout": "NHWC", "kernel_layout": "HWIO"}


@dataclass(frozen=True)
class Case:
    """A backward pass: the program, its inputs, what torch does with them, and the operations that it takes.

    `peer` gets torch and the inputs as tensors and gives functions to choose the quickest of, each with its result in
    the order of ours.
    """

    name: str
    module: Callable[[], IRModule]
    inputs: Callable[[], list[Array]]
    peer: Callable[[Torch, Sequence[Any]], list[Callable[[], Any]]]
    operations: float = 0.0


def _normal(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def _program(shapes: Sequence[tuple[int, ...]], body: Callable[..., GraphExpr], kinds: Sequence[str] = ()) -> IRModule:
    names = kinds or ["float32"] * len(shapes)
    params = tuple(Var(f"x{n}", tensor_type(s, kind)) for n, (s, kind) in enumerate(zip(shapes, names, strict=True)))
    return IRModule([Function("main", params, body(*params))])


@dataclass(frozen=True)
class Layer:
    """A convolution of a network, channels last in our program."""

    network: str
    batch: int
    inputs: int
    outputs: int
    size: int
    kernel: int
    stride: int
    groups: int = 1

    @property
    def padding(self) -> int:
        """On each side."""
        return self.kernel // 2

    @property
    def result(self) -> int:
        """The height and width of the result."""
        return (self.size + 2 * self.padding - self.kernel) // self.stride + 1

    def case(self, part: str) -> Case:
        """The gradient for `data` or `weight`."""
        image = (self.batch, self.size, self.size, self.inputs)
        gradient = (self.batch, self.result, self.result, self.outputs)
        shape = {"strides": (self.stride, self.stride), "padding": (self.padding,) * 4, "groups": self.groups}
        if part == "weight":
            attributes = {**NHWC, **shape, "kernel": (self.kernel, self.kernel)}
            shapes = [image, gradient]
            operator = "nn.conv2d_weight_gradient"
        else:
            spare = self.size - ((self.result - 1) * self.stride + self.kernel - 2 * self.padding)
            attributes = {**NHWC, **shape, "output_padding": (spare, spare)}
            # Weights as the transposed convolution takes them: its inputs are the outputs of the layer.
            shapes = [gradient, (self.kernel, self.kernel, self.outputs, self.inputs // self.groups)]
            operator = "nn.conv2d_transpose"
        name = (
            f"{self.network} {part} {self.inputs}->{self.outputs} {self.kernel}x{self.kernel}/{self.stride} {self.size}"
        )
        work = 2.0 * self.batch * self.result**2 * self.outputs * self.inputs // self.groups * self.kernel**2
        return Case(
            f"{name} g{self.groups}" if self.groups > 1 else name,
            lambda: _program(shapes, lambda a, b: call(operator, a, b, **attributes)),
            lambda: [_normal(*item) for item in shapes],
            lambda torch, arrays: self._peer(torch, arrays, part),
            work,
        )

    def _peer(self, torch: Torch, arrays: Sequence[Any], part: str) -> list[Callable[[], Any]]:
        wants = [part == "data", part == "weight", False]
        fixed = ([self.stride] * 2, [self.padding] * 2, [1, 1], False, [0, 0], self.groups, wants)
        ways = []
        for order in (torch.contiguous_format, torch.channels_last):
            image = torch.zeros(self.batch, self.inputs, self.size, self.size).contiguous(memory_format=order)
            weight = torch.zeros(self.outputs, self.inputs // self.groups, self.kernel, self.kernel)
            if part == "weight":
                image, gradient = (item.permute(0, 3, 1, 2).contiguous(memory_format=order) for item in arrays)
            else:
                gradient = arrays[0].permute(0, 3, 1, 2).contiguous(memory_format=order)
                weight = arrays[1].permute(2, 3, 0, 1).contiguous()
            ways.append(self._way(torch, gradient, image, weight, fixed, part))
        return ways

    @staticmethod
    def _way(torch: Torch, gradient: Any, image: Any, weight: Any, fixed: Any, part: str) -> Callable[[], Any]:
        def run() -> Any:
            found = torch.ops.aten.convolution_backward(gradient, image, weight, None, *fixed)
            return found[0].permute(0, 2, 3, 1) if part == "data" else found[1].permute(2, 3, 1, 0)

        return run


def layers(batch: int) -> list[Layer]:
    """Convolutions of ResNet-18 and MobileNet-v2."""
    residual = [
        Layer("resnet18", batch, 64, 64, 56, 3, 1),
        Layer("resnet18", batch, 64, 128, 56, 3, 2),
        Layer("resnet18", batch, 64, 128, 56, 1, 2),
        Layer("resnet18", batch, 128, 128, 28, 3, 1),
        Layer("resnet18", batch, 256, 256, 14, 3, 1),
        Layer("resnet18", batch, 512, 512, 7, 3, 1),
    ]
    light = [
        Layer("mobilenet", batch, channels, channels, size, 3, stride, channels)
        for channels, size, stride in ((32, 112, 1), (96, 112, 2), (144, 56, 1), (384, 14, 1), (960, 7, 1))
    ]
    return [*residual, *light, Layer("mobilenet", batch, 24, 144, 56, 1, 1)]


def _vjp(
    name: str,
    shapes: Sequence[tuple[int, ...]],
    body: Callable[..., GraphExpr],
    forward: Callable[..., Any],
    result: tuple[int, ...],
    wrt: Sequence[int],
) -> Case:
    """A forward and a backward pass in one program, against torch's forward and autograd."""

    def peer(torch: Torch, arrays: Sequence[Any]) -> list[Callable[[], Any]]:
        *values, head = arrays
        leaves = [item.clone().requires_grad_(n in wrt) for n, item in enumerate(values)]

        def run() -> Any:
            made = forward(torch, *leaves)
            return [made.detach(), *torch.autograd.grad(made, [leaves[n] for n in wrt], head)]

        return [run]

    return Case(
        name, lambda: tw.vjp(_program(shapes, body), list(wrt)), lambda: [_normal(*s) for s in (*shapes, result)], peer
    )


def _cross_entropy(logits: GraphExpr, weights: GraphExpr) -> GraphExpr:
    """The mean over rows of what their (soft) labels weigh of minus log-softmax."""
    logs = make("multiply", make("nn.log_softmax", logits, axis=1), weights)
    return make("negative", make("mean", make("sum", logs, axes=(1,)), axes=(0,)))


def compositions(batch: int) -> list[Case]:
    """Layers whose backward pass is a composition of operators, or a sum at places that are data."""
    rows, heads, places = 128 * batch, 8, 128
    image = (batch, 64, 112, 112)
    pooled = (batch, 64, 56, 56)
    attention = (batch, places, heads, 64)
    pool: dict[str, Any] = {"kernel": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1)}
    return [
        _vjp(
            f"layer norm {rows} x 512",
            [(rows, 512), (512,), (512,)],
            lambda x, scale, bias: call("nn.layer_norm", x, scale, bias, axis=1, epsilon=1e-5),
            lambda torch, x, scale, bias: torch.nn.functional.layer_norm(x, (512,), scale, bias),
            (rows, 512),
            (0, 1, 2),
        ),
        _vjp(
            f"softmax {rows} x 512",
            [(rows, 512)],
            lambda x: call("nn.softmax", x, axis=1),
            lambda torch, x: torch.softmax(x, 1),
            (rows, 512),
            (0,),
        ),
        _vjp(
            f"cross entropy {rows} x 1000",
            [(rows, 1000), (rows, 1000)],
            _cross_entropy,
            lambda torch, x, w: -(torch.log_softmax(x, 1) * w).sum(1).mean(),
            (),
            (0,),
        ),
        _vjp(
            f"max pool 3x3/2 {batch} x 64 x 112",
            [image],
            lambda x: call("nn.max_pool2d", x, **pool),
            lambda torch, x: torch.nn.functional.max_pool2d(x, 3, 2, 1),
            pooled,
            (0,),
        ),
        _vjp(
            f"average pool 3x3/2 {batch} x 64 x 112",
            [image],
            lambda x: call("nn.avg_pool2d", x, **pool, count_include_pad=True),
            lambda torch, x: torch.nn.functional.avg_pool2d(x, 3, 2, 1),
            pooled,
            (0,),
        ),
        _vjp(
            f"attention {batch} x {heads} x {places} x 64",
            [attention] * 3,
            lambda q, k, v: call("nn.attention", q, k, v, scale=0.125),
            lambda torch, q, k, v: torch.nn.functional.scaled_dot_product_attention(
                q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
            ).transpose(1, 2),
            attention,
            (0, 1, 2),
        ),
        _embedding(rows),
    ]


def _embedding(tokens: int) -> Case:
    shapes, kinds, words = [(tokens, 512), (tokens,)], ["float32", "int64"], 30522

    def inputs() -> list[Array]:
        return [_normal(*shapes[0]), np.random.default_rng(0).integers(0, words, tokens)]

    def peer(torch: Torch, arrays: Sequence[Any]) -> list[Callable[[], Any]]:
        updates, places = arrays
        return [lambda: torch.ops.aten.embedding_dense_backward(updates, places, words, -1, False)]

    return Case(
        f"embedding {tokens} of 30522 x 512",
        lambda: _program(shapes, lambda u, p: call("segment_sum", u, p, count=words, inside=True), kinds),
        inputs,
        peer,
    )


def linear_layer(rows: int, inputs: int, outputs: int, part: str) -> Case:
    """A linear layer of weights `[outputs, inputs]`: its result (`forward`), or its gradient for `data` or `weight`."""
    data, weight, gradient = (rows, inputs), (outputs, inputs), (rows, outputs)
    operands: dict[str, tuple[list[tuple[int, ...]], bool, bool]] = {
        "forward": ([data, weight], False, True),
        "data": ([gradient, weight], False, False),
        "weight": ([gradient, data], True, False),
    }
    shapes, first, second = operands[part]

    def peer(torch: Torch, arrays: Sequence[Any]) -> list[Callable[[], Any]]:
        a, b = arrays
        return [lambda: torch.mm(a.T if first else a, b.T if second else b)]

    return Case(
        f"linear {part} {rows} x {inputs}->{outputs}",
        lambda: _program(shapes, lambda a, b: call("matmul", a, b, transpose_a=first, transpose_b=second)),
        lambda: [_normal(*shape) for shape in shapes],
        peer,
        2.0 * rows * inputs * outputs,
    )


def linear_layers(batch: int) -> list[Case]:
    """Products of BERT-small's training step, the one with its vocabulary among them."""
    sizes = ((512, 512), (512, 2048), (2048, 512), (512, 30522))
    return [linear_layer(128 * batch, *size, part) for size in sizes for part in ("forward", "data", "weight")]


def cases(batch: int) -> list[Case]:
    """All of them."""
    convolutions = [layer.case(part) for layer in layers(batch) for part in ("data", "weight")]
    first = Layer("resnet18", batch, 3, 64, 224, 7, 2).case("weight")
    return [first, *convolutions, *linear_layers(batch), *compositions(batch)]
