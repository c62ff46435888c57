"""Every common layer: results, gradients and buffers as in eager mode, and nothing left to torch.

Graphs are run by the interpreter here; compiled ones are in `test_models.py`.
"""

from __future__ import annotations

import pytest

from tests.requirements import need_module

torch = need_module("torch")
nn = torch.nn
F = nn.functional
pytestmark = pytest.mark.usefixtures("interpreted")


def normal(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape) + len(shape)))


def whole(limit, *shape):
    return torch.randint(0, limit, shape, generator=torch.Generator().manual_seed(limit))


class First(nn.Module):
    """The first result of a layer."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, *inputs):
        """What comes first."""
        return self.layer(*inputs)[0]


class Attention(nn.Module):
    """Attention with projections, so that gradients reach everything."""

    def __init__(self, mask=None, causal=False):
        super().__init__()
        self.project, self.mask, self.causal = nn.Linear(8, 24), mask, causal

    def forward(self, x):
        """Two heads."""
        batch, places, _ = x.shape
        query, key, value = self.project(x).view(batch, places, 3, 2, 4).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(query, key, value, self.mask, is_causal=self.causal)


CONVOLUTIONS = {
    "plain": (nn.Conv2d(3, 4, 3, padding=1), (2, 3, 6, 7)),
    "steps that leave rows over": (nn.Conv2d(3, 4, 3, stride=2, padding=1), (2, 3, 8, 7)),
    "steps, pads and spaces that differ": (nn.Conv2d(2, 3, (3, 2), (2, 3), (1, 0), (1, 2), bias=False), (2, 2, 9, 11)),
    "groups": (nn.Conv2d(4, 6, 3, stride=2, groups=2), (2, 4, 7, 8)),
    "depthwise": (nn.Conv2d(4, 8, 3, padding=1, groups=4), (2, 4, 5, 6)),
    "pointwise": (nn.Conv2d(4, 3, 1, stride=2), (2, 4, 5, 6)),
    "lines": (nn.Conv1d(3, 4, 3, stride=2, dilation=2), (2, 3, 11)),
    "volumes": (nn.Conv3d(2, 4, (3, 2, 3), stride=(2, 1, 1), padding=1, groups=2), (2, 2, 4, 3, 5)),
    "transposed": (nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1, output_padding=1), (2, 3, 4, 5)),
    "transposed groups": (nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2, dilation=2), (2, 4, 4, 3)),
    "transposed with more at the end than a step": (
        nn.ConvTranspose1d(2, 3, 3, dilation=3, output_padding=2),
        (2, 2, 5),
    ),
    "transposed lines": (nn.ConvTranspose1d(3, 4, 4, stride=2, padding=1), (2, 3, 5)),
    "transposed volumes": (nn.ConvTranspose3d(2, 3, 2, stride=2), (1, 2, 2, 3, 2)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name, check_gradients):
    layer, shape = CONVOLUTIONS[name]
    check_gradients(layer, normal(*shape))


def test_convolutions_of_random_sizes(check_gradients):
    generator = torch.Generator().manual_seed(3)

    def draw(low, high):
        return int(torch.randint(low, high + 1, (), generator=generator))

    for _ in range(6):
        groups, kernel, space = draw(1, 3), draw(1, 3), draw(1, 2)
        layer = nn.Conv2d(
            groups * draw(1, 2), groups * draw(1, 2), kernel, draw(1, 3), draw(0, 2), space, groups, draw(0, 1) == 1
        )
        reach = (kernel - 1) * space + 1
        check_gradients(layer, normal(draw(1, 3), layer.in_channels, reach + draw(0, 5), reach + draw(0, 5)))


POOLS = {
    "maxima": (nn.MaxPool2d(2), (2, 3, 6, 7)),
    "maxima of windows that overlap": (nn.MaxPool2d(3, 2, 1), (2, 3, 7, 6)),
    "maxima of windows rounded up": (nn.MaxPool2d(3, 2, ceil_mode=True), (2, 3, 8, 8)),
    "maxima of windows that are spread": (nn.MaxPool2d(2, 1, dilation=2), (3, 7, 6)),
    "maxima of lines": (nn.MaxPool1d(3, 2), (2, 3, 8)),
    "maxima of volumes": (nn.MaxPool3d((2, 3, 2), 2, (1, 1, 0)), (1, 2, 4, 5, 5)),
    "averages": (nn.AvgPool2d(2), (2, 3, 6, 7)),
    "averages that count the padding": (nn.AvgPool2d(3, 2, 1), (2, 3, 7, 6)),
    "averages that do not": (nn.AvgPool2d(3, 2, 1, count_include_pad=False), (2, 3, 7, 6)),
    "averages of windows rounded up": (nn.AvgPool2d(3, 2, ceil_mode=True), (2, 3, 8, 8)),
    "averages by another divisor": (nn.AvgPool2d(2, divisor_override=3), (2, 3, 4, 4)),
    "averages of lines": (nn.AvgPool1d(3), (2, 3, 9)),
    "averages of volumes": (nn.AvgPool3d(2, 1, 1), (1, 2, 3, 4, 3)),
    "one average": (nn.AdaptiveAvgPool2d(1), (2, 3, 5, 6)),
    "some averages": (nn.AdaptiveAvgPool2d((2, 3)), (2, 3, 5, 6)),
    "averages of equal parts": (nn.AdaptiveAvgPool3d((2, 1, 2)), (2, 2, 4, 3, 3)),
    "some maxima": (nn.AdaptiveMaxPool2d((2, 3)), (2, 3, 5, 6)),
}


@pytest.mark.parametrize("name", POOLS)
def test_pools(name, check_gradients):
    layer, shape = POOLS[name]
    check_gradients(layer, normal(*shape))


def test_of_equal_maxima_the_first_takes_the_gradient(check_gradients):
    check_gradients(nn.Sequential(nn.ReLU(), nn.MaxPool2d(3, 2, 1)), -normal(1, 2, 6, 6).abs())
    check_gradients(nn.MaxPool3d(2), whole(2, 1, 1, 4, 4, 4).float())


NORMALIZATIONS = {
    "batch": (nn.BatchNorm2d(3), (4, 3, 2, 3)),
    "batch of rows": (nn.BatchNorm1d(3, momentum=None), (6, 3)),
    "batch without statistics": (nn.BatchNorm2d(3, track_running_stats=False), (4, 3, 2, 3)),
    "batch in evaluation": (nn.BatchNorm2d(3).eval(), (4, 3, 2, 3)),
    "layer": (nn.LayerNorm((3, 4)), (2, 3, 4)),
    "layer without weights": (nn.LayerNorm(4, elementwise_affine=False), (2, 3, 4)),
    "group": (nn.GroupNorm(2, 4), (2, 4, 3, 2)),
    "instance": (nn.InstanceNorm2d(3, affine=True, track_running_stats=True), (2, 3, 4, 5)),
    "root mean square": (nn.RMSNorm(4), (2, 3, 4)),
    "local response": (nn.LocalResponseNorm(2), (2, 4, 3, 3)),
    "weight": (nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), (2, 4)),
}


@pytest.mark.parametrize("name", NORMALIZATIONS)
def test_normalizations(name, check_gradients):
    layer, shape = NORMALIZATIONS[name]
    check_gradients(layer, normal(*shape))


class Activations(nn.Module):
    """Many activations of parts of an input: one graph for all of them."""

    def __init__(self):
        super().__init__()
        names = "ReLU ReLU6 GELU SiLU Tanh Sigmoid Hardswish Hardtanh LeakyReLU ELU SELU CELU Softplus Softsign Mish"
        names += " PReLU LogSigmoid Hardsigmoid Softshrink Hardshrink Tanhshrink"
        layers = [getattr(nn, name)() for name in names.split()]
        self.layers = nn.ModuleList(
            [*layers, nn.GELU("tanh"), nn.Threshold(0.1, 0.0), nn.Softmax(-1), nn.LogSoftmax(0), nn.GLU()]
        )

    def forward(self, x):
        """Each of its own row."""
        return [layer(part) for layer, part in zip(self.layers, x.unbind(0), strict=True)]


def test_activations(check_gradients):
    model = Activations()
    check_gradients(model, 2 * normal(len(model.layers), 3, 4))


LABELS = whole(5, 4)
LOSSES = {
    "cross entropy": lambda x, y: F.cross_entropy(x, LABELS),
    "of some labels, smoothed": lambda x, y: F.cross_entropy(x, LABELS, label_smoothing=0.1, ignore_index=1),
    "weighted": lambda x, y: F.cross_entropy(x, LABELS, weight=torch.arange(1.0, 6.0)),
    "of probabilities": lambda x, y: F.cross_entropy(x, y.detach().softmax(1)),
    "of images": lambda x, y: F.cross_entropy(x.view(1, 5, 2, 2), LABELS.view(1, 2, 2)),
    "log likelihood": lambda x, y: F.nll_loss(x, LABELS, reduction="none"),
    "squares": lambda x, y: F.mse_loss(x, y),
    "distances": lambda x, y: F.l1_loss(x, y) + F.smooth_l1_loss(x, y) + F.huber_loss(x, y),
    "of two classes": lambda x, y: F.binary_cross_entropy_with_logits(x, y.detach().sigmoid()),
    "of chances": lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.detach().sigmoid()),
    "divergence": lambda x, y: F.kl_div(x.log_softmax(1), y.detach().softmax(1), reduction="batchmean"),
    "angles": lambda x, y: F.cosine_similarity(x, y),
    "triplets": lambda x, y: F.triplet_margin_loss(x, y, y.flip(0)),
    "pairs": lambda x, y: torch.cdist(x, y) + torch.cdist(x, y, p=1) + torch.cdist(x, y, p=3),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name, check_gradients, wrap):
    check_gradients(wrap(LOSSES[name]), normal(4, 5), normal(5, 4).T)


ATTENTION = {
    "all": Attention(),
    "causal": Attention(causal=True),
    "where a mask allows": Attention(mask=whole(2, 5, 5).bool()),
    "with scores added": Attention(mask=normal(5, 5)),
    "heads": First(nn.MultiheadAttention(8, 2, batch_first=True)),
    "an encoder": nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name, check_gradients):
    inputs = [normal(2, 5, 8)] * (3 if name == "heads" else 1)
    check_gradients(ATTENTION[name], *inputs)


RECURRENT = {
    "lstm": nn.LSTM(3, 4, 2, batch_first=True),
    "both directions": nn.LSTM(3, 4, bidirectional=True),
    "gru": nn.GRU(3, 4),
    "plain": nn.RNN(3, 4, nonlinearity="relu"),
}


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers(name, check_gradients):
    with torch._dynamo.config.patch(allow_rnn=True):
        check_gradients(First(RECURRENT[name]), normal(3, 2, 3))


class Places(nn.Module):
    """Reads and writes at places that are known, or that are data."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(6, 4, padding_idx=2)

    def forward(self, x, y, index):
        """One result of each."""
        written = x * 1
        written[:, 1:3] = y[:, 1:3]
        return [
            self.table(index),
            x.gather(1, index[:, :3] % 4),
            x[index[0] % 3],
            x[:, 1:3] * x[0, 2] + x[::2, :2].sum(),
            written,
            x.index_select(1, index[0] % 4),
            x.scatter_add(1, index[:, :2] % 4, y[:, :2]),
            x.index_add(0, index[0, :3] % 3, y),
            x.masked_fill(y > 0, 0.0).roll(1, 1).flip(0).tril(),
            torch.cat([x, y], 1).split(3, 1)[1],
            torch.where(x > y, x, y).unfold(1, 2, 1) * 2,
            F.pad(x, (1, 2), mode="constant"),
            F.pad(x[None], (2, 1), mode="replicate"),
            F.pad(x[None], (2, 1), mode="reflect"),
        ]


