"""Text encoders: BERT's family as a Graph of one text, whose token vectors are pooled.

The tokens are padded to the length of the graph; `count` says how many there are, and attention
ignores the others. Source: Devlin et al. 2018; Reimers and Gurevych 2019 for the pooling.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import float32, int64
from tilewright.base.errors import InputError, ModelError, UnsupportedError
from tilewright.frontends.hf.families import Config, architecture
from tilewright.frontends.hf.folder import Checkpoint
from tilewright.frontends.hf.graph import activated
from tilewright.graph.nodes import Graph, Value, constant
from tilewright.graph.ops.fragment import Fragment

IDS, COUNT, VECTOR = "ids", "count", "vector"
POOLINGS: Final = ("mean", "cls")
# The least divisor in sentence-transformers.
_LEAST_NORM: Final = 1e-12


@dataclass(frozen=True)
class EncoderFamily:
    """prefix: of all names. padded: whether positions start after the padding's position."""

    prefix: str
    padded: bool


FAMILIES: Final[Mapping[str, EncoderFamily]] = MappingProxyType(
    {
        "BertModel": EncoderFamily("bert.", padded=False),
        "RobertaModel": EncoderFamily("roberta.", padded=True),
        "XLMRobertaModel": EncoderFamily("roberta.", padded=True),
    }
)
# Buffers, and a layer after the first token's vector that no supported pooling reads.
_IGNORED: Final = (
    "embeddings.position_ids",
    "embeddings.token_type_ids",
    "pooler.dense.weight",
    "pooler.dense.bias",
)
_SIZES: Final = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
)


@dataclass(frozen=True)
class Encoder:
    """Sizes of an encoder. first: the position row of the first token."""

    family: EncoderFamily
    vocabulary: int
    width: int
    layers: int
    heads: int
    hidden: int
    rows: int
    kinds: int
    first: int
    epsilon: float
    activation: str

    @property
    def positions(self) -> int:
        """The number of tokens that a text may have."""
        return self.rows - self.first


def encoder_of(config: Config, where: str = "config.json") -> Encoder:
    """The encoder of a configuration.

    Raises UnsupportedError for another architecture or kind of positions, ModelError for sizes that
    are missing or do not fit.
    """
    name = architecture(config, FAMILIES, where)
    kind = config.get("position_embedding_type") or "absolute"
    if kind != "absolute":
        raise UnsupportedError(f"positions of the kind {kind!r}", where=where)
    for key in _SIZES:
        if type(config.get(key)) is not int or config[key] < 1:
            raise ModelError(f"{key} is {config.get(key)!r}, not a number", where=where)
    vocabulary, width, layers, heads, hidden, rows = (config[key] for key in _SIZES)
    if width % heads:
        raise ModelError(f"{heads} heads do not divide {width}", where=where)
    family = FAMILIES[name]
    if family.padded:
        first = int(config.get("pad_token_id", 1)) + 1
    else:
        first = 0
    kinds = int(config.get("type_vocab_size", 2))
    epsilon = float(config.get("layer_norm_eps", 1e-12))
    activation = str(config.get("hidden_act", "gelu"))
    return Encoder(
        family,
        vocabulary,
        width,
        layers,
        heads,
        hidden,
        rows,
        kinds,
        first,
        epsilon,
        activation,
    )


def build(
    e: Encoder,
    tensors: Checkpoint,
    length: int,
    pooling: str = "mean",
    *,
    normalized: bool = True,
) -> Graph:
    """ids: int64[length]; count: int64[1], the number of ids that belong to the text, at least 1.

    Returns the vector of the text, float32[width]: the mean of its tokens' vectors or the first
    token's ("cls"), divided by its norm if `normalized`. Raises InputError for another pooling,
    ModelError for tensors that are missing or have another shape.
    """
    if pooling not in POOLINGS:
        known = ", ".join(POOLINGS)
        raise InputError(f"pooling={pooling!r}", hint=f"choose one of {known}")
    builder = _Builder(e, tensors, length)
    x = builder.encoded()
    tensors.check_all_taken(_IGNORED)
    vector = builder.pooled(x, pooling, normalized)
    return builder.graph(vector)


