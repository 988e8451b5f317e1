"""Normalizations are folded once, not again for each size that is planned."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest

from tilewright.driver.compilation import (
    onnx_fallback,
    optimize,
    target_of,
    with_folded_norms,
)
from tilewright.driver.options import Options
from tilewright.driver.sources import import_model
from tilewright.graph.interp import evaluate
from tilewright.graph.nodes import Graph
from tilewright.graph.specialize import specialize


def graph(norm: str = "s, t, m, v", known: bool = True) -> Graph:
    """A convolution of an open image, and its normalization."""
    rng = np.random.default_rng(0)
    arrays = {"w": rng.normal(size=(4, 3, 3, 3)), "v": rng.random(4) + 0.5}
    arrays |= {name: rng.normal(size=4) for name in "stm"}
    more = "" if known else ", float[4] s"
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>\n'
        f"net (float[1, 3, h, 9] x{more}) => (float[1, 4, h, 9] y)"
        "{ c = Conv<pads = [1, 1, 1, 1]>(x, w)"
        f" y = BatchNormalization<epsilon = 0.001>(c, {norm}) }}"
    )
    for name, a in arrays.items():
        if known or name != "s":
            tensor = onnx.numpy_helper.from_array(a.astype(np.float32), name)
            model.graph.initializer.append(tensor)
    return import_model(model, (), Options.of({}))


def kinds(g: Graph) -> list[str]:
    return [op.op_type for op in g.operations]


def test_weights_of_all_sizes_are_the_same_arrays() -> None:
    given, options = graph(), Options.of({})
    found = with_folded_norms(given, options)
    assert kinds(found) == ["Conv"]
    x = np.random.default_rng(1).normal(size=(1, 3, 7, 9)).astype(np.float32)
    want, got = (evaluate(specialize(g, {"h": 7}), {"x": x}) for g in (given, found))
    np.testing.assert_allclose(got["y"], want["y"], rtol=1e-4, atol=1e-5)
    arrays = []
    for h in (7, 8):
        one = specialize(found, {"h": h}, fallback=onnx_fallback())
        made = optimize(one, options, target_of(options))
        assert kinds(made) == ["Conv"]
        arrays.append({id(made.constants[v]) for v in made.operations[0].reads[1:]})
    assert arrays[0] == arrays[1]


@pytest.mark.parametrize(
    "how", [{"math": "exact"}, {"fusion": False}, {"precision": "bfloat16"}], ids=str
)
def test_options_without_the_pass_or_with_other_weights_keep_them(how: Any) -> None:
    given = graph()
    assert with_folded_norms(given, Options.of(how)) is given


def test_a_scale_that_an_input_has_is_not_folded() -> None:
    given = graph(known=False)
    assert kinds(with_folded_norms(given, Options.of({}))) == kinds(given)
