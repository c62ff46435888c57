"""Whole models, compiled and compared with torch."""

from __future__ import annotations

from tests.requirements import need_module

torch = need_module("torch")
nn = torch.nn


class Block(nn.Module):
    """A residual block that halves the image."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.short = nn.Sequential(nn.Conv2d(inputs, outputs, 1, 2, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        inner = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(inner)) + self.short(x))


class SmallResNet(nn.Module):
    """A stem, two blocks and a classifier."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.blocks = nn.Sequential(Block(8, 16), Block(16, 32))
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        features = self.blocks(self.pool(self.stem(x)))
        return self.head(torch.flatten(nn.functional.adaptive_avg_pool2d(features, 1), 1))


class Recurrent(nn.Module):
    """An LSTM over embedded tokens, and a projection."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.lstm = nn.LSTM(8, 12, num_layers=2, batch_first=True, bidirectional=True)
        self.project = nn.Linear(24, 20)

    def forward(self, tokens):
        hidden, (last, _) = self.lstm(self.embedding(tokens))
        return self.project(hidden), last


def test_residual_network(check):
    imported = check(SmallResNet().eval(), torch.randn(2, 3, 32, 32), compiled=True, tolerance=1e-4)
    assert imported.attributes["model_name"] == "SmallResNet"


def test_transformer_encoder(check):
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation="gelu", norm_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    check(model, torch.randn(2, 6, 16), compiled=True, tolerance=1e-4)


def test_attention_with_masks(check):
    attention = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    hidden = torch.tensor([[False, False, True], [False, False, False]])
    check(lambda x: attention(x, x, x, key_padding_mask=hidden)[0], torch.randn(2, 3, 16))
    causal = nn.functional.scaled_dot_product_attention
    check(lambda q, k: causal(q, k, k, is_causal=True), torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4))


def test_lstm(check):
    check(Recurrent().eval(), torch.randint(0, 20, (2, 4)), compiled=True, tolerance=1e-4)
