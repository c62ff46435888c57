"""Models that `bench.torch_training` trains: plain torch modules, with examples of their inputs and labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Case = tuple[nn.Module, torch.Tensor, torch.Tensor]
"""A module, a batch, and what is right for it."""


class BasicBlock(nn.Module):
    """The block of ResNet-18."""

    def __init__(self, channels: int, outputs: int, step: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, outputs, 3, step, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shorter = nn.Sequential()
        if step != 1 or channels != outputs:
            self.shorter = nn.Sequential(nn.Conv2d(channels, outputs, 1, step, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of both ways."""
        inner = self.bn1(self.conv1(x)).relu()
        return (self.bn2(self.conv2(inner)) + self.shorter(x)).relu()


def resnet18(classes: int = 10) -> nn.Module:
    """ResNet-18 as in the paper, 11.2 million parameters."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    channels = 64
    for outputs, step in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [BasicBlock(channels, outputs, step), BasicBlock(outputs, outputs, 1)]
        channels = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


class InvertedResidual(nn.Module):
    """The block of MobileNet-v2."""

    def __init__(self, channels: int, outputs: int, step: int, wider: int) -> None:
        super().__init__()
        inner = channels * wider
        layers: list[nn.Module] = []
        if wider != 1:
            layers += [nn.Conv2d(channels, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU6()]
        layers += [nn.Conv2d(inner, inner, 3, step, 1, groups=inner, bias=False), nn.BatchNorm2d(inner), nn.ReLU6()]
        layers += [nn.Conv2d(inner, outputs, 1, bias=False), nn.BatchNorm2d(outputs)]
        self.layers, self.adds = nn.Sequential(*layers), step == 1 and channels == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """With what came in added, where it fits."""
        found: torch.Tensor = self.layers(x)
        return x + found if self.adds else found


def mobilenet_v2(classes: int = 10) -> nn.Module:
    """MobileNet-v2 of width 1."""
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU6()]
    channels = 32
    plan = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for wider, outputs, count, step in plan:
        for place in range(count):
            layers.append(InvertedResidual(channels, outputs, step if place == 0 else 1, wider))
            channels = outputs
    layers += [nn.Conv2d(channels, 1280, 1, bias=False), nn.BatchNorm2d(1280), nn.ReLU6()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(1280, classes))


class Encoder(nn.Module):
    """BERT-small: four layers of width 512 with eight heads, and scores of all tokens for each place."""

    def __init__(self, width: int, layers: int, heads: int, tokens: int, places: int) -> None:
        super().__init__()
        self.table, self.place = nn.Embedding(tokens, width), nn.Parameter(torch.zeros(places, width))
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, activation="gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.last = nn.Linear(width, tokens)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(places, tokens)."""
        found: torch.Tensor = self.last(self.layers(self.table(tokens) + self.place))
        return found.flatten(0, 1)


class Recurrent(nn.Module):
    """A language model of two layers of LSTM."""

    def __init__(self, width: int, tokens: int) -> None:
        super().__init__()
        self.table = nn.Embedding(tokens, width)
        self.layers, self.last = nn.LSTM(width, width, 2, batch_first=True), nn.Linear(width, tokens)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(places, tokens)."""
        found: torch.Tensor = self.last(self.layers(self.table(tokens))[0])
        return found.flatten(0, 1)


def small_cnn() -> nn.Module:
    """Two convolutions and two linear layers, for digits."""
    convolutions = [nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    convolutions += [nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*convolutions, nn.Linear(64 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10))


def _images(model: Callable[[], nn.Module], channels: int, full: int, reduced: int) -> Callable[[bool], Case]:
    def case(small: bool) -> Case:
        size, batch = (reduced, 2) if small else (full, 8)
        return model(), torch.randn(batch, channels, size, size), torch.randint(0, 10, (batch,))

    return case


def _tokens(make: Callable[[bool, int, int], nn.Module], tokens: int, places: int) -> Callable[[bool], Case]:
    def case(small: bool) -> Case:
        batch, length, count = (2, 4, 50) if small else (8, places, tokens)
        drawn: Any = torch.randint(0, count, (2, batch, length))
        return make(small, count, length), drawn[0], drawn[1].flatten()

    return case


CASES: dict[str, Callable[[bool], Case]] = {
    "small cnn": _images(small_cnn, 1, 28, 28),
    "resnet18": _images(resnet18, 3, 224, 32),
    "mobilenet-v2": _images(mobilenet_v2, 3, 224, 32),
    "bert-small": _tokens(
        lambda small, count, length: Encoder(*((32, 1, 2) if small else (512, 4, 8)), count, length), 30522, 128
    ),
    "lstm": _tokens(lambda small, count, length: Recurrent(16 if small else 256, count), 10000, 32),
}
"""By name; what is asked is whether the model, or its batch, is to be small."""


def torch_step(case: Case, optimizer: torch.optim.Optimizer, how: Callable[[Any], Any]) -> Callable[[], float]:
    """A function that takes a step of training, whose loss `how` compiles, and gives the loss."""
    model, x, labels = case

    def loss_of(batch: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch), right)

    run = how(loss_of)

    def step() -> float:
        optimizer.zero_grad()
        loss = run(x, labels)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step
