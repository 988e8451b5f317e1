"""A decoder as a Graph over its key-value cache: tokens in, caches and logits out.

Constants have the checkpoint's names. Each sequence has a row of the caches and its own position.
Keys and values are in arrays of `positions` elements; those after the last token are never read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from tilewright.base.dtypes import float32, int32, int64
from tilewright.base.errors import UnsupportedError
from tilewright.frontends.hf.decoder import Decoder, DecoderLayer
from tilewright.frontends.hf.folder import Checkpoint
from tilewright.graph.nodes import Graph, Value, constant
from tilewright.graph.ops.fragment import Fragment

_MICROSOFT: Final = "com.microsoft"
IDS, POSITION, LOGITS = "ids", "position", "logits"


def activated(f: Fragment, x: Value, name: str, where: str = "config.json") -> Value:
    """An activation by its name in a configuration. Raises UnsupportedError."""
    if name in ("silu", "swish"):
        return f.op("Mul", x, f.op("Sigmoid", x))
    if name in ("relu", "tanh"):
        return f.op(name.capitalize(), x)
    if name == "gelu":
        return f.op("Gelu", x)
    if name in ("gelu_new", "gelu_pytorch_tanh", "gelu_fast"):
        return f.op("Gelu", x, approximate="tanh")
    raise UnsupportedError(f"the activation {name!r}", where=where)


def build(
    d: Decoder,
    tensors: Checkpoint,
    length: int,
    *,
    head: bool = True,
    sequences: int = 1,
) -> Graph:
    """ids: int64[sequences * length], one sequence after the other; position: int32[sequences], the
    position of each sequence's first id; the caches, with a row per sequence.

    Returns the caches with the new keys and values, preceded, if `head`, by the logits of all ids:
    float32[sequences * length, vocabulary]. length: less than the positions of the cache. Raises
    ModelError for tensors that are missing or have another shape, UnsupportedError for tensors that
    the architecture does not use.
    """
    builder = _Builder(d, tensors, length, sequences)
    return builder.graph(head)


class _Builder:
    """A graph under construction; x is float32[ids, width] from layer to layer."""

    def __init__(
        self, d: Decoder, tensors: Checkpoint, length: int, sequences: int
    ) -> None:
        self.d = d
        self.family = d.family
        self.tensors = tensors
        self.length = length
        self.sequences = sequences
        self.count = sequences * length  # number of ids
        self.f = Fragment("", {})
        self.ids = Value(IDS, int64, (self.count,))
        self.position = Value(POSITION, int32, (sequences,))
        shape = d.cache(sequences)
        self.past = {name: Value(name, float32, shape) for name in d.caches}
        self.present: list[Value] = []
        self.weights: dict[str, Value] = {}
        self.rotary: dict[str, tuple[Value, Value]] = {}

    def graph(self, head: bool) -> Graph:
        x = self.embedded()
        last = self.f.op("Add", self.position, self.number(self.length - 1, int32))
        for n, layer in enumerate(self.d.layers):
            x = self.layer(x, n, layer, last)
        outputs = self.renamed()
        self.f.prefix = "head"
        logits = self.logits(x)
        self.tensors.check_all_taken(self.family.ignored)
        if head:
            outputs = [replace(logits, name=LOGITS), *outputs]
            self.replaced(logits, outputs[0])
        whole = Graph(
            self.d.architecture,
            (self.ids, self.position, *self.past.values()),
            tuple(outputs),
            (),
        )
        return whole.with_operations(self.f.operations, self.f.constants)

    def renamed(self) -> list[Value]:
        """The returned caches, under their external names."""
        made = [
            replace(value, name=f"{name}_out")
            for name, value in zip(self.d.caches, self.present, strict=True)
        ]
        for old, new in zip(self.present, made, strict=True):
            self.replaced(old, new)
        return made

    def replaced(self, old: Value, new: Value) -> None:
        """Make the operation that writes `old`, which nothing reads, write `new`."""
        for n, op in enumerate(self.f.operations):
            if old in op.outputs:
                outputs = tuple(new if v is old else v for v in op.outputs)
                self.f.operations[n] = replace(op, outputs=outputs)

    # Tensors

    def weight(self, name: str, *shape: int, plus: float = 0.0) -> Value:
        """A tensor of the checkpoint as a constant with the same name."""
        if name not in self.weights:
            array = self.tensors.take(name, shape)
            value = constant(self.tensors.named(name), array + plus if plus else array)
            self.f.constants[value] = array + plus if plus else array
            self.weights[name] = value
        return self.weights[name]

    def number(self, x: float, dtype: Any = float32) -> Value:
        return self.f.constant(x, dtype)

    def product(
        self,
        x: Value,
        stem: str,
        rows: int,
        columns: int,
        part: str,
    ) -> Value:
        """x [ids, rows] times a matrix, plus the bias if the part has one."""
        turned = self.family.transposed and part != "head"
        if turned:
            shape = (rows, columns)
        else:
            shape = (columns, rows)
        operands = [x, self.weight(f"{stem}.weight", *shape)]
        if part in self.d.biased:
            operands.append(self.weight(f"{stem}.bias", columns))
        transB = int(not turned)
        return self.f.op("Gemm", *operands, transB=transB, version=13)

    def norm(self, x: Value, stem: str, size: int) -> Value:
        """The norm over the last axis of x, of `size` elements."""
        how = {"axis": -1, "epsilon": self.d.epsilon}
        offset = self.family.norm_offset
        scale = self.weight(f"{stem}.weight", size, plus=offset)
        if self.family.norm == "rms":
            return self.f.op("RMSNormalization", x, scale, version=23, **how)
        bias = self.weight(f"{stem}.bias", size)
        return self.f.op("LayerNormalization", x, scale, bias, version=17, **how)

    # Layers

    def embedded(self) -> Value:
        """The embeddings of the tokens, plus those of their positions if these are learned."""
        d = self.d
        family = self.family
        self.f.prefix = "embedding"
        table = self.weight(
            f"{family.prefix}{family.embedding}.weight", d.vocabulary, d.width
        )
        x = self.f.op("Gather", table, self.ids, axis=0)
        if family.embedding_scaled:
            x = self.f.op("Mul", x, self.number(math.sqrt(d.width)))
        if not family.positions:
            return x
        rows = self.weight(
            f"{family.prefix}{family.positions}.weight", d.trained, d.width
        )
        return self.f.op("Add", x, self.f.op("Gather", rows, self.places(), axis=0))

    def places(self) -> Value:
        """The position of each id, int32[ids]."""
        f = self.f
        behind = f.constant(np.arange(self.length), int32)
        first = f.reshape(self.position, self.sequences, 1)
        return f.reshape(f.op("Add", first, behind), self.count)

    def layer(self, x: Value, n: int, layer: DecoderLayer, last: Value) -> Value:
        """Attention and network, each added to its input. last: positions of the last ids."""
        self.f.prefix = self.family.layer.format(n).rstrip(".")
        y = self.before(x, "attention", n)
        attended = self.after(self.attention(y, n, layer, last), "attention", n)
        if self.family.parallel:
            if self.has("mlp_norm"):
                z = self.before(x, "mlp", n)
            else:
                z = y
            both = self.f.op("Add", attended, self.after(self.network(z, n), "mlp", n))
            return self.f.op("Add", x, both)
        x = self.f.op("Add", x, attended)
        z = self.before(x, "mlp", n)
        return self.f.op("Add", x, self.after(self.network(z, n), "mlp", n))

    def has(self, part: str) -> bool:
        return part in self.family.parts

    def stem(self, part: str, n: int) -> str:
        """The name of a part of layer n, without `.weight`."""
        family = self.family
        return f"{family.prefix}{family.layer.format(n)}{family.parts[part]}"

    def part(
        self,
        x: Value,
        part: str,
        n: int,
        rows: int,
        columns: int,
    ) -> Value:
        stem = self.stem(part, n)
        return self.product(x, stem, rows, columns, part)

    def before(self, x: Value, what: str, n: int) -> Value:
        stem = self.stem(f"{what}_norm", n)
        return self.norm(x, stem, self.d.width)

    def after(self, x: Value, what: str, n: int) -> Value:
        if not self.has(f"{what}_post_norm"):
            return x
        stem = self.stem(f"{what}_post_norm", n)
        return self.norm(x, stem, self.d.width)

    def attention(self, x: Value, n: int, layer: DecoderLayer, last: Value) -> Value:
        d = self.d
        f = self.f
        own = d.heads * d.size
        shared = d.groups * d.size
        operands = [
            f.reshape(self.head_norm(y, part, n), self.sequences, self.length, width)
            for y, part, width in zip(
                self.projected(x, n, own, shared),
                ("query_norm", "key_norm", "value_norm"),
                (own, shared, shared),
                strict=True,
            )
        ]
        past = [self.past[name] for name in d.caches[2 * n : 2 * n + 2]]
        tables = self.tables(layer)
        attended, *present = f.ops(
            "GroupQueryAttention",
            *(*operands, *past, last, self.number(d.positions, int32), *tables),
            domain=_MICROSOFT,
            version=1,
            count=3,
            num_heads=d.heads,
            kv_num_heads=d.groups,
            do_rotary=int(bool(tables)),
            local_window_size=layer.window or -1,
            scale=d.scale,
            softcap=d.score_cap,
        )
        self.present += present
        return self.part(
            f.reshape(attended, self.count, own), "output", n, own, d.width
        )

    def projected(self, x: Value, n: int, own: int, shared: int) -> Sequence[Value]:
        """Queries, keys and values of all heads, from one matrix or three."""
        width = self.d.width
        if self.has("query_key_value"):
            joint = self.part(x, "query_key_value", n, width, own + 2 * shared)
            return self.f.split(joint, [own, shared, shared], axis=1)
        parts = (
            ("query", own),
            ("key", shared),
            ("value", shared),
        )
        return [self.part(x, part, n, width, columns) for part, columns in parts]

    def head_norm(self, x: Value, part: str, n: int) -> Value:
        """x [ids, heads * size] with each head normalized separately, if the family does so."""
        if not self.has(part):
            return x
        size = self.d.size
        by_head = self.f.reshape(x, self.count, -1, size)
        stem = self.stem(part, n)
        return self.norm(by_head, stem, size)

    def tables(self, layer: DecoderLayer) -> tuple[Value, ...]:
        """Cosines and sines of a layer's rotary positions; empty if it has none."""
        if layer.rotary is None:
            return ()
        key = repr(layer.rotary)
        if key not in self.rotary:
            cos, sin = layer.rotary.tables()
            self.rotary[key] = self.f.constant(cos), self.f.constant(sin)
        return self.rotary[key]

    def network(self, x: Value, n: int) -> Value:
        d = self.d
        f = self.f
        if self.has("gate_up"):
            columns = 2 * d.hidden
            joint = self.part(x, "gate_up", n, d.width, columns)
            gate, up = f.split(joint, [d.hidden, d.hidden], axis=1)
            y = f.op("Mul", activated(f, gate, d.activation), up)
        elif self.has("gate"):
            gate = self.part(x, "gate", n, d.width, d.hidden)
            up = self.part(x, "up", n, d.width, d.hidden)
            y = f.op("Mul", activated(f, gate, d.activation), up)
        else:
            up = self.part(x, "up", n, d.width, d.hidden)
            y = activated(f, up, d.activation)
        return self.part(y, "down", n, d.hidden, d.width)

    def logits(self, x: Value) -> Value:
        """[ids, vocabulary], by the head or, if tied, the table of embeddings."""
        d = self.d
        f = self.f
        family = self.family
        x = self.norm(x, f"{family.prefix}{family.last_norm}", d.width)
        stem = family.head
        if d.tied is not None:
            tied = d.tied
        else:
            tied = f"{stem}.weight" not in self.tensors
        if tied:
            self.tensors.ignore(f"{stem}.weight")
            stem = f"{family.prefix}{family.embedding}"
        y = self.product(x, stem, d.width, d.vocabulary, "head")
        if not d.logit_cap:
            return y
        cap = self.number(d.logit_cap)
        return f.op("Mul", f.op("Tanh", f.op("Div", y, cap)), cap)
