"""Networks of the zoo of which no earlier list has the module (timm) or the family (Transformers).

They look for wrong results in small configurations; of `--full` ones, those of up to 60 million
weights have been timed. Some language models are far larger: nothing but the default is given.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import nn

from benchmarks.zoo_models import (
    _EXPERTS,
    _LLAMA,
    _SMALL,
    _WAVES,
    Entry,
    Extents,
    _bare,
    _pair,
    _pixels,
    _sound,
    _timm,
    _transformer,
)


def _wave(module: nn.Module, at: Extents) -> dict[str, torch.Tensor]:
    return {"input_values": torch.randn(1, 1, 1600)}


def _vectors(module: nn.Module, at: Extents) -> dict[str, torch.Tensor]:
    config: Any = module.config
    return {"inputs": torch.randn(1, at.length, config.d_model)}


def _history(module: nn.Module, at: Extents) -> dict[str, torch.Tensor]:
    config: Any = module.config
    past, future = config.context_length + 3, config.prediction_length
    return {
        "past_values": torch.randn(at.batch, past),
        "past_time_features": torch.randn(at.batch, past, 2),
        "past_observed_mask": torch.ones(at.batch, past),
        "future_values": torch.randn(at.batch, future),
        "future_time_features": torch.randn(at.batch, future, 2),
    }


# No earlier list has the module (timm) or the family (Transformers) of any of these.
OTHERS: Final[tuple[Entry, ...]] = (
    _timm("csatv2", 64, 512),
    _timm("efficientvim_m1"),
    _timm("fasternet_t0"),
    _timm("hardcorenas_a"),
    _timm("hgnetv2_b0"),
    _timm("iformer_m"),
    _timm("lcnetv2_small"),
    _timm("mambaout_femto"),
    _timm("naflexvit_base_patch16_gap", img_size=64, depth=2),
    _timm("nextvit_small", depths=(1, 1, 2, 1)),
    _timm("qwen3_vit_88m", img_size=64, depth=2),
    _timm("rdnet_tiny"),
    _timm("resnetv2_18"),
    _timm("samvit_base_patch16", img_size=64, depth=3),
    _timm("starnet_s1"),
    _timm("swinv2_cr_tiny_224", img_size=64, depths=(2, 2), num_heads=(3, 6), window_size=4),
    _timm("vit_relpos_base_patch16_224", img_size=64, depth=2),
    _timm("tnt_s_patch16_224", img_size=64, depth=2),
    _timm("vitamin_small_224", img_size=64),
    _timm("xception41", 64, 299),
    _transformer("DebertaModel", relative_attention=True, pos_att_type=["p2c", "c2p"]),
    _transformer("CanineModel", num_hash_buckets=64, local_transformer_stride=8,
                 upsampling_kernel_size=4, downsampling_rate=4),
    _transformer("CTRLModel", n_embd=64, n_layer=2, n_head=4, dff=128, n_positions=64),
    _transformer("CodeGenForCausalLM", n_embd=64, n_layer=2, n_head=4, rotary_dim=8,
                 n_positions=64, n_ctx=64),
    _transformer("Cohere2ForCausalLM", wide=_LLAMA, num_key_value_heads=2, sliding_window=8),
    _transformer("DeepseekV3ForCausalLM", wide=_LLAMA, num_key_value_heads=4, n_routed_experts=4,
                 n_group=2, topk_group=1, num_experts_per_tok=2, moe_intermediate_size=64,
                 q_lora_rank=32, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8,
                 v_head_dim=16, first_k_dense_replace=1),
    _transformer("DogeForCausalLM", num_key_value_heads=2),
    _transformer("Gemma3ForCausalLM", config="Gemma3TextConfig", num_key_value_heads=2,
                 head_dim=16, sliding_window=8),
    _transformer("GptOssForCausalLM", num_key_value_heads=2, head_dim=16, sliding_window=8,
                 num_local_experts=4, num_experts_per_tok=2),
    _transformer("GraniteMoeForCausalLM", num_key_value_heads=2, num_local_experts=4,
                 num_experts_per_tok=2),
    _transformer("JetMoeForCausalLM", num_key_value_heads=2, kv_channels=16, num_local_experts=4),
    _transformer("Lfm2ForCausalLM", num_key_value_heads=2,
                 layer_types=["conv", "full_attention"]),
    _transformer("Mamba2ForCausalLM", _bare, num_hidden_layers=1, num_heads=8, head_dim=16,
                 state_size=8, n_groups=2, chunk_size=8),
    _transformer("MptForCausalLM", d_model=64, n_heads=4, n_layers=2, max_seq_len=64),
    _transformer("NystromformerModel", segment_means_seq_len=12, num_landmarks=12),
    _transformer("Qwen3NextForCausalLM", num_key_value_heads=2, head_dim=16, **_EXPERTS,
                 linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=8,
                 linear_value_head_dim=8, layer_types=["linear_attention", "full_attention"]),
    _transformer("RwkvForCausalLM", _bare, attention_hidden_size=64, context_length=64),
    _transformer("LongT5Model", _pair, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4,
                 local_radius=4, decoder_start_token_id=0),
    _transformer("ProphetNetModel", _pair, without=("num_hidden_layers",),
                 num_encoder_layers=2, num_decoder_layers=2,
                 num_encoder_attention_heads=4, num_decoder_attention_heads=4,
                 encoder_ffn_dim=128, decoder_ffn_dim=128, decoder_start_token_id=1),
    _transformer("SEWModel", _sound, **_WAVES, squeeze_factor=2),
    _transformer("EncodecModel", _wave, without=tuple(_SMALL), hidden_size=32,
                 num_filters=8, codebook_size=64, codebook_dim=32, num_lstm_layers=1),
    _transformer("ConvNextV2Model", _pixels, without=tuple(_SMALL), hidden_sizes=[16, 32, 32, 64],
                 depths=[1, 1, 1, 1]),
    _transformer("Dinov2WithRegistersModel", _pixels, image_size=64),
    _transformer("PerceiverModel", _vectors, without=tuple(_SMALL), num_latents=16, d_latents=64,
                 d_model=32, num_blocks=1, num_self_attends_per_block=2,
                 num_self_attention_heads=4, num_cross_attention_heads=4),
    _transformer("TimeSeriesTransformerModel", _history, without=tuple(_SMALL),
                 context_length=24, prediction_length=8, lags_sequence=[1, 2, 3], d_model=32,
                 encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
                 decoder_attention_heads=2, num_time_features=2),
)  # fmt: skip
