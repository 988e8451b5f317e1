"""Tiny language models as folders, written here, and what they compute, in NumPy alone.

The reference knows nothing of `frontends.hf`: names and differences are spelled out again.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Arrays = dict[str, Any]
VOCABULARY, WIDTH, HIDDEN, POSITIONS = 262, 32, 48, 64
HEADS, GROUPS, SIZE = 4, 2, 10
EPSILON = 1e-5
KINDS = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "int64": "I64"}


def write_safetensors(path: Path, tensors: Arrays, header: Any = None) -> None:
    """A file of the format; header: what it says in place of the truth."""
    entries, pieces, place = {}, [], 0
    for name, array in tensors.items():
        data = np.ascontiguousarray(array).tobytes()
        ends = [place, place + len(data)]
        kind = KINDS[array.dtype.name]
        shape = list(array.shape)
        entries[name] = {"dtype": kind, "shape": shape, "data_offsets": ends}
        pieces.append(data)
        place = ends[1]
    text = json.dumps(entries if header is None else header(entries)).encode()
    path.write_bytes(b"".join([len(text).to_bytes(8, "little"), text, *pieces]))


def tokenizer() -> dict[str, Any]:
    """A token for each byte, behind four special ones, and two merges; texts begin with <s>."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [n for n in range(256) if n not in printable]
    shown = {n: chr(n) for n in printable}
    shown |= {n: chr(256 + k) for k, n in enumerate(others)}
    special = ["<pad>", "<s>", "</s>", "<unk>"]
    pieces = [*special, *(shown[n] for n in range(256)), "ab", "abc"]
    added = [
        {"id": n, "content": t, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for n, t in enumerate(special)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    return {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": byte_level | {"trim_offsets": True},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<s>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": byte_level | {"trim_offsets": True},
        "model": {
            "type": "BPE",
            "vocab": {piece: n for n, piece in enumerate(pieces)},
            "merges": ["a b", "ab c"],
        },
    }


@dataclass
class Folder:
    """A folder, its configuration and its tensors."""

    path: Path
    config: dict[str, Any]
    tensors: Arrays

    def write(self) -> Folder:
        self.path.mkdir(exist_ok=True)
        (self.path / "config.json").write_text(json.dumps(self.config))
        (self.path / "tokenizer.json").write_text(json.dumps(tokenizer()))
        write_safetensors(self.path / "model.safetensors", self.tensors)
        return self


def _drawn(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    found = {}
    for name, shape in shapes.items():
        one = name.endswith("norm.weight") or (".ln_" in name and "weight" in name)
        scale = 0.3 if len(shape) == 1 else 1.5 / math.sqrt(shape[-1])
        drawn = scale * rng.standard_normal(shape) + float(one)
        found[name] = drawn.astype(np.float32)
    return found


def llama(path: Path, architecture: str = "LlamaForCausalLM", **more: Any) -> Folder:
    """Of Llama's shape. more: of config.json."""
    own, shared = HEADS * SIZE, GROUPS * SIZE
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCABULARY, WIDTH),
        "model.norm.weight": (WIDTH,),
        "lm_head.weight": (VOCABULARY, WIDTH),
    }
    config: dict[str, Any] = {
        "architectures": [architecture],
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": HEADS,
        "num_key_value_heads": GROUPS,
        "head_dim": SIZE,
        "intermediate_size": HIDDEN,
        "max_position_embeddings": POSITIONS,
        "rms_norm_eps": EPSILON,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "eos_token_id": 2,
    } | more
    for n in range(config["num_hidden_layers"]):
        stem = f"model.layers.{n}."
        attention = {"q": (own, WIDTH), "k": (shared, WIDTH), "v": (shared, WIDTH)}
        for part, shape in {**attention, "o": (WIDTH, own)}.items():
            shapes[f"{stem}self_attn.{part}_proj.weight"] = shape
        for part in ("gate", "up"):
            shapes[f"{stem}mlp.{part}_proj.weight"] = (HIDDEN, WIDTH)
        shapes[f"{stem}mlp.down_proj.weight"] = (WIDTH, HIDDEN)
        for norm in ("input", "post_attention"):
            shapes[f"{stem}{norm}_layernorm.weight"] = (WIDTH,)
        if architecture == "Qwen3ForCausalLM":
            for part in ("q", "k"):
                shapes[f"{stem}self_attn.{part}_norm.weight"] = (SIZE,)
    return Folder(path, config, _drawn(shapes))


def gpt2(path: Path) -> Folder:
    """Of GPT-2's shape, one layer, without the prefix, as the first checkpoints are."""
    shapes = {"wte.weight": (VOCABULARY, WIDTH), "wpe.weight": (POSITIONS, WIDTH)}
    for part, size in (("attn.c_attn", 3), ("attn.c_proj", 1), ("mlp.c_fc", 4)):
        shapes[f"h.0.{part}.weight"] = (WIDTH, size * WIDTH)
        shapes[f"h.0.{part}.bias"] = (size * WIDTH,)
    shapes["h.0.mlp.c_proj.weight"] = (4 * WIDTH, WIDTH)
    shapes["h.0.mlp.c_proj.bias"] = (WIDTH,)
    for norm in ("h.0.ln_1", "h.0.ln_2", "ln_f"):
        shapes |= {f"{norm}.weight": (WIDTH,), f"{norm}.bias": (WIDTH,)}
    config = {
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": VOCABULARY,
        "n_embd": WIDTH,
        "n_layer": 1,
        "n_head": HEADS,
        "n_positions": POSITIONS,
        "layer_norm_epsilon": EPSILON,
        "activation_function": "gelu_new",
        "eos_token_id": 2,
    }
    mask = {"h.0.attn.bias": np.zeros((1, 1, 2, 2), np.float32)}
    return Folder(path, config, _drawn(shapes) | mask)


def _rms(x: Any, scale: Any) -> Any:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) * scale