class _Builder:
    """A graph under construction; x is float32[length, width] from layer to layer."""

    def __init__(self, e: Encoder, tensors: Checkpoint, length: int) -> None:
        self.e = e
        self.tensors = tensors
        self.length = length
        self.f = Fragment("", {})
        self.ids = Value(IDS, int64, (length,))
        self.count = Value(COUNT, int64, (1,))
        place = self.f.constant(np.arange(length), int64)
        self.seen = self.f.op("Less", place, self.count)

    def graph(self, vector: Value) -> Graph:
        whole = Graph("encoder", (self.ids, self.count), (vector,), ())
        return whole.with_operations(self.f.operations, self.f.constants)

    def weight(self, name: str, *shape: int) -> Value:
        name = f"{self.e.family.prefix}{name}"
        array = self.tensors.take(name, shape)
        value = constant(self.tensors.named(name), array)
        self.f.constants[value] = array
        return value

    def number(self, x: float) -> Value:
        return self.f.constant(x, float32)

    def dense(self, x: Value, stem: str, rows: int, columns: int) -> Value:
        w = self.weight(f"{stem}.weight", columns, rows)
        bias = self.weight(f"{stem}.bias", columns)
        return self.f.op("Gemm", x, w, bias, transB=1, version=13)

    def norm(self, x: Value, stem: str) -> Value:
        scale = self.weight(f"{stem}.weight", self.e.width)
        bias = self.weight(f"{stem}.bias", self.e.width)
        how: dict[str, Any] = {"axis": -1, "epsilon": self.e.epsilon}
        return self.f.op("LayerNormalization", x, scale, bias, version=17, **how)

    def encoded(self) -> Value:
        """The vectors of the tokens, [length, width]."""
        e = self.e
        f = self.f
        f.prefix = "embeddings"
        words = self.weight("embeddings.word_embeddings.weight", e.vocabulary, e.width)
        places = self.weight("embeddings.position_embeddings.weight", e.rows, e.width)
        kinds = self.weight("embeddings.token_type_embeddings.weight", e.kinds, e.width)
        rows = f.constant(np.arange(self.length) + e.first, int64)
        x = f.op("Gather", words, self.ids, axis=0)
        x = f.op("Add", x, f.op("Gather", places, rows, axis=0))
        x = f.op("Add", x, f.op("Gather", kinds, f.ints(0), axis=0))
        x = self.norm(x, "embeddings.LayerNorm")
        for n in range(e.layers):
            x = self.layer(x, n)
        return x

    def layer(self, x: Value, n: int) -> Value:
        e = self.e
        f = self.f
        stem = f"encoder.layer.{n}"
        f.prefix = stem
        y = self.attention(x, f"{stem}.attention.self")
        y = self.dense(y, f"{stem}.attention.output.dense", e.width, e.width)
        x = self.norm(f.op("Add", x, y), f"{stem}.attention.output.LayerNorm")
        y = self.dense(x, f"{stem}.intermediate.dense", e.width, e.hidden)
        y = activated(f, y, e.activation)
        y = self.dense(y, f"{stem}.output.dense", e.hidden, e.width)
        return self.norm(f.op("Add", x, y), f"{stem}.output.LayerNorm")

    def attention(self, x: Value, stem: str) -> Value:
        e = self.e
        f = self.f
        size = e.width // e.heads
        heads = []
        for part, perm in (
            ("query", (1, 0, 2)),
            ("key", (1, 2, 0)),
            ("value", (1, 0, 2)),
        ):
            y = self.dense(x, f"{stem}.{part}", e.width, e.width)
            by_head = f.reshape(y, self.length, e.heads, size)
            heads.append(f.op("Transpose", by_head, perm=list(perm)))
        query, key, value = heads
        scores = f.op("MatMul", query, key)
        scores = f.op("Mul", scores, self.number(1 / math.sqrt(size)))
        scores = f.op("Where", self.seen, scores, self.number(-math.inf))
        y = f.op("MatMul", f.op("Softmax", scores, axis=-1), value)
        y = f.op("Transpose", y, perm=[1, 0, 2])
        return f.reshape(y, self.length, e.width)

    def pooled(self, x: Value, pooling: str, normalized: bool) -> Value:
        """One vector, [width], pooled from those of the text's tokens."""
        f = self.f
        f.prefix = "pooling"
        if pooling == "cls":
            indices = f.constant(0, int64)
            y = f.op("Gather", x, indices, axis=0)
        else:
            axes = f.ints(1)
            seen = f.op("Unsqueeze", self.seen, axes)
            kept = f.op("Where", seen, x, self.number(0))
            axes = f.ints(0)
            total = f.op("ReduceSum", kept, axes, keepdims=0)
            y = f.op("Div", total, f.op("Cast", self.count, to=1))
        if normalized:
            squares = f.op("ReduceSum", f.op("Mul", y, y), f.ints(0), keepdims=1)
            least = self.number(_LEAST_NORM)
            y = f.op("Div", y, f.op("Max", f.op("Sqrt", squares), least))
        return y
