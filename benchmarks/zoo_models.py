"""About a hundred networks of timm, Transformers and torchvision, from random configurations.

Each is a row: what makes it, and the shapes of its inputs. Nothing is downloaded: weights are
drawn from a fixed seed, so that activations neither vanish nor explode. Networks keep their
structure and lose repetition: fewer blocks, small pictures, short sequences; `--full` of the
benchmark builds them as their authors have them, but language models with two layers and a small
vocabulary.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import nn

SEED: Final = 7
_VOCABULARY: Final = 97  # of the small language models


@dataclass(frozen=True)
class Extents:
    """Extents of the inputs: the side of images, the number of sequences, their length."""

    side: int
    batch: int = 2
    length: int = 12


Inputs = Callable[[nn.Module, Extents], dict[str, torch.Tensor]]


@dataclass(frozen=True)
class Entry:
    """One network. small, full: the arguments of its maker in either size.

    side: extent of its images; `full_side`: the one used by its authors.
    """

    name: str
    library: str
    make: Callable[[Mapping[str, Any]], nn.Module]
    inputs: Inputs
    small: Mapping[str, Any] = field(default_factory=dict)
    full: Mapping[str, Any] = field(default_factory=dict)
    side: int = 64
    full_side: int = 224

    def extents(self, full: bool) -> Extents:
        """The extents of the inputs in either size: one sequence of usual length in the full
        one."""
        return Extents(self.full_side, 1, 96) if full else Extents(self.side)


def build(entry: Entry, full: bool) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """The network with drawn weights, for inference, and its inputs by name."""
    torch.manual_seed(SEED)
    module = entry.make(entry.full if full else entry.small).eval()
    draw(module)
    torch.manual_seed(SEED + 1)
    inputs = entry.inputs(module, entry.extents(full))
    if entry.library != "transformers":
        settle(module, inputs)
    return module, inputs


def settle(module: nn.Module, inputs: Mapping[str, torch.Tensor]) -> None:
    """Set batch normalizations' statistics near those of their inputs, so that branches do not blow
    up."""

    def near(norm: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
        (x,) = given
        norm.running_var.mul_(x.var())
        norm.running_mean.mul_(x.std()).add_(x.mean())

    norms = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d
    found = [m for m in module.modules() if isinstance(m, norms)]
    hooks = [m.register_forward_pre_hook(near) for m in found]
    with torch.no_grad():
        module(*inputs.values())
    for hook in hooks:
        hook.remove()


def draw(module: nn.Module) -> None:
    """Draw weights that preserve the scale of activations, so that logits differ."""
    with torch.no_grad():
        for name, p in module.named_parameters():
            last = name.rpartition(".")[2]
            if p.dim() > 1:
                nn.init.normal_(p, std=(p[0].numel() or 1) ** -0.5)
            elif last in ("bias", "beta") or last.endswith("_bias"):
                nn.init.normal_(p, std=0.1)
            elif last not in _KEPT:
                nn.init.uniform_(p, 0.5, 1.5)
        for name, b in module.named_buffers():
            if name.endswith("running_mean"):
                nn.init.normal_(b, std=0.1)
            elif name.endswith("running_var"):
                nn.init.uniform_(b, 0.5, 1.5)


# Vectors whose values are not scales: rates of decay, temperatures.
_KEPT: Final = frozenset({"A_log", "D", "logit_scale", "time_decay", "time_first"})


def _picture(*shape: int) -> Inputs:
    return lambda module, at: {"x": torch.randn(*shape, at.side, at.side)}


def _timm(name: str, side: int = 64, full_side: int = 224, **small: Any) -> Entry:
    def make(given: Mapping[str, Any]) -> nn.Module:
        found: nn.Module = importlib.import_module("timm").create_model(
            name, pretrained=False, num_classes=10, **given
        )
        return found

    return Entry(
        f"timm/{name}", "timm", make, _picture(1, 3), small, {}, side, full_side
    )


def _torchvision(
    name: str,
    side: int = 64,
    shape: tuple[int, ...] = (1, 3),
    full_side: int = 224,
    **small: Any,
) -> Entry:
    def make(given: Mapping[str, Any]) -> nn.Module:
        group, _, function = name.rpartition(".")
        module = importlib.import_module(f"torchvision.models.{group}".rstrip("."))
        found: nn.Module = getattr(module, function)(weights=None, **given)
        return found

    return Entry(
        f"torchvision/{name}",
        "torchvision",
        make,
        _picture(*shape),
        small,
        {k: v for k, v in small.items() if k == "weights_backbone"},
        side,
        full_side,
    )


# What most configurations of Transformers call their extents.
_SMALL: Final[Mapping[str, Any]] = {
    "vocab_size": _VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 64,
    "use_cache": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_EXPERTS: Final[Mapping[str, Any]] = {
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
}


def _ids(at: Extents, length: int) -> torch.Tensor:
    return torch.randint(3, _VOCABULARY, (at.batch, length))


def _tokens(module: nn.Module, at: Extents) -> dict[str, torch.Tensor]:
    ids = _ids(at, at.length)
    mask = torch.ones_like(ids)
    mask[1:, at.length - 3 :] = 0
    return {"input_ids": ids, "attention_mask": mask}


def _bare(module: nn.Module, at: Extents) -> dict[str, torch.Tensor]:
    return {"input_ids": _ids(at, at.length)}


def _pair(module: nn.Module, at: Extents) -> dict[str, torch.Tensor]:
    later = _ids(at, max(5, at.length // 3))
    return {**_tokens(module, at), "decoder_input_ids": later}


def _pixels(module: nn.Module, at: Extents) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(1, 3, at.side, at.side)}


def _both(module: nn.Module, at: Extents) -> dict[str, torch.Tensor]:
    return {**_tokens(module, at), **_pixels(module, at)}


def _sound(module: nn.Module, at: Extents) -> dict[str, torch.Tensor]:
    return {"input_values": torch.randn(1, 1600 if at.length < 64 else 16000)}


def _mel(module: nn.Module, at: Extents) -> dict[str, torch.Tensor]:
    frames = 2 * getattr(module.config, "max_source_positions")  # noqa: B009
    features = torch.randn(1, module.config.num_mel_bins, frames)
    later = torch.randint(3, _VOCABULARY, (1, 5))
    return {"input_features": features, "decoder_input_ids": later}


# Names of depths and vocabularies: the full size keeps its widths, and these small.
_DEPTHS: Final[Mapping[str, Any]] = {
    "num_hidden_layers": 2,
    "n_layer": 2,
    "n_layers": 2,
    "num_layers": 2,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "vocab_size": 4096,
    "max_source_positions": 500,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "use_cache": False,
}


def _shallow(small: Mapping[str, Any]) -> dict[str, Any]:
    """What the full size takes over from a small one: how deep, not how wide."""
    return {name: _DEPTHS[name] for name in small if name in _DEPTHS}


def _transformer(
    name: str,
    inputs: Inputs = _tokens,
    side: int = 64,
    config: str = "",
    without: tuple[str, ...] = (),
    wide: Mapping[str, Any] | None = None,
    **small: Any,
) -> Entry:
    """A class of Transformers with a configuration made small by the names that it has."""

    def make(given: Mapping[str, Any]) -> nn.Module:
        library = importlib.import_module("transformers")
        made = getattr(library, config or _configuration(name))(**given)
        found: nn.Module = getattr(library, name)(made)
        return found

    given = {k: v for k, v in _SMALL.items() if k not in without} | small
    full = _shallow(given) | dict(wide or {})
    library = "transformers"
    return Entry(f"{library}/{name}", library, make, inputs, given, full, side)


def _configuration(name: str) -> str:
    for ending in ("ForCausalLM", "LMHeadModel", "EncoderModel", "ForObjectDetection",
                   "ForSemanticSegmentation", "ForDepthEstimation", "Model"):  # fmt: skip
        if name.endswith(ending):
            return name.removesuffix(ending) + "Config"
    return f"{name}Config"


_TOWER: Final[Mapping[str, Any]] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
}
_VISION: Final[Mapping[str, Any]] = {**_TOWER, "image_size": 64, "patch_size": 16}
_TEXT: Final[Mapping[str, Any]] = {
    **_TOWER,
    "vocab_size": _VOCABULARY,
    "max_position_embeddings": 64,
    "eos_token_id": 2,
    "bos_token_id": 1,
    "pad_token_id": 0,
}

# Widths of a small language model; the published ones would make billions of weights.
_LLAMA: Final[Mapping[str, Any]] = {
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "intermediate_size": 2816,
}
_CLIP_TEXT: Final[Mapping[str, Any]] = {"num_hidden_layers": 2, "vocab_size": 4096} | {
    name: _TEXT[name] for name in ("eos_token_id", "bos_token_id", "pad_token_id")
}
_CLIP: Final[Mapping[str, Any]] = {
    "text_config": {**_CLIP_TEXT, "max_position_embeddings": 96},
    "vision_config": {"num_hidden_layers": 2},
}
_RESNET: Final[Mapping[str, Any]] = {
    "backbone": None,
    "use_timm_backbone": False,
    "use_pretrained_backbone": False,
}

ENTRIES: Final[tuple[Entry, ...]] = (
    _timm("resnet18"),
    _timm("resnet26t"),
    _timm("legacy_seresnet18"),
    _timm("res2net50_26w_4s", block_args={"scale": 4}),
    _timm("resnest14d"),
    _timm("skresnet18"),
    _timm("densenet121", block_config=(2, 2, 2, 2)),
    _timm("dpn48b"),
    _timm("dla34"),
    _timm("hrnet_w18_small"),
    _timm("ese_vovnet19b_slim"),
    _timm("cs3darknet_s"),
    _timm("efficientnet_b0"),
    _timm("tf_efficientnetv2_b0"),
    _timm("mobilenetv3_small_050"),
    _timm("mobilenetv4_conv_small_050"),
    _timm("ghostnetv2_100"),
    _timm("rexnet_100"),
    _timm("mixnet_s"),
    _timm("regnety_002"),
    _timm("repvgg_a0"),
    _timm("mobileone_s0"),
    _timm("fastvit_t8"),
    _timm("inception_v3", 96, 299),
    _timm("selecsls42"),
    _timm("nf_resnet26"),
    _timm("dm_nfnet_f0"),
    _timm("convnext_atto"),
    _timm("convnextv2_atto"),
    _timm("edgenext_xx_small"),
    _timm("convmixer_768_32"),
    _timm("poolformer_s12"),
    _timm("caformer_s18"),
    _timm("vit_tiny_patch16_224", img_size=64, depth=2),
    _timm("beit_base_patch16_224", img_size=64, depth=2, embed_dim=96, num_heads=4),
    _timm("eva02_tiny_patch14_224", 56, img_size=56, depth=2),
    _timm("swin_tiny_patch4_window7_224", 56, img_size=56, depths=(2, 2), num_heads=(3, 6)),
    _timm("swinv2_tiny_window8_256", 64, 256, img_size=64, depths=(2, 2), num_heads=(3, 6)),
    _timm("cait_xxs24_224", img_size=64, depth=2),
    _timm("xcit_nano_12_p16_224", img_size=64, depth=2),
    _timm("coat_lite_tiny", img_size=64),
    _timm("coatnet_pico_rw_224", img_size=64),
    _timm("maxvit_rmlp_pico_rw_256", 64, 256, img_size=64),
    _timm("mobilevit_xxs"),
    _timm("mobilevitv2_050"),
    _timm("efficientformer_l1", 224),
    _timm("efficientvit_b0"),
    _timm("efficientvit_m0", 224),
    _timm("levit_128s", 224),
    _timm("pit_ti_224", img_size=64),
    _timm("pvt_v2_b0"),
    _timm("twins_svt_small", img_size=64),
    _timm("visformer_tiny", img_size=64),
    _timm("crossvit_tiny_240", 240, 240),
    _timm("mixer_s32_224", img_size=64),
    _timm("gmlp_ti16_224", img_size=64),
    _timm("sequencer2d_s", layers=(1, 1, 1, 1)),
    _timm("volo_d1_224", img_size=64),
    _timm("nest_tiny", img_size=64),
    _timm("gcvit_xxtiny", img_size=64),
    _timm("davit_tiny", depths=(1, 1, 1, 1)),
    _timm("focalnet_tiny_srf"),
    _timm("hiera_tiny_224", img_size=64),
    _timm("tiny_vit_5m_224"),
    _timm("mvitv2_tiny", img_size=64),
    _timm("repvit_m0_9"),
    _timm("convnext_tiny", depths=(1, 1, 1, 1)),
    _timm("deit_tiny_patch16_224", img_size=64, depth=2),
    _timm("inception_next_atto"),
    _timm("ghostnet_100"),
    _timm("regnetx_004"),
    _timm("mixer_b16_224", img_size=64),
    _timm("coat_tiny", img_size=64),
    _timm("lambda_resnet26t", 256, 256),
    _timm("halonet26t", 256, 256),
    _timm("botnet26t_256", 256, 256),
    _timm("convit_tiny", img_size=64, depth=2),
    _torchvision("alexnet", 80),
    _torchvision("shufflenet_v2_x0_5"),
    _torchvision("googlenet", init_weights=False, aux_logits=False),
    _torchvision("segmentation.deeplabv3_mobilenet_v3_large", weights_backbone=None),
    _torchvision("segmentation.deeplabv3_resnet50", weights_backbone=None),
    _torchvision("segmentation.lraspp_mobilenet_v3_large", weights_backbone=None),
    _torchvision("video.r3d_18", 48, (1, 3, 4), 112),
    _torchvision("video.mc3_18", 48, (1, 3, 4), 112),
    _torchvision("shufflenet_v2_x1_0"),
    _torchvision("video.r2plus1d_18", 48, (1, 3, 4), 112),
    _torchvision("video.s3d", 224, (1, 3, 16)),
    _torchvision("video.swin3d_t", 64, (1, 3, 4)),
    _transformer("BertModel"),
    _transformer("AlbertModel", embedding_size=32),
    _transformer("ElectraModel", embedding_size=32),
    _transformer("DistilBertModel", dim=64, n_layers=2, n_heads=4, hidden_dim=128),
    _transformer("DebertaV2Model", relative_attention=True, pos_att_type=["p2c", "c2p"],
                 position_buckets=8, norm_rel_ebd="layer_norm", share_att_key=True),
    _transformer("MPNetModel"),
    _transformer("FNetModel", _bare),
    _transformer("FunnelModel", without=("num_hidden_layers",), d_model=64, n_head=4, d_head=16,
                 d_inner=128, block_sizes=[1, 1, 1]),
    _transformer("XLNetModel", without=("max_position_embeddings",), d_model=64, n_layer=2,
                 n_head=4, d_inner=128),
    _transformer("LongformerModel", attention_window=8),
    _transformer("BigBirdModel", attention_type="original_full"),
    _transformer("ConvBertModel", embedding_size=64),
    _transformer("ModernBertModel", local_attention=8),
    _transformer("EsmModel", mask_token_id=3),
    _transformer("GPT2LMHeadModel", n_embd=64, n_layer=2, n_head=4, n_positions=64),
    _transformer("GPTNeoForCausalLM", num_layers=2, num_heads=4, window_size=8,
                 attention_types=[[["global", "local"], 1]]),
    _transformer("GPTNeoXForCausalLM", wide={**_LLAMA}),
    _transformer("OPTForCausalLM", ffn_dim=128, word_embed_proj_dim=64),
    _transformer("BloomForCausalLM", n_layer=2, n_head=4),
    _transformer("LlamaForCausalLM", wide=_LLAMA, num_key_value_heads=2),
    _transformer("MistralForCausalLM", wide=_LLAMA, num_key_value_heads=2, sliding_window=8),
    _transformer("MixtralForCausalLM", wide=_LLAMA, num_key_value_heads=2, **_EXPERTS),
    _transformer("Qwen2ForCausalLM", wide=_LLAMA, num_key_value_heads=2),
    _transformer("Qwen2MoeForCausalLM", wide=_LLAMA, num_key_value_heads=2, **_EXPERTS),
    _transformer("Qwen3ForCausalLM", wide=_LLAMA, num_key_value_heads=2, head_dim=16),
    _transformer("PhiForCausalLM"),
    _transformer("Phi3ForCausalLM", wide=_LLAMA, num_key_value_heads=2),
    _transformer("PhimoeForCausalLM", wide=_LLAMA, num_key_value_heads=2, **_EXPERTS),
    _transformer("Gemma2ForCausalLM", wide=_LLAMA, num_key_value_heads=2,
                 head_dim=16, sliding_window=8),
    _transformer("FalconForCausalLM"),
    _transformer("OlmoeForCausalLM", wide=_LLAMA, num_key_value_heads=2, **_EXPERTS),
    _transformer("CohereForCausalLM", wide=_LLAMA, num_key_value_heads=2),
    _transformer("MambaForCausalLM", _bare, state_size=8, num_hidden_layers=1),
    _transformer("T5EncoderModel", config="T5Config", d_model=64, d_kv=16, d_ff=128,
                 num_layers=2, num_heads=4),
    _transformer("T5Model", _pair, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4),
    _transformer("BartModel", _pair, d_model=64, encoder_layers=2, decoder_layers=2,
                 encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=128,
                 decoder_ffn_dim=128),
    _transformer("WhisperModel", _mel, d_model=64, encoder_layers=2, decoder_layers=2,
                 encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=128,
                 decoder_ffn_dim=128, max_source_positions=32, max_target_positions=32,
                 decoder_start_token_id=1),
    _transformer("Wav2Vec2Model", _sound, conv_dim=(32, 32, 32), conv_stride=(5, 2, 2),
                 conv_kernel=(10, 3, 3), num_feat_extract_layers=3,
                 num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4),
    _transformer("CLIPModel", _both, wide=_CLIP, text_config=_TEXT, vision_config=_VISION),
    _transformer("SiglipModel", _both, wide=_CLIP, text_config=_TEXT, vision_config=_VISION),
    _transformer("ViTModel", _pixels, image_size=64),
    _transformer("YolosForObjectDetection", _pixels, image_size=[64, 64], num_detection_tokens=8),
    _transformer("SegformerForSemanticSegmentation", _pixels, without=tuple(_SMALL),
                 depths=[1, 1, 1, 1], hidden_sizes=[16, 32, 64, 64], decoder_hidden_size=64),
    _transformer("DPTForDepthEstimation", _pixels, image_size=64, num_hidden_layers=4,
                 backbone_out_indices=[0, 1, 2, 3], neck_hidden_sizes=[16, 32, 32, 32],
                 fusion_hidden_size=32),
)  # fmt: skip

_WAVES: Final[Mapping[str, Any]] = {
    "conv_dim": (32, 32, 32),
    "conv_stride": (5, 2, 2),
    "conv_kernel": (10, 3, 3),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}

# Networks drawn by lot. timm: of its modules, in an order drawn with seed 18, the first name of
# each that is not above and has at most 60 million weights and 5 billion multiply-adds in its
# default size. Transformers and torchvision: nine and three drawn from lists of usual ones, and one
# segmentation network by hand, as none was drawn.
DRAWN: Final[tuple[Entry, ...]] = (
    _timm("darknet17", 64, 256),
    _timm("efficientformer_l3", 224),
    _timm("tf_mobilenetv3_small_075"),
    _timm("repghostnet_058"),
    _timm("densenetblur121d"),
    _timm("fastvit_sa24", 64, 256),
    _timm("legacy_xception"),
    _timm("efficientvit_b1"),
    _timm("lamhalobotnet50ts_256", 256, 256),
    _timm("rexnetr_200"),
    _timm("poolformerv2_s12"),
    _timm("coat_lite_mini", img_size=64),
    _timm("visformer_small", img_size=64),
    _timm("mobileone_s1"),
    _timm("vit_tiny_r_s16_p8_384", 64, 384, img_size=64),
    _timm("shvit_s4", 64, 256),
    _timm("inception_next_tiny"),
    _timm("resnetblur18"),
    _timm("maxvit_pico_rw_256", 64, 256, img_size=64),
    _timm("ese_vovnet19b_slim_dw"),
    _timm("levit_conv_128s", 224),
    _timm("cpubone_nano"),
    _transformer("SqueezeBertModel", embedding_size=64),
    _transformer("MobileBertModel", embedding_size=32, intra_bottleneck_size=32,
                 true_hidden_size=32),
    _transformer("Starcoder2ForCausalLM", wide=_LLAMA, num_key_value_heads=2),
    _transformer("Olmo2ForCausalLM", wide=_LLAMA, num_key_value_heads=2),
    _transformer("WavLMModel", _sound, **_WAVES),
    _transformer("Wav2Vec2ConformerModel", _sound, **_WAVES),
    _transformer("ViTMSNModel", _pixels, image_size=64),
    replace(_transformer("Swin2SRModel", _pixels, without=tuple(_SMALL), image_size=64,
                         embed_dim=60, depths=[2, 2], num_heads=[6, 6],
                         wide={"image_size": 64, "depths": [2, 2], "num_heads": [6, 6]}),
            full_side=64),
    _transformer("M2M100Model", _pair, d_model=64, encoder_layers=2, decoder_layers=2,
                 encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=128,
                 decoder_ffn_dim=128),
    _torchvision("mnasnet1_0"),
    _torchvision("squeezenet1_1"),
    _torchvision("regnet_y_800mf"),
    _torchvision("segmentation.fcn_resnet50", 64, full_side=128, weights_backbone=None),
)  # fmt: skip


def _series(module: nn.Module, at: Extents) -> dict[str, torch.Tensor]:
    config: Any = module.config
    return {"past_values": torch.randn(at.batch, config.context_length, 7)}


def _spectrogram(module: nn.Module, at: Extents) -> dict[str, torch.Tensor]:
    config: Any = module.config
    return {"spectrogram": torch.randn(1, at.length, config.model_in_dim)}


def _log_mel(module: nn.Module, at: Extents) -> dict[str, torch.Tensor]:
    config: Any = module.config
    return {"input_values": torch.randn(1, config.max_length, config.num_mel_bins)}


# As above with seed 39 and without the modules that were drawn, at most 4 billion multiply-adds.
# Transformers: a text encoder, two on sound, a vocoder, a time series, none of them above.
AGAIN: Final[tuple[Entry, ...]] = (
    _timm("swiftformer_s"),
    _timm("efficientformerv2_l", 224),
    _timm("pvt_v2_b1"),
    _timm("lowformer_e2"),
    _timm("tiny_vit_11m_224"),
    _timm("cspnext_s"),
    _timm("crossvit_9_dagger_240", 240, 240),
    _timm("mobilevitv2_100", 64, 256),
    _timm("edgenext_base", 64, 256),
    _timm("nf_regnet_b1", 64, 256),
    _timm("dla60_res2next"),
    _timm("repvit_m1_0"),
    _transformer("RoFormerModel", embedding_size=64),
    _transformer("HubertModel", _sound, **_WAVES),
    _transformer("ASTModel", _log_mel, wide={"max_length": 256}, max_length=64),
    _transformer("SpeechT5HifiGan", _spectrogram, without=tuple(_SMALL),
                 upsample_initial_channel=64),
    _transformer("PatchTSTModel", _series, without=tuple(_SMALL),
                 wide={"context_length": 512, "num_input_channels": 7}, num_hidden_layers=2,
                 d_model=64, context_length=64, num_input_channels=7),
)  # fmt: skip