def _centered(x: Any, scale: Any, bias: Any) -> Any:
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) * scale + bias


def _rotated(x: Any, theta: float) -> Any:
    """[tokens, heads, size], each token turned by its place; halves are pairs."""
    rates = theta ** -(np.arange(0, x.shape[-1], 2) / x.shape[-1])
    angles = np.outer(np.arange(len(x)), rates)[:, None]
    a, b = np.split(x, 2, -1)
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


def _attended(q: Any, k: Any, v: Any, window: int = 0) -> Any:
    """[tokens, heads, size] of queries over keys of fewer heads; causal."""
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x, group, axis=1) for x in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(q.shape[-1])
    behind = np.subtract.outer(np.arange(len(q)), np.arange(len(q)))
    seen = (behind >= 0) & (behind < window if window else True)
    scores = np.where(seen, scores, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", shares, v).reshape(len(q), -1)


def llama_logits(folder: Folder, ids: Any, window: int = 0) -> Any:
    """[tokens, vocabulary], in float64."""
    w = {name: a.astype(np.float64) for name, a in folder.tensors.items()}
    theta = folder.config.get("rope_theta", 10000.0)
    x = w["model.embed_tokens.weight"][ids]
    for n in range(folder.config["num_hidden_layers"]):
        part = {
            name.removeprefix(f"model.layers.{n}.").removesuffix(".weight"): a
            for name, a in w.items()
        }
        y = _rms(x, part["input_layernorm"])
        q, k, v = (
            (y @ part[f"self_attn.{p}_proj"].T).reshape(len(ids), -1, SIZE)
            for p in "qkv"
        )
        if "self_attn.q_norm" in part:
            q, k = _rms(q, part["self_attn.q_norm"]), _rms(k, part["self_attn.k_norm"])
        y = _attended(_rotated(q, theta), _rotated(k, theta), v, window)
        x = x + y @ part["self_attn.o_proj"].T
        y = _rms(x, part["post_attention_layernorm"])
        gate = y @ part["mlp.gate_proj"].T
        gate = gate / (1 + np.exp(-gate)) * (y @ part["mlp.up_proj"].T)
        x = x + gate @ part["mlp.down_proj"].T
    x = _rms(x, w["model.norm.weight"])
    tied = folder.config["tie_word_embeddings"]
    return x @ w["model.embed_tokens.weight" if tied else "lm_head.weight"].T


def gpt2_logits(folder: Folder, ids: Any) -> Any:
    """[tokens, vocabulary], in float64."""
    w = {name: a.astype(np.float64) for name, a in folder.tensors.items()}

    def norm(x: Any, stem: str) -> Any:
        return _centered(x, w[f"{stem}.weight"], w[f"{stem}.bias"])

    def dense(x: Any, stem: str) -> Any:
        return x @ w[f"{stem}.weight"] + w[f"{stem}.bias"]

    x = w["wte.weight"][ids] + w["wpe.weight"][: len(ids)]
    joint = dense(norm(x, "h.0.ln_1"), "h.0.attn.c_attn")
    heads = [p.reshape(len(ids), HEADS, -1) for p in np.split(joint, 3, -1)]
    x = x + dense(_attended(*heads), "h.0.attn.c_proj")
    y = dense(norm(x, "h.0.ln_2"), "h.0.mlp.c_fc")
    y = y / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3)))
    x = x + dense(y, "h.0.mlp.c_proj")
    return norm(x, "ln_f") @ w["wte.weight"].T


