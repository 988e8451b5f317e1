"""Outputs in the memory of an input: what is written, what is returned, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import tilewright as tw
from benchmarks.decoder_model import Decoder, build, reference
from tilewright.base.dtypes import float32
from tilewright.base.errors import InputError, UnsupportedError
from tilewright.compute.build import map_
from tilewright.expr.nodes import Buffer
from tilewright.testing.random_kernels import plain

SHAPE = (2, 3, 8, 4)


def model(body: str, opset: int = 24) -> bytes:
    head = f'<ir_version: 8, opset_import: ["" : {opset}]> f '
    return onnx.parser.parse_model(head + body).SerializeToString()


CACHE = (
    "(float[2,3,8,4] past, float[2,3,{n},4] new, int64[2] at) => "
    "(float[2,3,8,4] present{more}) {{ present = TensorScatter<axis = 2>(past, new, at) {rest} }}"
)


def cache(n: int = 1, more: str = "", rest: str = "") -> bytes:
    return model(CACHE.format(n=n, more=more, rest=rest))


ALIAS = {"present": "past"}


def real(*shape: int) -> Any:
    return np.random.default_rng(4).standard_normal(shape).astype(np.float32)


def compiled(source: bytes, aliases: Any = ALIAS, **options: Any) -> Any:
    return tw.compile(source, cache=False, threads=1, aliases=aliases, **options)


@pytest.mark.parametrize("rows", [1, 3])
def test_new_rows_are_written_in_place(rows: int) -> None:
    exe = compiled(cache(rows))
    past, new = real(*SHAPE), real(2, 3, rows, 4)
    want = past.copy()
    want[0, :, 5 : 5 + rows] = new[0]
    want[1, :, 1 : 1 + rows] = new[1]
    got = exe(past, new, np.array([5, 1]))
    assert got is past
    np.testing.assert_array_equal(past, want)


def test_tensors_of_torch_are_written_in_place() -> None:
    torch = pytest.importorskip("torch")
    exe = compiled(model(UPDATED.format(n=64)), {"v": "w"})
    w, g = torch.randn(64), torch.randn(64)
    want = exe(w.numpy().copy(), g.numpy())
    with pytest.raises(InputError, match="it shares memory with another array"):
        exe(w.numpy(), w)
    with pytest.raises(InputError, match="not contiguous"):
        exe(torch.randn(128)[::2], g)
    assert exe(w, g) is w
    np.testing.assert_array_equal(w.numpy(), want)


def test_nothing_else_is_written() -> None:
    """Not even with what is there: another thread may read it."""
    exe = compiled(cache())
    (kernel,) = exe.model.kernels
    whole = tw.compile(cache(), cache=False, threads=1).model.kernels[0]
    assert kernel.bytes < whole.bytes
    assert not [s for s in exe.model.steps[0].values if s.kind == "input" and s.at == 0]


def test_readers_of_the_result_see_the_new_rows() -> None:
    exe = compiled(cache(more=", float[2,3,8,4] y", rest="y = Neg(present)"))
    past = real(*SHAPE)
    kept, y = exe(past, real(2, 3, 1, 4), np.array([7, 0]))
    assert kept is past
    np.testing.assert_array_equal(y, -past)


def test_elements_that_are_replaced_one_by_one() -> None:
    """A training step: w - rate * g in the memory of w."""
    exe = compiled(model(UPDATED.format(n=64)), {"v": "w"})
    w, g = real(64), real(64)[::-1].copy()
    want = w - g * g
    assert exe(w, g) is w
    np.testing.assert_allclose(w, want, rtol=1e-6)


def test_what_is_read_before_it_is_written() -> None:
    x = real(4)
    want = x - x.sum()
    assert compiled(model(SUMMED), {"y": "x"})(x) is x
    np.testing.assert_allclose(x, want, rtol=1e-5, atol=1e-6)


def test_without_aliases_the_input_stays() -> None:
    past = real(*SHAPE)
    before = past.copy()
    tw.compile(cache(), cache=False)(past, real(2, 3, 1, 4), np.array([5, 1]))
    np.testing.assert_array_equal(past, before)


def test_a_saved_model_has_them(tmp_path: Path) -> None:
    compiled(cache()).save(tmp_path / "m.tw")
    past = real(*SHAPE)
    assert tw.load(tmp_path / "m.tw")(past, real(2, 3, 1, 4), np.array([5, 1])) is past


def test_the_kernel_cache_tells_them_apart() -> None:
    past, rest = real(*SHAPE), (real(2, 3, 1, 4), np.array([5, 1]))
    for aliases in (ALIAS, {}, ALIAS):
        exe = tw.compile(cache(), threads=1, aliases=aliases)
        assert (exe(past, *rest) is past) == bool(aliases)


def test_symbolic_shapes() -> None:
    body = CACHE.format(n=1, more="", rest="").replace(",8,", ",N,")
    past = real(*SHAPE)
    assert compiled(model(body))(past, real(2, 3, 1, 4), np.array([5, 1])) is past


def test_a_profile_writes_the_input() -> None:
    past, new = real(*SHAPE), real(2, 3, 1, 4)
    compiled(cache()).profile(past, new, np.array([5, 1]), repeat=2)
    np.testing.assert_array_equal(past[0, :, 5], new[0, :, 0])


def test_tokens_of_a_decoder() -> None:
    d = Decoder()
    weights = d.weights()
    aliases = {f"{name}_out": name for name in d.caches}
    exe = compiled(build(d, weights).SerializeToString(), aliases)
    caches, expected = d.empty(), d.empty()
    expected = {name: a.astype(np.float64) for name, a in expected.items()}
    rng = np.random.default_rng(1)
    for place in range(8):
        ids = rng.integers(0, d.vocabulary, (d.batch, 1))
        want = reference(d, weights, ids, place, expected)
        last = np.full(d.batch, place, np.int32)
        logits, *kept = exe(ids=ids, last_key=last, **caches)
        assert all(a is caches[name] for a, name in zip(kept, d.caches, strict=True))
        np.testing.assert_allclose(logits[:, 0], want, rtol=2e-4, atol=2e-4)
    for name, a in caches.items():
        np.testing.assert_allclose(a, expected[name], rtol=2e-4, atol=2e-4)


# ------------------------------------------------------------------------------- refused to compile

AFTER = cache(more=", float[2,3,8,4] y", rest="y = Neg(past)")
TURNED = "(float[4,4] x) => (float[4,4] y) { y = Transpose(x) }"
UPDATED = (
    "(float[{n}] w, float[{n}] g) => (float[{n}] v) {{ r = Mul(g, g) v = Sub(w, r) }}"
)
SHARES = "(float[4,9] x) => (float[4,9] y) { y = Softmax(x) }"
SUMMED = "(float[4] x) => (float[4] y) { s = ReduceSum(x) y = Sub(x, s) }"
GIVEN = "(float[4] x, float[4] z) => (float[4] y, float[4] x) { y = Neg(x) }"
OTHER = "(float[4] x, float[5] z, int32[4] i) => (float[4] y) { y = Neg(x) }"
EMPTY = "(float[0] x) => (float[0] y) { y = Neg(x) }"


@pytest.mark.parametrize(
    ("source", "aliases", "what"),
    [
        (cache(), {"other": "past"}, "no output is called 'other'"),
        (cache(), {"present": "other"}, "no input is called 'other'"),
        (cache(), {"present": "new"}, "their types differ"),
        (cache(), {"present": 3}, "aliases="),
        (cache(), ["present"], "aliases="),
        (model(OTHER), {"y": "z"}, "their types differ"),
        (model(OTHER), {"y": "i"}, "their types differ"),
        (model(GIVEN), {"y": "x"}, "the input is itself an output"),
        (model(GIVEN), {"x": "z"}, "itself an input or constant"),
        (model(EMPTY), {"y": "x"}, "itself an input or constant"),
        (AFTER, {"present": "past", "y": "past"}, "two outputs"),
    ],
)
def test_names_that_do_not_fit(source: bytes, aliases: Any, what: str) -> None:
    with pytest.raises(InputError, match=what):
        compiled(source, aliases)


@pytest.mark.parametrize(
    ("source", "aliases", "what"),
    [
        (model(TURNED), {"y": "x"}, "reads elements of 'x' other"),
        (model(SHARES), {"y": "x"}, "reads elements of 'x' other"),
        # A vector that begins earlier covers the rest: its elements are computed twice.
        (model(UPDATED.format(n=33)), {"v": "w"}, "or writes an element twice"),
    ],
)
def test_what_is_read_after_it_is_written(
    source: bytes, aliases: Any, what: str
) -> None:
    with pytest.raises(UnsupportedError, match=what):
        compiled(source, aliases)


def test_an_input_that_is_read_later() -> None:
    """Or before, where the order is so: never with what is new in it."""
    past, new = real(*SHAPE), real(2, 3, 1, 4)
    before = past.copy()
    try:
        exe = compiled(AFTER)
    except UnsupportedError as error:
        assert "after" in str(error)
    else:
        _, y = exe(past, new, np.array([5, 1]))
        np.testing.assert_array_equal(y, -before)


def test_a_kernel_has_none() -> None:
    x, y = Buffer("x", (4,), float32), Buffer("y", (4,), float32)
    kernel = plain([map_("twice", y, lambda i: x[i] + x[i])])
    with pytest.raises(InputError, match="a Kernel has none"):
        tw.compile(kernel, aliases={"y": "x"})


# ----------------------------------------------------------------------------------- refused to run


def fortran() -> Any:
    return np.asfortranarray(real(*SHAPE))


def fixed() -> Any:
    a = real(*SHAPE)
    a.flags.writeable = False
    return a


@pytest.mark.parametrize(
    ("past", "what"),
    [
        (fortran(), "read-only, or not contiguous"),
        (fixed(), "read-only, or not contiguous"),
        (real(*SHAPE).tolist(), "expected an array or a tensor"),
        (real(*SHAPE).astype(np.float64), "float64"),
        (real(2, 3, 9, 4), "expected"),
    ],
)
def test_arrays_that_cannot_be_written(past: Any, what: str) -> None:
    exe = compiled(cache())
    before = np.array(past)
    with pytest.raises(InputError, match=what):
        exe(past, real(2, 3, 1, 4), np.array([5, 1]))
    np.testing.assert_array_equal(past, before)


def test_arrays_that_share_memory() -> None:
    exe = compiled(cache(8))
    a = real(*SHAPE)
    with pytest.raises(InputError, match="shares memory"):
        exe(a, a, np.array([0, 0]))


def test_other_outputs() -> None:
    exe = compiled(cache(more=", float[2,3,8,4] y", rest="y = Neg(present)"))
    past, rest = real(*SHAPE), (real(2, 3, 1, 4), np.array([5, 1]))
    y = np.empty_like(past)
    kept, found = exe(past, *rest, out=[past, y])
    assert kept is past and found is y
    np.testing.assert_array_equal(y, -past)
    with pytest.raises(InputError, match="another array"):
        exe(past, *rest, out=[np.empty_like(past), None])
    with pytest.raises(InputError, match="share"):
        exe(past, *rest, out=[None, past])