def test_places(check_gradients):
    check_gradients(Places(), normal(3, 4), normal(4, 3).T.contiguous(), whole(6, 3, 5))


class Reductions(nn.Module):
    """Sums, extrema and what is made of them."""

    def forward(self, x, y):
        """One result of each."""
        return [
            x.max(1)[0],
            x.amax(1),
            x.topk(2)[0],
            x.sort()[0],
            x.cumsum(1),
            x.logsumexp(1),
            x.std(1),
            x.norm(p=3, dim=1),
            F.normalize(x),
            x.prod(1),
            x.clamp(-0.5, 0.5),
            x.abs() ** y,
            torch.maximum(x, y),
            torch.atan2(x, y),
            torch.einsum("ik,jk->ij", x, y),
            x.expand(2, 3, 4).mean(0),
            F.interpolate(x.view(1, 1, 3, 4), scale_factor=2, mode="bilinear"),
            F.interpolate(x.view(1, 1, 3, 4), scale_factor=2),
        ]


def test_reductions(check_gradients):
    check_gradients(Reductions(), normal(3, 4), normal(4, 3).T.contiguous())


@pytest.mark.parametrize("padding", [(1, 2, 0, 3), (2, 0, -1, 1), (0, 0, 1, 0)])
def test_replicated_edges(padding, check_gradients, wrap):
    check_gradients(wrap(lambda x: F.pad(x, padding, mode="replicate")), normal(1, 2, 4, 3))
    check_gradients(wrap(lambda x: F.pad(x, (1, 2, *padding), mode="replicate")), normal(1, 2, 3, 1, 4))


def test_determinants(check_gradients, wrap):
    check_gradients(wrap(lambda x: torch.linalg.det(x + 4 * torch.eye(3))), normal(2, 3, 3))
    check_gradients(wrap(lambda x: torch.linalg.slogdet(x.mT + 4 * torch.eye(3))[1]), normal(2, 3, 3))


def test_tensors_without_elements(check_gradients):
    check_gradients(nn.Conv2d(2, 3, 2), normal(0, 2, 4, 4))
    check_gradients(nn.MaxPool2d(2), normal(0, 2, 4, 4))
    check_gradients(nn.AvgPool2d(2), normal(0, 2, 4, 4))