def bert(path: Path, **more: Any) -> Folder:
    """Of BERT's shape, one layer, with the pooling of sentence-transformers."""
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (VOCABULARY, WIDTH),
        "embeddings.position_embeddings.weight": (POSITIONS, WIDTH),
        "embeddings.token_type_embeddings.weight": (2, WIDTH),
        "pooler.dense.weight": (WIDTH, WIDTH),
        "pooler.dense.bias": (WIDTH,),
    }
    stem = "encoder.layer.0."
    dense = {f"attention.self.{p}": (WIDTH, WIDTH) for p in ("query", "key", "value")}
    dense["attention.output.dense"] = (WIDTH, WIDTH)
    dense["intermediate.dense"] = (HIDDEN, WIDTH)
    dense["output.dense"] = (WIDTH, HIDDEN)
    for name, shape in dense.items():
        shapes[f"{stem}{name}.weight"] = shape
        shapes[f"{stem}{name}.bias"] = shape[:1]
    norms = ("embeddings.", f"{stem}attention.output.", f"{stem}output.")
    for norm in norms:
        shapes[f"{norm}LayerNorm.weight"] = shapes[f"{norm}LayerNorm.bias"] = (WIDTH,)
    config = {
        "architectures": ["BertModel"],
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "intermediate_size": HIDDEN,
        "max_position_embeddings": POSITIONS,
        "layer_norm_eps": EPSILON,
        "hidden_act": "relu",
    }
    return Folder(path, config | more, _drawn(shapes))


def bert_vectors(folder: Folder, ids: Any) -> Any:
    """[tokens, width], in float64."""
    w = {name: a.astype(np.float64) for name, a in folder.tensors.items()}
    stem = "encoder.layer.0."

    def norm(x: Any, name: str) -> Any:
        name = f"{name}LayerNorm"
        return _centered(x, w[f"{name}.weight"], w[f"{name}.bias"])

    def dense(x: Any, name: str) -> Any:
        return x @ w[f"{stem}{name}.weight"].T + w[f"{stem}{name}.bias"]

    x = w["embeddings.word_embeddings.weight"][ids]
    x = x + w["embeddings.position_embeddings.weight"][: len(ids)]
    x = norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.")
    parts = [dense(x, f"attention.self.{p}") for p in ("query", "key", "value")]
    q, k, v = (p.reshape(len(ids), HEADS, -1) for p in parts)
    scores = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(q.shape[-1])
    shares = np.exp(scores)
    shares /= shares.sum(-1, keepdims=True)
    y = np.einsum("hqk,khd->qhd", shares, v).reshape(len(ids), -1)
    x = norm(x + dense(y, "attention.output.dense"), f"{stem}attention.output.")
    y = np.maximum(dense(x, "intermediate.dense"), 0)
    return norm(x + dense(y, "output.dense"), f"{stem}output.")
