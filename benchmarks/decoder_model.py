"""A decoder of Llama's shape as an ONNX model of one token, and its results in NumPy.

Embedding, then per layer: RMS normalization, grouped heads with rotary positions and a key-value
cache, RMS normalization, SwiGLU; RMS normalization and a product at the end. Random weights, in
float32 or in groups of 4 bits (MatMulNBits). Source of the shape: Touvron et al. 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tilewright.graph.ops.block_weights import unpacked

EPSILON = 1e-5
BITS, MIDDLE = 4, 8  # of a packed weight; the integer that stands for 0
SPREAD = 4.61  # the standard deviation of integers from 0 to 15
Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Decoder:
    """Sizes: heads of queries, of keys and values; elements of a head; positions of the cache.

    group: weights of 4 bits that share a scale; 0 for float32. level: MatMulNBits' accuracy_level.
    """

    vocabulary: int = 256
    width: int = 64
    layers: int = 2
    heads: int = 4
    groups: int = 2
    size: int = 16
    hidden: int = 160
    positions: int = 32
    batch: int = 1
    group: int = 0
    level: int = 0

    @property
    def cache(self) -> tuple[int, int, int, int]:
        """The shape of one layer's keys, and of its values."""
        return (self.batch, self.groups, self.positions, self.size)

    @property
    def caches(self) -> list[str]:
        """The names of the caches; each is returned as `<name>_out`."""
        return [f"{what}{n}" for n in range(self.layers) for what in ("keys", "values")]

    def weights(self, seed: int = 0) -> Arrays:
        """Random weights that roughly preserve the scale of activations.

        Packed weights are uint8 `<name>_packed` [columns, groups, group / 2], float32
        `<name>_scales`.
        """
        rng = np.random.default_rng(seed)
        found: Arrays = {}

        def product(name: str, rows: int, columns: int) -> None:
            if self.group:
                shape = columns, rows // self.group
                packed = rng.integers(0, 256, (*shape, self.group // 2), np.uint8)
                found[f"{name}_packed"] = packed
                scales = rng.uniform(0.5, 1.5, shape) / (SPREAD * np.sqrt(rows))
                found[f"{name}_scales"] = scales.astype(np.float32)
                return
            drawn = rng.standard_normal((rows, columns), np.float32)
            found[name] = drawn / np.float32(np.sqrt(rows))

        found["table"] = rng.standard_normal((self.vocabulary, self.width), np.float32)
        for n in range(self.layers):
            for norm in ("norm", "norm2"):
                drawn = rng.uniform(0.5, 1.5, self.width)
                found[f"{norm}_{n}"] = drawn.astype(np.float32)
            product(f"q{n}", self.width, self.heads * self.size)
            product(f"k{n}", self.width, self.groups * self.size)
            product(f"v{n}", self.width, self.groups * self.size)
            product(f"o{n}", self.heads * self.size, self.width)
            product(f"gate{n}", self.width, self.hidden)
            product(f"up{n}", self.width, self.hidden)
            product(f"down{n}", self.hidden, self.width)
        found["norm"] = rng.uniform(0.5, 1.5, self.width).astype(np.float32)
        product("head", self.width, self.vocabulary)
        rates = 10000.0 ** -np.linspace(0, 1, self.size // 2, endpoint=False)
        angles = np.outer(np.arange(self.positions), rates)
        found["cos"] = np.cos(angles).astype(np.float32)
        found["sin"] = np.sin(angles).astype(np.float32)
        return found

    def empty(self) -> Arrays:
        """The caches before the first token."""
        return {name: np.zeros(self.cache, np.float32) for name in self.caches}


class _Builder:
    """Nodes in the making; values are named by their nodes."""

    def __init__(self, d: Decoder, weights: Arrays) -> None:
        self.d = d
        self.constants = dict(weights)
        self.constants |= {
            "two": np.array(2, np.float32),
            "epsilon": np.array(EPSILON, np.float32),
            "last": np.array([-1]),
            "total": np.array(d.positions, np.int32),
        }
        self.nodes: list[onnx.NodeProto] = []

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        return self.several(
            kind, *inputs, outputs=[f"t{len(self.nodes)}"], **attributes
        )

    def several(
        self, kind: str, *inputs: str, outputs: list[str], **attributes: Any
    ) -> str:
        self.nodes.append(helper.make_node(kind, inputs, outputs, **attributes))
        return outputs[0]

    def product(self, x: str, name: str, output: str = "") -> str:
        """x times the weights of that name."""
        made = [output or f"t{len(self.nodes)}"]
        if not self.d.group:
            return self.several("MatMul", x, name, outputs=made)
        packed = self.constants[f"{name}_packed"]
        return self.several(
            "MatMulNBits",
            *(x, f"{name}_packed", f"{name}_scales"),
            outputs=made,
            domain="com.microsoft",
            N=len(packed),
            K=packed.shape[1] * self.d.group,
            bits=BITS,
            block_size=self.d.group,
            accuracy_level=self.d.level,
        )

    def norm(self, x: str, scale: str) -> str:
        """x / sqrt(mean(x * x) + epsilon) * scale, spelled out as exporters do."""
        square = self.op("Pow", x, "two")
        mean = self.op("ReduceMean", square, "last")
        root = self.op("Sqrt", self.op("Add", mean, "epsilon"))
        return self.op("Mul", self.op("Div", x, root), scale)

    def layer(self, x: str, n: int) -> str:
        y = self.norm(x, f"norm_{n}")
        projected = [self.product(y, f"{what}{n}") for what in "qkv"]
        cached = [f"keys{n}", f"values{n}"]
        y = self.several(
            "GroupQueryAttention",
            *projected,
            *cached,
            "last_key",
            "total",
            "cos",
            "sin",
            outputs=[f"attention{n}", *(f"{c}_out" for c in cached)],
            domain="com.microsoft",
            num_heads=self.d.heads,
            kv_num_heads=self.d.groups,
            do_rotary=1,
        )
        x = self.op("Add", x, self.product(y, f"o{n}"))
        y = self.norm(x, f"norm2_{n}")
        gate = self.product(y, f"gate{n}")
        gate = self.op("Mul", gate, self.op("Sigmoid", gate))
        y = self.op("Mul", gate, self.product(y, f"up{n}"))
        return self.op("Add", x, self.product(y, f"down{n}"))


def build(d: Decoder, weights: Arrays) -> onnx.ModelProto:
    """ids: int64[batch, 1]; last_key: int32[batch], the place of the new key; the caches.

    Gives logits: float32[batch, 1, vocabulary] and the caches with the new keys and values.
    """
    b = _Builder(d, weights)
    x = b.op("Gather", "table", "ids")
    for n in range(d.layers):
        x = b.layer(x, n)
    logits = b.product(b.norm(x, "norm"), "head", "logits")
    info = helper.make_tensor_value_info
    given = [
        info("ids", TensorProto.INT64, (d.batch, 1)),
        info("last_key", TensorProto.INT32, (d.batch,)),
        *(info(name, TensorProto.FLOAT, d.cache) for name in d.caches),
    ]
    made = [
        info(logits, TensorProto.FLOAT, (d.batch, 1, d.vocabulary)),
        *(info(f"{name}_out", TensorProto.FLOAT, d.cache) for name in d.caches),
    ]
    graph = helper.make_graph(
        b.nodes,
        "decoder",
        given,
        made,
        [numpy_helper.from_array(np.asarray(v), k) for k, v in b.constants.items()],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def real(weights: Arrays) -> Arrays:
    """The weights; 4-bit groups are dequantized to [rows, columns]."""
    found = {}
    for name, a in weights.items():
        stem, _, part = name.rpartition("_")
        if part == "packed":
            q = unpacked(a, BITS).astype(np.float32) - MIDDLE
            found[stem] = (
                (q * weights[f"{stem}_scales"][..., None]).reshape(len(a), -1).T
            )
        elif part != "scales":
            found[name] = a
    return found


def _norm(x: Any, scale: Any) -> Any:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) * scale


def _rotated(x: Any, cos: Any, sin: Any) -> Any:
    """(batch, heads, size) turned, its halves as pairs."""
    a, b = np.split(x, 2, -1)
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


def reference(d: Decoder, weights: Arrays, ids: Any, place: int, caches: Arrays) -> Any:
    """The logits of one token per sequence at `place`, in float64; the caches take it in."""
    w = {name: a.astype(np.float64) for name, a in real(weights).items()}
    cos, sin = w["cos"][place], w["sin"][place]
    x = w["table"][ids[:, 0]]
    for n in range(d.layers):
        y = _norm(x, w[f"norm_{n}"])
        q = (y @ w[f"q{n}"]).reshape(d.batch, d.heads, d.size)
        k = (y @ w[f"k{n}"]).reshape(d.batch, d.groups, d.size)
        v = (y @ w[f"v{n}"]).reshape(d.batch, d.groups, d.size)
        caches[f"keys{n}"][:, :, place] = _rotated(k, cos, sin)
        caches[f"values{n}"][:, :, place] = v
        q = _rotated(q, cos, sin).reshape(d.batch, d.groups, -1, d.size)
        keys = caches[f"keys{n}"][:, :, : place + 1]
        values = caches[f"values{n}"][:, :, : place + 1]
        scores = np.einsum("bghd,bgkd->bghk", q, keys) / np.sqrt(d.size)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        y = np.einsum("bghk,bgkd->bghd", shares, values).reshape(d.batch, -1)
        x = x + y @ w[f"o{n}"]
        y = _norm(x, w[f"norm2_{n}"])
        gate = y @ w[f"gate{n}"]
        x = x + (gate / (1 + np.exp(-gate)) * (y @ w[f"up{n}"])) @ w[f"down{n}"]
    return _norm(x, w["norm"]) @ w["head"]
