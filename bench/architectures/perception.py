"""Models of images, sound and both from `transformers`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from bench.architectures.case import Architecture, Inputs, Sizes
from bench.architectures.language import VOCABULARY, model_of, token_ids, tokens
from bench.architectures.torchvision_operators import import_torchvision

SIDE = 64
_ENCODER = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
}
_PATCHES = {**_ENCODER, "image_size": SIDE, "patch_size": 16}
_WORDS = {**_ENCODER, "vocab_size": VOCABULARY, "max_position_embeddings": 64, "eos_token_id": 2, "bos_token_id": 1}
_STAGES = {
    "embed_dim": 32,
    "depths": [1, 1],
    "num_heads": [2, 4],
    "window_size": 4,
    "image_size": SIDE,
    "patch_size": 4,
}


def images(sizes: Sizes, side: int = SIDE) -> Inputs:
    """Random pixels."""
    import torch

    torch.manual_seed(sizes.batch)
    return {"pixel_values": torch.randn(sizes.batch, 3, side, side)}


def pictures_and_words(sizes: Sizes) -> Inputs:
    """Pictures with captions."""
    found = {**tokens(sizes), **images(sizes)}
    found["input_ids"][:, -1] = 2
    return found


def sound(sizes: Sizes) -> Inputs:
    """Random samples, 100 for each of the length."""
    import torch

    torch.manual_seed(sizes.batch)
    return {"input_values": torch.randn(sizes.batch, sizes.length * 100)}


def spectrum_and_words(sizes: Sizes) -> Inputs:
    """A spectrum of a fixed length with a transcript."""
    import torch

    torch.manual_seed(sizes.batch)
    return {"input_features": torch.randn(sizes.batch, 20, 60), "decoder_input_ids": token_ids(sizes)}


def _model(
    name: str, model: str, config: Mapping[str, Any], inputs: Callable[[Sizes], Inputs] = images, **fields: Any
) -> Architecture:
    return Architecture(name, "transformers", partial(model_of, model, config), inputs, **fields)


_WAVES = {
    **_ENCODER,
    "vocab_size": 32,
    "conv_dim": (32, 32, 32),
    "conv_kernel": (10, 3, 2),
    "conv_stride": (5, 2, 2),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}
_WHISPER = {
    "vocab_size": VOCABULARY,
    "num_mel_bins": 20,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "max_source_positions": 30,
    "max_target_positions": 64,
    "use_cache": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
_SEGMENTS = {
    "num_encoder_blocks": 2,
    "depths": [1, 1],
    "sr_ratios": [4, 2],
    "hidden_sizes": [16, 32],
    "patch_sizes": [7, 3],
    "strides": [4, 2],
    "num_attention_heads": [1, 2],
    "mlp_ratios": [2, 2],
    "decoder_hidden_size": 32,
}
_DETR = {
    "use_timm_backbone": False,
    "backbone": None,
    "use_pretrained_backbone": False,
    "d_model": 64,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "num_queries": 10,
}


def _detr() -> Any:
    import_torchvision()
    from transformers import ResNetConfig

    backbone = ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic", out_features=["stage2"]
    )
    return model_of("DetrForObjectDetection", {**_DETR, "backbone_config": backbone})


PERCEPTION: tuple[Architecture, ...] = (
    _model("ViT", "ViTForImageClassification", _PATCHES),
    _model("DeiT", "DeiTForImageClassificationWithTeacher", _PATCHES),
    _model("BEiT", "BeitForImageClassification", {**_PATCHES, "use_relative_position_bias": True}),
    _model("DINOv2", "Dinov2Model", {**_PATCHES, "mlp_ratio": 2}),
    _model("Swin", "SwinForImageClassification", _STAGES),
    _model("Swin v2", "Swinv2ForImageClassification", _STAGES),
    _model("SegFormer", "SegformerForSemanticSegmentation", _SEGMENTS),
    Architecture("DETR", "transformers", _detr, images),
    _model("CLIP", "CLIPModel", {"text_config": _WORDS, "vision_config": _PATCHES}, pictures_and_words),
    _model("SigLIP", "SiglipModel", {"text_config": _WORDS, "vision_config": _PATCHES}, pictures_and_words),
    _model("wav2vec 2.0", "Wav2Vec2ForCTC", _WAVES, sound),
    _model("HuBERT", "HubertForCTC", _WAVES, sound),
    _model("Whisper", "WhisperForConditionalGeneration", _WHISPER, spectrum_and_words),
)
"""Models of images, of sound, and of these with words."""
