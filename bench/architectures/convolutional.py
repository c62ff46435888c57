"""Models of `timm` and `torchvision`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from bench.architectures.case import Architecture, Inputs, Sizes
from bench.architectures.perception import images
from bench.architectures.torchvision_operators import import_torchvision


def _pixels(name: str, side: int = 64) -> Callable[[Sizes], Inputs]:
    return lambda sizes: {name: images(sizes, side)["pixel_values"]}


def _open_pixels(name: str) -> Callable[[Sizes], Inputs]:
    """Images whose height and width vary as well."""
    return lambda sizes: {name: images(sizes, sizes.length * 4)["pixel_values"]}


def _timm(name: str, model: str, side: int = 64, **fields: Any) -> Architecture:
    def build() -> Any:
        import torch

        import_torchvision()
        import timm

        torch.manual_seed(0)
        return timm.create_model(model, pretrained=False, num_classes=10, **fields).eval()

    return Architecture(name, "timm", build, _pixels("x", side))


def _vision_model(path: str, fields: dict[str, Any]) -> Any:
    import torch

    torch.manual_seed(0)
    found = import_torchvision().models
    for part in path.split("."):
        found = getattr(found, part)
    return found(**fields).eval()


def _vision(name: str, path: str, inputs: Callable[[Sizes], Inputs] | None = None, **fields: Any) -> Architecture:
    return Architecture(name, "torchvision", partial(_vision_model, path, fields), inputs or _pixels("x"))


def _video(sizes: Sizes) -> Inputs:
    import torch

    torch.manual_seed(sizes.batch)
    return {"x": torch.randn(sizes.batch, 3, 4, 32, 32)}


_PLAIN = {"weights": None, "weights_backbone": None, "num_classes": 5}

TIMM: tuple[Architecture, ...] = (
    _timm("EfficientNet", "efficientnet_b0"),
    _timm("ConvNeXt", "convnext_atto", depths=(1, 1, 2, 1)),
    _timm("RegNet", "regnety_002"),
    _timm("MobileNet-v3", "mobilenetv3_small_050"),
    _timm("MobileNet-v4", "mobilenetv4_conv_small"),
    _timm("MLP-Mixer", "mixer_s32_224", img_size=64),
    _timm("PoolFormer", "poolformer_s12"),
    _timm("EdgeNeXt", "edgenext_xx_small", depths=(1, 1, 2, 1)),
    _timm("MobileViT", "mobilevit_xxs"),
    _timm("GhostNet", "ghostnet_050"),
    _timm("ResNeSt", "resnest14d"),
)
"""Models of timm."""

TORCHVISION: tuple[Architecture, ...] = (
    _vision("ResNet-18", "resnet18", _open_pixels("x")),
    _vision("DenseNet", "DenseNet", growth_rate=8, block_config=(2, 2, 2), num_init_features=16),
    _vision("Inception-v3", "inception_v3", _pixels("x", 128), init_weights=False),
    _vision("GoogLeNet", "googlenet", init_weights=False),
    _vision("ShuffleNet-v2", "shufflenet_v2_x0_5"),
    _vision("SqueezeNet", "squeezenet1_1", _open_pixels("x")),
    _vision("DeepLab-v3", "segmentation.deeplabv3_mobilenet_v3_large", _open_pixels("x"), **_PLAIN),
    _vision("FCN", "segmentation.fcn_resnet50", _pixels("x"), **_PLAIN),
    _vision("LRASPP", "segmentation.lraspp_mobilenet_v3_large", _open_pixels("input"), **_PLAIN),
    _vision("R3D", "video.r3d_18", _video),
)
"""Models of torchvision."""
