"""Benchmark networks over sequences in plain torch.nn: encoders, a decoder, an LSTM."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.weights import gained


def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool = False
) -> Tensor:
    """softmax(q kᵀ / √d + mask) v over the last two axes.

    PyTorch runs its own fused operator; the ONNX file has the plain form, where each engine is to
    find the pattern itself.
    """
    if not torch.onnx.is_in_onnx_export():
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal)
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        mask = torch.full((q.shape[-2], k.shape[-2]), -math.inf).triu(1)
    if mask is not None:
        scores = scores + mask
    return torch.softmax(scores, dim=-1) @ v


class SelfAttention(nn.Module):
    """Multi-head attention; an additive mask, causality or a key-value cache may be given."""

    def __init__(self, width: int, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.query, self.key, self.value, self.out = (
            nn.Linear(width, width) for _ in range(4)
        )

    def forward(
        self, x: Tensor, mask: Tensor | None, cache: list[Tensor] | None = None
    ) -> Tensor:
        batch, length, width = x.shape

        def split(y: Tensor) -> Tensor:
            return y.view(batch, length, self.heads, width // self.heads).transpose(
                1, 2
            )

        q, k, v = split(self.query(x)), split(self.key(x)), split(self.value(x))
        if cache is not None:
            k, v = (torch.cat([old, new], dim=2) for old, new in zip(cache, (k, v)))
            cache[:] = [k, v]
        context = attend(q, k, v, mask, self.causal and length > 1)
        return self.out(context.transpose(1, 2).reshape(batch, length, width))


class Layer(nn.Module):
    """Attention and a two-layer perceptron; normalized after each (BERT) or before each."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        norm_first: bool,
        causal: bool = False,
        gelu: str = "none",
    ) -> None:
        super().__init__()
        self.norm_first = norm_first
        self.attention = SelfAttention(width, heads, causal=causal)
        self.norm1, self.norm2 = nn.LayerNorm(width, 1e-6), nn.LayerNorm(width, 1e-6)
        widen, narrow = (
            nn.Linear(width, 4 * width),
            gained(nn.Linear(4 * width, width), 2.0),
        )
        self.perceptron = nn.Sequential(widen, nn.GELU(gelu), narrow)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, cache: list[Tensor] | None = None
    ) -> Tensor:
        if self.norm_first:
            x = x + self.attention(self.norm1(x), mask, cache)
            return x + self.perceptron(self.norm2(x))
        x = self.norm1(x + self.attention(x, mask, cache))
        return self.norm2(x + self.perceptron(x))


class Bert(nn.Module):
    """A BERT encoder: ids, segments and a mask in; states and the pooled state out."""

    outputs = ["states", "pooled"]

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(30522, width)
        self.positions = nn.Embedding(512, width)
        self.segments = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, 1e-12)
        self.layers = nn.ModuleList(
            Layer(width, heads, norm_first=False) for _ in range(layers)
        )
        self.pooler = nn.Linear(width, width)

    def forward(
        self, input_ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        places = torch.arange(input_ids.shape[1])
        x = (
            self.words(input_ids)
            + self.segments(token_type_ids)
            + self.positions(places)
        )
        x = self.norm(x)
        mask = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * torch.finfo(
            x.dtype
        ).min
        for layer in self.layers:
            x = layer(x, mask)
        return x, torch.tanh(self.pooler(x[:, 0]))


class VitSmall(nn.Module):
    """ViT-S/16: 3x224x224 in, 1000 logits out (Dosovitskiy et al. 2021; DeiT-S)."""

    def __init__(self, width: int = 384, heads: int = 6, layers: int = 12) -> None:
        super().__init__()
        self.patches = gained(nn.Conv2d(3, width, 16, 16), 1.0)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.zeros(1, 197, width))
        self.layers = nn.Sequential(
            *(Layer(width, heads, norm_first=True) for _ in range(layers))
        )
        self.norm = nn.LayerNorm(width, 1e-6)
        self.head = nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.places
        return self.head(self.norm(self.layers(x))[:, 0])


class Gpt2(nn.Module):
    """A GPT-2-like decoder with tied embeddings: ids in, logits of the last position out.

    With `past`, keys and values per layer ([1, heads, length, width/heads] each) are inputs after
    the ids and, extended, outputs after the logits.
    """

    def __init__(self, width: int = 768, heads: int = 12, layers: int = 6) -> None:
        super().__init__()
        self.words = gained(nn.Embedding(50257, width), 0.02)
        self.positions = gained(nn.Embedding(1024, width), 0.01)
        self.layers = nn.ModuleList(
            Layer(width, heads, norm_first=True, causal=True, gelu="tanh")
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width, 1e-5)

    def forward(self, input_ids: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        start = past[0].shape[2] if past else 0
        places = torch.arange(start, start + input_ids.shape[1])
        x = self.words(input_ids) + self.positions(places)
        present: list[Tensor] = []
        for index, layer in enumerate(self.layers):
            cache = list(past[2 * index : 2 * index + 2]) or None
            x = layer(x, None, cache)
            present += cache or []
        return F.linear(self.norm(x[:, -1]), self.words.weight), *present


class Lstm(nn.Module):
    """Two LSTM layers, the states of the second out: [batch, length, width] both ways."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.cells = nn.LSTM(width, width, num_layers=2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.cells(x)[0]
