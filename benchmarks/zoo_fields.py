"""Networks of the zoo drawn by lot from ten fields, nearly all of families of no earlier list.

Detection, segmentation and depth, speech, diffusion, video, convolutions with attention, recurrent
language models, experts, translation, and older convolutional networks: two of each, drawn with
seed 1818 from lists of usual ones, without those that cannot be built or exported, or have more
than 60 million weights. `--full` keeps their widths and has fewer layers.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import torch
from torch import nn

from benchmarks.zoo_models import (
    _CLIP,
    _LLAMA,
    _SMALL,
    _TEXT,
    _VISION,
    _WAVES,
    Entry,
    Extents,
    Inputs,
    _both,
    _pair,
    _pixels,
    _sound,
    _timm,
    _torchvision,
    _transformer,
)


def _wave_pair(module: nn.Module, at: Extents) -> dict[str, torch.Tensor]:
    return {**_sound(module, at), "decoder_input_ids": torch.randint(3, 97, (1, 5))}


def _prompted(module: nn.Module, at: Extents) -> dict[str, torch.Tensor]:
    names = ("pixel_values", "prompt_pixel_values", "prompt_masks")
    return {name: torch.randn(1, 3, at.side, at.side) for name in names}


def _frames(module: nn.Module, at: Extents) -> dict[str, torch.Tensor]:
    config: Any = module.config
    shape = (1, config.frames_per_clip, 3, config.crop_size, config.crop_size)
    return {"pixel_values_videos": torch.randn(shape)}


def _noisy(module: nn.Module, at: Extents) -> dict[str, torch.Tensor]:
    config: Any = module.config
    side = config["sample_size"]
    return {
        "hidden_states": torch.randn(1, config["in_channels"], side, side),
        "timestep": torch.tensor([17]),
        "class_labels": torch.tensor([3]),
    }


def _sample(module: nn.Module, at: Extents) -> dict[str, torch.Tensor]:
    return {"sample": torch.randn(1, 3, at.side, at.side)}


class _Tuples(nn.Module):
    """A network of Diffusers whose results are tuples: PyTorch does not know its classes."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.config = module.config

    def forward(self, *inputs: torch.Tensor, **named: torch.Tensor) -> Any:
        return self.module(*inputs, **named, return_dict=False)


def _diffusers(
    name: str, inputs: Inputs, full: Mapping[str, Any], **small: Any
) -> Entry:
    """A class of Diffusers. small, full: its keywords in either size."""

    def make(given: Mapping[str, Any]) -> nn.Module:
        return _Tuples(getattr(importlib.import_module("diffusers"), name)(**given))

    return Entry(
        f"diffusers/{name}", "diffusers", make, inputs, small, full, full_side=128
    )


_BLOCKS: Final[Mapping[str, Any]] = {
    "down_block_types": ("DownEncoderBlock2D",) * 3,
    "up_block_types": ("UpDecoderBlock2D",) * 3,
}
_DETR: Final[Mapping[str, Any]] = {
    "encoder_layers": 2,
    "decoder_layers": 2,
    "num_queries": 100,
}
_OWL: Final[Mapping[str, Any]] = {
    **_CLIP,
    "vision_config": {"num_hidden_layers": 2, "image_size": 224},
}
_JAMBA: Final[Mapping[str, Any]] = {
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "num_experts": 4,
    "use_mamba_kernels": False,
}

FIELDS: Final[tuple[Entry, ...]] = (
    _transformer("ConditionalDetrModel", _pixels, without=tuple(_SMALL), wide=_DETR,
                 d_model=64, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
                 decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128,
                 num_queries=10),
    _transformer("OwlViTModel", _both, wide=_OWL, text_config={**_TEXT},
                 vision_config={**_VISION}),
    replace(_transformer("DepthAnythingForDepthEstimation", _pixels, without=tuple(_SMALL),
                         side=56, fusion_hidden_size=32), full_side=224),
    _transformer("SegGptModel", _prompted, without=("num_hidden_layers",),
                 wide={"num_hidden_layers": 4, "image_size": [448, 224], "merge_index": 0,
                       "intermediate_hidden_state_indices": [0, 1, 2, 3]},
                 num_hidden_layers=4, image_size=[128, 64], pretrain_image_size=64, mlp_dim=128,
                 merge_index=0, intermediate_hidden_state_indices=[0, 1, 2, 3]),
    _transformer("MoonshineModel", _wave_pair, encoder_num_hidden_layers=2,
                 decoder_num_hidden_layers=2, encoder_num_attention_heads=4,
                 decoder_num_attention_heads=4, encoder_num_key_value_heads=4,
                 decoder_num_key_value_heads=4, decoder_start_token_id=1),
    _transformer("Data2VecAudioModel", _sound, **{**_WAVES, "num_conv_pos_embeddings": 2}),
    _diffusers("DiTTransformer2DModel", _noisy,
               {"num_layers": 4, "sample_size": 32, "num_attention_heads": 6,
                "attention_head_dim": 64},
               num_layers=2, sample_size=8, num_attention_heads=4, attention_head_dim=16),
    _diffusers("AutoencoderKL", _sample,
               {**_BLOCKS, "block_out_channels": (128, 256, 512), "layers_per_block": 2},
               **_BLOCKS, block_out_channels=(32, 32, 64)),
    _torchvision("video.mvit_v1_b", 224, (1, 3, 16)),
    _transformer("VJEPA2Model", _frames, without=tuple(_SMALL),
                 wide={"frames_per_clip": 4, "crop_size": 224, "num_hidden_layers": 2,
                       "pred_num_hidden_layers": 2, "hidden_size": 384, "num_attention_heads": 6},
                 hidden_size=64, num_attention_heads=4, num_hidden_layers=2, crop_size=32,
                 frames_per_clip=4, pred_hidden_size=48, pred_num_attention_heads=4,
                 pred_num_hidden_layers=2),
    _transformer("LevitModel", _pixels, side=224, without=tuple(_SMALL)),
    _timm("maxxvitv2_nano_rw_256", 64, 256, img_size=64),
    _transformer("RecurrentGemmaForCausalLM", wide={**_LLAMA, "lru_width": 1024,
                                                   "num_hidden_layers": 3, "head_dim": 64},
                 num_hidden_layers=3, lru_width=64, head_dim=16, num_key_value_heads=2,
                 attention_window_size=8),
    _transformer("JambaForCausalLM", wide={**_LLAMA, **_JAMBA}, num_key_value_heads=2,
                 mamba_d_state=8, mamba_dt_rank=8, **_JAMBA),
    _transformer("PLBartModel", _pair, d_model=64, encoder_layers=2, decoder_layers=2,
                 encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=128,
                 decoder_ffn_dim=128),
    _torchvision("squeezenet1_0"),
    _timm("xception65", 64, 299),
)  # fmt: skip
