"""Language models of `transformers`: decoders, encoders, both, mixtures of experts, state spaces, caches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.architectures.case import Architecture, Inputs, Sizes
from bench.architectures.torchvision_operators import import_torchvision

VOCABULARY = 128
_SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_DECODER = {**_SMALL, "use_cache": False}
_LONGER_BATCH = Sizes(3, 16)
"""For models that torch cannot export with a length left open."""
_GROUPED = {**_DECODER, "num_key_value_heads": 2}


def model_of(name: str, config: Mapping[str, Any]) -> Any:
    """A model of `transformers` by the name of its class, with random weights."""
    import torch

    import_torchvision()  # transformers imports it where it is installed
    import transformers

    torch.manual_seed(0)
    kind = getattr(transformers, name)
    return kind(kind.config_class(**config)).eval()


def token_ids(sizes: Sizes) -> Any:
    """Random tokens, none of which is special."""
    import torch

    torch.manual_seed(sizes.batch)
    return torch.randint(3, VOCABULARY, (sizes.batch, sizes.length))


def tokens(sizes: Sizes) -> Inputs:
    """Tokens with a mask that hides the end of the last row."""
    import torch

    mask = torch.ones(sizes.batch, sizes.length, dtype=torch.int64)
    mask[-1, -3:] = 0
    return {"input_ids": token_ids(sizes), "attention_mask": mask}


def plain_tokens(sizes: Sizes) -> Inputs:
    """Tokens alone."""
    return {"input_ids": token_ids(sizes)}


def translation(sizes: Sizes) -> Inputs:
    """Tokens of two languages."""
    return {**tokens(sizes), "decoder_input_ids": token_ids(Sizes(sizes.batch, sizes.length // 2))}


def after_a_prompt(sizes: Sizes) -> Inputs:
    """One token, after a prompt whose keys and values a cache holds."""
    import torch
    from transformers import DynamicCache
    from transformers.integrations.executorch import register_dynamic_cache_export_support

    register_dynamic_cache_export_support()
    torch.manual_seed(sizes.batch)
    layers = [tuple(torch.randn(sizes.batch, 2, sizes.length, 16) for _ in range(2)) for _ in range(2)]
    return {
        "input_ids": token_ids(Sizes(sizes.batch, 1)),
        "attention_mask": torch.ones(sizes.batch, sizes.length + 1, dtype=torch.int64),
        "past_key_values": DynamicCache(layers),
    }


def _text(name: str, model: str, config: Mapping[str, Any], inputs: Any = tokens, **fields: Any) -> Architecture:
    return Architecture(name, "transformers", lambda: model_of(model, config), inputs, **fields)


_T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 128,
    "num_layers": 2,
    "num_heads": 4,
    "use_cache": False,
    "decoder_start_token_id": 0,
}
_BART = {
    "vocab_size": VOCABULARY,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "max_position_embeddings": 64,
    "use_cache": False,
}
_XLNET = {
    "vocab_size": VOCABULARY,
    "d_model": 64,
    "n_layer": 2,
    "n_head": 4,
    "d_inner": 128,
    "use_mems_eval": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_MAMBA = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, "use_cache": False}

LANGUAGE: tuple[Architecture, ...] = (
    _text("Llama", "LlamaForCausalLM", _GROUPED),
    _text("Llama with a cache", "LlamaForCausalLM", {**_GROUPED, "use_cache": True}, after_a_prompt),
    _text("Mistral", "MistralForCausalLM", {**_GROUPED, "sliding_window": 8}),
    _text("Qwen2", "Qwen2ForCausalLM", _GROUPED),
    _text("Gemma", "GemmaForCausalLM", {**_GROUPED, "head_dim": 16}),
    _text("Gemma 2", "Gemma2ForCausalLM", {**_GROUPED, "head_dim": 16, "sliding_window": 8}),
    _text("Phi", "PhiForCausalLM", _DECODER),
    _text("GPT-2", "GPT2LMHeadModel", _DECODER),
    _text("GPT-NeoX", "GPTNeoXForCausalLM", _DECODER),
    _text("OPT", "OPTForCausalLM", {**_DECODER, "ffn_dim": 128, "word_embed_proj_dim": 64}),
    _text("BLOOM", "BloomForCausalLM", _DECODER),
    _text("Falcon", "FalconForCausalLM", _DECODER),
    _text("Mixtral", "MixtralForCausalLM", {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}),
    _text(
        "Qwen2-MoE",
        "Qwen2MoeForCausalLM",
        {
            **_GROUPED,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 64,
        },
    ),
    _text("T5", "T5ForConditionalGeneration", _T5, translation),
    _text("BART", "BartForConditionalGeneration", _BART, translation),
    _text("BERT", "BertForMaskedLM", _SMALL),
    _text("RoBERTa", "RobertaForMaskedLM", _SMALL),
    _text("DeBERTa", "DebertaV2ForMaskedLM", {**_SMALL, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
    _text("ALBERT", "AlbertForMaskedLM", {**_SMALL, "embedding_size": 32}),
    _text("ELECTRA", "ElectraForTokenClassification", {**_SMALL, "embedding_size": 32}),
    _text("DistilBERT", "DistilBertForSequenceClassification", {**_SMALL, "dim": 64, "hidden_dim": 128}),
    _text("XLNet", "XLNetLMHeadModel", _XLNET),
    _text("Longformer", "LongformerForMaskedLM", {**_SMALL, "attention_window": 8}, large=_LONGER_BATCH),
    _text("FNet", "FNetForMaskedLM", _SMALL, plain_tokens),
    _text("ModernBERT", "ModernBertForMaskedLM", {**_SMALL, "local_attention": 8}),
    _text("Mamba", "MambaForCausalLM", _MAMBA, plain_tokens, large=_LONGER_BATCH),
)
"""Language models."""
