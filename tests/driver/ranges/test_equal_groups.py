"""Equal groups of an open plan run one code: which groups are equal, and that their results are."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest

import tilewright as tw
from tests.driver.ranges.test_ranged import HEAD
from tilewright.base import events
from tilewright.driver.ranges import open_code
from tilewright.driver.schedule_records import shared_records

HOW: Any = {"jit": False, "threads": 1, "cache": False}
RNG = np.random.default_rng(3)


def model(text: str, **shapes: tuple[int, ...]) -> onnx.ModelProto:
    """With constants of these shapes."""
    made = onnx.parser.parse_model(HEAD + text)
    for name, shape in shapes.items():
        array = RNG.standard_normal(shape).astype(np.float32)
        made.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return made


def layers(number: int) -> str:
    """Products and normalizations, one after the other."""
    steps = [
        f"h{n} = MatMul(x{n}, w{n}) x{n + 1} = Softmax<axis = -1>(h{n})"
        for n in range(number)
    ]
    text = " ".join(steps) + f" y = Neg(x{number})"
    return f"(float[n, 32] x0) => (float[n, 32] y) {{ {text} }}"


def code_of(exe: Any) -> tuple[list[str], int]:
    """The symbol of each kernel of the shared code, and how many codes there are."""
    (shared,) = exe.model.shared
    made = shared.opened.model
    return [k.symbol for k in made.kernels], len(made.objects) - 1  # one calls them


def compared(exe: Any, source: onnx.ModelProto, *sizes: dict[str, int]) -> None:
    """Each size against the code for it alone."""
    for extents in sizes:
        alone: Any = tw.compile(source, dims=extents, **HOW)
        given = []
        for v in source.graph.input:
            dims = v.type.tensor_type.shape.dim
            shape = [extents.get(d.dim_param, d.dim_value) for d in dims]
            given.append(RNG.standard_normal(shape).astype(np.float32))
        found, want = exe(*given), alone(*given)
        for one, other in zip(
            *(r if isinstance(r, tuple) else (r,) for r in (found, want)), strict=True
        ):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
def test_equal_layers_run_one_code_on_their_own_weights(threads: int) -> None:
    source = model(layers(4), **{f"w{n}": (32, 32) for n in range(4)})
    with events.record() as log:
        exe: Any = tw.compile(source, dims={"n": (1, 40)}, **HOW | {"threads": threads})
    symbols, codes = code_of(exe)
    assert codes == len(set(symbols)) < len(symbols)
    compared(exe, source, *({"n": n} for n in (1, 2, 7, 40)))
    # Each kernel has its record, with its own nodes.
    (shared,) = exe.model.shared
    rows = shared_records(log)
    assert [r.kernel for r in rows].count(rows[0].kernel) == 1
    assert {r.kernel for r in rows} == {k.name for k in shared.opened.model.kernels}
    by_name = {k.name: k.nodes for k in shared.opened.model.kernels}
    assert all(r.sources == tuple(by_name[r.kernel]) for r in rows)


OTHER = {
    "another extent": (
        "(float[n, 32] x) => (float[n, 24] y) { h = MatMul(x, a) y = MatMul(h, b) }",
        {"a": (32, 32), "b": (32, 24)},
    ),
    "a weight that is an input": (
        "(float[n, 32] x, float[32, 32] v) => (float[n, 32] y, float[n, 32] z)"
        " { y = MatMul(x, a) z = MatMul(x, v) }",
        {"a": (32, 32)},
    ),
    "another size": (
        "(float[n, 32] x, float[m, 32] v) => (float[n, 32] y, float[m, 32] z)"
        " { y = Softmax<axis = -1>(x) z = Softmax<axis = -1>(v) }",
        {},
    ),
    "sizes in another order": (
        "(float[n, m] x, float[m, n] v) => (float[n, m] y, float[m, n] z)"
        " { y = Softmax<axis = -1>(x) z = Softmax<axis = -1>(v) }",
        {},
    ),
    "another function": (
        "(float[n, 32] x, float[n, 32] v) => (float[n, 32] y, float[n, 32] z)"
        " { y = Softmax<axis = -1>(x) z = LogSoftmax<axis = -1>(v) }",
        {},
    ),
}


@pytest.mark.parametrize("name", OTHER)
def test_other_groups_have_code_of_their_own(name: str) -> None:
    text, constants = OTHER[name]
    source = model(text, **constants)
    names = [n for n in "nm" if f"[{n}" in text]
    exe: Any = tw.compile(source, dims=dict.fromkeys(names, (2, 9)), **HOW)
    symbols, codes = code_of(exe)
    assert len(symbols) == len(set(symbols)) == codes
    pairs = [(2, 9), (9, 2), (5, 5), (3, 8)]
    compared(exe, source, *(dict(zip(names, p, strict=False)) for p in pairs))


def test_code_that_names_tensors_is_not_shared() -> None:
    source = model(layers(4), **{f"w{n}": (32, 32) for n in range(4)})
    exe: Any = tw.compile(source, dims={"n": (2, 40)}, sanitize=True, **HOW)
    symbols, codes = code_of(exe)
    assert len(symbols) == len(set(symbols)) == codes
    compared(exe, source, {"n": 2}, {"n": 40})


def test_forms_of_a_group_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the comparison with the other groups and for its code; Winograd's take long."""
    asked: list[Any] = []
    forms_of = open_code.forms_of

    def spy(plan: Any, group: Any, tiles: Any) -> Any:
        asked.append(group)
        return forms_of(plan, group, tiles)

    monkeypatch.setattr(open_code, "forms_of", spy)
    rows = "(float[n, 32] x) => (float[n, 8] y) { h = MatMul(x, w) y = MatMul(h, v) }"
    tw.compile(model(rows, w=(32, 16), v=(16, 8)), dims={"n": (1, 9)}, **HOW)
    assert asked and len({*map(id, asked)}) == len(asked)
