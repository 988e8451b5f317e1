"""Reductions of rows that are padded where they are read."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

import tilewright as tw


@pytest.mark.parametrize("before", [0, 1, 40])
@pytest.mark.parametrize("name", ["x86-64-v2", "x86-64-v3"])
def test_the_last_tile_of_a_padded_row_is_found_beside_its_padding(
    name: str, before: int
) -> None:
    """A reduction reads padding: where that ends is a place to part the loop, too."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        padded (float[65] x) => (float y) <int64[2] pads = {{{before}, 2}}, float three = {{3.0}}>
        {{ p = Pad (x, pads, three) y = ReduceL2 <keepdims = 0> (p) }}"""
    )
    x = np.random.default_rng(0).standard_normal(65).astype(np.float32)
    found = tw.compile(model, threads=1, mcpu=name, cache=False)(x)
    want = np.sqrt((x.astype(np.float64) ** 2).sum() + 9 * (before + 2))
    np.testing.assert_allclose(found, want, rtol=1e-5)
