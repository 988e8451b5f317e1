"""Each family beside Transformers: logits, and tokens of greedy decoding. Needs transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow

VOCABULARY, CONTEXT, PROMPT, TOKENS = 256, 96, 27, 50
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
HALF = {"partial_rotary_factor": 0.5}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0 + n / 8 for n in range(8)],
    "long_factor": [2.0 + n for n in range(8)],
}
GEMMA = {"head_dim": 32, "sliding_window": 16, "query_pre_attn_scalar": 24}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"rope_theta": 5e5, "rope_scaling": LLAMA3}),
    "llama with biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, linear": (
        "Llama",
        {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    ),
    "llama, yarn": ("Llama", {"rope_scaling": YARN}),
    "llama, tied": ("Llama", {"tie_word_embeddings": True}),
    "mistral": ("Mistral", {"sliding_window": 16, "head_dim": 24}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2 with a window": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "gemma": ("Gemma", {"head_dim": 32}),
    "gemma2": ("Gemma2", GEMMA),
    "gemma3": ("Gemma3Text", {**GEMMA, "num_hidden_layers": 7}),
    "phi": ("Phi", {"rope_parameters": {**HALF, "rope_theta": 1e4}}),
    "phi3": ("Phi3", {"sliding_window": 20}),
    "phi3, longrope": (
        "Phi3",
        {"rope_scaling": LONG, "original_max_position_embeddings": 32},
    ),
    "starcoder2": ("Starcoder2", {"sliding_window": 16}),
    "stablelm": ("StableLm", {"use_qkv_bias": True}),
    "gpt2": ("GPT2", {}),
}
GPT2 = {
    "vocab_size": VOCABULARY,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def saved(folder, kind: str, more: dict[str, Any]):
    """A model of random weights, in the folder too; norms are not ones, biases no zeros."""
    torch.manual_seed(0)
    sizes = GPT2 if kind == "GPT2" else SIZES
    config = getattr(transformers, f"{kind}Config")(**{**sizes, **more})
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="eager"
    ).eval()
    for p in model.parameters():
        p.data += torch.randn_like(p) * (0.1 if p.ndim == 1 else 0.05)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("name", CASES)
def test_logits_and_tokens_are_those_of_transformers(tmp_path, name):
    theirs = saved(tmp_path, *CASES[name])
    ids = np.random.default_rng(1).integers(3, VOCABULARY, PROMPT).tolist()
    ours = tw.llm.load(tmp_path, threads=1, chunks=(16,), context=CONTEXT)
    found = [t.id for t in ours.generate(ids, max_tokens=TOKENS)]
    state = ours.start()
    logits = [ours.feed(state, ids), *(ours.feed(state, [n]) for n in found)]
    with torch.no_grad():
        all_logits = theirs(torch.tensor([[*ids, *found]])).logits[0].numpy()
    wanted = all_logits[PROMPT - 1 :]
    np.testing.assert_allclose(np.array(logits), wanted, rtol=1e-4, atol=1e-4)
    # The likeliest, where no other one is as near as the tolerance.
    for n, token in enumerate(found):
        assert wanted[n].max() - wanted[n][token] < 1e-4
    assert len(found) == TOKENS or found[-1] == 2
