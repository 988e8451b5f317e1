"""What a compilation keeps of its own expressions is bounded: the next one never asks for it."""

from __future__ import annotations

import sys
from functools import _lru_cache_wrapper
from typing import Any

import onnx.parser

import tilewright as tw

MODEL = onnx.parser.parse_model("""
<ir_version: 10, opset_import: ["" : 21]>
m (float[4, 16] x, float[16, 8] w) => (float[4, 8] y) {
  t = MatMul(x, w)
  u = Relu(t)
  y = Softmax(u)
}
""")
MOST = 4096  # answers: with the expressions they keep alive, less than 2 MB


def answers() -> dict[Any, int]:
    """The caches of functions, and how many answers each has."""
    ours = [m for n, m in sys.modules.items() if n.startswith("tilewright")]
    found = (c for m in ours for c in vars(m).values())
    caches = [c for c in found if isinstance(c, _lru_cache_wrapper)]
    return {c: c.cache_info().currsize for c in caches}


def compiled() -> dict[Any, int]:
    tw.compile(MODEL, threads=1, cache=False)
    return answers()


def test_caches_that_grow_with_each_compilation_are_small() -> None:
    compiled()
    for cache in answers():
        if cache.cache_info().maxsize is not None:  # full ones would not grow
            cache.cache_clear()
    before, after = compiled(), compiled()
    grown = [c for c, count in after.items() if count > before[c]]
    assert len(grown) > 2  # the test would see one
    sizes = {c.__qualname__: c.cache_info().maxsize for c in grown}
    assert not {n: s for n, s in sizes.items() if s is None or s > MOST}
