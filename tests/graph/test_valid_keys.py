"""Attention over a cache reads the keys that are valid, and of the rest no value counts."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.base import events
from tilewright.driver.compile import text

Array = np.ndarray[Any, Any]
CAPACITY = 512


@dataclass(frozen=True)
class Cache:
    """A call of GroupQueryAttention: heads, queries of a sequence, sequences of a batch."""

    heads: int = 4
    shared: int = 2
    length: int = 1
    batch: int = 1
    capacity: int = CAPACITY
    size: int = 16
    window: int = -1

    @property
    def model(self) -> ModelProto:
        """With past and present of one capacity."""
        f = TensorProto.FLOAT
        node = helper.make_node(
            "GroupQueryAttention",
            [*"qkv", "keys", "values", "last", "total"],
            ["y", "new_keys", "new_values"],
            domain="com.microsoft",
            num_heads=self.heads,
            kv_num_heads=self.shared,
            local_window_size=self.window,
        )
        info = helper.make_tensor_value_info
        kept = (self.batch, self.shared, self.capacity, self.size)
        rows = (self.batch, self.length)
        given = [info("q", f, (*rows, self.heads * self.size))]
        given += [info(n, f, (*rows, self.shared * self.size)) for n in "kv"]
        given += [info(n, f, kept) for n in ("keys", "values")]
        given += [info("last", TensorProto.INT32, (self.batch,))]
        made = [info("y", f, (*rows, self.heads * self.size))]
        made += [info(n, f, kept) for n in ("new_keys", "new_values")]
        total = numpy_helper.from_array(np.array(self.capacity, np.int32), "total")
        graph = helper.make_graph([node], "g", given, made, [total])
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)

    def inputs(self, last: list[int], behind: float) -> dict[str, Array]:
        """Random, with `behind` in the cache from where the new keys go."""
        rng = np.random.default_rng(0)

        def drawn(*shape: int) -> Array:
            return rng.standard_normal(shape).astype(np.float32)

        rows = (self.batch, self.length)
        found = {"q": drawn(*rows, self.heads * self.size)}
        found |= {n: drawn(*rows, self.shared * self.size) for n in "kv"}
        kept = (self.batch, self.shared, self.capacity, self.size)
        found |= {n: drawn(*kept) for n in ("keys", "values")}
        for b, end in enumerate(last):
            for n in ("keys", "values"):
                found[n][b, :, end - self.length + 1 :] = behind
        return found | {"last": np.array(last, np.int32)}

    def expected(self, inputs: dict[str, Array]) -> Array:
        """In float64, from nothing but the keys that a query sees."""
        x = {k: a.astype(np.float64) for k, a in inputs.items()}
        y = np.zeros((self.batch, self.length, self.heads, self.size))
        group = self.heads // self.shared
        for b, end in enumerate(inputs["last"]):
            start = end - self.length + 1
            for h in range(self.heads):
                part = slice(h // group * self.size, (h // group + 1) * self.size)
                k, v = (
                    np.vstack([x[old][b, h // group, :start], x[new][b, :, part]])
                    for old, new in (("keys", "k"), ("values", "v"))
                )
                for i in range(self.length):
                    stop = start + i + 1
                    first = 0 if self.window < 0 else max(0, stop - self.window)
                    q = x["q"][b, i, h * self.size : (h + 1) * self.size]
                    e = np.exp(k[first:stop] @ q / np.sqrt(self.size))
                    y[b, i, h] = e @ v[first:stop] / e.sum()
        return y.reshape(self.batch, self.length, -1)


def check(c: Cache, *ends: list[int], threads: int = 1) -> list[int]:
    """Right with NaN behind the valid keys; the keys of a block, where it goes by blocks.

    ends: the last valid key of each sequence, call by call.
    """
    with events.record() as log:
        exe = tw.compile(c.model, threads=threads, cache=False, fallback="error")
    assert not [e for e in log if e.kind in ("kept-plain", "kept-serial")]
    for last, behind in product(ends, (0.0, np.nan, np.inf)):
        inputs = c.inputs(last, behind)
        y, keys, values = exe(**inputs)
        np.testing.assert_allclose(y, c.expected(inputs), rtol=2e-5, atol=2e-6)
        for b, end in enumerate(last):
            old = end - c.length + 1
            np.testing.assert_array_equal(keys[b, :, :old], inputs["keys"][b, :, :old])
            assert np.isfinite(values[b, :, : end + 1]).all()
    return [e.fields["keys"] for e in log if e.kind == "streamed-attention"]


def skips(c: Cache, threads: int = 1) -> int:
    """The loops that leave out what is hidden."""
    shown = text(c.model, "schedule", threads=threads, cache=False)
    return sum(line.strip().startswith("s.skip(") for line in shown.splitlines())


def test_any_number_of_valid_keys() -> None:
    ends = [0, 1, 126, 127, 128, 129, 255, 256, 510, 511]
    assert check(Cache(), *([last] for last in ends)) == [128]


@pytest.mark.representatives("1-4", "2-2")
@pytest.mark.parametrize("shared", [1, 2, 4])
@pytest.mark.parametrize("threads", [1, 2])
def test_heads_that_share_keys(shared: int, threads: int) -> None:
    c = Cache(shared=shared)
    assert check(c, [300], threads=threads) == [128]
    assert skips(c, threads) == 1


@pytest.mark.sampled(4)  # less than a vector
@pytest.mark.parametrize("size", [5, 8, 40, 72])
def test_heads_of_other_sizes(size: int) -> None:
    c = Cache(size=size)
    assert check(c, [5], [300]) == [128]
    assert skips(c) == 1


@pytest.mark.representatives("3")
@pytest.mark.parametrize("length", [1, 3])
def test_sequences_of_a_batch_differ(length: int) -> None:
    c = Cache(batch=4, length=length)
    assert check(c, [length - 1, 130, 511, 256]) == [128]
    assert skips(c) == 1


@pytest.mark.representatives("1", "200")
@pytest.mark.parametrize("capacity", [1, 7, 64, 131, 200, 331])
def test_caches_of_other_capacities(capacity: int) -> None:
    """Where no block divides them, all positions are read, and still not counted."""
    c = Cache(capacity=capacity, batch=2)
    blocks = [100] if capacity == 200 else []
    assert check(c, [0, capacity - 1], [capacity // 2, capacity // 3]) == blocks


def test_a_prompt_behind_a_cache() -> None:
    check(Cache(length=40, batch=2), [39, 300])


@pytest.mark.representatives("200")
@pytest.mark.parametrize("window", [1, 5, 200])
def test_a_window_hides_blocks_before_it(window: int) -> None:
    c = Cache(window=window)
    assert check(c, [3], [290], [511]) == [128]
    shown = text(c.model, "kernel", threads=1, cache=False)
    (test,) = [n for n in shown.splitlines() if n.strip().startswith("if ")]
    assert test.count("<=") == 2


def test_threads_share_the_keys_of_one_head() -> None:
    """Sets of blocks in turns: the valid ones are the first."""
    c = Cache(heads=3, shared=1, capacity=1 << 14)
    shown = text(c.model, "schedule", threads=2, cache=False)
    assert "_online.parts = 2" in shown
    check(c, [0], [127], [128], [9_000], [(1 << 14) - 1], threads=2)


def test_heads_enough_for_all_threads_keep_their_keys() -> None:
    c = Cache(heads=4, shared=2, capacity=1 << 14)
    assert "_online.parts = 1" in text(c.model, "schedule", threads=2, cache=False)


def test_few_columns_of_valid_values() -> None:
    """Vectors of fewer columns than blocks do not go along the blocks, which no result has."""
    model = onnx.parser.parse_model("""
<ir_version: 10, opset_import: ["": 21]>
m (double[2,1,5] q, double[2,5,512] k, double[2,512,3] v, int64[2,1,1] valid)
=> (double[2,1,3] y) {
  zero = Constant<value = double {0.0}>()
  s = MatMul(q, k) p = Softmax<axis = -1>(s)
  seen = Less(positions, valid) w = Where(seen, v, zero)
  y = MatMul(p, w)
}
""")
    positions = numpy_helper.from_array(np.arange(512)[:, None], "positions")
    model.graph.initializer.append(positions)
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, *s)) for s in ((1, 5), (5, 512), (512, 3)))
    valid = np.array([313, 436]).reshape(2, 1, 1)
    e = np.exp(q @ k)
    seen = np.arange(512)[:, None] < valid
    want = e / e.sum(-1, keepdims=True) @ np.where(seen, v, 0)
    exe = tw.compile(model, cache=False, threads=1, mcpu="x86-64-v2")
    np.testing.assert_allclose(exe(q, k, v, valid), want, rtol=1e-10, atol=1e-12)
