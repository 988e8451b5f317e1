"""The families of decoders, one row each, as variations of Llama.

A row holds the checkpoint's names of tensors, config.json's names of sizes, and how the
architecture differs. Shared code is in `graph`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from types import MappingProxyType
from typing import Any, Final

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import UnsupportedError
from tilewright.base.text import did_you_mean

Config = Mapping[str, Any]
Names = Mapping[str, str]

# Parts of a layer, by function. A family may lack some parts.
LLAMA_PARTS: Final[Names] = MappingProxyType(
    {
        "attention_norm": "input_layernorm",
        "query": "self_attn.q_proj",
        "key": "self_attn.k_proj",
        "value": "self_attn.v_proj",
        "output": "self_attn.o_proj",
        "mlp_norm": "post_attention_layernorm",
        "gate": "mlp.gate_proj",
        "up": "mlp.up_proj",
        "down": "mlp.down_proj",
    }
)
HEAD_NORMS: Final[Names] = MappingProxyType(
    {"query_norm": "self_attn.q_norm", "key_norm": "self_attn.k_norm"}
)
# With norms also after attention and network, before their results are added.
GEMMA_NORMS: Final[Names] = MappingProxyType(
    {
        "attention_post_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm",
        "mlp_post_norm": "post_feedforward_layernorm",
    }
)
ATTENTION: Final = ("query", "key", "value", "output")
NETWORK: Final = ("gate", "up", "down")
# Sizes by their usual names in configurations; several names are tried in order.
KEYS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "vocabulary": ("vocab_size",),
        "width": ("hidden_size",),
        "layers": ("num_hidden_layers",),
        "heads": ("num_attention_heads",),
        "groups": ("num_key_value_heads",),
        "size": ("head_dim",),
        "hidden": ("intermediate_size",),
        "positions": ("max_position_embeddings",),
        "epsilon": ("rms_norm_eps", "layer_norm_eps", "norm_epsilon"),
        "activation": ("hidden_activation", "hidden_act"),
    }
)
GPT2_KEYS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "vocabulary": ("vocab_size",),
        "width": ("n_embd",),
        "layers": ("n_layer",),
        "heads": ("n_head",),
        "hidden": ("n_inner",),
        "positions": ("n_positions",),
        "epsilon": ("layer_norm_epsilon",),
        "activation": ("activation_function",),
    }
)


def every_layer(config: Config, layer: int) -> bool:
    """Every layer has the window."""
    return True


def no_layer(config: Config, layer: int) -> bool:
    """There is no window, whatever the configuration says."""
    return False


def upper_layers(config: Config, layer: int) -> bool:
    """Qwen: from some layer on, and only if enabled."""
    first = int(config.get("max_window_layers", 28))
    return bool(config.get("use_sliding_window")) and layer >= first


def in_turns(config: Config, layer: int) -> bool:
    """Gemma: all layers except each n-th; for Gemma 2, n is 2."""
    every = config.get("sliding_window_pattern") or config.get(
        "_sliding_window_pattern"
    )
    return bool((layer + 1) % int(every or 2))


@dataclass(frozen=True)
class ModelFamily:
    """How an architecture differs.

    prefix: of all names except the head's. layer: prefix of a layer's names. last_norm, head,
    embedding, positions: stems of tensors; positions: "" for none. parts: stems by part of a layer.
    biases: the key of the configuration that says whether a part has one, "" for always.
    norm: "rms" or "layer"; norm_offset is added to the scales. transposed: matrices are [in, out].
    parallel: attention and network read the same input. windowed: whether a layer has the sliding
    window of the configuration. embedding_scaled: by the root of the width. ignored: suffixes of
    the names of tensors that are not weights. defaults: for settings that the configuration omits.
    """

    prefix: str = "model."
    embedding: str = "embed_tokens"
    positions: str = ""
    layer: str = "layers.{}."
    last_norm: str = "norm"
    head: str = "lm_head"
    parts: Names = field(default_factory=lambda: LLAMA_PARTS)
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: KEYS)
    biases: Mapping[str, str] = field(default_factory=dict)
    norm: str = "rms"
    norm_offset: float = 0.0
    transposed: bool = False
    parallel: bool = False
    rotary: bool = True
    windowed: Callable[[Config, int], bool] = no_layer
    embedding_scaled: bool = False
    ignored: tuple[str, ...] = ("rotary_emb.inv_freq",)
    defaults: Config = field(default_factory=dict)

    def with_parts(self, *more: Names, without: tuple[str, ...] = ()) -> Names:
        """The parts with some replaced or added."""
        found = dict(self.parts)
        for names in more:
            found |= names
        return {part: name for part, name in found.items() if part not in without}


def _biases(key: str, *parts: str) -> dict[str, str]:
    return dict.fromkeys(parts, key)


LLAMA = ModelFamily(
    biases=_biases("attention_bias", *ATTENTION) | _biases("mlp_bias", *NETWORK),
)
MISTRAL = ModelFamily(windowed=every_layer, defaults={"sliding_window": 4096})
QWEN2 = ModelFamily(
    biases=_biases("", "query", "key", "value"),
    windowed=upper_layers,
)
QWEN3 = ModelFamily(
    parts=LLAMA.with_parts(HEAD_NORMS),
    biases=_biases("attention_bias", *ATTENTION),
    windowed=upper_layers,
    defaults={"head_dim": 128},
)
GEMMA = ModelFamily(
    biases=_biases("attention_bias", *ATTENTION),
    norm_offset=1.0,
    embedding_scaled=True,
    # The first models say "gelu" but mean its approximation by tanh.
    defaults={"head_dim": 256, "hidden_activation": "gelu_pytorch_tanh"},
)
GEMMA2 = replace(
    GEMMA,
    parts=GEMMA.with_parts(GEMMA_NORMS),
    windowed=in_turns,
    defaults={
        **GEMMA.defaults,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
)
GEMMA3 = replace(
    GEMMA2,
    parts=GEMMA2.with_parts(HEAD_NORMS),
    defaults={
        **GEMMA.defaults,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "max_position_embeddings": 131_072,
    },
)
PHI = ModelFamily(
    last_norm="final_layernorm",
    parts={
        "attention_norm": "input_layernorm",
        "query": "self_attn.q_proj",
        "key": "self_attn.k_proj",
        "value": "self_attn.v_proj",
        "output": "self_attn.dense",
        "up": "mlp.fc1",
        "down": "mlp.fc2",
    },
    biases=_biases("", *ATTENTION, "up", "down", "head"),
    norm="layer",
    parallel=True,
    defaults={"partial_rotary_factor": 0.5},
)
PHI3 = ModelFamily(
    parts=LLAMA.with_parts(
        {"query_key_value": "self_attn.qkv_proj", "gate_up": "mlp.gate_up_proj"},
        without=("query", "key", "value", "gate", "up"),
    ),
    windowed=every_layer,
)
STARCODER2 = ModelFamily(
    parts=LLAMA.with_parts(
        {"up": "mlp.c_fc", "down": "mlp.c_proj"},
        without=("gate",),
    ),
    biases=_biases("use_bias", *ATTENTION, "up", "down"),
    norm="layer",
    windowed=every_layer,
    defaults={"use_bias": True},
)
STABLELM = ModelFamily(
    biases=_biases("use_qkv_bias", "query", "key", "value"),
    norm="layer",
    defaults={"partial_rotary_factor": 0.25},
)
GPT2 = ModelFamily(
    prefix="transformer.",
    embedding="wte",
    positions="wpe",
    layer="h.{}.",
    last_norm="ln_f",
    parts={
        "attention_norm": "ln_1",
        "query_key_value": "attn.c_attn",
        "output": "attn.c_proj",
        "mlp_norm": "ln_2",
        "up": "mlp.c_fc",
        "down": "mlp.c_proj",
    },
    keys=GPT2_KEYS,
    biases=_biases("", "query_key_value", "output", "up", "down"),
    norm="layer",
    transposed=True,
    rotary=False,
    # Masks, which are not weights.
    ignored=("attn.bias", "attn.masked_bias"),
)

FAMILIES: Final[Mapping[str, ModelFamily]] = MappingProxyType(
    {
        "LlamaForCausalLM": LLAMA,
        "MistralForCausalLM": MISTRAL,
        "Qwen2ForCausalLM": QWEN2,
        "Qwen3ForCausalLM": QWEN3,
        "GemmaForCausalLM": GEMMA,
        "Gemma2ForCausalLM": GEMMA2,
        "Gemma3ForCausalLM": GEMMA3,
        "PhiForCausalLM": PHI,
        "Phi3ForCausalLM": PHI3,
        "Starcoder2ForCausalLM": STARCODER2,
        "StableLmForCausalLM": STABLELM,
        "GPT2LMHeadModel": GPT2,
    }
)


def architecture(config: Config, known: Mapping[str, Any], where: str) -> str:
    """The architecture that a configuration names.

    Raises UnsupportedError if it is not one of the known ones.
    """
    named = config.get("architectures") or []
    if isinstance(named, list):
        names = [n for n in named if isinstance(n, str)]
    else:
        names = []
    for name in names:
        if name in known:
            return name
    said = names[0] if names else "no architecture"
    near = did_you_mean(said, known) if names else None
    raise UnsupportedError(
        f"{said} is not supported",
        items=names,
        where=where,
        hint=near or f"supported are {', '.join(known)}",
    )
